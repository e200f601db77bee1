"""State beside RocketMQ's files: the bounds of all queues at the last clean shutdown, and the deleted topics.

    holdfast/queues.json     {"logStart": n, "logEnd": n, "closedMs": n, "queues": {"topic": {"0": [min, max]}},
                              "batchQueues": {"topic": {"0": [min, max, first entry, end of entries]}}}
    holdfast/deleted.json    {"topic": position, "topic/7": position}
                             records of the topic, or of one queue, before that position are void

The first file speeds up the start with many queues, and reveals a queue that lost its end while the store was closed
(hazard H2). It is valid only if log and checkpoint are unchanged since. The second keeps a replay of the log from
restoring deleted messages.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from holdfast.store.base.disk import Disk
from holdfast.store.queues.index_kinds import DEFAULT_KIND, KINDS, IndexKind

QUEUES_PATH = "holdfast/queues.json"
DELETED_PATH = "holdfast/deleted.json"


TopicBounds = dict[str, dict[int, tuple[int, ...]]]
"""The bounds of queues by topic and number, as `QueueIndex.bounds` returns them."""


class _Header(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The fields of the file beside the queues."""

    log_start: int
    log_end: int
    closed_ms: int


class QueueSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of all queues at a clean shutdown, by the kind of their index."""

    log_start: int
    log_end: int
    closed_ms: int
    bounds: dict[IndexKind, TopicBounds]

    def ends(self) -> Iterator[tuple[str, int, int]]:
        """Yield topic, number and end of every queue."""
        for topics in self.bounds.values():
            for topic, queues in topics.items():
                for queue_id, (_, offset_max, *_) in queues.items():
                    yield topic, queue_id, offset_max


def load_snapshot(disk: Disk) -> QueueSnapshot | None:
    """Return the bounds from the last clean shutdown, or None."""
    data = disk.read_file(QUEUES_PATH)
    if data is None:
        return None
    try:
        header = msgspec.json.decode(data, type=_Header, strict=False)
        parts = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
        bounds = {kind: _decode_bounds(kind, parts[kind.bounds_key]) for kind in KINDS if kind.bounds_key in parts}
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    if DEFAULT_KIND not in bounds:
        return None
    return QueueSnapshot(log_start=header.log_start, log_end=header.log_end, closed_ms=header.closed_ms, bounds=bounds)


def _decode_bounds(kind: IndexKind, data: msgspec.Raw) -> TopicBounds:
    bounds: TopicBounds = msgspec.json.decode(data, type=kind.bounds_type, strict=False)
    return bounds


def save_snapshot(disk: Disk, snapshot: QueueSnapshot) -> None:
    """Persist the bounds for the next start."""
    content: dict[str, Any] = {
        "logStart": snapshot.log_start,
        "logEnd": snapshot.log_end,
        "closedMs": snapshot.closed_ms,
    }
    for kind in KINDS:
        topics = snapshot.bounds.get(kind, {})
        if topics or kind is DEFAULT_KIND:
            content[kind.bounds_key] = topics
    disk.replace(QUEUES_PATH, msgspec.json.encode(content))


def load_deleted(disk: Disk, log_start: int) -> dict[str, int]:
    """Return the positions before which records of deleted topics are void, if they are still in the log."""
    try:
        deleted = msgspec.json.decode(disk.read_file(DELETED_PATH) or b"{}", type=dict[str, int])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return {}
    return {topic: position for topic, position in deleted.items() if position > log_start}


def erased_key(topic: str, queue_id: int) -> str:
    """Return the name under which a single queue is listed. No topic has such a name."""
    return f"{topic}/{queue_id}"


def save_deleted(disk: Disk, deleted: dict[str, int]) -> None:
    """Persist the positions."""
    disk.replace(DELETED_PATH, msgspec.json.encode(deleted))
