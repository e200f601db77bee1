"""The widths of numbers on the wire and on disk.

Text can hold any number, a record cannot. The decoder therefore validates numbers where they arrive, before they can
break a layout. Values made by our own code are not checked again.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

Int32 = Annotated[int, msgspec.Meta(ge=-0x80000000, le=0x7FFFFFFF)]
"""Queue ids and counts, flags, permissions, versions, correlation numbers."""

Int64 = Annotated[int, msgspec.Meta(ge=-0x8000000000000000, le=0x7FFFFFFFFFFFFFFF)]
"""Offsets, positions, times, broker ids."""

_DIGITS_MAX: Final = 18  # Any number of 18 digits fits into an Int64.


def parse_count(text: str | None, default: int) -> int:
    """Return the number in an untrusted *text*, or *default* if it is no number, negative, or too large.

    Only ASCII digits count: implementations disagree about whether other digits are numbers.
    """
    is_number = text is not None and len(text) <= _DIGITS_MAX and text.isascii() and text.isdecimal()
    return int(text) if is_number and text is not None else default
