"""How many topics or groups strangers may bring into being at once.

One read can name thousands. Each is an entry in a table that is written as a whole, told to every name server and
shown by every tool, so a mistake in a loop, or worse, is slowed down. The reads of one turn have the same time.
"""

from __future__ import annotations

from typing import Final

CREATED_AT_ONCE_MAX: Final = 32


class CreationLimit:
    """Counts what was created in a moment."""

    def __init__(self) -> None:
        self._when_ms = 0
        self._count = 0

    def take(self, now_ms: int) -> bool:
        """Say whether one more may be created now, and count it."""
        if now_ms != self._when_ms:
            self._when_ms, self._count = now_ms, 0
        self._count += 1
        return self._count <= CREATED_AT_ONCE_MAX
