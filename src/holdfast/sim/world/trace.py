"""The trace of a run, one aligned line per step, and its digest.

       step      time  actor        what              detail
         17       203  broker-a     frames            channel 3, 2 frames, 412 bytes 8f3a11c0

Times are milliseconds since the world began. Two runs are identical exactly if their digests are equal: the trace
contains a checksum of every byte that a machine receives.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from hashlib import blake2b
from typing import Final

HEADING: Final = f"{'step':>7} {'time':>9}  {'actor':<12} {'what':<16} detail"
TAIL_LINES_MAX: Final = 400


class Trace:
    """The trace of one run.

    Args:
        show: Receives every line at once; None keeps only the last lines.
    """

    def __init__(self, show: Callable[[str], None] | None = None) -> None:
        self._show = show
        self._digest = blake2b(digest_size=16)
        self.tail: deque[str] = deque(maxlen=TAIL_LINES_MAX)
        self.step = 0
        self.time_ms = 0

    def note(self, actor: str, label: str, detail: str = "") -> None:
        """Write one line."""
        line = f"{self.step:>7} {self.time_ms:>9}  {actor:<12} {label:<16} {detail}"
        self._digest.update(line.encode())
        self.tail.append(line)
        if self._show is not None:
            self._show(line)

    def digest(self) -> str:
        """Return a digest of everything written so far."""
        return self._digest.hexdigest()
