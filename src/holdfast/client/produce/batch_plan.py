"""Decides which messages are sent together, and encodes them.

    messages  a1 a2 a3 (delayed) a4
    batches   [a1 a2] [a3] [a4]       a3 is alone, because no batch may hold it

Keeps the order. Pure: the caller supplies ids and queues.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import count, repeat
from typing import Final, cast

import msgspec

from holdfast.client.messages.packing import Outgoing
from holdfast.model import property_names as names
from holdfast.model.errors import LocalProtocolError
from holdfast.model.message import Message, SendResult
from holdfast.model.queue import LogicalOffset
from holdfast.model.topic import RETRY_PREFIX
from holdfast.wire.records.batch import ITEM_OVERHEAD, encode_columns
from holdfast.wire.records.compression import Codec
from holdfast.wire.records.inner_batch import COUNT_MAX, wrap_items
from holdfast.wire.records.properties import NAME_END, VALUE_END

BATCH_BYTES_MAX: Final = 1024 * 1024


class Cut(msgspec.Struct, frozen=True, gc=False):
    """Consecutive messages of a list that are sent together.

    Attributes:
        start: The index of the first message.
        stop: The index after the last message.
        is_batch: False for a single message that no batch may hold.
    """

    start: int
    stop: int
    is_batch: bool


class BatchPlan(msgspec.Struct, frozen=True):
    """The rules by which messages form batches.

    Attributes:
        id_size: The size of the property that carries an id.
        bytes_max: The maximum size of a batch. A larger message is sent alone.
        messages_max: The maximum number of messages in a batch.
    """

    id_size: int
    bytes_max: int
    messages_max: int = COUNT_MAX

    @property
    def overhead(self) -> int:
        """The size of a message in a batch, without its body and the properties that follow its id."""
        return ITEM_OVERHEAD + self.id_size

    def size_of(self, message: Message, text: bytes) -> int:
        """Return the size of *message* in a batch. *text* is its properties after its id."""
        return self.overhead + len(message.body) + len(text)

    def is_alone(self, message: Message, size: int) -> bool:
        """Return whether no batch may hold *message*: it is too large, delayed or retried."""
        return size > self.bytes_max or bool(message.delay_level) or message.topic.startswith(RETRY_PREFIX)

    def cut(self, messages: Sequence[Message], texts: Sequence[bytes]) -> Iterator[Cut]:
        """Yield the batches in which to send *messages*, which are all of one topic.

        Args:
            messages: The messages.
            texts: For each message, the properties that follow its id.
        """
        overhead, bytes_max, messages_max = self.overhead, self.bytes_max, self.messages_max
        if messages and messages[0].topic.startswith(RETRY_PREFIX):
            bytes_max = 0  # Every message is alone.
        start = batch_size = 0
        # Written out, without `size_of` and `is_alone`: two calls for each message would cost more than the rest.
        for index, (message, text) in enumerate(zip(messages, texts, strict=True)):
            size = overhead + len(message.body) + len(text)
            batch_size += size
            if batch_size <= bytes_max and not message.delay_level and index - start < messages_max:
                continue
            if start < index:
                yield Cut(start, index, is_batch=True)
            start, batch_size = index, size
            if self.is_alone(message, size):
                yield Cut(index, index + 1, is_batch=False)
                start, batch_size = index + 1, 0
        if start < len(messages):
            yield Cut(start, len(messages), is_batch=True)


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
    offsets = cast("Iterator[LogicalOffset]", count(result.offset))  # A call for each message would cost more.
    return map(SendResult, ids, repeat(result.queue), offsets, offset_ids, repeat(result.status))


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
