"""Messages to a listener, several at a time, in no particular order.

    delivered ─> inbox ─> N workers ─> listener ─ returned ─> done
                   ^                      └─ raised ─> given back to the broker ─> done
                   └──── after a pause ────────────── could not be given back

What is in the inbox is bounded by what the readers may pull.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final

from holdfast.client.consume.listener import ListenerCall
from holdfast.client.consume.queue_reader import Delivery, QueueReader
from holdfast.client.messages.in_flight import InFlight

_AGAIN_S: Final = 5.0

OnFailure = Callable[[Delivery, Exception], Awaitable[bool]]
"""Sees to a message whose listener raised. False: it could not, the message shall be tried again here."""


class ConcurrentWork:
    """The workers of one consumer.

    Args:
        call: The listener.
        on_failure: What to do when it raised.
        concurrency: How many calls at a time.
    """

    def __init__(self, call: ListenerCall, on_failure: OnFailure, concurrency: int) -> None:
        self._call = call
        self._on_failure = on_failure
        self._concurrency = concurrency
        self._inbox: asyncio.Queue[Delivery] = asyncio.Queue()
        self._tasks: list[asyncio.Task[None]] = []
        self._running: set[Delivery] = set()
        self._in_flight = InFlight()
        self._timers: set[asyncio.TimerHandle] = set()
        self._is_stopped = False

    def start(self) -> None:
        """Start the workers."""
        self._tasks = [spawn(self._work()) for _ in range(self._concurrency)]

    def deliver(self, deliveries: list[Delivery]) -> None:
        """Take messages, to be worked on as soon as a worker is free."""
        for delivery in deliveries:
            self._inbox.put_nowait(delivery)

    async def leave(self, reader: QueueReader) -> None:
        """Nothing to wait for: somebody else begins where we committed, whatever still runs here."""

    async def stop(self, timeout_s: float) -> list[Delivery]:
        """Begin nothing new, wait for what runs, and return what did not end in time; that is interrupted."""
        self._is_stopped = True
        for timer in self._timers:
            timer.cancel()
        while not self._inbox.empty():
            self._inbox.get_nowait()
        try:
            async with asyncio.timeout(timeout_s):
                await self._in_flight.ended()
        except TimeoutError:
            pass  # What still runs is returned.
        left = [delivery for delivery in self._running if delivery.is_current]
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._call.close()
        return left

    async def _work(self) -> None:
        while True:
            delivery = await self._inbox.get()
            if not delivery.is_current or self._is_stopped:
                continue
            with self._in_flight:
                self._running.add(delivery)
                try:
                    await self._consume(delivery)
                finally:
                    self._running.discard(delivery)

    async def _consume(self, delivery: Delivery) -> None:
        try:
            await self._call(delivery.message)
        except Exception as error:  # noqa: BLE001 - the user's code: whatever it raises, the message comes again
            if not await self._on_failure(delivery, error):
                self._later(delivery)
                return
        delivery.finish()

    def _later(self, delivery: Delivery) -> None:
        if self._is_stopped:
            return
        timer = asyncio.get_running_loop().call_later(_AGAIN_S, self._inbox.put_nowait, delivery)
        self._timers.add(timer)


def spawn(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    """Run *work* on its own; the caller keeps the task."""
    return asyncio.get_running_loop().create_task(work)
