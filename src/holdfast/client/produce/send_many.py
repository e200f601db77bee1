"""Sends a list of messages in few requests.

    messages ─┬─ line of topic t               no keys: several batches in flight, each to any queue
              ├─ line of queue 0 of topic t    messages whose keys belong to the queue: one batch after another
              └─ line of queue 1 of topic t

Lines are sent concurrently. A line of a call is separate from those of other calls and of the accumulator: the key
sequencer alone keeps their order, so that calls with different keys do not wait for each other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import cast

from holdfast.client.cluster.cluster_client import ClusterClient
from holdfast.client.cluster.send_plan import queue_for_key, require_publishable
from holdfast.client.produce.batch_lines import UNORDERED_IN_FLIGHT
from holdfast.client.produce.batch_plan import Batch, cut_into_batches
from holdfast.client.produce.batch_sender import BatchSender
from holdfast.model.errors import HoldfastError, SendFailed, SendManyFailed
from holdfast.model.message import Message, SendResult
from holdfast.model.queue import MessageQueue

_LineKey = tuple[str, MessageQueue | None]


class SendMany:
    """One call of `send_many`.

    Args:
        client: Knows the queues over which keys are spread.
        sender: Sends the batches.
        messages: The messages; their topics are as the wire knows them.
        texts: For each message, the properties that follow its id.
        bytes_max: The maximum size of a batch.
        timeout_s: How long to look for the queues of keys.
    """

    def __init__(
        self,
        client: ClusterClient,
        sender: BatchSender,
        messages: Sequence[Message],
        texts: Sequence[bytes],
        *,
        bytes_max: int,
        timeout_s: float,
    ) -> None:
        self._client = client
        self._sender = sender
        self._messages = messages
        self._texts = texts
        self._bytes_max = bytes_max
        self._timeout_s = timeout_s
        self._results: list[SendResult | SendFailed | None] = [None] * len(messages)
        self._has_failed = False

    async def send(self) -> list[SendResult]:
        """Send all messages and return their positions.

        Raises:
            SendManyFailed: some messages were not acknowledged.
            SendFailed: the queues of a topic are unknown; nothing was sent.
        """
        lines = await self._find_lines()
        await asyncio.gather(*(self._send_line(topic, queue, line) for (topic, queue), line in lines.items()))
        if self._has_failed:
            raise SendManyFailed(self._results)
        return cast("list[SendResult]", self._results)

    async def _find_lines(self) -> dict[_LineKey, Sequence[int]]:
        """Return the indexes of the messages of each line. Only messages with keys have a queue."""
        messages = self._messages
        topics = {message.topic for message in messages}
        if len(topics) == 1 and all(message.key is None for message in messages):
            return {(topics.pop(), None): range(len(messages))}
        queues = {
            topic: await self._queues_of(topic)
            for topic in {message.topic for message in messages if message.key is not None}
        }
        lines: dict[_LineKey, Sequence[int]] = {}
        lines_by_key: dict[tuple[str, str | None], list[int]] = {}
        for index, message in enumerate(messages):
            line = lines_by_key.get((message.topic, message.key))
            if line is None:
                queue = None if message.key is None else queue_for_key(message.key, queues[message.topic])
                line = cast("list[int]", lines.setdefault((message.topic, queue), []))
                lines_by_key[message.topic, message.key] = line
            line.append(index)
        return lines

    async def _queues_of(self, topic: str) -> tuple[MessageQueue, ...]:
        try:
            return require_publishable(await self._client.publish_route(topic, timeout_s=self._timeout_s), topic)
        except HoldfastError as error:
            raise SendFailed(error, attempts=1, maybe_stored=False) from error

    async def _send_line(self, topic: str, queue: MessageQueue | None, line: Sequence[int]) -> None:
        # Batches with keys are sent one after another: a batch could overtake an earlier one that is retried.
        concurrency = UNORDERED_IN_FLIGHT if queue is None else 1
        batches = self._batches(line)
        await asyncio.gather(*(self._send_batches(topic, queue, batches) for _ in range(concurrency)))

    def _batches(self, line: Sequence[int]) -> Iterator[tuple[Sequence[int], Batch]]:
        """Yield the batches of a line, each with the indexes of its messages."""
        messages = [self._messages[index] for index in line]
        texts = [self._texts[index] for index in line]
        for cut in cut_into_batches(messages, texts, self._sender.id_size, self._bytes_max):
            single = None if cut.is_batch else self._sender.pack(messages[cut.start])
            part = slice(cut.start, cut.stop)
            yield line[part], Batch(messages[part], texts[part], single)

    async def _send_batches(
        self, topic: str, queue: MessageQueue | None, batches: Iterator[tuple[Sequence[int], Batch]]
    ) -> None:
        """Send the batches one after another, as long as there are any."""
        results: Iterator[SendResult | SendFailed]
        for indexes, batch in batches:
            try:
                results = await self._sender.send(topic, queue, batch)
            except SendFailed as error:
                self._has_failed = True
                results = repeat(error, len(indexes))
            for index, result in zip(indexes, results, strict=True):
                self._results[index] = result
