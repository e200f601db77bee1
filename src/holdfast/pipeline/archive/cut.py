"""Limits the logs of several brokers so that no logical queue is archived with a hole in the middle.

    broker-a   q: ... 98 99 |sealed at 100                 settled up to offset 97
    broker-b   q:            100 101 102 ...               settled further

A queue moved from a to b. The brokers advance their `settled` positions independently, so b may have settled messages
that follow messages a has not settled. Then the run archives b's log only up to the queue's first message in it. The
next run archives the rest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from itertools import pairwise

import msgspec

from holdfast.model.mapping import MergedTopic, Segment
from holdfast.pipeline.scan.queue_entries import QueueReader
from holdfast.pipeline.scan.store_folder import StoreFolder


def limit_logs(folders: Sequence[StoreFolder], topics: Mapping[str, MergedTopic]) -> list[StoreFolder]:
    """Return the folders with `settled` reduced so that no logical queue has a hole."""
    found = {folder.broker: folder for folder in folders}
    is_changed = True
    while is_changed:
        is_changed = False
        for topic, older, newer in _moves(topics):
            source, target = found.get(older.broker), found.get(newer.broker)
            if source is None or target is None or _is_settled(source, topic, older):
                continue
            first = _find_position(target, topic, newer.queue_id, newer.start)
            if first is not None and first < target.settled:
                found[newer.broker] = msgspec.structs.replace(target, settled=max(first, target.start))
                is_changed = True
    return [found[folder.broker] for folder in folders]


def _moves(topics: Mapping[str, MergedTopic]) -> Iterator[tuple[str, Segment, Segment]]:
    for topic, merged in topics.items():
        for queue in merged.queues.values():
            decided = [segment for segment in queue.segments if segment.is_decided]
            for older, newer in pairwise(decided):
                if older.is_sealed and not (older.is_empty or older.expired):
                    yield topic, older, newer


def _is_settled(folder: StoreFolder, topic: str, segment: Segment) -> bool:
    """Return whether the last message of a sealed segment is settled, or was settled and removed since."""
    assert segment.end is not None, "only sealed segments are passed"
    position = _find_position(folder, topic, segment.queue_id, segment.end - 1)
    return position is not None and position < folder.settled


def _find_position(folder: StoreFolder, topic: str, queue_id: int, offset: int) -> int | None:
    """Return the position of a message; -1 if it was removed, None if it is not in the index yet."""
    queue = next((each for each in folder.queues if (each.topic, each.queue_id) == (topic, queue_id)), None)
    if queue is None:
        return None
    with closing(QueueReader(queue)) as reader:
        return reader.find_message(offset)
