"""Group commit: one thread syncs the log while the loop accepts further messages.

While a sync is in progress, all further requests are merged into the next one. So the cost of a sync is shared by
everything that arrived meanwhile, and a lone request is synced immediately.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

from holdfast.machine.effects import SyncLog
from holdfast.model.errors import DiskFailed
from holdfast.store.base.disk import File


class LogSyncer:
    """Syncs log files in a separate thread and reports back on the loop.

    Args:
        loop: The loop that calls *on_synced* and *on_failed*.
        on_synced: Receives the position before which everything is on disk.
        on_failed: Receives the reason for which a sync failed.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, on_synced: Callable[[int], None], on_failed: Callable[[str], None]
    ) -> None:
        self._loop = loop
        self._on_synced = on_synced
        self._on_failed = on_failed
        self._files: dict[int, File] = {}
        self._position = 0
        self._requested = threading.Event()
        self._lock = threading.Lock()
        self._is_closed = False
        self._thread: threading.Thread | None = None

    def request(self, effect: SyncLog) -> None:
        """Sync the log up to the effect's position; called on the loop."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="log-sync", daemon=True)
            self._thread.start()
        with self._lock:
            self._files.update((id(file), file) for file in effect.files)
            self._position = max(self._position, effect.position)
        self._requested.set()

    def close(self) -> None:
        """Finish the pending requests and end the thread."""
        self._is_closed = True
        self._requested.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while True:
            self._requested.wait()
            self._requested.clear()
            with self._lock:
                files, self._files = list(self._files.values()), {}
                position = self._position
            # Report even if there was nothing to sync: the request may have arrived after the last sync ended.
            if not self._sync(files, position):
                return
            if self._is_closed and not self._files:
                return

    def _sync(self, files: list[File], position: int) -> bool:
        try:
            for file in files:
                file.sync()
        except DiskFailed as error:
            # After a failed sync, the page cache may have dropped the pages that it could not write: never retry.
            self._report(self._on_failed, str(error))
            return False
        self._report(self._on_synced, position)
        return True

    def _report(self, callback: Callable[..., None], value: object) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(callback, value)
