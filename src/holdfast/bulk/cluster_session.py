"""A process's connection to a cluster, for blocking callers: the planner in the driver, and the tasks.

    bounds(queues) ─> ClusterSession ─> leader of queue 3: broker a ─┬─> answer
                             ^                                       └─> a is dead, or no longer leads the queue ─┐
                             └── retry after a pause <── refresh the leaders <────────────────────────────────────┘

Requests are retried until they are answered or the query's patience ends. In Spark's local mode one failed task ends
the query, and a broker restart should not. `pull` makes one attempt; `task_reader` retries it.

A process has one session for each cluster, group and unit. Its event loop runs in a separate thread. Sessions outlive
tasks.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import os
import re
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from concurrent.futures import Future
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

from holdfast.bulk.gaps import find_unknown_end, parts_outside_gaps
from holdfast.bulk.pull_socket import PullSocket
from holdfast.bulk.queue_pulls import PullRequest, PullResult, QueuePuller
from holdfast.bulk.read_options import QueueKey
from holdfast.client.cluster.cluster_client import ClusterClient, now_ms
from holdfast.client.cluster.heartbeat import heartbeat_command
from holdfast.client.cluster.queue_rpc import QueueRpc
from holdfast.client.cluster.send_plan import is_not_leader
from holdfast.client.produce.inner_batch_support import InnerBatchSupport
from holdfast.client.routes.name_server_session import require_name_server
from holdfast.client.routes.route_table import TopicRoute
from holdfast.columns.message_columns import RecordOrigin
from holdfast.model.errors import (
    BrokerRefused,
    ConfigError,
    CorruptRecord,
    HoldfastError,
    RouteNotFound,
)
from holdfast.model.mapping import LogicalQueue, Segment, merge
from holdfast.model.queue import MessageQueue
from holdfast.model.scope import covers, find_scope, is_mock_broker
from holdfast.model.unique_id import UniqueIds
from holdfast.wire.cluster.route import TopicList
from holdfast.wire.frames import java_json
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.frames.command import Command

log = logging.getLogger("holdfast.bulk")

_PAUSE_S: Final = 0.05
_PAUSE_S_MAX: Final = 1.0
# A name server that has just started does not know every topic yet.
_UNKNOWN_TOPIC_S: Final = 5.0
# How long a planner waits for a name server. It is short because a wrong address never answers.
_CONTACT_S: Final = 5.0

_T = TypeVar("_T")


class Unavailable(HoldfastError):
    """Brokers were unreachable for longer than the query's patience."""


class ClusterSession:
    """Sends requests to a cluster and waits for the answers.

    Args:
        namesrv: `host:port;host:port`.
        group: The group in which brokers count the reads, or the producer group.
        patience_s: How long to retry a request.
        unit: The unit (a cluster name) to read and write; None for all. Other units are read while they are open.
        is_producer: Register the group as a producer at the brokers, whose answers name the features they support.
    """

    def __init__(
        self, namesrv: str, group: str, patience_s: float, unit: str | None = None, *, is_producer: bool = False
    ) -> None:
        self._namesrv = namesrv
        self._group = group
        self._unit = unit
        self._unit_sessions: dict[QueueKey, ClusterSession] = {}
        self.patience_s = patience_s
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="holdfast-bulk", daemon=True).start()
        self.client = self.wait(self._start(namesrv, is_producer=is_producer))
        self.inner_batch_support = InnerBatchSupport(self.client)
        self._ids = UniqueIds(
            host=ipaddress.ip_address(self.client.local_address).packed,
            process=os.getpid(),
            salt=self.client.random.getrandbits(32),
            utc_offset_ms=time.localtime().tm_gmtoff * 1000,
        )
        self._rpc = QueueRpc(self.client, group)
        self._puller = QueuePuller(self.client, self._rpc, group)
        self._merged_mappings: dict[str, tuple[int, dict[int, LogicalQueue]]] = {}

    def wait(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run *work* on the session's event loop and return its result."""
        return self.begin(work).result()

    def begin(self, work: Coroutine[Any, Any, _T]) -> Future[_T]:
        """Start *work* on the session's event loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    async def _start(self, namesrv: str, *, is_producer: bool) -> ClusterClient:
        client = ClusterClient(
            namesrv,
            heartbeat=(lambda: heartbeat_command(client.client_id, producer=self._group)) if is_producer else None,
            broker_down=lambda address: self.inner_batch_support.forget_broker(address),  # noqa: PLW0108 - made after the client
            unit=self._unit,
            group=None if is_producer else self._group,
        )
        await client.start()
        return client

    def require_name_server(self) -> None:
        """Wait until a name server answers. Planners call this, so that a wrong address fails within seconds.

        Raises:
            Unavailable: no name server answers.
        """
        self.wait(self._wait_for_name_server())

    async def _wait_for_name_server(self) -> None:
        deadline_s = time.monotonic() + _CONTACT_S
        while (error := await self._request_any()) is not None:
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

    # Topics and queues.

    def topics(self, pattern: str) -> list[str]:
        """Return the topics whose whole name matches *pattern*."""
        answer = self.wait(self._retry(self._list_topics, ""))
        return sorted(name for name in answer if re.fullmatch(pattern, name))

    def queues(self, topic: str) -> dict[QueueKey, MessageQueue]:
        """Return all queues of *topic* that can be read now, by their names.

            3            a logical queue of the session's unit, or a global one
            east/3       a logical queue of another unit that is open
            broker-a/3   a queue of a normal topic

        Raises:
            ConfigError: there is no such topic.
        """
        route = self.wait(self._route(topic))
        if route is None:
            return {}
        own = self._own_queues(route)
        brokers = {queue.broker_name for queue in own}
        is_logical = len(brokers) == 1 and all(map(is_mock_broker, brokers))
        named = {(topic, str(queue.queue_id) if is_logical else _full_name(queue)): queue for queue in own}
        for queue in route.readable:
            if queue not in own:
                owner_name = find_scope(queue.broker_name) or queue.broker_name
                named[topic, f"{owner_name}/{queue.queue_id}"] = queue
        return named

    @property
    def has_unit(self) -> bool:
        """Whether the session reads one unit, and other units only while they are open."""
        return self._unit is not None

    def session_of(self, name: QueueKey) -> tuple[ClusterSession, QueueKey]:
        """Return the session that serves a queue, and the queue's name in that session.

        A queue of another unit is served by a session of that unit, which can read it even after the unit was closed:
        a batch that was planned while the unit was open is read to its end.
        """
        topic, text = name
        prefix, _, number = text.rpartition("/")
        if not prefix or self._unit is None:
            return self, name
        session = self._unit_sessions.get((topic, prefix)) or self._find_session(topic, prefix)
        self._unit_sessions[topic, prefix] = session
        return session, (topic, number) if session._unit == prefix else name  # noqa: SLF001 - another session

    def _find_session(self, topic: str, prefix: str) -> ClusterSession:
        """Return the session for the queues of *topic* in *prefix*, which names a unit or a broker."""
        route = self.client.routes.find(topic) or self.wait(self._retry(lambda: self._seek_route(topic), topic))
        if route is not None and not route.leaders:
            clusters = {data.broker_name: data.cluster for data in route.extended_route.broker_datas}
            is_own = prefix in clusters and covers(clusters[prefix], self._unit or "")
            return self if is_own else self._session_of_unit(None)
        other = self._session_of_unit(prefix)
        if route is None:
            found = other.wait(other._retry(lambda: other._seek_route(topic), topic))  # noqa: SLF001 - another session
            return other if found is not None and found.leaders else self._session_of_unit(None)
        return other

    def _session_of_unit(self, unit: str | None) -> ClusterSession:
        return session_for(self._namesrv, self._group, self.patience_s, unit)

    def _own_queues(self, route: TopicRoute) -> list[MessageQueue]:
        """Return the readable queues of the session's own unit, without those of other units that are open."""
        if self._unit is None:
            return list(route.readable)
        clusters = {data.broker_name: data.cluster for data in route.extended_route.broker_datas}
        scopes = {name: find_scope(name) or clusters.get(name, "") for name in {q.broker_name for q in route.readable}}
        return [queue for queue in route.readable if covers(scopes[queue.broker_name], self._unit)]

    def publishable(self, topic: str) -> tuple[MessageQueue, ...]:
        """Return the queues that a sink distributes keys over.

        Raises:
            ConfigError: there is no such topic, or no broker accepts messages for it.
        """
        route = self.wait(self._route(topic))
        found = () if route is None else route.publishable
        if not found:
            raise ConfigError(f"no broker accepts messages for topic {topic!r}")
        return found

    def find_queue(self, name: QueueKey) -> MessageQueue:
        """Return the queue of that name. A queue of a normal topic is found without a route."""
        session, (topic, text) = self.session_of(name)
        broker, _, number = text.rpartition("/")
        if broker:
            return MessageQueue(topic, broker, int(number))
        return session._find_logical_queue(topic, number)  # noqa: SLF001 - another session

    def _find_logical_queue(self, topic: str, number: str) -> MessageQueue:
        own = self._own_queues(self._load_static(topic))
        found = next((queue for queue in own if str(queue.queue_id) == number), None)
        if found is None:
            raise ConfigError(f"topic {topic!r} has no queue {number!r}; it has {len(own)}")
        return found

    def _load_static(self, topic: str) -> TopicRoute:
        route = self.client.routes.find(topic)
        if route is None or not route.leaders:
            route = self.wait(self._retry(lambda: self._static_route(topic), topic))
        return route

    def ends(self, queues: Mapping[QueueKey, MessageQueue]) -> dict[QueueKey, int]:
        """Return the ends of *queues* now, without the queues whose broker does not answer."""
        return self.wait(self._gather_available(queues, self._rpc.offset_max))

    def bounds(self, queues: Mapping[QueueKey, MessageQueue]) -> dict[QueueKey, tuple[int, int]]:
        """Return the lowest offset and the end of each of *queues*; retry until all are known."""
        return self.wait(self._gather_all(queues, self._bounds))

    def available_bounds(self, queues: Mapping[QueueKey, MessageQueue]) -> dict[QueueKey, tuple[int, int]]:
        """Return the lowest offset and the end of each of *queues*, without those whose broker does not answer now."""
        return self.wait(self._gather_available(queues, self._bounds))

    def offsets_at_times(
        self, queues: Mapping[QueueKey, MessageQueue], times_ms: Mapping[QueueKey, int]
    ) -> dict[QueueKey, int]:
        """Return for each queue the offset of the first message that was stored at the queue's time or later."""

        async def find(queue: MessageQueue, time_ms: int) -> int:
            return await self._rpc.offset_at(queue, datetime.fromtimestamp(time_ms / 1000, UTC))

        async def query_all() -> dict[QueueKey, int]:
            names = list(queues)
            lookups = (
                self._retry(lambda name=name: find(queues[name], times_ms[name]), name[0])  # type: ignore[misc]
                for name in names
            )
            return dict(zip(names, await asyncio.gather(*lookups), strict=True))

        return self.wait(query_all())

    def parts_outside_gaps(
        self, name: QueueKey, start: int, end: int, *, skips_unknown: bool = False
    ) -> list[tuple[int, int]]:
        """Return the parts of a range that can hold messages: a forced move leaves a gap without messages.

        No part after a segment of unknown end is returned, because the segment's broker may return with more messages.

        Args:
            name: The queue.
            start: Where the range begins.
            end: Where it ends.
            skips_unknown: Assume that such a broker has no more messages.
        """
        if end - start < 2:
            return [(start, end)] if end > start else []
        session, local = self.session_of(name)
        if session is not self and "/" not in local[1]:
            session._load_static(local[0])  # noqa: SLF001 - another session
        queue = session._find_logical(local)  # noqa: SLF001 - another session
        if queue is None:
            return [(start, end)]
        return parts_outside_gaps(queue, start, end, skips_unknown=skips_unknown)

    def find_unknown_end(self, name: QueueKey, start: int, end: int) -> str | None:
        """Return the unreachable broker that may still have messages of a range; None if there is none."""
        session, local = self.session_of(name)
        queue = session._find_logical(local)  # noqa: SLF001 - another session
        return None if queue is None else find_unknown_end(queue, start, end)

    # Reading.

    def pull(self, pull_socket: PullSocket, request: PullRequest) -> PullResult:
        """Return the answer to *request*, without retries.

        Raises:
            HoldfastError: no broker answered, or the broker refused.
        """
        topic = request.queue.topic
        if self.client.routes.find(topic) is None:
            self.wait(self.client.route(topic))
        return self._puller.pull(pull_socket, request)

    def pull_ahead(self, pull_socket: PullSocket, request: PullRequest) -> None:
        """Send *request* ahead, so that the broker works on it before `pull` waits for the answer.

        Failures are ignored: `pull` sends the request again.
        """
        self._puller.pull_ahead(pull_socket, request)

    def avoid_replica(self, request: PullRequest) -> None:
        """Pull from the master for a while, because the records that a replica returned cannot be read."""
        self._puller.avoid_replica(request)

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

    def next_id(self) -> str:
        """Return a unique id for a message or a batch."""
        return self._ids.next(now_ms())

    async def supports_inner_batches(self, queue: MessageQueue) -> bool:
        """Return whether the current leader of *queue* stores inner batches."""
        address = self._rpc.find_address(queue)
        return address is not None and await self.inner_batch_support.is_supported(queue.topic, address)

    def origin(self, name: QueueKey, queue: MessageQueue, offset: int, delta: int) -> RecordOrigin:
        """Return the origin of the records of an answer that begins at *offset*."""
        if not is_mock_broker(queue.broker_name):
            return RecordOrigin(queue.topic, queue.queue_id, queue.broker_name, None, delta)
        segment = self._find_segment(name, offset, delta)
        if segment is None:  # The queue has moved since the route was looked up.
            self.wait(self.client.refresh_leaders(queue.topic))
            segment = self._find_segment(name, offset, delta)
        broker, generation = ("", None) if segment is None else (segment.broker, segment.generation)
        return RecordOrigin(queue.topic, queue.queue_id, broker, generation, delta)

    def commit(self, offsets: Mapping[QueueKey, int]) -> Future[None]:
        """Start to commit the progress of a query. It is for monitoring only: failures are logged and ignored."""

        async def commit_one(queue: MessageQueue, offset: int) -> None:
            try:
                await self._rpc.commit(queue, offset)
            except HoldfastError as error:
                log.debug("progress in %s was not committed: %s", queue, error)

        async def commit_all() -> None:
            await asyncio.gather(*(commit_one(queue, offset) for queue, offset in found))

        found = [(self.find_queue(name), offset) for name, offset in offsets.items()]
        return self.begin(commit_all())

    # Requests.

    async def _retry(self, call: Callable[[], Awaitable[_T]], topic: str) -> _T:
        deadline_s = time.monotonic() + self.patience_s
        failures = 0
        while True:
            try:
                return await call()
            except CorruptRecord:
                raise
            except HoldfastError as error:
                if time.monotonic() > deadline_s:
                    raise Unavailable(f"no answer for {self.patience_s:g} s: {error}") from error
                failures += 1
                await self.recover(topic, error, failures)

    async def _route(self, topic: str) -> TopicRoute | None:
        """Return the route of *topic*; None if it has none now, because only a unit that was closed has the topic."""
        deadline_s = time.monotonic() + _UNKNOWN_TOPIC_S
        try:
            return await self._retry(lambda: self._find_route(topic, deadline_s), topic)
        except _TopicUnknown as error:
            raise ConfigError(str(error)) from None

    async def _find_route(self, topic: str, deadline_s: float) -> TopicRoute | None:
        known = self.client.routes.find(topic)
        try:
            return await self.client.route(topic, refresh=known is not None)
        except RouteNotFound as error:
            if known is not None and self._unit is not None:
                return None
            if known is None and time.monotonic() > deadline_s:
                raise _TopicUnknown(str(error)) from error
            raise
        except HoldfastError:
            if known is not None:
                return known
            raise

    async def _seek_route(self, topic: str) -> TopicRoute | None:
        try:
            return await self.client.route(topic)
        except RouteNotFound:
            return None

    async def _static_route(self, topic: str) -> TopicRoute:
        route = await self.client.route(topic)
        if not route.leaders:
            raise RouteNotFound(f"{topic!r} is not, or no longer, a static topic")
        return route

    async def _list_topics(self) -> list[str]:
        answer = await self.client.ask_name_server(Command(code=RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER))
        if answer.code != ResponseCode.SUCCESS:
            raise BrokerRefused(answer.code, answer.remark or "")
        return java_json.decode(answer.body, TopicList).topic_list

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
            await self.recover(topic, error, 2)
        return answered

    async def _gather_all(
        self, queues: Mapping[QueueKey, MessageQueue], query: Callable[[MessageQueue], Awaitable[_T]]
    ) -> dict[QueueKey, _T]:
        names = list(queues)
        lookups = (self._retry(lambda name=name: query(queues[name]), name[0]) for name in names)  # type: ignore[misc]
        return dict(zip(names, await asyncio.gather(*lookups), strict=True))

    # Mappings.

    def _find_logical(self, name: QueueKey) -> LogicalQueue | None:
        topic, number = name
        route = self.client.routes.find(topic)
        if route is None or not route.route.mappings or "/" in number:
            return None
        known = self._merged_mappings.get(topic)
        if known is None or known[0] != route.generation:
            records = {
                broker: record
                for broker, record in route.route.mappings.items()
                if self._unit is None or covers(record.scope, self._unit)
            }
            known = self._merged_mappings[topic] = (route.generation, merge(records).queues if records else {})
        return known[1].get(int(number))

    def _find_segment(self, name: QueueKey, offset: int, delta: int) -> Segment | None:
        queue = self._find_logical(name)
        segment = None if queue is None else queue.locate(offset)
        return segment if segment is not None and segment.delta == delta else None


def _full_name(queue: MessageQueue) -> str:
    return f"{queue.broker_name}/{queue.queue_id}"


class _TopicUnknown(Exception):
    """No name server knows the topic, although they had the time to learn about it."""


_sessions_lock: Final = threading.Lock()
_sessions: Final[dict[tuple[int, str, str, str | None], ClusterSession]] = {}


def session_for(
    namesrv: str, group: str, patience_s: float, unit: str | None = None, *, is_producer: bool = False
) -> ClusterSession:
    """Return this process's session with a cluster; the first call creates it.

    A group is used either by producers only or by readers only, so *is_producer* is not a part of the key.
    """
    key = (os.getpid(), namesrv, group, unit)  # A session does not survive a fork.
    with _sessions_lock:
        session = _sessions.get(key)
        if session is None:
            session = _sessions[key] = ClusterSession(namesrv, group, patience_s, unit, is_producer=is_producer)
        session.patience_s = patience_s
        return session


def all_queues(session: ClusterSession, topics: Iterable[str]) -> dict[QueueKey, MessageQueue]:
    """Return every queue of *topics*."""
    return {name: queue for topic in topics for name, queue in session.queues(topic).items()}
