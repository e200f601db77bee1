"""A queue arrives with the offsets and locks that it had, and with nobody else's."""

from tests.support.cluster.broker_machine import BrokerHarness

from holdfast.broker.mapping.mapping_journal import MoveState
from holdfast.broker.move.move_payload import MovePayload
from holdfast.broker.relay.forward_dedup import ForwardedNames
from holdfast.model.queue import MessageQueue
from holdfast.model.scope import mock_broker
from holdfast.wire.requests.moves import Move, OpenQueues

NAME = mock_broker("__global__")


def a_luggage(desk: BrokerHarness) -> MovePayload:
    return MovePayload(
        desk.components.offsets,
        desk.components.groups,
        desk.components.locks,
        ForwardedNames(desk.store, desk.components.reply_gate.is_acknowledged, desk.components.turn),
        desk.components.sink_progress,
        desk.components.members,
        desk.components.turn,
    )


def an_opening(luggage: MovePayload, *queues: int) -> OpenQueues:
    opening = OpenQueues(move="m", source="a", topic="T", scope="__global__", epoch=1, total=4, queues=[])
    return luggage.pack(opening, queues)


def a_packed_opening() -> OpenQueues:
    """What queues 0 and 1 of T take along from a broker where two groups consume them."""
    desk = BrokerHarness()
    desk.components.offsets.commit("g", "T", 0, 10)
    desk.components.offsets.commit("g", "T", 2, 12)
    desk.components.offsets.commit("h", "T", 1, 11)
    desk.components.offsets.commit("h", "other", 1, 99)
    queues = [MessageQueue("T", NAME, queue) for queue in (0, 2)]
    desk.components.locks.lock("g", "client", queues)
    return an_opening(a_luggage(desk), 0, 1)


def test_only_what_belongs_to_the_queues_is_packed() -> None:
    """Other queues and other topics stay."""
    opening = a_packed_opening()

    assert opening.offsets == {"g": {0: 10}, "h": {1: 11}}
    assert [(lock.group, lock.client, lock.queue) for lock in opening.locks] == [("g", "client", 0)]


def test_what_was_packed_is_there_after_unpacking() -> None:
    """The groups too: their consumers may be connected elsewhere."""
    desk = BrokerHarness()

    a_luggage(desk).unpack(a_packed_opening(), [0])

    assert desk.components.offsets.find("g", "T", 0) == 10
    assert desk.components.offsets.find("h", "T", 1) is None
    assert desk.components.groups.find("g") is not None
    assert desk.components.locks.lock("g", "another", [MessageQueue("T", NAME, 0)]) == []


def test_locks_are_left_behind_empty() -> None:
    """Who leads the queue no longer must not refuse it to anybody."""
    desk = BrokerHarness()
    queues = [MessageQueue("T", NAME, queue) for queue in (0, 1)]
    desk.components.locks.lock("g", "client", queues)

    a_luggage(desk).forget("T", [0])

    assert desk.components.locks.lock("g", "another", queues) == [queues[0]]


def test_resets_are_told_where_their_queue_is_and_nowhere_else() -> None:
    """Those of other queues stay; what was told already is no news."""
    old, new = BrokerHarness(), BrokerHarness()
    for queue in (0, 1, 2):
        old.components.offsets.reset("g", "T", queue, 5, deliver=queue != 1)
    luggage = a_luggage(old)

    a_luggage(new).unpack(an_opening(luggage, 0, 1), [0, 1])
    luggage.forget("T", [0, 1])

    assert [new.components.offsets.pop_reset("g", "T", queue, 9) for queue in (0, 1, 2)] == [5, None, None]
    assert [old.components.offsets.pop_reset("g", "T", queue, 9) for queue in (0, 1, 2)] == [None, None, 5]


def test_offsets_are_restored_only_where_the_file_is_older_than_the_move() -> None:
    """What was committed and saved since counts."""
    desk = BrokerHarness()
    luggage = a_luggage(desk)
    move = Move(id="m", topic="T", queues=[0, 1], source="a", target="b", state="done")
    state = MoveState(move=move, opening=a_packed_opening(), saved=luggage.save_count)
    desk.components.offsets.commit("g", "T", 0, 1)

    luggage.restore("c", [state])
    assert desk.components.offsets.find("g", "T", 0) == 1
    luggage.restore("b", [state])
    assert desk.components.offsets.find("g", "T", 0) == 10
    desk.components.offsets.commit("g", "T", 0, 15)
    desk.pass_time(5_000, "kept files")
    luggage.restore("b", [state])

    assert desk.components.offsets.find("g", "T", 0) == 15
