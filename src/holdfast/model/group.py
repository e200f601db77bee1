"""Consumer group configuration, and the subscriptions of a group's members. JSON names are upstream's."""

from __future__ import annotations

from typing import Final

import msgspec

from holdfast.model.numbers import Int32, Int64
from holdfast.model.topic import LEGAL_NAME, RETRY_PREFIX, RETRY_TOPIC_LENGTH_MAX

GROUP_LENGTH_MAX: Final = RETRY_TOPIC_LENGTH_MAX - len(RETRY_PREFIX)  # The retry topic is a folder name with a limit.
RETRY_QUEUES_MAX: Final = 1024


class GroupConfig(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A broker's configuration of a consumer group."""

    group_name: str
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    consume_message_orderly: bool = False
    retry_queue_nums: Int32 = 1
    retry_max_times: Int32 = 16
    group_retry_policy: dict[str, object] = msgspec.field(default_factory=lambda: {"type": "CUSTOMIZED"})
    broker_id: Int64 = 0
    which_broker_when_consume_slowly: Int64 = 1
    notify_consumer_ids_changed_enable: bool = True
    group_sys_flag: Int32 = 0
    consume_timeout_minute: Int32 = 15
    attributes: dict[str, str] = {}


class Subscription(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A group's subscription to one topic. An empty tag set means everything."""

    topic: str
    sub_string: str = "*"
    tags_set: frozenset[str] = frozenset()
    code_set: frozenset[Int32] = frozenset()
    sub_version: Int64 = 0
    expression_type: str = "TAG"
    class_filter_mode: bool = False


def find_group_fault(config: GroupConfig) -> str | None:
    """Return why *config* is refused, or None if it is valid."""
    name = config.group_name
    if not name or len(name) > GROUP_LENGTH_MAX:
        return f"a group name has 1 to {GROUP_LENGTH_MAX} characters, not {len(name)}"
    if not LEGAL_NAME.fullmatch(name):
        return f"the group name {name!r} may only contain letters, digits, '%', '|', '_' and '-'"
    if not 0 <= config.retry_queue_nums <= RETRY_QUEUES_MAX:
        return f"{config.retry_queue_nums} retry queues are outside 0..{RETRY_QUEUES_MAX}"
    return None
