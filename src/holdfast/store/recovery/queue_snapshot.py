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

import msgspec

from holdfast.store.base.disk import Disk

QUEUES_PATH = "holdfast/queues.json"
DELETED_PATH = "holdfast/deleted.json"


class QueueSnapshot(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Bounds of all queues at a clean shutdown; for queues indexed by record, in offsets and in entry numbers."""

    log_start: int
    log_end: int
    closed_ms: int
    queues: dict[str, dict[int, tuple[int, int]]]
    batch_queues: dict[str, dict[int, tuple[int, int, int, int]]] = {}

    def ends(self) -> Iterator[tuple[str, int, int]]:
        """Yield topic, number and end of every queue."""
        for topic, bounds in self.queues.items():
            for queue_id, (_, offset_max) in bounds.items():
                yield topic, queue_id, offset_max
        for topic, batched in self.batch_queues.items():
            for queue_id, (_, offset_max, _, _) in batched.items():
                yield topic, queue_id, offset_max


def load_snapshot(disk: Disk) -> QueueSnapshot | None:
    """Return the bounds from the last clean shutdown, or None."""
    data = disk.read_file(QUEUES_PATH)
    if data is None:
        return None
    try:
        return msgspec.json.decode(data, type=QueueSnapshot, strict=False)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def save_snapshot(disk: Disk, snapshot: QueueSnapshot) -> None:
    """Persist the bounds for the next start."""
    disk.replace(QUEUES_PATH, msgspec.json.encode(snapshot))


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
