"""The brokers and queues of a topic. JSON names are upstream's: except for its mappings, a route is an answer's body.

normal topic   every broker has separate queues            (topic, broker, 0), (topic, broker, 1), ...
static topic   N logical queues with changing leaders      (topic, mock broker, 0), ... (topic, mock broker, N-1)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from holdfast.model.leadership import Leader, find_leaders
from holdfast.model.mapping import TopicMapping
from holdfast.model.numbers import Int32, Int64
from holdfast.model.queue import MessageQueue
from holdfast.model.scope import is_mock_broker
from holdfast.model.topic import Permission

MASTER_ID = 0
_DIGITS_MAX: Final = 9


class BrokerData(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The addresses of the brokers that share one name: id 0 is the master."""

    cluster: str
    broker_name: str
    broker_addrs: dict[Int64, str]
    zone_name: str | None = None
    enable_acting_master: bool = False


class QueueData(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    rename={
        "broker_name": "brokerName",
        "read_queues": "readQueueNums",
        "write_queues": "writeQueueNums",
        "permission": "perm",
        "sys_flag": "topicSysFlag",
    },
):
    """The number of queues that one broker has of a topic, and the permission for them."""

    broker_name: str
    read_queues: Int32
    write_queues: Int32
    permission: Int32
    sys_flag: Int32 = 0


class Route(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=False):
    """Everything a client needs to reach a topic.

    Attributes:
        mappings: For a static topic: broker name to the record that this broker registered.
    """

    broker_datas: list[BrokerData] = []
    queue_datas: list[QueueData] = []
    filter_server_table: dict[str, list[str]] = {}
    order_topic_conf: str | None = None
    mappings: dict[str, TopicMapping] = {}

    def leaders(self, topic: str) -> dict[MessageQueue, Leader]:
        """Return the logical queues of a static topic with their leaders; nothing for a normal topic."""
        return find_leaders(topic, self.mappings.values()) if self.mappings else {}

    def order_counts(self) -> Iterator[tuple[str, int]]:
        """Yield each broker of an ordered topic and its number of queues; 0 if that number is invalid."""
        for item in (self.order_topic_conf or "").split(";"):
            name, _, count = item.partition(":")
            yield name, int(count) if count.isdecimal() and len(count) <= _DIGITS_MAX else 0

    def may_write(self, queue: MessageQueue) -> bool:
        """Return whether a client may write to a logical queue.

        If only some are writable, because others belong to another unit, `order_topic_conf` counts the writable ones.
        """
        if not self.order_topic_conf:
            return True
        counts = {name: count for name, count in self.order_counts() if is_mock_broker(name)}
        return not counts or queue.queue_id < counts.get(queue.broker_name, 0)

    def publishable(self, topic: str) -> list[MessageQueue]:
        """Return the queues that accept messages: writable, on a broker whose master is known.

        For a static topic these are all queues, even those without a leader, because a key's queue must always be one
        of N. If `order_topic_conf` limits the writable queues to those of some units, only these are returned.
        """
        if self.mappings:
            return [queue for queue in self.leaders(topic) if self.may_write(queue)]
        if self.order_topic_conf:
            return [
                MessageQueue(topic, name, queue_id) for name, count in self.order_counts() for queue_id in range(count)
            ]
        with_master = {broker.broker_name for broker in self.broker_datas if MASTER_ID in broker.broker_addrs}
        return [
            MessageQueue(topic, data.broker_name, queue_id)
            for data in sorted(self.queue_datas, key=lambda data: data.broker_name)
            if data.permission & Permission.WRITE and data.broker_name in with_master
            for queue_id in range(data.write_queues)
        ]

    def readable(self, topic: str) -> list[MessageQueue]:
        """Return the queues that can be consumed; a slave is sufficient. For a static topic these are all queues."""
        if self.mappings:
            return list(self.leaders(topic))
        return [
            MessageQueue(topic, data.broker_name, queue_id)
            for data in sorted(self.queue_datas, key=lambda data: data.broker_name)
            if data.permission & Permission.READ
            for queue_id in range(data.read_queues)
        ]

    def address_of(self, broker_name: str, broker_id: int = MASTER_ID) -> str | None:
        """Return the address of *broker_name*, or None if the route does not have it."""
        for broker in self.broker_datas:
            if broker.broker_name == broker_name:
                return broker.broker_addrs.get(broker_id)
        return None
