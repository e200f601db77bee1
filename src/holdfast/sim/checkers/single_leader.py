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

from holdfast.broker.assembly import Rooms
from holdfast.broker.mapping.mapping_table import FINISHED
from holdfast.model.logical_queue import LogicalQueue
from holdfast.model.queue import MessageQueue
from holdfast.sim.world.world import Violation

Key = tuple[str, int]
"""Topic and logical queue."""


class _Seen(msgspec.Struct):
    """The queues that one process held open when it was last inspected.

    Attributes:
        turns: How many events it had handled.
        waits: It holds requests back or has sealed a queue, so it is inspected again after every event that it handles.
    """

    rooms: Rooms
    turns: int
    version: int
    waits: bool
    held: tuple[Key, ...]


class Heads:
    """Tracks the leader of every logical queue.

    Args:
        find: Returns the components of every broker that is up.
        count_turns: Returns how many events a broker has handled, since nothing else changes its records. Without it,
            any step may have changed every broker.

    Attributes:
        on_leader: Called with (topic, queue, broker) for each queue that a broker's own records say it leads, whenever
            something changed there. The broker may have sealed the queue, or not know yet whether it may accept sends.
    """

    def __init__(
        self, find: Callable[[], Mapping[str, Rooms]], count_turns: Callable[[str], int] | None = None
    ) -> None:
        steps = itertools.count()
        self.on_leader: Callable[[str, int, str], None] = lambda _topic, _queue, _broker: None
        self._find = find
        self._count_turns = count_turns or (lambda _name: next(steps))
        self._holders: dict[Key, str] = {}
        self._seen: dict[str, _Seen] = {}
        self._led: dict[Key, dict[str, LogicalQueue]] = {}  # By broker that claims to lead it.
        self._moves: dict[str, str] = {}

    # After every step.

    def check(self) -> None:
        """Inspect every broker that changed."""
        up = self._find()
        gone = self._seen.keys() - up.keys()
        changed = bool(gone)
        for name in sorted(gone):
            del self._seen[name]
        for name, rooms in up.items():
            seen, turns = self._seen.get(name), self._count_turns(name)
            if seen is None or seen.rooms is not rooms:
                self._forget(name)
                seen = None
            elif seen.turns == turns:
                continue
            waits = bool(rooms.relaying.moving or rooms.relaying.unsure)
            if seen is None or seen.version != rooms.mappings.version or waits or seen.waits:
                self._seen[name] = self._look(name, rooms, turns)
                changed = True
        if changed:
            self._compare()

    def _forget(self, name: str) -> None:
        """Forget what a restarted broker led: a power cut may have taken its unsynced records."""
        for led in self._led.values():
            led.pop(name, None)

    def _look(self, name: str, rooms: Rooms, turns: int) -> _Seen:
        mappings, is_held = rooms.mappings, rooms.relaying.is_held
        waits, held = bool(rooms.relaying.moving or rooms.relaying.unsure), []
        for topic, mapping in mappings.topics().items():
            for number, queue in mapping.queues.items():
                key = (topic, number)
                state = mappings.place(topic, number).state
                waits = waits or state == "sealed"
                if state == "open" and not is_held(key):
                    held.append(key)
                led = self._led.setdefault(key, {})
                if queue.leader.broker == name and queue.leader.is_decided:
                    led[name] = queue
                    if all(known.generation <= queue.generation for known in led.values()):
                        self.on_leader(topic, number, name)
                else:
                    led.pop(name, None)
                _judge_ends(topic, queue, name, rooms)
        for move in mappings.moves().values():
            if move.move.source == name:
                self._moves[move.move.id] = move.move.state
        return _Seen(rooms, turns, mappings.version, waits, tuple(sorted(held)))

    def _compare(self) -> None:
        holder: dict[Key, str] = {}
        for name, seen in self._seen.items():
            for key in seen.held:
                if key in holder:
                    generations = [
                        f"{other} at generation {self._seen[other].rooms.mappings.place(*key).generation}"
                        for other in (holder[key], name)
                    ]
                    raise Violation(
                        "one open segment", f"logical queue {key[1]} of {key[0]} is open on {' and '.join(generations)}"
                    )
                holder[key] = name
        before, self._holders = self._holders, holder
        for key, name in holder.items():
            if before.get(key) != name:
                self._judge_opening(key)

    def _judge_opening(self, key: Key) -> None:
        """Check that the old leader, if it is up, has sealed the queue durably: no power cut may undo that."""
        queue = self.find_queue(*key)
        homes = () if queue is None else queue.segments
        old = homes[-2] if len(homes) > 1 else None
        source = None if old is None else self._seen.get(old.broker)
        if old is None or source is None or old.forced:
            return
        record = source.rooms.mappings.announced().get(key[0])
        known = None if record is None or key[1] not in record.queues else record.queues[key[1]].find(old.generation)
        if known is not None and known.is_open:
            raise Violation(
                "opened when granted",
                f"logical queue {key[1]} of {key[0]} is open on {homes[-1].broker}, and not sealed on the disk of"
                f" {old.broker}",
            )

    # Queries.

    def count_moves(self) -> int:
        """Return the number of completed moves."""
        return sum(state == "done" for state in self._moves.values())

    def find_queue(self, topic: str, number: int) -> LogicalQueue | None:
        """Return a logical queue as its newest leader recorded it."""
        return max(self._led.get((topic, number), {}).values(), key=lambda queue: queue.generation, default=None)

    def was_forced(self, topic: str, number: int) -> bool:
        """Return whether the leader of a queue opened it by force, because the old leader could not be reached."""
        queue = self.find_queue(topic, number)
        assert queue is not None, "a leader of the queue is known"
        before = queue.segments[: queue.segments.index(queue.leader)]
        return bool(before) and before[-1].forced

    def leaders(self, topic: str) -> dict[int, str]:
        """Return the real leader of each queue of *topic*."""
        queues = {number: self.find_queue(name, number) for name, number in self._led if name == topic}
        return {number: queue.leader.broker for number, queue in queues.items() if queue is not None}

    def heads(self, topic: str) -> dict[int, str]:
        """Return the broker that holds each queue of *topic* open now."""
        return {key[1]: name for key, name in self._holders.items() if key[0] == topic}

    def may_lack(self, queue: MessageQueue, start: int, end: int, holed: set[str]) -> bool:
        """Return whether offsets of a logical queue may have no message.

        They may in the gap of a forced move, and inside a segment whose broker lost power.
        """
        known = self.find_queue(queue.topic, queue.queue_id)
        homes = [home for home in known.segments if home.is_decided] if known is not None else []
        if not homes:
            return False
        # Segments that never held a message are removed from the list at some time.
        at = start if start >= homes[0].first or homes[0].cut else homes[0].first
        while at < end:
            place = max((place for place, home in enumerate(homes) if home.first <= at), default=None)
            if place is None:
                return False
            home, following = homes[place], homes[place + 1 : place + 2]
            if home.forced and following and (home.last is None or at >= home.last):
                at = following[0].first
            elif home.broker in holed and (home.last is None or at < home.last):
                at = end if home.last is None else home.last
            else:
                return False
        return True

    # Queries for the end of a run.

    def find_unresolved(self) -> list[str]:
        """Return a description of every move that is neither done nor cancelled, and of every queue in between."""
        found: list[str] = []
        for name, rooms in self._find().items():
            mappings = rooms.mappings
            found += [
                f"{name}: move {state.move.id} is {state.move.state}"
                for state in mappings.moves().values()
                if state.move.state not in FINISHED
            ]
            for topic, mapping in mappings.topics().items():
                for number, queue in mapping.queues.items():
                    if queue.prepared is not None:
                        found.append(f"{name}: queue {number} of {topic} is prepared on {queue.prepared.broker}")
                    state = mappings.place(topic, number).state
                    if queue.leader.broker == name and state != "open":
                        found.append(f"{name}: queue {number} of {topic} is {state}")
        return found


def _judge_ends(topic: str, queue: LogicalQueue, name: str, rooms: Rooms) -> None:
    """Check that each sealed segment of a broker has all records before its end: readers would skip missing ones."""
    for home in queue.readable:
        if home.broker == name and home.is_sealed:
            log = rooms.mappings.find_log(topic, home.queue_id)
            end = home.start if log is None else log.next_offset
            if end < home.end:
                raise Violation(
                    "an end is where the records end",
                    f"generation {home.generation} of logical queue {queue.queue} of {topic} should end at {home.end}"
                    f" on {name}, and has records up to {end}",
                )
