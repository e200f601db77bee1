"""Keeps the routes of a client up to date: looks them up, polls them, handles change notifications, forgets them.

    wanted, polled, notified ──> one lookup per topic in flight ──> table ── a different route ──> routes_changed
    notified while a lookup is in flight ──> looked up again: the answer may be older than the change
    unused for five minutes ──> forgotten at the next poll, and 329

A topic that a producer knows to be missing costs no request: `publish_route` answers from memory, until a poll or a
notification finds the topic.

    topic missing? ─┬─ deleted ──> RouteNotFound, without asking: only an explicit create brings it back
                    └─ and the template of automatic creation? ── known ──> borrowed: a broker will create the topic
                                                              └── missing, too ──> RouteNotFound, without asking

The asyncio shell around `route_table`. Knows which requests to send, but not to which server: `name_server_session`
knows that.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final

from holdfast.client.access.refusal import refusal
from holdfast.client.options import ClientOptions
from holdfast.client.routes.missing_topics import MISSING_MAX
from holdfast.client.routes.name_server_session import NameServerSession, Spawn
from holdfast.client.routes.route_table import RouteTable, TopicRoute
from holdfast.model.errors import ConnectionLost, HoldfastError, RequestTimeout, RouteNotFound
from holdfast.model.route import Route
from holdfast.model.topic import AUTO_CREATE_TOPIC
from holdfast.wire.cluster.deletions import DELETED_FIELD
from holdfast.wire.cluster.route import decode_route
from holdfast.wire.frames.codes import ResponseCode
from holdfast.wire.frames.command import Command
from holdfast.wire.requests.send_request import AUTO_CREATE_QUEUES

_POLL_TICK_S: Final = 1.0
_SWEEP_S: Final = 30.0
# An unreachable name server must not delay the use of the other answers.
_SURVEY_S: Final = 0.5
# Thousands of topics may be due at once. More requests in flight would not bring any answer sooner.
_LOOKUPS_MAX: Final = 128

_DELETED: Final = "the topic {!r} was deleted; create it again before you use it"

log = logging.getLogger("holdfast.client")


class RouteRefresher:
    """The routes of a client, kept up to date.

    Args:
        options: The options of the client.
        name_servers: The name servers.
        invoke: Sends a request to one of them, by its address.
        spawn: Runs background work.
        now_ms: Returns the time, by a monotonic clock.
        changed: Called with a topic whose route has changed.
        forgotten: Called with topics that were forgotten.
    """

    def __init__(
        self,
        options: ClientOptions,
        name_servers: NameServerSession,
        *,
        invoke: Callable[[str, Command], Awaitable[Command]],
        spawn: Spawn,
        now_ms: Callable[[], int],
        changed: Callable[[str], None],
        forgotten: Callable[[list[str]], None],
    ) -> None:
        missing_max = MISSING_MAX if options.remembers_missing else None
        self.table = RouteTable(missing_max=missing_max, unit=options.unit)
        self._name_servers = name_servers
        self._invoke = invoke
        self._spawn = spawn
        self._now_ms = now_ms
        self._changed = changed
        self._expiry_s = options.topic_expiry_s
        self._remembers_missing = options.remembers_missing
        self._forgotten = forgotten
        self._poll_now = asyncio.Event()
        self._lookups: dict[str, asyncio.Task[TopicRoute | None]] = {}
        self._changed_in_flight: set[str] = set()  # in flight, and changed meanwhile
        self._surveys: dict[str, asyncio.Task[None]] = {}
        self._has_outage = False  # no name server answered the last poll; logged when that begins and when it ends

    def tasks(self) -> list[asyncio.Task[Any]]:
        """Return the tasks of the lookups in flight."""
        return [*self._lookups.values(), *self._surveys.values()]

    # Lookups.

    async def route(self, topic: str, *, refresh: bool = False) -> TopicRoute:
        """Return the route of *topic*, from memory or looked up.

        Raises:
            RouteNotFound: no name server knows the topic.
            ConnectionLost, RequestTimeout: no name server answered.
        """
        found = None if refresh else self.table.find(topic)
        if found is None or found.is_template:
            found = await self._look_up(topic)
        if found is None:
            if self.table.is_deleted(topic):
                raise RouteNotFound(_DELETED.format(topic))
            raise RouteNotFound(f"no name server knows the topic {topic!r}; create it, or let a broker create topics")
        return found

    async def publish_route(self, topic: str, *, refresh: bool = False) -> TopicRoute:
        """Return the route to send to *topic*; if the topic does not exist, that of the brokers that would create it.

        Raises:
            RouteNotFound: the topic does not exist, and no broker creates topics automatically.
            ConnectionLost, RequestTimeout: no name server answered.
        """
        known = self.table.use(topic, time.monotonic())
        if known is not None and not refresh:
            return known
        try:
            if not self._is_known_missing(topic):
                with contextlib.suppress(RouteNotFound):
                    return await self.route(topic, refresh=refresh)
            return await self._template_route(topic)
        finally:
            self.table.use(topic, time.monotonic())

    async def _template_route(self, topic: str) -> TopicRoute:
        """Return the route of the template of automatic creation under the name of *topic*, which does not exist.

        Raises:
            RouteNotFound: the topic was deleted, or no broker creates topics automatically.
        """
        if self.table.is_deleted(topic) and self.table.find(topic) is None:
            raise RouteNotFound(_DELETED.format(topic))
        template = self.table.use(AUTO_CREATE_TOPIC, time.monotonic())
        if template is None and not self._is_known_missing(AUTO_CREATE_TOPIC):
            template = await self._look_up(AUTO_CREATE_TOPIC)
        known = self.table.find(topic)
        if known is not None and not known.is_template:
            return known  # It was created meanwhile.
        if template is None:
            if self._remembers_missing:
                self._drop(topic)
            text = f"the topic {topic!r} does not exist and no broker creates topics automatically; create it first"
            raise RouteNotFound(text)
        self.table.put_template(topic, template.route, self._now_ms(), queues_max=AUTO_CREATE_QUEUES)
        route = self.table.find(topic)
        assert route is not None
        return route

    def _is_known_missing(self, topic: str) -> bool:
        # While a lookup is in flight, callers wait for its answer: the topic may just have been created.
        return self._remembers_missing and self.table.is_missing(topic) and topic not in self._lookups

    async def recheck(self, topic: str) -> None:
        """Look *topic* up because a broker does not have it; if the name server does not know it either, drop it."""
        await self._look_up(topic)
        if self.table.is_unlisted(topic):
            self._drop(topic)

    def mark_stale(self, topic: str) -> None:
        """Look up the route of *topic* again soon: it seems to be out of date."""
        self.table.mark_stale(topic)
        self._poll_now.set()

    def suspect_broker(self, address: str) -> None:
        """Look up the routes of a broker whose connection is gone, and often until it is connected again."""
        self.table.suspect_broker(address)
        self._poll_now.set()

    def mark_all_stale(self) -> None:
        """Look up every route again soon: no name server notifies us of changes at the moment."""
        self.table.mark_all_stale()
        self._poll_now.set()

    async def handle_notice(self, topics: Iterable[str]) -> None:
        """Look up the routes of *topics* again now: a name server reported that they changed."""
        unique = dict.fromkeys(topics)  # each once, however often the notification names it
        topics = [topic for topic in unique if self.table.has_topic(topic) or topic in self._lookups]
        self._changed_in_flight |= self._lookups.keys() & topics
        await self._look_up_all([topic for topic in topics if topic not in self._lookups])

    async def refresh_leaders(self, topic: str) -> None:
        """Ask every name server who leads the queues of *topic*: the one in use may be the last to know.

        Concurrent callers share the same requests. If no name server answers, the known leaders stay.
        """
        survey = self._surveys.get(topic)
        if survey is None:
            survey = asyncio.ensure_future(self._survey(topic))
            self._surveys[topic] = survey
            survey.add_done_callback(lambda _: self._surveys.pop(topic, None))
        await asyncio.shield(survey)

    async def poll_forever(self) -> None:
        """Look up the routes that are due, and forget unused topics."""
        sweep_s = time.monotonic() + _SWEEP_S
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_POLL_TICK_S):
                    await self._poll_now.wait()
            self._poll_now.clear()
            now_s = time.monotonic()
            if self._expiry_s is not None and now_s >= sweep_s:
                sweep_s = now_s + _SWEEP_S
                self._forget(self.table.expire(now_s, self._expiry_s))
            if not await self._look_up_all(self.table.due(self._now_ms())):
                # Each failure switched to the next name server, which requests a poll: this was that poll.
                self._poll_now.clear()

    # Internals.

    async def _look_up(self, topic: str) -> TopicRoute | None:
        """Ask for the route of *topic*; concurrent callers share one request."""
        lookup = self._lookups.get(topic)
        if lookup is None:
            lookup = asyncio.ensure_future(self._fetch(topic))
            self._lookups[topic] = lookup
            lookup.add_done_callback(lambda task: self._finish_lookup(topic, task))
        return await asyncio.shield(lookup)

    def _finish_lookup(self, topic: str, lookup: asyncio.Task[TopicRoute | None]) -> None:
        del self._lookups[topic]
        is_stale = topic in self._changed_in_flight
        self._changed_in_flight.discard(topic)
        if lookup.cancelled():
            return
        lookup.exception()  # Mark it as retrieved: if no caller waits any more, asyncio must not report it.
        if is_stale:
            self._spawn(self.handle_notice([topic]))

    async def _fetch(self, topic: str) -> TopicRoute | None:
        address, answer = await self._name_servers.request_route(topic)
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            is_deleted = DELETED_FIELD in answer.fields
            self._forget(self.table.put_missing(topic, self._now_ms(), is_deleted=is_deleted))
            # A deleted template serves no topic. Consumers keep the known route of a deleted topic.
            if self._remembers_missing and (is_deleted or topic == AUTO_CREATE_TOPIC):
                self._drop(topic)
        elif answer.code != ResponseCode.SUCCESS:
            raise refusal(answer.code, answer.remark, address=address)
        elif self.table.put(topic, decode_route(answer.body), self._now_ms()):
            self._changed(topic)
        if address != self._name_servers.current:
            self.mark_stale(
                topic
            )  # The name server in use has changed since: only if asked will the new one push changes.
        known = self.table.find(topic)
        return None if known is None or known.is_template else known

    async def _look_up_all(self, topics: list[str]) -> bool:
        """Look up *topics*, many in parallel. Those that fail are due again at the next poll.

        Returns:
            False if no name server answers.
        """
        remaining = iter(topics)
        failures: list[HoldfastError] = []

        async def work() -> None:
            for topic in remaining:
                try:
                    if not failures:
                        await self._look_up(topic)
                        continue
                except (ConnectionLost, RequestTimeout) as error:
                    failures.append(error)  # No name server answers: the other lookups would fail, too.
                except HoldfastError as error:
                    log.warning("the route of %s could not be polled: %s", topic, error)
                self.table.mark_stale(topic)

        await asyncio.gather(*(work() for _ in range(min(_LOOKUPS_MAX, len(topics)))))
        if topics:
            self._log_outage(failures)
        return not failures

    def _log_outage(self, failures: list[HoldfastError]) -> None:
        """Log when polls begin to fail and when they succeed again, once each."""
        if failures and not self._has_outage:
            log.warning("routes could not be polled: %s", failures[0])
        elif self._has_outage and not failures:
            log.warning("routes are polled again")
        self._has_outage = bool(failures)

    async def _survey(self, topic: str) -> None:
        addresses = self._name_servers.addresses
        lookups = [asyncio.ensure_future(self._route_at(address, topic)) for address in addresses]
        try:
            await asyncio.wait(lookups, timeout=_SURVEY_S)
            routes = [found for task in lookups if task.done() and (found := task.result()) is not None]
        finally:
            for task in lookups:
                task.cancel()
        if not routes:
            return
        is_complete = len(routes) == len(addresses)
        if self.table.put_all(topic, routes, self._now_ms(), is_complete=is_complete):
            self._changed(topic)

    async def _route_at(self, address: str, topic: str) -> Route | None:
        try:
            return decode_route((await self._invoke(address, self._name_servers.route_query(topic))).body)
        except HoldfastError as error:
            log.debug("name server %s did not return the route of %s: %s", address, topic, error)
            return None

    def _drop(self, topic: str) -> None:
        """Mark *topic*, which the name server does not know, as missing, and report that its queues are gone."""
        was_known = self.table.find(topic) is not None
        self._forget(self.table.drop(topic))
        if was_known:
            self._changed(topic)

    def _forget(self, topics: list[str]) -> None:
        if topics:
            self._name_servers.unwatch(topics)
            self._forgotten(topics)
