"""Compressed bodies."""

import contextlib
import zlib

import lz4.frame
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from holdfast.model.errors import RemoteProtocolError
from holdfast.wire.records.compression import CODEC_MASK, Codec, compress, decompress, flag_of

BODY = b"the same again and again " * 1000


@pytest.mark.parametrize("codec", list(Codec))
def test_every_codec_gives_back_what_it_got(codec: Codec):
    """And makes it smaller."""
    packed = compress(BODY, codec)

    assert len(packed) < len(BODY)
    assert decompress(packed, flag_of(codec)) == BODY


def test_the_flags_are_those_of_the_wire():
    """Bit 0, and the codec's number in bits 8 to 10."""
    assert [flag_of(codec) for codec in (Codec.LZ4, Codec.ZSTD, Codec.ZLIB)] == [0x101, 0x201, 0x301]


def test_formats_are_those_that_others_write():
    """Zlib also without a codec number, as old clients leave it; LZ4 frames; Zstandard without a declared size."""
    stream = zstandard.ZstdCompressor(write_content_size=False).compress(BODY)

    assert decompress(zlib.compress(BODY), 0x1) == BODY
    assert decompress(zlib.compress(BODY), 0x301) == BODY
    assert decompress(lz4.frame.compress(BODY), 0x101) == BODY
    assert decompress(stream, 0x201) == BODY


def test_others_can_read_what_we_write():
    """With their own libraries."""
    assert zlib.decompress(compress(BODY, Codec.ZLIB)) == BODY
    assert lz4.frame.decompress(compress(BODY, Codec.LZ4)) == BODY
    assert zstandard.ZstdDecompressor().decompress(compress(BODY, Codec.ZSTD)) == BODY


def test_a_plain_body_is_left_alone():
    """Whatever the other bits say."""
    assert decompress(memoryview(BODY), CODEC_MASK) == BODY


@pytest.mark.parametrize("codec", list(Codec))
def test_more_than_allowed_does_not_come_out(codec: Codec):
    """Exactly as much does."""
    packed = compress(BODY, codec)

    assert decompress(packed, flag_of(codec), size_max=len(BODY)) == BODY
    with pytest.raises(RemoteProtocolError):
        decompress(packed, flag_of(codec), size_max=len(BODY) - 1)


def test_an_undeclared_size_is_bounded_too():
    """A Zstandard stream that does not say how large it gets."""
    stream = zstandard.ZstdCompressor(write_content_size=False).compress(BODY)

    with pytest.raises(RemoteProtocolError):
        decompress(stream, 0x201, size_max=1000)


@pytest.mark.parametrize("codec", list(Codec))
def test_a_body_that_is_cut_short_is_refused(codec: Codec):
    """It is not given out as if it were whole."""
    packed = compress(BODY, codec)

    with pytest.raises(RemoteProtocolError):
        decompress(packed[:-5], flag_of(codec))


@given(data=st.binary(max_size=100), kind=st.integers(min_value=0, max_value=7))
def test_any_bytes_are_uncompressed_or_refused(data: bytes, kind: int):
    """With any codec, known or not."""
    with contextlib.suppress(RemoteProtocolError):
        assert len(decompress(data, 1 | kind << 8, size_max=10_000)) <= 10_000


def test_lz4_frames_of_any_size_have_independent_blocks():
    """Java's reader fails on linked blocks, which the library writes by default once a body has several blocks."""
    frame = compress(bytes(300_000), Codec.LZ4)

    assert lz4.frame.get_frame_info(frame)["block_linked"] is False
