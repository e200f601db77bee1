"""Group commit: one thread that syncs the log while the loop goes on taking messages.

While a sync is under way every further request is merged into one that follows it. So the price of a sync is
shared by everything that arrived meanwhile, and a lone request waits for nobody.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

from holdfast.machine.effects import SyncLog
from holdfast.model.errors import DiskFailed
from holdfast.store.base.disk import File


class LogSyncer:
    """Syncs log files in a thread of its own and reports back on the loop.

    Args:
        loop: Where *synced* and *failed* are called.
        synced: Takes the position before which everything is on disk.
        failed: Takes the reason why the disk refused.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, synced: Callable[[int], None], failed: Callable[[str], None]
    ) -> None:
        self._loop = loop
        self._synced = synced
        self._failed = failed
        self._files: dict[int, File] = {}
        self._position = 0
        self._wanted = threading.Event()
        self._lock = threading.Lock()
        self._closed = False
        self._thread: threading.Thread | None = None

    def request(self, effect: SyncLog) -> None:
        """Bring the log to disk up to the effect's position; called on the loop."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="log-sync", daemon=True)
            self._thread.start()
        with self._lock:
            self._files.update((id(file), file) for file in effect.files)
            self._position = max(self._position, effect.position)
        self._wanted.set()

    def close(self) -> None:
        """Finish what was asked for and end the thread."""
        self._closed = True
        self._wanted.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while True:
            self._wanted.wait()
            self._wanted.clear()
            with self._lock:
                files, self._files = list(self._files.values()), {}
                position = self._position
            # Nothing new to sync is told, too: whoever waits came after the last sync had ended.
            if not self._sync(files, position):
                return
            if self._closed and not self._files:
                return

    def _sync(self, files: list[File], position: int) -> bool:
        try:
            for file in files:
                file.sync()
        except DiskFailed as error:
            # After a failed sync the page cache may have dropped what it could not write: never try again.
            self._report(self._failed, str(error))
            return False
        self._report(self._synced, position)
        return True

    def _report(self, callback: Callable[..., None], value: object) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(callback, value)
