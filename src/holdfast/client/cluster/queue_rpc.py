"""Calls brokers for a consumer group: offsets and members.

Each call goes to the master of the queue's broker; for a logical queue, to its leader. If a broker answers that it does
not know this client, the client sends it a heartbeat and repeats the call once. If a broker no longer leads the queue,
the call is repeated at the new leader.

Awaits answers; the callers decide.
"""

from __future__ import annotations

import asyncio
import logging
from datetime import datetime
from typing import Final, Literal

import msgspec

from holdfast.client.cluster.cluster_client import ClusterClient, monotonic_ms
from holdfast.client.cluster.send_plan import backoff_ms, is_not_leader
from holdfast.model.errors import BrokerRefused, HoldfastError, RemoteProtocolError, RouteNotFound
from holdfast.model.queue import LogicalOffset, LogicalQueueId, MessageQueue
from holdfast.model.route import MASTER_ID
from holdfast.model.scope import is_mock_broker
from holdfast.model.topic import RETRY_PREFIX
from holdfast.wire.cluster.route import MAPPING_FIELD
from holdfast.wire.frames import java_json
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.frames.command import Command
from holdfast.wire.frames.fields import BadField, from_fields, to_fields
from holdfast.wire.requests.heartbeat import ConsumeFromWhere, ConsumerGroupFields, ConsumerList
from holdfast.wire.requests.offsets import (
    KnownOffsetAnswer,
    QueryOffsetFields,
    QueueFields,
    SearchOffsetFields,
    UpdateOffsetFields,
)
from holdfast.wire.requests.relay import leader_in

log = logging.getLogger("holdfast.client")

Start = Literal["earliest", "latest"] | datetime
"""Where to begin: at the oldest message, after the newest, or at the first one stored at or after a time."""

# The broker lost the heartbeat of this client, or has not received it yet.
UNKNOWN_TO_BROKER: Final = frozenset(
    {
        ResponseCode.SUBSCRIPTION_NOT_EXIST,
        ResponseCode.SUBSCRIPTION_NOT_LATEST,
        ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
    }
)


class QueueRpc:
    """The calls of one consumer group.

    Args:
        client: The connection to the cluster.
        group: The consumer group, as the wire knows it.
    """

    def __init__(self, client: ClusterClient, group: str) -> None:
        self.client = client
        self.group = group

    def address(self, queue: MessageQueue, broker_id: int = MASTER_ID) -> str:
        """Return the address that serves *queue*: of *broker_id* if it is up, else of the master, else of any replica.

        Raises:
            RouteNotFound: the broker of the queue is unknown.
        """
        found = self.find_address(queue, broker_id)
        if found is None:
            raise RouteNotFound(f"no route lists the broker {queue.broker_name!r}, so its address is unknown")
        return found

    def find_address(self, queue: MessageQueue, broker_id: int = MASTER_ID) -> str | None:
        """Return the address that serves *queue*, as `address` does, or None if its broker is unknown."""
        route = self.client.routes.find(queue.topic)
        if route is not None and route.leaders:
            # While the master is away, a replica answers reads for the logical queues that the master leads.
            return route.any_address_of(route.broker_of(queue), broker_id)
        found = None if route is None else route.any_address_of(queue.broker_name, broker_id)
        return found or self.client.routes.find_address(queue.broker_name)

    async def invoke(self, address: str, command: Command, timeout_s: float | None = None) -> Command:
        """Send *command* to *address* and return its successful answer; announce this client there if it is unknown.

        Raises:
            BrokerRefused: the answer is a refusal.
            ConnectionLost, RequestTimeout: there was no answer.
        """
        try:
            return await self.client.invoke(address, command, timeout_s)
        except BrokerRefused as refusal:
            if refusal.code not in UNKNOWN_TO_BROKER:
                raise
        await self.client.beat_one(address)
        return await self.client.invoke(address, command, timeout_s)

    async def committed(self, queue: MessageQueue) -> LogicalOffset | None:
        """Return the offset that the group committed, or None if it never did."""
        fields = QueryOffsetFields(
            consumer_group=self.group, topic=queue.topic, queue_id=LogicalQueueId(queue.queue_id)
        )
        try:
            answer = await self._call(queue, RequestCode.QUERY_CONSUMER_OFFSET, fields)
        except BrokerRefused as refusal:
            if refusal.code == ResponseCode.QUERY_NOT_FOUND:
                return None
            raise
        return _known_offset(answer)

    async def commit(self, queue: MessageQueue, offset: LogicalOffset) -> None:
        """Commit *offset* for the group: every message before it is consumed."""
        fields = UpdateOffsetFields(
            consumer_group=self.group, topic=queue.topic, queue_id=LogicalQueueId(queue.queue_id), commit_offset=offset
        )
        await self._call(queue, RequestCode.UPDATE_CONSUMER_OFFSET, fields)

    async def offset_min(self, queue: MessageQueue) -> LogicalOffset:
        """Return the offset of the oldest message."""
        fields = QueueFields(topic=queue.topic, queue_id=queue.queue_id)
        return await self._offset(queue, RequestCode.GET_MIN_OFFSET, fields)

    async def offset_max(self, queue: MessageQueue) -> LogicalOffset:
        """Return the offset that the next message will get."""
        fields = QueueFields(topic=queue.topic, queue_id=queue.queue_id)
        return await self._offset(queue, RequestCode.GET_MAX_OFFSET, fields)

    async def offset_at(self, queue: MessageQueue, when: datetime) -> LogicalOffset:
        """Return the offset of the first message stored at or after *when*."""
        timestamp = int(when.timestamp() * 1000)
        fields = SearchOffsetFields(topic=queue.topic, queue_id=queue.queue_id, timestamp=timestamp)
        return await self._offset(queue, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, fields)

    async def offset_of(self, queue: MessageQueue, start: Start) -> LogicalOffset:
        """Return the offset that *start* stands for now."""
        if start == "earliest":
            return await self.offset_min(queue)
        if start == "latest":
            return await self.offset_max(queue)
        return await self.offset_at(queue, start)

    async def first_offset(self, queue: MessageQueue, start: Start) -> LogicalOffset:
        """Return the offset where a group without a committed offset begins: *start*, or 0 for a retry topic."""
        if queue.topic.startswith(RETRY_PREFIX):
            return LogicalOffset(0)  # A retry topic holds only the group's own messages: none of them may be skipped.
        return await self.offset_of(queue, start)

    async def members(self, topic: str) -> set[str]:
        """Return the ids of the group's live members: the union over all brokers of *topic*.

        Asks every broker. A broker that was just restarted knows only the members that have reconnected to it; trusting
        it alone would take queues away from live members.

        Raises:
            HoldfastError: no broker answered.
        """
        route = await self.client.route(topic)
        up = {
            broker.broker_name: route.any_address_of(broker.broker_name) for broker in route.extended_route.broker_datas
        }
        addresses = {name: address for name, address in up.items() if address is not None}
        brokers = {queue.broker_name for queue in route.readable} & addresses.keys() or set(addresses)
        if not brokers:
            raise RouteNotFound(f"no broker of {topic!r} is up")
        queries = (self._members_at(addresses[name]) for name in sorted(brokers))
        answers = await asyncio.gather(*queries, return_exceptions=True)
        lists = [answer for answer in answers if not isinstance(answer, BaseException)]
        for failure in answers:
            if isinstance(failure, BaseException) and not (lists and isinstance(failure, HoldfastError)):
                raise failure
        return set().union(*lists)

    async def _call(self, queue: MessageQueue, code: RequestCode, fields: msgspec.Struct) -> Command:
        """Ask the broker that serves *queue*. If the queue has moved, ask its new leader, within one timeout."""
        deadline_ms = monotonic_ms() + int(self.client.timeout_s * 1000)
        command = Command(code=code, fields=to_fields(fields) | {"bname": queue.broker_name})
        if is_mock_broker(queue.broker_name):
            command.fields[MAPPING_FIELD] = "1"
        rounds = 0
        while True:
            try:
                answer = await self.invoke(self.address(queue), command)
            except BrokerRefused as refusal:
                if not is_not_leader(refusal) or monotonic_ms() >= deadline_ms:
                    raise
            else:
                self.client.learn_leader(queue, leader_in(answer))
                return answer
            rounds += 1
            await self.client.refresh_leaders(queue.topic)
            await asyncio.sleep(backoff_ms(rounds) / 1000)

    async def _offset(self, queue: MessageQueue, code: RequestCode, fields: msgspec.Struct) -> LogicalOffset:
        found = _known_offset(await self._call(queue, code, fields))
        return LogicalOffset(0) if found is None else found  # Java brokers may not know a queue without messages.

    async def _members_at(self, address: str) -> list[str]:
        fields = to_fields(ConsumerGroupFields(consumer_group=self.group))
        command = Command(code=RequestCode.GET_CONSUMER_LIST_BY_GROUP, fields=fields)
        try:
            answer = await self.client.invoke(address, command)
        except BrokerRefused as refusal:
            log.debug("broker %s knows no member of %s: %s", address, self.group, refusal)
            return []
        return java_json.decode(answer.body, ConsumerList).consumer_id_list


def start_code(start: Start) -> ConsumeFromWhere:
    """Return *start* as a heartbeat encodes it."""
    if start == "earliest":
        return ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
    if start == "latest":
        return ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
    return ConsumeFromWhere.CONSUME_FROM_TIMESTAMP


def _known_offset(answer: Command) -> LogicalOffset | None:
    try:
        offset = from_fields(KnownOffsetAnswer, answer.fields).offset
    except BadField as error:
        raise RemoteProtocolError(f"answer cannot be read: {error}") from error
    return None if offset is None else LogicalOffset(offset)
