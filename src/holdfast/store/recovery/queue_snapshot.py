"""What an orderly end leaves beside upstream's files: the bounds of every queue, and which topics were deleted.

    holdfast/queues.json     {"logStart": n, "logEnd": n, "closedMs": n, "queues": {"topic": {"0": [min, max]}},
                              "batchQueues": {"topic": {"0": [min, max, first entry, behind last entry]}}}
    holdfast/deleted.json    {"topic": position, "topic/7": position}
                             records of the topic, or of one queue, before that position are of an earlier life

The first makes starting quick with many queues, and shows a queue that has lost its end while the store was closed
(hazard H2). It counts only if log and checkpoint are still as they were then. The second keeps a replay of the log from
bringing deleted messages back.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from holdfast.store.base.disk import Disk

QUEUES_PATH = "holdfast/queues.json"
DELETED_PATH = "holdfast/deleted.json"


class QueueSnapshot(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Bounds of all queues at an orderly end; of those that are indexed by record in offsets and in entries."""

    log_start: int
    log_end: int
    closed_ms: int
    queues: dict[str, dict[int, tuple[int, int]]]
    batch_queues: dict[str, dict[int, tuple[int, int, int, int]]] = {}

    def ends(self) -> Iterator[tuple[str, int, int]]:
        """Return topic, number and end of every queue."""
        for topic, bounds in self.queues.items():
            for queue_id, (_, offset_max) in bounds.items():
                yield topic, queue_id, offset_max
        for topic, batched in self.batch_queues.items():
            for queue_id, (_, offset_max, _, _) in batched.items():
                yield topic, queue_id, offset_max


def load_snapshot(disk: Disk) -> QueueSnapshot | None:
    """Return the bounds that the last orderly end left, or None."""
    data = disk.read_file(QUEUES_PATH)
    if data is None:
        return None
    try:
        return msgspec.json.decode(data, type=QueueSnapshot, strict=False)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def save_snapshot(disk: Disk, snapshot: QueueSnapshot) -> None:
    """Leave the bounds for the next start."""
    disk.replace(QUEUES_PATH, msgspec.json.encode(snapshot))


def load_deleted(disk: Disk, log_start: int) -> dict[str, int]:
    """Return up to where the records of deleted topics are void, for those that are still in the log."""
    try:
        deleted = msgspec.json.decode(disk.read_file(DELETED_PATH) or b"{}", type=dict[str, int])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return {}
    return {topic: position for topic, position in deleted.items() if position > log_start}


def erased_key(topic: str, queue_id: int) -> str:
    """Return under which name a single queue is listed. No topic has such a name."""
    return f"{topic}/{queue_id}"


def save_deleted(disk: Disk, deleted: dict[str, int]) -> None:
    """Write the positions durably."""
    disk.replace(DELETED_PATH, msgspec.json.encode(deleted))
