"""Collects single messages into batches: `send_nowait` adds a message, and its batch is sent a moment later.

    put(m) ─> the line of its queue ─> open batch ── full, or old enough and nothing before it ─> request
                                                                                 a future each <── answer

Messages with a key, or for a given queue, join the line of that queue, and a line has **one request in flight**: a
second one could overtake the first when that is retried. Messages with neither join one line of their topic, and each
of its batches goes to any queue. Their order is not guaranteed, so several batches are in flight.

A batch that is old enough keeps growing while it cannot be sent: the slower the broker, the larger the batches. When it
is closed, it joins the lines of its keys (`key_sequencer`), in order with all other sends of these keys.

All unacknowledged bytes are counted and limited. Knows neither connections nor retries.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from typing import Final

from holdfast.client.cluster.cluster_client import ClusterClient
from holdfast.client.cluster.send_plan import queue_for_key
from holdfast.client.messages.arguments import NO_KEYS, ZERO
from holdfast.client.messages.packing import (
    check_properties_size,
    key_properties,
    message_properties,
    tag_properties,
)
from holdfast.client.produce.batch_lines import (
    MESSAGE_OVERHEAD_BYTES,
    Batching,
    Item,
    Line,
    OpenBatch,
    SendFuture,
    TopicLines,
)
from holdfast.client.produce.batch_plan import BatchPlan
from holdfast.client.produce.batch_sender import BatchSender
from holdfast.client.produce.key_sequencer import KeySequencer
from holdfast.client.produce.sender import SEND_TIMEOUT_S, find_queues
from holdfast.model.errors import ProducerFull, SendFailed
from holdfast.model.message import Message
from holdfast.model.queue import MessageQueue

# How many keys of a topic are cached with their lines and texts: hashing a key costs more than finding it here.
_CACHED_KEYS_MAX: Final = 100_000


class Accumulator:
    """The messages that one producer collects. Lives on one event loop.

    Args:
        client: Knows the queues over which keys are spread.
        sender: Sends the batches.
        sequencer: The turns of keys, shared with the producer's other sends.
        batching: The options for batches.
    """

    def __init__(self, client: ClusterClient, sender: BatchSender, sequencer: KeySequencer, batching: Batching) -> None:
        self._client = client
        self._sender = sender
        self._sequencer = sequencer
        self._linger_s = batching.linger_s
        self._plan = BatchPlan(sender.id_size, batching.bytes_max, batching.messages_max)
        self._overhead = self._plan.overhead
        self._bytes_max = batching.bytes_max
        self._messages_max = batching.messages_max
        self._waiting_bytes_max = batching.waiting_bytes_max
        self.loop = asyncio.get_running_loop()
        self._topics: dict[str, TopicLines] = {}
        self._closed_batches: set[OpenBatch] = set()  # batches that no longer grow and are not acknowledged yet
        self._waiting_bytes = 0  # bytes
        self._waiting_callers = 0  # callers that wait for space; no message may overtake them
        self._admission = asyncio.Lock()
        self._space_freed: asyncio.Future[None] | None = None

    def __bool__(self) -> bool:
        """Return whether any message was ever accepted whose order matters to other sends."""
        return bool(self._topics)

    # Accepting messages.

    def put(self, message: Message, future: SendFuture, queue: MessageQueue | None = None) -> None:
        """Accept *message* for *queue* or the queue of its key; *future* gets its outcome.

        Raises:
            ProducerFull: `waiting_bytes_max` is reached.
            LocalProtocolError: the message cannot be sent unchanged; the text says why.
        """
        lines = self._topics.get(message.topic)
        if (
            lines is None
            or queue is not None
            or self._waiting_callers
            or message.keys is not NO_KEYS
            or message.properties
            or message.delay_level is not ZERO
            or message.flag is not ZERO
            or message.body.__class__ is not bytes
        ):
            self._put_slowly(message, future, queue)
            return
        key, text, body_size = message.key, b"", len(message.body)
        if key is None:
            line = lines.unordered
        elif key in lines.key_cache and self._is_spread(lines):
            line, text = lines.key_cache[key]
        else:
            self._put_slowly(message, future, queue)
            return
        if message.tags is not None:
            text += tag_properties(message.tags)
        size = self._overhead + body_size + len(text)
        waiting = self._waiting_bytes + size + MESSAGE_OVERHEAD_BYTES
        batch = line.open_batch
        if batch is None or not body_size or batch.size + size > self._bytes_max or waiting > self._waiting_bytes_max:
            self._put_slowly(message, future, queue)
            return
        # The hot path: most messages join an open batch here, and this is all the work that each of them costs.
        self._waiting_bytes = waiting
        batch.size += size
        batch.messages.append(message)
        batch.texts.append(text)
        batch.futures.append(future)
        if key is not None:
            batch.keys.add(key)
        if len(batch.messages) >= self._messages_max:
            self._close(line)

    def _put_slowly(self, message: Message, future: SendFuture, queue: MessageQueue | None) -> None:
        item = self._prepare(message, future)
        if self._waiting_callers or not self.has_room(item.size):
            self._close_all()
            raise ProducerFull(
                f"{self._waiting_bytes} bytes wait for acknowledgement, at most {self._waiting_bytes_max} may: wait "
                "for a future"
            )
        self._accept(item, queue)

    def put_admitted(self, message: Message, future: SendFuture, queue: MessageQueue | None = None) -> None:
        """Accept *message* even if the limit is exceeded now: the caller asked `has_room` before.

        Raises:
            LocalProtocolError: the message cannot be sent unchanged; the text says why.
        """
        try:
            self.put(message, future, queue)
        except ProducerFull:
            # The caller asked with the size of the body only, and other messages have arrived since.
            self._accept(self._prepare(message, future), queue)

    async def put_soon(self, message: Message, future: SendFuture, queue: MessageQueue | None = None) -> None:
        """Wait until there is space, then accept *message* as `put` does. Callers are admitted in order.

        Raises:
            LocalProtocolError: the message cannot be sent unchanged; the text says why.
        """
        item = self._prepare(message, future)
        if not self._waiting_callers and self.has_room(item.size):
            self._accept(item, queue)
            return
        self._waiting_callers += 1
        try:
            async with self._admission:
                while not self.has_room(item.size):
                    self._close_all()
                    self._space_freed = self.loop.create_future()
                    await self._space_freed
                self._accept(item, queue)
        finally:
            self._waiting_callers -= 1

    def has_room(self, size: int, ahead: int = 0) -> bool:
        """Return whether a message of *size* bytes would fit after *ahead* bytes that come before it."""
        waiting = self._waiting_bytes + ahead
        # A message that is larger than the limit is accepted when nothing else waits.
        return waiting + size + MESSAGE_OVERHEAD_BYTES <= self._waiting_bytes_max or not waiting

    def _prepare(self, message: Message, future: SendFuture) -> Item:
        """Return *message* prepared to join its batch.

        Raises:
            LocalProtocolError: the message cannot be sent unchanged; the text says why.
        """
        text = message_properties(message).encode()
        check_properties_size(self._plan.id_size + len(text))
        size = self._plan.size_of(message, text)
        single = self._sender.pack(message) if self._plan.is_alone(message, size) else None
        return Item(message, text, future, size, single)

    def _accept(self, item: Item, queue: MessageQueue | None) -> None:
        self._waiting_bytes += item.size + MESSAGE_OVERHEAD_BYTES
        topic, key = item.message.topic, item.message.key
        lines = self._topics.get(topic)
        if lines is None:
            lines = self._topics[topic] = TopicLines(topic)
        if queue is not None:
            self._add(lines.line_of(queue), item)
        elif key is None:
            self._add(lines.unordered, item)
        elif lines.unrouted or (line := self._line_of_key(lines, key)) is None:
            lines.key_cache.clear()  # No message of these keys may join a line before those that wait for a route.
            lines.unrouted.append(item)
            if lines.routing is None:
                lines.routing = self._client.spawn(self._find_queues(lines))
        else:
            self._add(line, item)

    def _line_of_key(self, lines: TopicLines, key: str) -> Line | None:
        """Return the line of the queue of *key*, or None if the queues of the topic are not known yet."""
        route = self._client.routes.find(lines.name)
        if route is None or not route.publishable:
            return None
        if route.publishable is not lines.publishable:
            self._spread(lines, route.publishable)
        cached = lines.key_cache.get(key)
        if cached is not None:
            return cached[0]
        line = lines.line_of(queue_for_key(key, route.publishable))
        if len(lines.key_cache) < _CACHED_KEYS_MAX:
            lines.key_cache[key] = (line, key_properties(key))
        return line

    def _is_spread(self, lines: TopicLines) -> bool:
        """Return whether keys are spread over the queues that the topic has now."""
        route = self._client.routes.find(lines.name)
        return route is not None and route.publishable is lines.publishable

    def _spread(self, lines: TopicLines, publishable: tuple[MessageQueue, ...]) -> None:
        """Spread keys over new queues from now on. Messages in the old line of a key keep their earlier turn."""
        for line in lines.all_lines():
            self._close(line)
        lines.spread_over(publishable)

    async def _find_queues(self, lines: TopicLines) -> None:
        """Look up the queues of a topic, and move the messages that waited for them into lines."""
        try:
            publishable = await find_queues(self._client, lines.name, SEND_TIMEOUT_S)
        except SendFailed as failure:
            for item in lines.end_routing():
                self._waiting_bytes -= item.size + MESSAGE_OVERHEAD_BYTES
                if not item.future.done():
                    item.future.set_exception(failure)
            self._admit_next()
        else:
            self._spread(lines, publishable)
            for item in lines.end_routing():
                assert item.message.key is not None
                self._add(lines.line_of(queue_for_key(item.message.key, publishable)), item)

    # Batches.

    def _add(self, line: Line, item: Item) -> None:
        batch = line.open_batch
        if batch is not None and (item.single is not None or batch.size + item.size > self._bytes_max):
            self._close(line)
            batch = None
        if batch is None:
            batch = self._open(line)
        batch.messages.append(item.message)
        batch.texts.append(item.text)
        batch.futures.append(item.future)
        batch.size += item.size
        batch.single = item.single
        if item.message.key is not None:
            batch.keys.add(item.message.key)
        if item.single is not None or len(batch.messages) >= self._messages_max:
            self._close(line)

    def _open(self, line: Line) -> OpenBatch:
        batch = line.open_batch = OpenBatch(self.loop.create_future(), self._batch_ended)
        line.has_lingered = False
        if self._linger_s:
            line.timer = self.loop.call_later(self._linger_s, self._end_linger, line)
        else:
            line.timer = self.loop.call_soon(self._end_linger, line)
        return batch

    def _end_linger(self, line: Line) -> None:
        line.has_lingered = True
        self._send_ready(line)

    def _close(self, line: Line) -> None:
        """Close the open batch: it no longer grows, and is sent as soon as possible."""
        if line.open_batch is not None:
            self._stop_growth(line, line.open_batch)
            self._send_ready(line)

    def _stop_growth(self, line: Line, batch: OpenBatch) -> None:
        line.open_batch = None
        if line.timer is not None:
            line.timer.cancel()
        if batch.keys:
            batch.turn = self._sequencer.turn([(line.topic, key) for key in batch.keys])
            batch.turn.__enter__()
        self._closed_batches.add(batch)
        line.closed_batches.append(batch)

    def _send_ready(self, line: Line) -> None:
        """Send the batches that may be sent now."""
        while line.in_flight < line.in_flight_max and (batch := self._next_batch(line)) is not None:
            line.in_flight += 1
            self._client.spawn(self._send(line, batch))

    async def _send(self, line: Line, batch: OpenBatch) -> None:
        """Send *batch* and those that are ready after it."""
        try:
            await self._sender.send_each(line.topic, line.queue, self._ready_batches(line, batch))
        finally:
            line.in_flight -= 1
            self._send_ready(line)

    def _ready_batches(self, line: Line, first: OpenBatch) -> Iterator[OpenBatch]:
        batch: OpenBatch | None = first
        while batch is not None:
            yield batch
            batch = self._next_batch(line)

    def _next_batch(self, line: Line) -> OpenBatch | None:
        """Return the next batch of *line*, which leaves the line; None if none is ready."""
        if line.open_batch is not None and line.has_lingered and not line.closed_batches:
            self._stop_growth(line, line.open_batch)
        return line.closed_batches.popleft() if line.closed_batches else None

    def _batch_ended(self, batch: OpenBatch) -> None:
        self._closed_batches.discard(batch)
        self._waiting_bytes -= batch.cost
        self._admit_next()

    def _admit_next(self) -> None:
        if self._space_freed is not None and not self._space_freed.done():
            self._space_freed.set_result(None)

    # Waiting for sends.

    async def close_batches(self, keys: Iterable[tuple[str, str]]) -> None:
        """Return when all messages accepted so far for *keys*, pairs of topic and key, have their turns in line."""
        for topic, key in keys:
            lines = self._topics.get(topic)
            if lines is None:
                continue
            if lines.routing is not None:
                await asyncio.wait({lines.routing})
            for line in lines.all_lines():
                if line.open_batch is not None and key in line.open_batch.keys:
                    self._close(line)

    async def flush(self) -> None:
        """Send everything accepted so far without lingering, and return when all its futures are completed."""
        routing = [lines.routing for lines in self._topics.values() if lines.routing is not None]
        if routing:
            await asyncio.wait(routing)
        self._close_all()
        if self._closed_batches:
            await asyncio.wait({batch.ended for batch in self._closed_batches})

    async def drain(self) -> None:
        """Return when no message waits and no caller waits for space. Call it only when no new messages can arrive."""
        while self._waiting_bytes or self._waiting_callers:
            await self.flush()
            await asyncio.sleep(0)

    def forget(self, topics: Iterable[str]) -> None:
        """Discard the state of *topics* that have no message waiting or in flight."""
        for topic in topics:
            lines = self._topics.get(topic)
            if lines is not None and not lines.is_busy:
                del self._topics[topic]

    def _close_all(self) -> None:
        for lines in self._topics.values():
            for line in lines.all_lines():
                self._close(line)
