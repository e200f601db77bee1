"""Changes to the mappings of this broker, as records in the broker's log.

    SYS_HOLDFAST_MAPPING / 0    {"mapping": {"topic", "epoch", "queues": {"3": [segment, ...]}, ...}, "move": {...}}

A record holds the resulting state of whatever it changes, never a delta. So replay is idempotent, and the last record
wins. The records are in the same log as the messages, so one sync covers a seal and everything before it. A snapshot
file contains the position from which records must be replayed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from holdfast.broker.tables.journal import Journal
from holdfast.model.errors import CorruptRecord, StoreError
from holdfast.model.mapping import LogicalQueue, TopicMapping
from holdfast.model.numbers import Int32, Int64
from holdfast.model.queue import LogicalQueueId
from holdfast.model.scope import covers, to_shown_scope
from holdfast.model.topic import TopicConfig
from holdfast.wire.cluster.mapping import (
    RECORD_VERSION,
    KnownFloor,
    PhysicalQueueNumber,
    QueueNumber,
    WireSegment,
    from_floors,
    from_wire_segment,
    to_floors,
    to_wire_segment,
)
from holdfast.wire.cluster.registration import DataVersion
from holdfast.wire.requests.moves import Move, OpenQueues

QUEUES_PER_RECORD = 1024
"""Small enough for one record to fit the log. A topic with more queues needs several records, in one write."""


class MoveState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A move, with everything that its source needs to resume it.

    Attributes:
        move: The move in the form shown to operators.
        physical: Queues that the target prepared: logical to physical queue.
        opening: The grant to the target; None before it.
        saved: On the target: the save count of the offsets file when the offsets of `opening` were adopted.
    """

    move: Move
    physical: dict[QueueNumber, PhysicalQueueNumber] = {}
    opening: OpenQueues | None = None
    saved: Int64 = -1


class MappingChange(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The recorded state of a static topic, or a change to it.

    Attributes:
        version: Version of this format; empty in the first one.
        broker: The broker that wrote the record, so that a copied folder is detected; empty in old records.
        queues: All segments of each queue that changed.
        dropped: Queues that are no longer recorded here.
        floors: The floors of forgotten queues that changed: the lowest offset at which each may begin again.
        is_whole: These are all queues; others are dropped.
        is_deleted: The topic is no longer static.
        config: The topic's configuration, in case the topics file is older.
    """

    topic: str
    version: str = ""
    scope: str = ""
    broker: str = msgspec.field(name="bname", default="")
    epoch: Int64 = 0
    total: Int32 = 0
    queues: dict[QueueNumber, list[WireSegment]] = {}
    dropped: list[Int32] = []
    floors: dict[QueueNumber, KnownFloor] = {}
    is_whole: bool = False
    is_deleted: bool = False
    config: TopicConfig | None = None


class ChangeRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The body of one record. An empty one changes nothing: it only starts a log file.

    Attributes:
        draining: Whether the broker gets no more queues from here on.
    """

    mapping: MappingChange | None = None
    move: MoveState | None = None
    draining: bool | None = None


class MappingSnapshot(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """`config/holdfastMapping.json`: the combined state of all records before a position of the log.

    Attributes:
        java: Version of the Java mapping file written with it. A later version there was written by a Java broker.
    """

    position: Int64 = 0
    java: DataVersion | None = None
    topics: dict[str, MappingChange] = {}
    moves: dict[str, MoveState] = {}
    draining: bool = False


def describe(mapping: TopicMapping, config: TopicConfig | None = None) -> MappingChange:
    """Return the complete recorded state of a topic."""
    return MappingChange(
        topic=mapping.topic,
        version=RECORD_VERSION,
        scope=mapping.scope,
        broker=mapping.broker,
        epoch=mapping.epoch,
        total=mapping.total,
        queues=_encode_segments(mapping.queues),
        floors=to_floors(mapping.floors),
        is_whole=True,
        config=config,
    )


def split_change(old: TopicMapping | None, new: TopicMapping, config: TopicConfig | None) -> list[MappingChange]:
    """Return the changes from *old* to *new*: one, or several if more queues changed than fit one record."""
    known = {} if old is None else old.queues
    changed = {number: queue for number, queue in new.queues.items() if known.get(number) != queue}
    old_floors = {} if old is None else old.floors
    floors = to_floors({number: floor for number, floor in new.floors.items() if old_floors.get(number) != floor})
    numbers = sorted(changed)
    parts = [numbers[at : at + QUEUES_PER_RECORD] for at in range(0, len(numbers), QUEUES_PER_RECORD)] or [[]]
    return [
        MappingChange(
            topic=new.topic,
            version=RECORD_VERSION,
            scope=new.scope,
            broker=new.broker,
            epoch=new.epoch,
            total=new.total,
            queues=_encode_segments({number: changed[number] for number in part}),
            dropped=sorted(known.keys() - new.queues.keys()) if part is parts[0] else [],
            floors=floors if part is parts[0] else {},
            is_whole=old is None and part is parts[0],
            config=config,
        )
        for part in parts
    ]


def apply_change(old: TopicMapping | None, change: MappingChange, broker: str) -> TopicMapping | None:
    """Apply *change* to the mapping of *broker*; return None if the topic is no longer static."""
    if change.is_deleted:
        return None
    known = {} if old is None or change.is_whole else old.queues
    changed = {
        number: LogicalQueue(LogicalQueueId(number), tuple(map(from_wire_segment, segments)))
        for number, segments in change.queues.items()
    }
    queues = {number: queue for number, queue in known.items() if number not in change.dropped} | changed
    floors = {} if old is None or change.is_whole else old.floors
    return TopicMapping(
        topic=change.topic,
        broker=broker,
        scope=change.scope,
        epoch=change.epoch,
        total=change.total,
        queues=dict(sorted(queues.items())),
        floors=floors | from_floors(change.floors),
    )


def find_owner_fault(mapping: TopicMapping, owner: str, *, cluster: str | None) -> str | None:
    """Return why a mapping in a broker's folder belongs to another broker or cluster, or None if it is its own.

    Args:
        mapping: The mapping, with this broker as its owner.
        owner: The broker named in the record; empty if the record names none.
        cluster: The cluster in which the broker was started; None skips the check.
    """
    topic, broker, scope = mapping.topic, mapping.broker, to_shown_scope(mapping.scope)
    if owner not in {"", broker}:
        return (
            f"{topic} is recorded here for broker {owner}: the folder was copied from there. Start {owner} on it, or"
            f" {broker} on a separate folder"
        )
    if cluster is not None and not covers(mapping.scope, cluster):
        return (
            f"{topic} is fixed in {scope}, and {broker} was started in cluster {cluster}: start it with --cluster"
            f" {scope}, or on a separate folder"
        )
    return None


def find_owner_faults(
    table: Mapping[str, TopicMapping], owners: Mapping[str, str], cluster: str | None
) -> dict[str, str]:
    """Return the topics whose mapping belongs to another broker or cluster, with the reason."""
    found = {topic: find_owner_fault(mapping, owners[topic], cluster=cluster) for topic, mapping in table.items()}
    return {topic: reason for topic, reason in found.items() if reason is not None}


def read_changes(journal: Journal[ChangeRecord], start: int) -> Iterator[ChangeRecord]:
    """Yield the records from log position *start* on, oldest first. Reads the disk synchronously: only while opening.

    Raises:
        StoreError: A record cannot be read. Continuing without it might open a queue that is open on another broker.
    """
    for offset in journal.find_from(start):
        try:
            record = journal.read(offset)
        except CorruptRecord as error:
            raise StoreError(
                f"the mapping record at position {error.position} cannot be read ({error.reason}); restore the folder, "
                "or take the broker out of service and move its queues by force"
            ) from error
        if record is not None:
            yield record


def _encode_segments(queues: Mapping[LogicalQueueId, LogicalQueue]) -> dict[LogicalQueueId, list[WireSegment]]:
    return {number: [to_wire_segment(segment) for segment in queues[number].segments] for number in sorted(queues)}
