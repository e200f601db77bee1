"""A message, before it is sent and after it was received.

    Message           what a user sends: a value
    SendResult        where it went
    ReceivedMessage   what a consumer gets: the same, with its place and times

Knows neither bytes on the wire nor who carries them.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from functools import lru_cache

import msgspec

from holdfast.model import property_names as names
from holdfast.model.queue import MessageQueue
from holdfast.model.topic import NOT_SENDABLE_TOPICS, find_name_fault

DELAY_LEVEL_MAX = 18
KEY_SEPARATOR = " "


class Message(msgspec.Struct, frozen=True, gc=False):
    """What a user sends. A value: it can be sent twice, compared and kept.

    Attributes:
        topic: Where it goes.
        body: What it says; at least one byte.
        tags: One tag by which consumers may select.
        key: What it is about. Messages of one key go to one queue and stay in order; the key can be searched for.
        keys: More texts by which it can be found. They have no influence on order.
        delay_level: 0 deliver at once; 1..18 deliver after
            `1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h`, or what the broker was configured with.
        flag: A number that is stored and delivered as it is.
        properties: Names and texts that travel with it; empty texts do not arrive.
    """

    topic: str
    body: bytes
    tags: str | None = None
    key: str | None = None
    keys: tuple[str, ...] = ()
    delay_level: int = 0
    flag: int = 0
    properties: Mapping[str, str] = {}


class SendStatus(IntEnum):
    """How safe a stored message is. The numbers are the broker's answer codes."""

    OK = 0
    FLUSH_DISK_TIMEOUT = 10
    SLAVE_NOT_AVAILABLE = 11
    FLUSH_SLAVE_TIMEOUT = 12


class SendResult(msgspec.Struct, frozen=True, gc=False):
    """Where a message went.

    Attributes:
        message_id: The id that the sender gave it; consumers see the same.
        queue: The queue that holds it.
        offset: Its offset there. Of a delayed or transactional message: where the broker keeps it meanwhile.
        offset_id: The id that the broker gave it: which broker, which position.
        status: Anything but OK: stored, but not yet as safely as the broker was told to.
    """

    message_id: str
    queue: MessageQueue
    offset: int
    offset_id: str
    status: SendStatus = SendStatus.OK


class ReceivedMessage(msgspec.Struct, frozen=True, gc=False):
    """What a consumer gets.

    Attributes:
        topic: The topic it was sent to, also when it comes again after a failure.
        body: What it says, uncompressed.
        queue: The queue it was pulled from.
        offset: Its offset in that queue.
        properties: Names and texts that travel with it, the system's own among them. Read when first asked for.
        born_ms: When it was sent, by the sender's clock.
        stored_ms: When it was stored, by the broker's clock.
        reconsume_times: How often the group failed to consume it before.
        flag: The sender's number.
        sys_flag: The system's bits. Bit 0 is set only when the body could not be uncompressed and is as it was stored;
            bits 6 and 7 when it came in a batch that its broker keeps whole.
        position: Byte address in the broker's log.
        born_host: The sender's address as stored, see `holdfast.wire.frames.host`.
        store_host: The broker's address as stored.
        prepared_position: Where the half message of a transaction was; 0 when there was none.
    """

    topic: str
    body: bytes
    queue: MessageQueue
    offset: int
    properties: Mapping[str, str]
    born_ms: int
    stored_ms: int
    reconsume_times: int
    flag: int
    sys_flag: int
    position: int
    born_host: bytes
    store_host: bytes
    prepared_position: int = 0

    @property
    def message_id(self) -> str:
        """The id that the sender gave it; the broker's, when the sender gave none."""
        return self.properties.get(names.UNIQUE_KEY) or self.offset_id

    @property
    def offset_id(self) -> str:
        """The id that the broker gave it: which broker, which position."""
        return (self.store_host + self.position.to_bytes(8, "big")).hex().upper()

    @property
    def tags(self) -> str | None:
        """The tag it was sent with."""
        return self.properties.get(names.TAGS)

    @property
    def key(self) -> str | None:
        """The key that decides on its queue, if it was sent with one."""
        return self.properties.get(names.SHARDING_KEY)

    @property
    def keys(self) -> tuple[str, ...]:
        """Everything by which it can be found."""
        return tuple(self.properties.get(names.KEYS, "").split())

    @property
    def user_properties(self) -> dict[str, str]:
        """The properties that the sender chose, without the system's."""
        return {name: text for name, text in self.properties.items() if name not in names.RESERVED}


def find_message_fault(message: Message) -> str | None:
    """Return why *message* cannot be sent, or None when it can."""
    fault = _find_topic_fault(message.topic)
    if fault is not None:
        return fault
    if not message.body:
        return "the body is empty, which RocketMQ brokers do not take"
    if not 0 <= message.delay_level <= DELAY_LEVEL_MAX:
        return f"the delay level {message.delay_level} is not in 0..{DELAY_LEVEL_MAX}"
    if not -0x80000000 <= message.flag <= 0x7FFFFFFF:
        return f"the flag {message.flag} has more than 32 bits"
    return _find_text_fault(message) if message.keys or message.properties else None


@lru_cache(maxsize=256)
def _find_topic_fault(topic: str) -> str | None:
    """Return why nothing can be sent to *topic*. The latest are remembered: messages say the same ones again."""
    return f"the topic {topic} is the system's own" if topic in NOT_SENDABLE_TOPICS else find_name_fault(topic)


def _find_text_fault(message: Message) -> str | None:
    for key in message.keys:
        if not key or len(key.split()) != 1:
            return f"the key {key!r} is empty or has a blank in it"
    reserved = names.RESERVED.intersection(message.properties) if message.properties else None
    return f"the property {min(reserved)} is the system's own" if reserved else None
