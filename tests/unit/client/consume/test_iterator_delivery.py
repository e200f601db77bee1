"""Messages to an `async for` loop."""

import asyncio

import pytest
from tests.support.deliveries import a_reader, pull_more, run_ready_tasks

from holdfast.client.consume.iterator_delivery import IteratorDelivery
from holdfast.client.consume.lock_renewal import NoLocks
from holdfast.client.consume.queue_reader import QueueReader
from holdfast.model.errors import LocalProtocolError


async def test_a_message_is_done_when_the_next_one_is_asked_for():
    """Not when it is handed out."""
    work, reader = IteratorDelivery(None, lambda: None), a_reader()
    work.start()
    work.deliver(pull_more(reader, 3))
    committed = []

    async for message in work.iterate():
        committed.append(reader.window.commit_offset)
        if message.offset == 2:
            break

    assert committed == [0, 1, 2]
    assert reader.window.commit_offset == 2


async def test_ack_is_earlier():
    """And may be said twice."""
    work, reader = IteratorDelivery(None, lambda: None), a_reader()
    work.deliver(pull_more(reader, 1))

    async for message in work.iterate():
        work.ack(message)
        work.ack(message)
        break

    assert reader.window.commit_offset == 1


async def test_stopping_ends_every_loop():
    """What was not handed out is not done."""
    work, reader = IteratorDelivery(None, lambda: None), a_reader()

    async def loop() -> list[int]:
        return [message.offset async for message in work.iterate()]

    loops = [asyncio.create_task(loop()) for _ in range(2)]
    await run_ready_tasks()
    work.deliver(pull_more(reader, 1))
    await run_ready_tasks()
    work.deliver(pull_more(reader, 1))
    await work.release(reader)
    await work.stop(5)

    assert sorted(await loops[0] + await loops[1]) == [0]
    assert reader.window.commit_offset == 1


async def test_what_nobody_waits_for_is_not_handed_out():
    """The window was reset meanwhile."""
    work, reader = IteratorDelivery(None, lambda: None), a_reader()
    work.deliver(pull_more(reader, 2))
    reader.window.reset(50)
    work.deliver(pull_more(reader, 1))

    async for message in work.iterate():
        assert message.offset == 50
        break


async def test_an_ordered_loop_waits_for_the_lock():
    """And there is only one."""
    locked = asyncio.Event()

    class Locks(NoLocks):
        async def acquire_lock(self, reader: QueueReader) -> None:
            """Wait for the test."""
            await locked.wait()

    work, reader = IteratorDelivery(Locks(), lambda: None), a_reader()
    work.deliver(pull_more(reader, 1))
    iterator = work.iterate()
    waiting = asyncio.create_task(anext(iterator))
    await run_ready_tasks()
    assert not waiting.done()
    with pytest.raises(LocalProtocolError, match="one loop"):
        await anext(work.iterate())

    locked.set()
    assert (await waiting).offset == 0
