"""Reads queue mappings from store folders, and maps physical offsets to logical queues.

    config/holdfastMapping.json          our mapping, as of a log position
    SYS_HOLDFAST_MAPPING in the log      changes after that position, up to `settled`
    config/topicQueueMapping.json        Java's mapping: used if ours is missing, or if Java wrote it last

Every message of a segment comes after the record that opened the segment, in the same log. So a reader that has the log
and the mapping up to the same position knows the segment of each message.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import closing

import msgspec

from holdfast.broker.mapping.mapping_journal import ChangeRecord, MappingChange, MappingSnapshot, apply_change
from holdfast.broker.mapping.mapping_table import JAVA_NAME, NAME
from holdfast.model.errors import CorruptRecord, HoldfastError, RemoteProtocolError
from holdfast.model.mapping import MergedTopic, Segment, TopicMapping, merge
from holdfast.model.queue import LogicalQueueId
from holdfast.model.topic import MAPPING_TOPIC
from holdfast.pipeline.scan.queue_entries import QueueFolder, QueueReader
from holdfast.pipeline.scan.read_only import read_small_file
from holdfast.pipeline.scan.store_folder import StoreFolder
from holdfast.store.queues.queue_index import BLANK_ENTRY_SIZE
from holdfast.wire.cluster.mapping import MappingFile, from_detail, to_number
from holdfast.wire.frames import java_json
from holdfast.wire.records.record import decode_record


class MappingUnreadable(HoldfastError):
    """A mapping cannot be read; the text names the file, or the position in the log."""


class StoreMapping(msgspec.Struct, frozen=True):
    """The queue mapping of one broker.

    Attributes:
        path: The file of the mapping, even if it does not exist.
        owners: The brokers that own the mapping according to Java's file.
    """

    path: str
    topics: dict[str, TopicMapping]
    owners: frozenset[str] = frozenset()


def load_mapping(folder: StoreFolder) -> StoreMapping:
    """Return the queue mapping of a folder.

    Raises:
        MappingUnreadable: the mapping exists but cannot be read.
    """
    java, java_path = _load_java(folder), f"{folder.root}/config/{JAVA_NAME}"
    owners = frozenset(detail.broker for detail in java.topic_queue_mapping_info_map.values()) if java else frozenset()
    path = f"{folder.root}/config/{NAME}"
    raw = read_small_file(folder.root, f"config/{NAME}") or read_small_file(folder.root, f"config/{NAME}.bak")
    try:
        snapshot = msgspec.json.decode(raw, type=MappingSnapshot, strict=False) if raw else None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise MappingUnreadable(f"{path} cannot be read: {error}") from error
    if java is not None and (snapshot is None or (snapshot.java and snapshot.java != java.data_version)):
        try:
            topics = {topic: from_detail(detail) for topic, detail in java.topic_queue_mapping_info_map.items()}
        except RemoteProtocolError as error:
            raise MappingUnreadable(f"{java_path} cannot be read: {error}") from error
        return StoreMapping(java_path, topics, owners)
    topics = {}
    position = 0
    if snapshot is not None:
        position = snapshot.position
        for topic, change in snapshot.topics.items():
            _apply(topics, topic, change, folder.broker)
    for change in _changes(folder, position):
        _apply(topics, change.topic, change, folder.broker)
    return StoreMapping(path, topics, owners)


def _load_java(folder: StoreFolder) -> MappingFile | None:
    raw = read_small_file(folder.root, f"config/{JAVA_NAME}") or read_small_file(folder.root, f"config/{JAVA_NAME}.bak")
    if not raw:
        return None
    try:
        return java_json.decode(raw, MappingFile)
    except RemoteProtocolError as error:
        raise MappingUnreadable(f"{folder.root}/config/{JAVA_NAME} cannot be read: {error}") from error


def _apply(topics: dict[str, TopicMapping], topic: str, change: MappingChange, broker: str) -> None:
    found = apply_change(topics.get(topic), change, broker)
    if found is None:
        topics.pop(topic, None)
    else:
        topics[topic] = found


def _changes(folder: StoreFolder, position: int) -> Iterable[MappingChange]:
    """Yield the settled mapping changes at or after a log position."""
    for queue in folder.queues:
        if (queue.topic, queue.queue_id) == (MAPPING_TOPIC, 0):
            yield from _read_changes(folder, queue, position)


def _read_changes(folder: StoreFolder, queue: QueueFolder, position: int) -> Iterable[MappingChange]:
    with closing(QueueReader(queue)) as reader:
        low, high = reader.find(max(position, folder.start)), reader.find(folder.settled)
        entries = reader.read(low, high)
    with folder.open_log() as log:
        for at, size in zip(entries["position"].tolist(), entries["size"].tolist(), strict=True):
            found = log.find(at)
            if size == BLANK_ENTRY_SIZE or found is None:
                continue
            try:
                record = decode_record(found.file.read(at - found.start, at - found.start + size))
                change = msgspec.json.decode(record.body, type=ChangeRecord).mapping
            except (CorruptRecord, msgspec.MsgspecError, UnicodeDecodeError) as error:
                path, byte = folder.log_path(at)
                raise MappingUnreadable(f"the queue mapping record at {path} byte {byte} cannot be read") from error
            if change is not None:
                yield change


def merge_topics(records: Mapping[str, Mapping[str, TopicMapping]]) -> dict[str, MergedTopic]:
    """Return the merged mapping of each static topic; *records* are by broker and topic."""
    by_topic: dict[str, dict[str, TopicMapping]] = {}
    for broker, topics in records.items():
        for topic, mapping in topics.items():
            by_topic.setdefault(topic, {})[broker] = mapping
    return {topic: merge(found) for topic, found in sorted(by_topic.items())}


class SegmentRange(msgspec.Struct, frozen=True):
    """A range of physical offsets, and the logical queue that it belongs to."""

    queue: LogicalQueueId
    generation: int
    start: int
    end: int | None
    delta: int


def segment_ranges(
    broker: str, own_mapping: TopicMapping | None, merged: MergedTopic | None
) -> dict[int, list[SegmentRange]]:
    """Return, for each physical queue of *broker*, the segments that it holds.

    The leader's mapping takes precedence; the broker's own is used where the leader's is not available.
    """
    known: dict[tuple[LogicalQueueId, int], Segment] = {}
    for mapping in (own_mapping, merged):
        for number, queue in mapping.queues.items() if mapping is not None else ():
            for segment in queue.segments:
                if segment.broker == broker and segment.is_decided:
                    known[number, to_number(segment.generation)] = segment
    found: dict[int, list[SegmentRange]] = {}
    for (number, generation), segment in sorted(known.items()):
        found.setdefault(segment.queue_id, []).append(
            SegmentRange(number, generation, segment.start, segment.end, segment.delta)
        )
    return found
