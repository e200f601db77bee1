"""Encoding sends."""

from holdfast.wire.codes import RequestCode
from holdfast.wire.command import decode_command
from holdfast.wire.frame import split_frames
from holdfast.wire.send import decode_send
from holdfast.wire.send_request import OutgoingFields, SendTemplate

FIELDS = OutgoingFields(3, 1, 1700000000000, 7, 'UNIQ_KEY\x01A\x02quo"te\x01ä%d\x02')


def test_a_send_says_what_a_broker_reads():
    """Every field, text escaped, and the body's size."""
    template = SendTemplate('p"g', "100%topic", "broker-a")

    frame = template.head(42, FIELDS, 4) + b"body"

    ((received,), taken) = split_frames(memoryview(frame))
    header = decode_send(received.header)
    fields = header.fields
    assert taken == len(frame)
    assert (header.code, header.opaque, header.flag) == (RequestCode.SEND_MESSAGE_V2, 42, 0)
    assert (fields.producer_group, fields.topic, fields.broker_name) == ('p"g', "100%topic", "broker-a")
    assert (fields.queue_id, fields.sys_flag, fields.born_timestamp, fields.flag) == (3, 1, 1700000000000, 7)
    assert (fields.default_topic, fields.default_topic_queue_nums) == ("TBW102", 4)
    assert (fields.properties, fields.batch) == (FIELDS.properties, False)
    assert bytes(received.body) == b"body"


def test_a_batch_is_marked_as_one():
    """Brokers go by the mark, not by the code."""
    frame = SendTemplate("p", "t", "b").head(1, FIELDS, 0, code=RequestCode.SEND_BATCH_MESSAGE)

    header = decode_send(split_frames(memoryview(frame))[0][0].header)
    assert (header.code, header.fields.batch) == (RequestCode.SEND_BATCH_MESSAGE, True)


def test_a_one_way_send_says_so():
    """In its flag."""
    frame = SendTemplate("p", "t", "b").head(0, FIELDS, 0, one_way=True)

    assert decode_command(split_frames(memoryview(frame))[0][0]).is_one_way
