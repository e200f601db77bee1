"""Memory that connections use: the shell keeps the reading up to date, and roles inspect it like disk usage."""

from __future__ import annotations

import msgspec


class MemoryPressure(msgspec.Struct):
    """The memory that connections make the server hold.

    Attributes:
        held: Bytes of unfinished requests and of answers that the peers have not read yet.
        is_high: So much is held that the role should accept no new work.
    """

    held: int = 0
    is_high: bool = False
