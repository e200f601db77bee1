"""Unpacks inner batches into single records, for clients that cannot read them.

    log    | record, offset 40, INNER_NUM 3, body: item item item |        one record, perhaps compressed
    cache  | record, offset 40 | record, offset 41 | record, offset 42 |   as if each had been sent alone

A single record has the item's flag, properties and body. Everything else comes from its batch: hosts, times and the log
position, by which a client sends it back. The result is cached for a while, because a client without batch support
reads a batch in pieces. Clients that can read batches never need this; the counters show how often others do.

A batch was built by a client and may be malformed: one that cannot be unpacked is counted, and yields no message.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from enum import StrEnum
from functools import lru_cache
from struct import Struct
from typing import Final

import msgspec

from holdfast.machine.sample import Sample
from holdfast.model import property_names as names
from holdfast.model.errors import CorruptRecord, RemoteProtocolError
from holdfast.model.java_hash import java_hash
from holdfast.store.base.cold_reads import LogRange
from holdfast.store.log.record_reader import decode_at
from holdfast.wire.records.batch import ITEM_OVERHEAD, Piece, split_items, split_properties
from holdfast.wire.records.compression import CODEC_MASK, COMPRESSED
from holdfast.wire.records.inner_batch import INNER_BATCH, UNPACKED_SIZE_MAX, is_inner_batch, unwrap_encoded
from holdfast.wire.records.properties import find_property
from holdfast.wire.records.record import LAYOUTS, StoredRecord, body_crc, decode_record, topic_part

CACHED_SIZE_MAX: Final = 32 * 1024 * 1024
_CACHED_COUNT_MAX: Final = 4096
_CACHED_SIZE_PER_ITEM: Final = 16
_TAGS: Final = names.TAGS.encode()
_UNIQUE_KEY: Final = names.UNIQUE_KEY.encode()
_KEYS: Final = names.KEYS.encode()
_HOST_BITS_SHIFT: Final = 4


class UnpackReason(StrEnum):
    """Why a batch is unpacked. The values are metric labels."""

    SPLIT = "split"
    RETRY = "retry"
    QUERY = "query"


class UnpackedBatch:
    """The messages of one record, each available as a single record.

    Single records are built on demand, a few at a time: no client wants all of a large batch at once.

    Attributes:
        first: The offset of the first message.
    """

    __slots__ = ("_codes", "_ends", "_growth", "_ids", "_items", "_outer", "first")

    def __init__(self, first: int, items: bytes, ends: Sequence[int], outer: StoredRecord | None = None) -> None:
        """Store the *items* of batch *outer*, which end at *ends*; without *outer*, *items* is one plain record."""
        self.first = first
        self._items = items
        self._ends = ends
        self._outer = outer
        self._growth = 0 if outer is None else _overhead_of(outer) - ITEM_OVERHEAD
        self._codes: Sequence[int] | None = None
        self._ids: dict[bytes, int] | None = None

    def __len__(self) -> int:
        return len(self._ends)

    @property
    def size(self) -> int:
        """The memory it uses: its items, and per item its end and the hash of its tag."""
        return len(self._items) + _CACHED_SIZE_PER_ITEM * len(self._ends)

    def data(self, index: int, count: int = 1) -> bytes:
        """Return *count* consecutive records from message *index* on."""
        items = memoryview(self._items)[self._start_of(index) : self._ends[index + count - 1]]
        return bytes(items) if self._outer is None else _encode_singles(self._outer, index, split_items(items))

    def record(self, index: int) -> StoredRecord:
        """Return the record of a message."""
        return decode_record(self.data(index), check_body=False)

    def count_fitting(self, index: int, size: int) -> int:
        """Return how many messages from *index* on fit into *size* bytes of records."""
        limit = self._start_of(index) + index * self._growth + size
        return bisect_right(range(len(self)), limit, lo=index, key=self._record_end) - index

    def _start_of(self, index: int) -> int:
        return self._ends[index - 1] if index else 0

    def _record_end(self, index: int) -> int:
        return self._ends[index] + (index + 1) * self._growth

    def _properties(self) -> list[bytes]:
        """Return the properties of each message."""
        if self._outer is None:
            return [self.record(0).properties] if self._ends else []
        return split_properties(self._items)

    def find_tagged(self, codes: frozenset[int], index: int) -> list[int]:
        """Return the indexes, from *index* on, of messages whose tag hash is one of *codes*."""
        if self._codes is None:
            tags = (find_property(properties, _TAGS) for properties in self._properties())
            self._codes = [0 if tag is None else _hash_tag(tag) for tag in tags]
        return [at for at in range(index, len(self)) if self._codes[at] in codes]

    def find_id(self, message_id: str) -> int | None:
        """Return the index of the message with that unique key, or None."""
        if self._ids is None:
            self._ids = {}
            for index, properties in enumerate(self._properties()):
                unique_key = find_property(properties, _UNIQUE_KEY)
                if unique_key is not None:
                    self._ids.setdefault(unique_key, index)
        return self._ids.get(message_id.encode(errors="replace"))

    def find_keyed(self, key: str) -> list[int]:
        """Return the indexes of messages that have *key* among their keys, or as their unique key."""
        encoded_key, found = key.encode(errors="replace"), []
        for index, properties in enumerate(self._properties()):
            keys = find_property(properties, _KEYS)
            if find_property(properties, _UNIQUE_KEY) == encoded_key or (
                keys is not None and encoded_key in keys.split()
            ):
                found.append(index)
        return found


@lru_cache(512)
def _hash_tag(tag: bytes) -> int:
    return java_hash(tag.decode(errors="replace"))


_NOTHING: Final = UnpackedBatch(0, b"", ())


class BatchCache:
    """Unpacks batches, and caches the most recently used.

    Attributes:
        unpacked: How often a batch was unpacked, by reason.
        inflated: How often a batch was decompressed for that, by reason.
        unreadable: How often a batch could not be unpacked, by reason.
    """

    def __init__(self, cached_size_max: int = CACHED_SIZE_MAX) -> None:
        self.unpacked = dict.fromkeys(UnpackReason, 0)
        self.inflated = dict.fromkeys(UnpackReason, 0)
        self.unreadable = dict.fromkeys(UnpackReason, 0)
        self._cached: OrderedDict[int, UnpackedBatch] = OrderedDict()  # by position, the last used one last
        self._cached_size = 0
        self._cached_size_max = cached_size_max
        self._last_request: tuple[UnpackedBatch, int, int] | None = None
        self._last_data = b""

    def metrics(self) -> Iterator[Sample]:
        """Yield the numbers of batches that were unpacked for clients that cannot, by reason."""
        for metric, about, counts in (
            (
                "broker_batches_opened",
                "Batches unpacked by the broker for clients that cannot, by reason.",
                self.unpacked,
            ),
            ("broker_inflations", "Batches decompressed in order to unpack them, by reason.", self.inflated),
            ("broker_batches_unreadable", "Batches that could not be unpacked, by reason.", self.unreadable),
        ):
            for reason, count in counts.items():
                yield Sample(metric, "counter", about, count, {"reason": reason})

    def data(self, batch: UnpackedBatch, index: int, count: int) -> bytes:
        """Return *count* records of *batch* from message *index* on; repeated calls reuse the last result.

        A new batch wakes all pulls that are parked on its queue, and they want the same messages.
        """
        request = (batch, index, count)
        if request != self._last_request:
            self._last_request, self._last_data = request, batch.data(index, count)
        return self._last_data

    async def fetch(self, position: int, size: int, reason: UnpackReason) -> UnpackedBatch | None:
        """Return the messages of the record at *position*, batch or not; None if it is gone or unreadable."""
        cached = self._find(position)
        if cached is not None:
            return cached or None
        try:
            data = await LogRange(position, size)
        except CorruptRecord:
            return None
        record = decode_at(data, position)
        if record is None:
            return None
        if is_inner_batch(record.sys_flag):
            return self.unpack_cached(record, reason)
        return UnpackedBatch(record.offset, data[: record.size], (record.size,))

    def unpack_cached(self, record: StoredRecord, reason: UnpackReason) -> UnpackedBatch | None:
        """Unpack a batch in this broker's log; return None if that fails."""
        batch = self._find(record.position)
        if batch is None:
            batch = self.unpack(record, reason) or _NOTHING
            self._add(record.position, batch)  # Cache a failure, too, so that it is not tried again.
        return batch or None

    def unpack(self, record: StoredRecord, reason: UnpackReason) -> UnpackedBatch | None:
        """Unpack a batch from the log of any broker; return None if that fails."""
        try:
            batch = unpack_batch(record)
        except RemoteProtocolError:
            self.unreadable[reason] += 1
            return None
        self.unpacked[reason] += 1
        if record.sys_flag & COMPRESSED:
            self.inflated[reason] += 1
        return batch

    def _find(self, position: int) -> UnpackedBatch | None:
        cached = self._cached.get(position)
        if cached is not None:
            self._cached.move_to_end(position)
        return cached

    def _add(self, position: int, batch: UnpackedBatch) -> None:
        """Cache *batch*, whatever its size, and evict the least recently used ones beyond the limits."""
        self._cached[position] = batch
        self._cached_size += batch.size
        while (self._cached_size > self._cached_size_max or len(self._cached) > _CACHED_COUNT_MAX) and len(
            self._cached
        ) > 1:
            _, oldest = self._cached.popitem(last=False)
            self._cached_size -= oldest.size


def unpack_batch(record: StoredRecord) -> UnpackedBatch:
    """Unpack an inner batch.

    Raises:
        RemoteProtocolError: It cannot be unpacked, or would be too large.
    """
    items, ends = unwrap_encoded(record.body, record.sys_flag, record.properties, size_max=UNPACKED_SIZE_MAX)
    sys_flag = record.sys_flag & ~(INNER_BATCH | COMPRESSED | CODEC_MASK)
    outer = msgspec.structs.replace(record, sys_flag=sys_flag, body=b"", properties=b"")
    return UnpackedBatch(record.offset, items, ends, outer)


def _layout_of(outer: StoredRecord) -> Struct:
    return LAYOUTS[outer.sys_flag >> _HOST_BITS_SHIFT & 3]


def _overhead_of(outer: StoredRecord) -> int:
    """Return the size of a message's record beyond its body and properties."""
    return _layout_of(outer).size + len(topic_part(outer.topic)[1]) + 2


def _encode_singles(outer: StoredRecord, index: int, items: list[tuple[int, memoryview, bytes]]) -> bytes:
    """Encode *items* as records; the first is message *index* of *outer*."""
    magic, topic = topic_part(outer.topic)
    layout, overhead = _layout_of(outer), _overhead_of(outer)
    pieces: list[Piece] = []
    for offset, (flag, body, properties) in enumerate(items, outer.offset + index):
        size = overhead + len(body) + len(properties)
        pieces += (
            layout.pack(
                size, magic, body_crc(body), outer.queue_id, flag, offset, outer.position, outer.sys_flag,
                outer.born_ms, outer.born_host, outer.store_ms, outer.store_host, outer.reconsume_times,
                outer.prepared_position, len(body),
            ),
            body,
            topic + len(properties).to_bytes(2, "big"),
            properties,
        )  # fmt: skip
    return b"".join(pieces)
