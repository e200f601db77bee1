"""Says what happens while it happens, and keeps it for the end.

A line for every event, and in between one that is rewritten, where there is a terminal.
"""

from __future__ import annotations

import time

from rich.console import Console

from holdfast.demo.timeline import Timeline


class Screen:
    """Speaks on standard error.

    Attributes:
        timeline: What was said.
    """

    def __init__(self) -> None:
        self.timeline = Timeline()
        self._console = Console(stderr=True, highlight=False)
        self._started_s = time.monotonic()
        self._status = self._console.status("starting") if self._console.is_terminal else None
        if self._status is not None:
            self._status.start()

    @property
    def now_s(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self._started_s

    def event(self, text: str) -> None:
        """Print a line that stays."""
        self.timeline.tell(self.now_s, text)
        self._console.print(f"{self.now_s:6.1f} s  {text}", markup=False, soft_wrap=True)

    def now(self, text: str) -> None:
        """Show how things stand, where that can be rewritten."""
        if self._status is not None:
            self._status.update(text)

    def close(self) -> None:
        """Leave the terminal alone."""
        if self._status is not None:
            self._status.stop()
