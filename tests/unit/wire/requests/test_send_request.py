"""Encoding sends, and decoding their answers."""

import contextlib

import msgspec
import pytest

from holdfast.model.access.credentials import Credentials
from holdfast.wire.access.signature import verify
from holdfast.wire.frames.codes import RequestCode
from holdfast.wire.frames.command import Command, decode_command, encode_command
from holdfast.wire.frames.frame import split_frames
from holdfast.wire.requests.send import decode_send
from holdfast.wire.requests.send_request import (
    OutgoingFields,
    SendReplyFields,
    SendTemplate,
    decode_send_reply,
    send_reply,
)

SEND = RequestCode.SEND_MESSAGE_V2
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


def header_of(answer: Command) -> memoryview:
    """Return the header of *answer* as it is received."""
    return split_frames(memoryview(encode_command(answer)))[0][0].header


STORED = {"queueId": "3", "queueOffset": "9007199254740993", "msgId": "AB,CD", "transactionId": "T", "TRACE_ON": "true"}


def test_an_answer_is_read_straight_from_its_frame():
    """Where the message is, and by which opaque."""
    reply = decode_send_reply(header_of(Command(code=10, opaque=42, flag=1, fields=STORED)))

    assert (reply.code, reply.opaque, reply.flag, reply.remark) == (10, 42, 1, None)
    assert reply.fields == SendReplyFields(3, 9007199254740993, "AB,CD", "T")


def test_a_refusal_says_nothing_of_a_place():
    """But why."""
    reply = decode_send_reply(header_of(Command(code=14, opaque=42, flag=1, remark="service not available")))

    assert (reply.code, reply.remark) == (14, "service not available")
    assert reply.fields == SendReplyFields()


def test_both_ways_of_reading_an_answer_agree():
    """Whatever of it is there."""
    for fields in (STORED, {}, {"queueId": "1", "queueOffset": "2"}, {"other": "x"}):
        answer = Command(code=0, opaque=7, flag=1, remark="r", fields=dict(fields))

        assert send_reply(answer) == decode_send_reply(header_of(answer))


@pytest.mark.parametrize("number", ["", "x", "-1", "9" * 30, "1.5"])
def test_a_place_that_is_no_number_is_no_place(number: str):
    """The quick way does not read it, the general way leaves it out."""
    answer = Command(code=0, flag=1, fields={"queueId": "1", "queueOffset": number})

    assert send_reply(answer).fields.queue_offset is None
    with contextlib.suppress(msgspec.ValidationError):
        assert (decode_send_reply(header_of(answer)).fields.queue_offset or -1) < 0


def signed(template: SendTemplate, fields: OutgoingFields, credentials: Credentials, *, code: int = SEND) -> Command:
    """Return a signed send as a server receives it."""
    frame = template.signed_head(5, fields, b"hi", credentials, code=code) + b"hi"
    ((received,), taken) = split_frames(memoryview(frame))
    assert taken == len(frame)
    return decode_command(received)


def test_a_signature_is_the_one_of_a_java_client():
    """Computed by the released classes of RocketMQ for the same fields and body."""
    command = signed(SendTemplate("p", "t", "bk"), OutgoingFields(1, 0, 1, 0, "a\x01b\x02"), Credentials("ak", "sk"))

    assert command.fields["AccessKey"] == "ak"
    assert command.fields["Signature"] == "14NoMgXLcLSn3R4iUuuM203cyN0="


@pytest.mark.parametrize("code", [RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE])
@pytest.mark.parametrize("reads_mappings", [True, False])
@pytest.mark.parametrize("token", [None, 'to%k"en'])
def test_a_signed_send_is_the_same_send_with_a_valid_signature(code: int, reads_mappings: bool, token: str | None):  # noqa: FBT001
    """Every field is covered, whatever is in it."""
    template = SendTemplate('p"g%d', "100%topic", "bröker%b", reads_mappings=reads_mappings)
    command = signed(template, FIELDS, Credentials('a%"k', "sécret", token), code=code)
    plain = template.head(5, FIELDS, 2, code=code) + b"hi"

    assert verify(command, ["sécret".encode()])
    assert not verify(command, [b"secret"])
    assert command.fields["AccessKey"] == 'a%"k'
    assert command.fields.get("SecurityToken") == token
    unsigned = decode_command(split_frames(memoryview(plain))[0][0])
    for name in ("AccessKey", "SecurityToken", "Signature"):
        command.fields.pop(name, None)
    assert command == unsigned


def test_other_credentials_sign_from_the_next_send_on():
    """The secret may change while a producer runs."""
    template = SendTemplate("p", "t", "b")

    assert verify(signed(template, FIELDS, Credentials("ak", "one")), [b"one"])
    assert verify(signed(template, FIELDS, Credentials("ak", "two")), [b"two"])
