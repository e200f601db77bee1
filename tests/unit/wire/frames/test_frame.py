"""Cutting a stream into frames."""

import struct
import tracemalloc

import pytest

from holdfast.model.errors import RemoteProtocolError
from holdfast.wire.frames.frame import (
    BINARY,
    FRAME_SIZE_MAX,
    JSON,
    Frame,
    frame_prefix,
    peek_frame_size,
    split_frames,
)

HEADER, BODY = b'{"code":0}', b"body"
WIRE = frame_prefix(JSON, len(HEADER), len(BODY)) + HEADER + BODY


def parts(frames: list[Frame]) -> list[tuple[int, bytes, bytes]]:
    return [(frame.serializer, bytes(frame.header), bytes(frame.body)) for frame in frames]


def test_the_prefix_counts_everything_behind_the_size():
    """Four bytes of size, one of serializer, three of header size."""
    assert frame_prefix(BINARY, 0x010203, 5) == bytes.fromhex("0001020c 01010203")


@pytest.mark.parametrize("cut", range(len(WIRE)))
def test_a_frame_cut_anywhere_is_withheld_and_then_delivered_whole(cut: int):
    """Nothing is taken before the last byte is there."""
    assert split_frames(memoryview(WIRE[:cut])) == ([], 0)

    frames, taken = split_frames(memoryview(WIRE + b"\0\0"))

    assert parts(frames) == [(JSON, HEADER, BODY)]
    assert taken == len(WIRE)


def test_all_whole_frames_are_taken_and_the_rest_is_left():
    """One read may bring many."""
    other = frame_prefix(BINARY, 2, 0) + b"hi"

    frames, taken = split_frames(memoryview(WIRE + other + WIRE + other[:9]))

    assert parts(frames) == [(JSON, HEADER, BODY), (BINARY, b"hi", b""), (JSON, HEADER, BODY)]
    assert taken == 2 * len(WIRE) + len(other)


def test_frames_are_views_and_copy_nothing():
    """They change with the buffer that they are views of."""
    buffer = bytearray(WIRE)
    (frame,), _ = split_frames(memoryview(buffer))

    buffer[-4:] = b"BODY"

    assert bytes(frame.body) == b"BODY"


@pytest.mark.parametrize("size", [0, 1, 3, FRAME_SIZE_MAX + 1, 0x7FFFFFFF, 0xFFFFFFFF])
@pytest.mark.parametrize("behind", [b"", b"\0\0\0", b"\0\0\0\0", b"\0\0\0\0\0\0\0\0"])
def test_an_impossible_size_is_judged_before_its_bytes_arrive(size: int, behind: bytes):
    """A peer that lies about its length must not make us wait for the lie."""
    with pytest.raises(RemoteProtocolError, match=f"frame size {size} "):
        split_frames(memoryview(size.to_bytes(4, "big") + behind))


@pytest.mark.parametrize("serializer", [2, 3, 0x16, 0xFF])
def test_an_unknown_serializer_is_refused(serializer: int):
    """There are two; whatever else is there, the header cannot be read."""
    with pytest.raises(RemoteProtocolError, match=f"serializer {serializer} is unknown"):
        split_frames(memoryview((8).to_bytes(4, "big") + bytes([serializer]) + b"\0\0\0"))


@pytest.mark.parametrize(("size", "header_size"), [(4, 1), (8, 5), (100, 97), (100, 0xFFFFFF)])
def test_a_header_longer_than_its_frame_is_refused(size: int, header_size: int):
    """It would reach into the next frame."""
    with pytest.raises(RemoteProtocolError, match=f"header size {header_size} does not fit"):
        split_frames(memoryview(size.to_bytes(4, "big") + header_size.to_bytes(4, "big")))


def test_frames_before_a_bad_one_are_lost_with_it():
    """The channel is closed; whoever speaks rubbish need not be answered."""
    with pytest.raises(RemoteProtocolError):
        split_frames(memoryview(WIRE + b"\xff\xff\xff\xff"))


def test_the_largest_frame_is_allowed():
    """Upstream's limit of 16 MiB counts the size field itself."""
    prefix = frame_prefix(JSON, 2, FRAME_SIZE_MAX - 6)

    assert split_frames(memoryview(prefix)) == ([], 0)
    frames, taken = split_frames(memoryview(prefix + bytes(FRAME_SIZE_MAX - 4)))
    assert len(frames) == 1
    assert taken == 16 * 1024 * 1024


def test_a_lower_limit_can_be_set():
    """For peers that have no business sending much."""
    with pytest.raises(RemoteProtocolError):
        split_frames(memoryview(WIRE), frame_size_max=10)


def test_the_size_of_an_unfinished_frame_is_known_from_four_bytes():
    """So that a buffer of the right size can be had."""
    assert peek_frame_size(memoryview(WIRE[:3])) == 0
    assert peek_frame_size(memoryview(WIRE[:4])) == len(WIRE)


def test_a_declared_size_reserves_nothing():
    """Sixteen megabytes promised, eight bytes sent."""
    start = frame_prefix(JSON, 2, FRAME_SIZE_MAX - 6)
    tracemalloc.start()

    split_frames(memoryview(start))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert peak < 10_000


def test_a_header_above_a_limit_is_refused_before_its_bytes_arrive():
    """A body of that size is not."""
    header = struct.pack(">II", 4 + 5_000, 1_001)

    assert split_frames(memoryview(struct.pack(">II", 4 + 5_000, 1_000)), header_size_max=1_000) == ([], 0)
    with pytest.raises(RemoteProtocolError, match="header size 1001 is above 1000"):
        split_frames(memoryview(header), header_size_max=1_000)
