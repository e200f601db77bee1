"""Moves logical queues away from this broker. The source drives: it is the leader, and it alone knows their ends.

    planned ──prepare──> the target has queues for them ──seal and grant, one write──> granted ──open──> done
       │                                                                                  (the target leads)
       ├─ cancelled by an operator       before the grant, and only then, the move can be rolled back:
       └─ failed: the target refused     the queues simply stay open here

    sends:  accepted as usual ..............................│ held ...............│ relayed to the target

The grant is the point of no return: once it is on disk, only the target or a forced move accepts writes. After a crash
before the grant, the queues are still here. After a later crash, the broker finds the grant in its log and retries the
open until the target confirms it. Open is idempotent. A group of queues needs the same few round trips as one queue.

Invariant: the end of a queue is read in the event that stops its sends, and is written with the grant.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Final

import msgspec

from holdfast.broker.consume.pull import PullHandler
from holdfast.broker.flow.awaitables import Pause, PeerCall, Procedure, Synced
from holdfast.broker.flow.component import MasterComponent
from holdfast.broker.flow.request import Answer, Handlers, Refusal, Request
from holdfast.broker.mapping.cluster_view import ClusterView
from holdfast.broker.mapping.mapping_journal import MoveState
from holdfast.broker.mapping.mapping_table import FINISHED, Mappings
from holdfast.broker.move.move_payload import MovePayload
from holdfast.broker.options import BrokerOptions
from holdfast.broker.relay.relay import Relay
from holdfast.broker.tables.topics import TopicTable
from holdfast.machine.turn import Turn
from holdfast.model.errors import DiskFailed, MappingRefused, PeerFailed, RecordRefused, RemoteProtocolError
from holdfast.model.mapping import LogicalQueue, TopicMapping, next_epoch
from holdfast.model.queue import LogicalQueueId, PhysicalQueueId
from holdfast.store.queues.queue_index import QueueIndex
from holdfast.wire.cluster.mapping import to_wire_segment
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.frames.command import Command
from holdfast.wire.requests.moves import (
    Move,
    MoveId,
    MoveList,
    MoveQuery,
    MoveQueryAnswer,
    MoveRequest,
    OpenQueues,
    PreparedQueues,
    PrepareQueues,
    QueueSegments,
    QueueTotal,
    decode_body,
    encode_body,
    read_copied_bytes,
)

PREPARE_TIMEOUT_MS: Final = 15_000
"""How long to retry an unreachable target before the move fails. The move has changed nothing yet."""

_CALL_MS: Final = 10_000
_PAUSE_MIN_MS: Final = 50
_PAUSE_MAX_MS: Final = 1_000


class MoveSource(MasterComponent):
    """Executes the moves whose source is this broker."""

    def __init__(
        self,
        options: BrokerOptions,
        mappings: Mappings,
        view: ClusterView,
        relay: Relay,
        topics: TopicTable,
        payload: MovePayload,
        pulls: PullHandler,
        turn: Turn,
    ) -> None:
        self._name = options.name
        self._mappings = mappings
        self._view = view
        self._relay = relay
        self._topics = topics
        self._payload = payload
        self._pulls = pulls
        self._turn = turn
        self._count = 0
        self._driven, self._tool_moves = set[str](), set[str]()

    def handlers(self) -> Handlers:
        """Return the request handlers by code."""
        return {
            RequestCode.MOVE_QUEUES: self.move,
            RequestCode.LIST_MOVES: self.list_moves,
            RequestCode.CANCEL_MOVE: self.cancel,
            RequestCode.RESUME_MOVE: self.resume,
            RequestCode.QUERY_MOVE: self.report_state,
        }

    def start(self) -> None:
        """Continue the moves that a crash or a restart interrupted."""
        for state in self._own_moves():
            if state.move.state not in FINISHED:
                self._begin(state.move.id)

    # Operators.

    async def move(self, request: Request) -> Answer:
        """Answer 7001 once the order is on disk. The move then runs in the background."""
        order = decode_body(request.command.body, MoveRequest)
        planned = await self._plan_order(order)
        return planned if isinstance(planned, Refusal) else request.answer(body=encode_body(planned))

    async def move_and_wait(self, order: MoveRequest) -> bool:
        """Move queues and wait for completion. Return False if the move is refused or does not complete."""
        planned = await self._plan_order(order)
        if isinstance(planned, Refusal):
            return False
        self._tool_moves.add(planned.id)  # The tool publishes its own epoch to all brokers; it must stay the newest.
        while self._state(planned.id) not in FINISHED:
            await Pause(_PAUSE_MIN_MS)
        return self._state(planned.id) == "done"

    async def _plan_order(self, order: MoveRequest) -> Move | Refusal:
        """Validate and persist an order, and start the move."""
        refusal = self._find_refusal(order)
        if refusal is not None:
            return refusal
        now_ms = self._turn.now_ms
        move = Move(
            id=self._next_id(),
            topic=order.topic,
            queues=sorted(set(order.queues)),
            source=self._name,
            target=order.target,
            state="planned",
            started_ms=now_ms,
            changed_ms=now_ms,
        )
        await Synced(self._mappings.put_move(MoveState(move=move)))
        self._begin(move.id)
        return move

    def list_moves(self, request: Request) -> Answer:
        """Answer 7002: list the moves whose source is this broker."""
        moves = [state.move for state in self._own_moves()]
        return request.answer(body=encode_body(MoveList(moves=moves)))

    def cancel(self, request: Request) -> Answer | Procedure[Answer]:
        """Answer 7003: cancel a move before its grant, which changes nothing; refuse after the grant."""
        state = self._find(request)
        if isinstance(state, Refusal):
            return state
        if state.move.state == "granted":
            return Refusal(
                ResponseCode.ILLEGAL_OPERATION,
                f"{state.move.target} was granted the queues and will open them: wait, then move them back",
            )
        return self._cancel(request, state)

    async def _cancel(self, request: Request, state: MoveState) -> Answer:
        if state.move.state not in FINISHED:
            await Synced(self._set_state(state, "cancelled", "by an operator"))
            self._turn.spawn(self._abort(state.move))
        return request.answer(body=encode_body(self._mappings.moves()[state.move.id].move))

    def resume(self, request: Request) -> Answer | Procedure[Answer]:
        """Answer 7004: restart a move that failed or was cancelled; a running move just continues."""
        state = self._find(request)
        if isinstance(state, Refusal):
            return state
        move = state.move
        if move.state in {"failed", "cancelled"}:
            refusal = self._find_refusal(MoveRequest(topic=move.topic, queues=move.queues, target=move.target))
            if refusal is not None:
                return refusal
        return self._resume(request, state)

    async def _resume(self, request: Request, state: MoveState) -> Answer:
        if state.move.state in {"failed", "cancelled"}:
            await Synced(self._set_state(state, "planned"))
        if state.move.state != "done":
            self._begin(state.move.id)
        return request.answer(body=encode_body(self._mappings.moves()[state.move.id].move))

    def _find(self, request: Request) -> MoveState | Refusal:
        move_id = decode_body(request.command.body, MoveId).id
        state = self._mappings.moves().get(move_id)
        if state is None or state.move.source != self._name:
            return Refusal(
                ResponseCode.INVALID_PARAMETER,
                f"{self._name} has no move {move_id}: list the moves of its source broker",
            )
        return state

    def _find_refusal(self, order: MoveRequest) -> Refusal | None:
        """Return why the queues cannot be moved, or None if they can."""
        mapping = self._mappings.find(order.topic)
        if mapping is None:
            return Refusal(ResponseCode.TOPIC_NOT_EXIST, f"{self._name} has no static topic {order.topic}")
        if order.target == self._name or not order.queues:
            return Refusal(
                ResponseCode.INVALID_PARAMETER,
                f"there is nothing to move to {order.target}: name at least one queue, and another broker as target",
            )
        for queue in sorted(set(order.queues)):
            other = self._mappings.find_move(order.topic, queue)
            if other is not None:
                return Refusal(
                    ResponseCode.ILLEGAL_OPERATION,
                    f"logical queue {queue} of {order.topic} is being moved to {other.move.target} already, by move"
                    f" {other.move.id}: wait for it, or cancel it",
                )
            placement = self._mappings.placement(order.topic, queue)
            if placement.state != "open":
                leader_hint = f"; {placement.leader} leads it" if placement.leader not in {"", self._name} else ""
                return Refusal(
                    ResponseCode.NOT_LEADER_FOR_QUEUE,
                    f"logical queue {queue} of {order.topic} is {placement.state} on {self._name}{leader_hint}: read "
                    "the mapping",
                )
        return None

    def _next_id(self) -> str:
        while True:
            self._count += 1
            move_id = f"{self._name}.{self._turn.now_ms:x}.{self._count}"
            if move_id not in self._mappings.moves():
                return move_id

    def _own_moves(self) -> list[MoveState]:
        return [state for state in self._mappings.moves().values() if state.move.source == self._name]

    # The other side.

    def report_state(self, request: Request) -> Answer | Procedure[Answer]:
        """Answer 7012: report the state of a move to the target that prepared for it."""
        question = decode_body(request.command.body, MoveQuery)
        state = self._mappings.moves().get(question.move)
        if state is None or state.move.source != self._name or state.move.state in {"failed", "cancelled"}:
            return request.answer(body=encode_body(MoveQueryAnswer(state="unknown")))
        if state.move.state == "planned":
            return request.answer(body=encode_body(MoveQueryAnswer(state="going on")))
        return self._answer_granted(request, state.move.id)

    async def _answer_granted(self, request: Request, move_id: str) -> Answer:
        """Answer the target with its grant, but not before the grant is on disk."""
        await Synced(self._mappings.log_end)
        verdict = MoveQueryAnswer(state="granted", opening=self._to_open_order(self._mappings.moves()[move_id]))
        return request.answer(body=encode_body(verdict))

    # Driving.

    def _begin(self, move_id: str) -> None:
        if move_id not in self._driven:
            self._driven.add(move_id)
            self._turn.spawn(self._drive(move_id))

    async def _drive(self, move_id: str) -> None:
        """Advance a move until it is finished."""
        try:
            if self._state(move_id) == "planned":
                await self._prepare(move_id)
            if self._state(move_id) == "granted":
                await self._open_at_target(move_id)
        except DiskFailed:
            return  # The disk fails all writes. The log decides at the next start.
        except MappingRefused as error:  # The topic was deleted meanwhile.
            self._fail(self._mappings.moves()[move_id], str(error))
        finally:
            self._driven.discard(move_id)
        if self._state(move_id) == "done" and move_id not in self._tool_moves:
            await self.announce_epoch(self._mappings.moves()[move_id].move.topic)

    def _state(self, move_id: str) -> str:
        return self._mappings.moves()[move_id].move.state

    async def _prepare(self, move_id: str) -> None:
        """Let the target prepare, then seal and grant in one event. Nothing changes here before that."""
        state = self._mappings.moves()[move_id]
        deadline_ms = self._turn.now_ms + PREPARE_TIMEOUT_MS
        while True:
            try:
                answer = await self._call(state.move.target, RequestCode.PREPARE_QUEUES, self._plan(state.move))
            except PeerFailed as error:
                if self._state(move_id) != "planned":
                    return
                if self._turn.now_ms >= deadline_ms:
                    self._fail(state, str(error))
                    return
                await Pause(_PAUSE_MAX_MS // 4)
                continue
            break
        if answer.code == ResponseCode.SUCCESS:
            await self._payload.announce_members(state.move.target)
        while self._state(move_id) == "planned" and not self._relay.may_accept_sends(
            state.move.topic, state.move.queues
        ):
            await Pause(_PAUSE_MIN_MS)  # Do not hand over a queue that another broker may lead by now.
        if self._state(move_id) != "planned":
            return  # Cancelled meanwhile; the cancellation has notified the target.
        if answer.code != ResponseCode.SUCCESS:
            self._fail(state, f"{state.move.target} refused: {answer.remark}")
            return
        try:
            physical = decode_body(answer.body, PreparedQueues).physical
            position = self._grant(state, physical)
        except (MappingRefused, RemoteProtocolError, RecordRefused) as error:
            self._fail(state, str(error))
            return
        await Synced(position)

    def _plan(self, move: Move) -> PrepareQueues:
        mapping = self._mapping(move.topic)
        config = self._topics.find(move.topic)
        assert config is not None, "a static topic is hosted"
        return PrepareQueues(
            move=move.id,
            source=self._name,
            topic=config,
            scope=mapping.scope,
            epoch=mapping.epoch,
            total=mapping.total,
            queues=[_to_segments(mapping.queues[number]) for number in move.queues],
            address=self._view.address(self._name) or "",
        )

    def _grant(self, state: MoveState, physical: dict[LogicalQueueId, PhysicalQueueId]) -> int:
        """Stop the sends, fix the ends and write the grant, all in this event. Return the log position to sync.

        Raises:
            MappingRefused: the queues changed meanwhile; nothing was written.
        """
        move, now_ms = state.move, self._turn.now_ms
        mapping = self._mapping(move.topic)
        if missing := set(move.queues) - physical.keys():
            raise MappingRefused(
                "prepare first",
                f"{move.target} prepared no physical queue for logical queue {min(missing)}: resume the move",
            )
        for number in move.queues:
            self._view.require_newest(move.topic, mapping.queues[number])
        ends = self._mappings.seal(move.topic, move.queues)
        try:
            sealed = [
                mapping.queues[number].prepare(move.target, PhysicalQueueId(physical[number])).seal(*ends[number])
                for number in move.queues
            ]
            granted = msgspec.structs.replace(move, state="granted", reason="", changed_ms=now_ms)
            epoch = mapping.epoch if move.id in self._tool_moves else next_epoch(mapping.epoch, now_ms)
            return self._mappings.change(
                mapping.with_queues(*sealed, epoch=epoch),
                move=MoveState(move=granted, physical=physical),
            )
        except (MappingRefused, RecordRefused):
            self._mappings.unseal(move.topic, move.queues)
            self._relay.release(move.topic, move.queues)
            raise

    async def _open_at_target(self, move_id: str) -> None:
        """Retry the open until the target confirms it, then relay the held sends."""
        pause_ms = _PAUSE_MIN_MS
        copied: int | None = None
        while self._state(move_id) == "granted":
            state = self._mappings.moves()[move_id]
            if not self._find_unopened(state):
                break  # The target had opened them, its answer was lost, and they have moved again since.
            try:
                answer = await self._call(state.move.target, RequestCode.OPEN_QUEUES, self._to_open_order(state))
            except PeerFailed as error:
                reason = str(error)
            else:
                if answer.code == ResponseCode.SUCCESS:
                    copied = read_copied_bytes(answer)
                    break
                reason = f"{state.move.target} refused: {answer.remark}"
                self._relay.suspects.add(state.move.topic)  # A forced move may have made another broker the leader.
            if self._state(move_id) == "granted":
                self._record_wait(state, reason)
            await Pause(pause_ms)
            pause_ms = min(2 * pause_ms, _PAUSE_MAX_MS)
        if self._state(move_id) != "granted":
            return  # A forced move ended this move.
        self._finish(self._mappings.moves()[move_id], copied)

    def _find_unopened(self, state: MoveState) -> list[LogicalQueueId]:
        """Return the queues of a granted move that are still sealed here and that its target has yet to open."""
        mapping, target = self._mapping(state.move.topic), state.move.target
        led = mapping.led_queues
        prepared = {number: mapping.queues[number].prepared for number in state.move.queues if number in led}
        return [
            number
            for number, segment in prepared.items()
            if segment and segment.physical_queue == (target, state.physical.get(number))
        ]

    def _to_open_order(self, state: MoveState) -> OpenQueues:
        move = state.move
        mapping = self._mapping(move.topic)
        numbers = (
            self._find_unopened(state) if move.state == "granted" else [n for n in move.queues if n in mapping.queues]
        )
        open_order = OpenQueues(
            move=move.id,
            source=self._name,
            topic=move.topic,
            scope=mapping.scope,
            epoch=mapping.epoch,
            total=mapping.total,
            queues=[_to_segments(_opened(mapping.queues[number])) for number in numbers],
        )
        return self._payload.pack(open_order, numbers)

    def _finish(self, state: MoveState, copied: int | None) -> None:
        """Record that the target leads, release held sends, and wake the pulls that wait for messages here."""
        move, now_ms = state.move, self._turn.now_ms
        mapping, unopened = self._mapping(move.topic), self._find_unopened(state)
        logs = [self._mappings.placement(move.topic, number).queue_index for number in unopened]
        done = msgspec.structs.replace(move, state="done", reason="", changed_ms=now_ms, copied=copied)
        self._mappings.change(
            mapping.with_queues(*(_opened(mapping.queues[number]) for number in unopened)),
            move=MoveState(move=done, physical=state.physical),
        )
        self._payload.forget(move.topic, unopened)
        self._relay.release(move.topic, move.queues)
        self.wake_pulls(log for log in logs if log is not None)
        self._log("info", "queues moved", move, queues=len(move.queues))

    def wake_pulls(self, logs: Iterable[QueueIndex]) -> None:
        """Wake the pulls that wait for these queues, so that they ask again: new messages are stored elsewhere."""
        for log in logs:
            for parked_pull in self._pulls.parked_pulls.wake(log):
                self._turn.send(parked_pull.channel, [self._pulls.answer_queue_moved(parked_pull)])

    # Failed and partial moves.

    def drop_queue(self, topic: str, queue: LogicalQueueId, reason: str) -> None:
        """Drop one queue from its move, because another broker leads it now. The rest of a granted move continues."""
        for state in self._own_moves():
            move = state.move
            if move.topic != topic or queue not in move.queues or move.state in FINISHED:
                continue
            remaining = [number for number in move.queues if number != queue]
            if move.state == "granted" and remaining:
                reduced = msgspec.structs.replace(move, queues=remaining)
                self._mappings.put_move(msgspec.structs.replace(state, move=reduced))
            else:
                self._fail(state, reason)

    def _fail(self, state: MoveState, reason: str) -> None:
        self._set_state(state, "failed", reason)
        self._log("warning", "move failed", state.move, reason=reason)
        self._turn.spawn(self._abort(state.move))

    async def _abort(self, move: Move) -> None:
        """Notify the target so that it forgets the prepared queues. If that fails, the target will ask later."""
        question = MoveQuery(move=move.id, topic=move.topic, queues=move.queues)
        with suppress(PeerFailed):
            await self._call(move.target, RequestCode.ABORT_MOVE, question)

    def _set_state(self, state: MoveState, new_state: str, reason: str = "") -> int:
        move = msgspec.structs.replace(state.move, state=new_state, reason=reason, changed_ms=self._turn.now_ms)
        return self._mappings.put_move(msgspec.structs.replace(state, move=move))

    def _record_wait(self, state: MoveState, reason: str) -> None:
        """Show operators what a granted move waits for. Logs only the first reason."""
        if not state.move.reason:
            self._set_state(state, "granted", reason)
            self._log("warning", "move waits for its target", state.move, reason=reason)

    def _log(self, level: str, event: str, move: Move, **extra: object) -> None:
        fields: dict[str, object] = {"move": move.id, "topic": move.topic, "target": move.target}
        self._turn.log(level, event, **(fields | extra))

    # Calls to other brokers.

    async def _call(self, broker: str, code: RequestCode, body: msgspec.Struct) -> Command:
        """Return the answer of *broker*.

        Raises:
            PeerFailed: it did not answer.
        """
        address = await self._view.find_address(broker)
        try:
            return await PeerCall(address, Command(code=code, body=encode_body(body)), _CALL_MS)
        except PeerFailed:
            self._view.suspect_addresses()  # Its address may have changed.
            raise

    async def announce_epoch(self, topic: str) -> None:
        """Announce the topic's new epoch to every other broker. One that misses it learns it with the next epoch."""
        mapping, config = self._mappings.find(topic), self._topics.find(topic)
        if mapping is None or config is None:
            return
        announced = QueueTotal(topic=config, scope=mapping.scope, epoch=mapping.epoch, total=mapping.total)
        for broker in self._view.brokers(mapping.scope):
            with suppress(PeerFailed):
                await self._call(broker, RequestCode.PUT_QUEUE_TOTAL, announced)

    def _mapping(self, topic: str) -> TopicMapping:
        mapping = self._mappings.find(topic)
        if mapping is None:
            raise MappingRefused("static topics", f"{topic} is no longer static on {self._name}")
        return mapping


def _opened(queue: LogicalQueue) -> LogicalQueue:  # A segment prepared after an open one belongs to a later move.
    return queue if queue.prepared is None or queue.leader.is_open else queue.open_next()


def _to_segments(queue: LogicalQueue) -> QueueSegments:
    return QueueSegments(queue=queue.queue, segments=[to_wire_segment(segment) for segment in queue.segments])
