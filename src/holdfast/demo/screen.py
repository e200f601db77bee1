"""Prints the progress of a demo and keeps it for the timeline.

Prints a line for every event. On a terminal, a status line below is rewritten between events.
"""

from __future__ import annotations

import time

from rich.console import Console

from holdfast.demo.timeline import Timeline


class Screen:
    """Prints to standard error.

    Attributes:
        timeline: All events so far.
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
        """Seconds since the start."""
        return time.monotonic() - self._started_s

    def show_event(self, text: str) -> None:
        """Print a permanent line, and add it to the timeline."""
        self.timeline.record_event(self.now_s, text)
        self._console.print(f"{self.now_s:6.1f} s  {text}", markup=False, soft_wrap=True)

    def show_status(self, text: str) -> None:
        """Show the current state in the status line, if there is a terminal."""
        if self._status is not None:
            self._status.update(text)

    def close(self) -> None:
        """Remove the status line."""
        if self._status is not None:
            self._status.stop()
