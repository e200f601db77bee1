"""Prepares and opens logical queues that another broker hands over, and becomes their leader.

    prepare (7010) ─> an undecided physical queue, no writes ─> open (7011) ─> starts at the end of the old leader's
                          └─ abort (7013), or the old leader no longer has such a move ─> forgotten

    epoch (7008)   announces the new epoch and queue count of a topic, also to brokers that lead none of its queues

Every request is idempotent. The old leader decides about a move that a crash left prepared: the target asks (7012)
until it answers, and opens nothing on a guess.

A grant never expires: the source may have been away while a forced move made another broker the leader. So an open that
does not directly follow its prepare first asks name servers and brokers for a newer leader. If there is one, the target
opens nothing, and the old leader will detect the newer leader, too, and fail the move.

Consumer offsets and locks arrive with the open request. The move record keeps the offsets until their file is saved.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from holdfast.broker.flow.awaitables import Pause, PeerCall, Synced
from holdfast.broker.flow.component import MasterComponent
from holdfast.broker.flow.refusals import refuse_on_error
from holdfast.broker.flow.request import Answer, Handlers, Request
from holdfast.broker.mapping.cluster_view import ClusterView
from holdfast.broker.mapping.mapping_journal import MoveState
from holdfast.broker.mapping.mapping_table import FINISHED, Mappings
from holdfast.broker.move.move_payload import MovePayload
from holdfast.broker.options import BrokerOptions
from holdfast.broker.relay.suspects import SuspectTopics
from holdfast.broker.tables.topics import TopicTable
from holdfast.machine.turn import Turn
from holdfast.model.errors import DiskFailed, MappingRefused, PeerFailed, RecordRefused, RemoteProtocolError
from holdfast.model.mapping import LogicalQueue, TopicMapping, check_queue
from holdfast.model.queue import LogicalQueueId, PhysicalQueueId
from holdfast.model.scope import require_in_scope, to_shown_scope
from holdfast.model.segment import is_newer
from holdfast.model.topic import TopicConfig
from holdfast.wire.cluster.mapping import from_wire_segment
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.frames.command import Command
from holdfast.wire.frames.fields import to_fields
from holdfast.wire.requests.moves import (
    Move,
    MoveQuery,
    MoveQueryAnswer,
    OpenAnswer,
    OpenQueues,
    PreparedQueues,
    PrepareQueues,
    QueueSegments,
    QueueTotal,
    decode_body,
    encode_body,
)

QUERY_AFTER_MS: Final = 10_000
"""How long a prepared queue waits for its open request before this broker asks the old leader."""

_QUERY_PAUSE_MS: Final = 1_000


class MoveTarget(MasterComponent):
    """Executes the moves whose target is this broker.

    Attributes:
        payload: Packs and unpacks the payload of a move.
    """

    def __init__(
        self,
        options: BrokerOptions,
        mappings: Mappings,
        view: ClusterView,
        topics: TopicTable,
        payload: MovePayload,
        suspects: SuspectTopics,
        turn: Turn,
    ) -> None:
        self._name = options.name
        self._mappings = mappings
        self._view = view
        self._topics = topics
        self.payload = payload
        self._turn = turn
        self._namesrv = options.namesrv
        self._just_prepared: set[str] = set()  # moves whose open directly follows their prepare: no inquiry needed
        self._suspects = suspects
        payload.restore(self._name, mappings.moves().values())

    def handlers(self) -> Handlers:
        """Return the request handlers by code."""
        return {
            RequestCode.PREPARE_QUEUES: refuse_on_error(self._prepare),
            RequestCode.OPEN_QUEUES: refuse_on_error(self._open),
            RequestCode.ABORT_MOVE: refuse_on_error(self._abort),
            RequestCode.PUT_QUEUE_TOTAL: refuse_on_error(self._record_epoch),
        }

    def start(self) -> None:
        """Ask the old leaders about queues that were prepared before a restart."""
        for state in self._incoming():
            self._turn.spawn(self._await_verdict(state.move.id, 0))

    # Preparing.

    async def _prepare(self, request: Request) -> Answer:
        """Answer 7010 once the undecided segments are on disk."""
        order = decode_body(request.command.body, PrepareQueues)
        if order.address:
            self._view.record_address(order.source, order.address)
        if not self._view.has_answer(order.topic.name):
            await self._view.refresh(order.topic.name)  # Now, while no client waits for the queue.
        known = self._mappings.moves().get(order.move)
        if known is not None and known.move.state == "done":
            raise MappingRefused(
                "one move at a time",
                f"{self._name} has opened the queues of move {order.move} already: read the mapping again",
            )
        mapping = self.ensure_mapping(order.topic, order.scope, order.epoch, order.total)
        received = [to_queue(segments) for segments in order.queues]
        try:
            for queue in received:
                _require_newer(mapping, queue)
                self._view.require_newest(mapping.topic, queue)
        except MappingRefused:
            self._suspects.add(order.topic.name)  # Either broker may be out of date, also this one.
            raise
        received = [_with_own_ends(mapping, queue) for queue in received]
        earlier: dict[LogicalQueueId, PhysicalQueueId | None] = {
            queue.queue: _prepared_before(mapping, queue, self._name) for queue in received
        }
        mapping = mapping.with_queues(*received)
        new = [queue for queue in received if earlier[queue.queue] is None]
        allocated = self._mappings.allocate(mapping, [queue.queue for queue in new])
        physical = {number: allocated[number] if queue_id is None else queue_id for number, queue_id in earlier.items()}
        prepared = mapping.with_queues(*(queue.prepare(self._name, physical[queue.queue]) for queue in received))
        now_ms = self._turn.now_ms
        move = Move(
            id=order.move,
            topic=order.topic.name,
            queues=sorted(physical),
            source=order.source,
            target=self._name,
            state="prepared",
            started_ms=now_ms if known is None else known.move.started_ms,
            changed_ms=now_ms,
        )
        position = self._mappings.change(prepared, move=MoveState(move=move, physical=physical))
        if known is None or known.move.state in FINISHED:
            self._just_prepared.add(move.id)
            self._turn.spawn(self._await_verdict(move.id, QUERY_AFTER_MS))
        await Synced(position)
        return request.answer(body=encode_body(PreparedQueues(physical=physical)))

    def ensure_mapping(self, config: TopicConfig, scope: str, epoch: int, total: int) -> TopicMapping:
        """Return the mapping of a topic with another broker's changes applied; create it if it is new here.

        Raises:
            MappingRefused: this broker has a normal topic of that name, or one with another kind of index, or the topic
                has another scope here.
        """
        require_in_scope(scope, self._mappings.cluster, self._name, config.name)
        if fault := self._topics.find_kind_fault(config):
            raise MappingRefused("one kind of index", fault)
        mapping = self._mappings.find(config.name)
        if mapping is not None and mapping.scope != scope:
            raise MappingRefused(
                "one scope",
                f"{self._name} has {config.name} in scope {to_shown_scope(mapping.scope)}, not"
                f" {to_shown_scope(scope)}: read the mapping again",
            )
        if mapping is not None:
            return msgspec.structs.replace(mapping, epoch=max(epoch, mapping.epoch), total=max(total, mapping.total))
        hosted = self._topics.find(config.name)
        if hosted is not None and max(hosted.read_queues, hosted.write_queues) > 0:
            raise MappingRefused(
                "static topics",
                f"{self._name} hosts a normal topic {config.name}: delete it there, or make the topic static with it",
            )
        if hosted is None:
            self._topics.put(msgspec.structs.replace(config, read_queues=0, write_queues=0))
        return TopicMapping(topic=config.name, broker=self._name, scope=scope, epoch=epoch, total=total)

    # Opening.

    async def _open(self, request: Request) -> Answer:
        """Answer 7011 once the open segments are on disk. Segments that are open already stay unchanged."""
        open_order = decode_body(request.command.body, OpenQueues)
        self._require_segments(open_order)
        await self._require_newest(open_order)
        opened = self._find_unopened(open_order)
        position = self._apply(open_order)
        ends = self._mappings.find_ends(open_order.topic, opened)  # In the same event, so before any send.
        await Synced(position)
        copied = self._mappings.count_bytes(open_order.topic, ends) if len(opened) == len(open_order.queues) else None
        return request.answer(fields=to_fields(OpenAnswer(copied=copied)))

    def _require_segments(self, open_order: OpenQueues) -> None:
        """Check that this broker still has the segments: it may have forgotten them after a newer leader took over.

        Raises:
            MappingRefused: it forgot a segment, so the old leader must not conclude that it was opened.
        """
        mapping = self._mappings.find(open_order.topic)
        for received in map(to_queue, open_order.queues):
            own = None if mapping is None else mapping.queues.get(received.queue)
            if own is None or is_newer(received.generation, own.generation):
                continue
            segment = own.find(received.generation)
            # Another broker may have reported the segment as one that was perhaps opened.
            if (
                segment is None
                or segment.physical_queue != received.leader.physical_queue
                or (segment.forced and segment.is_empty)
            ):
                raise MappingRefused(
                    "newest leader",
                    f"{self._name} never opened generation {received.generation} of logical queue {received.queue} of"
                    f" {open_order.topic}, which is at generation {own.generation}: read the mapping again",
                )

    async def _require_newest(self, open_order: OpenQueues) -> None:
        """Check that no other broker became leader since the queues were granted.

        Raises:
            MappingRefused: one did, or no name server can say.
        """
        unopened = [queue for queue in map(to_queue, open_order.queues) if not self._is_opened(open_order.topic, queue)]
        if unopened and open_order.move not in self._just_prepared:
            known = self._mappings.moves().get(open_order.move)
            await self._view.refresh_everywhere(open_order.topic)
            if self._namesrv and not self._view.has_answer(open_order.topic):
                raise MappingRefused(
                    "newest leader",
                    f"no name server has reported the leader of {open_order.topic} to {self._name}: retry when one is"
                    " reachable",
                )
            if self._mappings.moves().get(open_order.move) != known:
                raise MappingRefused(
                    "newest leader",
                    f"move {open_order.move} was decided while {self._name} checked for a newer leader: list the moves",
                )
        for queue in unopened:
            self._view.require_newest(open_order.topic, queue)

    def _is_opened(self, topic: str, received: LogicalQueue) -> bool:
        mapping = self._mappings.find(topic)
        own = None if mapping is None else mapping.queues.get(received.queue)
        return own is not None and not is_newer(received.generation, own.generation)

    def _find_mapping(self, open_order: OpenQueues) -> TopicMapping:
        mapping = self._mappings.find(open_order.topic)
        if mapping is None:
            raise MappingRefused("prepare first", f"{self._name} has no record of {open_order.topic}")
        return mapping

    def _find_unopened(self, open_order: OpenQueues) -> list[LogicalQueue]:
        """Return the queues of *open_order* that are not open here yet.

        Raises:
            MappingRefused: one of them was not prepared here.
        """
        mapping = self._find_mapping(open_order)
        return [queue for queue in map(to_queue, open_order.queues) if self._is_unopened(mapping, queue)]

    def _apply(self, open_order: OpenQueues) -> int:
        """Become the leader of the queues of *open_order*. Return the log position to sync.

        Raises:
            MappingRefused: *open_order* does not match the prepared queues.
        """
        now_ms = self._turn.now_ms
        mapping = self._find_mapping(open_order)
        opened = [_with_own_ends(mapping, queue) for queue in self._find_unopened(open_order)]
        known = self._mappings.moves().get(open_order.move)
        if opened:
            self.payload.unpack(open_order, {queue.queue for queue in opened})
        move = Move(
            id=open_order.move,
            topic=open_order.topic,
            queues=sorted(queue.queue for queue in open_order.queues),
            source=open_order.source,
            target=self._name,
            state="done",
            started_ms=now_ms if known is None else known.move.started_ms,
            changed_ms=now_ms,
        )
        if not opened and known is not None and known.move.state == "done":
            return self._mappings.log_end
        state = MoveState(move=move, opening=_only_offsets(open_order), saved=self.payload.save_count)
        if known is not None:  # The old leader learned that other queues of the move have a newer leader.
            mapping = self._unprepare(mapping, known.move, set(known.move.queues) - set(move.queues))
        changed = msgspec.structs.replace(
            mapping.with_queues(*opened),
            epoch=max(mapping.epoch, open_order.epoch),
            total=max(mapping.total, open_order.total),
        )
        position = self._mappings.change(changed, move=state)
        self._log("info", "queues taken over", move=open_order.move, topic=open_order.topic, queues=len(opened))
        return position

    def _log(self, level: str, event: str, **fields: object) -> None:
        self._turn.log(level, event, **fields)

    def _is_unopened(self, mapping: TopicMapping, received: LogicalQueue) -> bool:
        """Return whether *received* has still to be opened here.

        Raises:
            MappingRefused: its newest segment is on another broker, or on an unprepared queue that holds records.
        """
        leader = received.leader
        if leader.broker != self._name or not leader.is_open:
            raise MappingRefused(
                "own queues", f"logical queue {received.queue} of {mapping.topic} would not open on {self._name}"
            )
        own = mapping.queues.get(received.queue)
        if own is not None and not is_newer(leader.generation, own.generation):
            return False
        prepared = None if own is None else own.prepared
        if prepared is None or prepared.physical_queue != leader.physical_queue:
            log = self._mappings.find_index(mapping.topic, leader.queue_id)
            if log is not None and log.next_offset > 0:
                raise MappingRefused(
                    "prepare first",
                    f"queue {leader.queue_id} of {mapping.topic} on {self._name} was not prepared and holds records",
                )
        return True

    # Deciding prepared moves.

    def _incoming(self) -> list[MoveState]:
        return [
            state
            for state in self._mappings.moves().values()
            if state.move.target == self._name and state.move.state not in FINISHED
        ]

    async def _await_verdict(self, move_id: str, delay_ms: int) -> None:
        """Ask the old leader about a prepared move until the move is decided."""
        await Pause(delay_ms)
        self._just_prepared.discard(move_id)
        while (state := self._find_undecided(move_id)) is not None:
            verdict = await self._query_source(state.move)
            open_order = verdict.opening if verdict is not None and verdict.state == "granted" else None
            is_newest = open_order is not None and await self._is_newest(open_order)
            state = self._find_undecided(move_id)
            if state is None:
                return
            try:
                if open_order is not None and is_newest:
                    await Synced(self._apply(open_order))
                    return
                if verdict is not None and verdict.state == "unknown":
                    await Synced(self.cancel_move(state, "the old leader has no such move"))
                    return
            except (MappingRefused, DiskFailed, RecordRefused) as error:
                self._log("error", "prepared queues cannot be decided", move=move_id, reason=str(error))
                return
            await Pause(_QUERY_PAUSE_MS)

    def _find_undecided(self, move_id: str) -> MoveState | None:
        state = self._mappings.moves().get(move_id)
        return None if state is None or state.move.state in FINISHED else state

    async def _is_newest(self, open_order: OpenQueues) -> bool:
        try:
            await self._require_newest(open_order)
        except MappingRefused:
            return False
        return True

    async def _query_source(self, move: Move) -> MoveQueryAnswer | None:
        question = MoveQuery(move=move.id, topic=move.topic, queues=move.queues)
        command = Command(code=RequestCode.QUERY_MOVE, body=encode_body(question))
        try:
            address = await self._view.find_address(move.source)
            answer = await PeerCall(address, command)
            return decode_body(answer.body, MoveQueryAnswer) if answer.code == ResponseCode.SUCCESS else None
        except PeerFailed:
            self._view.suspect_addresses()
            return None
        except RemoteProtocolError:
            return None

    async def _abort(self, request: Request) -> Answer:
        """Answer 7013: forget the queues prepared for a move, unless they are open."""
        question = decode_body(request.command.body, MoveQuery)
        state = self._mappings.moves().get(question.move)
        if state is not None and state.move.target == self._name and state.move.state not in FINISHED:
            await Synced(self.cancel_move(state, "aborted by the old leader"))
        return request.answer()

    def is_awaiting(self, topic: str) -> bool:
        """Return whether queues of *topic* are prepared here and undecided."""
        return any(state.move.topic == topic for state in self._incoming())

    def cancel_superseded(self, topic: str) -> None:
        """Cancel incoming moves whose queues have a newer leader than the broker that hands them over."""
        for state in self._incoming():
            if state.move.topic == topic and any(self._is_superseded(topic, number) for number in state.move.queues):
                # The other queues of the same move can still be opened when they are handed over.
                self.cancel_move(state, "a forced move came first")

    def _is_superseded(self, topic: str, number: LogicalQueueId) -> bool:
        placement = self._mappings.placement(topic, number)
        newer = self._view.leader_above(topic, number, placement.generation)
        return placement.state == "prepared" and newer not in {None, self._name}

    def cancel_move(self, state: MoveState, reason: str) -> int:
        """Cancel a move and undo its preparation. Return the log position to sync."""
        move, now_ms = state.move, self._turn.now_ms
        self._just_prepared.discard(move.id)
        cancelled = msgspec.structs.replace(move, state="cancelled", reason=reason, changed_ms=now_ms)
        ended = MoveState(move=cancelled)
        mapping = self._mappings.find(move.topic)
        if mapping is None:
            return self._mappings.put_move(ended)
        mapping = self._unprepare(mapping, move, move.queues)
        return self._mappings.change(mapping, move=ended)

    def _unprepare(self, mapping: TopicMapping, move: Move, numbers: Iterable[LogicalQueueId]) -> TopicMapping:
        """Return the mapping without the segments prepared for *numbers*, except those another pending move needs."""
        other_moves = [
            state.move for state in self._incoming() if state.move.topic == move.topic and state.move.id != move.id
        ]
        for number in sorted(set(numbers).difference(*(other.queues for other in other_moves))):
            queue = mapping.queues.get(number)
            if queue is None or queue.prepared is None or queue.prepared.broker != self._name:
                continue
            has_segment = any(segment.broker == self._name for segment in queue.without_prepared.segments)
            mapping = mapping.with_queues(queue.without_prepared) if has_segment else mapping.without_queues(number)
        return mapping

    # Epochs.

    async def _record_epoch(self, request: Request) -> Answer:
        """Answer 7008: record a topic's epoch and queue count."""
        announced = decode_body(request.command.body, QueueTotal)
        name = announced.topic.name
        mapping = self._mappings.find(name)
        if mapping is not None and announced.epoch < mapping.epoch:
            raise MappingRefused(
                "rising epochs", f"{name} is at epoch {mapping.epoch} on {self._name}, {announced.epoch} is older"
            )
        updated = self.ensure_mapping(announced.topic, announced.scope, announced.epoch, announced.total)
        if updated != mapping:
            await Synced(self._mappings.change(updated))
            self._suspects.add(name)
        return request.answer()


def to_queue(received: QueueSegments) -> LogicalQueue:
    """Return the logical queue that another broker describes.

    Raises:
        MappingRefused: it breaks a rule.
    """
    queue = LogicalQueue(LogicalQueueId(received.queue), tuple(map(from_wire_segment, received.segments)))
    check_queue(queue)
    return queue


def _require_newer(mapping: TopicMapping, received: LogicalQueue) -> None:
    """Check that a queue is newer than its record here.

    Raises:
        MappingRefused: it is not.
    """
    own = mapping.queues.get(received.queue)
    if own is None:
        return
    if is_newer(own.generation, received.generation) or (own.leader.broker == mapping.broker and own.leader.is_open):
        raise MappingRefused(
            "rising generations",
            f"logical queue {received.queue} of {mapping.topic} is at generation {own.generation} on {mapping.broker},"
            f" led by {own.leader.broker}: read the mapping again",
        )


def _with_own_ends(mapping: TopicMapping, received: LogicalQueue) -> LogicalQueue:
    """Return a queue with the ends that only this broker knows: ends of its segments that a forced move closed.

    Raises:
        MappingRefused: they do not fit.
    """
    own = mapping.queues.get(received.queue)
    return received if own is None else received.reconcile(own)


def _prepared_before(mapping: TopicMapping, received: LogicalQueue, broker: str) -> PhysicalQueueId | None:
    """Return the physical queue that an earlier attempt prepared for a logical one, or None."""
    own = mapping.queues.get(received.queue)
    prepared = None if own is None else own.prepared
    return prepared.queue_id if prepared is not None and prepared.broker == broker else None


def _only_offsets(open_order: OpenQueues) -> OpenQueues:
    """Return the part of *open_order* that must persist: its segments are in the mapping, and locks expire anyway."""
    return msgspec.structs.replace(open_order, queues=[], locks=[])
