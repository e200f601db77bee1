"""Consumer group configuration and what a group's members subscribe to. JSON names are upstream's."""

from __future__ import annotations

import msgspec

from holdfast.model.numbers import Int32, Int64


class GroupConfig(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """How a broker treats a consumer group."""

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
    """What a group wants of one topic. An empty tag set means everything."""

    topic: str
    sub_string: str = "*"
    tags_set: frozenset[str] = frozenset()
    code_set: frozenset[Int32] = frozenset()
    sub_version: Int64 = 0
    expression_type: str = "TAG"
    class_filter_mode: bool = False
