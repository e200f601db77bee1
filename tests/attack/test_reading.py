"""Ways to read what belongs to others, other than by asking for it."""

from __future__ import annotations

import json
import struct

import pytest
from msgspec import structs
from tests.support.access import Users, log_in
from tests.support.cluster.broker_machine import BrokerHarness, a_pull, a_send
from tests.support.cluster.machine import codes

from holdfast.model.topic import HALF_TOPIC
from holdfast.wire.frames.codes import ResponseCode
from holdfast.wire.frames.command import Command
from holdfast.wire.records.message_id import parse_message_id
from holdfast.wire.records.properties import format_properties
from holdfast.wire.records.record import LAYOUTS, StoredRecord, encode_record

NO = int(ResponseCode.NO_PERMISSION)


def position_of(desk: BrokerHarness, send: Command) -> str:
    """Let alice send a message; return its position."""
    (sent,) = desk.call(send, channel=2)
    assert sent.code == 0, sent.remark
    return str(parse_message_id(sent.fields["msgId"]).position)


@pytest.mark.parametrize("topic", [None, "mine"])
def test_who_may_look_at_the_cluster_reads_no_messages(desk: BrokerHarness, topic: str | None) -> None:
    """33 with a position alone finds messages of every topic."""
    Users(desk).add("monitor", "Cluster:* Get,List", "Topic:mine Get")
    position = position_of(desk, a_send("secret"))
    channel = desk.connect()
    log_in(desk, channel, "monitor")

    fields = {"offset": position} | ({"topic": topic} if topic else {})
    (answer,) = desk.call(Command(code=33, fields=fields), channel=channel)

    assert (answer.code, "Topic:secret" in (answer.remark or "")) == (NO, True)


@pytest.mark.parametrize("topic", ["SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "SYS_HOLDFAST_FORWARDS"])
def test_topics_that_hold_messages_of_all_topics_are_the_cluster_s(desk: BrokerHarness, topic: str) -> None:
    """A right for all topics but one would be a right for the delayed and the half messages of that one, too."""
    users = Users(desk)
    users.add("most", "Topic:* All", "Group:* All", "Deny Topic:secret All")
    channel = desk.connect()
    log_in(desk, channel, "most")
    position = position_of(desk, a_send("secret", i="DELAY\x015\x02"))

    for command in (
        a_pull(topic, consumerGroup="g", queue=4),
        Command(
            code=12, fields={"topic": topic, "key": "k", "maxNum": "1", "beginTimestamp": "0", "endTimestamp": "9"}
        ),
        Command(code=33, fields={"topic": topic, "offset": position}),
        Command(code=36, fields={"group": "g", "offset": position, "delayLevel": "1"}),
    ):
        (answer,) = desk.call(command, channel=channel)
        assert (answer.code, "Cluster:" in (answer.remark or "")) == (NO, True), command


def test_the_offsets_of_a_foreign_group_cannot_be_copied(desk: BrokerHarness) -> None:
    """They would show what the group consumes."""
    fields = {"topic": "secret", "consumerGroup": "secret", "queueId": "0", "commitOffset": "0"}
    group = Command(code=200, body=json.dumps({"groupName": "secret"}).encode())
    position_of(desk, a_send("secret"))
    assert codes(desk.call(group, Command(code=15, fields=fields), channel=2)) == [0, 0]

    (answer,) = desk.call(Command(code=314, fields={"srcGroup": "secret", "destGroup": "mine"}))

    assert (answer.code, "Group:secret" in (answer.remark or "")) == (NO, True)
    assert desk.components.offsets.topics_of("mine") == []


# Records in the bodies of messages.


def forge(broker: BrokerHarness, like: StoredRecord, topic: str, reach: int) -> tuple[bytes, int]:
    """Return a body with a record that reaches beyond its end, and the position that this record will have.

    The message with this body must be the next one, and must be sent to the topic and queue of *like*.
    """
    layout = LAYOUTS[0]
    position = broker.store.written + layout.size
    claimed = structs.replace(like, topic=topic, position=position, properties=b"")
    data = bytearray(encode_record(claimed))
    struct.pack_into(">i", data, 0, len(data) + reach)
    struct.pack_into(">H", data, len(data) - 2, reach)
    return bytes(data), position


def test_a_record_in_a_body_does_not_reach_the_messages_of_others(desk: BrokerHarness) -> None:
    """Its properties, which no checksum covers, would be what others have sent after it."""
    desk.call(a_send("mine", body=b"x"))
    like = desk.store.read_record(0)
    assert like is not None
    body, position = forge(desk, like, "mine", 400)
    desk.call(a_send("mine", body=body))
    for _ in range(8):
        desk.call(a_send("secret", body=b"of alice " * 8), channel=2)
    assert desk.store.view(position, 8) is not None

    (viewed,) = desk.call(Command(code=33, fields={"offset": str(position), "topic": "mine"}))
    (returned,) = desk.call(Command(code=36, fields={"group": "mine", "offset": str(position), "delayLevel": "1"}))

    assert viewed.code != 0
    assert b"of alice" not in viewed.body
    assert returned.code != 0


def test_a_half_message_in_a_body_decides_no_transaction_of_others(desk: BrokerHarness) -> None:
    """A rollback of it would lose the message of another user."""
    desk.call(a_send("secret", f="4", i="TRAN_MSG\x01true\x02PGROUP\x01p\x02"), channel=2)
    like = desk.store.read_record(0)
    assert like is not None
    assert like.topic == HALF_TOPIC
    stolen = structs.replace(
        like, properties=format_properties({"REAL_TOPIC": "mine", "REAL_QID": "0", "PGROUP": "p"}).encode()
    )
    position = desk.store.written + LAYOUTS[0].size
    desk.call(a_send("mine", body=encode_record(structs.replace(stolen, position=position))))

    fields = {"producerGroup": "p", "tranStateTableOffset": "0", "commitLogOffset": str(position)}
    rollback = fields | {"commitOrRollback": "12", "fromTransactionCheck": "false", "msgId": "", "transactionId": ""}
    (answer,) = desk.call(Command(code=37, fields=rollback))

    assert answer.code != 0
    assert answer.remark == "Find prepared transaction message failed"
