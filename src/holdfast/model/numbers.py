"""How wide numbers are on the wire and on disk.

Text can hold any number, a record cannot: a number is judged where it comes in, by the decoder, and not where it would
break a layout. Values made by our own code are not checked again.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

Int32 = Annotated[int, msgspec.Meta(ge=-0x80000000, le=0x7FFFFFFF)]
"""Queue ids and counts, flags, permissions, versions, correlation numbers."""

Int64 = Annotated[int, msgspec.Meta(ge=-0x8000000000000000, le=0x7FFFFFFFFFFFFFFF)]
"""Offsets, positions, times, broker ids."""

_DIGITS_MAX: Final = 18  # Whatever they are, an Int64 holds them.


def parse_count(text: str | None, default: int) -> int:
    """Return the number that a stranger wrote, or *default* when it is none, negative, or beyond all measure.

    Only ASCII digits: others are numbers to some readers of the same bytes, and none to the rest.
    """
    is_number = text is not None and len(text) <= _DIGITS_MAX and text.isascii() and text.isdecimal()
    return int(text) if is_number and text is not None else default
