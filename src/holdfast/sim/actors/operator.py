"""Operators that move logical queues: each reads the mappings and orders a change, without waiting for its completion.

    read the mappings (7007) ─> choose ─┬─ move some queues of a leader (7001), perhaps cancel the move (7003)
                                        ├─ resume a move that failed or was cancelled (7004)
                                        ├─ drain a broker
                                        ├─ reset the offsets of a group (222)
                                        └─ let a topic grow (513)

The mappings may be outdated by the time of the order: then the order is refused, and the operator reads them again.
Operators can be killed like any other process; their orders continue without them. `Repairer` completes changes that
reached only some brokers.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from random import Random
from typing import Any, Final

import msgspec

from holdfast.model.errors import HoldfastError
from holdfast.model.leader_planning import PlannedMove, plan_drain, plan_grow
from holdfast.model.mapping import MergedTopic, TopicMapping, merge, next_epoch
from holdfast.model.queue import LogicalQueueId
from holdfast.model.topic import TopicConfig
from holdfast.sim.actors.client import SimClient
from holdfast.sim.actors.reset_consumer import RESET_GROUP
from holdfast.sim.checkers.resets import ResetChecker
from holdfast.sim.world.layout import static_topic_commands
from holdfast.wire.cluster.mapping import from_detail
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.frames.command import Command
from holdfast.wire.frames.fields import to_fields
from holdfast.wire.requests.admin import ResetOffsetFields
from holdfast.wire.requests.moves import MappingsAnswer, Move, MoveId, MoveRequest, QueueTotal, decode_body, encode_body
from holdfast.wire.requests.offsets import QueueFields

ScriptRequest = tuple[str, Command]
Script = Generator[ScriptRequest | int, Any, None]
"""Yields an address and a request, or milliseconds to wait; receives the answer, or the error."""
ViewScript = Generator[ScriptRequest | int, Any, "MappingView"]

TOTAL_MAX: Final = 10
_ATTEMPTS: Final = 4
_RETRY_PAUSE_MS: Final = 700
_CANCEL_SHARE: Final = 0.25
_RESET_SHARE: Final = 0.4
_RESET_SPAN: Final = 40
_OPEN_STATES: Final = frozenset({"planned", "granted", "prepared"})


class MappingView(msgspec.Struct):
    """The brokers' records of static topics.

    Attributes:
        records: By topic and broker, its mapping record.
        queue_counts: By topic and broker, its number of physical queues.
        silent: Brokers that did not answer.
    """

    records: dict[str, dict[str, TopicMapping]] = {}
    queue_counts: dict[str, dict[str, int]] = {}
    configs: dict[str, TopicConfig] = {}
    moves: list[Move] = []
    silent: set[str] = set()

    def merge(self, topic: str) -> MergedTopic | None:
        """Return the merged records of *topic*."""
        records = self.records.get(topic)
        return merge(records) if records else None


def read_mappings(addresses: Mapping[str, str]) -> ViewScript:
    """Ask every broker for its mappings."""
    view = MappingView()
    for broker, address in addresses.items():
        answer = yield address, Command(code=RequestCode.GET_MAPPINGS)
        if isinstance(answer, HoldfastError) or answer.code != ResponseCode.SUCCESS:
            view.silent.add(broker)
            continue
        mappings = decode_body(answer.body, MappingsAnswer)
        view.moves += mappings.moves
        for each in mappings.topics:
            if each.mapping is not None:
                view.records.setdefault(each.name, {})[broker] = from_detail(each.mapping)
                view.queue_counts.setdefault(each.name, {})[broker] = each.write_queues
                fields = {name: getattr(each, name) for name in TopicConfig.__struct_fields__}
                view.configs[each.name] = TopicConfig(**fields)
    return view


class ScriptedClient(SimClient):
    """A client that runs scripts, one at a time."""

    def run(self, script: Script, then: Callable[[], None]) -> None:
        """Run *script*, then call *then*."""

        def resume(result: Command | HoldfastError | None) -> None:
            try:
                step = script.send(result)
            except StopIteration:
                then()
                return
            if isinstance(step, int):
                self.after(step, lambda: resume(None))
            else:
                self.request(*step, resume)

        resume(None)


class OperatorTasks(msgspec.Struct, frozen=True):
    """The tasks of an operator.

    Attributes:
        topics: The topics whose queues it moves.
        pause_ms: The average pause between two orders.
        may_grow: Whether it lets topics grow; only one operator may at a time.
        reset_checker: The checker that receives its resets; None if it may not reset.
    """

    topics: tuple[str, ...]
    pause_ms: int
    may_grow: bool
    reset_checker: ResetChecker | None = None


class Operator(ScriptedClient):
    """Orders one change after the other until the run asks it to stop.

    Args:
        addresses: The address of each broker.
        is_over: Returns whether to stop.
        on_move_ordered: Called with (source, target) for every ordered move.
    """

    def __init__(
        self,
        name: str,
        name_servers: str,
        rng: Random,
        *,
        addresses: dict[str, str],
        tasks: OperatorTasks,
        is_over: Callable[[], bool],
        on_move_ordered: Callable[[str, str], None],
    ) -> None:
        super().__init__(name, name_servers, rng)
        self._addresses = addresses
        self._tasks = tasks
        self._is_over = is_over
        self._on_move_ordered = on_move_ordered

    def started(self) -> None:
        """Start after a pause."""
        self._pause()

    def _pause(self) -> None:
        self.after(self.rng.randrange(2 * self._tasks.pause_ms), self._run_change)

    def _run_change(self) -> None:
        if not self._is_over():
            self.run(self._choose_change(), self._pause)

    def _choose_change(self) -> Script:
        view: MappingView = yield from read_mappings(self._addresses)
        topic = self.rng.choice(self._tasks.topics)
        merged = view.merge(topic)
        if merged is None or self._is_over():
            return
        if self._tasks.reset_checker is not None and self.rng.random() < _RESET_SHARE:
            yield from self._reset(merged, self._tasks.reset_checker)
            return
        draw = self.rng.random()
        if draw < 0.6:
            yield from self._move(view, merged)
        elif draw < 0.75:
            yield from self._drain(view, merged)
        elif draw < 0.85:
            yield from self._resume(view)
        elif self._tasks.may_grow:
            yield from self._grow(view, merged)

    def _move(self, view: MappingView, merged: MergedTopic) -> Script:
        sources = sorted(set(merged.leaders.values()) - view.silent)
        if not sources or len(self._addresses) < 2:
            return
        source = self.rng.choice(sources)
        led_queues = [queue for queue, leader in merged.leaders.items() if leader == source]
        queues = self.rng.sample(led_queues, self.rng.randint(1, len(led_queues)))
        target = self.rng.choice([broker for broker in self._addresses if broker != source])
        yield from self._order_move(merged.topic, queues, source, target)

    def _drain(self, view: MappingView, merged: MergedTopic) -> Script:
        source = self.rng.choice(sorted(self._addresses))
        targets = [broker for broker in self._addresses if broker != source and broker not in view.silent]
        if source in view.silent or not targets:
            return
        planned_moves = plan_drain(source, {merged.topic: merged.leaders}, targets)
        for target in sorted({move.target for move in planned_moves}):
            queues = [move.queue for move in planned_moves if move.target == target]
            yield from self._order_move(merged.topic, queues, source, target)

    def _order_move(self, topic: str, queues: list[LogicalQueueId], source: str, target: str) -> Script:
        """Order a move, and sometimes cancel it."""
        order = MoveRequest(topic=topic, queues=sorted(queues), target=target)
        self._on_move_ordered(source, target)
        address = self._addresses[source]
        answer = yield address, Command(code=RequestCode.MOVE_QUEUES, body=encode_body(order))
        if isinstance(answer, HoldfastError) or answer.code != ResponseCode.SUCCESS:
            return
        move = decode_body(answer.body, Move)
        if self.rng.random() < _CANCEL_SHARE:
            yield self.rng.randrange(30)
            yield address, Command(code=RequestCode.CANCEL_MOVE, body=encode_body(MoveId(id=move.id)))

    def _resume(self, view: MappingView) -> Script:
        stopped = [move for move in view.moves if move.state in {"failed", "cancelled"}]
        if stopped:
            move = self.rng.choice(stopped)
            self._on_move_ordered(move.source, move.target)
            body = encode_body(MoveId(id=move.id))
            yield self._addresses[move.source], Command(code=RequestCode.RESUME_MOVE, body=body)

    def _grow(self, view: MappingView, merged: MergedTopic) -> Script:
        total = merged.total + self.rng.randint(1, 2)
        if view.silent or not merged.is_complete or total > TOTAL_MAX:
            return
        planned_moves = plan_grow(merged.topic, merged.leaders, total, self._addresses)
        yield from create_queues(self._addresses, view, merged, planned_moves, self.now_ms)

    def _reset(self, merged: MergedTopic, reset_checker: ResetChecker) -> Script:
        """Reset a group's offsets in each queue of a leader, forward or back, and perhaps move these queues at once."""
        leaders = sorted(set(merged.leaders.values()))
        if not leaders:
            return
        leader = self.rng.choice(leaders)
        led_queues = [queue for queue, name in merged.leaders.items() if name == leader]
        for queue in led_queues:
            yield from self._reset_queue(merged.topic, queue, leader, reset_checker)
        targets = [broker for broker in self._addresses if broker != leader]
        if self.rng.random() < 0.5:
            yield from self._order_move(merged.topic, led_queues, leader, self.rng.choice(targets))

    def _reset_queue(self, topic: str, queue: LogicalQueueId, leader: str, reset_checker: ResetChecker) -> Script:
        address, key = self._addresses[leader], (topic, queue)
        fields = to_fields(QueueFields(topic=topic, queue_id=queue))
        answer = yield address, Command(code=RequestCode.GET_MAX_OFFSET, fields=fields)
        if isinstance(answer, HoldfastError) or answer.code != ResponseCode.SUCCESS:
            return
        end, span = int(answer.fields["offset"]), self.rng.randrange(_RESET_SPAN)
        offset = self.rng.choice((min(span, end), max(0, end - span)))
        reset_checker.requested(key, offset, leader, self.now_ms)
        order = ResetOffsetFields(topic=topic, group=RESET_GROUP, queue_id=queue, offset=offset, is_force=True)
        answer = yield address, Command(code=RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, fields=to_fields(order))
        if isinstance(answer, HoldfastError):
            reset_checker.record_unknown_outcome(key, self.now_ms)
        elif answer.code == ResponseCode.SUCCESS:
            reset_checker.accepted(key, self.now_ms)
        else:
            reset_checker.refused(key)


class Repairer(ScriptedClient):
    """Makes the records of static topics agree, as an operator does when a change reached only some brokers.

    Attributes:
        is_done: Whether the records of all brokers agree.
    """

    def __init__(
        self, name: str, name_servers: str, rng: Random, *, addresses: dict[str, str], topics: tuple[str, ...]
    ) -> None:
        super().__init__(name, name_servers, rng)
        self.is_done = False
        self._addresses = addresses
        self._topics = topics

    def started(self) -> None:
        """Read the records, repair them, and repeat until they agree."""
        self.run(self._repair(), lambda: None if self.is_done else self.after(_RETRY_PAUSE_MS, self.started))

    def _repair(self) -> Script:
        view: MappingView = yield from read_mappings(self._addresses)
        if view.silent or any(move.state in _OPEN_STATES for move in view.moves):
            return
        is_done = True
        for topic in self._topics:
            records = view.records.get(topic)
            if not records:
                is_done = False
                continue
            merged = merge(records)
            epoch, total = merged.epoch, max(record.total for record in records.values())
            if total > merged.total:
                epoch = next_epoch(epoch, self.now_ms)  # It grew on some brokers only, and a newer change came since.
            known = {name: (record.epoch, record.total) for name, record in records.items()}
            outdated = [name for name in self._addresses if known.get(name) != (epoch, total)]
            if merged.unled and not merged.contradictions:
                is_done = False
                planned_moves = plan_grow(topic, merged.leaders, merged.total, self._addresses)
                yield from create_queues(self._addresses, view, merged, planned_moves, self.now_ms)
            for name in outdated:
                is_done = False
                stamp = QueueTotal(topic=view.configs[topic], scope=merged.scope, epoch=epoch, total=total)
                yield self._addresses[name], Command(code=RequestCode.PUT_QUEUE_TOTAL, body=encode_body(stamp))
        self.is_done = is_done


def create_queues(
    addresses: Mapping[str, str], view: MappingView, merged: MergedTopic, planned_moves: list[PlannedMove], now_ms: int
) -> Script:
    """Send every broker the request for new queues, several times if it does not answer."""
    topic = merged.topic
    records = {
        broker: view.records[topic].get(broker) or TopicMapping(topic=topic, broker=broker, scope=merged.scope)
        for broker in addresses
    }
    used = {broker: [record.used_queue_ids(broker) for record in records.values()] for broker in addresses}
    queue_counts = {
        broker: max([view.queue_counts[topic].get(broker, 0), *(number + 1 for each in numbers for number in each)])
        for broker, numbers in used.items()
    }
    epoch = next_epoch(merged.epoch, now_ms)
    attributes = "".join(f"+{name}={value}" for name, value in view.configs[topic].attributes.items())
    for broker, command in static_topic_commands(
        topic, planned_moves, records, queue_counts, epoch, attributes=attributes
    ).items():
        for _ in range(_ATTEMPTS):
            answer = yield addresses[broker], msgspec.structs.replace(command)
            if not isinstance(answer, HoldfastError):
                break
            yield _RETRY_PAUSE_MS
