"""A process's connection to a cluster, for blocking callers. Its event loop runs in a separate thread.

    retry(call) ─> leader of queue 3: broker a ─┬─> answer
                        ^                       └─> a is dead, or no longer leads the queue ─┐
                        └── retry after a pause <── refresh the leaders <────────────────────┘

Requests are retried until they are answered or the query's patience ends. In Spark's local mode one failed task ends
the query, and a broker restart should not.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Hashable
from concurrent.futures import Future
from typing import Any, Final, Generic, TypeVar

from holdfast.client.cluster.cluster_client import ClientCallbacks, ClusterClient
from holdfast.client.cluster.send_plan import is_not_leader
from holdfast.client.options import ClientOptions
from holdfast.client.routes.name_server_session import require_name_server
from holdfast.model.errors import AccessDenied, CorruptRecord, HoldfastError
from holdfast.wire.frames.codes import RequestCode
from holdfast.wire.frames.command import Command

log = logging.getLogger("holdfast.bulk")

_PAUSE_S: Final = 0.05
_PAUSE_S_MAX: Final = 1.0
# How long a planner waits for a name server. It is short because a wrong address never answers.
_CONTACT_S: Final = 5.0

_T = TypeVar("_T")


class Unavailable(HoldfastError):
    """Brokers were unreachable for longer than the query's patience."""


class ClusterConnection:
    """Sends requests to a cluster and waits for the answers.

    Args:
        options: The options of the client.
        callbacks: What the owner adds to the client.
        patience_s: How long to retry a request.
    """

    def __init__(self, options: ClientOptions, callbacks: ClientCallbacks, patience_s: float) -> None:
        self.patience_s = patience_s
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="holdfast-bulk", daemon=True).start()
        self.client = self.wait(_start(options, callbacks))

    def wait(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run *work* on the connection's event loop and return its result."""
        return self.begin(work).result()

    def begin(self, work: Coroutine[Any, Any, _T]) -> Future[_T]:
        """Start *work* on the connection's event loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def require_name_server(self) -> None:
        """Wait until a name server answers. Planners call this, so that a wrong address fails within seconds.

        Raises:
            Unavailable: no name server answers.
            AccessDenied: one refused the login.
        """
        self.wait(self._wait_for_name_server())

    async def _wait_for_name_server(self) -> None:
        deadline_s = time.monotonic() + _CONTACT_S
        while (error := await self._request_any()) is not None:
            if isinstance(error, AccessDenied):
                raise error
            if time.monotonic() > deadline_s:
                raise Unavailable(
                    f"no name server answers at {'; '.join(self.client.name_servers)} ({error}): check the address "
                    "in option 'namesrv', and that a name server runs there"
                ) from error
            await asyncio.sleep(_PAUSE_S_MAX)

    async def _request_any(self) -> HoldfastError | None:
        """Query all name servers at once. Return None when the first answers; the last error if none does."""
        request = Command(code=RequestCode.GET_BROKER_CLUSTER_INFO)

        async def request_from(address: str) -> None:
            require_name_server(address, request, await self.client.ask(address, request, _CONTACT_S))

        tasks = [asyncio.ensure_future(request_from(address)) for address in self.client.name_servers]
        failure: HoldfastError | None = None
        try:
            for answered in asyncio.as_completed(tasks):
                try:
                    await answered
                except HoldfastError as error:
                    failure = error
                else:
                    return None
        finally:
            for task in tasks:
                task.cancel()
        return failure

    async def retry(self, call: Callable[[], Awaitable[_T]], topic: str) -> _T:
        """Return the result of *call*, a request about *topic*; repeat it until it succeeds or patience ends.

        Raises:
            Unavailable: no broker answered in time.
            CorruptRecord: an answer cannot be read.
            AccessDenied: access control refused the request.
        """
        deadline_s = time.monotonic() + self.patience_s
        failures = 0
        while True:
            try:
                return await call()
            except (CorruptRecord, AccessDenied):
                raise
            except HoldfastError as error:
                if time.monotonic() > deadline_s:
                    raise Unavailable(f"no answer for {self.patience_s:g} s: {error}") from error
                failures += 1
                await self.recover(topic, error, failures)

    async def recover(self, topic: str, error: HoldfastError, failures: int) -> None:
        """Refresh the leaders or the route of *topic* after *error*, the last of *failures* in a row, and pause."""
        log.log(logging.WARNING if failures == 1 else logging.DEBUG, "%s: %s; trying again", topic, error)
        route = self.client.routes.find(topic)
        with contextlib.suppress(HoldfastError):
            if is_not_leader(error) or (route is not None and route.leaders):
                await self.client.refresh_leaders(topic)
            elif topic:
                await self.client.route(topic, refresh=True)
        await asyncio.sleep(min(_PAUSE_S * 2 ** min(failures - 1, 10), _PAUSE_S_MAX))


async def _start(options: ClientOptions, callbacks: ClientCallbacks) -> ClusterClient:
    client = ClusterClient(options, callbacks)
    await client.start()
    return client


class PerProcess(Generic[_T]):
    """Values that a process creates once for each key and keeps. They do not survive a fork. Any thread may call."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: dict[tuple[int, Hashable], _T] = {}

    def get(self, key: Hashable, create: Callable[[], _T]) -> _T:
        """Return the value of *key*; the first call creates it."""
        with self._lock:
            owned_key = (os.getpid(), key)
            if owned_key not in self._values:
                self._values[owned_key] = create()
            return self._values[owned_key]
