"""Our broker answers recorded conversations as the Java broker did.

Positions and times are other ones here, because a record of ours has other properties than one of Java's; so what is
compared is the code, the names of the header fields and the shape of the body. Requests that carry a position are not.
"""

import struct
from typing import Any

import pytest
from tests.support import recordings
from tests.support.cluster.broker_machine import BrokerHarness
from tests.support.recordings import RecordedFrame

from holdfast.wire.frames import java_json
from holdfast.wire.frames.command import Command

PORTS = {40911, 40909}
SCENARIOS = (
    "admin-topic",
    "send",
    "request-reply",
    "pull",
    "lite-pull",
    "push",
    "orderly",
    "broadcast",
    "consumer-admin",
    "reset-serverside",
    "runtime",
    "ha-slave",
    "ha-more",
)
COMPARED = frozenset(
    {
        14,
        15,
        17,
        21,
        25,
        26,
        28,
        29,
        30,
        31,
        32,
        34,
        35,
        38,
        41,
        42,
        60,
        61,
        200,
        201,
        202,
        203,
        204,
        207,
        208,
        215,
        222,
    }
    | {300, 303, 305, 306, 307, 315, 316, 317, 321, 328, 329, 343, 345, 351, 907}
)
# What a Java broker has and we have not, or the other way round, and why.
DIFFERENT = {
    "5.5.0-json-consumer-admin:97": "a group with a SQL subscription: its consumer was refused",
    "4.9.7-json-admin-topic:32": "an illegal name: 4.9.7 has no code of its own for it",
    "4.9.7-json-consumer-admin:76": "a commit for a group that nobody made: 4.9.7 takes it",
    "4.9.7-json-consumer-admin:78": "the same again",
    "4.9.7-json-request-reply:15": "no offset in an empty queue: 4.9.7 says 0, 5.x says that there is none",
    "4.9.7-json-request-reply:20": "the same again",
    # The recorder kept a few of many like requests; these ask for what a request did that it left out.
    "4.9.7-json-admin-topic:51": "topic never made",
    "4.9.7-json-consumer-admin:46": "producer never seen",
    "4.9.7-json-consumer-admin:128": "producer never seen",
    "5.5.0-binary-admin-topic:46": "topic never made",
    "5.5.0-binary-admin-topic:48": "topic never made",
    "5.5.0-binary-consumer-admin:41": "producer never seen",
    "5.5.0-binary-consumer-admin:129": "producer never seen",
}
# Fields and parts of bodies that one version sends and another does not; every client takes them or leaves them.
OPTIONAL = frozenset(
    {"IS_SUPPORT_HEART_BEAT_V2", "IS_SUB_CHANGE", "totalTopicNum", "totalGroupNum", "forbiddenTable", "topicPutTps"}
    | {"capabilities"}
    | {"totalInflightDiff", "mappingDataVersion", "topicQueueMappingDetailMap", "topicQueueMappingInfoMap"}
)


class Replay:
    """One broker, and the answers that it gave and that nobody has asked for yet."""

    def __init__(self) -> None:
        self.desk = BrokerHarness(name="brokerA", cluster="C1", listen="127.0.0.1:40911")
        self.desk.now_ms = 1_794_745_000_000
        self._ours: dict[tuple[int, int], Command] = {}

    def run(self, name: str) -> list[tuple[RecordedFrame, Command | None]]:
        """Send every request of a recording; return each recorded answer of interest with ours."""
        pairs: list[tuple[RecordedFrame, Command | None]] = []
        for recorded in recordings.read(name):
            if recorded.line["port"] not in PORTS or not recorded.line["conn"].endswith("-broker"):
                continue
            channel = recorded.line["c"]
            if channel not in self.desk.answers:
                self.desk.connect(channel)
            if recorded.line["dir"] == "<" and recorded.is_response:
                ours = self._ours.pop((channel, recorded.line["opaque"]), None)
                if recorded.code in COMPARED and str(recorded) not in DIFFERENT:
                    pairs.append((recorded, ours))
            elif recorded.line["dir"] == ">":
                self._receive(channel, recorded)
        self.desk.now_ms += 3_000
        return pairs

    def _receive(self, channel: int, recorded: RecordedFrame) -> None:
        if recorded.is_response:  # to a question of ours, which has another number here
            asked = [command for command in self.desk.answers[channel] if command.code == recorded.code]
            if not asked:
                return
            answer = recorded.command
            answer.opaque = asked[-1].opaque
            self.desk.call(answer, channel=channel)
        else:
            self.desk.send_bytes(recorded.data, channel)
        for number, answers in self.desk.answers.items():
            self._ours |= {(number, answer.opaque): answer for answer in answers if answer.is_response}


def parts(body: bytes) -> Any:
    """Return the names of what a body consists of, or whether there is one at all."""
    return set(java_json.loads(body)) - OPTIONAL if body.startswith(b"{") else bool(body)


@pytest.mark.parametrize("prefix", ["5.5.0-json", "5.5.0-binary", "4.9.7-json"])
def test_every_answer_has_the_shape_of_javas(prefix: str) -> None:
    """Same code, same fields, the same parts in the body, in the encoding of the request."""
    replay = Replay()
    compared: set[int | None] = set()

    for scenario in SCENARIOS:
        name = f"{prefix}-{scenario}"
        if name not in recordings.file_names():
            continue
        for recorded, ours in replay.run(name):
            theirs = recorded.command
            assert ours is not None, f"no answer to {recorded}"
            assert ours.code == theirs.code, f"{recorded}: {ours.remark}"
            assert ours.serializer == theirs.serializer, recorded
            assert ours.fields.keys() - OPTIONAL == theirs.fields.keys() - OPTIONAL, recorded
            assert parts(ours.body) == parts(theirs.body), recorded
            compared.add(recorded.code)

    assert len(compared) >= 30


def test_a_java_slave_gets_a_timer_checkpoint_that_it_can_read() -> None:
    """Seven numbers: all read until now, an empty timer wheel; and metrics of no topic, whose version stays."""
    replay = Replay()
    answers = [pair for name in ("ha-slave", "ha-more") for pair in replay.run(f"5.5.0-json-{name}")]
    checkpoints = [(theirs, ours) for theirs, ours in answers if theirs.code == 60]
    (metrics,) = [(theirs, ours) for theirs, ours in answers if theirs.code == 61]

    for theirs, ours in [*checkpoints, metrics]:
        assert ours is not None, f"no answer to {theirs}"
        assert (ours.code, ours.fields) == (0, theirs.command.fields)
    for theirs, ours in checkpoints:
        assert ours is not None
        read_ms, *positions, version_ms, _ = struct.unpack(">7q", ours.body)
        their_read_ms, *their_positions, their_version_ms, _ = struct.unpack(">7q", theirs.command.body)
        assert positions == their_positions == [0, 0, 0, 0]
        assert version_ms - version_ms % 1000 == read_ms
        assert their_version_ms - their_version_ms % 1000 == their_read_ms
    assert metrics[1] is not None
    theirs, ours = java_json.loads(metrics[0].command.body), java_json.loads(metrics[1].body)
    assert theirs["dataVersion"].keys() == ours["dataVersion"].keys()
    assert theirs["timingCount"] == ours["timingCount"] == {}
