"""Split a byte stream into frames. Contains no I/O.

    | frame_size u32 | serializer u8 | header_size u24 | header | body |

`frame_size` counts everything after itself. The serializer names the header's encoding: 0 JSON, 1 binary.
`command.py` decodes the header.
"""

from __future__ import annotations

import struct
from typing import Final

import msgspec

from holdfast.model.errors import RemoteProtocolError

JSON: Final = 0
BINARY: Final = 1

# Upstream's limit counts the size field itself, so the largest declared size is four bytes less.
FRAME_SIZE_MAX: Final = 16 * 1024 * 1024 - 4

_SIZE = struct.Struct(">I")
_SIZES = struct.Struct(">II")
PREFIX_SIZE: Final = _SIZES.size


class Frame(msgspec.Struct, frozen=True, gc=False):
    """One complete frame, as views of the receive buffer."""

    serializer: int
    header: memoryview
    body: memoryview


def split_frames(
    received: memoryview,
    filled: int | None = None,
    *,
    frame_size_max: int = FRAME_SIZE_MAX,
    header_size_max: int = FRAME_SIZE_MAX,
) -> tuple[list[Frame], int]:
    """Return every complete frame in the first *filled* bytes of *received*, as views, and the number of bytes used.

    The views are valid until the receive buffer is reused, that is, until the read event that delivered them has been
    answered.

    Raises:
        RemoteProtocolError: a declared size is impossible, or a serializer is unknown. Sizes are validated before the
            bytes arrive: a peer that declares a false length must not make us buffer that much.
    """
    frames: list[Frame] = []
    start = 0
    if filled is None:
        filled = len(received)
    while filled - start >= PREFIX_SIZE:
        frame_size, word = _SIZES.unpack_from(received, start)
        header_size = word & 0xFFFFFF
        body_start = start + PREFIX_SIZE + header_size
        end = start + 4 + frame_size
        if frame_size > frame_size_max or header_size > header_size_max or body_start > end or word > 0x1FFFFFF:
            raise _find_fault(frame_size, word, frame_size_max, header_size_max)
        if end > filled:
            return frames, start
        frames.append(Frame(word >> 24, received[start + PREFIX_SIZE : body_start], received[body_start:end]))
        if end == filled:  # The common case: a read delivers whole frames.
            return frames, end
        start = end
    if filled - start >= _SIZE.size:
        (frame_size,) = _SIZE.unpack_from(received, start)
        if not 4 <= frame_size <= frame_size_max:
            raise _find_fault(frame_size, 0, frame_size_max, header_size_max)
    return frames, start


def _find_fault(frame_size: int, word: int, frame_size_max: int, header_size_max: int) -> RemoteProtocolError:
    """Return the error that describes the invalid first eight bytes of a frame."""
    if not 4 <= frame_size <= frame_size_max:
        return RemoteProtocolError(f"frame size {frame_size} is outside 4..{frame_size_max}")
    if word >> 24 > BINARY:
        return RemoteProtocolError(f"header serializer {word >> 24} is unknown")
    if header_size_max < word & 0xFFFFFF <= frame_size - 4:
        return RemoteProtocolError(f"header size {word & 0xFFFFFF} is above {header_size_max}")
    return RemoteProtocolError(f"header size {word & 0xFFFFFF} does not fit its frame of {frame_size} bytes")


def frame_prefix(serializer: int, header_size: int, body_size: int) -> bytes:
    """Return the eight bytes that precede a header."""
    return _SIZES.pack(4 + header_size + body_size, serializer << 24 | header_size)


def peek_frame_size(unfinished: memoryview) -> int:
    """Return the total size of the frame that starts in *unfinished*; 0 if its size field is still incomplete."""
    if len(unfinished) < _SIZE.size:
        return 0
    (frame_size,) = _SIZE.unpack_from(unfinished, 0)
    return 4 + int(frame_size)
