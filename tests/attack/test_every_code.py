"""Eve sends every request code with every name in every field: what is alice's stays alice's.

It asks nothing about permissions: a marker of alice's message must be in no answer, and nothing of hers may change.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator

import msgspec
import pytest
from tests.support.cluster.broker_machine import BrokerHarness, a_send

from holdfast.broker.deferred.transactions import TIMER
from holdfast.machine.effects import CloseChannel, Fault, Log, SendBytes
from holdfast.wire.frames.command import BINARY, JSON, Command, encode_command
from holdfast.wire.records.message_id import parse_message_id
from holdfast.wire.requests.table import REQUESTS, Role

MARKER = b"only-for-alice"
NAMES = (
    "mine",
    "secret",
    "%RETRY%mine",
    "%RETRY%secret",
    "%DLQ%secret",
    "RMQ_SYS_TRANS_HALF_TOPIC",
    "SCHEDULE_TOPIC_XXXX",
)
SPECS = REQUESTS[Role.BROKER]
UNKNOWN = (0, 1, 2, 40, 50, 54, 220, 221, 326, 330, 5001, 7000, 7063, 200050, 200051, 2**31 - 1)


def alices_messages(desk: BrokerHarness) -> dict[str, int]:
    """Let alice store a message, one with a delay, a half one and one that failed; return where each is."""
    desk.pass_time(0, TIMER)
    properties = "UNIQ_KEY\x01U1\x02KEYS\x01k\x02"
    sends = {
        "plain": a_send("secret", body=MARKER, i=properties),
        "delayed": a_send("secret", body=MARKER, i=properties + "DELAY\x015\x02"),
        "half": a_send("secret", body=MARKER, f="4", i=properties + "TRAN_MSG\x01true\x02PGROUP\x01mine\x02"),
        "failed": a_send("%RETRY%secret", body=MARKER, i=properties + "RETRY_TOPIC\x01secret\x02"),
    }
    positions = {}
    for name, send in sends.items():
        (sent,) = desk.call(send, channel=2)
        assert sent.code == 0, (name, sent.remark)
        positions[name] = parse_message_id(sent.fields["msgId"]).position
        positions[f"{name} queue offset"] = int(sent.fields["queueOffset"])
    desk.pop_answers(2)
    return positions


def field_names() -> list[str]:
    """Return all names of header fields of all requests."""
    return sorted({field.encode_name for spec in SPECS.values() for field in msgspec.structs.fields(spec.header)})


def headers(code: int, position: int) -> Iterator[dict[str, str]]:
    """Yield headers of *code* with the names of topics and groups in all places, and *position* in all others."""
    fields = msgspec.structs.fields(SPECS[code].header) if code in SPECS else ()
    names = [field.encode_name for field in fields] or ["topic", "group", "consumerGroup", "offset"]
    topics = [name for name in names if "topic" in name.lower() or name == "b"]
    groups = [name for name in names if "group" in name.lower() or name == "a"]
    flat = {name: str(position) for name in names}
    flat |= {name: "" for name in names if name in {"unit", "scope", "user", "clientAddr", "i", "properties"}}
    flat |= {"key": "k", "maxMsgNums": "32", "maxNum": "32", "sysFlag": "4", "subscription": "*", "subVersion": "0"}
    flat |= {"queueId": "0", "e": "0", "begin": "0", "beginTimestamp": "0", "endTimestamp": "9999999999999", "end": "9"}
    for topic, group in itertools.product(NAMES, NAMES[:2]):
        yield flat | dict.fromkeys(topics, topic) | dict.fromkeys(groups, group)
        yield {k: v for k, v in (flat | dict.fromkeys(groups, group)).items() if k not in topics}
        yield flat | {"topic": "mine", "originTopic": topic, "consumerGroup": group, "group": "mine", "topic ": topic}


BODIES = [
    b"",
    b"not json",
    MARKER[:3],
    json.dumps(
        {
            "consumerGroup": "mine", "group": "mine", "groupName": "mine", "clientId": "c", "clientID": "c",
            "topicName": "mine", "topic": "mine", "subject": "User:eve", "username": "eve", "topics": ["secret"],
            "mqSet": [{"topic": "mine", "brokerName": "broker-a", "queueId": 0}],
            "subscriptionData": {"topic": "mine"}, "topicConfigList": [{"topicName": "mine"}],
            "producerDataSet": [{"groupName": "mine"}], "groupConfigList": [],
        }
    ).encode(),
]  # fmt: skip


def state_of_alice(desk: BrokerHarness) -> object:
    """Return what must not change: her messages, offsets, topic and group."""
    store, parts = desk.store, desk.components
    topics = ("secret", "%RETRY%secret", "%DLQ%secret")
    return (
        {
            name: [queue and queue.next_offset for queue in (store.find_queue(name, 0),)]
            for name in topics
            if parts.topics.find(name)
        },
        {name: parts.topics.find(name) for name in topics},
        parts.groups.find("secret"),
        parts.offsets.find("secret", "secret", 0),
        {user: parts.access_store.directory.find_user(user) for user in ("eve", "alice", "root")},
        desk.options,
    )


@pytest.mark.parametrize("serializer", [JSON, BINARY])
def test_no_code_reveals_or_changes_what_is_alices(desk: BrokerHarness, serializer: int) -> None:
    """One-way requests, too, and codes that no broker knows."""
    positions = alices_messages(desk)
    commit = {"topic": "secret", "consumerGroup": "secret", "queueId": "0", "commitOffset": "1"}
    assert [answer.code for answer in desk.call(Command(code=15, fields=commit), channel=2)] == [0]
    before = state_of_alice(desk)
    values = sorted(set(positions.values()))
    for code in [*SPECS, *(code for code in UNKNOWN if serializer == JSON or code < 1 << 15)]:
        for position in values:
            for fields in headers(code, position):
                for flag in (0, 2):
                    for body in BODIES if position == values[0] else BODIES[:1]:
                        command = Command(
                            code=code, fields=fields, body=body, flag=flag, serializer=serializer, opaque=7
                        )
                        effects = desk.receive(1, encode_command(command))
                        _assert_harmless(effects, command)
                        desk.effects.clear()
                        desk.answers[1].clear()
        assert state_of_alice(desk) == before, code
    desk.pass_time(60_000, TIMER)
    assert not [answer for answer in desk.pop_answers(1) if MARKER in answer.body]


def _assert_harmless(effects: list[object], command: Command) -> None:
    for effect in effects:
        assert not isinstance(effect, Fault), (effect, command)
        assert not isinstance(effect, CloseChannel), (effect, command)
        if isinstance(effect, SendBytes) and effect.channel == 1:
            assert MARKER not in b"".join(bytes(piece) for piece in effect.pieces), command
        if isinstance(effect, Log):
            assert MARKER.decode() not in repr(effect), command
