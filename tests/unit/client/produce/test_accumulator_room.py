"""How much may wait, and who is let in."""

import asyncio

import pytest
from tests.support.accumulators import FOREVER, accumulator_harness
from tests.support.deliveries import run_ready_tasks

from holdfast.model.errors import ProducerFull
from holdfast.model.message import Message, SendResult


async def test_no_more_is_taken_than_may_wait():
    """Until something is acknowledged; lingering would only prolong it."""
    async with accumulator_harness(linger_s=FOREVER, waiting_bytes_max=4000) as bench:
        for _ in range(2):
            bench.put(Message("t", bytes(1000)))
        with pytest.raises(ProducerFull, match="at most 4000"):
            bench.put(Message("t", bytes(1000)))
        await run_ready_tasks()
        bench.answer(0)
        await run_ready_tasks()

        bench.put(Message("t", bytes(1000)))
        await run_ready_tasks()
        assert [len(batch) for batch in bench.bodies] == [2]
        asyncio.get_running_loop().call_soon(asyncio.create_task, bench.answer_all())
        await bench.accumulator.flush()


async def test_one_message_always_finds_room():
    """However large it is, if nothing else is there."""
    async with accumulator_harness(waiting_bytes_max=10) as bench:
        bench.put(Message("t", bytes(1000)))
        await run_ready_tasks()
        assert [len(batch) for batch in bench.bodies] == [1]
        await bench.answer_all()


async def test_who_waits_for_room_is_not_passed():
    """First come, first served: also messages of one key that wait for room keep their order."""
    async with accumulator_harness(waiting_bytes_max=4000) as bench:
        loop = asyncio.get_running_loop()
        futures: list[asyncio.Future[SendResult]] = [loop.create_future() for _ in range(4)]
        waiting = [
            asyncio.create_task(bench.accumulator.put_soon(Message("t", body * 1000, key="a"), future))
            for body, future in zip((b"0", b"1", b"2", b"3"), futures, strict=True)
        ]
        await run_ready_tasks()
        assert [task.done() for task in waiting] == [True, True, False, False]
        bench.answer(0)
        while not waiting[2].done():
            # There is room as soon as the answer is there, but it is not for who comes now.
            with pytest.raises(ProducerFull):
                bench.put(Message("t", b"late", key="a"))
            await asyncio.sleep(0)
        await bench.answer_all()
        await asyncio.gather(*waiting, *futures)

        assert [body[:1] for batch in bench.bodies for body in batch] == [b"0", b"1", b"2", b"3"]


async def test_who_gives_up_waiting_for_room_leaves_nothing_behind():
    """The next one is let in."""
    async with accumulator_harness(waiting_bytes_max=1000) as bench:
        loop = asyncio.get_running_loop()
        bench.put(Message("t", bytes(1000)))
        tasks = [
            asyncio.create_task(bench.accumulator.put_soon(Message("t", body), loop.create_future()))
            for body in (b"gives up", b"stays")
        ]
        await run_ready_tasks()
        tasks[0].cancel()
        await run_ready_tasks()
        bench.answer(0)
        await tasks[1]
        await run_ready_tasks()
        assert bench.bodies[1:] == [[b"stays"]]
        await bench.answer_all()
        assert bench.put(Message("t", b"and now"))
        await run_ready_tasks()
        await bench.answer_all()
