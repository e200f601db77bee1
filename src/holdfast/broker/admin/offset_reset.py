"""Resets the offsets of a group in a topic (222).

    members of 5.x or of other languages, or none   the offset is set; the next pull is answered with the new offset
    members of 4.x only                             the offset is set; the broker notifies them (220) and they move

A 4.x client waits ten seconds before it follows a pull answer; it follows 220 at once.

In a static topic, each broker resets the logical queues that it leads; a tool asks all brokers. If one of the queues is
being handed over, nothing is reset: its next leader may already have received the groups' offsets.
"""

from __future__ import annotations

from typing import Final

from holdfast.broker.consume.consumer_offsets import OffsetTable
from holdfast.broker.flow.request import Answer, Handlers, Refusal, Request
from holdfast.broker.mapping.segment_queries import SegmentQueries
from holdfast.broker.options import BrokerOptions
from holdfast.broker.tables.clients import Client, ClientTable
from holdfast.broker.tables.topics import TopicTable
from holdfast.machine.effects import Effect, SendBytes
from holdfast.model.queue import MessageQueue
from holdfast.model.scope import mock_broker
from holdfast.store.message_store import MessageStore
from holdfast.wire.frames import java_json
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.frames.command import ONE_WAY, Command, encode_command
from holdfast.wire.frames.fields import from_fields, to_fields
from holdfast.wire.requests.admin import CppOffset, CppOffsets, OffsetMap, ResetOffsetFields, offset_map

_OBEYS_PULLS_VERSION: Final = 413  # 5.0.0
_RESET_VERSION: Final = 28  # 3.0.7: older clients do not support 220


class OffsetResetHandler:
    """Handles offset resets of tools."""

    def __init__(
        self,
        options: BrokerOptions,
        topics: TopicTable,
        clients: ClientTable,
        offsets: OffsetTable,
        store: MessageStore,
        segment_queries: SegmentQueries,
    ) -> None:
        self._options = options
        self._topics = topics
        self._clients = clients
        self._offsets = offsets
        self._store = store
        self._segment_queries = segment_queries

    def handlers(self) -> Handlers:
        """Return the handlers of this component, by request code."""
        return {RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: self.reset}

    async def reset(self, request: Request) -> Answer:
        """Answer 222: reset a group, and return the new offsets."""
        fields = from_fields(ResetOffsetFields, request.command.fields)
        config = self._topics.find(fields.topic)
        if config is None:
            return Refusal(ResponseCode.TOPIC_NOT_EXIST, f"Topic {fields.topic} does not exist")
        mapping = self._segment_queries.mappings.find(fields.topic)
        known = (
            range(config.read_queues) if mapping is None else self._segment_queries.mappings.led_queues(fields.topic)
        )
        if fields.queue_id >= 0 and fields.queue_id not in known:
            return Refusal(ResponseCode.INVALID_PARAMETER, f"topic {fields.topic} has no queue {fields.queue_id} here")
        name = self._options.name if mapping is None else mock_broker(mapping.scope)
        targets: dict[MessageQueue, int] = {}
        for queue_id in known if fields.queue_id < 0 else (fields.queue_id,):
            target = await self._find_target(fields, queue_id)
            if isinstance(target, Refusal):
                return target
            targets[MessageQueue(fields.topic, name, queue_id)] = target
        moving = [queue.queue_id for queue in targets if mapping is not None and not self._is_open(queue)]
        if moving:
            numbers = ", ".join(map(str, moving))
            remark = f"queues {numbers} of {fields.topic} are being handed over; try again in a moment"
            return Refusal(ResponseCode.SYSTEM_BUSY, remark)
        membership = self._clients.find_membership(fields.group)
        members = [] if membership is None else list(membership.members.values())
        obeys_push = bool(members) and all(_obeys_push(client) for client in members)
        for queue, target in targets.items():
            self._offsets.reset(fields.group, queue.topic, queue.queue_id, target, deliver=not obeys_push)
        if obeys_push:
            request.effects += [_to_notification(client, fields, targets) for client in members]
        return request.answer(body=java_json.encode(OffsetMap(offset_table=offset_map(targets))))

    def _is_open(self, queue: MessageQueue) -> bool:
        """Return whether a logical queue is open here, so that no next leader has received the groups' offsets."""
        return self._segment_queries.mappings.placement(queue.topic, queue.queue_id).state == "open"

    async def _find_target(self, fields: ResetOffsetFields, queue_id: int) -> int | Refusal:
        """Return the group's new offset in one queue."""
        logical = self._segment_queries.find_led(fields.topic, queue_id)
        queue = self._store.find_queue(fields.topic, queue_id) if logical is None else None
        if logical is not None:
            offset_min = await self._segment_queries.fetch_minimum(fields.topic, logical)
            offset_max = self._segment_queries.maximum(fields.topic, logical)
        else:
            offset_min, offset_max = (queue.offset_min, queue.offset_max) if queue is not None else (0, 0)
        if fields.offset >= 0:
            if not offset_min <= fields.offset <= offset_max:
                return Refusal(
                    ResponseCode.SYSTEM_ERROR,
                    f"Target offset {fields.offset} not in consume queue range [{offset_min}-{offset_max}]",
                )
            return fields.offset
        target = offset_max
        if fields.timestamp >= 0 and logical is not None:
            target = await self._segment_queries.search(fields.topic, logical, fields.timestamp)
        elif fields.timestamp >= 0 and queue is not None:
            target = await self._store.offset_at_time(queue, fields.timestamp)
        current = self._offsets.find(fields.group, fields.topic, queue_id)
        if fields.is_force or current is None:
            return target
        return min(target, current)  # Without force, no message is skipped.


def _obeys_push(client: Client) -> bool:
    return client.language == "JAVA" and _RESET_VERSION <= client.version < _OBEYS_PULLS_VERSION


def _to_notification(client: Client, fields: ResetOffsetFields, targets: dict[MessageQueue, int]) -> Effect:
    """Return the notification (220) to one member."""
    if client.language == "CPP":
        rows = [
            CppOffset(topic=queue.topic, broker_name=queue.broker_name, queue_id=queue.queue_id, offset=offset)
            for queue, offset in targets.items()
        ]
        body = java_json.encode(CppOffsets(offset_table=rows))
    else:
        body = java_json.encode(OffsetMap(offset_table=offset_map(targets)))
    header = ResetOffsetFields(topic=fields.topic, group=fields.group, timestamp=fields.timestamp)
    command = Command(
        code=RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
        flag=ONE_WAY,
        fields=to_fields(header),
        body=body,
        serializer=client.serializer,
    )
    return SendBytes(client.channel, [encode_command(command)])
