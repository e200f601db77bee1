import asyncio
import threading

from holdfast.machine.effects import SyncLog
from holdfast.model.errors import DiskFailed
from holdfast.runtime.log_sync import LogSyncer


class SlowFile:
    """A file whose sync waits for permission."""

    path, size = "f", 0

    def __init__(self) -> None:
        self.started = threading.Semaphore(0)
        self.allowed = threading.Semaphore(0)
        self.syncs = 0
        self.failure: str | None = None

    def sync(self) -> None:
        self.syncs += 1
        self.started.release()
        self.allowed.acquire()
        if self.failure:
            raise DiskFailed(self.failure)


class Reports:
    def __init__(self) -> None:
        self.synced: list[int] = []
        self.failed: list[str] = []
        self.news = asyncio.Event()

    def on_synced(self, position: int) -> None:
        self.synced.append(position)
        self.news.set()

    def on_failed(self, reason: str) -> None:
        self.failed.append(reason)
        self.news.set()

    async def next(self) -> None:
        await self.news.wait()
        self.news.clear()


async def test_requests_during_a_sync_share_the_next_one() -> None:
    """Group commit: two syncs cover any number of requests, the second all that came during the first."""
    file, reports = SlowFile(), Reports()
    syncer = LogSyncer(asyncio.get_running_loop(), reports.on_synced, reports.on_failed)
    syncer.request(SyncLog((file,), 1))  # type: ignore[arg-type]
    await asyncio.to_thread(file.started.acquire)
    for position in (2, 3, 4):
        syncer.request(SyncLog((file,), position))  # type: ignore[arg-type]

    file.allowed.release(2)
    await reports.next()
    while reports.synced != [1, 4]:
        await reports.next()

    assert file.syncs == 2
    await asyncio.to_thread(syncer.close)


async def test_that_nothing_is_left_to_sync_is_reported_too() -> None:
    """Whoever asks after the last sync has ended would wait for ever."""
    reports = Reports()
    syncer = LogSyncer(asyncio.get_running_loop(), reports.on_synced, reports.on_failed)

    syncer.request(SyncLog((), 7))
    await reports.next()

    assert reports.synced == [7]
    await asyncio.to_thread(syncer.close)


async def test_a_failed_sync_is_reported_and_never_tried_again() -> None:
    """The page cache may have dropped what it could not write: a second sync would lie."""
    file, reports = SlowFile(), Reports()
    file.failure = "input/output error"
    syncer = LogSyncer(asyncio.get_running_loop(), reports.on_synced, reports.on_failed)
    file.allowed.release(5)

    syncer.request(SyncLog((file,), 1))  # type: ignore[arg-type]
    await reports.next()
    syncer.request(SyncLog((file,), 2))  # type: ignore[arg-type]
    await asyncio.to_thread(syncer.close)

    assert reports.failed == ["input/output error"]
    assert reports.synced == []
    assert file.syncs == 1
