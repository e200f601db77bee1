"""Offsets and lookups: 12, 14, 15, 29-33, 43, and the locks of ordered consumption (41, 42).

Queues of a static topic are logical, unless `lo` is false: then a broker asks another broker for a physical queue.
"""

from __future__ import annotations

from typing import Final

import msgspec

from holdfast.model.queue import LogicalQueueId, MessageQueue
from holdfast.wire.cluster.route import MAPPING_FIELD
from holdfast.wire.frames.fields import KnownInt64
from holdfast.wire.records.inner_batch import BATCH_SUPPORT_FIELD


class QueueFields(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Header of 30, 31, 32."""

    topic: str
    queue_id: int
    committed: bool = True
    is_logical: bool | None = msgspec.field(default=None, name="lo")


class QueryOffsetFields(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Header of 14."""

    consumer_group: str
    topic: str
    queue_id: LogicalQueueId
    set_zero_if_not_found: bool | None = None
    is_logical: bool | None = msgspec.field(default=None, name="lo")


class UpdateOffsetFields(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Header of 15. Clients send no offset if they have consumed nothing yet."""

    consumer_group: str
    topic: str
    queue_id: LogicalQueueId
    commit_offset: KnownInt64
    is_logical: bool | None = msgspec.field(default=None, name="lo")


class SearchOffsetFields(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Header of 29. The boundary is `LOWER` or `UPPER`, in any case."""

    topic: str
    queue_id: int
    timestamp: int
    boundary_type: str = "LOWER"
    is_logical: bool | None = msgspec.field(default=None, name="lo")


class OffsetAnswer(msgspec.Struct, frozen=True):
    """Header of the answers to 14, 29, 30, 31."""

    offset: int


class KnownOffsetAnswer(msgspec.Struct, frozen=True):
    """Header of the same answers, as a client reads them.

    Some brokers answer -1 for a group that never committed, or for a queue that they do not have.
    """

    offset: KnownInt64


class TimestampAnswer(msgspec.Struct, frozen=True):
    """Header of the answer to 32; None when the queue is empty."""

    timestamp: KnownInt64


class QueryMessageFields(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Header of 12. A client that supports mappings queries every broker of a static topic separately."""

    topic: str
    key: str
    max_num: int = 32
    begin_timestamp: int = 0
    end_timestamp: int = 0x7FFFFFFFFFFFFFFF
    index_type: str | None = None
    unique_key: bool = msgspec.field(default=False, name="_UNIQUE_KEY_QUERY")
    reads_mappings: bool | None = msgspec.field(default=None, name=MAPPING_FIELD)


class QueryMessageAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Header of the answer to 12."""

    indexLastUpdateTimestamp: int  # noqa: N815 - the wire's name
    indexLastUpdatePhyoffset: int  # noqa: N815 - the wire's name


class ViewMessageFields(msgspec.Struct, frozen=True, kw_only=True):
    """Header of 33: a position in the commit log."""

    offset: int
    topic: str | None = None
    batch_support: str | None = msgspec.field(default=None, name=BATCH_SUPPORT_FIELD)


class LockBody(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Body of 41 and 42."""

    client_id: str
    consumer_group: str
    mq_set: list[MessageQueue] = []
    only_this_broker: bool = False


class LockAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Body of the answer to 41: the queues that the client now holds."""

    lockOKMQSet: list[MessageQueue] = []  # noqa: N815 - the wire's name


class SendBackFields(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Header of 36: a message could not be consumed; *offset* is its position in the commit log."""

    offset: int
    group: str
    delay_level: int = 0
    origin_msg_id: str | None = None
    origin_topic: str | None = None
    unit_mode: bool = False
    max_reconsume_times: int | None = None


USER_FIELD: Final = "hf.user"
"""In a relayed decision: the user name of the producer, which the relaying broker has checked."""
CLIENT_FIELD: Final = "hf.client"
"""In a relayed decision: `host:port` of the producer."""


class EndTransactionFields(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Header of 37. `commit_or_rollback` is 0 unknown, 8 commit, 12 roll back; `lo` is false if relayed."""

    producer_group: str
    tran_state_table_offset: int
    commit_log_offset: int
    commit_or_rollback: int
    from_transaction_check: bool = False
    msg_id: str = ""
    transaction_id: str | None = None
    topic: str | None = None
    is_logical: bool | None = msgspec.field(default=None, name="lo")
    user: str | None = msgspec.field(default=None, name=USER_FIELD)
    client: str | None = msgspec.field(default=None, name=CLIENT_FIELD)

    @property
    def has_id(self) -> bool:
        """Whether it has more than a position."""
        return bool(self.transaction_id or self.msg_id)


class CheckTransactionFields(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Header of 39."""

    tran_state_table_offset: int
    commit_log_offset: int
    msg_id: str | None = None
    transaction_id: str | None = None
    offset_msg_id: str | None = None
    topic: str | None = None
    broker_name: str | None = msgspec.field(default=None, name="bname")
