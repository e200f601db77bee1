"""Delivers messages to `async for` loops.

    async for message in consumer:
        ...                          the message is done when the loop asks for the next one

If the loop ends with an exception or with `break`, its last message is not done and is redelivered. `ack` completes a
message earlier.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

from holdfast.client.consume.lock_renewal import ReaderLocks
from holdfast.client.consume.queue_reader import Delivery, QueueReader
from holdfast.model.errors import LocalProtocolError
from holdfast.model.message import ReceivedMessage
from holdfast.model.queue import MessageQueue


class IteratorDelivery:
    """The messages delivered to loops.

    Args:
        locks: The queue locks, if order matters; then only one loop is allowed.
        check_process: Raises in a forked child, which must neither read nor finish the messages of its parent.
    """

    def __init__(self, locks: ReaderLocks | None, check_process: Callable[[], None]) -> None:
        self._locks = locks
        self._check_process = check_process
        self._inbox: asyncio.Queue[Delivery | None] = asyncio.Queue()
        self._delivered: dict[tuple[MessageQueue, int], Delivery] = {}
        self._loops = 0

    def start(self) -> None:
        """Do nothing: the application's loop does the work."""

    def deliver(self, deliveries: list[Delivery]) -> None:
        """Queue messages for the loops, in this order."""
        for delivery in deliveries:
            self._inbox.put_nowait(delivery)

    async def release(self, reader: QueueReader) -> None:
        """Do nothing: a message that a loop holds is done when the loop continues."""

    async def stop(self, timeout_s: float) -> list[Delivery]:  # noqa: ARG002 - loops belong to the application
        """End every loop. The messages that they hold are not done, and are redelivered."""
        while not self._inbox.empty():
            self._inbox.get_nowait()
        self._inbox.put_nowait(None)
        return []

    async def iterate(self) -> AsyncIterator[ReceivedMessage]:
        """Yield messages; each is done when the next one is requested. Ends when the consumer is closed."""
        self._check_process()
        if self._locks is not None and self._loops:
            raise LocalProtocolError("an ordered consumer can have one loop only: two would break the order")
        self._loops += 1
        try:
            while (delivery := await self._next()) is not None:
                message = delivery.message
                self._delivered[message.queue, message.offset] = delivery
                yield message
                self._check_process()
                self.ack(message)
        finally:
            self._loops -= 1

    def ack(self, message: ReceivedMessage) -> None:
        """Record that *message* is done. Idempotent."""
        delivery = self.pop(message)
        if delivery is not None:
            delivery.finish()

    def pop(self, message: ReceivedMessage) -> Delivery | None:
        """Remove and return the delivery of a message that a loop holds, or None if there is none."""
        return self._delivered.pop((message.queue, message.offset), None)

    async def _next(self) -> Delivery | None:
        while True:
            delivery = await self._inbox.get()
            if delivery is None:
                self._inbox.put_nowait(None)  # for the other loops
                return None
            if self._locks is not None and delivery.is_current:
                await self._locks.acquire_lock(delivery.reader)
            if delivery.is_current:
                return delivery
