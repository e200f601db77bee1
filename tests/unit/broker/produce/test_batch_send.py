"""Batches, split or kept: what Java's producer sends, and what it is answered."""

import pytest
from tests.support import recordings
from tests.support.cluster.broker_machine import BrokerHarness, a_send

from holdfast.model.java_hash import java_hash
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.records.batch import encode_items
from holdfast.wire.records.message_id import parse_message_id


@pytest.fixture
def desk() -> BrokerHarness:
    desk = BrokerHarness()
    desk.make_topic("T")
    return desk


def test_a_batch_is_split_into_messages_with_consecutive_offsets(desk: BrokerHarness) -> None:
    """Each with its own flag, body, properties and tag; the answer names them all."""
    items = [
        (number, b"body%d" % number, f"UNIQ_KEY\x01U{number}\x02TAGS\x01t{number}\x02".encode()) for number in range(3)
    ]
    desk.call(a_send())

    (answer,) = desk.call(a_send(code=320, m="true", body=encode_items(items)))

    ids = answer.fields["msgId"].split(",")
    records = [desk.store.read_record(parse_message_id(text).position) for text in ids]
    assert answer.fields["queueOffset"] == "1"
    assert [(record.offset, record.flag, bytes(record.body)) for record in records if record] == [
        (1, 0, b"body0"), (2, 1, b"body1"), (3, 2, b"body2"),
    ]  # fmt: skip
    assert [code for _, _, code in desk.store.queue("T", 0).entries(1, 3)] == [java_hash(f"t{n}") for n in range(3)]


@pytest.mark.parametrize("body", [b"", b"\0\0\0", b"\0\0\0\x50" + bytes(30), b"\xff" * 50])
def test_a_batch_that_is_none_is_refused_whole(desk: BrokerHarness, body: bytes) -> None:
    """Nothing of it is stored."""
    (answer,) = desk.call(a_send(code=320, m="true", body=body))

    assert answer.code in {ResponseCode.MESSAGE_ILLEGAL, ResponseCode.INVALID_PARAMETER}
    assert desk.store.queue("T", 0).offset_max == 0


def test_a_java_producer_is_answered_as_a_java_broker_answers_it() -> None:
    """Recorded: a topic of batches is made, two batches of three and a single message are sent to it."""
    desk = BrokerHarness(name="brokerA", cluster="C1", listen="127.0.0.1:40911")
    frames = recordings.read("5.5.0-json-batch-cq")
    wanted = {17, RequestCode.SEND_BATCH_MESSAGE, RequestCode.SEND_MESSAGE_V2}
    theirs = {frame.command.opaque: frame.command for frame in frames if frame.is_response and frame.code in wanted}

    ours = [
        answer
        for frame in frames
        if not frame.is_response and frame.code in wanted
        for answer in desk.send_bytes(frame.data)
    ]

    assert len(ours) == len(theirs) == 4
    for answer in ours:
        told = theirs[answer.opaque]
        assert answer.code == told.code
        for name in ("queueId", "queueOffset", "batchUniqId"):
            assert answer.fields.get(name) == told.fields.get(name), name
    assert desk.store.queue("TopicBCQ", 0).offset_max == 7
