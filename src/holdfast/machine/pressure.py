"""Whether memory is short: a reading that the shell keeps and a role looks at, as it looks at how full the disk is."""

from __future__ import annotations

import msgspec


class MemoryPressure(msgspec.Struct):
    """What connections make the server hold.

    Attributes:
        held: Bytes: unfinished requests, and answers that were not taken.
        is_high: So much that no new work should be taken.
    """

    held: int = 0
    is_high: bool = False
