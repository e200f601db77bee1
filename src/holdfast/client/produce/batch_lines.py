"""Holds the options, open batches and lines of the accumulator, which decides.

topic ─┬─ unordered line                    messages without a key: each batch goes to any queue
       ├─ line of queue 0 ── closed, closed, open
       └─ line of queue 1 ── open           messages whose keys belong to the queue
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final, Protocol

import msgspec

from holdfast.client.messages.arguments import check_kind, check_seconds
from holdfast.client.messages.packing import Outgoing
from holdfast.client.produce.batch_sender import Batch
from holdfast.client.produce.key_sequencer import KeyTurn
from holdfast.model.errors import ConfigError
from holdfast.model.message import Message, SendResult
from holdfast.model.queue import MessageQueue
from holdfast.wire.records.compression import Codec
from holdfast.wire.records.inner_batch import COUNT_MAX, UNPACKED_SIZE_MAX

# The limit of batches in flight for the messages of a topic that need no order.
UNORDERED_IN_FLIGHT: Final = 4
# About the memory that a waiting message needs besides its bytes: a future, an id, entries in some lists.
MESSAGE_OVERHEAD_BYTES: Final = 512


class Batching(msgspec.Struct, frozen=True):
    """The options for collecting single messages into batches.

    Attributes:
        linger_s: How long the first message of a batch may wait for others; 0 for one turn of the event loop.
        bytes_max: The maximum size of a batch, at most 15 MiB. A larger message is sent alone. By default brokers
            accept 4 MiB; for a batch that is stored whole this limits its compressed size.
        messages_max: The maximum number of messages in a batch, at most 32 767.
        waiting_bytes_max: The limit of unacknowledged bytes in total. Each message counts with its size plus about half
            a kilobyte for its bookkeeping.
        codec: The compression of batches that the broker stores whole; None for none. Other batches cannot be
            compressed.
    """

    linger_s: float = 0.005
    bytes_max: int = 512 * 1024
    messages_max: int = 1000
    waiting_bytes_max: int = 64 * 1024 * 1024
    codec: Codec | None = None

    def __post_init__(self) -> None:
        check_seconds("linger_s", self.linger_s)
        for name in ("bytes_max", "messages_max", "waiting_bytes_max"):
            check_kind(name, getattr(self, name), int)
        check_kind("codec", self.codec, Codec, optional=True)
        if not (self.linger_s >= 0 and self.bytes_max > 0 and self.waiting_bytes_max > 0):
            raise ConfigError(f"{self}: linger_s must be at least 0, bytes_max and waiting_bytes_max more than 0")
        if not 1 <= self.messages_max <= COUNT_MAX:
            raise ConfigError(f"a batch may hold 1 to {COUNT_MAX} messages, not {self.messages_max}")
        check_batch_size(self.bytes_max)


def check_batch_size(bytes_max: int) -> None:
    """Check that a batch of *bytes_max* bytes fits into a request: a broker closes the connection on a larger one.

    Raises:
        TypeError: *bytes_max* is not an int.
        ConfigError: *bytes_max* is too large.
    """
    check_kind("the size of a batch", bytes_max, int)
    if bytes_max > UNPACKED_SIZE_MAX:
        raise ConfigError(
            f"a batch may have up to {UNPACKED_SIZE_MAX} bytes, not {bytes_max}: no broker accepts larger ones"
        )


class SendFuture(Protocol):
    """A future of asyncio or of another thread."""

    def done(self) -> bool:
        """Return whether the future is already done, for instance cancelled by the caller."""
        ...

    def set_result(self, result: SendResult, /) -> None:
        """Complete the future with the position of the message."""
        ...

    def set_exception(self, exception: BaseException, /) -> None:
        """Complete the future with the error of the send."""
        ...

    def cancel(self) -> object:
        """Cancel the future: the outcome will not be known."""
        ...


class Item(msgspec.Struct, frozen=True):
    """One message that needs more than to join its batch. See `OpenBatch` for the attributes."""

    message: Message
    text: bytes
    future: SendFuture
    size: int
    single: Outgoing | None


class OpenBatch(Batch):
    """A batch that grows until it is closed.

    Attributes:
        futures: For each message, the future to complete.
        keys: The keys of the messages that have one.
        size: The approximate total size of the messages.
        turn: Its turn in the lines of its keys, once the batch is closed.
        ended: Done when all futures are completed.

    Args:
        ended: A new future.
        on_end: Called when all futures are completed.
    """

    __slots__ = ("_on_end", "ended", "futures", "keys", "size", "turn")

    def __init__(self, ended: asyncio.Future[None], on_end: Callable[[OpenBatch], None]) -> None:
        super().__init__([], [])
        self.futures: list[SendFuture] = []
        self.keys: set[str] = set()
        self.size = 0
        self.turn: KeyTurn | None = None
        self.ended = ended
        self._on_end = on_end

    @property
    def cost(self) -> int:
        """The bytes that the batch counts towards `waiting_bytes_max`."""
        return self.size + MESSAGE_OVERHEAD_BYTES * len(self.messages)

    async def wait_for_turn(self) -> None:
        """Return when all earlier sends of its keys have ended."""
        if self.turn is not None:
            await self.turn.wait_until_ready()

    def to_single(self, pack: Callable[[Message], Outgoing]) -> Outgoing | None:
        """Return the request of the only message, made by *pack* if no other has joined the batch."""
        if self.single is None and len(self.messages) == 1:
            return pack(self.messages[0])
        return self.single

    def complete(self, results: Iterator[SendResult]) -> None:
        """Complete each future with the position of its message."""
        for future, result in zip(self.futures, results, strict=True):
            if not future.done():
                future.set_result(result)

    def fail(self, error: Exception) -> None:
        """Fail each future with *error*."""
        for future in self.futures:
            if not future.done():
                future.set_exception(error)

    def cancel(self) -> None:
        """Cancel each future: the outcome will not be known."""
        for future in self.futures:
            future.cancel()

    def end(self) -> None:
        """Let later sends of its keys begin, and report the end."""
        if self.turn is not None:
            self.turn.__exit__()
        self.ended.set_result(None)
        self._on_end(self)


def in_flight_max(queue: MessageQueue | None) -> int:
    """Return how many requests to *queue*, or to any queue, may be in flight.

    A second one to a queue could overtake the first when that is retried.
    """
    return UNORDERED_IN_FLIGHT if queue is None else 1


class Line:
    """Batches that are sent in order.

    Attributes:
        queue: The queue of all batches; None for any queue.
        in_flight: The number of batches in flight.
        open_batch: The batch that is growing.
        has_lingered: Whether the open batch has lingered long enough to be sent.
        timer: Sets *has_lingered*.
        closed_batches: Earlier batches, which no longer grow.
    """

    __slots__ = (
        "closed_batches",
        "has_lingered",
        "in_flight",
        "in_flight_max",
        "open_batch",
        "queue",
        "timer",
        "topic",
    )

    def __init__(self, topic: str, queue: MessageQueue | None) -> None:
        self.topic = topic
        self.queue = queue
        self.in_flight = 0
        self.in_flight_max = in_flight_max(queue)
        self.open_batch: OpenBatch | None = None
        self.has_lingered = False
        self.timer: asyncio.Handle | None = None
        self.closed_batches: deque[OpenBatch] = deque()

    @property
    def is_busy(self) -> bool:
        """Whether any batch waits or is in flight."""
        return bool(self.in_flight or self.closed_batches) or self.open_batch is not None


class TopicLines:
    """The lines of one topic.

    Attributes:
        publishable: The queues over which keys are spread.
        key_cache: Recent keys, each with its line and with the properties of a message that has only this key.
        unrouted: Messages that arrived before the queues of their keys were known, in order.
        routing: The task that looks up these queues.
    """

    __slots__ = ("key_cache", "lines", "name", "publishable", "routing", "unordered", "unrouted")

    def __init__(self, name: str) -> None:
        self.name = name
        self.unordered = Line(name, None)
        self.lines: dict[MessageQueue, Line] = {}
        self.publishable: tuple[MessageQueue, ...] = ()
        self.key_cache: dict[str, tuple[Line, bytes]] = {}
        self.unrouted: list[Item] = []
        self.routing: asyncio.Task[None] | None = None

    def line_of(self, queue: MessageQueue) -> Line:
        """Return the line of *queue*; create it if needed."""
        line = self.lines.get(queue)
        if line is None:
            line = self.lines[queue] = Line(self.name, queue)
        return line

    def spread_over(self, publishable: tuple[MessageQueue, ...]) -> None:
        """Spread keys over the queues *publishable* from now on."""
        self.publishable = publishable
        self.key_cache.clear()
        self.lines = {queue: line for queue, line in self.lines.items() if line.is_busy}

    def end_routing(self) -> list[Item]:
        """Return the messages that waited for the queues, and end the lookup."""
        self.routing = None
        waiting, self.unrouted = self.unrouted, []
        return waiting

    def all_lines(self) -> tuple[Line, ...]:
        """Return all lines of the topic."""
        return (self.unordered, *self.lines.values())

    @property
    def is_busy(self) -> bool:
        """Whether any message waits or is in flight."""
        return bool(self.unrouted) or any(line.is_busy for line in self.all_lines())
