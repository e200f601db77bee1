"""Delivers messages to a listener, several at a time, in no particular order.

    delivered ─> inbox ─> N workers ─> listener ─ returned ─> done
                   ^                      └─ raised ─> sent back to the broker ─> done
                   └──── after a pause ────────────── could not be sent back

The limits of the readers' windows bound the inbox.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final

from holdfast.client.consume.listener import ListenerCall
from holdfast.client.consume.queue_reader import Delivery, QueueReader
from holdfast.client.messages.in_flight import InFlight

_RETRY_PAUSE_S: Final = 5.0

OnFailure = Callable[[Delivery, Exception], Awaitable[bool]]
"""Handles a message whose listener raised. Returns False if it could not; then the message is retried here."""


class ConcurrentDelivery:
    """The workers of one consumer.

    Args:
        call: The listener.
        on_failure: Called when the listener raised.
        concurrency: The number of concurrent calls.
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
        self._tasks = [spawn(self._run_worker()) for _ in range(self._concurrency)]

    def deliver(self, deliveries: list[Delivery]) -> None:
        """Queue messages for the next free worker."""
        for delivery in deliveries:
            self._inbox.put_nowait(delivery)

    async def release(self, reader: QueueReader) -> None:
        """Do nothing: the next owner begins at our committed offset, whatever still runs here."""

    async def stop(self, timeout_s: float) -> list[Delivery]:
        """Begin nothing new, and wait for running calls. Cancel late ones and return their messages."""
        self._is_stopped = True
        for timer in self._timers:
            timer.cancel()
        while not self._inbox.empty():
            self._inbox.get_nowait()
        try:
            async with asyncio.timeout(timeout_s):
                await self._in_flight.wait_until_idle()
        except TimeoutError:
            pass  # The calls that still run are returned below.
        unfinished = [delivery for delivery in self._running if delivery.is_current]
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._call.close()
        return unfinished

    async def _run_worker(self) -> None:
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
        except Exception as error:  # noqa: BLE001 - application code: whatever it raises, the message is redelivered
            if not await self._on_failure(delivery, error):
                self._retry_later(delivery)
                return
        delivery.finish()

    def _retry_later(self, delivery: Delivery) -> None:
        if self._is_stopped:
            return

        def redeliver() -> None:
            self._timers.discard(timer)
            self._inbox.put_nowait(delivery)

        timer = asyncio.get_running_loop().call_later(_RETRY_PAUSE_S, redeliver)
        self._timers.add(timer)


def spawn(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    """Run *work* in a task that the caller keeps."""
    return asyncio.get_running_loop().create_task(work)
