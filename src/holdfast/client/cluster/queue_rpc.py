"""Calls brokers for a consumer group: offsets, locks, members, sending a message back.

Each call goes to the master of the queue's broker; for a logical queue, to its leader. If a broker answers that it does
not know this client, the client sends it a heartbeat and repeats the call once. If a broker no longer leads the queue,
the call is repeated at the new leader.

A failed message goes back to its broker, which puts it into the group's retry topic. A record of a logical queue may
lie on any broker that ever led it, or on one that is to be removed: then the message itself is sent to the retry topic.
The same holds for a message of a batch whose broker cannot address single messages of it: Java's refuses them.

Awaits answers; the callers decide.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from datetime import datetime
from typing import Final, Literal, TypeVar

import msgspec

from holdfast.client.cluster.cluster_client import ClusterClient, monotonic_ms, now_ms
from holdfast.client.cluster.send_plan import backoff_ms, is_not_leader
from holdfast.client.messages.retry_message import RetryMessage, retry_of
from holdfast.model import property_names as names
from holdfast.model.errors import BrokerRefused, HoldfastError, RemoteProtocolError, RouteNotFound
from holdfast.model.message import ReceivedMessage, SendStatus
from holdfast.model.queue import MessageQueue
from holdfast.model.route import MASTER_ID
from holdfast.model.scope import is_mock_broker
from holdfast.model.topic import RETRY_PREFIX
from holdfast.wire.cluster.route import MAPPING_FIELD
from holdfast.wire.frames import java_json
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.frames.command import Command
from holdfast.wire.frames.fields import BadField, from_fields, to_fields
from holdfast.wire.records.inner_batch import is_inner_batch
from holdfast.wire.requests.heartbeat import INNER_BATCH_CAPABILITY, ConsumeFromWhere, ConsumerGroupFields, ConsumerList
from holdfast.wire.requests.offsets import (
    LockAnswer,
    LockBody,
    OffsetAnswer,
    QueryOffsetFields,
    QueueFields,
    SearchOffsetFields,
    SendBackFields,
    UpdateOffsetFields,
)
from holdfast.wire.requests.relay import leader_in

log = logging.getLogger("holdfast.client")

SEND_BACK_TIMEOUT_S: Final = 5.0
TO_DEAD_LETTER: Final = -1
_RETRY_BROKERS_MAX: Final = 3
_STORED: Final = frozenset(SendStatus)

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

_Answer = TypeVar("_Answer", bound=msgspec.Struct)


class LockOutcome(msgspec.Struct, frozen=True):
    """The result of a request for locks. If a broker did not answer, its queues are in neither set.

    Attributes:
        granted: Only this client may consume these queues.
        refused: Another client holds the locks of these queues.
    """

    granted: frozenset[MessageQueue] = frozenset()
    refused: frozenset[MessageQueue] = frozenset()


class QueueRpc:
    """The calls of one consumer group.

    Args:
        client: The connection to the cluster.
        group: The consumer group, as the wire knows it.
    """

    def __init__(self, client: ClusterClient, group: str) -> None:
        self._client = client
        self._group = group

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
        route = self._client.routes.find(queue.topic)
        if route is not None and route.leaders:
            # While the master is away, a replica answers reads for the logical queues that the master leads.
            return route.any_address_of(route.broker_of(queue), broker_id)
        found = None if route is None else route.any_address_of(queue.broker_name, broker_id)
        return found or self._client.routes.find_address(queue.broker_name)

    async def committed(self, queue: MessageQueue) -> int | None:
        """Return the offset that the group committed, or None if it never did."""
        fields = QueryOffsetFields(consumer_group=self._group, topic=queue.topic, queue_id=queue.queue_id)
        try:
            answer = await self._call(queue, RequestCode.QUERY_CONSUMER_OFFSET, fields)
        except BrokerRefused as refusal:
            if refusal.code == ResponseCode.QUERY_NOT_FOUND:
                return None
            raise
        offset = _read(answer, OffsetAnswer).offset
        return offset if offset >= 0 else None

    async def commit(self, queue: MessageQueue, offset: int) -> None:
        """Commit *offset* for the group: every message before it is consumed."""
        fields = UpdateOffsetFields(
            consumer_group=self._group, topic=queue.topic, queue_id=queue.queue_id, commit_offset=offset
        )
        await self._call(queue, RequestCode.UPDATE_CONSUMER_OFFSET, fields)

    async def offset_min(self, queue: MessageQueue) -> int:
        """Return the offset of the oldest message."""
        fields = QueueFields(topic=queue.topic, queue_id=queue.queue_id)
        return await self._offset(queue, RequestCode.GET_MIN_OFFSET, fields)

    async def offset_max(self, queue: MessageQueue) -> int:
        """Return the offset that the next message will get."""
        fields = QueueFields(topic=queue.topic, queue_id=queue.queue_id)
        return await self._offset(queue, RequestCode.GET_MAX_OFFSET, fields)

    async def offset_at(self, queue: MessageQueue, when: datetime) -> int:
        """Return the offset of the first message stored at or after *when*."""
        timestamp = int(when.timestamp() * 1000)
        fields = SearchOffsetFields(topic=queue.topic, queue_id=queue.queue_id, timestamp=timestamp)
        return await self._offset(queue, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, fields)

    async def offset_of(self, queue: MessageQueue, start: Start) -> int:
        """Return the offset that *start* stands for now."""
        if start == "earliest":
            return await self.offset_min(queue)
        if start == "latest":
            return await self.offset_max(queue)
        return await self.offset_at(queue, start)

    async def first_offset(self, queue: MessageQueue, start: Start) -> int:
        """Return the offset where a group without a committed offset begins: *start*, or 0 for a retry topic."""
        if queue.topic.startswith(RETRY_PREFIX):
            return 0  # A retry topic holds only the group's own messages: none of them may be skipped.
        return await self.offset_of(queue, start)

    async def members(self, topic: str) -> set[str]:
        """Return the ids of the group's live members: the union over all brokers of *topic*.

        Asks every broker. A broker that was just restarted knows only the members that have reconnected to it; trusting
        it alone would take queues away from live members.

        Raises:
            HoldfastError: no broker answered.
        """
        route = await self._client.route(topic)
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

    async def lock(self, queues: Iterable[MessageQueue]) -> LockOutcome:
        """Request the exclusive right to consume *queues*."""
        by_address = self._by_address(queues)
        outcomes = await asyncio.gather(
            *(self._lock_at(address, broker_queues) for address, broker_queues in by_address.items())
        )
        return LockOutcome(
            frozenset[MessageQueue]().union(*(outcome.granted for outcome in outcomes)),
            frozenset[MessageQueue]().union(*(outcome.refused for outcome in outcomes)),
        )

    async def unlock(self, queues: Iterable[MessageQueue]) -> None:
        """Release the locks of *queues*. If a broker does not answer, its locks expire."""
        by_address = self._by_address(queues)
        await asyncio.gather(
            *(self._unlock_at(address, broker_queues) for address, broker_queues in by_address.items())
        )

    async def send_back(self, message: ReceivedMessage, delay_level: int, retries_max: int | None) -> None:
        """Send a message back: its broker redelivers it later, or dead-letters it after too many deliveries.

        Args:
            message: The pulled message.
            delay_level: The delay; 0 lets the broker decide, -1 is the dead-letter topic at once.
            retries_max: How often it may be redelivered; None lets the broker decide.

        Raises:
            HoldfastError: no broker accepted the message.
        """
        address = None if is_mock_broker(message.queue.broker_name) else self.address(message.queue)
        if address is None or not self._can_send_back(message, address):
            await self._send_retry(retry_of(message, self._group, delay_level, retries_max))
            return
        fields = SendBackFields(
            offset=message.position,
            group=self._group,
            delay_level=delay_level,
            origin_msg_id=message.message_id,
            origin_topic=message.topic,
            max_reconsume_times=retries_max,
        )
        bname = {"bname": message.queue.broker_name}
        command = Command(code=RequestCode.CONSUMER_SEND_MSG_BACK, fields=to_fields(fields) | bname)
        await self._invoke(address, command, SEND_BACK_TIMEOUT_S)

    def _can_send_back(self, message: ReceivedMessage, address: str) -> bool:
        """Return whether the broker at *address* can find a message by its position and its id."""
        if not is_inner_batch(message.sys_flag):
            return True
        has_id = names.UNIQUE_KEY in message.properties
        return has_id and INNER_BATCH_CAPABILITY in self._client.capabilities_of(address)

    async def _send_retry(self, retry: RetryMessage) -> None:
        """Send a message to the retry topic of the group, on the first of its brokers that accepts it."""
        route = await self._client.publish_route(retry.topic)
        queues = self._client.random.sample(route.publishable, len(route.publishable))
        failure: HoldfastError = RouteNotFound(f"no broker accepts messages for the topic {retry.topic!r} now")
        for queue in queues[:_RETRY_BROKERS_MAX]:
            try:
                command = retry.command(queue, now_ms())
                answer = await self._client.ask(self.address(queue), command, SEND_BACK_TIMEOUT_S)
            except HoldfastError as error:
                failure = error
                continue
            if answer.code in _STORED:
                return
            failure = BrokerRefused(answer.code, answer.remark or "", address=self.address(queue))
        raise failure

    async def _call(self, queue: MessageQueue, code: RequestCode, fields: msgspec.Struct) -> Command:
        """Ask the broker that serves *queue*. If the queue has moved, ask its new leader, within one timeout."""
        deadline_ms = monotonic_ms() + int(self._client.timeout_s * 1000)
        command = Command(code=code, fields=to_fields(fields) | {"bname": queue.broker_name})
        if is_mock_broker(queue.broker_name):
            command.fields[MAPPING_FIELD] = "1"
        rounds = 0
        while True:
            try:
                answer = await self._invoke(self.address(queue), command)
            except BrokerRefused as refusal:
                if not is_not_leader(refusal) or monotonic_ms() >= deadline_ms:
                    raise
            else:
                self._client.learn_leader(queue, leader_in(answer))
                return answer
            rounds += 1
            await self._client.refresh_leaders(queue.topic)
            await asyncio.sleep(backoff_ms(rounds) / 1000)

    async def _invoke(self, address: str, command: Command, timeout_s: float | None = None) -> Command:
        try:
            return await self._client.invoke(address, command, timeout_s)
        except BrokerRefused as refusal:
            if refusal.code not in UNKNOWN_TO_BROKER:
                raise
        await self._client.beat_one(address)
        return await self._client.invoke(address, command, timeout_s)

    async def _offset(self, queue: MessageQueue, code: RequestCode, fields: msgspec.Struct) -> int:
        return _read(await self._call(queue, code, fields), OffsetAnswer).offset

    def _by_address(self, queues: Iterable[MessageQueue]) -> dict[str, list[MessageQueue]]:
        found: dict[str, list[MessageQueue]] = {}
        for queue in queues:
            try:
                found.setdefault(self.address(queue), []).append(queue)
            except RouteNotFound as error:
                log.warning("queue %s: %s", queue, error)
        return found

    async def _members_at(self, address: str) -> list[str]:
        fields = to_fields(ConsumerGroupFields(consumer_group=self._group))
        command = Command(code=RequestCode.GET_CONSUMER_LIST_BY_GROUP, fields=fields)
        try:
            answer = await self._client.invoke(address, command)
        except BrokerRefused as refusal:
            log.debug("broker %s knows no member of %s: %s", address, self._group, refusal)
            return []
        return java_json.decode(answer.body, ConsumerList).consumer_id_list

    async def _lock_at(self, address: str, queues: list[MessageQueue]) -> LockOutcome:
        try:
            answer = await self._invoke(address, self._lock_command(RequestCode.LOCK_BATCH_MQ, queues))
            granted = frozenset(queues) & set(java_json.decode(answer.body, LockAnswer).lockOKMQSet)
        except HoldfastError as error:
            log.warning("queues %s could not be locked: %s", queues, error)
            if is_not_leader(error):
                for topic in {queue.topic for queue in queues}:
                    await self._client.refresh_leaders(topic)
            return LockOutcome()
        return LockOutcome(granted, frozenset(queues) - granted)

    async def _unlock_at(self, address: str, queues: list[MessageQueue]) -> None:
        try:
            await self._client.invoke(address, self._lock_command(RequestCode.UNLOCK_BATCH_MQ, queues))
        except HoldfastError as error:
            log.warning("queues %s could not be unlocked: %s", queues, error)

    def _lock_command(self, code: RequestCode, queues: list[MessageQueue]) -> Command:
        body = LockBody(client_id=self._client.client_id, consumer_group=self._group, mq_set=queues)
        return Command(code=code, body=java_json.encode(body))


def start_code(start: Start) -> ConsumeFromWhere:
    """Return *start* as a heartbeat encodes it."""
    if start == "earliest":
        return ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
    if start == "latest":
        return ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
    return ConsumeFromWhere.CONSUME_FROM_TIMESTAMP


def _read(answer: Command, kind: type[_Answer]) -> _Answer:
    try:
        return from_fields(kind, answer.fields)
    except BadField as error:
        raise RemoteProtocolError(f"answer cannot be read: {error}") from error
