"""Work that needs bytes which may not be in memory: it asks for them one range at a time.

    steps = store.find_by_key(...)
    range = next(steps); range = steps.send(bytes); ...          until StopIteration has the result

Whoever drives the steps takes bytes that are in memory at once and has all others read off the loop, so that no disk
seek ever stalls it.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

import msgspec

from holdfast.store.base.disk import File


class LogRange(msgspec.Struct, frozen=True):
    """Bytes of the commit log: of whole records, or the first ones of a record. Answered by b"" when they are gone.

    Attributes:
        is_guess: Perhaps no record begins there, as nobody but whoever asks says so. Then that is no damage.
    """

    position: int
    size: int
    is_guess: bool = False


class FileRange(msgspec.Struct, frozen=True):
    """Bytes [start, end) of an index file, which were not used for so long that they may have to come from the disk."""

    file: File
    start: int
    end: int


_Result = TypeVar("_Result")

Steps = Generator[LogRange | FileRange, bytes, _Result]
"""Yields ranges, is sent bytes, returns its result. `CorruptRecord` is thrown into it when a record is damaged."""
