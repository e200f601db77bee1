"""Messages of a batch are found by their keys and ids, though the batch is one record."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.stores import HOST, NOW_MS, append, batched_disk, finish, open_store, run_housekeeping

from holdfast.model.unique_id import UniqueIds
from holdfast.store.base.index_fields import index_keys
from holdfast.store.keys.batch_keys import block_of, inner_keys
from holdfast.store.keys.indexer import SLICE_RECORDS
from holdfast.store.message_store import MessageStore
from holdfast.wire.frames.host import pack_host
from holdfast.wire.records.batch import encode_items
from holdfast.wire.records.compression import Codec
from holdfast.wire.records.inner_batch import INNER_BATCH, InnerBatch, wrap_items

FOREVER = (0, 1 << 62)
PREFIX = "0A00000100000000000100000001"


def an_id(number: int) -> str:
    return f"{PREFIX}{number & 0xFFFF:04X}"


def items_of(ids: list[str], keys: str = "") -> bytes:
    return encode_items([(0, b"x" * 50, f"UNIQ_KEY\x01{each}\x02{keys}".encode()) for each in ids])


def ours(number: int, count: int, *, codec: Codec | None = None) -> InnerBatch:
    """Return a batch whose id has *number*, as our producer closes it."""
    ids = [an_id(number + at + 1) for at in range(count)]
    return wrap_items(items_of(ids), count, an_id(number), keys=["k1", "k2"], codec=codec, has_sequential_ids=True)


def javas(ids: list[str], *, sys_flag: int = 0) -> InnerBatch:
    """Return a batch of Java's producer as a broker stores it that counted it."""
    text = f"UNIQ_KEY\x01OUTER\x02WAIT\x01true\x02INNER_NUM\x01{len(ids)}\x02"
    return InnerBatch(items_of(ids, "KEYS\x01red blue\x02"), INNER_BATCH | sys_flag, text)


def keep(store: MessageStore, batch: InnerBatch, host: bytes = HOST) -> int:
    """Store a batch and return where it is."""
    queue = store.queue("orders", 0)
    position, _ = store.stage(queue, batch.body, batch.properties.encode(), 0, batch.sys_flag, NOW_MS, host, 0, NOW_MS)
    store.write()
    store.confirm(store.written)
    return position


def find(store: MessageStore, key: str) -> list[int]:
    return [*finish(store, store.find_by_key("orders", key, 10, *FOREVER))]


@pytest.fixture
def store() -> MessageStore:
    return open_store(batched_disk(), index_items=10_000, log_file_size=1 << 20)


@pytest.mark.parametrize("codec", [None, Codec.ZSTD])
@pytest.mark.parametrize("number", [7, 0x0FFE, 0xFFFE, 0xFFFF])
def test_every_id_of_a_batch_is_found_and_no_other(store: MessageStore, number: int, codec: Codec | None):
    """Compressed or not, also where the numbers of ids begin again; the batch is found by its own id as well."""
    keep(store, ours(number - 4, 3))
    position = keep(store, ours(number, 3, codec=codec))
    keep(store, ours(number + 4, 3))

    assert [find(store, an_id(number + at)) for at in range(5)][:4] == [[position]] * 4
    assert find(store, an_id(number + 4)) != [position]
    assert find(store, an_id(number + 100)) == []
    assert find(store, f"1{an_id(number + 1)[1:]}") == []


def test_a_batch_takes_few_entries():
    """One or two for all the ids of a hundred messages, whichever they are."""
    batch = ours(0x0FF0, 100)

    keys = inner_keys(batch.sys_flag, batch.properties.encode(), batch.body)

    assert keys == [f"{PREFIX}0".encode(), f"{PREFIX}1".encode()]
    first = ours(0x0FF0, 15)
    assert inner_keys(first.sys_flag, first.properties.encode(), first.body) == [f"{PREFIX}0".encode()]


def test_ids_of_a_producer_lie_in_the_blocks_that_are_entered():
    """As `UniqueIds` makes them, over the end of its count too."""
    ids = UniqueIds(host=HOST[:4], process=1, salt=2)
    for _ in range(3):
        batch_id, *rest = ids.next_many(NOW_MS, 30_001)
        batch = wrap_items(b"", 30_000, batch_id, has_sequential_ids=True)
        blocks = inner_keys(batch.sys_flag, batch.properties.encode(), b"")
        assert {block_of(each.encode()) for each in rest} == {*blocks}


def test_the_keys_of_all_messages_are_outside(store: MessageStore):
    """So they are found as those of any record."""
    position = keep(store, ours(1, 3, codec=Codec.LZ4))

    assert find(store, "k1") == find(store, "k2") == [position]


def test_a_batch_without_ids_is_not_walked(store: MessageStore):
    """What is in it is found by the keys outside, and by no id that might follow that of the batch."""
    items = encode_items([(0, b"x", b"KEYS\x01%s\x02" % key) for key in (b"k1", b"k2")])
    batch = wrap_items(items, 2, an_id(7), keys=["k1", "k2"], has_ids=False)
    position = keep(store, batch)

    assert inner_keys(batch.sys_flag, batch.properties.encode(), batch.body) == []
    assert find(store, "k1") == find(store, "k2") == find(store, an_id(7)) == [position]
    assert find(store, an_id(8)) == []


def test_a_batch_whose_producer_says_nothing_outside_is_walked(store: MessageStore):
    """Ids and keys of its messages are found; those of others are not, whatever their hash."""
    ids = [f"ID{at}" for at in range(3)]
    position = keep(store, javas(ids))
    keep(store, javas(["other"]))

    assert [find(store, each) for each in (*ids, "ID3")] == [[position]] * 3 + [[]]
    assert len(find(store, "blue")) == 2
    assert len(find(store, "OUTER")) == 2


def test_a_batch_that_cannot_be_walked_is_found_by_what_is_outside(store: MessageStore):
    """Compressed, or of sizes that do not add up: the index goes on behind it."""
    compressed, broken = javas(["a"], sys_flag=0x1), javas(["b"])
    first = keep(store, compressed)
    second = keep(store, InnerBatch(broken.body[:-1], broken.sys_flag, broken.properties))
    third, _ = append(store, keys="k")

    assert find(store, "OUTER") == [second, first]
    assert find(store, "a") == find(store, "b") == []
    assert find(store, "k") == [third]


def test_records_that_are_not_plain_are_walked_too(store: MessageStore):
    """A producer with an IPv6 address."""
    host = pack_host("[::1]:5")
    walked, known = keep(store, javas(["ID"]), host), keep(store, ours(1, 3), host)

    assert find(store, "ID") == [walked]
    assert find(store, an_id(3)) == [known]


def test_a_slice_of_work_is_bounded_by_keys(store: MessageStore):
    """Not by records: a batch may have thousands."""
    for _ in range(5):
        keep(store, javas([f"ID{at}" for at in range(SLICE_RECORDS // 4)]))

    store.housekeep(NOW_MS)

    assert store.index_lag_bytes > 0
    run_housekeeping(store)
    assert store.index_lag_bytes == 0


def test_an_id_that_is_found_as_such_is_not_looked_for_elsewhere(store: MessageStore):
    """A single message with that id comes first."""
    keep(store, ours(1, 3))
    single = store.stage(
        store.queue("orders", 0), b"", f"UNIQ_KEY\x01{an_id(2)}\x02".encode(), 0, 0, NOW_MS, HOST, 0, NOW_MS
    )[0]
    store.write()
    store.confirm(store.written)

    assert find(store, an_id(2)) == [single]


@pytest.mark.parametrize("text", ["INNER_NUM\x01many\x02", "INNER_NUM\x0199999\x02"])
def test_nonsense_outside_is_not_entered(text: str):
    """A folder may hold what nobody sent to us."""
    properties = f"UNIQ_KEY\x01{an_id(1)}\x02INNER_IDS\x01next\x02{text}".encode()

    assert inner_keys(INNER_BATCH, properties, b"") == []
    assert inner_keys(INNER_BATCH, b"UNIQ_KEY\x01short\x02INNER_IDS\x01next\x02INNER_NUM\x012\x02", b"") == []


PIECES = st.sampled_from(
    [b"UNIQ_KEY\x01", b"KEYS\x01", b"XKEYS\x01", b"A1", b"a b", b"\x01", b"\x02", b"TAGS\x01t\x02"]
)


@given(st.lists(st.lists(PIECES, max_size=8).map(b"".join), max_size=4))
def test_items_have_the_keys_that_they_would_have_as_records(texts: list[bytes]):
    """However odd their properties are."""
    items = encode_items([(0, b"x", text) for text in texts])

    assert inner_keys(INNER_BATCH, b"", items) == [key for text in texts for key in index_keys(text)]
