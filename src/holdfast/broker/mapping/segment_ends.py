"""Where the homes of this broker end: its physical queues know best.

    written     m m m m G        a grant G says that the queue ends behind four messages
    power cut   m m ~ ~ G        of what was not synced the grant may be kept, and messages before it torn
    opened      m m              the queue ends behind two

What records say of ends is compared with the queues once, when a store has been opened. It depends on nothing but what
is in the store: whatever is not recorded anew comes out the same at the next start.

Others may tell of a home here that was passed over by force, and do not know where it ends; perhaps it was granted, and
never opened. Readers wait there until somebody says it, and whoever leads the queue asks here. So nothing is recorded
of such a home without its end.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

from holdfast.model.errors import MappingRefused
from holdfast.model.mapping import LogicalQueue, Segment, TopicMapping
from holdfast.store.message_store import MessageStore


class SealedEnd(NamedTuple):
    """Where a queue ends that takes no more sends.

    Attributes:
        end: The physical offset after its last record.
        last_ms: No record in it was stored later; -1 when it is empty.
    """

    end: int
    last_ms: int


def settle(topic: str, queue: LogicalQueue, broker: str, store: MessageStore) -> LogicalQueue:
    """Return a queue that Java's tool took from this broker with the end that only this broker knows."""
    leader, prepared = queue.leader, queue.prepared
    if prepared is None or leader.broker != broker or prepared.broker == broker or not leader.is_open:
        return queue
    return queue.seal(_find_end(topic, leader, store))


def find_torn(mapping: TopicMapping, store: MessageStore) -> Iterator[tuple[LogicalQueue, Segment]]:
    """Find the queues with an end behind which messages are missing: as they are in truth, and the home of before.

    Had that end ever been synced, so had all before it. So nobody has heard of it, and as long as nobody else leads the
    queue it may be taken back: a reader would wait for ever for what no longer is.
    """
    for queue in mapping.queues.values():
        if queue.leader.broker != mapping.broker:
            continue
        mended = queue
        for home in queue.readable:
            is_last = home == queue.leader or home.forced
            if home.broker == mapping.broker and home.is_sealed and is_last:
                end = _find_end(mapping.topic, home, store)
                if end < home.end:
                    mended = mended.shorten(end, generation=home.generation)
                    yield mended, home


def fill_ends(mapping: TopicMapping, store: MessageStore) -> TopicMapping:
    """Return a record in which every home of its broker that a forced move closed has an end.

    Where a queue holds more than there is room for, it stays unknown: an operator decides what becomes of that.
    """
    for queue in mapping.queues.values():
        filled = queue
        for home in queue.readable:
            if home.broker == mapping.broker and home.forced and not home.is_sealed:
                with suppress(MappingRefused):
                    filled = filled.fix_end(_find_end(mapping.topic, home, store), generation=home.generation)
        if filled is not queue:
            mapping = mapping.put(filled)
    return mapping


def _find_end(topic: str, home: Segment, store: MessageStore) -> int:
    log = store.find_queue(topic, home.queue_id)
    return home.start if log is None else max(home.start, log.next_offset)
