"""Keeps the routes of a client up to date: looks them up, polls them, takes notices of changes, forgets them.

    wanted, polled, noticed ──> one lookup per topic in flight ──> table ── another route ──> routes_changed
    noticed while one is in flight ──> looked up again: the answer may be older than the change
    unused for five minutes ──> forgotten at the next poll, and 329

What a producer knows to be missing costs nothing: `publish_route` says so from memory, until a poll or a notice finds
the topic.

    topic missing? ─┬─ deleted ──> RouteNotFound, without asking: only an explicit create brings it back
                    └─ and the template of automatic creation? ── known ──> borrowed: a broker will create the topic
                                                              └── missing, too ──> RouteNotFound, without asking

The asyncio shell around `route_table`. Knows which questions to ask, but not whom: that is `name_server_link`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final

from holdfast.client.routes.missing_topics import MISSING_MAX
from holdfast.client.routes.name_server_session import NameServerLink, Spawn
from holdfast.client.routes.route_table import RouteTable, TopicRoute
from holdfast.model.errors import BrokerRefused, ConnectionLost, HoldfastError, RequestTimeout, RouteNotFound
from holdfast.model.route import Route
from holdfast.model.topic import AUTO_CREATE_TOPIC
from holdfast.wire.cluster.deletions import DELETED_FIELD
from holdfast.wire.cluster.route import decode_route
from holdfast.wire.frames.codes import ResponseCode
from holdfast.wire.frames.command import Command
from holdfast.wire.requests.send_request import AUTO_CREATE_QUEUES

_POLL_TICK_S: Final = 1.0
_SWEEP_S: Final = 30.0
# A name server that is away must not hold up what the others know already.
_SURVEY_S: Final = 0.5
# Thousands of topics may be due together. More questions than this on the way make no answer come sooner.
_LOOKUPS_MAX: Final = 128

_DELETED: Final = "the topic {!r} was deleted; create it again before you use it"

log = logging.getLogger("holdfast.client")


class RouteKeeper:
    """Knows who serves which topic.

    Args:
        name_servers: Whom to ask.
        ask: Asks one of them, by its address.
        spawn: Runs what nobody waits for.
        now_ms: Tells the time, by a clock that never goes back.
        changed: Called with a topic whose route is another one than before.
        expiry_s: After how long a topic is forgotten that nobody sends to; None for never.
        remembers_missing: Whether `publish_route` may say from memory that a topic does not exist.
        forgotten: Called with topics that were forgotten.
    """

    def __init__(
        self,
        name_servers: NameServerLink,
        *,
        ask: Callable[[str, Command], Awaitable[Command]],
        spawn: Spawn,
        now_ms: Callable[[], int],
        changed: Callable[[str], None],
        expiry_s: float | None = None,
        remembers_missing: bool = False,
        forgotten: Callable[[list[str]], None] | None = None,
    ) -> None:
        missing_max = MISSING_MAX if remembers_missing else None
        self.table = RouteTable(missing_max=missing_max, unit=name_servers.unit)
        self._name_servers = name_servers
        self._ask = ask
        self._spawn = spawn
        self._now_ms = now_ms
        self._changed = changed
        self._expiry_s = expiry_s
        self._remembers_missing = remembers_missing
        self._forgotten = forgotten
        self._poll_now = asyncio.Event()
        self._lookups: dict[str, asyncio.Task[TopicRoute | None]] = {}
        self._again: set[str] = set()  # in flight, and changed meanwhile
        self._surveys: dict[str, asyncio.Task[None]] = {}
        self._is_alone = False  # no name server answered the last poll: told when that begins, and when it ends

    def tasks(self) -> list[asyncio.Task[Any]]:
        """Return what is under way by itself."""
        return [*self._lookups.values(), *self._surveys.values()]

    # Asking.

    async def route(self, topic: str, *, refresh: bool = False) -> TopicRoute:
        """Return who serves *topic*, known or looked up.

        Raises:
            RouteNotFound: no name server knows the topic.
            ConnectionLost, RequestTimeout: no name server answered.
        """
        found = None if refresh else self.table.find(topic)
        if found is None or found.is_borrowed:
            found = await self._look_up(topic)
        if found is None:
            if self.table.is_deleted(topic):
                raise RouteNotFound(_DELETED.format(topic))
            raise RouteNotFound(f"no name server knows the topic {topic!r}; create it, or let a broker create topics")
        return found

    async def publish_route(self, topic: str, *, refresh: bool = False) -> TopicRoute:
        """Return who takes messages for *topic*; if it does not exist, who would create it on the first send.

        Raises:
            RouteNotFound: it does not exist, and no broker creates topics by itself.
            ConnectionLost, RequestTimeout: no name server answered.
        """
        known = self.table.use(topic, time.monotonic())
        if known is not None and not refresh:
            return known
        try:
            if not self._is_known_missing(topic):
                with contextlib.suppress(RouteNotFound):
                    return await self.route(topic, refresh=refresh)
            return await self._borrow(topic)
        finally:
            self.table.use(topic, time.monotonic())

    async def _borrow(self, topic: str) -> TopicRoute:
        """Return the route of the template of automatic creation under the name of *topic*, which does not exist.

        Raises:
            RouteNotFound: it was deleted, or no broker creates topics.
        """
        if self.table.is_deleted(topic) and self.table.find(topic) is None:
            raise RouteNotFound(_DELETED.format(topic))
        template = self.table.use(AUTO_CREATE_TOPIC, time.monotonic())
        if template is None and not self._is_known_missing(AUTO_CREATE_TOPIC):
            template = await self._look_up(AUTO_CREATE_TOPIC)
        known = self.table.find(topic)
        if known is not None and not known.is_borrowed:
            return known  # It was created meanwhile.
        if template is None:
            if self._remembers_missing:
                self._drop(topic)
            text = f"the topic {topic!r} does not exist and no broker creates topics by itself; create it first"
            raise RouteNotFound(text)
        self.table.put_template(topic, template.route, self._now_ms(), queues_max=AUTO_CREATE_QUEUES)
        borrowed = self.table.find(topic)
        assert borrowed is not None
        return borrowed

    def _is_known_missing(self, topic: str) -> bool:
        # While it is looked up, whoever asks waits for the answer: it may just have been created.
        return self._remembers_missing and self.table.is_missing(topic) and topic not in self._lookups

    async def recheck(self, topic: str) -> None:
        """Look *topic* up after a broker said that it does not have it; if name servers agree, it is missing."""
        await self._look_up(topic)
        if self.table.is_unlisted(topic):
            self._drop(topic)

    def doubt(self, topic: str) -> None:
        """Look up the route of *topic* again, soon: something about it seems to be out of date."""
        self.table.doubt(topic)
        self._poll_now.set()

    def doubt_broker(self, address: str) -> None:
        """Look up the routes of a broker whose connection is gone, and often until it is there again."""
        self.table.suspect(address)
        self._poll_now.set()

    def doubt_all(self) -> None:
        """Look up every route again, soon: nobody tells of changes at the moment."""
        self.table.doubt_all()
        self._poll_now.set()

    async def take_notice(self, topics: Iterable[str]) -> None:
        """Look up the routes of *topics* again, now: they changed."""
        named = dict.fromkeys(topics)  # each once, however often it is named
        topics = [topic for topic in named if self.table.is_interested(topic) or topic in self._lookups]
        self._again |= self._lookups.keys() & topics
        await self._renew([topic for topic in topics if topic not in self._lookups])

    async def refresh_leaders(self, topic: str) -> None:
        """Ask every name server who leads the queues of *topic*: the one in use may be the last to know.

        Everybody who wants it meanwhile waits for the same answers. If nobody answers, what is known stays.
        """
        survey = self._surveys.get(topic)
        if survey is None:
            survey = asyncio.ensure_future(self._survey(topic))
            self._surveys[topic] = survey
            survey.add_done_callback(lambda _: self._surveys.pop(topic, None))
        await asyncio.shield(survey)

    async def poll_forever(self) -> None:
        """Look up what is due, and forget what nobody needs."""
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
            if not await self._renew(self.table.due(self._now_ms())):
                # Each of them was given up and the next one chosen, which calls for a poll: that was this one.
                self._poll_now.clear()

    # Ways inside.

    async def _look_up(self, topic: str) -> TopicRoute | None:
        """Ask for the route of *topic*; everybody who wants it meanwhile waits for the same answer."""
        lookup = self._lookups.get(topic)
        if lookup is None:
            lookup = asyncio.ensure_future(self._fetch(topic))
            self._lookups[topic] = lookup
            lookup.add_done_callback(lambda task: self._looked_up(topic, task))
        return await asyncio.shield(lookup)

    def _looked_up(self, topic: str, lookup: asyncio.Task[TopicRoute | None]) -> None:
        del self._lookups[topic]
        is_wanted_again = topic in self._again
        self._again.discard(topic)
        if lookup.cancelled():
            return
        lookup.exception()  # Whoever waits has it; if nobody does any more, nobody needs to hear of it.
        if is_wanted_again:
            self._spawn(self.take_notice([topic]))

    async def _fetch(self, topic: str) -> TopicRoute | None:
        address, answer = await self._name_servers.ask_route(topic)
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            is_deleted = DELETED_FIELD in answer.fields
            self._forget(self.table.put_missing(topic, self._now_ms(), is_deleted=is_deleted))
            # A template that is gone serves no topic. Consumers keep what they have read of a deleted one.
            if self._remembers_missing and (is_deleted or topic == AUTO_CREATE_TOPIC):
                self._drop(topic)
        elif answer.code != ResponseCode.SUCCESS:
            raise BrokerRefused(answer.code, answer.remark or "", address=address)
        elif self.table.put(topic, decode_route(answer.body), self._now_ms()):
            self._changed(topic)
        if address != self._name_servers.current:
            self.doubt(topic)  # Another is used since: that one has to be asked, or it would not tell of changes.
        known = self.table.find(topic)
        return None if known is None or known.is_borrowed else known

    async def _renew(self, topics: list[str]) -> bool:
        """Look up *topics*, many at a time. What cannot be looked up now is due for the next poll.

        Returns:
            False when no name server answers.
        """
        rest = iter(topics)
        failures: list[HoldfastError] = []

        async def work() -> None:
            for topic in rest:
                try:
                    if not failures:
                        await self._look_up(topic)
                        continue
                except (ConnectionLost, RequestTimeout) as error:
                    failures.append(error)  # No name server answers: the others would fare no better.
                except HoldfastError as error:
                    log.warning("the route of %s could not be polled: %s", topic, error)
                self.table.doubt(topic)

        await asyncio.gather(*(work() for _ in range(min(_LOOKUPS_MAX, len(topics)))))
        if topics:
            self._tell_outage(failures)
        return not failures

    def _tell_outage(self, failures: list[HoldfastError]) -> None:
        """Tell when polls begin to fail and when they no longer do, however many there are in between."""
        if failures and not self._is_alone:
            log.warning("routes could not be polled: %s", failures[0])
        elif self._is_alone and not failures:
            log.warning("routes are polled again")
        self._is_alone = bool(failures)

    async def _survey(self, topic: str) -> None:
        addresses = self._name_servers.addresses
        asked = [asyncio.ensure_future(self._route_at(address, topic)) for address in addresses]
        try:
            await asyncio.wait(asked, timeout=_SURVEY_S)
            routes = [found for task in asked if task.done() and (found := task.result()) is not None]
        finally:
            for task in asked:
                task.cancel()
        if not routes:
            return
        is_everybody = len(routes) == len(addresses)
        if self.table.put_all(topic, routes, self._now_ms(), is_everybody=is_everybody):
            self._changed(topic)

    async def _route_at(self, address: str, topic: str) -> Route | None:
        try:
            return decode_route((await self._ask(address, self._name_servers.route_query(topic))).body)
        except HoldfastError as error:
            log.debug("name server %s does not tell the route of %s: %s", address, topic, error)
            return None

    def _drop(self, topic: str) -> None:
        """Let *topic*, which the name server does not know, be missing, and report that its queues are gone."""
        was_known = self.table.find(topic) is not None
        self._forget(self.table.drop(topic))
        if was_known:
            self._changed(topic)

    def _forget(self, topics: list[str]) -> None:
        if topics:
            self._name_servers.unwatch(topics)
            if self._forgotten is not None:
                self._forgotten(topics)
