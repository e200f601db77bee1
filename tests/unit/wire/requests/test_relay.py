"""An envelope holds whole frames, as a client wrote them, and nothing else."""

import pytest

from holdfast.model.errors import RemoteProtocolError
from holdfast.wire.frames.command import BINARY, Command, decode_command, encode_command
from holdfast.wire.frames.fields import from_fields, to_fields
from holdfast.wire.frames.frame import split_frames
from holdfast.wire.requests.relay import FRAMES_MAX, RelayFields, copy_frame, count_frames, split_envelope

ONE = encode_command(Command(code=11, opaque=1, body=b"body"))
TWO = encode_command(Command(code=310, opaque=2, fields={"b": "T"}, serializer=BINARY))


def test_the_header_says_whose_request_this_is() -> None:
    """What is written is read back, also what is left out."""
    fields = RelayFields(source="a", boot=7, number=3, hops=2, client="1.2.3.4:5")

    text = to_fields(fields)

    assert text["from"] == "a"
    assert from_fields(RelayFields, text) == fields


def test_a_copied_frame_is_the_frame_byte_for_byte() -> None:
    """Whatever the client wrote: nothing is written anew."""
    frames, _ = split_frames(memoryview(ONE + TWO))

    assert [copy_frame(frame) for frame in frames] == [ONE, TWO]


def test_an_envelope_is_split_into_its_frames() -> None:
    """In order."""
    assert [decode_command(frame).code for frame in split_envelope(ONE + TWO)] == [11, 310]


@pytest.mark.parametrize("body", [b"", ONE + TWO[:-1], b"\x00\x00\x00\x00", b"nonsense" * 4])
def test_what_is_not_frames_is_refused(body: bytes) -> None:
    """Bytes of another server are never trusted."""
    with pytest.raises(RemoteProtocolError):
        split_envelope(body)


def test_too_many_frames_are_refused() -> None:
    """An envelope is bounded."""
    with pytest.raises(RemoteProtocolError):
        split_envelope(ONE * (FRAMES_MAX + 1))


def test_frames_are_counted_across_pieces() -> None:
    """The head of an answer and its records are pieces of one frame; several frames may be one piece."""
    pieces = [ONE[:20], memoryview(ONE)[20:], ONE + TWO, TWO]

    assert count_frames(pieces) == 4
    assert count_frames([]) == 0
