from typing import Any

import pytest

from holdfast.broker.mapping.mapping_journal import MoveState
from holdfast.broker.mapping.mapping_table import Placement
from holdfast.model.logical_queue import LogicalQueue
from holdfast.model.mapping import TopicMapping, new_logical_queue
from holdfast.model.queue import MessageQueue
from holdfast.model.scope import GLOBAL, mock_broker
from holdfast.sim.checkers.single_leader import LeaderChecker
from holdfast.sim.world.world import Violation
from holdfast.wire.requests.moves import Move

QUEUE = MessageQueue("t", mock_broker(GLOBAL), 0)


class Puppet:
    """Stands in for the rooms of a broker: what it records of one queue, and whether it takes its sends."""

    def __init__(self, name: str, queue: LogicalQueue, state: Any) -> None:
        self.mappings = self
        self.relay = self
        self.moving: dict[tuple[str, int], list[object]] = {}
        self.suspended: dict[tuple[str, int], str] = {}
        self.version = 0
        self.move_state = "done"
        self.on_disk: LogicalQueue | None = None
        self.next_offset = 5
        self._name = name
        self._queue = queue
        self._state = state

    def is_held(self, queue_key: tuple[str, int]) -> bool:
        return queue_key in self.moving or queue_key in self.suspended

    def turn(self, state: str) -> None:
        """Change what it does."""
        self._state = state
        self.version += 1

    def topics(self) -> dict[str, TopicMapping]:
        return {"t": TopicMapping(topic="t", broker=self._name, total=1, queues={0: self._queue})}

    def announced(self) -> dict[str, TopicMapping]:
        if self.on_disk is None:
            return {}
        return {"t": TopicMapping(topic="t", broker=self._name, total=1, queues={0: self.on_disk})}

    def placement(self, topic: str, queue: int) -> Placement:
        assert (topic, queue) == ("t", 0)
        return Placement(self._state, generation=self._queue.generation)

    def find_index(self, topic: str, queue_id: int) -> Any:
        assert (topic, queue_id) == ("t", 0)
        return self

    def moves(self) -> dict[str, MoveState]:
        move = Move(id="m", topic="t", queues=[0], source="a", target="b", state=self.move_state)
        return {"m": MoveState(move=move)}


def a_moved_queue() -> LogicalQueue:
    """Return a queue whose first five messages are on a, and which b leads."""
    return new_logical_queue(0, "a", 0).prepare("b", 0).seal(5).open_next()


def heads_of(**brokers: Any) -> LeaderChecker:
    """Return the checker of brokers, all up."""
    return LeaderChecker(lambda: brokers)


def test_one_broker_that_holds_a_queue_open_is_well():
    """It is the leader, in truth."""
    heads = heads_of(a=Puppet("a", a_moved_queue(), "elsewhere"), b=Puppet("b", a_moved_queue(), "open"))

    heads.check()

    assert heads.leaders("t") == heads.open_brokers("t") == {0: "b"}
    assert heads.count_moves() == 1


def test_two_brokers_that_hold_a_queue_open_are_a_violation():
    """Whatever their generations: both would hand out offsets."""
    old, new = Puppet("a", new_logical_queue(0, "a", 0), "sealed"), Puppet("b", a_moved_queue(), "open")
    heads = heads_of(a=old, b=new)
    heads.check()

    old.turn("open")

    with pytest.raises(Violation, match="one open segment"):
        heads.check()


def test_a_broker_is_looked_at_after_every_event_that_it_takes():
    """Nothing else changes what it knows; most steps of a run are those of others."""
    old, new = Puppet("a", new_logical_queue(0, "a", 0), "sealed"), Puppet("b", a_moved_queue(), "open")
    turns = {"a": 1, "b": 1}
    heads = LeaderChecker(lambda: {"a": old, "b": new}, turns.__getitem__)  # type: ignore[dict-item, return-value]
    heads.check()
    old.turn("open")

    turns["b"] += 1
    heads.check()
    turns["a"] += 1

    with pytest.raises(Violation, match="one open segment"):
        heads.check()


@pytest.mark.parametrize("how", ["moving", "suspended"])
def test_a_broker_that_holds_sends_back_does_not_hold_the_queue_open(how: str):
    """It was just started, and asks whether it still leads."""
    old = Puppet("a", new_logical_queue(0, "a", 0), "open")
    getattr(old, how)["t", 0] = []
    heads = heads_of(a=old, b=Puppet("b", a_moved_queue(), "open"))
    heads.check()

    getattr(old, how).clear()

    with pytest.raises(Violation, match="one open segment"):
        heads.check()


def test_a_queue_is_opened_only_when_its_old_leader_has_sealed_it_on_disk():
    """In memory is not enough: a power cut would open it again."""
    old = Puppet("a", new_logical_queue(0, "a", 0).seal(5), "sealed")
    old.on_disk = new_logical_queue(0, "a", 0).seal(5)
    heads_of(a=old, b=Puppet("b", a_moved_queue(), "open")).check()

    old.on_disk = new_logical_queue(0, "a", 0)
    with pytest.raises(Violation, match="opened when granted"):
        heads_of(a=old, b=Puppet("b", a_moved_queue(), "open")).check()


def test_the_gap_behind_a_home_that_held_nothing_is_a_gap():
    """Also when that home is only listed as expired, or not at all any more."""
    forced = a_moved_queue().force("c", 0).fix_end(0).expire(1, 0)
    heads = heads_of(c=Puppet("c", forced, "open"))
    heads.check()

    assert heads.may_be_empty(QUEUE, 5, forced.leader.first, set())
    assert not heads.may_be_empty(QUEUE, 4, forced.leader.first, set())


def test_whoever_leads_is_told_of_whenever_anything_changed_there():
    """Not those who led before, whatever changes there."""
    told = []
    old, new = (
        Puppet("a", new_logical_queue(0, "a", 0).prepare("b", 0).seal(5), "sealed"),
        Puppet("b", a_moved_queue(), "open"),
    )
    brokers = {"a": old}
    heads = LeaderChecker(lambda: brokers)
    heads.on_leader = lambda *place: told.append(place)
    heads.check()
    heads.check()
    assert told == [("t", 0, "a")] * 2, "what is sealed is watched"

    brokers["b"] = new
    heads.check()
    del told[:]
    old.turn("elsewhere")
    heads.check()
    heads.check()
    assert not told

    new.turn("open")
    heads.check()
    heads.check()
    assert told == [("t", 0, "b")]


def test_a_leader_is_known_to_have_opened_behind_one_that_could_not_be_asked():
    """Also when the queue is about to move on; not when it has."""
    forced = a_moved_queue().force("c", 0)
    heads = heads_of(c=Puppet("c", forced.prepare("d", 0), "open"))
    heads.check()
    assert heads.was_forced("t", 0)

    heads = heads_of(d=Puppet("d", forced.prepare("d", 0).seal(9).open_next(), "open"))
    heads.check()
    assert not heads.was_forced("t", 0)


def test_messages_may_be_missing_where_power_was_lost_and_in_gaps_only():
    """A border between two brokers is no gap."""
    forced = a_moved_queue().force("c", 0).fix_end(3)
    heads = heads_of(c=Puppet("c", forced, "open"))
    heads.check()
    start = forced.leader.first

    assert not heads.may_be_empty(QUEUE, 2, 3, set())
    assert heads.may_be_empty(QUEUE, 2, 3, {"a"})
    assert not heads.may_be_empty(QUEUE, 4, 6, {"a"})
    assert heads.may_be_empty(QUEUE, 8, start, set())
    assert not heads.may_be_empty(QUEUE, 7, start, set())
    assert not heads.may_be_empty(QUEUE, 8, start + 1, set())


def test_a_move_that_is_neither_done_nor_taken_back_is_told():
    """And a queue that nobody takes sends of."""
    source = Puppet("a", new_logical_queue(0, "a", 0).prepare("b", 0), "sealed")
    source.move_state = "granted"

    found = heads_of(a=source).find_unresolved()

    assert found == ["a: move m is granted", "a: queue 0 of t is prepared on b", "a: queue 0 of t is sealed"]


def test_a_closed_home_that_lacks_what_is_before_its_end_is_a_violation():
    """Readers would wait there for ever; how much more is behind it does not matter."""
    old = Puppet("a", a_moved_queue(), "elsewhere")
    heads = heads_of(a=old, b=Puppet("b", a_moved_queue(), "open"))
    old.next_offset = 6
    heads.check()

    old.next_offset = 4
    old.turn("elsewhere")
    with pytest.raises(Violation, match="an end is where the records end"):
        heads.check()


def test_what_a_broker_led_before_it_was_started_anew_is_for_it_to_say():
    """It opened the queue by force, and lost power before that was on disk: another one leads it still."""
    brokers = {"a": Puppet("a", new_logical_queue(0, "a", 0), "open")}
    heads = LeaderChecker(lambda: brokers)
    heads.check()
    del brokers["a"]
    brokers["b"] = Puppet("b", new_logical_queue(0, "a", 0).force("b", 0), "open")
    heads.check()
    assert heads.leaders("t") == {0: "b"}

    brokers |= {
        name: Puppet(name, new_logical_queue(0, "a", 0), state) for name, state in (("a", "open"), ("b", "elsewhere"))
    }
    heads.check()

    assert heads.leaders("t") == {0: "a"}
