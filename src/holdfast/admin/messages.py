"""Find stored messages by key, by the producer's message id, or by the broker's message id."""

from __future__ import annotations

from typing import Final

import msgspec

from holdfast.admin.cluster_access import Broker, ClusterAccess, NotFound, gather
from holdfast.client.messages.unpacking import read_messages
from holdfast.model import property_names as names
from holdfast.model.errors import BrokerRefused, HoldfastError, RemoteProtocolError
from holdfast.model.message import ReceivedMessage
from holdfast.model.queue import LogicalQueueId
from holdfast.model.route import MASTER_ID
from holdfast.model.scope import mock_broker, to_shown_broker
from holdfast.model.topic import DEAD_LETTER_PREFIX, RETRY_PREFIX
from holdfast.wire.cluster.mapping import from_info
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.records.inner_batch import BatchSupport
from holdfast.wire.records.message_id import parse_message_id
from holdfast.wire.requests.offsets import QueryMessageFields, ViewMessageFields

_END_OF_TIME: Final = 0x7FFFFFFFFFFFFFFF


class FoundMessage(msgspec.Struct, frozen=True):
    """A message and the broker that has it.

    Attributes:
        queue_broker: The broker name of its queue; for a static topic the logical broker name of all its brokers.
    """

    broker: str
    message: ReceivedMessage
    queue_broker: str = ""


class Origin(msgspec.Struct, frozen=True, omit_defaults=True):
    """The original topic and queue of a message that its group failed to consume.

    Attributes:
        id: Its message id in *topic*.
        broker: The broker name of its queue; None, like queue and offset, if it is no longer stored.
    """

    topic: str
    id: str | None = None
    broker: str | None = None
    queue: LogicalQueueId | None = None
    offset: int | None = None


class Messages:
    """Operations on stored messages."""

    def __init__(self, access: ClusterAccess) -> None:
        self._access = access

    async def by_key(
        self, topic: str, key: str, *, start_ms: int = 0, end_ms: int = _END_OF_TIME, count_max: int = 64
    ) -> list[FoundMessage]:
        """Return the messages of *topic* that carry *key*, oldest first.

        Raises:
            RouteNotFound: there is no such topic.
        """
        found = await self._search_index(topic, key, start_ms, end_ms, count_max, unique=False)
        return await self._with_queue_brokers(topic, [each for each in found if key in each.message.keys][:count_max])

    async def by_id(self, topic: str, message_id: str) -> list[FoundMessage]:
        """Return the message with that id. A broker's id contains the position; a producer's id is searched for.

        Raises:
            NotFound: there is no such message.
        """
        found = await self._find_by_position(topic, message_id)
        if not found:
            found = await self._search_index(topic, message_id, 0, _END_OF_TIME, 32, unique=True)
            found = [each for each in found if each.message.message_id == message_id]
        if not found:
            raise NotFound(f"no message {message_id} in topic {topic!r}")
        return await self._with_queue_brokers(topic, found)

    async def find_origin(self, message: ReceivedMessage) -> Origin | None:
        """Return the origin of a dead letter or of a retried message; None for any other message."""
        topic = message.properties.get(names.RETRY_TOPIC)
        if topic is None or not message.queue.topic.startswith((RETRY_PREFIX, DEAD_LETTER_PREFIX)):
            return None
        message_id = message.properties.get(names.ORIGIN_MESSAGE_ID)
        if message_id is None:
            return Origin(topic)
        try:
            (found, *_) = await self.by_id(topic, message_id)
        except HoldfastError:  # expired, of a deleted topic, or on a broker that is down
            return Origin(topic, message_id)
        return Origin(
            topic,
            message_id,
            to_shown_broker(found.queue_broker),
            LogicalQueueId(found.message.queue.queue_id),
            found.message.offset,
        )

    async def _with_queue_brokers(self, topic: str, found: list[FoundMessage]) -> list[FoundMessage]:
        """Return *found* with the broker names of their queues."""
        reports = await self._access.find_route_reports(topic) if found else {}
        logical_broker = next((mock_broker(from_info(report).scope) for report in reports.values()), None)
        return [msgspec.structs.replace(each, queue_broker=logical_broker or each.broker) for each in found]

    async def _find_by_position(self, topic: str, message_id: str) -> list[FoundMessage]:
        try:
            parsed_id = parse_message_id(message_id)
        except RemoteProtocolError:
            return []
        # An id may name any host: only brokers of this cluster are dialled.
        brokers = {broker.address: broker for broker in await self._access.brokers()}
        broker = brokers.get(parsed_id.address)
        if broker is None:
            return []
        header = ViewMessageFields(offset=parsed_id.position, topic=topic, batch_support=BatchSupport.REQUESTED.value)
        try:
            answer = await self._access.invoke(broker.address, RequestCode.VIEW_MESSAGE_BY_ID, header)
        except BrokerRefused:
            return []  # no record begins at that position: it may still be a producer's id
        return [FoundMessage(broker.name, message) for message in read_messages(answer.body, None)]

    async def _search_index(
        self, topic: str, key: str, start_ms: int, end_ms: int, count_max: int, *, unique: bool
    ) -> list[FoundMessage]:
        header = QueryMessageFields(
            topic=topic,
            key=key,
            max_num=count_max,
            begin_timestamp=start_ms,
            end_timestamp=end_ms,
            index_type="U" if unique else "K",
            unique_key=unique,
            reads_mappings=True,
        )

        async def query(broker: Broker) -> list[FoundMessage]:
            try:
                answer = await self._access.invoke(broker.address, RequestCode.QUERY_MESSAGE, header)
            except BrokerRefused as refusal:
                if refusal.code == ResponseCode.QUERY_NOT_FOUND:
                    return []
                raise
            return [FoundMessage(broker.name, message) for message in read_messages(answer.body, None)]

        route = await self._access.get_route(topic)
        brokers = [
            Broker(data.broker_name, data.cluster, MASTER_ID, data.broker_addrs[MASTER_ID])
            for data in route.broker_datas
            if MASTER_ID in data.broker_addrs
        ]
        found = [each for part in await gather(brokers, query) for each in part]
        return sorted(found, key=lambda each: (each.message.stored_ms, each.broker, each.message.position))
