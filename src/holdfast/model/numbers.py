"""The widths of numbers on the wire and on disk.

Text can hold any number, a record cannot. The decoder therefore validates numbers where they arrive, before they can
break a layout. Values made by our own code are not checked again.
"""

from __future__ import annotations

from typing import Annotated, Final, overload

import msgspec

INT32: Final = msgspec.Meta(ge=-0x80000000, le=0x7FFFFFFF)
"""The range of a 32-bit number, for types with a meaning of their own."""

INT64: Final = msgspec.Meta(ge=-0x8000000000000000, le=0x7FFFFFFFFFFFFFFF)
"""The range of a 64-bit number."""

Int32 = Annotated[int, INT32]
"""Queue ids and counts, flags, permissions, versions, correlation numbers."""

Int64 = Annotated[int, INT64]
"""Offsets, positions, times, broker ids."""

_DIGITS_MAX: Final = 18  # Any number of 18 digits fits into an Int64.


@overload
def parse_count(text: str | None, default: int) -> int: ...


@overload
def parse_count(text: str | None) -> int | None: ...


def parse_count(text: str | None, default: int | None = None) -> int | None:
    """Return the number in an untrusted *text*, or *default* if it is no number, negative, or too large.

    Only ASCII digits count: implementations disagree about whether other digits are numbers.
    """
    is_number = text is not None and len(text) <= _DIGITS_MAX and text.isascii() and text.isdecimal()
    return int(text) if is_number and text is not None else default
