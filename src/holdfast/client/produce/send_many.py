"""Sends a list of messages in few requests, and gathers their results.

    messages ─┬─ line of topic t               no keys: several batches in flight, each to any queue
              ├─ line of queue 0 of topic t    messages whose keys belong to the queue: one batch after another
              └─ line of queue 1 of topic t

Batches are planned, sent and limited as the accumulator's are. But a list is complete, and needs neither a future nor
a place in memory for each message: it is cut at once, which is twice as fast as to collect its messages one by one.

Lines are sent concurrently. A line of a call is separate from those of other calls and of the accumulator: the key
sequencer alone keeps their order, so that calls with different keys do not wait for each other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import cast

import msgspec

from holdfast.client.cluster.cluster_client import ClusterClient
from holdfast.client.cluster.send_plan import queue_for_key
from holdfast.client.messages.packing import Outgoing, all_properties
from holdfast.client.produce.batch_lines import in_flight_max
from holdfast.client.produce.batch_plan import BatchPlan
from holdfast.client.produce.batch_sender import Batch, BatchSender
from holdfast.client.produce.sender import find_queues
from holdfast.model.errors import SendFailed, SendManyFailed
from holdfast.model.message import Message, SendResult
from holdfast.model.queue import MessageQueue

_LineKey = tuple[str, MessageQueue | None]


class SendMany:
    """One call of `send_many`.

    Args:
        client: Knows the queues over which keys are spread.
        sender: Sends the batches.
        messages: The messages; their topics are as the wire knows them.
        bytes_max: The maximum size of a batch.
        timeout_s: How long to look for the queues of keys.

    Raises:
        TypeError: an item is not a message, or a field of it has a wrong type.
        LocalProtocolError: a message cannot be sent unchanged; the text says why.
    """

    def __init__(
        self,
        client: ClusterClient,
        sender: BatchSender,
        messages: Sequence[Message],
        *,
        bytes_max: int,
        timeout_s: float,
    ) -> None:
        self._client = client
        self._sender = sender
        self._messages = messages
        self._texts = all_properties(messages)  # of each message, those that follow its id
        self._plan = BatchPlan(sender.id_size, bytes_max)
        self._timeout_s = timeout_s
        self._outcome = _Outcome([None] * len(messages))

    async def send(self) -> list[SendResult]:
        """Send all messages and return their positions.

        Raises:
            SendManyFailed: some messages were not acknowledged.
            SendFailed: the queues of a topic are unknown; nothing was sent.
        """
        lines = await self._find_lines()
        # As many senders as may be in flight share the batches of a line.
        senders = [
            self._sender.send_each(topic, queue, batches)
            for (topic, queue), line in lines.items()
            for batches in [self._batches(line)] * in_flight_max(queue)
        ]
        await asyncio.gather(*senders)
        if self._outcome.has_failed:
            raise SendManyFailed(self._outcome.results)
        return cast("list[SendResult]", self._outcome.results)

    async def _find_lines(self) -> dict[_LineKey, Sequence[int]]:
        """Return the indexes of the messages of each line. Only messages with keys have a queue."""
        messages = self._messages
        topics = {message.topic for message in messages}
        if len(topics) == 1 and all(message.key is None for message in messages):
            return {(topics.pop(), None): range(len(messages))}
        queues = {
            topic: await find_queues(self._client, topic, self._timeout_s)
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

    def _batches(self, line: Sequence[int]) -> Iterator[_ListBatch]:
        """Yield the batches of the messages with the indexes *line*."""
        messages = [self._messages[index] for index in line]
        texts = [self._texts[index] for index in line]
        for cut in self._plan.cut(messages, texts):
            single = None if cut.is_batch else self._sender.pack(messages[cut.start])
            part = slice(cut.start, cut.stop)
            yield _ListBatch(messages[part], texts[part], single, self._outcome, line[part])


class _Outcome(msgspec.Struct):
    """The outcome of one call.

    Attributes:
        results: The outcome of each message; None while it is not known.
        has_failed: Whether any message has failed.
    """

    results: list[SendResult | SendFailed | None]
    has_failed: bool = False


class _ListBatch(Batch):
    """A part of a list of messages. Writes their outcomes to *outcome*, at their *indexes*."""

    __slots__ = ("_indexes", "_outcome")

    def __init__(
        self,
        messages: list[Message],
        texts: list[bytes],
        single: Outgoing | None,
        outcome: _Outcome,
        indexes: Sequence[int],
    ) -> None:
        super().__init__(messages, texts, single)
        self._outcome = outcome
        self._indexes = indexes

    def complete(self, results: Iterator[SendResult]) -> None:
        """Store the position of each message."""
        stored = self._outcome.results
        for index, result in zip(self._indexes, results, strict=True):
            stored[index] = result

    def fail(self, error: Exception) -> None:
        """Store the failure of each message. Any other error ends the call."""
        if not isinstance(error, SendFailed):
            raise error
        self._outcome.has_failed = True
        for index in self._indexes:
            self._outcome.results[index] = error
