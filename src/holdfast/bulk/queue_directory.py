"""The topics of a cluster, and their queues by name, as the readers of one unit see them.

3            a logical queue of the reader's unit, or a global one
east/3       a logical queue of another unit that is open
broker-a/3   a queue of a normal topic
"""

from __future__ import annotations

import re
import time
from typing import Final

from holdfast.bulk.cluster_connection import ClusterConnection
from holdfast.bulk.read_options import QueueKey
from holdfast.client.access.refusal import refusal
from holdfast.client.routes.route_table import TopicRoute
from holdfast.model.errors import ConfigError, HoldfastError, RouteNotFound
from holdfast.model.queue import MessageQueue
from holdfast.model.scope import covers, find_scope, is_mock_broker
from holdfast.wire.cluster.route import TopicList
from holdfast.wire.frames import java_json
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.frames.command import Command

# A name server that has just started does not know every topic yet.
_UNKNOWN_TOPIC_S: Final = 5.0


class QueueDirectory:
    """Looks up topics and queues.

    Args:
        connection: The connection to the cluster.
        unit: The unit (a cluster name) to read; None for all. Other units are read while they are open.
    """

    def __init__(self, connection: ClusterConnection, unit: str | None) -> None:
        self._connection = connection
        self._unit = unit

    # Topics.

    def topics(self, pattern: str) -> list[str]:
        """Return the topics whose whole name matches *pattern*."""
        names = self._connection.wait(self._connection.retry(self._list_topics, ""))
        return sorted(name for name in names if re.fullmatch(pattern, name))

    async def _list_topics(self) -> list[str]:
        command = Command(code=RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        answer = await self._connection.client.ask_name_server(command)
        if answer.code != ResponseCode.SUCCESS:
            raise refusal(answer.code, answer.remark)
        return java_json.decode(answer.body, TopicList).topic_list

    # Queues.

    def queues(self, topic: str) -> dict[QueueKey, MessageQueue]:
        """Return all queues of *topic* that can be read now, by their names.

        Raises:
            ConfigError: there is no such topic.
        """
        route = self.find_route(topic)
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

    def find_queue(self, name: QueueKey) -> MessageQueue:
        """Return the queue of that name. A queue of a normal topic is found without a route.

        Raises:
            ConfigError: a static topic does not have it.
        """
        topic, text = name
        broker, _, number = text.rpartition("/")
        if broker:
            return MessageQueue(topic, broker, int(number))
        own = self._own_queues(self.load_static(topic))
        found = next((queue for queue in own if str(queue.queue_id) == number), None)
        if found is None:
            raise ConfigError(f"topic {topic!r} has no queue {number!r}; it has {len(own)}")
        return found

    def is_own_broker(self, route: TopicRoute, broker: str) -> bool:
        """Return whether *broker* is one of *route* and belongs to the reader's unit."""
        clusters = {data.broker_name: data.cluster for data in route.extended_route.broker_datas}
        return broker in clusters and covers(clusters[broker], self._unit or "")

    def _own_queues(self, route: TopicRoute) -> list[MessageQueue]:
        """Return the readable queues of the reader's own unit, without those of other units that are open."""
        if self._unit is None:
            return list(route.readable)
        clusters = {data.broker_name: data.cluster for data in route.extended_route.broker_datas}
        scopes = {name: find_scope(name) or clusters.get(name, "") for name in {q.broker_name for q in route.readable}}
        return [queue for queue in route.readable if covers(scopes[queue.broker_name], self._unit)]

    # Routes.

    def find_route(self, topic: str) -> TopicRoute | None:
        """Return the route of *topic*; None if it has none now, because only a unit that was closed has the topic.

        Raises:
            ConfigError: there is no such topic.
        """
        deadline_s = time.monotonic() + _UNKNOWN_TOPIC_S
        try:
            return self._connection.wait(self._connection.retry(lambda: self._look_up(topic, deadline_s), topic))
        except _TopicUnknown as error:
            raise ConfigError(str(error)) from None

    def seek_route(self, topic: str) -> TopicRoute | None:
        """Return the route of *topic* from memory, or looked up; None if no name server knows the topic now."""

        async def seek() -> TopicRoute | None:
            try:
                return await self._connection.client.route(topic)
            except RouteNotFound:
                return None

        return self._connection.wait(self._connection.retry(seek, topic))

    def load_static(self, topic: str) -> TopicRoute:
        """Return the route of a static topic, from memory or looked up."""
        route = self._connection.client.routes.find(topic)
        if route is None or not route.leaders:
            route = self._connection.wait(self._connection.retry(lambda: self._look_up_static(topic), topic))
        return route

    async def _look_up(self, topic: str, deadline_s: float) -> TopicRoute | None:
        client = self._connection.client
        known = client.routes.find(topic)
        try:
            return await client.route(topic, refresh=known is not None)
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

    async def _look_up_static(self, topic: str) -> TopicRoute:
        route = await self._connection.client.route(topic)
        if not route.leaders:
            raise RouteNotFound(f"{topic!r} is not, or no longer, a static topic")
        return route


def _full_name(queue: MessageQueue) -> str:
    return f"{queue.broker_name}/{queue.queue_id}"


class _TopicUnknown(Exception):
    """No name server knows the topic, although they had the time to learn about it."""
