"""Delivers messages to a listener, one at a time per queue, in the order of the queue.

    queue 0   m1 ── done ── m2 ── raised ── pause ── m2 again ── done ── m3
    queue 1        m1 ── done ── m2 ...                                           several queues at a time

A failed message blocks its queue: order matters more than progress. The lock of the queue is checked right before each
message is started, so that no other member of the group consumes the same queue.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from holdfast.client.consume.concurrent_delivery import spawn
from holdfast.client.consume.listener import ListenerCall, is_final, log_failure
from holdfast.client.consume.lock_renewal import ReaderLocks
from holdfast.client.consume.queue_reader import Delivery, QueueReader
from holdfast.model.message import ReceivedMessage

log = logging.getLogger("holdfast.client")

RELEASE_WAIT_S: Final = 30.0

ToDeadLetter = Callable[[Delivery], Awaitable[bool]]
"""Sends a message to the dead-letter topic. Returns False if it could not."""


class OrderedDelivery:
    """The lines of one consumer: one task per queue with messages.

    Args:
        call: The listener.
        locks: The queue locks.
        to_dead_letter: Sends messages that failed too often to the dead-letter topic.
        concurrency: The number of queues processed at a time.
        retries_max: How often a message is retried before it goes to the dead-letter topic; None for no limit.
        pause_s: How long a queue pauses after a failure.
    """

    def __init__(
        self,
        call: ListenerCall,
        locks: ReaderLocks,
        to_dead_letter: ToDeadLetter,
        *,
        concurrency: int,
        retries_max: int | None,
        pause_s: float,
    ) -> None:
        self._call = call
        self._locks = locks
        self._to_dead_letter = to_dead_letter
        self._slots = asyncio.Semaphore(concurrency)
        self._retries_max = retries_max
        self._pause_s = pause_s
        self._lines: dict[QueueReader, _Line] = {}

    def start(self) -> None:
        """Do nothing: the task of a line starts with its first message."""

    def deliver(self, deliveries: list[Delivery]) -> None:
        """Append messages of one queue to its line."""
        reader = deliveries[0].reader
        line = self._lines.setdefault(reader, _Line())
        line.waiting.extend(deliveries)
        self._run_line(reader, line)

    async def release(self, reader: QueueReader) -> None:
        """Begin nothing new of a queue that another member gets, and wait for the message in progress."""
        line = self._lines.pop(reader, None)
        if line is not None:
            await self._end_lines([line], RELEASE_WAIT_S)

    async def stop(self, timeout_s: float) -> list[Delivery]:
        """Begin nothing new, and wait for messages in progress. Late ones are cancelled and not done."""
        await self._end_lines(list(self._lines.values()), timeout_s)
        self._lines.clear()
        self._call.close()
        return []

    async def _end_lines(self, lines: list[_Line], timeout_s: float) -> None:
        for line in lines:
            line.ending.set()
            line.waiting.clear()
            if line.task is not None and not line.is_processing:
                line.task.cancel()
        tasks = {line.task for line in lines if line.task is not None}
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=timeout_s)
            for task in late:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _run_line(self, reader: QueueReader, line: _Line) -> None:
        if line.task is None and line.waiting and not line.ending.is_set():
            line.task = spawn(self._run(line))
            line.task.add_done_callback(lambda task: self._ended(reader, line, task))

    def _ended(self, reader: QueueReader, line: _Line, task: asyncio.Task[None]) -> None:
        line.task = None
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("the line of %s failed", reader.queue, exc_info=error)
        self._run_line(reader, line)

    async def _run(self, line: _Line) -> None:
        while line.waiting:
            await self._consume(line.waiting.popleft(), line)

    async def _consume(self, delivery: Delivery, line: _Line) -> None:
        """Process one message until it is done or no longer current."""
        message = delivery.message
        while await self._acquire_slot(delivery, line):
            try:
                await self._call(message)
            except Exception as error:  # noqa: BLE001 - application code: whatever it raises, the message is retried
                failure: Exception | None = error
            else:
                failure = None
            finally:
                self._slots.release()
            if failure is None or await self._dead_letter_if_final(delivery, failure, message):
                delivery.finish()
                return
            if await line.pause(self._pause_s):
                return
            message = msgspec.structs.replace(message, reconsume_times=message.reconsume_times + 1)

    async def _acquire_slot(self, delivery: Delivery, line: _Line) -> bool:
        """Return True holding a slot and the lock; False if the message is no longer current."""
        line.is_processing = False
        while delivery.is_current:
            await self._locks.acquire_lock(delivery.reader)
            await self._slots.acquire()
            # The wait may have been long, and the lock may be lost again.
            if delivery.is_current and self._locks.has_lock(delivery.reader):
                line.is_processing = True
                return True
            self._slots.release()
        return False

    async def _dead_letter_if_final(self, delivery: Delivery, error: Exception, message: ReceivedMessage) -> bool:
        """Return whether this failure was the last one and the message is in the dead-letter topic now."""
        log_failure(message, error)
        is_last = is_final(error) or (self._retries_max is not None and message.reconsume_times >= self._retries_max)
        return is_last and await self._to_dead_letter(delivery)


class _Line:
    """The waiting messages of one queue, and the task that processes them.

    Attributes:
        is_processing: Whether a message is being processed, as opposed to waiting for its lock or a slot.
    """

    def __init__(self) -> None:
        self.waiting: deque[Delivery] = deque()
        self.task: asyncio.Task[None] | None = None
        self.is_processing = False
        self.ending = asyncio.Event()

    async def pause(self, pause_s: float) -> bool:
        """Pause the queue. Return True if the line ends meanwhile."""
        try:
            async with asyncio.timeout(pause_s):
                await self.ending.wait()
        except TimeoutError:
            return False
        return True
