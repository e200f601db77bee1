"""Checks queue mappings: those of all brokers must agree, and must match the physical queues.

Runs on the driver: mappings are small.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from holdfast.model.mapping import LogicalQueue, Segment, TopicMapping
from holdfast.model.topic import AUTO_CREATE_TOPIC, NOT_SENDABLE_TOPICS
from holdfast.pipeline.audit.index_check import IndexResult
from holdfast.pipeline.audit.log_check import SHARED_PREFIX
from holdfast.pipeline.scan.faults import Fault, Faults
from holdfast.pipeline.scan.mappings import MappingUnreadable, StoreMapping, load_mapping, merge_topics
from holdfast.pipeline.scan.store_folder import StoreFolder

Bounds = Mapping[tuple[str, int], IndexResult]
"""The check result of each index of a store, by topic and queue id."""


def audit_mappings(folders: Sequence[StoreFolder], bounds: Sequence[Bounds], notes: list[str]) -> Faults:
    """Return the faults in the queue mappings of some brokers. Add remarkable but valid findings to *notes*."""
    faults = Faults()
    found: dict[str, StoreMapping] = {}
    for folder, store_bounds in zip(folders, bounds, strict=True):
        try:
            mapping = load_mapping(folder)
        except MappingUnreadable as error:
            faults.add(Fault(kind="mapping", broker=folder.broker, path=f"{folder.root}/config", text=str(error)))
            continue
        found[folder.broker] = mapping
        for owner in sorted(mapping.owners - {folder.broker}):
            text = f"it is the mapping of {owner}, but this is the folder of {folder.broker}: it was copied"
            faults.add(Fault(kind="mapping", broker=folder.broker, path=mapping.path, text=text))
        for text in _check_segments(folder, mapping, store_bounds):
            faults.add(Fault(kind="mapping", broker=folder.broker, path=mapping.path, text=text))
        for fault in _find_unreferenced(folder, mapping, store_bounds):
            faults.add(fault)
    for topic, merged in merge_topics({broker: mapping.topics for broker, mapping in found.items()}).items():
        brokers = ", ".join(sorted(found))
        for text in merged.contradictions:
            faults.add(Fault(kind="mapping", broker=brokers, path="config", topic=topic, text=text))
        notes += [f"{topic}: {text}" for text in merged.superseded]
        if merged.missing:
            notes.append(f"{topic}: some segments are on {', '.join(merged.missing)}, which were not inspected")
        notes += [f"{topic}: {text}" for queue in merged.queues.values() for text in _gaps(queue)]
    return faults


def _check_segments(folder: StoreFolder, mapping: StoreMapping, bounds: Bounds) -> list[str]:
    texts = []
    for topic, record in mapping.topics.items():
        for number, queue in record.queues.items():
            for segment in queue.segments:
                if segment.broker == folder.broker and segment.is_decided and not segment.expired:
                    index = bounds.get((topic, segment.queue_id))
                    fault = _check_segment(topic, segment, index, is_live=not folder.is_closed)
                    if fault is not None:
                        texts.append(f"logical queue {number} of {topic}, generation {segment.generation}: {fault}")
    return texts


def _check_segment(topic: str, segment: Segment, index: IndexResult | None, *, is_live: bool) -> str | None:
    """Return why a physical queue does not match its segment; None if it matches."""
    end = 0 if index is None else index.offset_max
    physical_queue = f"{topic}/{segment.queue_id}"
    if end < (segment.start if segment.end is None else segment.end) and is_live:
        return None  # The mapping may be newer than the settled part of the index.
    if segment.is_sealed and end != segment.end:
        return f"it ends at {segment.end} of {physical_queue}, whose index ends at {end}"
    if not segment.is_sealed and end < segment.start:
        return f"it begins at {segment.start} of {physical_queue}, whose index ends at {end}"
    return None


def _gaps(queue: LogicalQueue) -> list[str]:
    """Return a description of each gap that a forced move left."""
    decided = [segment for segment in queue.segments if segment.is_decided]
    return [
        f"logical queue {queue.queue} has no offsets {older.logical_end} to {newer.decided_first - 1}:"
        " it was moved by force"
        for older, newer in pairwise(decided)
        if older.logical_end is not None and older.logical_end < newer.decided_first and older.forced
    ]


def _find_unreferenced(folder: StoreFolder, mapping: StoreMapping, bounds: Bounds) -> list[Fault]:
    faults = [
        Fault(kind="unreferenced", broker=folder.broker, path=path, text="it is part of no log and of no index")
        for path in folder.unused
    ]
    for queue in folder.queues:
        index = bounds.get((queue.topic, queue.queue_id))
        if index is None or not index.offset_max:
            continue
        record = mapping.topics.get(queue.topic)
        text = None
        if record is not None and not _has_segment(record, folder.broker, queue.queue_id):
            text = "no logical queue has a segment in it"
        elif record is None and not _is_configured(folder, queue.topic):
            text = f"the broker has no topic {queue.topic}"
        if text is not None:
            fields = {"topic": queue.topic, "path": queue.folder, "queue": queue.queue_id}
            faults.append(Fault(kind="unreferenced", broker=folder.broker, text=text, **fields))  # type: ignore[arg-type]
    return faults


def _has_segment(record: TopicMapping, broker: str, queue_id: int) -> bool:
    return queue_id in record.used_queue_ids(broker)


def _is_configured(folder: StoreFolder, topic: str) -> bool:
    is_system = topic in NOT_SENDABLE_TOPICS or topic == AUTO_CREATE_TOPIC
    return is_system or topic.startswith(SHARED_PREFIX) or topic in folder.topics or not folder.topics
