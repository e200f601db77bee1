"""Tracks the offsets of each queue: done, committed, uncommitted.

    consumed    everything before it is done
    committed   the last commit, unless the broker may have lost it
    released    the consumed offset of a queue that was given up before it could be committed: the offset to continue
                at if the queue is assigned to us again soon

A broadcasting consumer commits to no broker. It keeps its offsets in a file, in upstream's format:

    {"offsetTable":{{"brokerName":"b","queueId":0,"topic":"t"}:12, ...}}
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from holdfast.model.errors import RemoteProtocolError
from holdfast.model.queue import LogicalOffset, MessageQueue
from holdfast.wire.frames import java_json

# How long a released offset overrides the broker's. Later, an operator may have reset the group to an earlier offset.
RELEASED_MS_MAX: Final = 60_000


class CommittedOffsets:
    """The offsets of one consumer."""

    def __init__(self) -> None:
        self._consumed: dict[MessageQueue, LogicalOffset] = {}
        self._committed: dict[MessageQueue, LogicalOffset] = {}
        self._released: dict[MessageQueue, tuple[LogicalOffset, int]] = {}  # offset, when

    def record(self, queue: MessageQueue, offset: LogicalOffset) -> None:
        """Record that everything before *offset* is done."""
        self._consumed[queue] = offset

    def find(self, queue: MessageQueue) -> LogicalOffset | None:
        """Return the offset before which *queue* is done, or None if it is unknown."""
        return self._consumed.get(queue)

    def begin(self, queue: MessageQueue, offset: LogicalOffset) -> None:
        """Record the offset at which *queue* begins. The broker has the same, so there is nothing to commit."""
        self._consumed[queue] = self._committed[queue] = offset

    def resume(self, queue: MessageQueue, offset: LogicalOffset, now_ms: int) -> LogicalOffset:
        """Record and return the offset at which to continue *queue*, for which the broker has *offset*.

        The result is higher if we gave the queue up a moment ago and could not commit its last offset then.
        """
        released, released_ms = self._released.pop(queue, (offset, now_ms))
        self.begin(queue, offset)
        if now_ms - released_ms < RELEASED_MS_MAX:
            self._consumed[queue] = max(offset, released)
        return self._consumed[queue]

    def uncommitted(self) -> dict[MessageQueue, LogicalOffset]:
        """Return the offsets that differ from the last commit."""
        return {queue: offset for queue, offset in self._consumed.items() if self._committed.get(queue) != offset}

    def mark_committed(self, queue: MessageQueue, offset: LogicalOffset) -> None:
        """Record that *offset* was committed at the broker."""
        if queue in self._consumed:
            self._committed[queue] = offset

    def mark_uncommitted(self, queue: MessageQueue) -> None:
        """Record that the broker may have lost the last commit: commit again."""
        self._committed.pop(queue, None)

    def release(self, queue: MessageQueue, now_ms: int) -> None:
        """Forget a queue, but keep an uncommitted offset: the queue may be assigned to us again, see `resume`."""
        offset = self._consumed.get(queue)
        if offset is not None and offset != self._committed.get(queue):
            self._released[queue] = (offset, now_ms)
        self.forget(queue)

    def forget(self, queue: MessageQueue) -> None:
        """Forget a queue that belongs to another member now."""
        self._consumed.pop(queue, None)
        self._committed.pop(queue, None)

    def snapshot(self) -> dict[MessageQueue, LogicalOffset]:
        """Return all consumed offsets."""
        return dict(self._consumed)


class _OffsetTable(msgspec.Struct):
    table: msgspec.Raw = msgspec.field(name="offsetTable")


def encode_offsets(offsets: Mapping[MessageQueue, LogicalOffset]) -> bytes:
    """Return *offsets* in upstream's format, for files and requests."""
    return java_json.encode(_OffsetTable(java_json.object_map(offsets.items())))


def decode_offsets(data: bytes) -> dict[MessageQueue, LogicalOffset]:
    """Return the offsets in *data*, in any format that peers write.

    Raises:
        RemoteProtocolError: *data* is not a table of offsets.
    """
    content = java_json.loads(data)
    table = content.get("offsetTable") if isinstance(content, dict) else None
    try:
        if isinstance(table, list):  # the format for C++ clients
            return {
                msgspec.convert(item, MessageQueue, strict=False): msgspec.convert(
                    item["offset"], LogicalOffset, strict=False
                )
                for item in table
            }
        if isinstance(table, dict):
            return {
                msgspec.json.decode(key, type=MessageQueue): msgspec.convert(offset, LogicalOffset, strict=False)
                for key, offset in table.items()
            }
    except (msgspec.MsgspecError, KeyError, TypeError) as error:
        raise RemoteProtocolError(f"offsets cannot be read: {error}") from error
    raise RemoteProtocolError("offsets cannot be read: there is no offsetTable")
