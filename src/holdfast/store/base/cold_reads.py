"""Protocol for work that reads bytes which may not be in memory: a generator that requests one range at a time.

    steps = store.find_by_key(...)
    range = next(steps); range = steps.send(bytes); ...          until StopIteration has the result

The driver of the steps answers at once if the bytes are in memory, and otherwise reads them off the loop. So the loop
never waits for a disk seek.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

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


class FileRange(msgspec.Struct, frozen=True):
    """Bytes [start, end) of an index file that may have been evicted from the page cache."""

    file: File
    start: int
    end: int


_Result = TypeVar("_Result")

Steps = Generator[LogRange | FileRange, bytes, _Result]
"""Yields ranges, is sent bytes, returns its result. `CorruptRecord` is thrown into it when a record is corrupt."""
