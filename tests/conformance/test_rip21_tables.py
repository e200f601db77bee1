"""The eight tables of the proposal for logical queues, row by row: each is reached by doing what its text says."""

import pytest
from tests.support.static_topics import prepare_again

from holdfast.model.errors import MappingRefused
from holdfast.model.leader_planning import plan_drain, plan_spread
from holdfast.model.mapping import LogicalQueue, mapping_rows, new_logical_queue

Queues = dict[int, LogicalQueue]

MESSAGES = 101  # The proposal's ranges are inclusive: 0-100 are this many.


def shown(queues: Queues) -> list[str]:
    """Return the table as the proposal prints it."""
    return [f"{row.broker} | {row.queue_id} | {row.label} | {row.status}" for row in mapping_rows(queues.values())]


def rows(text: str) -> list[str]:
    return [line.strip() for line in text.strip().splitlines()]


def at_first() -> Queues:
    """Return four logical queues on two brokers."""
    homes = [("broker1", 0), ("broker1", 1), ("broker2", 0), ("broker2", 1)]
    return {number: new_logical_queue(number, *home) for number, home in enumerate(homes)}


def migrate(queue: LogicalQueue, broker: str, queue_id: int, *, messages: int) -> LogicalQueue:
    """Return the queue after a move, its old home having taken *messages* in its time."""
    return queue.prepare(broker, queue_id).seal(messages).open_next()


def migrated() -> Queues:
    queues = at_first()
    return {**queues, 0: migrate(queues[0], "broker2", 2, messages=MESSAGES)}


def expired() -> Queues:
    queues = migrated()
    return {**queues, 0: queues[0].expire(0, 0)}


def offlined() -> Queues:
    """Return the queues after broker2 was drained as the planner says."""
    queues = at_first()
    leaders = {number: queue.leader.broker for number, queue in queues.items()}
    free = iter((2, 3))
    for move in plan_drain("broker2", {"t": leaders}, ["broker1", "broker2"]):
        queues[move.queue] = migrate(queues[move.queue], move.target, next(free), messages=MESSAGES)
    return queues


def removed() -> Queues:
    queues = offlined()
    for number in (2, 3):
        queues[number] = queues[number].expire(0, number - 2).prune({"broker2"})
    return queues


def test_one_message_queue_belongs_to_one_logical_queue():
    """The first table, with the status that every later one has."""
    expected = """
        broker1 | 0 | 0 | Normal
        broker1 | 1 | 1 | Normal
        broker2 | 0 | 2 | Normal
        broker2 | 1 | 3 | Normal
    """

    assert shown(at_first()) == rows(expected)


def test_a_migrated_queue_is_read_only_where_it_was():
    """The old broker serves the old records; the new one goes on at the next offset."""
    expected = """
        broker1 | 0 | 0(0-100) | ReadOnly
        broker1 | 1 | 1 | Normal
        broker2 | 0 | 2 | Normal
        broker2 | 1 | 3 | Normal
        broker2 | 2 | 0(101-) | Normal
    """

    assert shown(migrated()) == rows(expected)


def test_a_cleaned_queue_is_expired():
    """Neither readable nor writable, still listed."""
    expected = """
        broker1 | 0 | 0(-) | Expired
        broker1 | 1 | 1 | Normal
        broker2 | 0 | 2 | Normal
        broker2 | 1 | 3 | Normal
        broker2 | 2 | 0(101-) | Normal
    """

    queues = expired()

    assert shown(queues) == rows(expected)
    assert queues[0].minimum == 101
    assert [segment.broker for segment in queues[0].readable] == ["broker2"]


def test_migrating_back_uses_an_expired_queue_again():
    """Its old entry disappears; it starts at 0 of a fresh physical queue."""
    expected = """
        broker1 | 0 | 0(201-) | Normal
        broker1 | 1 | 1 | Normal
        broker2 | 0 | 2 | Normal
        broker2 | 1 | 3 | Normal
        broker2 | 2 | 0(101-200) | ReadOnly
    """
    queues = expired()

    queues[0] = prepare_again(queues[0], "broker1").seal(100).open_next()

    assert shown(queues) == rows(expected)
    assert queues[0].leader.start == 0


def test_migrating_back_before_expiry_takes_a_new_queue():
    """The old one still has its records, and cannot be had."""
    expected = """
        broker1 | 0 | 0(0-100) | ReadOnly
        broker1 | 1 | 1 | Normal
        broker1 | 2 | 0(201-) | Normal
        broker2 | 0 | 2 | Normal
        broker2 | 1 | 3 | Normal
        broker2 | 2 | 0(101-200) | ReadOnly
    """
    queues = migrated()

    with pytest.raises(MappingRefused, match="one queue, one segment"):
        queues[0].prepare("broker1", 0)
    queues[0] = migrate(queues[0], "broker1", 2, messages=100)

    assert shown(queues) == rows(expected)


def test_an_offlined_broker_leads_nothing():
    """All its logical queues are migrated away."""
    expected = """
        broker1 | 0 | 0 | Normal
        broker1 | 1 | 1 | Normal
        broker1 | 2 | 2(101-) | Normal
        broker1 | 3 | 3(101-) | Normal
        broker2 | 0 | 2(0-100) | ReadOnly
        broker2 | 1 | 3(0-100) | ReadOnly
    """

    assert shown(offlined()) == rows(expected)


def test_a_broker_is_removed_when_its_records_are_cleaned():
    """And not before."""
    expected = """
        broker1 | 0 | 0 | Normal
        broker1 | 1 | 1 | Normal
        broker1 | 2 | 2(101-) | Normal
        broker1 | 3 | 3(101-) | Normal
    """

    with pytest.raises(MappingRefused, match="still needs broker2"):
        offlined()[2].prune({"broker2"})

    assert shown(removed()) == rows(expected)


def test_a_new_broker_takes_some_queues():
    """Which the planner chooses: its share, and no more."""
    expected = """
        broker1 | 0 | 0 | Normal
        broker1 | 1 | 1 | Normal
        broker1 | 2 | 2(101-200) | ReadOnly
        broker1 | 3 | 3(101-200) | ReadOnly
        broker3 | 0 | 2(201-) | Normal
        broker3 | 1 | 3(201-) | Normal
    """
    queues = removed()
    leaders = {number: queue.leader.broker for number, queue in queues.items()}

    for queue_id, move in enumerate(plan_spread("broker3", {"t": leaders}, ["broker1"])):
        queues[move.queue] = migrate(queues[move.queue], move.target, queue_id, messages=100)

    assert shown(queues) == rows(expected)
