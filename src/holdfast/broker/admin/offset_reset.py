"""Resets the offsets of a group in a topic (222).

    members of 5.x or of other languages, or none   the offset is set; the next pull is answered with the new offset
    members of 4.x only                             the offset is set; the broker notifies them (220) and they move

A 4.x client waits ten seconds before it follows a pull answer; it follows 220 at once.

In a static topic, each broker resets the logical queues that it leads; a tool asks all brokers. If one of the queues is
being handed over, nothing is reset: its next leader may already have received the groups' offsets.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from holdfast.broker.consume.consumer_offsets import OffsetTable
from holdfast.broker.flow.request import Answer, Handlers, Refusal, Request
from holdfast.broker.mapping.queue_view import Queues, QueueView
from holdfast.broker.tables.clients import Client, ClientTable
from holdfast.broker.tables.topics import TopicTable
from holdfast.machine.component import Component
from holdfast.machine.turn import Turn
from holdfast.model.queue import LogicalOffset, LogicalQueueId, MessageQueue
from holdfast.wire.frames import java_json
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.frames.command import Command
from holdfast.wire.frames.fields import to_fields
from holdfast.wire.requests.admin import CppOffset, CppOffsets, OffsetMap, ResetOffsetFields, offset_map

_OBEYS_PULLS_VERSION: Final = 413  # 5.0.0
_RESET_VERSION: Final = 28  # 3.0.7: older clients do not support 220


class OffsetResetHandler(Component):
    """Handles offset resets of tools."""

    def __init__(
        self,
        topics: TopicTable,
        clients: ClientTable,
        offsets: OffsetTable,
        queues: Queues,
        turn: Turn,
    ) -> None:
        self._turn = turn
        self._topics = topics
        self._clients = clients
        self._offsets = offsets
        self._queues = queues

    def handlers(self) -> Handlers:
        """Return the handlers of this component, by request code."""
        return {RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: self.reset}

    async def reset(self, request: Request) -> Answer:
        """Answer 222: reset a group, and return the new offsets."""
        fields = request.header_as(ResetOffsetFields)
        if self._topics.find(fields.topic) is None:
            return Refusal(ResponseCode.TOPIC_NOT_EXIST, f"Topic {fields.topic} does not exist")
        views = self._queues.readable(fields.topic)
        if fields.queue_id is not None:
            views = [view for view in views if view.number == fields.queue_id]
            if not views:
                remark = f"topic {fields.topic} has no queue {fields.queue_id} here"
                return Refusal(ResponseCode.INVALID_PARAMETER, remark)
        targets: dict[MessageQueue, LogicalOffset] = {}
        for view in views:
            target = await self._find_target(fields, view)
            if isinstance(target, Refusal):
                return target
            targets[view.name] = target
        moving = [view.number for view in views if not self._queues.is_settled(view)]
        if moving:
            numbers = ", ".join(map(str, moving))
            remark = f"queues {numbers} of {fields.topic} are being handed over; try again in a moment"
            return Refusal(ResponseCode.SYSTEM_BUSY, remark)
        membership = self._clients.find_membership(fields.group)
        members = [] if membership is None else list(membership.members.values())
        obeys_push = bool(members) and all(_obeys_push(client) for client in members)
        for queue, target in targets.items():
            self._offsets.reset(
                fields.group, queue.topic, LogicalQueueId(queue.queue_id), target, deliver=not obeys_push
            )
        if obeys_push:
            for client in members:
                self._notify(client, fields, targets)
        return request.answer(body=java_json.encode(OffsetMap(offset_table=offset_map(targets))))

    async def _find_target(self, fields: ResetOffsetFields, view: QueueView) -> LogicalOffset | Refusal:
        """Return the group's new offset in one queue."""
        offset_min, offset_max = await view.fetch_min(), view.offset_max
        if fields.offset is not None:
            if not offset_min <= fields.offset <= offset_max:
                return Refusal(
                    ResponseCode.SYSTEM_ERROR,
                    f"Target offset {fields.offset} not in consume queue range [{offset_min}-{offset_max}]",
                )
            return LogicalOffset(fields.offset)
        target = offset_max if fields.timestamp is None else await view.offset_at_time(fields.timestamp)
        current = self._offsets.find(fields.group, fields.topic, view.number)
        if fields.is_force or current is None:
            return target
        return min(target, current)  # Without force, no message is skipped.

    def _notify(self, client: Client, fields: ResetOffsetFields, targets: Mapping[MessageQueue, int]) -> None:
        """Send the notification (220) to one member."""
        if client.language == "CPP":
            rows = [
                CppOffset(topic=queue.topic, broker_name=queue.broker_name, queue_id=queue.key[1], offset=offset)
                for queue, offset in targets.items()
            ]
            body = java_json.encode(CppOffsets(offset_table=rows))
        else:
            body = java_json.encode(OffsetMap(offset_table=offset_map(targets)))
        header = ResetOffsetFields(topic=fields.topic, group=fields.group, timestamp=fields.timestamp)
        command = Command(code=RequestCode.RESET_CONSUMER_CLIENT_OFFSET, fields=to_fields(header), body=body)
        client.notify(self._turn, command)


def _obeys_push(client: Client) -> bool:
    return client.language == "JAVA" and _RESET_VERSION <= client.version < _OBEYS_PULLS_VERSION
