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
from holdfast.broker.mapping.queue_view import Queues
from holdfast.broker.options import BrokerOptions
from holdfast.machine.turn import Turn
from holdfast.model.delay import DelayLevels
from holdfast.model.java_hash import java_hash
from holdfast.model.numbers import parse_count
from holdfast.model.queue import LogicalOffset, LogicalQueueId, PhysicalOffset, QueueKey
from holdfast.model.topic import SCHEDULE_TOPIC
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
    queue_id: LogicalQueueId
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
    offset: LogicalOffset
    queue_id: LogicalQueueId


class LogWriter:
    """Appends messages to the log. The records are written when the event ends.

    Attributes:
        queues: Finds where the messages of a queue are stored.
        store: The store with the log.
    """

    def __init__(
        self,
        options: BrokerOptions,
        queues: Queues,
        levels: DelayLevels,
        is_held: Callable[[QueueKey], bool],
        turn: Turn,
    ) -> None:
        self._turn = turn
        self.queues = queues
        self.store = queues.store
        self._is_held = is_held
        self._levels = levels
        self._message_size_max = options.message_size_max

    def accept(self, draft: Draft) -> Stored | Refusal:
        """Store *draft*, or schedule it if it has a delay level."""
        level = parse_count(draft.properties.get(DELAY), 0)
        if level <= 0 or draft.sys_flag & TRANSACTION_MASK:
            return self.append(draft)
        level = self._levels.clamp(level)
        scheduled = msgspec.structs.replace(
            draft,
            topic=SCHEDULE_TOPIC,
            queue_id=level - 1,
            properties=draft.properties | {DELAY: str(level), REAL_TOPIC: draft.topic, REAL_QUEUE: str(draft.queue_id)},
            tags_code=self._turn.now_ms + self._levels.delay_ms(level),
        )
        return self.append(scheduled)

    def append(self, draft: Draft) -> Stored | Refusal:
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
        target = self.queues.find_target(draft.topic, draft.queue_id)
        if target is None or self._is_held((draft.topic, draft.queue_id)):
            return self.refuse_away(draft.topic, draft.queue_id)
        tags_code = draft.tags_code
        if tags_code is None:
            tags_code = java_hash(draft.properties.get(TAGS, ""))
        position, offset = self.store.stage(
            target.index,
            draft.body,
            properties,
            draft.flag,
            draft.sys_flag,
            draft.born_ms,
            draft.born_host,
            tags_code,
            self._turn.now_ms,
            draft.reconsume_times,
            draft.prepared_position,
        )
        return Stored(position, target.to_logical(PhysicalOffset(offset)), draft.queue_id)

    def refuse_away(self, topic: str, number: LogicalQueueId | None) -> Refusal:
        """Return the refusal of a message for a queue that is not open here, in RocketMQ's words."""
        queue = topic if number is None else f"{topic}-{number}"
        return Refusal(
            ResponseCode.NOT_LEADER_FOR_QUEUE,
            f"{queue} does not exit in request process of current broker {self.queues.mappings.broker}",
        )
