"""Messages to a listener, several at a time."""

import asyncio

import pytest
from tests.support.deliveries import a_reader, poll_until, pull_more, run_ready_tasks

from holdfast.client.consume import concurrent_delivery
from holdfast.client.consume.concurrent_delivery import ConcurrentDelivery
from holdfast.client.consume.listener import ListenerCall
from holdfast.client.consume.queue_reader import Delivery
from holdfast.model.message import ReceivedMessage


class Stage:
    """A listener whose calls a test lets end one by one."""

    def __init__(self, concurrency: int = 2, *, taken_back: bool = True) -> None:
        self.running: list[int] = []
        self.ends: dict[int, asyncio.Future[None]] = {}
        self.failures: list[tuple[int, str]] = []
        self._taken_back = taken_back
        self.work = ConcurrentDelivery(ListenerCall(self.listen, 1), self.fail, concurrency)
        self.work.start()

    async def listen(self, message: ReceivedMessage) -> None:
        """Run until the test says how it ends."""
        self.running.append(message.offset)
        self.ends[message.offset] = asyncio.get_running_loop().create_future()
        try:
            await self.ends[message.offset]
        finally:
            self.running.remove(message.offset)

    async def fail(self, delivery: Delivery, error: Exception) -> bool:
        """Take note of a failure."""
        self.failures.append((delivery.message.offset, str(error)))
        return self._taken_back


async def test_as_many_run_as_are_allowed():
    """The others wait their turn; what is done is committed in order."""
    stage, reader = Stage(concurrency=2), a_reader()
    stage.work.deliver(pull_more(reader, 3))
    await run_ready_tasks()
    assert stage.running == [0, 1]

    stage.ends[1].set_result(None)
    await run_ready_tasks()
    assert stage.running == [0, 2]
    assert reader.window.commit_offset == 0

    stage.ends[0].set_result(None)
    await run_ready_tasks()
    assert reader.window.commit_offset == 2
    stage.ends[2].set_result(None)
    assert await stage.work.stop(5) == []
    assert reader.window.commit_offset == 3


async def test_a_failure_that_the_broker_took_back_is_done():
    """It comes again as another message."""
    stage, reader = Stage(), a_reader()
    stage.work.deliver(pull_more(reader, 1))
    await run_ready_tasks()

    stage.ends[0].set_exception(ValueError("no"))
    await run_ready_tasks()

    assert stage.failures == [(0, "no")]
    assert reader.window.commit_offset == 1
    await stage.work.stop(5)


async def test_a_failure_that_nobody_took_is_tried_again_here(monkeypatch: pytest.MonkeyPatch):
    """After a pause, and until it is done nothing behind it is committed."""
    monkeypatch.setattr(concurrent_delivery, "_RETRY_PAUSE_S", 0)

    stage, reader = Stage(taken_back=False), a_reader()
    stage.work.deliver(pull_more(reader, 1))
    await run_ready_tasks()
    stage.ends.pop(0).set_exception(ValueError("no"))
    await poll_until(lambda: 0 in stage.ends)
    assert reader.window.commit_offset == 0
    assert not stage.work._timers  # Each holds a message, and a broker may refuse messages for days.

    stage.ends[0].set_result(None)
    await stage.work.stop(5)
    assert reader.window.commit_offset == 1


async def test_what_nobody_waits_for_is_not_begun():
    """The window was reset, or the queue is somebody else's."""
    stage, reader = Stage(), a_reader()
    deliveries = pull_more(reader, 1)
    reader.window.reset(50)

    stage.work.deliver(deliveries)
    await run_ready_tasks()

    assert stage.running == []
    await stage.work.release(reader)
    await stage.work.stop(5)


async def test_stopping_begins_nothing_and_waits_for_what_runs():
    """What was not begun stays undone."""
    stage, reader = Stage(concurrency=1), a_reader()
    stage.work.deliver(pull_more(reader, 2))
    await run_ready_tasks()

    stopping = asyncio.create_task(stage.work.stop(5))
    await run_ready_tasks()
    assert not stopping.done()
    stage.ends[0].set_result(None)

    assert await stopping == []
    assert reader.window.commit_offset == 1


async def test_stopping_interrupts_what_takes_too_long_and_returns_it():
    """So that it can be given back."""
    stage, reader = Stage(concurrency=1), a_reader()
    deliveries = pull_more(reader, 1)
    stage.work.deliver(deliveries)
    await run_ready_tasks()

    assert await stage.work.stop(0.01) == deliveries
    assert stage.running == []
    assert reader.window.commit_offset == 0
