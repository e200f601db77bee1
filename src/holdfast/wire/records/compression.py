"""Compressed bodies. Three bits of a message's sys flag name the codec.

    bit 0         the body is compressed
    bits 8..10    0 zlib (clients before 4.9.4 leave these bits unset), 1 LZ4 frame, 2 Zstandard, 3 zlib

Only clients use this: a broker stores and serves compressed bodies unchanged. The decompressed size is bounded, because
a few untrusted bytes can expand to gigabytes.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, Final

import lz4.frame
import zstandard

from holdfast.model.errors import RemoteProtocolError

_zlib: Any
try:
    from isal import isal_zlib as _zlib

    _ZLIB_LEVEL = 1  # Measured: nearly the ratio of zlib 5 at eight times its speed.
except ImportError:  # The same format, several times slower.
    import zlib as _zlib

    _ZLIB_LEVEL = 5

Piece = bytes | bytearray | memoryview

COMPRESSED: Final = 0x1
CODEC_MASK: Final = 0x700
_CODEC_SHIFT: Final = 8

DECOMPRESSED_SIZE_MAX: Final = 64 * 1024 * 1024
_ZSTD_LEVEL: Final = 1


class Codec(IntEnum):
    """The compression of a body. The numbers are those of the sys flag."""

    LZ4 = 1
    ZSTD = 2
    ZLIB = 3


def compress(body: Piece, codec: Codec) -> bytes:
    """Return *body* compressed, in the format that other clients read."""
    if codec is Codec.LZ4:
        # Java's LZ4 reader accepts only frames of independent blocks. It drops the messages of any other frame.
        return bytes(lz4.frame.compress(body, block_linked=False))
    if codec is Codec.ZSTD:
        return zstandard.ZstdCompressor(level=_ZSTD_LEVEL).compress(body)
    return bytes(_zlib.compress(body, _ZLIB_LEVEL))


def flag_of(codec: Codec) -> int:
    """Return the sys flag bits of a body that is compressed with *codec*."""
    return COMPRESSED | codec << _CODEC_SHIFT


def decompress(body: Piece, sys_flag: int, *, size_max: int = DECOMPRESSED_SIZE_MAX) -> bytes:
    """Return *body* decompressed as *sys_flag* says; a copy if it is not compressed.

    Raises:
        RemoteProtocolError: the bytes have another format, are cut short, or would expand to more than *size_max*.
    """
    if not sys_flag & COMPRESSED:
        return bytes(body)
    kind = (sys_flag & CODEC_MASK) >> _CODEC_SHIFT
    try:
        if kind == Codec.ZSTD:
            return _from_zstd(body, size_max)
        if kind == Codec.LZ4:
            return _from_lz4(body, size_max)
        if kind in {0, Codec.ZLIB}:
            return _decompress_all(_zlib.decompressobj(), body, size_max)
    except (_zlib.error, RuntimeError, zstandard.ZstdError, EOFError) as error:
        raise RemoteProtocolError(f"compressed body cannot be read: {error}") from error
    raise RemoteProtocolError(f"body is compressed with codec {kind}, which is unknown")


def _decompress_all(decompressor: Any, body: Piece, size_max: int) -> bytes:
    """Return the decompressed *body*, if it is complete and not too large."""
    plain: bytes = decompressor.decompress(body, size_max + 1)
    if len(plain) > size_max:
        raise RemoteProtocolError(f"compressed body would be more than {size_max} bytes")
    if not decompressor.eof:
        raise RemoteProtocolError("compressed body is cut short")
    return plain


def _from_lz4(body: Piece, size_max: int) -> bytes:
    declared = lz4.frame.get_frame_info(body)["content_size"]
    if declared > size_max:
        raise RemoteProtocolError(f"compressed body would be {declared} bytes, more than {size_max}")
    # The decompressor allocates the maximum at once, so pass the declared size, which is smaller, if there is one.
    return _decompress_all(lz4.frame.LZ4FrameDecompressor(), body, declared or size_max)


def _from_zstd(body: Piece, size_max: int) -> bytes:
    declared = zstandard.frame_content_size(body)
    if declared > size_max:
        raise RemoteProtocolError(f"compressed body would be {declared} bytes, more than {size_max}")
    # A frame that does not declare its size gets a buffer of the maximum; the library fails if it does not suffice.
    return zstandard.ZstdDecompressor().decompress(body, max_output_size=size_max)
