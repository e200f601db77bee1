"""Check that at every instant at most one broker accepts sends to a logical queue.

after every step   for every broker that is up: which queues does it hold open?   two hold the same queue: violation
                   one opens a queue of another: is it sealed there, on disk?     no: violation
                   a segment is sealed: does it have every record before its end? no: violation

A freshly started broker that holds back sends to a queue, because it does not know yet whether it still leads, does not
hold it open.

The brokers' records also serve the other checkers as a map: which segment holds an offset, where a forced move left a
gap, which broker really leads. A broker that is down is checked again when it is up, by its records at that time.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping

import msgspec

from holdfast.broker.assembly import Components
from holdfast.broker.mapping.mapping_table import FINISHED
from holdfast.model.logical_queue import LogicalQueue
from holdfast.model.queue import LogicalQueueId, MessageQueue, QueueKey
from holdfast.model.segment import generation_order, is_newer
from holdfast.sim.world.world import Violation


class _BrokerState(msgspec.Struct):
    """The queues that one process held open when it was last inspected.

    Attributes:
        turns: How many events it had handled.
        must_recheck: It holds requests back or has sealed a queue, so it is inspected again after every event that it
            handles.
    """

    components: Components
    turns: int
    version: int
    must_recheck: bool
    open_queues: tuple[QueueKey, ...]


class LeaderChecker:
    """Tracks the leader of every logical queue.

    Args:
        find_running: Returns the components of every broker that is up.
        count_turns: Returns how many events a broker has handled, since nothing else changes its records. Without it,
            any step may have changed every broker.

    Attributes:
        on_leader: Called with (topic, queue, broker) for each queue that a broker's own records say it leads, whenever
            something changed there. The broker may have sealed the queue, or not know yet whether it may accept sends.
    """

    def __init__(
        self, find_running: Callable[[], Mapping[str, Components]], count_turns: Callable[[str], int] | None = None
    ) -> None:
        steps = itertools.count()
        self.on_leader: Callable[[str, LogicalQueueId, str], None] = lambda _topic, _queue, _broker: None
        self._find_running = find_running
        self._count_turns = count_turns or (lambda _name: next(steps))
        self._open_brokers: dict[QueueKey, str] = {}
        self._states: dict[str, _BrokerState] = {}
        self._queues_by_leader: dict[QueueKey, dict[str, LogicalQueue]] = {}  # By broker that claims to lead it.
        self._moves: dict[str, str] = {}

    # After every step.

    def check(self) -> None:
        """Inspect every broker that changed."""
        up = self._find_running()
        gone = self._states.keys() - up.keys()
        changed = bool(gone)
        for name in sorted(gone):
            del self._states[name]
        for name, components in up.items():
            known, turns = self._states.get(name), self._count_turns(name)
            if known is None or known.components is not components:
                self._forget(name)
                known = None
            elif known.turns == turns:
                continue
            must_recheck = bool(components.relay.moving or components.relay.suspended)
            if known is None or known.version != components.mappings.version or must_recheck or known.must_recheck:
                self._states[name] = self._inspect(name, components, turns)
                changed = True
        if changed:
            self._check_single_open()

    def _forget(self, name: str) -> None:
        """Forget what a restarted broker led: a power cut may have taken its unsynced records."""
        for by_leader in self._queues_by_leader.values():
            by_leader.pop(name, None)

    def _inspect(self, name: str, components: Components, turns: int) -> _BrokerState:
        mappings, is_blocked = components.mappings, components.relay.is_held
        must_recheck, open_queues = bool(components.relay.moving or components.relay.suspended), []
        for topic, mapping in mappings.topics().items():
            for number, queue in mapping.queues.items():
                key = (topic, number)
                state = mappings.placement(topic, number).state
                must_recheck = must_recheck or state == "sealed"
                if state == "open" and not is_blocked(key):
                    open_queues.append(key)
                by_leader = self._queues_by_leader.setdefault(key, {})
                if queue.leader.broker == name and queue.leader.is_decided:
                    by_leader[name] = queue
                    if all(not is_newer(known.generation, queue.generation) for known in by_leader.values()):
                        self.on_leader(topic, number, name)
                else:
                    by_leader.pop(name, None)
                _check_segment_ends(topic, queue, name, components)
        for move in mappings.moves().values():
            if move.move.source == name:
                self._moves[move.move.id] = move.move.state
        return _BrokerState(components, turns, mappings.version, must_recheck, tuple(sorted(open_queues)))

    def _check_single_open(self) -> None:
        open_brokers: dict[QueueKey, str] = {}
        for name, state in self._states.items():
            for key in state.open_queues:
                if key in open_brokers:
                    generations = [
                        f"{other} at generation {self._states[other].components.mappings.placement(*key).generation}"
                        for other in (open_brokers[key], name)
                    ]
                    raise Violation(
                        "one open segment", f"logical queue {key[1]} of {key[0]} is open on {' and '.join(generations)}"
                    )
                open_brokers[key] = name
        before, self._open_brokers = self._open_brokers, open_brokers
        for key, name in open_brokers.items():
            if before.get(key) != name:
                self._check_sealed_before(key)

    def _check_sealed_before(self, key: QueueKey) -> None:
        """Check that the old leader, if it is up, has sealed the queue durably: no power cut may undo that."""
        queue = self.find_queue(*key)
        segments = () if queue is None else queue.segments
        old = segments[-2] if len(segments) > 1 else None
        source = None if old is None else self._states.get(old.broker)
        if old is None or source is None or old.forced:
            return
        record = source.components.mappings.announced().get(key[0])
        known = None if record is None or key[1] not in record.queues else record.queues[key[1]].find(old.generation)
        if known is not None and known.is_open:
            raise Violation(
                "opened when granted",
                f"logical queue {key[1]} of {key[0]} is open on {segments[-1].broker}, and not sealed on the disk of"
                f" {old.broker}",
            )

    # Queries.

    def count_moves(self) -> int:
        """Return the number of completed moves."""
        return sum(state == "done" for state in self._moves.values())

    def find_queue(self, topic: str, number: LogicalQueueId) -> LogicalQueue | None:
        """Return a logical queue as its newest leader recorded it."""
        return max(
            self._queues_by_leader.get((topic, number), {}).values(),
            key=lambda queue: generation_order(queue.generation),
            default=None,
        )

    def was_forced(self, topic: str, number: LogicalQueueId) -> bool:
        """Return whether the leader of a queue opened it by force, because the old leader could not be reached."""
        queue = self.find_queue(topic, number)
        assert queue is not None, "a leader of the queue is known"
        before = queue.segments[: queue.segments.index(queue.leader)]
        return bool(before) and before[-1].forced

    def leaders(self, topic: str) -> dict[LogicalQueueId, str]:
        """Return the real leader of each queue of *topic*."""
        queues = {number: self.find_queue(name, number) for name, number in self._queues_by_leader if name == topic}
        return {number: queue.leader.broker for number, queue in queues.items() if queue is not None}

    def open_brokers(self, topic: str) -> dict[LogicalQueueId, str]:
        """Return the broker that holds each queue of *topic* open now."""
        return {key[1]: name for key, name in self._open_brokers.items() if key[0] == topic}

    def may_be_empty(self, queue: MessageQueue, start: int, end: int, power_lost: set[str]) -> bool:
        """Return whether offsets of a logical queue may have no message.

        They may in the gap of a forced move, and inside a segment whose broker lost power.
        """
        known = self.find_queue(*queue.key)
        segments = [segment for segment in known.segments if segment.is_decided] if known is not None else []
        if not segments:
            return False
        # Segments that never held a message are removed from the list at some time.
        first = segments[0].decided_first
        at = start if start >= first or segments[0].is_detached else first
        while at < end:
            index = max((index for index, segment in enumerate(segments) if segment.decided_first <= at), default=None)
            if index is None:
                return False
            segment, following = segments[index], segments[index + 1 : index + 2]
            if segment.forced and following and (segment.logical_end is None or at >= segment.logical_end):
                at = following[0].decided_first
            elif segment.broker in power_lost and (segment.logical_end is None or at < segment.logical_end):
                at = end if segment.logical_end is None else segment.logical_end
            else:
                return False
        return True

    # Queries for the end of a run.

    def find_unresolved(self) -> list[str]:
        """Return a description of every move that is neither done nor cancelled, and of every queue in between."""
        found: list[str] = []
        for name, components in self._find_running().items():
            mappings = components.mappings
            found += [
                f"{name}: move {state.move.id} is {state.move.state}"
                for state in mappings.moves().values()
                if state.move.state not in FINISHED
            ]
            for topic, mapping in mappings.topics().items():
                for number, queue in mapping.queues.items():
                    if queue.prepared is not None:
                        found.append(f"{name}: queue {number} of {topic} is prepared on {queue.prepared.broker}")
                    state = mappings.placement(topic, number).state
                    if queue.leader.broker == name and state != "open":
                        found.append(f"{name}: queue {number} of {topic} is {state}")
        return found


def _check_segment_ends(topic: str, queue: LogicalQueue, name: str, components: Components) -> None:
    """Check that each sealed segment of a broker has all records before its end: readers would skip missing ones."""
    for segment in queue.readable:
        if segment.broker == name and segment.end is not None:
            log = components.mappings.find_index(topic, segment.queue_id)
            end = segment.start if log is None else log.next_offset
            if end < segment.end:
                raise Violation(
                    "an end is where the records end",
                    f"generation {segment.generation} of logical queue {queue.queue} of {topic} should end at "
                    f"{segment.end}"
                    f" on {name}, and has records up to {end}",
                )
