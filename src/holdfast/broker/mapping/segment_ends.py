"""Ends of this broker's segments, computed from its physical queues.

    written     m m m m G        a grant G says that the queue ends after four messages
    power cut   m m ~ ~ G        unsynced data: the grant may survive while messages before it are torn
    opened      m m              the queue ends after two

When a store is opened, the recorded ends are compared with the physical queues. The result depends on the store only,
so a correction that is not recorded comes out the same at the next start.

A mapping from another broker may contain a segment here that a forced move closed. Its end is then unknown there: it
may have been granted and never opened. Readers wait at such a segment until its end is known, and the leader asks this
broker for it. So this broker records no such segment without its end.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

from holdfast.model.errors import MappingRefused
from holdfast.model.mapping import LogicalQueue, Segment, TopicMapping
from holdfast.model.queue import PhysicalOffset
from holdfast.store.message_store import MessageStore


class SealedEnd(NamedTuple):
    """The end of a sealed queue.

    Attributes:
        end: The physical offset after its last record.
        last_ms: Upper bound for the store times of its records; None if it is empty.
    """

    end: PhysicalOffset
    last_ms: int | None


def complete_end(topic: str, queue: LogicalQueue, broker: str, store: MessageStore) -> LogicalQueue:
    """Add the end, which only this broker knows, to a queue that Java's tool moved away from here."""
    leader, prepared = queue.leader, queue.prepared
    if prepared is None or leader.broker != broker or prepared.broker == broker or not leader.is_open:
        return queue
    return queue.seal(_find_end(topic, leader, store))


def find_torn(mapping: TopicMapping, store: MessageStore) -> Iterator[tuple[LogicalQueue, Segment]]:
    """Yield the queues whose recorded end lies beyond their last message: the corrected queue, and the old segment.

    If that end had been synced, so had all messages before it. So no other broker knows the end, and it may be
    corrected as long as no other broker leads the queue. With the old end, a reader would wait forever for messages
    that do not exist.
    """
    for queue in mapping.queues.values():
        if queue.leader.broker != mapping.broker:
            continue
        corrected = queue
        for segment in queue.readable:
            is_last = segment == queue.leader or segment.forced
            if segment.broker == mapping.broker and segment.end is not None and is_last:
                end = _find_end(mapping.topic, segment, store)
                if end < segment.end:
                    corrected = corrected.shorten(end, generation=segment.generation)
                    yield corrected, segment


def fill_ends(mapping: TopicMapping, store: MessageStore) -> TopicMapping:
    """Return a mapping in which every segment of its broker that a forced move closed has an end.

    If a queue holds more messages than the segment may contain, its end stays unknown: an operator has to decide.
    """
    for queue in mapping.queues.values():
        filled = queue
        for segment in queue.readable:
            if segment.broker == mapping.broker and segment.forced and not segment.is_sealed:
                with suppress(MappingRefused):
                    filled = filled.fix_end(_find_end(mapping.topic, segment, store), generation=segment.generation)
        if filled is not queue:
            mapping = mapping.with_queues(filled)
    return mapping


def _find_end(topic: str, segment: Segment, store: MessageStore) -> PhysicalOffset:
    index = store.find_queue(topic, segment.queue_id)
    return segment.start if index is None else max(segment.start, PhysicalOffset(index.next_offset))
