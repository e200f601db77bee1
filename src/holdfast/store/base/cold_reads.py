"""Work that reads bytes which may not be in memory: a coroutine that awaits one range at a time.

    data = await LogRange(position, size)

The scheduler answers at once if the bytes are in memory, and otherwise reads them off the loop. So the loop never waits
for a disk seek. There is no asyncio here: a coroutine can be driven by hand, with `send`.
"""

from __future__ import annotations

from collections.abc import Coroutine, Generator
from typing import Self, TypeVar

import msgspec

from holdfast.store.base.disk import File


class LogRange(msgspec.Struct, frozen=True):
    """Bytes of the commit log: whole records, or the start of a record. The answer is b"" when they are gone.

    Attributes:
        is_guess: The position is a guess of the caller. If no record begins there, nothing is corrupt.
    """

    position: int
    size: int
    is_guess: bool = False

    def __await__(self) -> Generator[Self, bytes, bytes]:
        return (yield self)


class FileRange(msgspec.Struct, frozen=True):
    """Bytes [start, end) of an index file that may have been evicted from the page cache."""

    file: File
    start: int
    end: int

    def __await__(self) -> Generator[Self, bytes, bytes]:
        return (yield self)


_Result = TypeVar("_Result")

Steps = Coroutine[LogRange | FileRange, bytes, _Result]
"""Awaits ranges and returns its result. `CorruptRecord` is thrown into it when a record is corrupt."""
