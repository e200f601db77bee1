"""Builds the request that sends a failed message to its group's retry topic.

    TopicStatic, queue 3, failed twice  ──>  %RETRY%group   RETRY_TOPIC TopicStatic, third time, DELAY 5

For records that their broker cannot move there on request. Upstream's clients also do this for logical queues.
Pure.
"""

from __future__ import annotations

from typing import Final

import msgspec

from holdfast.client.messages.packing import Packing, shrink
from holdfast.model import property_names as names
from holdfast.model.message import DELAY_LEVEL_MAX, ReceivedMessage
from holdfast.model.queue import LogicalQueueId, MessageQueue
from holdfast.model.topic import retry_topic
from holdfast.wire.frames.codes import RequestCode
from holdfast.wire.frames.command import Command
from holdfast.wire.frames.fields import to_fields
from holdfast.wire.records.compression import CODEC_MASK, COMPRESSED
from holdfast.wire.records.properties import format_properties
from holdfast.wire.requests.send import SendFields

PRODUCER_GROUP: Final = "CLIENT_INNER_PRODUCER"
"""Upstream's name for the producer inside a consumer."""

_FIRST_LEVEL: Final = 3
_NO_RETRIES: Final = 0
# They describe the stored record, not the message: the broker sets them anew, or must not see them again.
_DROPPED_PROPERTIES: Final = frozenset(
    {
        names.TRANSACTION_PREPARED,
        names.RECONSUME_TIME,
        names.MAX_RECONSUME_TIMES,
        names.INNER_COUNT,
        names.INNER_BASE,
        "MIN_OFFSET",
        "MAX_OFFSET",
    }
)


class RetryMessage(msgspec.Struct, frozen=True):
    """A failed message to be sent to the retry topic.

    Attributes:
        topic: The retry topic of the group.
        properties: Properties as text.
        times: How often the message was delivered.
        times_max: Number of deliveries after which it goes to the dead-letter topic; None lets the broker decide.
    """

    topic: str
    body: bytes
    properties: str
    sys_flag: int
    flag: int
    times: int
    times_max: int | None

    def command(self, queue: MessageQueue, now_ms: int) -> Command:
        """Return the request that sends the message to *queue*."""
        fields = SendFields(
            producer_group=PRODUCER_GROUP,
            topic=self.topic,
            queue_id=LogicalQueueId(queue.queue_id),
            sys_flag=self.sys_flag,
            born_timestamp=now_ms,
            flag=self.flag,
            properties=self.properties,
            reconsume_times=self.times,
            max_reconsume_times=self.times_max,
            broker_name=queue.broker_name,
        )
        return Command(code=RequestCode.SEND_MESSAGE_V2, fields=to_fields(fields), body=self.body)


def retry_of(message: ReceivedMessage, group: str, delay_level: int, retries_max: int | None) -> RetryMessage:
    """Return the retry message for *message*.

    Args:
        message: The pulled message.
        group: The consumer group, as the wire knows it.
        delay_level: The delay before redelivery; 0 for a delay that grows with every delivery, -1 for the dead-letter
            topic at once.
        retries_max: How often it may be redelivered; None lets the broker decide.
    """
    times = message.reconsume_times + 1
    properties = {name: text for name, text in message.properties.items() if name not in _DROPPED_PROPERTIES}
    properties.setdefault(names.ORIGIN_MESSAGE_ID, message.message_id)
    properties[names.RETRY_TOPIC] = message.queue.topic
    level = delay_level or _FIRST_LEVEL + message.reconsume_times
    properties[names.DELAY] = str(max(1, min(level, DELAY_LEVEL_MAX)))
    body, sys_flag = message.body, message.sys_flag & (COMPRESSED | CODEC_MASK)
    if not sys_flag & COMPRESSED:  # a body that is still compressed could not be uncompressed: keep it
        body, sys_flag = shrink(body, Packing())
    return RetryMessage(
        retry_topic(group),
        body,
        format_properties(properties),
        sys_flag,
        message.flag,
        times,
        _NO_RETRIES if delay_level < 0 else retries_max,
    )
