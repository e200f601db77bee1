"""Acquires, renews and releases the locks of an ordered consumer.

    taken over ─> lock ── granted ──> held ── every 20 s: renewed ──> held
                                       │ ├── refused: another member has it ────────────> given up, see `on_refused`
                                       │ └── the broker is silent: 30 s after the last grant ──> waiting
                                       └──── its connection is lost ──> suspended ── reconnected, asked at once ──> held

A broker keeps locks in memory. If its connection breaks it may have been restarted, and then another member may get the
lock: no message of its queues is started until the lock is granted again. The asyncio shell around `queue_locks`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Mapping
from typing import Final, Protocol

from holdfast.client.cluster.cluster_client import monotonic_ms
from holdfast.client.cluster.queue_rpc import QueueRpc
from holdfast.client.consume.lock_requests import release_locks, request_locks
from holdfast.client.consume.queue_locks import RENEW_INTERVAL_S, HeldLocks
from holdfast.client.consume.queue_reader import QueueReader
from holdfast.model.queue import MessageQueue

_PAUSE_S: Final = 1.0


class ReaderLocks(Protocol):
    """Access to the locks of queues."""

    async def acquire_lock(self, reader: QueueReader) -> None:
        """Return once this consumer holds the lock of the reader's queue, or no longer consumes it with this reader."""
        ...

    def has_lock(self, reader: QueueReader) -> bool:
        """Return whether this consumer holds the lock of the reader's queue, as far as it can know."""
        ...


class NoLocks:
    """For consumers without locks: every queue may always be consumed."""

    async def acquire_lock(self, reader: QueueReader) -> None:
        """Return at once."""

    def has_lock(self, reader: QueueReader) -> bool:  # noqa: ARG002 - of any
        """Return True."""
        return True


class LockRenewal:
    """The locks of one consumer.

    Args:
        rpc: The brokers.
        readers: The readers of the queues assigned to us now.
        on_refused: Called with queues whose lock another member holds.
    """

    def __init__(
        self,
        rpc: QueueRpc,
        readers: Mapping[MessageQueue, QueueReader],
        on_refused: Callable[[Iterable[MessageQueue]], None],
    ) -> None:
        self._rpc = rpc
        self._readers = readers
        self._on_refused = on_refused
        self._locks = HeldLocks()
        self._suspended: set[MessageQueue] = set()
        self._granted = asyncio.Event()

    def has_lock(self, reader: QueueReader) -> bool:
        """Return whether this consumer holds the lock of the reader's queue, as far as it can know."""
        return self._locks.is_held(reader.queue, monotonic_ms())

    async def acquire_lock(self, reader: QueueReader) -> None:
        """Return once this consumer holds the lock of the reader's queue, or no longer consumes it with this reader."""
        queue = reader.queue
        while not self.has_lock(reader) and self._readers.get(queue) is reader:
            if queue in self._suspended or queue not in await self.lock([queue]):
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_PAUSE_S):
                        await self._granted.wait()

    async def lock(self, queues: Iterable[MessageQueue]) -> frozenset[MessageQueue]:
        """Request the locks of *queues* and return the granted ones. If a broker is silent, nothing changes."""
        requested_ms = monotonic_ms()
        outcome = await request_locks(self._rpc, queues)
        self._locks.grant(outcome.granted, requested_ms)
        self._locks.drop(outcome.refused)
        self._suspended -= outcome.granted
        self._wake()
        if outcome.refused:
            self._on_refused(outcome.refused)
        return outcome.granted

    async def unlock(self, queues: Iterable[MessageQueue]) -> None:
        """Release the locks of *queues*."""
        queues = list(queues)
        self._forget(queues)
        await release_locks(self._rpc, queues)

    def suspend(self, queues: Iterable[MessageQueue]) -> None:
        """Treat these locks as lost: the connection to their broker broke."""
        queues = set(queues)
        self._locks.drop(queues)
        self._suspended |= queues

    async def regain(self, queues: Iterable[MessageQueue]) -> frozenset[MessageQueue]:
        """Request the locks of *queues* again, whose broker is back, and return the granted ones."""
        queues = set(queues)
        self._suspended -= queues
        return await self.lock(queues)

    async def renew_forever(self) -> None:
        """Renew the locks of all queues that we consume, periodically."""
        while True:
            await asyncio.sleep(RENEW_INTERVAL_S)
            await self.regain(list(self._readers))

    def _forget(self, queues: Iterable[MessageQueue]) -> None:
        self._locks.drop(queues)
        self._suspended.difference_update(queues)

    def _wake(self) -> None:
        """Let all waiting `acquire_lock` calls check again."""
        self._granted.set()
        self._granted = asyncio.Event()
