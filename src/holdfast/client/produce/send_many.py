"""Sends a list of messages in few requests. The shell around `batch_plan`.

    messages ─┬─ line of topic t               no keys: several requests in flight, each to any queue
              ├─ line of queue 0 of topic t    messages whose keys belong to the queue: one request after another
              └─ line of queue 1 of topic t

Lines are sent concurrently. A request is encoded only when it is sent, so that waiting messages are not held twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import Final, cast

from holdfast.client.cluster.cluster_client import ClusterClient
from holdfast.client.cluster.send_plan import queue_for_key
from holdfast.client.messages.packing import UNIQUE_KEY_SIZE_MAX, Outgoing, Packing, pack, unique_key_property
from holdfast.client.produce.batch_lines import UNORDERED_IN_FLIGHT
from holdfast.client.produce.batch_plan import (
    BatchRange,
    encode_messages,
    find_unbatchable,
    item_results,
    pack_inner_batch,
    plan_batches,
)
from holdfast.client.produce.sender import SEND_TIMEOUT_S, Parcel, Receipt
from holdfast.model.errors import HoldfastError, RouteNotFound, SendFailed, SendManyFailed
from holdfast.model.message import Message, SendResult
from holdfast.model.queue import MessageQueue
from holdfast.wire.frames.codes import RequestCode
from holdfast.wire.records.batch import ITEM_OVERHEAD
from holdfast.wire.records.compression import Codec

SendParcel = Callable[[Parcel], Awaitable[Receipt]]
_LineKey = tuple[str, MessageQueue | None]


class SendMany:
    """One call of `send_many`.

    Args:
        client: Knows the queues over which keys are spread.
        send_parcel: Sends one request.
        messages: The messages; their topics are as the wire knows them.
        texts: For each message, the properties that follow its id.
        next_ids: Returns the given number of new ids.
        codec: The compression of batches that brokers store whole; None for none.
        timeout_s: How long to look for the queues of keys.
    """

    def __init__(
        self,
        client: ClusterClient,
        send_parcel: SendParcel,
        messages: Sequence[Message],
        texts: Sequence[bytes],
        *,
        next_ids: Callable[[int], list[str]],
        codec: Codec | None = None,
        timeout_s: float = SEND_TIMEOUT_S,
    ) -> None:
        self._client = client
        self._timeout_s = timeout_s
        self._send_parcel = send_parcel
        self._messages = messages
        self._texts = texts
        self._next_ids = next_ids
        self._codec = codec
        self._results: list[SendResult | SendFailed | None] = [None] * len(messages)
        self._has_failed = False

    async def send(self, *, bytes_max: int) -> list[SendResult]:
        """Send all messages and return their positions.

        Raises:
            SendManyFailed: some messages were not acknowledged.
            SendFailed: the queues of a topic are unknown; nothing was sent.
        """
        lines = await self._find_lines()
        await asyncio.gather(*(self._send_line(line_key, line, bytes_max) for line_key, line in lines.items()))
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
            queues = (await self._client.publish_route(topic, timeout_s=self._timeout_s)).publishable
            if not queues:
                raise RouteNotFound(f"no broker accepts messages for the topic {topic!r} now")
        except HoldfastError as error:
            raise SendFailed(error, attempts=1, maybe_stored=False) from error
        return queues

    async def _send_line(self, line_key: _LineKey, line: Sequence[int], bytes_max: int) -> None:
        messages = [self._messages[index] for index in line]
        texts = [self._texts[index] for index in line]
        overhead = ITEM_OVERHEAD + UNIQUE_KEY_SIZE_MAX
        sizes = [overhead + len(message.body) + len(text) for message, text in zip(messages, texts, strict=True)]
        ranges = list(plan_batches(sizes, find_unbatchable(line_key[0], messages), bytes_max))
        # Requests with keys are sent one after another: a request could overtake an earlier one that is retried.
        concurrency = min(len(ranges), UNORDERED_IN_FLIGHT if line_key[1] is None else 1)
        remaining = iter(ranges)
        await asyncio.gather(*(self._send_ranges(line_key, line, remaining) for _ in range(concurrency)))

    async def _send_ranges(self, line_key: _LineKey, line: Sequence[int], ranges: Iterator[BatchRange]) -> None:
        """Send the groups one after another, as long as there are any."""
        for batch_range in ranges:
            indexes = line[batch_range.start : batch_range.stop]
            ids, parcel = self._parcel_of(line_key, indexes, is_batch=batch_range.is_batch)
            try:
                receipt = await self._send_parcel(parcel)
            except SendFailed as error:
                self._has_failed = True
                for index in indexes:
                    self._results[index] = error
            else:
                for index, result in zip(indexes, item_results(ids, receipt.result), strict=True):
                    self._results[index] = result

    def _parcel_of(self, line_key: _LineKey, indexes: Sequence[int], *, is_batch: bool) -> tuple[list[str], Parcel]:
        """Return the ids of the messages and the parcel that carries them."""
        topic, queue = line_key
        messages = [self._messages[index] for index in indexes]
        batch_id, *ids = self._next_ids(1 + len(messages))
        if not is_batch:
            return ids, Parcel(topic, pack(messages[0], ids[0], _UNCOMPRESSED), queue=queue)
        body = encode_messages(messages, ids, [self._texts[index] for index in indexes])
        return ids, Parcel(
            topic,
            Outgoing(batch_id, unique_key_property(batch_id), body, 0, 0),
            queue=queue,
            code=RequestCode.SEND_BATCH_MESSAGE,
            encode_inner=partial(pack_inner_batch, messages, body, batch_id, self._codec),
        )


_UNCOMPRESSED: Final = Packing(compress_over=None)
