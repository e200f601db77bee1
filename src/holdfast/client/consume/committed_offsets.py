"""How far a consumer got in each queue, and what of that the broker has not been told yet.

    known   everything before is done           told   what the broker was told last, if it did not forget
    left    known when the queue was left, and the broker could not be told: where to go on if it comes back soon

A broadcasting consumer tells no broker: it keeps its book in a file, in upstream's form:

    {"offsetTable":{{"brokerName":"b","queueId":0,"topic":"t"}:12, ...}}
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from holdfast.model.errors import RemoteProtocolError
from holdfast.model.queue import MessageQueue
from holdfast.wire.frames import java_json

# For how long a place is worth more than what the broker says. Longer, and an operator may have moved the group back.
LEFT_MS_MAX: Final = 60_000


class OffsetBook:
    """The offsets of one consumer."""

    def __init__(self) -> None:
        self._known: dict[MessageQueue, int] = {}
        self._told: dict[MessageQueue, int] = {}
        self._left: dict[MessageQueue, tuple[int, int]] = {}  # offset, when

    def record(self, queue: MessageQueue, offset: int) -> None:
        """Note that everything before *offset* is done."""
        self._known[queue] = offset

    def find(self, queue: MessageQueue) -> int | None:
        """Return how far *queue* is done, or None when nothing is known of it."""
        return self._known.get(queue)

    def begin(self, queue: MessageQueue, offset: int) -> None:
        """Note where *queue* begins. That is where the broker believes it is: there is nothing to tell."""
        self._known[queue] = self._told[queue] = offset

    def take_over(self, queue: MessageQueue, offset: int, now_ms: int) -> int:
        """Return where to go on with *queue*, of which the broker says *offset*; note it.

        That is further on if it was ours a moment ago and the broker could not be told how far we got.
        """
        left, left_ms = self._left.pop(queue, (offset, now_ms))
        self.begin(queue, offset)
        if now_ms - left_ms < LEFT_MS_MAX:
            self._known[queue] = max(offset, left)
        return self._known[queue]

    def untold(self) -> dict[MessageQueue, int]:
        """Return what differs from what was told last."""
        return {queue: offset for queue, offset in self._known.items() if self._told.get(queue) != offset}

    def tell(self, queue: MessageQueue, offset: int) -> None:
        """Note that the broker was told *offset*."""
        if queue in self._known:
            self._told[queue] = offset

    def distrust(self, queue: MessageQueue) -> None:
        """Note that the broker may have forgotten what it was told: tell it again."""
        self._told.pop(queue, None)

    def leave(self, queue: MessageQueue, now_ms: int) -> None:
        """Forget a queue, but for what the broker has not been told: it may come back soon, see `take_over`."""
        offset = self._known.get(queue)
        if offset is not None and offset != self._told.get(queue):
            self._left[queue] = (offset, now_ms)
        self.forget(queue)

    def forget(self, queue: MessageQueue) -> None:
        """Forget a queue that belongs to somebody else now."""
        self._known.pop(queue, None)
        self._told.pop(queue, None)

    def snapshot(self) -> dict[MessageQueue, int]:
        """Return everything that is known."""
        return dict(self._known)


class _OffsetTable(msgspec.Struct):
    table: msgspec.Raw = msgspec.field(name="offsetTable")


def encode_offsets(offsets: Mapping[MessageQueue, int]) -> bytes:
    """Return *offsets* as upstream writes them, in its files and in requests."""
    return java_json.encode(_OffsetTable(java_json.object_map(offsets.items())))


def decode_offsets(data: bytes) -> dict[MessageQueue, int]:
    """Return the offsets that *data* tells of, in any form that peers write.

    Raises:
        RemoteProtocolError: it is not such a table.
    """
    content = java_json.loads(data)
    table = content.get("offsetTable") if isinstance(content, dict) else None
    try:
        if isinstance(table, list):  # as C++ clients are told
            return {
                msgspec.convert(item, MessageQueue, strict=False): msgspec.convert(item["offset"], int, strict=False)
                for item in table
            }
        if isinstance(table, dict):
            return {
                msgspec.json.decode(key, type=MessageQueue): msgspec.convert(offset, int, strict=False)
                for key, offset in table.items()
            }
    except (msgspec.MsgspecError, KeyError, TypeError) as error:
        raise RemoteProtocolError(f"offsets cannot be read: {error}") from error
    raise RemoteProtocolError("offsets cannot be read: there is no offsetTable")
