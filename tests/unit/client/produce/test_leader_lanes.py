"""Sends of one logical queue go to one broker at a time."""

import asyncio

from tests.support.deliveries import run_ready_tasks
from tests.support.static_topics import logical_queue

from holdfast.client.produce.leader_lanes import LeaderLanes


def test_many_sends_are_under_way_to_one_broker():
    """And to others in other queues."""
    lanes = LeaderLanes()

    assert lanes.enter(logical_queue(0), "a")
    assert lanes.enter(logical_queue(0), "a")
    assert lanes.enter(logical_queue(1), "b")
    assert not lanes.enter(logical_queue(0), "b")


def test_a_queue_changes_its_broker_when_nothing_is_in_flight():
    """Not with the first answer, only with the last."""
    lanes = LeaderLanes()
    lanes.enter(logical_queue(0), "a")
    lanes.enter(logical_queue(0), "a")

    lanes.leave(logical_queue(0))
    assert not lanes.enter(logical_queue(0), "b")

    lanes.leave(logical_queue(0))
    assert lanes.enter(logical_queue(0), "b")


async def test_the_end_of_what_is_in_flight_can_be_awaited():
    """By many; when nothing is, at once."""
    lanes = LeaderLanes()
    await lanes.wait_until_drained(logical_queue(0))
    lanes.enter(logical_queue(0), "a")
    waiting = [asyncio.ensure_future(lanes.wait_until_drained(logical_queue(0))) for _ in range(2)]
    await run_ready_tasks()
    assert not any(task.done() for task in waiting)

    lanes.leave(logical_queue(0))
    await asyncio.gather(*waiting)
