"""Keeps the locks of an ordered consumer: asks for them, renews them, waits for them.

    taken over ─> lock ── granted ──> held ── every 20 s: renewed ──> held
                                       │ ├── refused: somebody else has it ─────────────> given up, see `on_refused`
                                       │ └── the broker is silent: 30 s after the last grant ──> waiting
                                       └──── its connection is lost ──> suspended ── it is back, asked at once ──> held

A broker keeps locks in memory. If its connection breaks it may have been restarted, and then anybody may have the lock:
nothing of its queues is begun until it was granted again. The asyncio shell around `queue_locks`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Mapping
from typing import Final, Protocol

from holdfast.client.cluster.cluster_client import monotonic_ms
from holdfast.client.cluster.queue_rpc import QueueCalls
from holdfast.client.consume.queue_locks import RENEW_INTERVAL_S, QueueLocks
from holdfast.client.consume.queue_reader import QueueReader
from holdfast.model.queue import MessageQueue

_PAUSE_S: Final = 1.0


class ReaderLocks(Protocol):
    """Who may consume which queue."""

    async def hold_lock(self, reader: QueueReader) -> None:
        """Return once only we may consume the reader's queue, or the reader is nobody's business any more."""
        ...

    def has_lock(self, reader: QueueReader) -> bool:
        """Say whether only we may consume the reader's queue, as far as anybody can know."""
        ...


class NoLocks:
    """Everybody consumes everything: there is nothing to wait for."""

    async def hold_lock(self, reader: QueueReader) -> None:
        """Return at once."""

    def has_lock(self, reader: QueueReader) -> bool:  # noqa: ARG002 - of any
        """Say yes."""
        return True


class LockKeeper:
    """The locks of one consumer.

    Args:
        calls: The brokers.
        readers: The readers of the queues that are ours now.
        on_refused: Called with queues that somebody else holds.
    """

    def __init__(
        self,
        calls: QueueCalls,
        readers: Mapping[MessageQueue, QueueReader],
        on_refused: Callable[[Iterable[MessageQueue]], None],
    ) -> None:
        self._calls = calls
        self._readers = readers
        self._on_refused = on_refused
        self._locks = QueueLocks()
        self._suspended: set[MessageQueue] = set()
        self._granted = asyncio.Event()

    def has_lock(self, reader: QueueReader) -> bool:
        """Say whether only we may consume the reader's queue, as far as anybody can know."""
        return self._locks.is_held(reader.queue, monotonic_ms())

    async def hold_lock(self, reader: QueueReader) -> None:
        """Return once only we may consume the reader's queue, or the reader is nobody's business any more."""
        queue = reader.queue
        while not self.has_lock(reader) and self._readers.get(queue) is reader:
            if queue in self._suspended or queue not in await self.lock([queue]):
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_PAUSE_S):
                        await self._granted.wait()

    async def lock(self, queues: Iterable[MessageQueue]) -> frozenset[MessageQueue]:
        """Ask for the locks of *queues* and return what was granted. Where a broker is silent, nothing changes."""
        asked_ms = monotonic_ms()
        outcome = await self._calls.lock(queues)
        self._locks.grant(outcome.granted, asked_ms)
        self._locks.drop(outcome.refused)
        self._suspended -= outcome.granted
        self._wake()
        if outcome.refused:
            self._on_refused(outcome.refused)
        return outcome.granted

    async def unlock(self, queues: Iterable[MessageQueue]) -> None:
        """Give locks back."""
        queues = list(queues)
        self._forget(queues)
        await self._calls.unlock(queues)

    def suspend(self, queues: Iterable[MessageQueue]) -> None:
        """Believe in these locks no more: the connection to their broker is lost."""
        queues = set(queues)
        self._locks.drop(queues)
        self._suspended |= queues

    async def regain(self, queues: Iterable[MessageQueue]) -> frozenset[MessageQueue]:
        """Ask again for the locks of *queues*, whose broker is back, and return what was granted."""
        queues = set(queues)
        self._suspended -= queues
        return await self.lock(queues)

    async def renew_forever(self) -> None:
        """Ask again and again for the locks of what we consume."""
        while True:
            await asyncio.sleep(RENEW_INTERVAL_S)
            await self.regain(list(self._readers))

    def _forget(self, queues: Iterable[MessageQueue]) -> None:
        self._locks.drop(queues)
        self._suspended.difference_update(queues)

    def _wake(self) -> None:
        """Let everybody look again who waits."""
        self._granted.set()
        self._granted = asyncio.Event()
