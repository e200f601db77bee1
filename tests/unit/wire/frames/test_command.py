"""Requests and responses in both header encodings."""

import json

import pytest

from holdfast.model.errors import LocalProtocolError, RemoteProtocolError
from holdfast.wire.frames.codes import LANGUAGE_NAMES
from holdfast.wire.frames.command import (
    BINARY,
    JSON,
    ONE_WAY,
    RESPONSE,
    Command,
    decode_command,
    encode_command,
    response,
)
from holdfast.wire.frames.frame import Frame, split_frames


def a_frame(header: bytes, body: bytes = b"", serializer: int = JSON) -> Frame:
    return Frame(serializer, memoryview(header), memoryview(body))


def again(command: Command) -> Command:
    (frame,), _ = split_frames(memoryview(encode_command(command)))
    return decode_command(frame)


@pytest.mark.parametrize("serializer", [JSON, BINARY])
def test_a_full_command_survives_encoding(serializer: int):
    """Everything that a header can say, beyond ASCII too."""
    command = Command(
        code=310,
        opaque=-5,
        flag=ONE_WAY,
        fields={"topic": "t-ü-漢", "empty": "", "i": "a\x01b\x02"},
        body=b"\x00\xff",
        remark='a "remark"\n\\',
        language="GO",
        version=317,
        serializer=serializer,
    )

    assert again(command) == command


@pytest.mark.parametrize("serializer", [JSON, BINARY])
def test_what_is_absent_stays_absent(serializer: int):
    """No fields, no remark, no body."""
    command = Command(code=0, opaque=1, flag=RESPONSE, serializer=serializer)

    found = again(command)

    assert (found.fields, found.remark, found.body) == ({}, None, b"")
    if serializer == JSON:
        assert b"extFields" not in encode_command(command)
        assert b"remark" not in encode_command(command)


def test_a_decoded_command_owns_its_bytes():
    """The receive buffer is used again as soon as the event is handled."""
    buffer = bytearray(encode_command(Command(code=1, fields={"a": "b"}, body=b"body")))
    (frame,), _ = split_frames(memoryview(buffer))

    command = decode_command(frame)
    buffer[:] = bytes(len(buffer))

    assert (command.fields, command.body) == ({"a": "b"}, b"body")


def test_json_liberties_of_other_clients_are_taken():
    """Values that are numbers or booleans, null, blanks, unknown keys, a language as a number."""
    header = json.dumps(
        {
            "code": "14",
            "opaque": 3,
            "language": 1,
            "version": 100,
            "unknown": [1, {"x": 2}],
            "extFields": {"queueId": 7, "flag": True, "off": False, "none": None, "text": "t", "real": 1.5},
        },
        indent=2,
    )

    command = decode_command(a_frame(header.encode()))

    assert (command.code, command.opaque, command.flag, command.language) == (14, 3, 0, "CPP")
    assert command.fields == {"queueId": "7", "flag": "true", "off": "false", "text": "t", "real": "1.5"}


@pytest.mark.parametrize(
    ("language", "name"), [(b'"JAVA"', "JAVA"), (b'"KLINGON"', "KLINGON"), (b"99", "OTHER"), (b"null", "OTHER")]
)
def test_an_unknown_language_is_no_error(language: bytes, name: str):
    """Names that we do not know are kept, numbers are somebody else's."""
    assert decode_command(a_frame(b'{"code":1,"language":%b}' % language)).language == name


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"[]",
        b"null",
        b"{",
        b'{"code":"x"}',
        b'{"code":1,"extFields":[]}',
        b'{"code":1,"extFields":{"a":{}}}',
        b'{"code":1,"opaque":2147483648}',
        b'{"code":1,"opaque":-2147483649}',
        b'{"code":1,"remark":"\xff"}',
        b"[" * 50_000,
        b'{"a":' * 50_000,
    ],
)
def test_a_json_header_that_cannot_be_read_is_the_peers_fault(header: bytes):
    """And nothing else than that."""
    with pytest.raises(RemoteProtocolError):
        decode_command(a_frame(header))


@pytest.mark.parametrize("cut", range(21))
def test_a_binary_header_that_is_too_short_is_the_peers_fault(cut: int):
    """The smallest one has 21 bytes."""
    smallest = bytes(21)
    assert decode_command(a_frame(smallest, serializer=BINARY)).code == 0

    with pytest.raises(RemoteProtocolError):
        decode_command(a_frame(smallest[:cut], serializer=BINARY))


@pytest.mark.parametrize(
    "tail",
    [
        "ffffffff",  # remark of -1 bytes
        "7fffffff",  # remark of 2 GiB
        "00000001ff00000000",  # remark that is not UTF-8
        "00000000ffffffff",  # fields of -1 bytes
        "00000000000000ff",  # fields larger than the header
        "000000000000000100",  # half a key size
        "0000000000000002ffff",  # key of -1 bytes
        "00000000000000020005",  # key that is not there
        "0000000000000003000161",  # no value size
        "000000000000000700016100000005",  # value that is not there
        "0000000000000007000161ffffffff",  # value of -1 bytes
        "00000000000000080001ff0000000161",  # key that is not UTF-8
    ],
)
def test_a_binary_header_with_lying_sizes_is_the_peers_fault(tail: str):
    """Every size is judged before it is followed."""
    start = bytes.fromhex("000e 00 01df 00000001 00000000")

    with pytest.raises(RemoteProtocolError):
        decode_command(a_frame(start + bytes.fromhex(tail), serializer=BINARY))


def test_a_binary_code_is_16_bits():
    """Java writes larger ones truncated; we refuse to say what would be misunderstood."""
    assert again(Command(code=0x7FFF, serializer=BINARY)).code == 0x7FFF
    with pytest.raises(LocalProtocolError, match="use JSON"):
        encode_command(Command(code=200050, serializer=BINARY))


def test_a_binary_field_name_is_15_bits_long():
    """Longer ones cannot be said."""
    with pytest.raises(LocalProtocolError):
        encode_command(Command(code=1, fields={"k" * 0x8000: "v"}, serializer=BINARY))


def test_an_empty_binary_key_is_skipped():
    """Java decodes it to null and drops it."""
    fields = bytes.fromhex("0000 00000001 61 0001 62 00000001 63")
    header = bytes(17) + len(fields).to_bytes(4, "big") + fields

    assert decode_command(a_frame(header, serializer=BINARY)).fields == {"b": "c"}


@pytest.mark.parametrize("number", range(len(LANGUAGE_NAMES)))
def test_languages_have_numbers_in_binary_headers(number: int):
    """The order is upstream's."""
    command = Command(code=1, language=LANGUAGE_NAMES[number], serializer=BINARY)

    assert encode_command(command)[10] == number
    assert again(command).language == LANGUAGE_NAMES[number]


def test_a_language_without_a_number_is_other():
    """The byte has no place for names."""
    assert again(Command(code=1, language="KLINGON", serializer=BINARY)).language == "OTHER"


@pytest.mark.parametrize("serializer", [JSON, BINARY])
def test_a_response_goes_back_the_way_the_request_came(serializer: int):
    """Same number, same encoding, marked as a response, from us."""
    request = Command(code=14, opaque=77, flag=0, fields={"a": "b"}, body=b"x", language="JAVA", serializer=serializer)

    answer = response(request, 22, "not found", fields={"c": "d"}, body=b"y")

    assert (answer.opaque, answer.serializer, answer.is_response, answer.is_one_way) == (77, serializer, True, False)
    assert (answer.code, answer.remark, answer.fields, answer.body) == (22, "not found", {"c": "d"}, b"y")
    assert answer.language == "PYTHON"


def test_responses_do_not_share_their_fields():
    """Each has a dictionary of its own."""
    request = Command(code=14)

    response(request).fields["a"] = "b"

    assert response(request).fields == {}
    assert Command(code=1).fields == {}
