"""Limits how many topics or groups clients can create at once.

One read can name thousands. Each becomes an entry in a table that is written as a whole, sent to every name server and
shown by every tool. The limit slows down a faulty or malicious loop. All reads of one turn have the same time.
"""

from __future__ import annotations

from typing import Final

CREATED_AT_ONCE_MAX: Final = 32


class CreationLimit:
    """Counts the creations that have the same time."""

    def __init__(self) -> None:
        self._last_ms = 0
        self._count = 0

    def try_acquire(self, now_ms: int) -> bool:
        """Count one creation at *now_ms*; return whether it is within the limit."""
        if now_ms != self._last_ms:
            self._last_ms, self._count = now_ms, 0
        self._count += 1
        return self._count <= CREATED_AT_ONCE_MAX
