"""The records of a batch that is split: both kinds, beside staging each message alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.accelerated import KINDS, implementation, needs_native
from tests.support.stores import HOST, NOW_MS, open_store

from holdfast.store.base.index_fields import tags_code
from holdfast.store.log import commit_log
from holdfast.store.queues.queue_index import ENTRY
from holdfast.wire.records.batch import encode_items, split_items
from holdfast.wire.records.record import LAYOUTS, MAGIC_V1, decode_records

TOPIC_PART = b"\x01t"
END = 1 << 30
SIZE_MAX = 40
PIECES = [b"TAGS\x01", b"XTAGS\x01", b"a", b"\x02", b"UNIQ_KEY\x01", b"INNER_NUM\x01", b"\xc3\xa4", b"\xff", b"7F00"]
PROPERTIES = st.lists(st.sampled_from(PIECES), max_size=6).map(b"".join)
ITEMS = st.lists(st.tuples(st.integers(-(1 << 31), (1 << 31) - 1), st.binary(max_size=44), PROPERTIES), max_size=5)


def a_head(hosts: int = 0) -> bytes:
    born, store = bytes(range(20 if hosts & 1 else 8)), bytes(range(20 if hosts & 2 else 8))
    return LAYOUTS[hosts].pack(0, MAGIC_V1, 0, 3, 0, 0, 0, hosts << 4, NOW_MS, born, NOW_MS + 1, store, 5, 0, 0)


def pack(kind: str, batch: bytes, *, hosts: int = 0, offset: int = 7, position: int = 500, end: int = END) -> object:
    """Return the records as one text, their entries and positions, and the size of the bodies."""
    found = implementation("pack_items", kind)(
        memoryview(batch), a_head(hosts), TOPIC_PART, offset, position, end, SIZE_MAX
    )
    return None if found is None else (b"".join(found[0]), *found[1:])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("hosts", range(4))
def test_every_item_becomes_a_record(kind: str, hosts: int):
    """With the fields that all share, its own, and an entry each."""
    items = [(9, b"one", b"TAGS\x01ab\x02"), (-1, b"", b""), (0, b"three", b"k\x01v\x02TAGS\x01\xc3\xa4")]

    records, entries, positions, size = pack(kind, encode_items(items), hosts=hosts)  # type: ignore[misc]

    found = list(decode_records(records))
    assert [(it.flag, it.body, it.properties) for it in found] == items
    assert [(it.offset, it.position) for it in found] == list(zip(range(7, 10), positions, strict=True))
    assert {(it.topic, it.queue_id, it.born_ms, it.store_ms, it.reconsume_times) for it in found} == {
        ("t", 3, NOW_MS, NOW_MS + 1, 5)
    }
    assert {(len(it.born_host), len(it.store_host)) for it in found} == {
        (20 if hosts & 1 else 8, 20 if hosts & 2 else 8)
    }
    codes = [tags_code(b"t", it.properties, 0, ()) for it in found]
    assert codes[0] != 0 == codes[1]
    assert [ENTRY.unpack(entry) for entry in entries] == [
        (it.position, it.size, code) for it, code in zip(found, codes, strict=True)
    ]
    assert (positions[0], size) == (500, 8)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "batch",
    [
        b"",
        encode_items([(0, b"a", b"")])[:-1],
        encode_items([(0, b"a", b""), (0, bytes(SIZE_MAX + 1), b"")]),
        encode_items([(0, b"a", b"INNER_NUM\x012\x02")]),
        encode_items([(0, b"a", b"TAGS\x01\x02")]),
        encode_items([(0, b"a", b"XTAGS\x01a\x02")]),
        encode_items([(0, b"a", b"p")])[:-3] + b"\xff\xffp",
    ],
)
def test_a_batch_that_is_not_plain_is_declined(kind: str, batch: bytes):
    """Whole: nothing of it is packed."""
    assert pack(kind, batch) is None


@pytest.mark.parametrize("kind", KINDS)
def test_records_end_where_the_space_does(kind: str):
    """To the byte."""
    batch = encode_items([(0, b"a", b""), (0, b"b", b"")])
    size = 2 * (88 + 1 + len(TOPIC_PART) + 2)

    assert pack(kind, batch, end=500 + size) is not None
    assert pack(kind, batch, end=500 + size - 1) is None


@pytest.mark.parametrize("kind", KINDS)
def test_what_looks_like_a_property_in_the_size_is_none(kind: str):
    """The two bytes before the properties may be letters: IN and TA."""
    for start in (b"NER_NUM\x012\x02", b"GS\x01a\x02"):
        size = int.from_bytes(b"IN" if start[0] == ord("N") else b"TA", "big")
        batch = encode_items([(0, b"", start.ljust(size, b"x"))])

        found = pack(kind, batch)

        assert found is not None
        assert ENTRY.unpack(found[1][0])[2] == 0  # type: ignore[index]


@needs_native()
@given(
    ITEMS,
    st.lists(st.tuples(st.integers(0, 300), st.integers(0, 255)), max_size=4),
    st.integers(0, 3),
    st.integers(500, 1200),
    st.integers(0, 3),
)
def test_both_pack_the_same(
    items: list[tuple[int, bytes, bytes]], changes: list[tuple[int, int]], cut: int, end: int, hosts: int
):
    """Whole batches, and damaged ones."""
    batch = bytearray(encode_items(items))
    for at, value in changes:
        if batch:
            batch[at % len(batch)] = value
    data = bytes(batch[: len(batch) - cut])

    assert pack("native", data, hosts=hosts, end=end) == pack("python", data, hosts=hosts, end=end)


@needs_native()
def test_a_head_of_a_wrong_size_is_refused():
    """The compiled function believes no argument."""
    with pytest.raises(ValueError, match="host bits"):
        implementation("pack_items", "native")(b"", a_head()[:-1], TOPIC_PART, 0, 0, END, SIZE_MAX)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("host", [HOST, bytes(16) + HOST[4:]])
def test_a_packed_batch_is_stored_as_its_messages_would_be(kind: str, host: bytes, monkeypatch: pytest.MonkeyPatch):
    """Byte for byte; and its offsets are released when it is dropped."""
    monkeypatch.setattr(commit_log, "pack_items", implementation("pack_items", kind))
    batch = encode_items([(number, b"body %d" % number, b"TAGS\x01a\x02") for number in range(3)])
    stores = [open_store(), open_store()]
    queues = [store.queue("orders", 1) for store in stores]
    code = tags_code(b"orders", b"TAGS\x01a\x02", 0, ())
    drafts = [(queues[0], body, text, flag, 1, 2, host, code, 4, 0) for flag, body, text in split_items(batch)]

    staged = stores[0].stage_run(drafts, NOW_MS)
    packed = stores[1].pack_batch(queues[1], batch, 1, 2, host, NOW_MS, 4)
    assert packed is not None
    assert stores[1].stage_packed(queues[1], packed) == staged[0][1]
    assert packed[2] == [position for position, _ in staged]
    assert stores[1].log.staged_end == stores[0].log.staged_end
    for store in stores:
        store.write()
        store.confirm(store.written)

    files = [store.log.files.files[0].view(0, 1024).tobytes() for store in stores]
    assert files[0] == files[1]
    assert queues[0].entries(0, 9) == queues[1].entries(0, 9)
    again = stores[1].pack_batch(queues[1], batch, 1, 2, host, NOW_MS, 4)
    assert again is not None
    stores[1].stage_packed(queues[1], again)
    stores[1].log.discard()
    assert (queues[1].next_offset, stores[1].log.staged_end) == (3, stores[1].written)


def test_only_batches_of_plain_records_are_packed():
    """A prepared message has no offset, and a batch that does not fit begins a new file."""
    store = open_store()
    queue = store.queue("orders", 1)
    batch = encode_items([(0, b"body", b"")])

    assert store.pack_batch(queue, batch, 0x4, 2, HOST, NOW_MS, 0) is None
    assert store.pack_batch(queue, batch, 0, 2, HOST, NOW_MS, 0) is not None
    assert store.pack_batch(queue, encode_items([(0, bytes(100), b"")] * 9), 0, 2, HOST, NOW_MS, 0) is None
