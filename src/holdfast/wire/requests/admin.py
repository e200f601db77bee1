"""Headers and bodies of the administration requests to a broker.

Maps whose keys are queues are encoded with object keys (`java_json.object_map`), the only form that every Java client
reads; the structs hold them as `msgspec.Raw`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

import msgspec

from holdfast.model.errors import RemoteProtocolError
from holdfast.model.group import GroupConfig, Subscription
from holdfast.model.numbers import INT32, Int32
from holdfast.model.queue import LogicalQueueId, MessageQueue, PhysicalQueueId
from holdfast.model.topic import TopicConfig
from holdfast.wire.frames import java_json
from holdfast.wire.frames.fields import KnownInt64, KnownQueueId

_Row = TypeVar("_Row")


class TopicFields(msgspec.Struct, frozen=True, kw_only=True):
    """Header of 215 and 300."""

    topic: str


class TopicQueryFields(msgspec.Struct, frozen=True, kw_only=True):
    """Header of 202 and 351."""

    topic: str
    is_logical: bool | None = msgspec.field(default=None, name="lo")  # True: the logical queues of a static topic.


class RuntimeInfoFields(msgspec.Struct, frozen=True, kw_only=True):
    """Header of 28. Tools send none of these fields: they are the report of a Holdfast replica to its master.

    Attributes:
        replica_id: The broker id of the replica.
        unit: The unit whose consumers it serves.
        is_caught_up: `true` if it has the whole log of its master.
    """

    replica_id: str = msgspec.field(default="", name="hf.replica")
    unit: str = msgspec.field(default="", name="hf.unit")
    is_caught_up: str = msgspec.field(default="", name="hf.caughtUp")


class CreateTopicFields(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Header of 17. Attributes have the form `+name=value,-name`."""

    topic: str
    default_topic: str = ""
    read_queue_nums: Int32 = 16
    write_queue_nums: Int32 = 16
    perm: Int32 = 6
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: Int32 = 0
    order: bool = False
    attributes: str = ""


class TopicConfigs(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Body of 18."""

    topic_config_list: list[TopicConfig] = []


class PageFields(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Header of 21 and 201 from 5.5 on; older callers request everything."""

    topic_seq: int = 0
    max_topic_num: int | None = None
    group_seq: int = 0
    max_group_num: int | None = None


def slice_page(table: dict[str, _Row], start: int, count: int | None) -> dict[str, _Row]:
    """Return *count* rows of *table* from row *start* on; all of them if *count* is None."""
    if count is None:
        return table
    start = max(0, start)
    return dict(list(table.items())[start : start + max(1, count)])


class GroupConfigs(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Body of 225."""

    group_config_list: list[GroupConfig] = []


class GroupFields(msgspec.Struct, frozen=True, kw_only=True):
    """Header of 303, 343, 345, 352; some of them name a topic, too."""

    group: str
    topic: str = ""


class DeleteGroupFields(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Header of 207."""

    group_name: str
    clean_offset: bool = False


class ProducerGroupFields(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Header of 204."""

    producer_group: str


class ConsumeStatsFields(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Header of 208. Without a topic: all topics that the group consumes."""

    consumer_group: str
    topic: str = ""
    topic_list: str = ""
    is_logical: bool = msgspec.field(default=False, name="lo")  # True: logical queues and offsets of static topics.


class ResetOffsetFields(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Header of 222, and of the 220 that it may cause. None means: all queues, no offset, the end."""

    topic: str
    group: str
    timestamp: KnownInt64 = None
    queue_id: KnownQueueId = None
    offset: KnownInt64 = None
    is_force: bool = False


class ConsumerStatusFields(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Header of 223 and 221. `client_addr` holds a client id."""

    topic: str
    group: str
    client_addr: str | None = None


class ClientRequestFields(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Header of 307 and 309, as tools send it and as the client receives it."""

    consumer_group: str
    client_id: str | None = None
    jstack_enable: bool | None = None
    msg_id: str | None = None
    topic: str | None = None
    broker_name: str | None = None
    topic_sys_flag: int | None = None
    group_sys_flag: int | None = None


class CloneOffsetFields(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Header of 314."""

    src_group: str
    dest_group: str
    topic: str = ""
    offline: bool = False


class StatsFields(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Header of 315."""

    stats_name: str
    stats_key: str


class BrokerStatsFields(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Header of 317."""

    is_order: bool = False


class QueueEntriesFields(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Header of 321."""

    topic: str
    queue_id: Annotated[PhysicalQueueId, INT32]
    index: int = 0
    count: int = 10
    consumer_group: str = ""


class Connection(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One client of a group."""

    client_id: str
    client_addr: str
    language: str
    version: int


class ProducerConnections(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Body of the answer to 204."""

    connection_set: list[Connection]


class ConsumerConnections(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Body of the answer to 203."""

    connection_set: list[Connection]
    subscription_table: dict[str, Subscription]
    consume_type: str
    message_model: str
    consume_from_where: str


class ProducerRow(msgspec.Struct, frozen=True, kw_only=True):
    """One client in the answer to 328."""

    clientId: str  # noqa: N815 - the wire's name
    remoteIP: str  # noqa: N815 - the wire's name
    language: str
    version: int
    lastUpdateTimestamp: int  # noqa: N815 - the wire's name


class ProducerTable(msgspec.Struct, frozen=True):
    """Body of the answer to 328."""

    data: dict[str, list[ProducerRow]]


class GroupNames(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Body of the answer to 300."""

    group_list: list[str]


class GroupSubscription(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Body of the answer to 345."""

    group: str
    topic: str
    subscription_data: Subscription | None = None


class TopicOffset(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One queue in the answer to 202."""

    min_offset: int
    max_offset: int
    last_update_timestamp: int = 0


class TopicOffsetTable(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Body of the answer to 202 after decoding; an object key becomes its own JSON text."""

    offset_table: dict[str, TopicOffset] = {}

    def rows(self) -> list[tuple[MessageQueue, TopicOffset]]:
        """Return every queue with its offsets.

        Raises:
            RemoteProtocolError: a key is not a queue.
        """
        return [(java_json.decode(key.encode(), MessageQueue), ends) for key, ends in self.offset_table.items()]


class TopicStats(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Body of the answer to 202."""

    offset_table: msgspec.Raw
    topic_put_tps: float


class ConsumerOffset(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One queue in the answer to 208.

    Attributes:
        gap: How many offsets in between never had a message, or have none any more: they do not count as lag. Only
            Holdfast sends this, and only if there is a gap.
    """

    broker_offset: int
    consumer_offset: int
    pull_offset: int
    last_timestamp: int
    gap: int = 0


class ConsumeStats(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Body of the answer to 208."""

    offset_table: msgspec.Raw
    consume_tps: float


class BrokerConsumeStats(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Body of the answer to 317."""

    broker_addr: str
    consume_stats_list: list[dict[str, list[ConsumeStats]]]
    total_diff: int
    total_inflight_diff: int


class TimeSpan(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One queue in the answer to 303."""

    message_queue: MessageQueue
    min_time_stamp: int
    min_time_stamp_str: str
    max_time_stamp: int
    max_time_stamp_str: str
    consume_time_stamp: int
    consume_time_stamp_str: str
    delay_time: int


class TimeSpans(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Body of the answer to 303."""

    consume_time_span_set: list[TimeSpan]


class OffsetMap(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Body of the answer to 222, and of 220 for clients of any language but C++."""

    offset_table: msgspec.Raw


class CppOffset(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One row of the body of 220 for C++ clients, which cannot read object keys."""

    topic: str
    broker_name: str
    queue_id: Annotated[LogicalQueueId, INT32]
    offset: int


class CppOffsets(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Body of 220 for C++ clients."""

    offset_table: list[CppOffset]


class QueueEntry(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One index entry in the answer to 321."""

    physic_offset: int
    physic_size: int
    tags_code: int
    eval: bool = False


class QueueEntries(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Body of the answer to 321."""

    queue_data: list[QueueEntry]
    min_queue_index: int
    max_queue_index: int
    filter_data: str = "null"
    subscription_data: Subscription | None = None


class ConsumerStatus(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Body of the answer to 223."""

    consumer_table: dict[str, msgspec.Raw]
    message_queue_table: dict[str, int] = {}


def offset_map(offsets: Mapping[MessageQueue, int]) -> msgspec.Raw:
    """Return offsets by queue in the form that Java reads."""
    return java_json.object_map(offsets.items())


def decode_status(body: bytes) -> msgspec.Raw:
    """Return the queue table of a client's answer to 221, ready to be embedded in another body.

    Raises:
        RemoteProtocolError: *body* has no queue table.
    """
    data: Any = java_json.loads(body)
    table = data.get("messageQueueTable", {}) if isinstance(data, dict) else None
    if not isinstance(table, dict):
        raise RemoteProtocolError("a consumer's status must hold a table of queues")
    # The keys were objects; decoding turned them into their JSON text.
    rows = [key.encode() + b":" + java_json.encode(value) for key, value in table.items()]
    return msgspec.Raw(b"{" + b",".join(rows) + b"}")


def parse_attributes(text: str) -> tuple[dict[str, str], set[str]]:
    """Return the attributes to set and to remove by a change of the form `+name=value,-name`.

    Raises:
        RemoteProtocolError: a part has another form.
    """
    put: dict[str, str] = {}
    removed: set[str] = set()
    for word in filter(None, (word.strip() for word in text.split(","))):
        name, is_set, value = word[1:].partition("=")
        if word[0] == "+" and name and is_set:
            put[name.strip()] = value.strip()
        elif word[0] == "-" and name:
            removed.add(name.strip())
        else:
            raise RemoteProtocolError(f"the attribute {word!r} is neither +name=value nor -name")
    return put, removed
