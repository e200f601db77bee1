"""Sends in every spelling, and their answer."""

import msgspec
import pytest

from holdfast.model.queue import LogicalQueueId
from holdfast.wire.frames.command import BINARY, JSON, Command, decode_command, encode_command
from holdfast.wire.frames.fields import BadField, from_fields
from holdfast.wire.frames.frame import split_frames
from holdfast.wire.frames.host import pack_host
from holdfast.wire.requests.send import (
    PREFIXES,
    LongSendFields,
    SendAnswer,
    SendFields,
    answer_template,
    decode_send,
    send_header,
)

LONG = {
    "producerGroup": "p",
    "topic": "t",
    "defaultTopic": "TBW102",
    "defaultTopicQueueNums": "4",
    "queueId": "1",
    "sysFlag": "2",
    "bornTimestamp": "3",
    "flag": "5",
    "properties": "a\x01b\x02",
    "reconsumeTimes": "6",
    "unitMode": "true",
    "maxReconsumeTimes": "7",
    "batch": "true",
    "bname": "b",
}
SHORT = dict(zip("abcdefghijklmn", LONG.values(), strict=True))
VALUE = SendFields(
    producer_group="p",
    topic="t",
    default_topic="TBW102",
    default_topic_queue_nums=4,
    queue_id=1,
    sys_flag=2,
    born_timestamp=3,
    flag=5,
    properties="a\x01b\x02",
    reconsume_times=6,
    unit_mode=True,
    max_reconsume_times=7,
    batch=True,
    broker_name="b",
)


@pytest.mark.parametrize("serializer", [JSON, BINARY])
@pytest.mark.parametrize(("code", "fields"), [(10, LONG), (324, LONG), (310, SHORT), (320, SHORT), (325, SHORT)])
def test_a_send_is_one_value_in_every_spelling(serializer: int, code: int, fields: dict[str, str]):
    """Long names, short names, JSON, binary."""
    data = encode_command(Command(code=code, opaque=9, fields=fields, version=317, serializer=serializer))
    (frame,), _ = split_frames(memoryview(data))

    header = send_header(decode_command(frame), LongSendFields if fields is LONG else SendFields)

    assert (header.code, header.opaque, header.version, header.fields) == (code, 9, 317, VALUE)


def test_the_fast_reader_finds_the_same():
    """Straight from the buffer, without a dictionary of fields."""
    (frame,), _ = split_frames(memoryview(encode_command(Command(code=310, opaque=9, fields=SHORT))))

    assert decode_send(frame.header) == send_header(decode_command(frame))


def test_numbers_may_be_numbers():
    """Some clients do not put them into texts."""
    header = decode_send(b'{"code":310,"opaque":1,"extFields":{"b":"t","e":3,"m":true,"g":1700000000000}}')

    assert (header.fields.queue_id, header.fields.batch, header.fields.born_timestamp) == (3, True, 1700000000000)
    assert header.fields.default_topic_queue_nums == 4


@pytest.mark.parametrize(
    "fields",
    [
        b'{"e":"0"}',
        b'{"b":"t"}',
        b'{"b":"t","e":"x"}',
        b'{"b":"t","e":"007"}',
        b'{"b":"t","e":"2147483648"}',
        b'{"b":"t","e":0,"g":9223372036854775808}',
    ],
)
def test_what_the_fast_reader_does_not_take_it_refuses(fields: bytes):
    """With the one error that sends the frame to the general reader."""
    with pytest.raises(msgspec.ValidationError):
        decode_send(b'{"code":310,"opaque":1,"extFields":%b}' % fields)


@pytest.mark.parametrize("missing", ["b", "e"])
def test_a_send_without_topic_or_queue_is_refused(missing: str):
    """By the general reader too."""
    with pytest.raises(BadField, match=missing):
        send_header(Command(code=310, fields={key: value for key, value in SHORT.items() if key != missing}))


@pytest.mark.parametrize("opaque", [0, -3, 2**31 - 1, -(2**31)])
def test_a_plain_answer_says_where_the_message_is(opaque: int):
    """From a template; Java reads queue and offset without asking whether they are there."""
    header = answer_template(pack_host("10.0.0.2:10911")) % (2, 1024, 5, opaque)

    (frame,), taken = split_frames(memoryview(PREFIXES[len(header)] + header))

    answer = decode_command(frame)
    assert taken == 8 + len(header)
    assert (answer.code, answer.opaque, answer.is_response) == (0, opaque, True)
    assert from_fields(SendAnswer, answer.fields) == SendAnswer(
        msg_id="0A00000200002A9F0000000000000400", queue_id=2, queue_offset=5
    )


def test_the_longest_plain_answer_has_a_prefix():
    """An IPv6 host and numbers of full width."""
    header = answer_template(bytes(20)) % (2**31 - 1, 2**63 - 1, 2**63 - 1, -(2**31))

    assert len(header) < len(PREFIXES)


@pytest.mark.parametrize(("named", "queue"), [(-1, None), (0, 0), (3, 3)])
def test_a_send_names_a_queue_or_none(named: int, queue: int | None):
    """A negative number means that any queue will do."""
    assert SendFields(topic="t", queue_id=LogicalQueueId(named)).wanted_queue == queue
