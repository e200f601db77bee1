"""Who serves a topic's queues. JSON names are upstream's: but for its mappings, a route is the body of an answer.

normal topic   every broker has queues of its own          (topic, broker, 0), (topic, broker, 1), ...
static topic   N logical queues, whoever leads them now    (topic, mock broker, 0), ... (topic, mock broker, N-1)
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
    """The addresses of one broker name: id 0 is the master."""

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
    """How many queues of a topic one broker has, and what they may be used for."""

    broker_name: str
    read_queues: Int32
    write_queues: Int32
    permission: Int32
    sys_flag: Int32 = 0


class Route(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=False):
    """Everything a client needs to reach a topic.

    Attributes:
        mappings: Of a static topic: broker name to what that broker registered of it.
    """

    broker_datas: list[BrokerData] = []
    queue_datas: list[QueueData] = []
    filter_server_table: dict[str, list[str]] = {}
    order_topic_conf: str | None = None
    mappings: dict[str, TopicMapping] = {}

    def leaders(self, topic: str) -> dict[MessageQueue, Leader]:
        """Return the logical queues of a static topic and who leads each; nothing for a normal topic."""
        return find_leaders(topic, self.mappings.values()) if self.mappings else {}

    def order_counts(self) -> Iterator[tuple[str, int]]:
        """Return how many queues of an ordered topic each broker shall have; 0 where that is no number of any use."""
        for item in (self.order_topic_conf or "").split(";"):
            name, _, count = item.partition(":")
            yield name, int(count) if count.isdecimal() and len(count) <= _DIGITS_MAX else 0

    def may_write(self, queue: MessageQueue) -> bool:
        """Return whether a logical queue is one to write to.

        Where only some are, as others belong to another unit, they are told as the queues of ordered topics are.
        """
        if not self.order_topic_conf:
            return True
        counts = {name: count for name, count in self.order_counts() if is_mock_broker(name)}
        return not counts or queue.queue_id < counts.get(queue.broker_name, 0)

    def publishable(self, topic: str) -> list[MessageQueue]:
        """Return the queues that take messages: writable, on a broker whose master is known.

        Of a static topic all of them, also those that have no leader now: a key's queue is one of N, always. But for
        those of other units, where the route tells of some.
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
        """Return the queues that can be consumed; a slave alone is enough. Of a static topic all of them."""
        if self.mappings:
            return list(self.leaders(topic))
        return [
            MessageQueue(topic, data.broker_name, queue_id)
            for data in sorted(self.queue_datas, key=lambda data: data.broker_name)
            if data.permission & Permission.READ
            for queue_id in range(data.read_queues)
        ]

    def address_of(self, broker_name: str, broker_id: int = MASTER_ID) -> str | None:
        """Return where *broker_name* listens, or None when the route does not know it."""
        for broker in self.broker_datas:
            if broker.broker_name == broker_name:
                return broker.broker_addrs.get(broker_id)
        return None
