"""Extract the keys of many log records at once, for the key index.

    size .. position .. sys flag .. store time .. | body | topic | .. UNIQ_KEY 0x01 7F00..12 0x02 .. KEYS 0x01 a b 0x02

This runs on the loop once per stored message, and prefers speed to brevity. All keys are hashed at once; the prefix
that a topic's keys share is hashed only once. Found keys are packed as `key_links` describes it.
"""

from __future__ import annotations

import struct
from functools import lru_cache

from holdfast.model.java_hash import extend_hash, extend_hashes
from holdfast.native import accelerated
from holdfast.store.base.index_fields import INNER_BITS, KEYS, UNIQUE_KEY, VALUE_END, has_keys, index_keys
from holdfast.store.keys.batch_keys import inner_keys
from holdfast.store.keys.key_links import pack_numbers
from holdfast.wire.records.batch import Piece
from holdfast.wire.records.record import (
    BORN_HOST_V6,
    FIXED_SIZE,
    MAGIC_V1,
    RECORD_SIZE_MIN,
    STORE_HOST_V6,
    TRANSACTION_MASK,
    TRANSACTION_ROLLBACK,
)

TOPICS_MAX = 4096
_HOSTS_V6 = BORN_HOST_V6 | STORE_HOST_V6
# Size, magic, position, sys flag, store time, body size.
_unpack = struct.Struct(">ii20xqi16xq20xi").unpack_from


class KeyCollector:
    """Collected keys. Invariant: `prefixes` and `keys` have the same length; each key has three `numbers`."""

    def __init__(self) -> None:
        self.prefixes: list[int] = []
        self.keys: list[bytes] = []
        self.numbers: list[int] = []
        """For each key its hash (0 until all are hashed), the position of its record, and the record's store time."""

    def add(self, topic: bytes, keys: list[bytes], position: int, store_ms: int) -> None:
        """Add the keys of one record."""
        self.prefixes += [hash_topic(topic)] * len(keys)
        self.keys += keys
        self.numbers += (0, position, store_ms) * len(keys)

    def add_inner(
        self, topic: bytes, properties: bytes, body: Piece, sys_flag: int, position: int, store_ms: int
    ) -> int:
        """Add the keys of a batch and of its messages. Return its cost in records, which is its number of keys."""
        keys = [*dict.fromkeys(index_keys(properties) + inner_keys(sys_flag, properties, body))]
        self.add(topic, keys, position, store_ms)
        return max(1, len(keys))

    def pack(self) -> bytes:
        """Return all collected keys, packed."""
        self.numbers[::3] = [
            # The same rule as in `index_fields.key_hash`.
            value if value < 0x80000000 else -value & 0x7FFFFFFF
            for value in extend_hashes(self.prefixes, self.keys)
        ]
        return pack_numbers(self.numbers)


@lru_cache(TOPICS_MAX)
def hash_topic(topic: bytes) -> int:
    """Return the hash that the hashes of all keys of *topic* begin with."""
    return extend_hash(0, topic + b"#")


@accelerated
def scan_keys(data: memoryview, position: int, records_max: int) -> tuple[bytes, int, int]:
    """Return the keys of the records in *data*, which begins at *position*; where it stopped, and the count of records.

    A batch counts as many records as it has keys. The scan stops at the end, after *records_max* records, and at
    bytes that are not a whole record of the plain kind: IPv4 hosts, a topic of the usual length, and parts that add up.
    """
    at = count = 0
    end = len(data)
    collector = KeyCollector()
    topics: dict[bytes, int] = {}
    unpack = _unpack
    add_prefix, add_key, add_numbers = collector.prefixes.append, collector.keys.append, collector.numbers.extend
    while count < records_max and end - at >= RECORD_SIZE_MIN:
        size, magic, own_position, sys_flag, store_ms, body_size = unpack(data, at)
        record_end = at + size
        topic_at = at + FIXED_SIZE + body_size
        if magic != MAGIC_V1 or own_position != position + at or sys_flag & _HOSTS_V6 or record_end > end:
            break
        if body_size < 0 or topic_at > record_end - 3:
            break
        rest = data[topic_at:record_end].tobytes()
        start = rest[0] + 3
        if start > len(rest) or rest[start - 2] << 8 | rest[start - 1] != len(rest) - start:
            break
        if sys_flag & INNER_BITS == INNER_BITS:
            body = data[at + FIXED_SIZE : topic_at]
            count += collector.add_inner(rest[1 : start - 2], rest[start:], body, sys_flag, own_position, store_ms)
            at = record_end
            continue
        at = record_end
        count += 1
        if rest.rfind(KEYS, start) < 0:
            marked = rest.rfind(UNIQUE_KEY, start)
            if marked < 0:
                continue
            key_at = marked + len(UNIQUE_KEY)
            key_end = rest.find(VALUE_END, key_at)
            if (
                key_end > key_at
                and (rest[marked - 1] == 2 or marked == start)
                and sys_flag & TRANSACTION_MASK != TRANSACTION_ROLLBACK
            ):
                topic = rest[1 : start - 2]
                add_prefix(topics.get(topic) or topics.setdefault(topic, hash_topic(topic)))
                add_key(rest[key_at:key_end])
                add_numbers((0, own_position, store_ms))
                continue
        if has_keys(sys_flag):
            collector.add(rest[1 : start - 2], index_keys(rest[start:]), own_position, store_ms)
    return collector.pack(), position + at, count
