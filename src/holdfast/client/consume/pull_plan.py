"""Builds pull requests, interprets their answers, limits prefetching.

    FOUND          messages; pull again at once after them
    NOTHING_NEW    the end of the queue: the long poll ended without a message
    NO_MATCH       messages, but none that matches the subscription; pull again at once after them
    MOVED          the offset is not in the queue, or an operator reset it: continue at another offset

Performs no I/O; `queue_reader` pulls.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

import msgspec

from holdfast.client.access.refusal import refusal
from holdfast.client.consume.process_queue import ProcessQueue
from holdfast.client.messages.arguments import check_count
from holdfast.client.messages.unpacking import read_limited
from holdfast.model import property_names as names
from holdfast.model.errors import RemoteProtocolError, UnreadableBatch
from holdfast.model.filter import EVERYTHING
from holdfast.model.group import Subscription
from holdfast.model.message import ReceivedMessage
from holdfast.model.queue import LogicalOffset, LogicalQueueId, MessageQueue
from holdfast.model.scope import is_mock_broker
from holdfast.wire.cluster.route import MAPPING_FIELD
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.frames.command import Command
from holdfast.wire.frames.fields import BadField, from_fields, to_fields
from holdfast.wire.records.inner_batch import BatchSupport
from holdfast.wire.requests.pull import COMMIT_OFFSET, SUBSCRIPTION, SUSPEND, PullAnswer, PullFields

BATCH_MAX: Final = 32
BATCH_BYTES_MAX: Final = 256 * 1024
SUSPEND_MS: Final = 15_000
# The broker may check parked pulls only now and then: answers take longer than the requested wait.
TIMEOUT_S: Final = 30.0
ERROR_PAUSE_S: Final = 0.1
ERROR_PAUSE_S_MAX: Final = 3.0


class PullStatus(IntEnum):
    """The meaning of a pull answer."""

    FOUND = ResponseCode.SUCCESS
    NOTHING_NEW = ResponseCode.PULL_NOT_FOUND
    NO_MATCH = ResponseCode.PULL_RETRY_IMMEDIATELY
    OFFSET_MOVED = ResponseCode.PULL_OFFSET_MOVED


_STATUSES: Final = frozenset(PullStatus)


class PullOutcome(msgspec.Struct, frozen=True):
    """The result of a pull.

    Attributes:
        messages: The messages that match the subscription.
        next_offset: The offset of the next pull.
        broker_id: The broker to pull from next: 0 is the master.
        unreadable: Batches that cannot be opened: no consumer ever receives their messages.
    """

    status: PullStatus
    messages: list[ReceivedMessage]
    next_offset: LogicalOffset
    broker_id: int
    unreadable: list[UnreadableBatch] = []


class PullLimits(msgspec.Struct, frozen=True):
    """The limits of the window of one queue.

    Attributes:
        message_count_max: Messages.
        byte_count_max: Bytes of their bodies.
        span_max: Offsets between the first that is not done and the next to pull: the most that a crash could repeat.
    """

    message_count_max: int = 1000
    byte_count_max: int = 16 * 1024 * 1024
    span_max: int = 2000

    def allow(self, window: ProcessQueue) -> bool:
        """Return whether *window* may grow."""
        return (
            window.message_count < self.message_count_max
            and window.byte_count < self.byte_count_max
            and window.span < self.span_max
        )


class Prefetch(msgspec.Struct, frozen=True):
    """The limits of all windows of a consumer together.

    Attributes:
        message_count_max: Messages.
        byte_count_max: Bytes of their bodies.
    """

    message_count_max: int = 10_000
    byte_count_max: int = 64 * 1024 * 1024

    def __post_init__(self) -> None:
        check_count("message_count_max", self.message_count_max)
        check_count("byte_count_max", self.byte_count_max)

    def share(self, queue_count: int) -> PullLimits:
        """Return the limits of one of *queue_count* queues: its share, but at least one pull's worth."""
        most = PullLimits()
        return PullLimits(
            message_count_max=min(
                most.message_count_max, max(BATCH_MAX, self.message_count_max // max(1, queue_count))
            ),
            byte_count_max=min(most.byte_count_max, max(BATCH_BYTES_MAX, self.byte_count_max // max(1, queue_count))),
            span_max=most.span_max,
        )


def error_pause_s(failures: int) -> float:
    """Return how long to wait before the next pull after *failures* in a row."""
    return float(min(ERROR_PAUSE_S * 2 ** min(failures - 1, 10), ERROR_PAUSE_S_MAX))


def pull_command(  # noqa: PLR0913 - one name for each part of the request
    *,
    group: str,
    queue: MessageQueue,
    offset: LogicalOffset,
    subscription: Subscription,
    commit_offset: LogicalOffset | None = None,
    suspend_ms: int = SUSPEND_MS,
    with_subscription: bool = False,
    batch_max: int = BATCH_MAX,
    bytes_max: int = BATCH_BYTES_MAX,
    unit: str | None = None,
) -> Command:
    """Return the request for the next messages of *queue*.

    Args:
        group: The consumer group.
        queue: The queue.
        offset: The first offset to return.
        subscription: The filter.
        commit_offset: Also commit this offset: everything before it is done.
        suspend_ms: How long the broker may wait for a message; 0 for an answer at once.
        with_subscription: Include the filter in the request, for consumers that send no heartbeats about it.
        batch_max: The maximum number of messages.
        bytes_max: The maximum number of bytes.
        unit: The unit of the consumer: a broker of another unit may name a replica in this one.
    """
    sys_flag = COMMIT_OFFSET if commit_offset else 0
    sys_flag |= SUSPEND if suspend_ms else 0
    sys_flag |= SUBSCRIPTION if with_subscription else 0
    fields = PullFields(
        consumer_group=group,
        topic=queue.topic,
        queue_id=LogicalQueueId(queue.queue_id),
        queue_offset=offset,
        max_msg_nums=batch_max,
        sys_flag=sys_flag,
        commit_offset=commit_offset or 0,
        suspend_timeout_millis=suspend_ms,
        subscription=subscription.sub_string if with_subscription else None,
        sub_version=subscription.sub_version,
        expression_type=subscription.expression_type,
        max_msg_bytes=bytes_max,
        broker_name=queue.broker_name,
        batch_support=BatchSupport.REQUESTED.value,
        unit=unit,
    )
    command = Command(code=RequestCode.PULL_MESSAGE, fields=to_fields(fields))
    if is_mock_broker(queue.broker_name):
        command.fields[MAPPING_FIELD] = "1"
    return command


def read_pull_answer(
    answer: Command, queue: MessageQueue, subscription: Subscription, *, namespace: str | None = None
) -> PullOutcome:
    """Return the result in *answer*, the answer to a pull of *queue*.

    Raises:
        BrokerRefused: the broker refused the pull.
        CorruptRecord: a record's checksum is wrong.
        RemoteProtocolError: the answer lacks a required field.
    """
    header = read_pull_header(answer)
    messages: list[ReceivedMessage] = []
    unreadable: list[UnreadableBatch] = []
    unread: LogicalOffset | None = None
    if answer.code == PullStatus.FOUND:
        messages, unread = read_limited(
            answer.body, queue, namespace=namespace, offset_delta=header.offset_delta or 0, unreadable=unreadable
        )
        messages = filter_by_tags(messages, subscription)
    return PullOutcome(
        PullStatus(answer.code),
        messages,
        LogicalOffset(header.next_begin_offset) if unread is None else unread,
        header.suggest_which_broker_id,
        unreadable,
    )


def read_pull_header(answer: Command, address: str | None = None) -> PullAnswer:
    """Return the header of an answer to a pull, whose code is a `PullStatus` then.

    Raises:
        BrokerRefused: the broker at *address* refused the pull.
        RemoteProtocolError: the answer lacks a required field.
    """
    if answer.code not in _STATUSES:
        raise refusal(answer.code, answer.remark, address=address)
    try:
        return from_fields(PullAnswer, answer.fields)
    except BadField as error:
        raise RemoteProtocolError(f"answer to a pull: {error}") from error


def filter_by_tags(messages: list[ReceivedMessage], subscription: Subscription) -> list[ReceivedMessage]:
    """Return the messages that have a tag of *subscription*: the broker compares only hashes of tags."""
    tags = subscription.tags_set
    if not tags or subscription.sub_string == EVERYTHING:
        return messages
    return [message for message in messages if message.properties.get(names.TAGS) in tags]
