"""Batches that grow, and the lines in which they stand. Values of the accumulator; decides nothing.

topic ─┬─ unordered line                    messages without a key: each batch goes where there is room
       ├─ line of queue 0 ── closed, closed, open
       └─ line of queue 1 ── open           messages of the keys of the queue
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final, Protocol

import msgspec

from holdfast.client.messages.arguments import check_kind, check_seconds
from holdfast.client.messages.packing import Outgoing
from holdfast.client.produce.batch_plan import place_each
from holdfast.client.produce.key_sequencer import Turn
from holdfast.model.errors import ConfigError
from holdfast.model.message import Message, SendResult
from holdfast.model.queue import MessageQueue
from holdfast.model.topic import RETRY_PREFIX
from holdfast.wire.records.compression import Codec
from holdfast.wire.records.inner_batch import OPENED_SIZE_MAX

# Of the messages of a topic that are in no order.
UNORDERED_IN_FLIGHT: Final = 4
# About what a message that waits takes besides its bytes: a future, an id, places in some lists.
KEEP_BYTES: Final = 512
_MESSAGES_MAX: Final = 32_767


class Batching(msgspec.Struct, frozen=True):
    """How single messages are gathered into batches.

    Attributes:
        linger_s: How long the first message of a batch may wait for others; 0 until the next turn of the event loop.
        bytes_max: How large a batch may be, at most 15 MiB. A larger message travels alone. Brokers take 4 MiB unless
            they are told otherwise, of a batch that is kept whole as it is compressed.
        messages_max: How many messages it may hold, at most 32 767.
        waiting_bytes_max: How much may be taken and not acknowledged, all together. Each message counts as its bytes
            and about half a kilobyte of what is remembered of it.
        codec: How a batch that its broker keeps whole is compressed; None for not at all. Others cannot be.
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
            raise ConfigError(f"{self}: times and sizes of batches cannot be negative, and sizes not 0")
        if not 1 <= self.messages_max <= _MESSAGES_MAX:
            raise ConfigError(f"a batch may hold 1 to {_MESSAGES_MAX} messages, not {self.messages_max}")
        check_batch_size(self.bytes_max)


def check_batch_size(bytes_max: int) -> None:
    """Check that a batch of so many bytes goes into a request: a broker hangs up on one that is larger.

    Raises:
        TypeError: *bytes_max* is no number.
        ConfigError: it does not.
    """
    check_kind("the size of a batch", bytes_max, int)
    if bytes_max > OPENED_SIZE_MAX:
        raise ConfigError(
            f"a batch may have up to {OPENED_SIZE_MAX} bytes, not {bytes_max}: no broker takes larger ones"
        )


class Waiter(Protocol):
    """A future of asyncio, or one of another thread's."""

    def done(self) -> bool:
        """Say whether nobody wants to know any more."""
        ...

    def set_result(self, result: SendResult, /) -> None:
        """Tell where the message is."""
        ...

    def set_exception(self, exception: BaseException, /) -> None:
        """Tell why nobody knows where it is."""
        ...

    def cancel(self) -> object:
        """Tell that nobody will ever tell."""
        ...


class Item(msgspec.Struct, frozen=True):
    """One message that cannot simply join its batch. The attributes are those of a batch."""

    message: Message
    text: bytes
    future: Waiter
    size: int
    alone: Outgoing | None


class Batch:
    """Messages that travel together.

    Attributes:
        messages: What they are.
        texts: What the properties of each say behind its id.
        futures: Who waits for each.
        keys: The keys of those that have one.
        size: About how large they are together.
        alone: Instead of all this: the request of the only message, which no batch may hold.
        turn: Its place in the lines of the keys, once it is closed.
        ended: Done when everybody has been told.
    """

    __slots__ = ("alone", "ended", "futures", "keys", "messages", "size", "texts", "turn")

    def __init__(self, ended: asyncio.Future[None]) -> None:
        self.messages: list[Message] = []
        self.texts: list[bytes] = []
        self.futures: list[Waiter] = []
        self.keys: set[str] = set()
        self.size = 0
        self.alone: Outgoing | None = None
        self.turn: Turn | None = None
        self.ended = ended

    @property
    def cost(self) -> int:
        """What they count for as long as they wait."""
        return self.size + KEEP_BYTES * len(self.messages)

    def tell(self, ids: list[str], result: SendResult) -> None:
        """Tell each where it is; *result* is the first's place."""
        for future, place in zip(self.futures, place_each(ids, result), strict=True):
            if not future.done():
                future.set_result(place)

    def tell_failure(self, error: Exception) -> None:
        """Tell each that it failed."""
        for future in self.futures:
            if not future.done():
                future.set_exception(error)

    def drop(self) -> None:
        """Tell each that nobody will tell."""
        for future in self.futures:
            future.cancel()


class Line:
    """Batches that leave one after the other.

    Attributes:
        queue: Where they all go; None where there is room.
        in_flight: How many are on their way.
        open: The batch that is growing.
        is_ripe: Whether that may leave.
        timer: Makes it so.
        closed: Batches before it, which grow no more.
    """

    __slots__ = ("closed", "in_flight", "in_flight_max", "is_ripe", "open", "queue", "timer", "topic")

    def __init__(self, topic: str, queue: MessageQueue | None) -> None:
        self.topic = topic
        self.queue = queue
        self.in_flight = 0
        self.in_flight_max = UNORDERED_IN_FLIGHT if queue is None else 1
        self.open: Batch | None = None
        self.is_ripe = False
        self.timer: asyncio.Handle | None = None
        self.closed: deque[Batch] = deque()

    @property
    def is_busy(self) -> bool:
        """Whether anything waits or is on its way."""
        return bool(self.in_flight or self.closed) or self.open is not None


class TopicLines:
    """The lines of one topic.

    Attributes:
        publishable: The queues over which keys are spread.
        places: Keys that came lately, their lines, and what the properties say of a message that has only a key.
        takes_batches: Whether a batch may hold its messages.
        unrouted: What came before anybody knew the queues of keys, in order.
        routing: Who asks for them.
    """

    __slots__ = ("lines", "name", "places", "publishable", "routing", "takes_batches", "unordered", "unrouted")

    def __init__(self, name: str) -> None:
        self.name = name
        self.takes_batches = not name.startswith(RETRY_PREFIX)
        self.unordered = Line(name, None)
        self.lines: dict[MessageQueue, Line] = {}
        self.publishable: tuple[MessageQueue, ...] = ()
        self.places: dict[str, tuple[Line, bytes]] = {}
        self.unrouted: list[Item] = []
        self.routing: asyncio.Task[None] | None = None

    def line_of(self, queue: MessageQueue) -> Line:
        """Return the line of *queue*."""
        line = self.lines.get(queue)
        if line is None:
            line = self.lines[queue] = Line(self.name, queue)
        return line

    def spread_over(self, publishable: tuple[MessageQueue, ...]) -> None:
        """Spread keys over other queues from now on."""
        self.publishable = publishable
        self.places.clear()
        self.lines = {queue: line for queue, line in self.lines.items() if line.is_busy}

    def end_routing(self) -> list[Item]:
        """Return what waited for the queues: nobody asks for them any more."""
        self.routing = None
        waiting, self.unrouted = self.unrouted, []
        return waiting

    def every_line(self) -> tuple[Line, ...]:
        """Return all of them."""
        return (self.unordered, *self.lines.values())

    @property
    def is_busy(self) -> bool:
        """Whether anything waits or is on its way."""
        return bool(self.unrouted) or any(line.is_busy for line in self.every_line())
