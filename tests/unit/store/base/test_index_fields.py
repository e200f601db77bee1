"""What indexes take from a record."""

from __future__ import annotations

import pytest

from holdfast.store.base.index_fields import has_keys, index_keys, key_hash, tags_code
from holdfast.wire.records.record import TRANSACTION_COMMIT, TRANSACTION_PREPARED, TRANSACTION_ROLLBACK

LEVELS = (1000, 5000)


@pytest.mark.parametrize(
    ("topic", "properties", "expected"),
    [
        (b"t", b"", 0),
        (b"t", b"KEYS\x01a\x02", 0),
        (b"t", b"KEYS\x01a\x02TAGS\x01TagA\x02", 2598919),
        (b"t", b"DELAY\x012\x02TAGS\x01TagA\x02", 2598919),
        (b"SCHEDULE_TOPIC_XXXX", b"DELAY\x012\x02TAGS\x01TagA\x02", 105_000),
        (b"SCHEDULE_TOPIC_XXXX", b"DELAY\x0199\x02", 105_000),
        (b"SCHEDULE_TOPIC_XXXX", b"DELAY\x010\x02TAGS\x01TagA\x02", 2598919),
        (b"SCHEDULE_TOPIC_XXXX", b"TAGS\x01TagA\x02", 2598919),
        (b"t", b"TAGS\x01\xff\x02", 65533),
    ],
)
def test_the_tags_code_is_the_tags_hash_or_the_time_of_delivery(topic: bytes, properties: bytes, expected: int):
    """A level above the last one counts as the last."""
    assert tags_code(topic, properties, 100_000, LEVELS) == expected


def test_keys_are_the_unique_key_and_the_words_of_the_keys():
    """Several blanks are one."""
    assert index_keys(b"KEYS\x01k1  k2\x02UNIQ_KEY\x01u\x02") == [b"u", b"k1", b"k2"]
    assert index_keys(b"TAGS\x01a\x02") == []


@pytest.mark.parametrize(
    ("topic", "key", "expected"),
    [(b"FooBar", b"Hello", 101609924), (b"TopicTest", b"k1", 2746024)],
)
def test_the_hash_of_a_key_is_that_of_topic_and_key(topic: bytes, key: bytes, expected: int):
    """Never negative."""
    assert key_hash(topic, key) == expected


def test_rollbacks_are_not_indexed():
    """Prepared records are, as upstream does."""
    flags = (0, TRANSACTION_PREPARED, TRANSACTION_COMMIT, TRANSACTION_ROLLBACK)
    assert [has_keys(flag) for flag in flags] == [True, True, True, False]
