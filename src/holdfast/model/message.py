"""A message, before it is sent and after it is received.

    Message           a message to send: a value
    SendResult        where it was stored
    ReceivedMessage   what a consumer receives: the message with its location and times

Does not depend on the wire format or on clients.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from functools import lru_cache

import msgspec

from holdfast.model import property_names as names
from holdfast.model.queue import LogicalOffset, MessageQueue, Position
from holdfast.model.topic import NOT_SENDABLE_TOPICS, find_name_fault

DELAY_LEVEL_MAX = 18
KEY_SEPARATOR = " "


class Message(msgspec.Struct, frozen=True, gc=False):
    """A message to send. A value: it can be sent twice, compared and kept.

    Attributes:
        topic: The destination topic.
        body: The payload; at least one byte.
        tags: One tag by which consumers may select.
        key: The ordering key. Messages with the same key go to one queue and stay in order; the key is searchable.
        keys: More searchable keys. They do not affect order.
        delay_level: 0 deliver at once; 1..18 deliver after
            `1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h`, or the broker's configured delays.
        flag: A number that is stored and delivered unchanged.
        properties: Additional names and texts; empty texts are dropped.
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
    """How durably a message is stored. The numbers are the broker's answer codes."""

    OK = 0
    FLUSH_DISK_TIMEOUT = 10
    SLAVE_NOT_AVAILABLE = 11
    FLUSH_SLAVE_TIMEOUT = 12


class SendResult(msgspec.Struct, frozen=True, gc=False):
    """Where a message was stored.

    Attributes:
        message_id: The id that the sender gave the message; consumers see the same id.
        queue: The queue that holds it.
        offset: Its offset there. For a delayed or transactional message: where the broker keeps it until delivery.
        offset_id: The id that the broker gave it: the broker's address and the position.
        status: Anything but OK: stored, but not yet as durably as the broker is configured to.
    """

    message_id: str
    queue: MessageQueue
    offset: LogicalOffset
    offset_id: str
    status: SendStatus = SendStatus.OK


class ReceivedMessage(msgspec.Struct, frozen=True, gc=False):
    """A message that a consumer received.

    Attributes:
        topic: The topic to which it was sent, also if it is redelivered after a failure.
        body: The payload, decompressed.
        queue: The queue from which it was pulled.
        offset: Its offset in that queue.
        properties: All names and texts, including the system's. Decoded on first access.
        born_ms: When it was sent, by the sender's clock.
        stored_ms: When it was stored, by the broker's clock.
        reconsume_times: How often the group failed to consume it before.
        flag: The sender's number.
        sys_flag: The system's bits. Bit 0 is set only if the body could not be decompressed and is the stored one;
            bits 6 and 7 if it was in an inner batch.
        position: Byte address in the broker's log.
        born_host: The sender's address as stored, see `holdfast.wire.frames.host`.
        store_host: The broker's address as stored.
        prepared_position: The position of the half message of a transaction; 0 if there was none.
    """

    topic: str
    body: bytes
    queue: MessageQueue
    offset: LogicalOffset
    properties: Mapping[str, str]
    born_ms: int
    stored_ms: int
    reconsume_times: int
    flag: int
    sys_flag: int
    position: Position
    born_host: bytes
    store_host: bytes
    prepared_position: int = 0

    @property
    def message_id(self) -> str:
        """The id that the sender gave it, else the id that the broker gave it."""
        return self.properties.get(names.UNIQUE_KEY) or self.offset_id

    @property
    def offset_id(self) -> str:
        """The id that the broker gave it: the broker's address and the position."""
        return (self.store_host + self.position.to_bytes(8, "big")).hex().upper()

    @property
    def tags(self) -> str | None:
        """The tag with which it was sent."""
        return self.properties.get(names.TAGS)

    @property
    def key(self) -> str | None:
        """The ordering key, which selects the queue, if it was sent with one."""
        return self.properties.get(names.SHARDING_KEY)

    @property
    def keys(self) -> tuple[str, ...]:
        """All searchable keys."""
        return tuple(self.properties.get(names.KEYS, "").split())

    @property
    def user_properties(self) -> dict[str, str]:
        """The properties that the sender chose, without the system's."""
        return {name: text for name, text in self.properties.items() if name not in names.RESERVED}


def find_message_fault(message: Message) -> str | None:
    """Return why *message* cannot be sent, or None if it can."""
    fault = _find_topic_fault(message.topic)
    if fault is not None:
        return fault
    if not message.body:
        return "the body is empty, which RocketMQ brokers do not accept"
    if not 0 <= message.delay_level <= DELAY_LEVEL_MAX:
        return f"the delay level {message.delay_level} is not in 0..{DELAY_LEVEL_MAX}"
    if not -0x80000000 <= message.flag <= 0x7FFFFFFF:
        return f"the flag {message.flag} has more than 32 bits"
    return _find_text_fault(message) if message.keys or message.properties else None


@lru_cache(maxsize=256)
def _find_topic_fault(topic: str) -> str | None:
    """Return why no message can be sent to *topic*, or None. Cached, because messages repeat their topics."""
    return f"the topic {topic} is reserved for the system" if topic in NOT_SENDABLE_TOPICS else find_name_fault(topic)


def _find_text_fault(message: Message) -> str | None:
    for key in message.keys:
        if not key or len(key.split()) != 1:
            return f"the key {key!r} is empty or contains a blank"
    reserved = names.RESERVED.intersection(message.properties) if message.properties else None
    return f"the property {min(reserved)} is reserved for the system" if reserved else None
