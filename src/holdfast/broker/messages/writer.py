"""Appends messages that the broker itself makes, or whose properties it must read.

These are delayed, returned, transactional and automatic messages; `fast_send.py` handles plain sends. A message with a
delay level is stored under the schedule topic, in the queue of its level. It carries its real topic and queue as
properties until `scheduled_messages.py` delivers it.

In a static topic, the queue of a draft is a logical one, and so is the offset of the stored message.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from holdfast.broker.flow.request import Refusal
from holdfast.broker.mapping.mapping_table import Mappings
from holdfast.model.delay import DelayLevels
from holdfast.model.java_hash import java_hash
from holdfast.model.numbers import parse_count
from holdfast.model.topic import SCHEDULE_TOPIC
from holdfast.store.message_store import MessageStore
from holdfast.wire.frames.codes import ResponseCode
from holdfast.wire.records.properties import PROPERTIES_SIZE_MAX, format_properties
from holdfast.wire.records.record import TRANSACTION_MASK

DELAY = "DELAY"
REAL_TOPIC = "REAL_TOPIC"
REAL_QUEUE = "REAL_QID"
TAGS = "TAGS"


class Draft(msgspec.Struct, kw_only=True):
    """A message to be stored. It owns its bytes.

    Attributes:
        tags_code: The tag hash in the index entry; None means the hash of the TAGS property.
    """

    topic: str
    queue_id: int
    body: bytes
    properties: dict[str, str]
    born_ms: int
    born_host: bytes
    flag: int = 0
    sys_flag: int = 0
    reconsume_times: int = 0
    prepared_position: int = 0
    tags_code: int | None = None


class Stored(msgspec.Struct, frozen=True):
    """The location of a stored message."""

    position: int
    offset: int
    queue_id: int


class LogWriter:
    """Appends messages to the log. The records are written when the event ends.

    Attributes:
        mappings: The mappings of this broker.
        is_held: Returns whether an open logical queue accepts no sends at the moment.
    """

    def __init__(self, store: MessageStore, levels: DelayLevels, mappings: Mappings, *, message_size_max: int) -> None:
        self._store = store
        self.mappings = mappings
        self.is_held: Callable[[tuple[str, int]], bool] = lambda _key: False
        self._levels = levels
        self._message_size_max = message_size_max

    def accept(self, draft: Draft, now_ms: int) -> Stored | Refusal:
        """Store *draft*, or schedule it if it has a delay level."""
        level = parse_count(draft.properties.get(DELAY), 0)
        if level <= 0 or draft.sys_flag & TRANSACTION_MASK:
            return self.append(draft, now_ms)
        level = self._levels.clamp(level)
        scheduled = msgspec.structs.replace(
            draft,
            topic=SCHEDULE_TOPIC,
            queue_id=level - 1,
            properties=draft.properties | {DELAY: str(level), REAL_TOPIC: draft.topic, REAL_QUEUE: str(draft.queue_id)},
            tags_code=now_ms + self._levels.delay_ms(level),
        )
        return self.append(scheduled, now_ms)

    def physical_queues(self, topic: str, queue_id: int) -> list[int]:
        """Return the physical queues on this broker that store, or stored, messages of *queue_id*."""
        if not self.mappings.is_static(topic):
            return [queue_id]
        return [index.queue_id for index in self.mappings.own_indexes(topic, queue_id)]

    def append(self, draft: Draft, now_ms: int) -> Stored | Refusal:
        """Store *draft* unchanged. Refuse it if it is too large, or if its logical queue is not open here."""
        properties = format_properties(draft.properties).encode()
        if len(draft.body) > self._message_size_max:
            return Refusal(
                ResponseCode.MESSAGE_ILLEGAL,
                f"the message body has {len(draft.body)} bytes, at most {self._message_size_max} are allowed",
            )
        if len(properties) > PROPERTIES_SIZE_MAX:
            return Refusal(
                ResponseCode.MESSAGE_ILLEGAL,
                f"the properties have {len(properties)} bytes, at most {PROPERTIES_SIZE_MAX} are allowed",
            )
        queue, delta = None, 0
        if self.mappings.is_static(draft.topic):
            placement = self.mappings.placement(draft.topic, draft.queue_id)
            queue, delta = placement.queue_index, placement.delta
            if queue is None or placement.state != "open" or self.is_held((draft.topic, draft.queue_id)):
                return not_leader_to_send(draft.topic, draft.queue_id, self.mappings.broker)
        tags_code = draft.tags_code
        if tags_code is None:
            tags_code = java_hash(draft.properties.get(TAGS, ""))
        position, offset = self._store.stage(
            queue or self._store.queue(draft.topic, draft.queue_id),
            draft.body,
            properties,
            draft.flag,
            draft.sys_flag,
            draft.born_ms,
            draft.born_host,
            tags_code,
            now_ms,
            draft.reconsume_times,
            draft.prepared_position,
        )
        return Stored(position, offset + delta, draft.queue_id)


def not_leader_to_send(topic: str, queue_id: int, broker: str) -> Refusal:
    """Return the answer to a send for a logical queue that is not open here, in RocketMQ's words."""
    return Refusal(
        ResponseCode.NOT_LEADER_FOR_QUEUE,
        f"{topic}-{queue_id} does not exit in request process of current broker {broker}",
    )
