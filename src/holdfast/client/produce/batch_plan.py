"""Splits messages into batches and encodes them: each line is cut into pieces of a limited size.

    line      a1 a2 a3 (delayed) a4
    requests  [a1 a2] [a3] [a4]       a3 is sent alone, because a batch cannot hold it

Keeps the order of the line. Pure: the caller supplies ids and queues.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import accumulate, count, repeat
from typing import Final

import msgspec

from holdfast.client.messages.packing import Outgoing
from holdfast.model import property_names as names
from holdfast.model.errors import LocalProtocolError
from holdfast.model.message import Message, SendResult
from holdfast.model.topic import RETRY_PREFIX
from holdfast.wire.records.batch import encode_columns
from holdfast.wire.records.compression import Codec
from holdfast.wire.records.inner_batch import COUNT_MAX, wrap_items
from holdfast.wire.records.properties import NAME_END, VALUE_END

BATCH_BYTES_MAX: Final = 1024 * 1024


class BatchRange(msgspec.Struct, frozen=True, gc=False):
    """Consecutive messages of a line that are sent together.

    Attributes:
        start: The index of the first message.
        stop: The index after the last message.
        is_batch: False for a single message that must be sent alone.
    """

    start: int
    stop: int
    is_batch: bool


def find_unbatchable(topic: str, messages: Sequence[Message]) -> Sequence[int]:
    """Return the indexes of *messages*, all of one topic, that no batch may hold."""
    if topic.startswith(RETRY_PREFIX):
        return range(len(messages))
    return [number for number, message in enumerate(messages) if message.delay_level]


def can_be_batched(message: Message) -> bool:
    """Return whether a batch may hold *message*: brokers accept no delayed and no retried messages in a batch."""
    return not message.delay_level and not message.topic.startswith(RETRY_PREFIX)


def plan_batches(sizes: Sequence[int], unbatchable: Collection[int], bytes_max: int) -> Iterator[BatchRange]:
    """Yield the groups in which to send a line.

    Args:
        sizes: The size of each message in a batch. One that is larger than *bytes_max* is sent alone.
        unbatchable: The indexes of messages that no batch may hold.
        bytes_max: The maximum size of a batch.
    """
    start = 0
    for end in (*sorted(unbatchable), len(sizes)):
        yield from _split(sizes, start, end, bytes_max)
        if end < len(sizes):
            yield BatchRange(end, end + 1, is_batch=False)
        start = end + 1


def _split(sizes: Sequence[int], start: int, end: int, bytes_max: int) -> Iterator[BatchRange]:
    ends = [0, *accumulate(sizes[start:end])]
    at, last = 0, end - start
    while at < last:
        stop = min(bisect_right(ends, ends[at] + bytes_max) - 1, at + COUNT_MAX)
        is_batch = stop > at
        stop = max(stop, at + 1)
        yield BatchRange(start + at, start + stop, is_batch)
        at = stop


def encode_messages(messages: Sequence[Message], ids: Sequence[str], texts: Sequence[bytes]) -> bytes:
    """Return the body of a batch of *messages*. *texts* are their properties after their ids."""
    prefix = names.UNIQUE_KEY + NAME_END
    # Encoding one joined text and splitting it is many times faster than encoding each id. No id holds a line feed.
    all_ids = prefix + f"{VALUE_END}\n{prefix}".join(ids) + VALUE_END
    unique_keys = all_ids.encode().split(b"\n")
    flags, bodies = [message.flag for message in messages], [message.body for message in messages]
    return (
        encode_columns(flags, bodies, unique_keys, texts) if any(texts) else encode_columns(flags, bodies, unique_keys)
    )


def item_results(ids: Sequence[str], result: SendResult) -> Iterator[SendResult]:
    """Return the position of each message of a batch: consecutive offsets from *result*, the position of the first."""
    split_ids = result.offset_id.split(",")
    # A batch that was stored whole is one record and has one id.
    offset_ids: Iterable[str] = split_ids if len(split_ids) == len(ids) else repeat(result.offset_id)
    return map(SendResult, ids, repeat(result.queue), count(result.offset), offset_ids, repeat(result.status))


def pack_inner_batch(messages: Sequence[Message], body: bytes, batch_id: str, codec: Codec | None) -> Outgoing | None:
    """Return the inner batch of the items *body*, for brokers that store batches whole. Item ids follow *batch_id*.

    Return None if the keys do not fit into the properties of the batch: then the normal form of a batch is better,
    where the broker reads each item.
    """
    keys = {message.key: None for message in messages if message.key}
    for message in messages:
        if message.keys:
            keys.update(dict.fromkeys(message.keys))
    try:
        tags = {message.tags for message in messages}
        inner_batch = wrap_items(
            body, len(messages), batch_id, keys=keys, tags=tags, codec=codec, has_sequential_ids=True
        )
    except LocalProtocolError:
        return None
    return Outgoing(batch_id, inner_batch.properties, inner_batch.body, inner_batch.sys_flag, 0)
