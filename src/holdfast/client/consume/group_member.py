"""Joins a consumer group and keeps its assignment up to date.

    start ─> routes ─> heartbeat to every broker ─> members of the group ─> our queues ─> give up, take over
                                                     ^ every 20 s, when a broker notifies us (40), when a route changes,
                                                       sooner again when a round could not be completed

A broker that restarts, or whose connection broke, at first knows only the members that have reconnected. For a few
seconds after a reconnect, all former members count: otherwise the quickest ones would take the queues of the others.

The asyncio shell around `rebalance`. The consumer itself gives up and takes over queues.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final

import msgspec

from holdfast.client.cluster.cluster_client import (
    ClientCallbacks,
    ClusterClient,
    ignore,
    ignore_broker,
    monotonic_ms,
    now_ms,
)
from holdfast.client.cluster.heartbeat import consumer_data, heartbeat_command, unregister_command
from holdfast.client.cluster.queue_rpc import QueueRpc, Start, start_code
from holdfast.client.cluster.server_request import Handler, ServerRequest
from holdfast.client.consume.rebalance import AssignmentChange, allocate_average, plan_change
from holdfast.client.messages.arguments import check_name, check_start, check_text
from holdfast.client.options import ClientOptions
from holdfast.client.routes.route_table import TopicRoute
from holdfast.model.errors import BrokerRefused, HoldfastError, RouteNotFound
from holdfast.model.filter import EVERYTHING, parse_tags
from holdfast.model.group import Subscription
from holdfast.model.queue import MessageQueue
from holdfast.model.topic import retry_topic
from holdfast.wire.frames.codes import RequestCode
from holdfast.wire.frames.command import Command

log = logging.getLogger("holdfast.client")

REBALANCE_INTERVAL_S: Final = 20.0
_RETRY_PAUSE_S: Final = 1.0
# The longest pause while one of our queues cannot be taken over yet, usually because its owner has not released it.
_PENDING_PAUSE_S_MAX: Final = 4.0
# Longer than the longest pause between two dials of a client: by then all live members have reconnected.
_RECONNECT_WINDOW_S: Final = 5.0

OnChange = Callable[[AssignmentChange], Awaitable[bool]]
"""Gives up and takes over queues. Returns False if one could not be taken over yet; then it is called again soon."""


class MemberCallbacks(msgspec.Struct, frozen=True):
    """How a member notifies its consumer.

    Attributes:
        assigned: Returns the queues that we consume now.
        change: Called when the assignment differs from these.
        handlers: Request code -> handler of that request from a broker, besides those of the membership itself.
        broker_up: Called with the address of a broker that has answered our heartbeat on a new connection, the first
            included.
        broker_down: Called with the address of a broker whose connection is gone.
        route_changed: Called with a topic whose queues or leaders have changed.
    """

    assigned: Callable[[], Iterable[MessageQueue]]
    change: OnChange
    handlers: Mapping[int, Handler] = {}
    broker_up: Callable[[str], Awaitable[None]] = ignore_broker
    broker_down: Callable[[str], None] = ignore
    route_changed: Callable[[str], None] = ignore


class GroupMember:
    """One member of one group.

    Args:
        options: The options of the client.
        group: The group as the application calls it.
        callbacks: How to notify the consumer.
        is_push: Whether messages are delivered to a listener, as opposed to polled.
        is_broadcast: Whether every member gets all messages.
        start: Where to begin with a queue for which the group never committed an offset.
    """

    def __init__(
        self,
        options: ClientOptions,
        group: str,
        callbacks: MemberCallbacks,
        *,
        is_push: bool,
        start: Start,
        is_broadcast: bool = False,
    ) -> None:
        check_name("consumer group", group)
        check_start("start", start)
        self.options = options
        self.group = options.wire_name(group)
        self.start_at = start
        self.is_broadcast = is_broadcast
        self.subscriptions: dict[str, Subscription] = {}
        self._is_push = is_push
        self._callbacks = callbacks
        self._members: dict[str, set[str]] = {}  # by topic, as of the last round
        self._missing: set[str] = set()  # topics that do not exist, which was logged
        self._reconnecting_until_ms = 0
        self._wake = asyncio.Event()
        self._is_started = False
        self._has_pending_queues = False
        self._rebalance_lock = asyncio.Lock()
        self.client = ClusterClient(
            msgspec.structs.replace(options, reader_group=self.group),
            ClientCallbacks(
                handlers={RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: self._members_changed, **callbacks.handlers},
                heartbeat=self._heartbeat,
                goodbyes=lambda: [unregister_command(self.client.client_id, consumer=self.group)],
                routes_changed=self._route_changed,
                broker_up=self._reconnected,
                broker_down=callbacks.broker_down,
            ),
        )
        self.rpc = QueueRpc(self.client, self.group)

    def subscribe(self, topic: str, tags: str = EVERYTHING) -> None:
        """Subscribe to *topic*: to all messages, or to those with one of the tags `tag || tag || ...`.

        Raises:
            TypeError, ValueError: an argument has a wrong type, or a value that cannot work.
            LocalProtocolError: the topic name is not valid.
            ForkedClient: this process is a fork of the one that opened the consumer.
        """
        check_name("topic", topic)
        check_text("tags", tags)
        self.client.check_process()
        name = self.options.wire_name(topic)
        self.subscriptions[name] = parse_tags(name, tags, version=now_ms())
        self.client.routes.watch(name)
        self._subscriptions_changed()

    def unsubscribe(self, topic: str) -> None:
        """End the subscription to *topic*."""
        check_name("topic", topic)
        self.client.check_process()
        name = self.options.wire_name(topic)
        self.subscriptions.pop(name, None)
        self._missing.discard(name)
        self._subscriptions_changed()

    def subscription(self, topic: str) -> Subscription:
        """Return the subscription to *topic*; without one, as with manually assigned queues, that to all messages."""
        return self.subscriptions.get(topic) or parse_tags(topic, EVERYTHING)

    async def start(self) -> None:
        """Connect, announce this member to every broker, and start to rebalance."""
        await self.client.start()
        self._is_started = True
        if self._is_push and not self.is_broadcast:
            name = retry_topic(self.group)
            self.subscriptions[name] = parse_tags(name, EVERYTHING, version=now_ms())
        await self._find_routes()
        await self.client.beat()
        self.client.spawn(self._rebalance_forever())

    async def stop(self) -> None:
        """Stop rebalancing and end all background work. Requests can still be made."""
        if self.client.is_inherited:
            return
        self._is_started = False
        async with self._rebalance_lock:  # let a change in progress finish
            await self.client.stop_tasks()

    async def close(self) -> None:
        """Unregister at the brokers and close all connections."""
        await self.client.close()

    def wake(self) -> None:
        """Rebalance soon."""
        self._wake.set()

    async def rebalance(self) -> bool:
        """Compute our queues, and have the consumer change to them. Return False if that could not be completed."""
        async with self._rebalance_lock:
            target: set[MessageQueue] = set()
            is_complete = True
            for topic in list(self.subscriptions):
                allocated = await self._allocate(topic)
                if allocated is None:
                    is_complete = False
                    allocated = [queue for queue in self._callbacks.assigned() if queue.topic == topic]
                target.update(allocated)
            change = plan_change(self._callbacks.assigned(), target)
            self._has_pending_queues = False
            if change:
                log.info("group %s: gives up %s, takes over %s", self.group, change.lost, change.gained)
                self._has_pending_queues = not await self._callbacks.change(change)
            return is_complete and not self._has_pending_queues

    async def _allocate(self, topic: str) -> list[MessageQueue] | None:
        """Return our queues of *topic*, or None if they cannot be determined now."""
        try:
            route = await self._find_route(topic)
            if route is None:
                return None
            if self.is_broadcast:
                return list(route.readable)
            members = await self._find_members(topic)
        except RouteNotFound as error:
            log.debug("group %s: %s", self.group, error)
            return None
        except HoldfastError as error:
            log.warning("group %s: the members for topic %s could not be queried: %s", self.group, topic, error)
            return None
        if self.client.client_id not in members:
            return None  # We keep our queues until a broker lists us again.
        return allocate_average(route.readable, sorted(members), self.client.client_id)

    async def _find_members(self, topic: str) -> set[str]:
        """Return the members of the group.

        Raises:
            HoldfastError: no broker answered.
        """
        members = await self.rpc.members(topic)
        if self.client.client_id not in members:
            # The brokers lost our registration, or have not received it yet.
            await self.client.beat()
            members = await self.rpc.members(topic)
        if monotonic_ms() < self._reconnecting_until_ms:
            members |= self._members.get(topic, set())
        self._members[topic] = members
        return members

    def _route_changed(self, topic: str) -> None:
        self._callbacks.route_changed(topic)
        self.wake()

    async def _reconnected(self, address: str) -> None:
        """Notify the consumer that *address* is back, and rebalance once all members may have reconnected."""
        if any(self._members.values()):
            self._reconnecting_until_ms = monotonic_ms() + int(_RECONNECT_WINDOW_S * 1000)
            self.client.spawn(self._wake_later())
        await self._callbacks.broker_up(address)

    async def _wake_later(self) -> None:
        await asyncio.sleep(_RECONNECT_WINDOW_S)
        self.wake()

    async def _rebalance_forever(self) -> None:
        failures = 0
        while True:
            self._wake.clear()
            failures = 0 if await self.rebalance() else failures + 1
            pause_s = _PENDING_PAUSE_S_MAX if self._has_pending_queues else REBALANCE_INTERVAL_S
            if failures:
                pause_s = min(_RETRY_PAUSE_S * 2 ** min(failures - 1, 9), pause_s)
            try:
                async with asyncio.timeout(pause_s):
                    await self._wake.wait()
                failures = 0  # Something changed: a step that failed before may succeed now.
            except TimeoutError:
                continue

    async def _find_route(self, topic: str) -> TopicRoute | None:
        """Return the route of *topic*, or None if it does not exist. That is logged once: its name may be mistyped.

        Raises:
            HoldfastError: no name server answered, or one refused.
        """
        try:
            route = await self.client.route(topic)
        except RouteNotFound:
            # The retry topic of a group is created when the first message fails.
            if topic not in self._missing and topic != retry_topic(self.group):
                self._missing.add(topic)
                log.warning(
                    "group %s subscribes to the topic %s, which does not exist: nothing of it is consumed until it is "
                    "created. Check its name, or create it with `holdfast topic create`",
                    self.group,
                    topic,
                )
            return None
        if topic in self._missing:
            self._missing.discard(topic)
            log.info("group %s: the topic %s exists now", self.group, topic)
        return route

    async def _find_routes(self) -> None:
        """Look up every subscribed topic, so that its brokers get our heartbeats.

        Raises:
            ConnectionLost, RequestTimeout: no name server answered.
        """
        for topic in list(self.subscriptions):
            try:
                await self._find_route(topic)
            except BrokerRefused as refusal:
                log.debug("topic %s is not ready yet: %s", topic, refusal)

    def _subscriptions_changed(self) -> None:
        if self._is_started:
            self.client.spawn(self._announce())

    async def _announce(self) -> None:
        try:
            await self._find_routes()
        except HoldfastError as error:
            log.warning("group %s: routes could not be looked up: %s", self.group, error)
        await self.client.beat()
        self.wake()

    def _heartbeat(self) -> Command:
        consumer = consumer_data(
            self.group,
            self.subscriptions.values(),
            is_push=self._is_push,
            is_broadcast=self.is_broadcast,
            start=start_code(self.start_at),
        )
        return heartbeat_command(self.client.client_id, consumer=consumer)

    async def _members_changed(self, request: ServerRequest) -> None:  # noqa: ARG002 - any broker may notify us
        self.wake()
