"""Messages that were pulled, for whoever works on them: a reader that never reads, and deliveries of its window."""

import asyncio
from collections.abc import Callable
from typing import cast

import msgspec

from holdfast.client.consume.queue_reader import Delivery, QueueReader, ReaderContext
from holdfast.model.message import ReceivedMessage
from holdfast.model.queue import MessageQueue


def a_received_message(queue: MessageQueue, offset: int, body: bytes = b"") -> ReceivedMessage:
    """Return a message of *queue*."""
    return ReceivedMessage(
        queue.topic, body or b"%d" % offset, queue, offset, {}, 1, 2, 0, 0, 0, 1000 + offset, bytes(8), bytes(8)
    )


def a_reader(queue_id: int = 0, *, offset: int = 0) -> QueueReader:
    """Return a reader that never reads. Needs a running loop."""
    return QueueReader(cast("ReaderContext", None), MessageQueue("t", "broker-a", queue_id), offset)


def pull_more(reader: QueueReader, count: int) -> list[Delivery]:
    """Let *reader* have pulled *count* more messages."""
    window = reader.window
    first = window.next_offset
    messages = [a_received_message(reader.queue, offset) for offset in range(first, first + count)]
    return [Delivery(message, reader, window.generation) for message in window.add(messages, first + count)]


def with_failures(delivery: Delivery, times: int) -> Delivery:
    """Return the same delivery of a message that failed *times* times before."""
    message = msgspec.structs.replace(delivery.message, reconsume_times=times)
    return Delivery(message, delivery.reader, delivery.generation)


async def run_ready_tasks() -> None:
    """Let everything happen that can happen without time passing."""
    for _ in range(30):
        await asyncio.sleep(0)


async def poll_until(condition: Callable[[], bool]) -> None:
    """Return once *condition* is true."""
    while not condition():  # noqa: ASYNC110 - what is waited for tells nobody
        await asyncio.sleep(0.001)
