"""How far a consumer got in each queue, and what of that the broker has not been told yet.

A broadcasting consumer tells no broker: it keeps its book in a file, in upstream's form:

    {"offsetTable":{{"brokerName":"b","queueId":0,"topic":"t"}:12, ...}}
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from holdfast.model.errors import RemoteProtocolError
from holdfast.model.queue import MessageQueue
from holdfast.wire import java_json


class OffsetBook:
    """The offsets of one consumer."""

    def __init__(self) -> None:
        self._known: dict[MessageQueue, int] = {}
        self._told: dict[MessageQueue, int] = {}

    def record(self, queue: MessageQueue, offset: int) -> None:
        """Note that everything before *offset* is done."""
        self._known[queue] = offset

    def find(self, queue: MessageQueue) -> int | None:
        """Return how far *queue* is done, or None when nothing is known of it."""
        return self._known.get(queue)

    def begin(self, queue: MessageQueue, offset: int) -> None:
        """Note where *queue* begins. That is where the broker believes it is: there is nothing to tell."""
        self._known[queue] = self._told[queue] = offset

    def untold(self) -> dict[MessageQueue, int]:
        """Return what differs from what was told last."""
        return {queue: offset for queue, offset in self._known.items() if self._told.get(queue) != offset}

    def tell(self, queue: MessageQueue, offset: int) -> None:
        """Note that the broker was told *offset*."""
        if queue in self._known:
            self._told[queue] = offset

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
