"""Messages to a listener, one at a time for each queue."""

import asyncio

from tests.support.deliveries import a_reader, poll_until, pull_more, run_ready_tasks, with_failures

from holdfast.client.consume.listener import ListenerCall, RetryLater
from holdfast.client.consume.ordered_delivery import OrderedDelivery
from holdfast.client.consume.queue_reader import Delivery, QueueReader
from holdfast.model.message import ReceivedMessage


class Stage:
    """A listener whose calls a test lets end one by one."""

    def __init__(self, *, concurrency: int = 4, retries_max: int | None = None, pause_s: float = 0.0) -> None:
        self.begun: list[tuple[int, int, int]] = []
        self.ends: dict[int, asyncio.Future[None]] = {}
        self.dead: list[int] = []
        self.takes_dead = True
        self.locked: set[int] = {0, 1, 2}
        self.lock_changed = asyncio.Event()
        self.work = OrderedDelivery(
            ListenerCall(self.listen, 1),
            self,
            self.to_dead_letter,
            concurrency=concurrency,
            retries_max=retries_max,
            pause_s=pause_s,
        )
        self.work.start()

    async def listen(self, message: ReceivedMessage) -> None:
        """Run until the test says how it ends."""
        queue_id = message.queue.queue_id
        self.begun.append((queue_id, message.offset, message.reconsume_times))
        self.ends[queue_id] = asyncio.get_running_loop().create_future()
        await self.ends[queue_id]

    async def acquire_lock(self, reader: QueueReader) -> None:
        """Wait for the lock as the test grants it."""
        while reader.queue.queue_id not in self.locked:
            self.lock_changed.clear()
            await self.lock_changed.wait()

    def has_lock(self, reader: QueueReader) -> bool:
        """Say whether the test grants the lock."""
        return reader.queue.queue_id in self.locked

    async def to_dead_letter(self, delivery: Delivery) -> bool:
        """Take a message that failed too often."""
        self.dead.append(delivery.message.offset)
        return self.takes_dead

    async def end(self, queue_id: int, error: Exception | None = None) -> None:
        """Let the call for a queue end."""
        future = self.ends.pop(queue_id)
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)
        await run_ready_tasks()


async def test_a_queue_goes_one_by_one_and_queues_side_by_side():
    """The second message of a queue begins when the first is done."""
    stage, one, two = Stage(), a_reader(0), a_reader(1)
    stage.work.deliver(pull_more(one, 2))
    stage.work.deliver(pull_more(two, 1))
    await run_ready_tasks()
    assert stage.begun == [(0, 0, 0), (1, 0, 0)]

    await stage.end(0)
    assert stage.begun[2:] == [(0, 1, 0)]
    assert one.window.commit_offset == 1
    await stage.end(0)
    stage.work.deliver(pull_more(one, 1))
    await run_ready_tasks()
    assert stage.begun[3:] == [(0, 2, 0)]

    await stage.end(0)
    await stage.end(1)
    assert (one.window.commit_offset, two.window.commit_offset) == (3, 1)
    await stage.work.stop(5)


async def test_a_failure_holds_up_its_queue_only():
    """The same message again, with one more failure to its name; then the next."""
    stage, one = Stage(), a_reader(0)
    stage.work.deliver(pull_more(one, 2))
    await run_ready_tasks()

    stage.ends.pop(0).set_exception(ValueError("no"))
    await poll_until(lambda: 0 in stage.ends)
    assert stage.begun == [(0, 0, 0), (0, 0, 1)]
    assert one.window.commit_offset == 0

    await stage.end(0)
    assert stage.begun[2:] == [(0, 1, 0)]
    await stage.end(0)
    await stage.work.stop(5)


async def test_no_more_queues_at_a_time_than_allowed():
    """The next one begins when a call ends."""
    stage = Stage(concurrency=1)
    for reader in (a_reader(0), a_reader(1)):
        stage.work.deliver(pull_more(reader, 1))
    await run_ready_tasks()
    assert len(stage.begun) == 1

    await stage.end(stage.begun[0][0])
    assert len(stage.begun) == 2
    await stage.end(stage.begun[1][0])
    await stage.work.stop(5)


async def test_after_too_many_failures_a_message_goes_to_the_dead_letter_topic():
    """And the queue goes on."""
    stage, reader = Stage(retries_max=3), a_reader(0)
    first, second = pull_more(reader, 2)
    stage.work.deliver([with_failures(first, 3), second])
    await run_ready_tasks()

    await stage.end(0, ValueError("no"))

    assert stage.dead == [0]
    assert stage.begun[-1] == (0, 1, 0)
    await stage.end(0)
    assert reader.window.commit_offset == 2
    await stage.work.stop(5)


async def test_a_listener_may_send_a_message_to_the_dead_letter_topic_at_once():
    """By raising `RetryLater(-1)`."""
    stage, reader = Stage(), a_reader(0)
    stage.work.deliver(pull_more(reader, 1))
    await run_ready_tasks()

    await stage.end(0, RetryLater(-1))

    assert stage.dead == [0]
    assert reader.window.commit_offset == 1
    await stage.work.stop(5)


async def test_without_the_lock_nothing_is_begun():
    """Somebody else may be consuming the queue."""
    stage, reader = Stage(), a_reader(0)
    stage.locked.clear()
    stage.work.deliver(pull_more(reader, 1))
    await run_ready_tasks()
    assert stage.begun == []

    stage.locked.add(0)
    stage.lock_changed.set()
    await run_ready_tasks()
    assert stage.begun == [(0, 0, 0)]
    await stage.end(0)
    await stage.work.stop(5)


async def test_a_lock_that_is_lost_while_waiting_for_a_slot_is_waited_for_again():
    """Another member may have it by now."""
    stage, one, two = Stage(concurrency=1), a_reader(0), a_reader(1)
    stage.work.deliver(pull_more(one, 1))
    await run_ready_tasks()
    stage.work.deliver(pull_more(two, 1))
    await run_ready_tasks()

    stage.locked.discard(1)
    await stage.end(0)
    assert stage.begun == [(0, 0, 0)]

    stage.locked.add(1)
    stage.lock_changed.set()
    await run_ready_tasks()
    assert stage.begun[1:] == [(1, 0, 0)]
    await stage.end(1)
    await stage.work.stop(5)


async def test_leaving_a_queue_waits_for_the_message_that_is_worked_on():
    """The next owner begins behind it. What was not begun is not begun."""
    stage, reader = Stage(), a_reader(0)
    stage.work.deliver(pull_more(reader, 3))
    await run_ready_tasks()

    leaving = asyncio.create_task(stage.work.release(reader))
    await run_ready_tasks()
    assert not leaving.done()
    await stage.end(0)
    await leaving

    assert stage.begun == [(0, 0, 0)]
    assert reader.window.commit_offset == 1
    await stage.work.release(reader)  # twice is harmless


async def test_leaving_does_not_wait_for_a_queue_that_rests_or_has_no_lock():
    """It would wait for nothing."""
    stage, resting, lockless = Stage(pause_s=3600), a_reader(0), a_reader(7)
    stage.work.deliver(pull_more(resting, 1))
    stage.work.deliver(pull_more(lockless, 1))
    await run_ready_tasks()
    await stage.end(0, ValueError("no"))

    await stage.work.release(resting)
    await stage.work.release(lockless)

    assert (resting.window.commit_offset, lockless.window.commit_offset) == (0, 0)


async def test_stopping_waits_and_then_interrupts():
    """What was interrupted is not done."""
    stage, one, two = Stage(), a_reader(0), a_reader(1)
    stage.work.deliver(pull_more(one, 2))
    stage.work.deliver(pull_more(two, 1))
    await run_ready_tasks()
    stage.ends.pop(0).set_result(None)

    assert await stage.work.stop(0.01) == []

    assert one.window.commit_offset >= 1
    assert two.window.commit_offset == 0


async def test_a_reset_ends_the_retries_of_what_nobody_waits_for():
    """An operator moved the group past a message that always fails."""
    stage, reader = Stage(), a_reader(0)
    stage.work.deliver(pull_more(reader, 1))
    await run_ready_tasks()
    reader.window.reset(100)
    stage.ends.pop(0).set_exception(ValueError("no"))

    await poll_until(lambda: stage.work._lines[reader].task is None)

    assert stage.begun == [(0, 0, 0)]
    stage.work.deliver(pull_more(reader, 1))
    await run_ready_tasks()
    assert stage.begun[1:] == [(0, 100, 0)]
    await stage.end(0)
    await stage.work.stop(5)
