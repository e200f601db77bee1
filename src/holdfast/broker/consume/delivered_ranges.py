"""Remembers which broker's log each delivered record came from, for clients that identify a record by position alone.

    answer to a pull ────> records: store host and position ──────────┬─> connection, group, topic, host: from .. to
    answer to a send ────> the id of a half message: the same two ────┘
    position without id ─> hosts that can have delivered it ──────────> ids, which find the record (`record_locator.py`)

A client without mapping support sees one broker for a static topic. That broker relays to many, whose logs have
different records at the same position. All records of one answer come from one log. Only a range of positions is kept,
not each position, so the caller must check that a record found in the range belongs to the topic.

Invariant: a connection has at most `RANGES_MAX` ranges. The oldest are dropped first, and all when it closes.
"""

from __future__ import annotations

import struct
from typing import Final, final

import msgspec

from holdfast.broker.flow.request import is_guest
from holdfast.broker.mapping.offset_rewrite import find_last
from holdfast.machine.events import ChannelId
from holdfast.model.errors import RemoteProtocolError
from holdfast.model.numbers import parse_count
from holdfast.model.topic import HALF_TOPIC
from holdfast.wire.cluster.route import MAPPING_FIELD, is_mapping_aware
from holdfast.wire.frames.command import Command
from holdfast.wire.frames.frame import split_frames
from holdfast.wire.frames.host import HOST_SIZE_V4, HOST_SIZE_V6
from holdfast.wire.records.message_id import format_message_id, parse_message_id
from holdfast.wire.records.record import BORN_HOST_V6, STORE_HOST_V6, TRANSACTION_MASK, TRANSACTION_PREPARED, Piece
from holdfast.wire.requests.table import BROKER_REQUESTS, Path

RANGES_MAX: Final = 256

# Fields of a record: its position, its sys flag, and its store host if both hosts are IPv4.
_POSITION = struct.Struct(">q")
_POSITION_AND_HOST = struct.Struct(">qi24x8s")
_POSITION_AT: Final = 28
_BORN_HOST_AT: Final = 48
_LONG_HOSTS: Final = BORN_HOST_V6 | STORE_HOST_V6

Source = tuple[str, str, bytes]
"""Consumer group, topic, and the host that stored the records."""


@final
class _PositionRange(msgspec.Struct):
    """The lowest and the highest position that was delivered."""

    low: int
    high: int


class DeliveredRanges:
    """Log ranges that each connection has received records from."""

    def __init__(self) -> None:
        self._ranges: dict[ChannelId, dict[Source, _PositionRange]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._ranges.values()))

    def add(self, channel: ChannelId, group: str, topic: str, records: Piece, last: int | None) -> None:
        """Note the contiguous records of an answer, the last of which begins at byte *last*; None: there is none.

        Clients of relayed requests are ignored: the broker that they are connected to keeps their ranges.
        """
        if is_guest(channel) or last is None:
            return
        low, flag, host = _POSITION_AND_HOST.unpack_from(records, _POSITION_AT)
        if flag & _LONG_HOSTS:
            host = _store_host(records, flag)
        (high,) = _POSITION.unpack_from(records, last + _POSITION_AT)
        self._add_range(channel, (group, topic, host), low, high)

    def add_pull_answer(self, channel: ChannelId, pull: Command, answer: bytes) -> None:
        """Note the records in another broker's *answer* to a pull of a client without mapping support.

        *answer* consists of whole frames.
        """
        fields = pull.fields
        if is_guest(channel) or BROKER_REQUESTS[pull.code].path is not Path.PULL or fields.get(MAPPING_FIELD) == "1":
            return
        if is_mapping_aware(pull.language, pull.version):
            return
        try:
            frames, _ = split_frames(memoryview(answer))
        except RemoteProtocolError:
            return  # The client will detect the malformed answer.
        for frame in frames:
            group, topic = fields.get("consumerGroup", ""), fields.get("topic", "")
            self.add(channel, group, topic, frame.body, find_last(frame.body))

    def add_send_answer(self, channel: ChannelId, send: Command, answer: Command) -> None:
        """Note the position in another broker's *answer* to the send of a half message."""
        flag = parse_count(send.fields.get("f") or send.fields.get("sysFlag"), 0)
        if is_guest(channel) or flag & TRANSACTION_MASK != TRANSACTION_PREPARED:
            return
        try:
            sent_id = parse_message_id(answer.fields.get("msgId", ""))
        except RemoteProtocolError:
            return  # The send was refused.
        self._add_range(channel, ("", HALF_TOPIC, sent_id.host), sent_id.position, sent_id.position)

    def _add_range(self, channel: ChannelId, source: Source, low: int, high: int) -> None:
        ranges = self._ranges.get(channel)
        delivered = None if ranges is None else ranges.get(source)
        if delivered is not None:
            if low < delivered.low:  # noqa: PLR1730 - `min` and `max` cost as much as the rest of the method
                delivered.low = low
            if high > delivered.high:  # noqa: PLR1730
                delivered.high = high
            return
        ranges = self._ranges.setdefault(channel, {})
        if len(ranges) >= RANGES_MAX:
            del ranges[next(iter(ranges))]
        ranges[source] = _PositionRange(low, high)

    def find(self, channel: ChannelId, position: int, group: str | None = None) -> list[tuple[str, str]]:
        """Return topic and id of every record that a client can mean by *position*, in *group* or in any group."""
        return [
            (topic, format_message_id(host, position))
            for (reader, topic, host), delivered in self._ranges.get(channel, {}).items()
            if delivered.low <= position <= delivered.high and group in {None, reader}
        ]

    def forget(self, channel: ChannelId) -> None:
        """Forget the ranges of a closed connection."""
        self._ranges.pop(channel, None)


def _store_host(record: Piece, flag: int) -> bytes:
    """Return the store host of the first record in *record*, in the form that message ids use."""
    start = _BORN_HOST_AT + (HOST_SIZE_V6 if flag & BORN_HOST_V6 else HOST_SIZE_V4) + 8
    return bytes(record[start : start + (HOST_SIZE_V6 if flag & STORE_HOST_V6 else HOST_SIZE_V4)])
