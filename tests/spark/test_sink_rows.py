"""Columns of rows become messages: the same, byte for byte, as one by one."""

from random import Random
from zlib import crc32

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.client.cluster.send_plan import queue_for_key
from holdfast.model import property_names as names
from holdfast.model.java_hash import java_hash
from holdfast.model.queue import MessageQueue
from holdfast.spark import sink_items
from holdfast.spark.key_hash import hash_keys
from holdfast.spark.sink_items import (
    count_fitting,
    count_fitting_keys,
    encode_messages,
    running_checksums,
    wrap_messages,
)
from holdfast.spark.sink_rows import (
    BYTES,
    BadRow,
    MessageColumns,
    MessageSelection,
    Numbers,
    QueueChoice,
    join_rows,
    to_rows,
)
from holdfast.wire.records.batch import ITEM_OVERHEAD, encode_items
from holdfast.wire.records.compression import Codec
from holdfast.wire.records.inner_batch import wrap_items

QUEUES = tuple(MessageQueue("T", "b", number) for number in range(3))
TEXTS = st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), max_size=8)
ROW = st.fixed_dictionaries(
    {
        "body": st.binary(min_size=1, max_size=40),
        "key": st.none() | TEXTS,
        "tags": st.none() | TEXTS,
        "properties": st.none() | st.lists(st.tuples(TEXTS, TEXTS), max_size=2),
    }
)
SCHEMA = pa.schema(
    {"body": pa.binary(), "key": pa.string(), "tags": pa.string(), "properties": pa.map_(pa.string(), pa.string())}
)


def make_batch(rows: list[dict[str, object]]) -> pa.RecordBatch:
    """Return rows as Spark would bring them."""
    return pa.RecordBatch.from_pylist(rows, SCHEMA)


def make_messages(items: list[tuple[bytes, bytes]]) -> MessageSelection:
    """Return (body, properties) as columns."""
    bodies, properties = ([item[number] for item in items] for number in (0, 1))
    none = pa.nulls(len(items), pa.large_string())
    return MessageSelection(
        MessageColumns(none, none, pa.array(bodies, BYTES), pa.array(properties, BYTES)), np.arange(len(items))
    )


def listed(messages: MessageSelection) -> list[tuple[bytes, bytes]]:
    """Return messages as (body, properties)."""
    rows = messages.rows
    return [(rows.bodies[at].as_py(), rows.properties[at].as_py()) for at in messages.numbers.tolist()]


def all_of(rows: MessageColumns, order: Numbers | None = None) -> list[tuple[bytes, bytes]]:
    """Return rows as (body, properties)."""
    return listed(MessageSelection(rows, rows.arrival_order() if order is None else order))


def slow_properties(row: dict[str, object]) -> bytes:
    """Return what is stored of a row, put together piece by piece."""
    key, tags = row["key"], row["tags"]
    text = f"KEYS\x01{key}\x02__SHARDINGKEY\x01{key}\x02" if key else ""
    text += f"TAGS\x01{tags}\x02" if tags else ""
    for name, value in row["properties"] or ():  # type: ignore[attr-defined]
        text += f"{name}\x01{value}\x02" if name and value and name not in names.RESERVED else ""
    return text.encode()


@given(st.lists(st.text(max_size=12) | st.just("k" * 300)))
def test_keys_have_the_hash_that_java_gives_them(keys: list[str]):
    """Any character, any length, also of a part of a column."""
    keys = [key.encode("utf-8", "ignore").decode() for key in keys]
    column = pa.array(["ahead", *keys], pa.large_string())[1:]

    assert hash_keys(column).tolist() == [java_hash(key) for key in keys]


@given(st.lists(ROW))
def test_rows_become_the_messages_they_are_one_by_one(rows: list[dict[str, object]]):
    """Bodies, properties and keys."""
    found = to_rows(make_batch(rows), "T")

    assert list(found) == (["T"] if rows else [])
    if rows:
        assert all_of(found["T"]) == [(row["body"], slow_properties(row)) for row in rows]
        assert found["T"].keys.to_pylist() == [row["key"] for row in rows]


@given(st.lists(ROW, min_size=1), st.integers(0, 5))
def test_every_row_goes_to_the_queue_of_its_key_or_whose_turn_it_is(rows: list[dict[str, object]], turn: int):
    """In the order of the rows; the turns go on with the next rows."""
    choice = QueueChoice({"T": QUEUES}, turn)
    wanted: dict[MessageQueue, list[tuple[object, bytes]]] = {}
    for row in rows:
        turn += row["key"] is None
        queue = QUEUES[turn % 3] if row["key"] is None else queue_for_key(str(row["key"]), QUEUES)
        wanted.setdefault(queue, []).append((row["body"], slow_properties(row)))

    made = to_rows(make_batch(rows), "T")["T"]
    found = {queue: listed(mine) for queue, mine in choice.distribute("T", made, made.arrival_order())}

    assert found == wanted
    assert choice.round_robin == turn


@given(st.lists(st.tuples(st.binary(max_size=30), st.binary(max_size=30))), st.integers(0, 3))
def test_columns_are_encoded_as_items_are_one_by_one(items: list[tuple[bytes, bytes]], start: int):
    """Also a part of them, and with a stamp on each."""
    part = make_messages(items)[start:]
    stamps = [b"%d" % number for number in range(len(part))]

    assert encode_messages(part) == encode_items((0, body, text) for body, text in items[start:])
    stamped = [(0, body, text + stamp) for (body, text), stamp in zip(items[start:], stamps, strict=True)]
    assert encode_messages(part, stamps) == encode_items(stamped)


@given(st.lists(st.tuples(st.binary(max_size=30), st.binary(max_size=30))), st.randoms(use_true_random=False))
def test_a_checksum_runs_over_messages_in_their_order(items: list[tuple[bytes, bytes]], random: Random):
    """Bodies and properties."""
    made = make_messages(items)
    order = random.sample(range(len(items)), len(items))
    wanted = [7]
    for at in order:
        wanted.append(crc32(b"".join(items[at]), wanted[-1]))

    assert running_checksums(MessageSelection(made.rows, np.array(order, dtype=np.int64)), 7) == wanted


@given(st.lists(st.integers(0, 50), min_size=1), st.integers(30, 200), st.integers(0, 3))
def test_requests_are_as_full_as_they_may_be(sizes: list[int], size_max: int, start: int):
    """A message that is too large goes alone."""
    messages = make_messages([(bytes(size), b"") for size in sizes])[min(start, len(sizes) - 1) :]
    wanted = [size + ITEM_OVERHEAD for size in sizes[min(start, len(sizes) - 1) :]]

    count = count_fitting(messages, size_max)

    assert count == 1 or sum(wanted[:count]) <= size_max
    assert count == len(wanted) or sum(wanted[: count + 1]) > size_max


@given(st.lists(st.none() | st.sampled_from(["", "a", "bb", "ccc", "dddd", "ä"]), min_size=1), st.integers(1, 12))
def test_a_batch_has_no_more_keys_than_fit_outside(keys: list[str | None], size_max: int):
    """Each counts once, however many messages have it; a message whose key is too long goes alone."""
    rows = MessageColumns(*[pa.array(keys, pa.large_string())] * 4)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sink_items, "KEYS_SIZE_MAX", size_max)
        count = count_fitting_keys(MessageSelection(rows, rows.arrival_order()))

    def size_of(rows: int) -> int:
        return sum(len(key.encode()) + 1 for key in {key for key in keys[:rows] if key is not None})

    assert count == 1 or size_of(count) <= size_max
    assert count == len(keys) or size_of(count + 1) > size_max


@given(st.lists(ROW, min_size=1), st.none() | st.sampled_from(Codec))
def test_a_batch_is_the_one_that_a_producer_wraps(rows: list[dict[str, object]], codec: Codec | None):
    """All keys, each once; the tag that all have; the count; and that there are no ids to look for."""
    made = to_rows(make_batch(rows), "T")["T"]
    items = encode_items((0, row["body"], slow_properties(row)) for row in rows)
    keys, tags = [str(row["key"]) for row in rows if row["key"]], {row["tags"] for row in rows}

    found = wrap_messages(MessageSelection(made, made.arrival_order()), "id", codec)

    assert found == wrap_items(items, len(rows), "id", keys=keys, tags=tags, codec=codec, has_ids=False)


@given(st.lists(ROW, min_size=1), st.randoms(use_true_random=False))
def test_rows_have_one_order_however_they_come(rows: list[dict[str, object]], random: Random):
    """By key, body and properties: what a retry brings in another order is the same again."""
    shuffled = random.sample(rows, len(rows))

    one, other = (to_rows(make_batch(each), "T")["T"] for each in (rows, shuffled))

    assert all_of(one, one.content_order()) == all_of(other, other.content_order())
    slow = sorted(((row["key"] or ""), row["body"], slow_properties(row)) for row in rows)
    assert all_of(one, one.content_order()) == [tuple(each[1:]) for each in slow]


def test_rows_are_parted_by_the_topics_they_name():
    """Those that name none go to the one that was given; without one they are refused."""
    batch = pa.RecordBatch.from_pylist([{"body": b"1", "topic": "A"}, {"body": b"2", "topic": None}, {"body": b"3"}])

    found = to_rows(batch, "T")

    assert {topic: rows.bodies.to_pylist() for topic, rows in found.items()} == {
        "A": [b"1"],
        "T": [b"2", b"3"],
    }
    with pytest.raises(BadRow, match="names no topic"):
        to_rows(batch, None)


def test_keys_that_are_not_utf_8_are_read_as_latin_1():
    """As every client of ours reads them; the others stay what they are."""
    batch = pa.RecordBatch.from_pylist([{"body": b"1", "key": b"\xff"}, {"body": b"2", "key": "ü".encode()}])

    assert to_rows(batch, "T")["T"].keys.to_pylist() == ["\xff", "ü"]


def test_properties_of_the_system_are_not_taken_from_rows():
    """They are the topic's to say that a row was read from."""
    row = {"body": b"1", "key": None, "tags": None, "properties": [("UNIQ_KEY", "old"), ("mine", "1")]}

    found = to_rows(make_batch([row]), "T")["T"]

    assert found.properties.to_pylist() == [b"mine\x011\x02"]


def test_parts_of_a_partition_are_joined_in_order():
    """For a sort over all of them."""
    parts = [to_rows(pa.RecordBatch.from_pylist([{"body": body}]), "T")["T"] for body in (b"b", b"a")]

    whole: MessageColumns = join_rows(parts)

    assert whole.bodies.to_pylist() == [b"b", b"a"]
    assert whole.content_order().tolist() == [1, 0]
