"""Many messages into few requests: the line of a queue, cut under a size.

    line      a1 a2 a3 (delayed) a4
    requests  [a1 a2] [a3], one of its own for what cannot be in a batch, [a4]

The order of a line is kept. Decides and encodes only; ids and queues come in.
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


class Group(msgspec.Struct, frozen=True, gc=False):
    """Neighbours in a line that travel together.

    Attributes:
        start: Where the first of them stands.
        stop: Where the next one stands that is not one of them.
        is_batch: False: a single message that must travel alone.
    """

    start: int
    stop: int
    is_batch: bool


def find_alone(topic: str, messages: Sequence[Message]) -> Sequence[int]:
    """Return which of *messages*, all of one topic, no batch may hold."""
    if topic.startswith(RETRY_PREFIX):
        return range(len(messages))
    return [number for number, message in enumerate(messages) if message.delay_level]


def can_be_batched(message: Message) -> bool:
    """Say whether a batch may hold *message*: brokers take no delayed and no retried ones there."""
    return not message.delay_level and not message.topic.startswith(RETRY_PREFIX)


def plan_groups(sizes: Sequence[int], alone: Collection[int], bytes_max: int) -> Iterator[Group]:
    """Say, group by group, how a line travels.

    Args:
        sizes: How large each of its messages is in a batch. One that is larger than *bytes_max* travels alone.
        alone: Which of them no batch may hold.
        bytes_max: How large a batch may be.
    """
    start = 0
    for end in (*sorted(alone), len(sizes)):
        yield from _cut(sizes, start, end, bytes_max)
        if end < len(sizes):
            yield Group(end, end + 1, is_batch=False)
        start = end + 1


def _cut(sizes: Sequence[int], start: int, end: int, bytes_max: int) -> Iterator[Group]:
    ends = [0, *accumulate(sizes[start:end])]
    at, last = 0, end - start
    while at < last:
        stop = min(bisect_right(ends, ends[at] + bytes_max) - 1, at + COUNT_MAX)
        is_batch = stop > at
        stop = max(stop, at + 1)
        yield Group(start + at, start + stop, is_batch)
        at = stop


def encode_messages(messages: Sequence[Message], ids: Sequence[str], texts: Sequence[bytes]) -> bytes:
    """Return the body of a batch of *messages*. *texts* are their properties behind their ids."""
    begin = names.UNIQUE_KEY + NAME_END
    # One text for all is encoded and cut in a fraction of the time that each by itself takes. No id holds a line feed.
    all_ids = begin + f"{VALUE_END}\n{begin}".join(ids) + VALUE_END
    unique_keys = all_ids.encode().split(b"\n")
    flags, bodies = [message.flag for message in messages], [message.body for message in messages]
    return (
        encode_columns(flags, bodies, unique_keys, texts) if any(texts) else encode_columns(flags, bodies, unique_keys)
    )


def place_each(ids: Sequence[str], result: SendResult) -> Iterator[SendResult]:
    """Return where each message of a batch is: one behind the other, *result* is the first's place."""
    split_ids = result.offset_id.split(",")
    # A batch that was kept whole is one record and has one id.
    offset_ids: Iterable[str] = split_ids if len(split_ids) == len(ids) else repeat(result.offset_id)
    return map(SendResult, ids, repeat(result.queue), count(result.offset), offset_ids, repeat(result.status))


def pack_whole(messages: Sequence[Message], body: bytes, batch_id: str, codec: Codec | None) -> Outgoing | None:
    """Return a batch, whose items are *body*, as brokers take it that keep it whole. Their ids follow *batch_id*.

    None when its keys do not fit outside: then it is better sent in the form in which the broker looks at each item.
    """
    keys = {message.key: None for message in messages if message.key}
    for message in messages:
        if message.keys:
            keys.update(dict.fromkeys(message.keys))
    try:
        tags = {message.tags for message in messages}
        whole = wrap_items(body, len(messages), batch_id, keys=keys, tags=tags, codec=codec, ids_follow=True)
    except LocalProtocolError:
        return None
    return Outgoing(batch_id, whole.properties, whole.body, whole.sys_flag, 0)
