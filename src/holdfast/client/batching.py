"""Many messages into few requests: grouped by queue, cut under a size.

    messages  a1 b1 a2 (delayed) b2 a3      a, b: the queue of their key
    requests  [a1 a2 a3] [b1 b2] and one of its own for what cannot be in a batch

The order of messages of one queue is kept. Decides only; ids and queues come in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, Generic, TypeVar

import msgspec

from holdfast.client.outgoing import Outgoing
from holdfast.model import property_names as names
from holdfast.model.errors import LocalProtocolError
from holdfast.model.message import Message
from holdfast.model.topic import RETRY_PREFIX
from holdfast.wire.batch import ITEM_OVERHEAD, encode_items
from holdfast.wire.compression import Codec
from holdfast.wire.inner_batch import wrap_items

BATCH_BYTES_MAX: Final = 1024 * 1024
_PROPERTIES_GUESS: Final = 200

_Place = TypeVar("_Place")


class Group(msgspec.Struct, Generic[_Place]):
    """Messages that travel together.

    Attributes:
        place: Where they go.
        indexes: Where they stand in what was given.
        is_batch: False: a single message that must travel alone.
    """

    place: _Place
    indexes: list[int]
    byte_count: int
    is_batch: bool


def can_be_batched(message: Message) -> bool:
    """Say whether a batch may hold *message*: brokers take no delayed and no retried ones there."""
    return not message.delay_level and not message.topic.startswith(RETRY_PREFIX)


def plan_groups(
    messages: Iterable[Message], place_of: Callable[[Message], _Place], *, bytes_max: int = BATCH_BYTES_MAX
) -> list[Group[_Place]]:
    """Return how *messages* travel. *place_of* tells where each goes; only those with the same place go together."""
    groups: list[Group[_Place]] = []
    open_groups: dict[_Place, Group[_Place]] = {}
    for index, message in enumerate(messages):
        size = ITEM_OVERHEAD + len(message.body) + _PROPERTIES_GUESS + _text_size(message)
        place = place_of(message)
        if not can_be_batched(message) or size > bytes_max:
            groups.append(Group(place, [index], size, is_batch=False))
            # What comes after it in the same queue must not travel before it.
            open_groups.pop(place, None)
            continue
        group = open_groups.get(place)
        if group is None or group.byte_count + size > bytes_max:
            group = Group(place, [], 0, is_batch=True)
            groups.append(group)
            open_groups[place] = group
        group.indexes.append(index)
        group.byte_count += size
    return groups


def encode_messages(messages: Iterable[Message], ids: Iterable[str], texts: Iterable[bytes]) -> bytes:
    """Return the body of a batch of *messages*. *texts* are their properties behind their ids."""
    begin = names.UNIQUE_KEY.encode() + b"\x01"
    return encode_items(
        [
            (message.flag, message.body, b"%b%b\x02%b" % (begin, message_id.encode(), text))
            for message, message_id, text in zip(messages, ids, texts, strict=True)
        ]
    )


def pack_whole(messages: Sequence[Message], body: bytes, batch_id: str, codec: Codec | None) -> Outgoing | None:
    """Return a batch, whose items are *body*, as brokers take it that keep it whole. Their ids follow *batch_id*.

    None when its keys do not fit outside: then it is better sent in the form in which the broker looks at each item.
    """
    keys = (key for message in messages for key in (message.key, *message.keys) if key)
    try:
        tags = {message.tags for message in messages}
        whole = wrap_items(body, len(messages), batch_id, keys=keys, tags=tags, codec=codec, ids_follow=True)
    except LocalProtocolError:
        return None
    return Outgoing(batch_id, whole.properties, whole.body, whole.sys_flag, 0)


def _text_size(message: Message) -> int:
    """Return about how large the properties are; exact is not needed, the limit is ours."""
    return sum(2 + len(name) + len(text) for name, text in message.properties.items()) if message.properties else 0
