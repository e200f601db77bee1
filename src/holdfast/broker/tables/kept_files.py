"""The kept files of all components of a broker: saves them periodically and at the stop, and reports a full disk.

Nothing is lost while the disk is full: a later save writes the value, without a restart.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from holdfast.broker.flow.component import SAVE_TIMER
from holdfast.machine.component import Component
from holdfast.machine.kept_file import KeptFile
from holdfast.machine.sample import Sample
from holdfast.machine.turn import Turn
from holdfast.model.errors import DiskFailed, DiskFull


class KeptFiles:
    """Saves the files of *components* every *interval_ms*, and passes them the results of their writes."""

    def __init__(self, components: Iterable[Component], interval_ms: int, turn: Turn) -> None:
        self._turn = turn
        self._interval_ms = interval_ms
        self._files = [file for component in components for file in component.files()]
        self._by_path: dict[str, KeptFile[Any]] = {path: file for file in self._files for path in file.paths}
        self._waiting_for_log = [file for file in self._files if file.waits_for_log]
        self._is_shortage_logged = False

    @property
    def unwritten(self) -> int:
        """How many files could not be written the last time."""
        return sum(file.fault is not None for file in self._files)

    def metrics(self) -> Iterator[Sample]:
        """Yield the number of files that could not be written."""
        about = "Configuration files that could not be written because the disk is full."
        yield Sample("broker_unwritten_files", "gauge", about, self.unwritten)

    def start(self) -> None:
        """Set the timer for the next save."""
        self._turn.set_timer(SAVE_TIMER, self._turn.now_ms + self._interval_ms)

    def on_timer(self) -> None:
        """Save the values that changed."""
        self._save(is_last=False)
        self.start()

    def stop(self) -> None:
        """Save the values that changed: the broker stops."""
        self._save(is_last=True)

    def on_synced(self, position: int) -> None:
        """Record that the log is on disk up to *position*."""
        for file in self._waiting_for_log:
            file.on_synced(position)

    def written(self, path: str) -> None:
        """Record that a write to *path* has succeeded."""
        file = self._by_path.get(path)
        if file is not None:
            file.on_written(path)
            self._log_recovery(path)

    def failed(self, path: str, reason: str, *, is_full: bool) -> None:
        """Record that a write to *path* has failed, and whether that was for lack of space."""
        if is_full:
            self._log_shortage(path, reason)
        file = self._by_path.get(path)
        if file is not None:
            file.on_failed(path, reason)

    def _save(self, *, is_last: bool) -> None:
        for file in self._files:
            try:
                if is_last:
                    file.save_last()
                else:
                    file.save_if_changed()
            except DiskFull as error:
                self._log_shortage(file.path, str(error))
            except DiskFailed as error:
                self._turn.log("error", "disk failed", reason=str(error))
            else:
                self._log_recovery(file.path)

    def _log_shortage(self, path: str, reason: str) -> None:
        """Log that there is no space, when it begins."""
        if not self._is_shortage_logged:
            self._is_shortage_logged = True
            hint = (
                "free space; the write is retried, and sends are still accepted while the log and its index have space"
            )
            self._turn.log("error", "no space for configuration files", file=path, reason=reason, hint=hint)

    def _log_recovery(self, path: str) -> None:
        """Log that all files are written again, when the last one is."""
        if self._is_shortage_logged and not self.unwritten:
            self._is_shortage_logged = False
            self._turn.log("info", "configuration files are written again", file=path)
