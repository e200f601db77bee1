"""What to pull next, and what an answer to a pull means.

    FOUND          messages; pull again at once behind them
    NOTHING_NEW    the end of the queue, after waiting there
    NO_MATCH       messages, but none that is wanted; pull again at once behind them
    MOVED          the offset is not in the queue, or an operator reset it: begin elsewhere

Decides only; the pulling is `queue_reader`'s.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

import msgspec

from holdfast.client.consume.process_queue import ProcessQueue
from holdfast.client.messages.arguments import check_count
from holdfast.client.messages.unpacking import read_some
from holdfast.model import property_names as names
from holdfast.model.errors import BrokerRefused, RemoteProtocolError, UnreadableBatch
from holdfast.model.filter import EVERYTHING
from holdfast.model.group import Subscription
from holdfast.model.message import ReceivedMessage
from holdfast.model.queue import MessageQueue
from holdfast.model.scope import is_mock_broker
from holdfast.wire.cluster.route import MAPPING_FIELD
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.frames.command import Command
from holdfast.wire.frames.fields import BadField, from_fields, to_fields
from holdfast.wire.records.inner_batch import Opening
from holdfast.wire.requests.pull import COMMIT_OFFSET, SUBSCRIPTION, SUSPEND, PullAnswer, PullFields

BATCH_MAX: Final = 32
BATCH_BYTES_MAX: Final = 256 * 1024
SUSPEND_MS: Final = 15_000
# The broker may look after parked pulls only now and then: answers take longer than the time they were parked for.
TIMEOUT_S: Final = 30.0
ERROR_PAUSE_S: Final = 0.1
ERROR_PAUSE_S_MAX: Final = 3.0


class PullStatus(IntEnum):
    """What an answer means."""

    FOUND = ResponseCode.SUCCESS
    NOTHING_NEW = ResponseCode.PULL_NOT_FOUND
    NO_MATCH = ResponseCode.PULL_RETRY_IMMEDIATELY
    MOVED = ResponseCode.PULL_OFFSET_MOVED


_STATUSES: Final = frozenset(PullStatus)


class PullOutcome(msgspec.Struct, frozen=True):
    """What a pull brought.

    Attributes:
        messages: Those that the subscription wants.
        next_offset: Where to pull next.
        offset_min: The lowest offset of the queue.
        offset_max: The queue's end: the offset of the next message stored in it.
        broker_id: Whom to ask next: 0 the master.
        unreadable: Batches that cannot be opened: nobody ever gets what they hold.
    """

    status: PullStatus
    messages: list[ReceivedMessage]
    next_offset: int
    offset_min: int
    offset_max: int
    broker_id: int
    unreadable: list[UnreadableBatch] = []


class PullLimits(msgspec.Struct, frozen=True):
    """How much of one queue may be pulled and not done.

    Attributes:
        message_count_max: Messages.
        byte_count_max: Bytes of their bodies.
        span_max: Offsets between the first that is not done and the next to pull: what a crash could repeat.
    """

    message_count_max: int = 1000
    byte_count_max: int = 16 * 1024 * 1024
    span_max: int = 2000

    def allow(self, window: ProcessQueue) -> bool:
        """Say whether *window* may grow."""
        return (
            window.message_count < self.message_count_max
            and window.byte_count < self.byte_count_max
            and window.span < self.span_max
        )


class Prefetch(msgspec.Struct, frozen=True):
    """How much of all queues of a consumer together may be pulled and not done.

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
        """Return what one of *queue_count* queues may have: a part, but at least what one pull brings."""
        most = PullLimits()
        return PullLimits(
            message_count_max=min(
                most.message_count_max, max(BATCH_MAX, self.message_count_max // max(1, queue_count))
            ),
            byte_count_max=min(most.byte_count_max, max(BATCH_BYTES_MAX, self.byte_count_max // max(1, queue_count))),
            span_max=most.span_max,
        )


def error_pause_s(failures: int) -> float:
    """Return how long to wait with the next pull after *failures* in a row."""
    return float(min(ERROR_PAUSE_S * 2 ** min(failures - 1, 10), ERROR_PAUSE_S_MAX))


def pull_command(
    *,
    group: str,
    queue: MessageQueue,
    offset: int,
    subscription: Subscription,
    commit_offset: int | None = None,
    suspend_ms: int = SUSPEND_MS,
    with_subscription: bool = False,
    batch_max: int = BATCH_MAX,
) -> Command:
    """Return the request for the next messages of *queue*.

    Args:
        group: Who consumes.
        queue: Which queue.
        offset: From where on.
        subscription: Which messages.
        commit_offset: Also tell the broker that everything before is done.
        suspend_ms: How long the broker may wait for a message; 0 to be answered at once.
        with_subscription: Say what is wanted in the request itself, for consumers that no heartbeat speaks of.
        batch_max: How many messages at most.
    """
    sys_flag = COMMIT_OFFSET if commit_offset else 0
    sys_flag |= SUSPEND if suspend_ms else 0
    sys_flag |= SUBSCRIPTION if with_subscription else 0
    fields = PullFields(
        consumer_group=group,
        topic=queue.topic,
        queue_id=queue.queue_id,
        queue_offset=offset,
        max_msg_nums=batch_max,
        sys_flag=sys_flag,
        commit_offset=commit_offset or 0,
        suspend_timeout_millis=suspend_ms,
        subscription=subscription.sub_string if with_subscription else None,
        sub_version=subscription.sub_version,
        expression_type=subscription.expression_type,
        max_msg_bytes=BATCH_BYTES_MAX,
        broker_name=queue.broker_name,
        opens_batches=Opening.WANTED.value,
    )
    command = Command(code=RequestCode.PULL_MESSAGE, fields=to_fields(fields))
    if is_mock_broker(queue.broker_name):
        command.fields[MAPPING_FIELD] = "1"
    return command


def read_pull_answer(
    answer: Command, queue: MessageQueue, subscription: Subscription, *, namespace: str | None = None
) -> PullOutcome:
    """Return what *answer* to a pull of *queue* means.

    Raises:
        BrokerRefused: the broker refused the pull.
        CorruptRecord: a record's checksum is wrong.
        RemoteProtocolError: the answer lacks what it must say.
    """
    if answer.code not in _STATUSES:
        raise BrokerRefused(answer.code, answer.remark or "")
    try:
        head = from_fields(PullAnswer, answer.fields)
    except BadField as error:
        raise RemoteProtocolError(f"answer to a pull: {error}") from error
    messages: list[ReceivedMessage] = []
    unreadable: list[UnreadableBatch] = []
    unread: int | None = None
    if answer.code == PullStatus.FOUND:
        messages, unread = read_some(
            answer.body, queue, namespace=namespace, offset_delta=head.offset_delta or 0, unreadable=unreadable
        )
        messages = wanted(messages, subscription)
    return PullOutcome(
        PullStatus(answer.code),
        messages,
        head.next_begin_offset if unread is None else unread,
        head.min_offset,
        head.max_offset,
        head.suggest_which_broker_id,
        unreadable,
    )


def wanted(messages: list[ReceivedMessage], subscription: Subscription) -> list[ReceivedMessage]:
    """Return those that have a tag of *subscription*: the broker looked at hashes only."""
    tags = subscription.tags_set
    if not tags or subscription.sub_string == EVERYTHING:
        return messages
    return [message for message in messages if message.properties.get(names.TAGS) in tags]
