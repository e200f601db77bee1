"""Encodes the status that a consumer reports to operators: answers to 307, 221 and 309. JSON names are upstream's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum

import msgspec

from holdfast.model.group import Subscription
from holdfast.model.queue import LogicalOffset, MessageQueue
from holdfast.wire.frames import java_json


class QueueStatus(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The state of one queue."""

    commit_offset: LogicalOffset
    cached_msg_min_offset: LogicalOffset = LogicalOffset(0)
    cached_msg_max_offset: LogicalOffset = LogicalOffset(0)
    cached_msg_count: int = 0
    cached_msg_size_in_mi_b: int = msgspec.field(default=0, name="cachedMsgSizeInMiB")
    transaction_msg_min_offset: int = 0
    transaction_msg_max_offset: int = 0
    transaction_msg_count: int = 0
    locked: bool = False
    try_unlock_times: int = 0
    last_lock_timestamp: int = 0
    dropped: bool = msgspec.field(default=False, name="droped")
    last_pull_timestamp: int = 0
    last_consume_timestamp: int = 0


class TopicStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The consumption rates of a topic. They are not measured, but readers expect the fields."""

    pullRT: float = 0.0  # noqa: N815 - the wire's name
    pullTPS: float = 0.0  # noqa: N815 - the wire's name
    consumeRT: float = 0.0  # noqa: N815 - the wire's name
    consumeOKTPS: float = 0.0  # noqa: N815 - the wire's name
    consumeFailedTPS: float = 0.0  # noqa: N815 - the wire's name
    consumeFailedMsgs: int = 0  # noqa: N815 - the wire's name


class _RunningInfo(msgspec.Struct, kw_only=True, rename="camel"):
    properties: dict[str, str]
    subscription_set: list[Subscription]
    mq_table: msgspec.Raw
    mq_pop_table: dict[str, str] = {}
    status_table: dict[str, TopicStatus]
    user_consumer_info: dict[str, str] = {}


class _ConsumerStatus(msgspec.Struct, kw_only=True, rename="camel"):
    message_queue_table: msgspec.Raw
    consumer_table: dict[str, str] = {}


class _DirectResult(msgspec.Struct, kw_only=True, rename="camel", omit_defaults=True):
    order: bool
    auto_commit: bool = msgspec.field(name="autoCommit")
    consume_result: str
    remark: str | None = None
    spent_time_mills: int


def encode_running_info(
    properties: Mapping[str, str], subscriptions: Iterable[Subscription], queues: Mapping[MessageQueue, QueueStatus]
) -> bytes:
    """Return the body of the answer to 307."""
    listed = list(subscriptions)
    return java_json.encode(
        _RunningInfo(
            properties=dict(properties),
            subscription_set=listed,
            mq_table=java_json.object_map(queues.items()),
            status_table={subscription.topic: TopicStatus() for subscription in listed},
        )
    )


def encode_consumer_status(offsets: Mapping[MessageQueue, LogicalOffset]) -> bytes:
    """Return the body of the answer to 221: the consumed offset of each queue."""
    return java_json.encode(_ConsumerStatus(message_queue_table=java_json.object_map(offsets.items())))


class DirectOutcome(StrEnum):
    """The result of a direct delivery. Upstream has more values, which our listeners cannot produce."""

    DONE = "CR_SUCCESS"
    LATER = "CR_LATER"
    FAILED = "CR_THROW_EXCEPTION"


def encode_direct_result(
    outcome: DirectOutcome, *, is_ordered: bool, remark: str | None = None, spent_ms: int
) -> bytes:
    """Return the body of the answer to 309: the result of a message that an operator sent to a listener."""
    return java_json.encode(
        _DirectResult(
            order=is_ordered,
            auto_commit=True,
            consume_result=outcome,
            remark=remark,
            spent_time_mills=spent_ms,
        )
    )
