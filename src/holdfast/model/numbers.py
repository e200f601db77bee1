"""How wide numbers are on the wire and on disk.

Text can hold any number, a record cannot: a number is judged where it comes in, by the decoder, and not where it would
break a layout. Values made by our own code are not checked again.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

Int32 = Annotated[int, msgspec.Meta(ge=-0x80000000, le=0x7FFFFFFF)]
"""Queue ids and counts, flags, permissions, versions, correlation numbers."""

Int64 = Annotated[int, msgspec.Meta(ge=-0x8000000000000000, le=0x7FFFFFFFFFFFFFFF)]
"""Offsets, positions, times, broker ids."""
