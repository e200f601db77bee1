"""Queries the offsets of queues, and commits them for a group.

A query about many queues asks their brokers at once. Planners need all answers, and retry; a running stream does
without the queues whose broker does not answer now.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from concurrent.futures import Future
from datetime import UTC, datetime
from functools import partial
from typing import TypeVar

from holdfast.bulk.cluster_connection import ClusterConnection, log
from holdfast.bulk.read_options import QueueKey
from holdfast.client.cluster.queue_rpc import QueueRpc
from holdfast.model.errors import HoldfastError
from holdfast.model.queue import LogicalOffset, MessageQueue

_T = TypeVar("_T")


class QueueOffsets:
    """The offsets of queues.

    Args:
        connection: The connection to the cluster.
        rpc: Sends requests to the leaders of queues.
    """

    def __init__(self, connection: ClusterConnection, rpc: QueueRpc) -> None:
        self._connection = connection
        self._rpc = rpc

    def ends(self, queues: Mapping[QueueKey, MessageQueue]) -> dict[QueueKey, int]:
        """Return the ends of *queues* now, without the queues whose broker does not answer."""
        return self._connection.wait(self._gather_available(queues, self._rpc.offset_max))

    def bounds(self, queues: Mapping[QueueKey, MessageQueue]) -> dict[QueueKey, tuple[int, int]]:
        """Return the lowest offset and the end of each of *queues*; retry until all are known."""
        return self._connection.wait(self._gather_all(queues, lambda name: self._bounds(queues[name])))

    def available_bounds(self, queues: Mapping[QueueKey, MessageQueue]) -> dict[QueueKey, tuple[int, int]]:
        """Return the lowest offset and the end of each of *queues*, without those whose broker does not answer now."""
        return self._connection.wait(self._gather_available(queues, self._bounds))

    def at_times(
        self, queues: Mapping[QueueKey, MessageQueue], times_ms: Mapping[QueueKey, int]
    ) -> dict[QueueKey, int]:
        """Return for each queue the offset of the first message that was stored at the queue's time or later."""

        async def find(name: QueueKey) -> int:
            return await self._rpc.offset_at(queues[name], datetime.fromtimestamp(times_ms[name] / 1000, UTC))

        return self._connection.wait(self._gather_all(queues, find))

    def commit(self, offsets: Mapping[MessageQueue, int]) -> Future[None]:
        """Start to commit the progress of a query. It is for monitoring only: failures are logged and ignored."""

        async def commit_one(queue: MessageQueue, offset: int) -> None:
            try:
                await self._rpc.commit(queue, LogicalOffset(offset))
            except HoldfastError as error:
                log.debug("progress in %s was not committed: %s", queue, error)

        async def commit_all() -> None:
            await asyncio.gather(*(commit_one(queue, offset) for queue, offset in offsets.items()))

        return self._connection.begin(commit_all())

    async def _bounds(self, queue: MessageQueue) -> tuple[int, int]:
        low, high = await asyncio.gather(self._rpc.offset_min(queue), self._rpc.offset_max(queue))
        return low, high

    async def _gather_available(
        self, queues: Mapping[QueueKey, MessageQueue], query: Callable[[MessageQueue], Awaitable[_T]]
    ) -> dict[QueueKey, _T]:
        found = await asyncio.gather(*(query(queue) for queue in queues.values()), return_exceptions=True)
        answered: dict[QueueKey, _T] = {}
        failed: dict[str, HoldfastError] = {}
        for name, answer in zip(queues, found, strict=True):
            if isinstance(answer, HoldfastError):
                failed[name[0]] = answer
            elif isinstance(answer, BaseException):
                raise answer
            else:
                answered[name] = answer
        for topic, error in failed.items():
            await self._connection.recover(topic, error, 2)
        return answered

    async def _gather_all(
        self, names: Iterable[QueueKey], query: Callable[[QueueKey], Awaitable[_T]]
    ) -> dict[QueueKey, _T]:
        names = list(names)
        lookups = (self._connection.retry(partial(query, name), name[0]) for name in names)
        return dict(zip(names, await asyncio.gather(*lookups), strict=True))
