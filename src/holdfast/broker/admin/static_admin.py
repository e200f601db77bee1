"""Creates and changes static topics as RocketMQ's tools request it (513).

    the tool's mapping ─> contradicts recorded history? ─> recorded, topic changed, registered, answered

    undecided segment here            prepared: no sends are accepted until its start offset is known
    queue here, next segment remote   handed over to that broker at the exact offset; if it cannot do that, sealed
    offset for a decided segment      acknowledged and ignored: the queue is open there from its exact end
    queue without a leader            opened here at or above every offset that it ever used (`offset_floors.py`)

Recorded history is immutable: a tool never changes existing segments, ends or decided offsets.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Final

import msgspec

from holdfast.broker.consume.consumer_offsets import OffsetTable
from holdfast.broker.failover.offset_floors import FloorFinding, OffsetFloors, raise_to_floor
from holdfast.broker.flow.awaitables import Procedure, Synced
from holdfast.broker.flow.request import Answer, Handlers, Refusal, Request
from holdfast.broker.mapping.cluster_view import ClusterView
from holdfast.broker.mapping.mapping_journal import MoveState
from holdfast.broker.mapping.mapping_table import Mappings
from holdfast.broker.move.move_payload import MovePayload
from holdfast.broker.naming.registration import Registrar
from holdfast.broker.tables.topics import TopicTable, find_topic_fault
from holdfast.machine.component import Component
from holdfast.model.errors import MappingRefused, RemoteProtocolError
from holdfast.model.mapping import LogicalQueue, Segment, TopicMapping, accept_update, check
from holdfast.model.queue import LogicalQueueId
from holdfast.model.segment import is_newer
from holdfast.model.topic import TopicConfig
from holdfast.wire.cluster.mapping import MappingDetail, decode, from_detail
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.requests.admin import CreateTopicFields, parse_attributes
from holdfast.wire.requests.moves import MoveRequest

MoveQueues = Callable[[MoveRequest], Procedure[bool]]
"""Moves queues to another broker; returns False if that fails."""

_REFUSED: Final = ResponseCode.INVALID_PARAMETER


class StaticAdmin(Component):
    """Handles changes of static topics by tools."""

    def __init__(
        self,
        topics: TopicTable,
        mappings: Mappings,
        offsets: OffsetTable,
        registrar: Registrar,
        view: ClusterView,
        floors: OffsetFloors,
        payload: MovePayload,
        move_queues: MoveQueues,
    ) -> None:
        self._topics = topics
        self._mappings = mappings
        self._offsets = offsets
        self._registrar = registrar
        self._view = view
        self._floors = floors
        self._payload = payload
        self._move_queues = move_queues

    def handlers(self) -> Handlers:
        """Return the handlers of this component, by request code."""
        return {RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC: self.put}

    async def put(self, request: Request) -> Answer:
        """Answer 513 once the mapping is synced, queues that leave are handed over, and name servers know it."""
        fields = request.header_as(CreateTopicFields)
        if self._topics.find(fields.topic) is None:
            await self._view.refresh_topics([fields.topic])  # The answers also contain deletion markers.
        new_queues: list[LogicalQueueId] = []
        try:
            proposed = from_detail(decode(request.command.body, MappingDetail))
            accepted = self._accept(fields.topic, proposed)
            self._configure(fields, accepted)  # Fail before other brokers are asked.
            new_queues = self._find_new(accepted)
            self._floors.claim(fields.topic, new_queues)
            findings = await self._floors.find(proposed, new_queues) if new_queues else {}
            if (before := self._mappings.find(fields.topic)) is not None and _is_repetition(before, proposed):
                return request.answer()
            position = self._record(fields, proposed, findings)
            self._topics.deletions.lift(fields.topic)
        except (MappingRefused, RemoteProtocolError) as error:
            return Refusal(_REFUSED, str(error))
        finally:
            self._floors.withdraw_claim(fields.topic, new_queues)
        await Synced(position)
        for target, queues in self._leaving(fields.topic).items():
            await self._move_away(MoveRequest(topic=fields.topic, queues=queues, target=target))
        return self._registrar.answer_registered(request, request.answer())

    def _accept(self, topic: str, proposed: TopicMapping) -> TopicMapping:
        """Validate a tool's mapping *proposed*; return the resulting mapping of the topic."""
        if proposed.topic != topic:
            raise MappingRefused("own record", f"the mapping of {proposed.topic} was sent for {topic}")
        check(proposed, owner=self._mappings.broker, cluster=self._mappings.cluster)
        known = self._mappings.find(topic)
        if known is None:
            return msgspec.structs.replace(proposed, floors={})  # Tools do not know the floors of this broker.
        return proposed if _is_repetition(known, proposed) else accept_update(known, proposed)

    def _record(
        self, fields: CreateTopicFields, proposed: TopicMapping, findings: Mapping[LogicalQueueId, FloorFinding]
    ) -> int:
        """Record a tool's mapping and create or change the topic. Return the position to wait for with `Synced`."""
        before, accepted = self._mappings.find(fields.topic), self._accept(fields.topic, proposed)
        # A queue that was recorded while other brokers were asked is open already.
        new_queues = [number for number in self._find_new(accepted) if number in findings]
        ends = self._mappings.find_ends(fields.topic, [accepted.queues[number] for number in new_queues])
        raised = [
            raise_to_floor(fields.topic, queue, findings[queue.queue], ends.get(queue.leader.queue_id, 0))
            for queue in map(accepted.queues.__getitem__, new_queues)
        ]
        accepted = accepted.with_queues(*raised)
        config = self._configure(fields, accepted)
        state = self._find_payload(accepted, new_queues, findings)
        position = self._mappings.change(accepted, config=config, move=state)
        if before is None and self._topics.find(fields.topic) is not None:
            # A normal topic becomes static: committed offsets refer to physical queues.
            self._offsets.adopt_physical(self._mappings, fields.topic)
        self._payload.replace_offsets(state)
        self._topics.put(config)
        self._topics.changed.discard(fields.topic)  # It is registered once its record is synced.
        return position

    # Queues that begin here.

    def _find_new(self, accepted: TopicMapping) -> list[LogicalQueueId]:
        """Return the queues that this mapping opens here, and whose start must be above every used offset."""
        known = self._mappings.find(accepted.topic)
        new_queues = []
        for number, queue in accepted.queues.items():
            leader = queue.leader
            own = None if known is None or number not in known.queues else known.queues[number].find(leader.generation)
            is_known = own is not None and own.is_decided
            if leader.broker == self._mappings.broker and leader.is_open and not is_known:
                new_queues.append(queue.queue)
        return new_queues

    def _find_payload(
        self,
        accepted: TopicMapping,
        new_queues: Collection[LogicalQueueId],
        findings: Mapping[LogicalQueueId, FloorFinding],
    ) -> MoveState | None:
        """Return a move state with the groups' offsets in queues that begin again, or None if there are no offsets."""
        known = [found for number in new_queues if (found := findings[number].offsets) is not None]
        queues = [accepted.queues[found.queue] for found in known]
        return self._payload.build_state(accepted, queues, known, reason="set again")

    def _configure(self, fields: CreateTopicFields, mapping: TopicMapping) -> TopicConfig:
        """Return the topic's configuration: a physical queue for every segment, and never fewer than before."""
        if self._topics.is_system(fields.topic):
            raise MappingRefused("system topics", f"The topic[{fields.topic}] is conflict with system topic.")
        known = self._topics.find(fields.topic)
        added, removed = parse_attributes(fields.attributes)  # RocketMQ's tool sends none.
        attributes = added if known is None else known.attributes | added
        lowest = 0 if known is None else max(known.read_queues, known.write_queues)
        needed = mapping.next_physical_queue(self._mappings.broker, lowest)
        config = TopicConfig(
            name=fields.topic,
            read_queues=max(needed, fields.read_queue_nums),
            write_queues=max(needed, fields.write_queue_nums),
            permission=fields.perm,
            filter_type=fields.topic_filter_type,
            sys_flag=fields.topic_sys_flag,
            order=fields.order,
            attributes={name: value for name, value in attributes.items() if name not in removed},
        )
        fault = find_topic_fault(config) or self._topics.find_kind_fault(config)
        if fault is not None:
            raise MappingRefused("hosted topics", fault)
        return config

    # Queues that a tool moves to another broker.

    def _leaving(self, topic: str) -> dict[str, list[LogicalQueueId]]:
        """Return, by broker, the queues that are open here and have an undecided segment on another broker."""
        mapping = self._mappings.find(topic)
        leaving: dict[str, list[LogicalQueueId]] = {}
        for number, queue in {} if mapping is None else mapping.queues.items():
            prepared = queue.prepared
            is_elsewhere = prepared is not None and prepared.broker != self._mappings.broker
            if prepared is not None and is_elsewhere and self._mappings.placement(topic, number).state == "open":
                leaving.setdefault(prepared.broker, []).append(number)
        return leaving

    async def _move_away(self, order: MoveRequest) -> None:
        is_moved = await self._move_queues(order)
        unmoved = self._leaving(order.topic).get(order.target, [])
        mapping = self._mappings.find(order.topic)
        if is_moved or not unmoved or mapping is None:
            return
        # RocketMQ's procedure: the tool reads the end, and sends the start offset to the other broker.
        ends = self._mappings.seal(order.topic, unmoved)
        sealed = mapping.with_queues(*(mapping.queues[number].seal(*ends[number]) for number in unmoved))
        await Synced(self._mappings.change(sealed))


def _is_repetition(known: TopicMapping, proposed: TopicMapping) -> bool:
    """Return whether a tool's mapping only repeats recorded history: a move that it planned is complete.

    Otherwise, an older epoch is refused.
    """
    if proposed.epoch >= known.epoch or proposed.scope != known.scope or proposed.total != known.total:
        return False
    return all(
        number in known.queues and all(_is_known(known.queues[number], segment) for segment in queue.segments)
        for number, queue in proposed.queues.items()
    )


def _is_known(queue: LogicalQueue, proposed: Segment) -> bool:
    """Return whether a segment was opened as *proposed* says, or has come and expired."""
    known = queue.find(proposed.generation)
    return (
        is_newer(queue.generation, proposed.generation)
        if known is None
        else known.is_decided and known.physical_queue == proposed.physical_queue
    )
