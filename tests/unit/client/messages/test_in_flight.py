"""Counting what is under way."""

import asyncio

import pytest

from holdfast.client.messages.in_flight import InFlight


async def test_nothing_under_way_is_ended():
    """At once: the waiter never leaves the running task."""
    in_flight = InFlight()

    with pytest.raises(StopIteration):
        in_flight.wait_until_idle().send(None)

    assert len(in_flight) == 0


async def test_the_end_is_the_end_of_the_last():
    """However many there were, and nested."""
    in_flight = InFlight()
    may_end = asyncio.Event()

    async def work() -> None:
        with in_flight, in_flight:
            await may_end.wait()

    tasks = [asyncio.create_task(work()) for _ in range(2)]
    await asyncio.sleep(0)
    waiting = asyncio.create_task(in_flight.wait_until_idle())
    await asyncio.sleep(0)
    assert len(in_flight) == 4
    assert not waiting.done()

    may_end.set()
    await waiting
    assert len(in_flight) == 0
    await asyncio.gather(*tasks)


async def test_every_waiter_sees_the_end():
    """No matter when it began to wait, and also of operations that begin after an earlier end."""
    in_flight = InFlight()
    for _ in range(2):
        in_flight.__enter__()
        waiting = []
        for _ in range(2):
            waiting.append(asyncio.create_task(in_flight.wait_until_idle()))
            await asyncio.sleep(0)
        assert not any(task.done() for task in waiting)

        in_flight.__exit__()
        async with asyncio.timeout(5):
            await asyncio.gather(*waiting)
