"""Check that committed offsets move along with a queue: the next leader knows at least what the last one knew.

    leader      inspected regularly ... after it has sealed the queue │
    the next                                                          │ when it opens the queue ... regularly

The checker reads the offsets that the leader of a logical queue would return. While the queue does not move its offset
may go back, because of a late commit by a member that has lost the queue. Between seal and opening nothing changes it.
A broker that is killed may forget offsets that it had not saved, so commits of the last seconds before that are
not checked. After a forced move the new leader knows the offsets of its backup. The broker that keeps the backup may
forget it in the same way if it ends before the move.
"""

from __future__ import annotations

from typing import Final

import msgspec

from holdfast.sim.world.world import Violation

GroupQueue = tuple[str, str, int]
"""Group, topic and logical queue."""

UNSAVED_MS: Final = 15_000
"""How long a commit may stay unsaved: offsets are saved every two seconds, but a disk may be slow."""

NOTHING_SAVED: Final = -1
"""A time before every commit."""


class _Mark(msgspec.Struct, frozen=True):
    """The offset committed at a leader, and since when.

    Attributes:
        backup_broker: If the leader is declared dead, the broker that has the backup of the offset since then; else
            empty.
    """

    leader: str
    offset: int
    since_ms: int
    backup_broker: str = ""


class _Backup(msgspec.Struct, frozen=True):
    """The offset that a broker keeps as a backup for another, and since when."""

    generation: int | None
    offset: int
    since_ms: int


class CommitChecker:
    """The last known committed offsets, per group and queue."""

    def __init__(self) -> None:
        self._marks: dict[GroupQueue, _Mark] = {}
        self._backups: dict[tuple[str, GroupQueue], _Backup] = {}

    def record(self, key: GroupQueue, offset: int | None, now_ms: int, leader: str) -> None:
        """Record the offset committed at *leader*; None if it does not know the group."""
        mark = self._marks.get(key)
        if mark is not None and mark.backup_broker and mark.leader == leader:
            # It came back before another broker replaced it: the backup is not used, and it may have lost the offset.
            del self._marks[key]
            mark = None
        if mark is not None and mark.leader != leader and (offset is None or offset < mark.offset):
            group, topic, queue = key
            raise Violation(
                "a committed offset moves along",
                f"{mark.leader} had {mark.offset} as committed by {group} in logical queue {queue} of {topic},"
                f" {leader} has {offset}",
            )
        if offset is not None and (mark is None or (mark.leader, mark.offset) != (leader, offset)):
            self._marks[key] = _Mark(leader, offset, now_ms)

    def record_backup(
        self, key: GroupQueue, generation: int | None, offset: int, now_ms: int, backup_broker: str
    ) -> None:
        """Record the offset that *backup_broker* received as a backup from the leader of *generation*."""
        backup = self._backups.get((backup_broker, key))
        if backup is None or (backup.generation, backup.offset) != (generation, offset):
            self._backups[backup_broker, key] = _Backup(generation, offset, now_ms)

    def expect_backup(self, key: GroupQueue, generation: int | None, leader: str, backup_broker: str) -> None:
        """Record that *leader* is dead: the next leader must know the offset in the backup of *backup_broker*."""
        backup = self._backups.get((backup_broker, key))
        if backup is not None and backup.generation == generation:
            self._marks[key] = _Mark(leader, backup.offset, backup.since_ms, backup_broker)

    def record_forced_open(self, key: GroupQueue, leader: str) -> None:
        """Record that *leader* opened the queue by force: it need not know what the old leader knew."""
        mark = self._marks.get(key)
        if mark is not None and mark.leader != leader:
            del self._marks[key]

    def allow_loss(self, broker: str, saved_ms: int) -> None:
        """Record that *broker* ended: it may forget offsets and backups that it learned after *saved_ms*."""
        self._marks = {
            key: mark
            for key, mark in self._marks.items()
            if broker not in {mark.leader, mark.backup_broker} or mark.since_ms <= saved_ms
        }
        self._backups = {
            backup_key: backup
            for backup_key, backup in self._backups.items()
            if broker != backup_key[0] or backup.since_ms <= saved_ms
        }

    def clear(self) -> None:
        """Record that offsets have lost their meaning."""
        self._marks.clear()
        self._backups.clear()
