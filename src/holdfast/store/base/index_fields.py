"""The fields of a record that the indexes store: its tags code, its keys, and its number of messages.

This module knows which properties matter to indexes, and the one topic whose entries carry a time instead of a tag.
"""

from __future__ import annotations

from functools import lru_cache

from holdfast.model.errors import RecordRefused
from holdfast.model.java_hash import extend_hash, java_hash
from holdfast.model.numbers import parse_count
from holdfast.model.topic import SCHEDULE_TOPIC
from holdfast.wire.records.inner_batch import COUNT_MAX, INNER_BATCH
from holdfast.wire.records.properties import find_by_marker, find_property
from holdfast.wire.records.record import TRANSACTION_MASK, TRANSACTION_ROLLBACK

NOT_QUEUED = 0x4
"""The bit that prepared and rollback records share: neither gets an offset in a queue."""

INNER_BITS = INNER_BATCH
"""The sys flag bits of a record that holds a batch: it is to be opened, and it holds one."""
INNER_COUNT_MAX = COUNT_MAX
"""RocketMQ stores the count in a signed 16-bit number."""

KEY_SEPARATOR = b" "
UNIQUE_KEY, KEYS, VALUE_END = b"UNIQ_KEY\x01", b"KEYS\x01", b"\x02"
_TAGS = b"TAGS\x01"
_INNER_COUNT, _INNER_BASE = b"INNER_NUM\x01", b"INNER_BASE\x01"
_SCHEDULE = SCHEDULE_TOPIC.encode()


def has_keys(sys_flag: int) -> bool:
    """Return whether the key index contains this record: it contains all but rollbacks."""
    return sys_flag & TRANSACTION_MASK != TRANSACTION_ROLLBACK


def tags_code(topic: bytes, properties: bytes, store_ms: int, delay_levels_ms: tuple[int, ...]) -> int:
    """Return the third field of a record's entry: the hash of its tag, or its due time in the schedule topic."""
    if topic == _SCHEDULE:
        level = find_property(properties, b"DELAY")
        number = parse_count(level.decode(errors="replace"), 0) if level is not None else 0
        if number > 0:
            return store_ms + delay_levels_ms[min(number, len(delay_levels_ms)) - 1]
    tags = find_by_marker(properties, _TAGS, VALUE_END)
    return _hash_tags(tags) if tags else 0


@lru_cache(maxsize=4096)
def _hash_tags(tags: bytes) -> int:
    return java_hash(tags.decode(errors="replace"))


def inner_count(sys_flag: int, properties: bytes) -> int:
    """Return the number of messages in a record: more than one only in a batch that is stored whole.

    Raises:
        RecordRefused: the record states a number that no index can hold.
    """
    if sys_flag & INNER_BITS != INNER_BITS:
        return 1
    text = find_by_marker(properties, _INNER_COUNT, VALUE_END)
    if text is None:
        return 1
    count = parse_count(text.decode(errors="replace"), 0)
    if not 0 < count <= INNER_COUNT_MAX:
        raise RecordRefused(f"a batch may hold 1 to {INNER_COUNT_MAX} messages, but this one states {text[:20]!r}")
    return count


def with_inner_base(properties: bytes, offset: int) -> bytes:
    """Return the properties of a batch with its first offset added; of two properties of one name the last counts."""
    end = b"" if not properties or properties.endswith(VALUE_END) else VALUE_END
    return b"%s%s%s%d%s" % (properties, end, _INNER_BASE, offset, VALUE_END)


def inner_span(sys_flag: int, properties: bytes, offset: int) -> tuple[int, int]:
    """Return the first offset and the count of a stored record's messages; the count is 0 if the record is invalid.

    *offset* is the record's own offset, used unless a batch states another.
    """
    if sys_flag & INNER_BITS != INNER_BITS:
        return offset, 1
    try:
        count = inner_count(sys_flag, properties)
    except RecordRefused:
        count = 0
    text = find_by_marker(properties, _INNER_BASE, VALUE_END)
    return offset if text is None else parse_count(text.decode(errors="replace"), -1), count


def index_keys(properties: bytes) -> list[bytes]:
    """Return the keys under which a record can be found: its unique key and each word of its keys."""
    unique = find_by_marker(properties, UNIQUE_KEY, VALUE_END)
    words = find_by_marker(properties, KEYS, VALUE_END)
    keys = [unique] if unique else []
    if words:
        keys += [word for word in words.split(KEY_SEPARATOR) if word]
    return keys


def key_hash(topic: bytes, key: bytes) -> int:
    """Return the hash of a key in the key index: never negative."""
    value = extend_hash(0, topic + b"#" + key)
    # Java's Math.abs leaves the smallest integer negative; RocketMQ then uses 0.
    return value if value < 1 << 31 else -value & 0x7FFFFFFF
