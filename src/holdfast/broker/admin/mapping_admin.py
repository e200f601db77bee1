"""Inspects and repairs the mappings of logical queues on this broker.

    7007                 returns all mappings and moves
    7009, 7014, 7015     remove mappings, segments, or the segments of a removed broker
    7016                 sets whether this broker gets more queues
    7033                 returns everything to a replica

They only remove data that is no longer read, or that the operator names: a leader is never removed as a side effect.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from holdfast.broker.failover.offset_floors import OffsetFloors
from holdfast.broker.flow.awaitables import Procedure, Synced
from holdfast.broker.flow.refusals import refuse_on_error
from holdfast.broker.flow.request import Answer, Handlers, Request
from holdfast.broker.mapping.cluster_view import ClusterView
from holdfast.broker.mapping.mapping_journal import MappingSnapshot, describe
from holdfast.broker.mapping.mapping_table import Mappings
from holdfast.broker.move.move_source import MoveSource
from holdfast.broker.tables.topics import TopicTable
from holdfast.machine.component import Component
from holdfast.machine.turn import Turn
from holdfast.model.errors import MappingRefused
from holdfast.model.mapping import LogicalQueue, TopicMapping, next_epoch
from holdfast.model.queue import LogicalQueueId
from holdfast.store.message_store import MessageStore
from holdfast.wire.cluster.mapping import MappedTopic, from_number, to_detail
from holdfast.wire.frames.codes import RequestCode
from holdfast.wire.requests.moves import (
    DeleteMappingFields,
    DiscardRequest,
    DrainRequest,
    ForgetBrokerRequest,
    MappingsAnswer,
    decode_body,
    encode_body,
)


class MappingAdmin(Component):
    """Handles mapping requests of operators."""

    def __init__(
        self,
        store: MessageStore,
        mappings: Mappings,
        view: ClusterView,
        topics: TopicTable,
        floors: OffsetFloors,
        move_source: MoveSource,
        delete_topic: Callable[[Request, str], Procedure[Answer]],
        turn: Turn,
    ) -> None:
        self._store = store
        self._mappings = mappings
        self._view = view
        self._topics = topics
        self._floors = floors
        self._move_source = move_source
        self._delete_topic = delete_topic
        self._turn = turn

    def handlers(self) -> Handlers:
        """Return the handlers of this component, by request code."""
        return {
            RequestCode.GET_MAPPINGS: self.get_mappings,
            RequestCode.DELETE_MAPPING: refuse_on_error(self._delete),
            RequestCode.GET_MAPPING_SNAPSHOT: self.get_snapshot,
            RequestCode.DISCARD_SEGMENTS: refuse_on_error(self._discard),
            RequestCode.FORGET_BROKER: refuse_on_error(self._forget_broker),
            RequestCode.SET_DRAINING: refuse_on_error(self._set_draining),
        }

    async def get_mappings(self, request: Request) -> Answer:
        """Answer 7007 once the mappings are synced: a broker that learns of a newer leader gives up its own lead."""
        broker = self._mappings.broker
        moves = [state.move for state in self._mappings.moves().values() if state.move.source == broker]
        topics = [self._to_mapped(mapping) for _, mapping in sorted(self._mappings.topics().items())]
        body = MappingsAnswer(topics=topics, moves=moves, draining=self._mappings.is_draining)
        answer = request.answer(body=encode_body(body))
        if self._mappings.announced() != self._mappings.topics():
            await Synced(self._mappings.log_end)
        return answer

    async def get_snapshot(self, request: Request) -> Answer:
        """Answer 7033: return the synced state of all mappings to a replica."""
        mappings = self._mappings
        snapshot = MappingSnapshot(
            position=mappings.log_end,
            topics={name: describe(mapping, self._topics.find(name)) for name, mapping in mappings.topics().items()},
            moves=mappings.moves(),
            draining=mappings.is_draining,
        )
        answer = request.answer(body=encode_body(snapshot))
        await Synced(mappings.log_end)
        return answer

    def _to_mapped(self, mapping: TopicMapping) -> MappedTopic:
        config = self._topics.find(mapping.topic)
        hosted = {} if config is None else {name: getattr(config, name) for name in config.__struct_fields__}
        return MappedTopic(**({"name": mapping.topic} | hosted | {"mapping": to_detail(mapping)}))

    async def _delete(self, request: Request) -> Answer:
        """Answer 7009: delete the mapping of a logical queue, or the whole topic.

        The topic is deleted with its mapping: otherwise it would be a normal topic and accept the sends of stale
        clients.
        """
        fields = request.header_as(DeleteMappingFields)
        mapping = self._mappings.find(fields.topic)
        if mapping is None:
            return request.answer()  # Tools ask every broker.
        if moving := [number for number in mapping.queues if self._mappings.find_move(fields.topic, number)]:
            raise MappingRefused(
                "one move at a time", f"logical queue {moving[0]} of {fields.topic} is being moved: wait, or cancel it"
            )
        if fields.queue is not None:
            await Synced(self._forget_queue(mapping, fields.queue))
            self._turn.spawn(self._move_source.announce_epoch(fields.topic))
            return request.answer()
        if mapping.floors:
            await self._view.refresh(fields.topic)
        if needed := list(self._find_needed_floors(mapping)):
            raise MappingRefused(
                "never twice",
                f"{self._mappings.broker} alone knows which offsets logical queue {needed[0]} of {fields.topic} has"
                f" used, and no broker leads it: set it first with `holdfast queue set {fields.topic} {needed[0]}`, or"
                " delete the topic everywhere",
            )
        if occupied := [number for number, queue in mapping.queues.items() if self._has_messages(queue)]:
            raise MappingRefused(
                "messages first",
                f"{self._mappings.broker} holds messages of logical queue {occupied[0]} of {fields.topic}: move the"
                " queue and let them expire, or delete the topic everywhere",
            )
        return await self._delete_topic(request, fields.topic)

    def _forget_queue(self, mapping: TopicMapping, number: LogicalQueueId) -> int:
        """Delete the mapping of one queue and record its floor. Return the position to wait for with `Synced`.

        The queue accepts no sends from this event on, so the floor is above every send that was ever accepted.
        """
        if number not in mapping.queues:
            return self._mappings.log_end
        log = self._mappings.placement(mapping.topic, number).queue_index
        position = self._change(self._floors.retire(mapping, number))
        self._move_source.wake_pulls([] if log is None else [log])
        return position

    def _find_needed_floors(self, mapping: TopicMapping) -> Iterable[int]:
        """Return the forgotten queues that no broker has led since, as far as is known here."""
        for number, floor in mapping.floors.items():
            if self._view.leader_above(mapping.topic, number, floor.generation) is None:
                yield number

    def _has_messages(self, queue: LogicalQueue) -> bool:
        return any(segment.broker == self._mappings.broker for segment in queue.readable)

    async def _discard(self, request: Request) -> Answer:
        """Answer 7014: expire a closed segment of a queue although its records still exist.

        Its broker is notified after the leader and drops the records: they are not read any more.
        """
        order = decode_body(request.command.body, DiscardRequest)
        mapping, queue = self._find_queue(order.topic, order.queue)
        generation = from_number(order.generation)
        segment = queue.find(generation)
        if segment is None:
            raise MappingRefused(
                "expire existing segments", f"logical queue {order.queue} has no generation-{order.generation} segment"
            )
        expired = queue.expire(generation, segment.queue_id)
        if expired != queue:
            await Synced(self._change(mapping.with_queues(expired)))
            self._turn.spawn(self._move_source.announce_epoch(order.topic))
        if segment.broker == self._mappings.broker:
            self._store.erase_queue(order.topic, segment.queue_id)
        return request.answer()

    async def _set_draining(self, request: Request) -> Answer:
        """Answer 7016 once it is synced: set whether this broker gets more queues."""
        draining = decode_body(request.command.body, DrainRequest).draining
        if draining != self._mappings.is_draining:
            await Synced(self._mappings.set_draining(draining))
        return request.answer()

    async def _forget_broker(self, request: Request) -> Answer:
        """Answer 7015: remove the expired segments of a removed broker from the mappings."""
        removed = {decode_body(request.command.body, ForgetBrokerRequest).broker}
        pruned: list[TopicMapping] = []
        for mapping in self._mappings.topics().values():
            # Prune only led queues: after a move, only the leader knows which segments expired; other records may be
            # stale.
            queues = [mapping.queues[number].prune(removed) for number in mapping.led_queues]
            changed = [queue for queue in queues if queue != mapping.queues[queue.queue]]
            forgotten = mapping.forget_holders(removed)
            if changed or forgotten != mapping:
                dropped = [queue.queue for queue in changed if not queue.segments]
                pruned.append(forgotten.with_queues(*changed).without_queues(*dropped))
        for mapping in pruned:  # Only after all topics have been validated.
            self._change(mapping)
        await Synced(self._mappings.log_end)
        for mapping in pruned:
            self._turn.spawn(self._move_source.announce_epoch(mapping.topic))
        self._view.forget_broker(*removed)
        return request.answer()

    def _find_queue(self, topic: str, number: LogicalQueueId) -> tuple[TopicMapping, LogicalQueue]:
        mapping = self._mappings.find(topic)
        if mapping is None or number not in mapping.queues:
            raise MappingRefused(
                "recorded queues", f"{self._mappings.broker} has no record of logical queue {number} of {topic}"
            )
        return mapping, mapping.queues[number]

    def _change(self, mapping: TopicMapping) -> int:
        now_ms = self._turn.now_ms
        changed = msgspec.structs.replace(mapping, epoch=next_epoch(mapping.epoch, now_ms))
        return self._mappings.change(changed)
