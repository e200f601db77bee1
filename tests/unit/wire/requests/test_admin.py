import pytest

from holdfast.model.errors import RemoteProtocolError
from holdfast.model.queue import MessageQueue
from holdfast.wire.frames.fields import from_fields, to_fields
from holdfast.wire.requests.admin import ResetOffsetFields, decode_status, offset_map, parse_attributes, slice_page


def test_attributes_are_set_and_removed() -> None:
    """In one text; blanks and empty parts do not count."""
    assert parse_attributes("+message.type=FIFO, -reserve.time,,+a=b=c") == (
        {"message.type": "FIFO", "a": "b=c"},
        {"reserve.time"},
    )
    assert parse_attributes("") == ({}, set())


@pytest.mark.parametrize("text", ["message.type=FIFO", "+message.type", "-", "+=x"])
def test_what_is_neither_is_refused_by_name(text: str) -> None:
    """A sign tells what is meant; without it nothing is."""
    with pytest.raises(RemoteProtocolError, match="attribute"):
        parse_attributes(text)


def test_queues_are_keys_as_java_reads_them() -> None:
    """Not as text: old clients would not understand."""
    table = offset_map({MessageQueue("T", "b", 0): 5, MessageQueue("T", "b", 1): 6})

    assert bytes(table) == (
        b'{{"topic":"T","brokerName":"b","queueId":0}:5,{"topic":"T","brokerName":"b","queueId":1}:6}'
    )


def test_a_clients_table_of_queues_can_be_put_into_another_body() -> None:
    """With its keys as objects again."""
    body = b'{"consumerTable":{},"messageQueueTable":{{"brokerName":"b","queueId":0,"topic":"T"}:11}}'

    assert bytes(decode_status(body)) == b'{{"brokerName":"b","queueId":0,"topic":"T"}:11}'


@pytest.mark.parametrize("body", [b"[]", b'{"messageQueueTable":[]}', b"\xff"])
def test_a_status_that_is_none_is_refused(body: bytes) -> None:
    """It comes from a stranger."""
    with pytest.raises(RemoteProtocolError):
        decode_status(body)


def test_a_4_x_reset_names_neither_queue_nor_offset() -> None:
    """All queues are meant then, and no offset."""
    fields = from_fields(ResetOffsetFields, {"topic": "T", "group": "g", "timestamp": "5", "isForce": "true"})

    assert (fields.queue_id, fields.offset, fields.is_force) == (None, None, True)
    assert from_fields(ResetOffsetFields, to_fields(fields)) == fields


@pytest.mark.parametrize(
    ("start", "count", "expected"),
    [(0, None, "abc"), (0, 2, "ab"), (2, 2, "c"), (3, 2, ""), (-5, 1, "a"), (1, 0, "b"), (1, -1, "b"), (2**70, 1, "")],
)
def test_a_table_is_handed_out_in_pages(start: int, count: int | None, expected: str) -> None:
    """Without a count all of it; whatever else is asked for, at least a row and never an error."""
    assert "".join(slice_page({"a": 1, "b": 2, "c": 3}, start, count)) == expected
