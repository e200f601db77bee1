"""A batch that stays one record. The bytes of a real one were written by a Java 5.5.0 producer and broker."""

import contextlib
import hashlib
import os
import tarfile
import tracemalloc
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lz4.frame
import msgspec
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from holdfast.model.errors import LocalProtocolError, RemoteProtocolError
from holdfast.wire.records.batch import encode_items
from holdfast.wire.records.compression import Codec, flag_of
from holdfast.wire.records.inner_batch import (
    COUNT_MAX,
    INNER_BATCH,
    declared_count,
    is_inner_batch,
    unwrap_items,
    wrap_items,
)
from holdfast.wire.records.properties import parse_properties
from holdfast.wire.records.record import StoredRecord, decode_record

GOLDEN = Path(__file__).parents[3] / "data" / "golden" / "rocketmq-5.5.0-clean.tar.gz"
ITEMS = [(1, b"one" * 50, b"KEYS\x01a\x02"), (2, b"two" * 50, b"KEYS\x01b\x02")]
BODY = encode_items(ITEMS)
TWO = b"INNER_NUM\x012\x02"


def plain(items: list[tuple[int, memoryview, bytes]]) -> list[tuple[int, bytes, bytes]]:
    return [(flag, bytes(body), properties) for flag, body, properties in items]


def java_batches() -> Iterator[tuple[str, StoredRecord]]:
    """Every inner batch in the logs of two Java brokers, with the broker's name."""
    with tarfile.open(GOLDEN) as archive:
        for member in sorted(archive.getmembers(), key=lambda member: member.name):
            _, _, name = member.name.rpartition("rocketmq-5.5.0-clean/")
            broker, _, rest = name.partition("/")
            if not (rest.startswith("commitlog/") and member.isfile()):
                continue
            handle = archive.extractfile(member)
            assert handle is not None
            log, at = handle.read(), 0
            # Files end with a blank, whose magic is another one, or with zeros.
            while log[at + 4 : at + 8] in {b"\xda\xa3\x20\xa7", b"\xda\xa3\x20\xab"}:
                record = decode_record(log, at)
                at += record.size
                if is_inner_batch(record.sys_flag):
                    yield broker, record


def java_manifest() -> dict[tuple[str, int, int], dict[str, Any]]:
    """What a Java consumer read of batches from the same brokers, by broker, queue and offset."""
    with tarfile.open(GOLDEN) as archive:
        handle = archive.extractfile("rocketmq-5.5.0-clean/manifest.jsonl")
        assert handle is not None
        lines = [msgspec.json.decode(line) for line in handle.read().splitlines() if b'"GoldenInner"' in line]
    return {
        (line["brokerName"], line["queueId"], line["queueOffset"]): line
        for line in lines
        if line["kind"] == "message" and is_inner_batch(line["sysFlag"])
    }


def test_batches_of_java_are_opened_as_java_opens_them():
    """Every message of every batch: place, flag, properties and body."""
    expected = java_manifest()
    found = {}

    for broker, record in java_batches():
        for index, (flag, body, properties) in enumerate(unwrap_items(record.body, record.sys_flag, record.properties)):
            found[broker, record.queue_id, record.offset + index] = (
                flag,
                hashlib.sha256(body).hexdigest(),
                parse_properties(properties.decode()),
            )

    assert len(found) > 500
    assert found == {place: (line["flag"], line["sha256"], line["properties"]) for place, line in expected.items()}


def test_our_items_are_those_that_java_writes():
    """Byte for byte, given what they say."""
    for _, record in java_batches():
        items = unwrap_items(record.body, record.sys_flag, record.properties)

        made = wrap_items(encode_items(items), len(items), "ID")

        assert made.body == record.body
        assert made.sys_flag == record.sys_flag == INNER_BATCH
        assert declared_count(made.properties.encode()) == declared_count(record.properties)


def test_what_a_broker_needs_stands_outside():
    """Id, count, each key once, and the tag that all have."""
    made = wrap_items(BODY, 2, "ID", keys=["a", "b", "a"], tags=["red", "red"])

    assert made.properties == "UNIQ_KEY\x01ID\x02INNER_NUM\x012\x02KEYS\x01a b\x02TAGS\x01red\x02"


@pytest.mark.parametrize("tags", [["red", "blue"], ["red", None], [None, None], [""], []])
def test_only_a_tag_that_all_have_stands_outside(tags: list[str | None]):
    """A broker that selects by another one would hide some of the messages."""
    assert "TAGS" not in parse_properties(wrap_items(BODY, 2, "ID", tags=tags).properties)


@pytest.mark.parametrize("codec", [None, *Codec])
def test_what_is_wrapped_is_unwrapped(codec: Codec | None):
    """However it is compressed; the flags say how."""
    made = wrap_items(BODY, 2, "ID", codec=codec)

    assert made.sys_flag == INNER_BATCH | (0 if codec is None else flag_of(codec))
    assert (len(made.body) < len(BODY)) == (codec is not None)
    assert plain(unwrap_items(made.body, made.sys_flag, made.properties.encode())) == ITEMS


@pytest.mark.parametrize("codec", list(Codec))
def test_what_does_not_become_smaller_is_not_compressed(codec: Codec):
    """And the flags say so."""
    items = encode_items([(0, os.urandom(200), b"")])

    assert wrap_items(items, 1, "ID", codec=codec).sys_flag == INNER_BATCH


@pytest.mark.parametrize("count", [0, COUNT_MAX + 1])
def test_a_batch_has_one_message_at_least_and_as_many_as_an_index_can_count(count: int):
    """Whoever has more makes two of them."""
    with pytest.raises(LocalProtocolError, match=str(count)):
        wrap_items(BODY, count, "ID")


@pytest.mark.parametrize("key", ["k" * 60, "ключ" * 8])
def test_keys_that_do_not_fit_outside_are_refused(key: str):
    """Half of them would make messages that nobody finds. Brokers add properties of their own."""
    keys = [f"{key}{number}" for number in range(1000)]

    with pytest.raises(LocalProtocolError, match="keys"):
        wrap_items(BODY, 1000, "ID", keys=keys)
    assert wrap_items(BODY, 400, "ID", keys=keys[:400])


@pytest.mark.parametrize("count", [b"1", b"3", b"0", b"-2", b"32768", b"9" * 400, b"two", b"\xb2"])
def test_a_wrong_count_is_refused(count: bytes):
    """The index goes by it: offsets would be those of other messages."""
    with pytest.raises(RemoteProtocolError):
        unwrap_items(BODY, INNER_BATCH, b"INNER_NUM\x01%b\x02" % count)


@pytest.mark.parametrize("count", [b"0", b"-2", b"32768", b"9" * 400, b"two", b"\xb2"])
def test_what_is_no_count_is_refused_before_anything_is_opened(count: bytes):
    """An empty batch is none either."""
    with pytest.raises(RemoteProtocolError, match="declares"):
        declared_count(b"INNER_NUM\x01%b\x02" % count)


def test_a_batch_that_does_not_say_its_count_holds_one():
    """Java's broker takes it and counts one: the next record has the offsets that others of it would have."""
    assert plain(unwrap_items(encode_items(ITEMS[:1]), INNER_BATCH, b"")) == ITEMS[:1]
    with pytest.raises(RemoteProtocolError, match="more than 1"):
        unwrap_items(BODY, INNER_BATCH, b"")


def test_a_batch_that_nobody_could_open_for_others_is_not_made():
    """A broker that splits it for an old client would refuse it."""
    with pytest.raises(LocalProtocolError, match="15728640 bytes"):
        wrap_items(bytes(15 * 1024 * 1024 + 1), 1, "id")


BOMB = bytes(50_000_000)


@pytest.mark.parametrize(
    ("codec", "bomb", "reason"),
    [
        (Codec.ZLIB, zlib.compress(BOMB), "more than 1000000 bytes"),
        (Codec.LZ4, lz4.frame.compress(BOMB), "would be 50000000 bytes"),
        (Codec.LZ4, lz4.frame.compress(BOMB, store_size=False), "more than 1000000 bytes"),
        (Codec.ZSTD, zstandard.compress(BOMB), "would be 50000000 bytes"),
    ],
)
def test_a_bomb_does_not_explode(codec: Codec, bomb: bytes, reason: str):
    """Whether or not it says how large it would be: no more than is allowed comes to be in memory."""
    tracemalloc.start()
    try:
        with pytest.raises(RemoteProtocolError, match=reason):
            unwrap_items(bomb, INNER_BATCH | flag_of(codec), TWO, size_max=1_000_000)
        assert tracemalloc.get_traced_memory()[1] < 3_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("flags", [0, 0x40, 0x80, 0x41])
def test_only_both_bits_together_mean_a_batch(flags: int):
    """Each has a meaning of its own."""
    assert not is_inner_batch(flags)
    assert is_inner_batch(flags | INNER_BATCH)


@given(st.data())
def test_any_damage_is_read_or_refused(data: st.DataObject):
    """With an error of the protocol, never another."""
    codec = data.draw(st.sampled_from([None, *Codec]))
    made = wrap_items(BODY, 2, "ID", codec=codec)
    damaged = bytearray(made.body)
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(RemoteProtocolError):
        assert len(unwrap_items(damaged, made.sys_flag, TWO)) == 2
