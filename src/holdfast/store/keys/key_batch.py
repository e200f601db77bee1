"""Extract the keys of many log records at once, for the key index.

    size .. position .. sys flag .. store time .. | body | topic | .. UNIQ_KEY 0x01 7F00..12 0x02 .. KEYS 0x01 a b 0x02

This runs on the loop once per stored message, and prefers speed to brevity. All keys are hashed at once; the prefix
that a topic's keys share is hashed only once.
"""

from __future__ import annotations

import struct

from holdfast.model.java_hash import extend_hash, extend_hashes
from holdfast.store.base.index_fields import INNER_BITS, KEYS, UNIQUE_KEY, VALUE_END, has_keys, index_keys
from holdfast.store.keys.batch_keys import inner_keys
from holdfast.store.keys.key_index import IndexKey
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
    """Collected keys. Invariant: `_prefixes`, `_keys` and `_locations` have the same length."""

    def __init__(self) -> None:
        self._topics: dict[bytes, int] = {}  # Hashes of `topic#`
        self._prefixes: list[int] = []
        self._keys: list[bytes] = []
        self._locations: list[tuple[int, int]] = []

    def add(self, topic: bytes, keys: list[bytes], position: int, store_ms: int) -> None:
        """Add the keys of one record."""
        prefix = self._topics.get(topic) or self._hash_topic(topic)
        for key in keys:
            self._prefixes.append(prefix)
            self._keys.append(key)
            self._locations.append((position, store_ms))

    def add_inner(
        self, topic: bytes, properties: bytes, body: Piece, sys_flag: int, position: int, store_ms: int
    ) -> int:
        """Add the keys of a batch and of its messages. Return its cost in records, which is its number of keys."""
        keys = [*dict.fromkeys(index_keys(properties) + inner_keys(sys_flag, properties, body))]
        self.add(topic, keys, position, store_ms)
        return max(1, len(keys))

    def pop_keys(self) -> list[IndexKey]:
        """Return all collected keys and forget them."""
        hashes = extend_hashes(self._prefixes, self._keys)
        locations = self._locations
        self._prefixes, self._keys, self._locations = [], [], []
        return [
            # The same rule as in `index_fields.key_hash`.
            (value if value < 0x80000000 else -value & 0x7FFFFFFF, position, store_ms)
            for value, (position, store_ms) in zip(hashes, locations, strict=True)
        ]

    def _hash_topic(self, topic: bytes) -> int:
        if len(self._topics) >= TOPICS_MAX:
            self._topics.clear()
        prefix = self._topics[topic] = extend_hash(0, topic + b"#")
        return prefix

    def scan(self, data: memoryview, position: int, records_max: int) -> tuple[int, int]:
        """Add the keys of the records in *data*, which begins at *position*. Return where it stopped, and the count.

        A batch counts as many records as it has keys. The scan stops at the end, after *records_max* records, and at
        bytes that are not a whole record of the plain kind: IPv4 hosts, and a topic of the usual length.
        """
        at = count = 0
        end = len(data)
        topics, unpack = self._topics, _unpack
        add_prefix, add_key, add_location = self._prefixes.append, self._keys.append, self._locations.append
        while count < records_max and end - at >= RECORD_SIZE_MIN:
            size, magic, own_position, sys_flag, store_ms, body_size = unpack(data, at)
            record_end = at + size
            topic_at = at + FIXED_SIZE + body_size
            if magic != MAGIC_V1 or own_position != position + at or sys_flag & _HOSTS_V6 or record_end > end:
                break
            if body_size < 0 or topic_at > record_end - 3:
                break
            rest = data[topic_at:record_end].tobytes()
            # The lengths in it are not validated: garbage gives keys that no query will find in the record.
            start = rest[0] + 3
            if sys_flag & INNER_BITS == INNER_BITS:
                body = data[at + FIXED_SIZE : topic_at]
                count += self.add_inner(rest[1 : start - 2], rest[start:], body, sys_flag, own_position, store_ms)
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
                    add_prefix(topics.get(topic) or self._hash_topic(topic))
                    add_key(rest[key_at:key_end])
                    add_location((own_position, store_ms))
                    continue
            if has_keys(sys_flag):
                self.add(rest[1 : start - 2], index_keys(rest[start:]), own_position, store_ms)
        return position + at, count
