"""The key index files: upstream's bytes, capacity, guessing of slots, damage."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from random import Random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.accelerated import for_each_kind
from tests.support.stores import SMALL, overwrite

from holdfast.sim.world.disk import SimDisk
from holdfast.store.base.cold_reads import FileRange
from holdfast.store.base.disk import Disk
from holdfast.store.keys import key_index
from holdfast.store.keys.key_index import HEADER, KeyIndex
from holdfast.store.keys.key_links import ITEM, IndexKey, pack_numbers

TIME = 1_700_000_000_000
FOREVER = (0, 1 << 62)

kind = for_each_kind((key_index, "link_keys"))


def an_index(disk: Disk, *, slots: int = 10, items: int = 20, is_clean: bool = True) -> KeyIndex:
    return KeyIndex(disk, msgspec.structs.replace(SMALL, index_slots=slots, index_items=items), is_clean=is_clean)


def hits(index: KeyIndex, key_hash: int, begin_ms: int, end_ms: int) -> list[int]:
    """Return everything that a search finds, all bytes that it asks for given to it."""
    search = index.search(key_hash, begin_ms, end_ms)
    found: list[int] = []
    while True:
        steps = search.next()
        try:
            wanted = steps.send(None)
            while True:
                assert isinstance(wanted, FileRange)
                wanted = steps.send(wanted.file.read(wanted.start, wanted.end))
        except StopIteration as stop:
            if stop.value is None:
                return found
            found.append(stop.value)


def add(index: KeyIndex, keys: Sequence[IndexKey]) -> None:
    index.add(pack_numbers([number for key in keys for number in key]))


def write_heads(index: KeyIndex) -> None:
    for _ in index.write_heads():
        pass


def test_a_file_has_upstreams_layout():
    """Header, slots with the newest item, items with the one before; item 0 is never used."""
    disk = SimDisk()
    index = an_index(disk)

    add(index, [(13, 500, TIME), (7, 600, TIME + 1999), (23, 700, TIME + 2000)])
    write_heads(index)

    (name,) = disk.list("index")
    file = disk.open(f"index/{name}")
    assert name == "20231114221320000"
    assert file.size == 40 + 10 * 4 + 20 * 20
    assert HEADER.unpack(file.read(0, 40)) == (TIME, TIME + 2000, 500, 700, 2, 4)
    assert [int.from_bytes(file.read(at, at + 4), "big") for at in range(40, 80, 4)] == [0, 0, 0, 3, 0, 0, 0, 2, 0, 0]
    items = [ITEM.unpack(file.read(80 + at * 20, 100 + at * 20)) for at in range(4)]
    assert items == [(0, 0, 0, 0), (13, 500, 0, 0), (7, 600, 1, 0), (23, 700, 2, 1)]


def test_four_hundred_items_hold_three_hundred_and_ninety_nine_keys():
    """The next key goes to a new file, named so that it sorts behind."""
    disk = SimDisk()
    index = an_index(disk, slots=100, items=400)

    add(index, [(number, number, TIME) for number in range(399)])
    assert len(disk.list("index")) == 1
    add(index, [(60, 1000, TIME)])

    assert disk.list("index") == ["20231114221320000", "20231114221320001"]
    assert hits(index, 60, *FOREVER) == [1000, 60]


def test_hits_are_newest_first_and_within_the_time():
    """To the second: the caller looks closer."""
    index = an_index(SimDisk())
    add(index, [(3, 100, TIME), (13, 150, TIME), (3, 200, TIME + 10_000), (3, 300, TIME + 20_000)])

    assert hits(index, 3, *FOREVER) == [300, 200, 100]
    assert hits(index, 13, *FOREVER) == [150]
    assert hits(index, 3, TIME + 10_000, TIME + 10_000) == [200]
    assert hits(index, 3, TIME + 30_000, TIME + 40_000) == []
    assert hits(index, 4, *FOREVER) == []


@pytest.mark.parametrize(("slots", "items"), [(10, 40), (1000, 2000), (7, 28)])
def test_the_number_of_slots_is_guessed_from_what_is_in_the_file(slots: int, items: int):
    """When it is not that of the options, upstream's proportions are tried."""
    disk = SimDisk()
    random = Random(1)
    keys = [(random.getrandbits(31), number, TIME) for number in range(items - 1)]
    written = an_index(disk, slots=slots, items=items)
    add(written, keys)
    write_heads(written)

    index = an_index(disk, slots=5, items=50)

    for key_hash, position, _ in keys:
        assert position in hits(index, key_hash, *FOREVER)


def test_a_file_that_fits_no_guess_is_left_alone():
    """Neither searched nor removed, and new keys go to a file of their own."""
    disk = SimDisk()
    random = Random(1)
    strange = an_index(disk, slots=13, items=33)
    add(strange, [(random.getrandbits(31), number, TIME) for number in range(30)])
    write_heads(strange)

    index = an_index(disk)
    add(index, [(1, 1, TIME)])

    assert hits(index, 1, *FOREVER) == [1]
    assert len(disk.list("index")) == 2


def test_after_a_crash_the_last_file_is_made_again():
    """Any page of it may be gone; those before it are whole."""
    disk = SimDisk()
    index = an_index(disk)
    add(index, [(number, number, TIME) for number in range(25)])

    again = an_index(disk, is_clean=False)

    assert len(disk.list("index")) == 1
    assert again.end_position == 18


@pytest.mark.parametrize(
    ("synced", "kept"), [(None, 3), (600, 3), (590, 3), (571, 3), (570, 2), (381, 2), (200, 1), (0, 0)]
)
def test_after_a_crash_every_file_that_was_not_synced_is_made_again(synced: int | None, kept: int):
    """A file was whole when the mark was set only if the next one had begun by then."""
    disk = SimDisk()
    index = an_index(disk)
    add(index, [(number, number * 10, TIME) for number in range(60)])
    names = disk.list("index")
    assert [index_file.begin_position for index_file in index.files] == [0, 190, 380, 570]

    KeyIndex(disk, msgspec.structs.replace(SMALL, index_slots=10, index_items=20), is_clean=False, synced=synced)

    assert disk.list("index") == names[:kept]


def test_files_that_know_only_removed_records_go():
    """But never the last."""
    disk = SimDisk()
    index = an_index(disk)
    add(index, [(number, number * 10, TIME) for number in range(60)])
    names = disk.list("index")
    assert len(names) == 4

    assert index.clean(380) == [f"index/{names[0]}", f"index/{names[1]}"]
    assert index.clean(1 << 60) == [f"index/{names[2]}"]
    assert disk.list("index") == names[3:]


def test_times_that_no_calendar_has_do_not_matter():
    """Damaged records have any time at all."""
    disk = SimDisk()
    index = an_index(disk, items=3)

    add(index, [(1, 1, -(1 << 62)), (1, 2, 0), (1, 3, 1 << 62), (1, 4, TIME), (1, 5, TIME)])

    assert max(hits(index, 1, -(1 << 62), 1 << 62)) == 5


@pytest.mark.parametrize("seed", range(40))
def test_any_damage_is_survived(seed: int):
    """Chains lead backwards only, so a query ends; new keys can still be added."""
    random = Random(seed)
    disk = SimDisk()
    written = an_index(disk)
    add(written, [(random.randrange(12), number, TIME) for number in range(30)])
    write_heads(written)
    for name in disk.list("index"):
        for _ in range(random.randint(1, 30)):
            overwrite(disk, f"index/{name}", random.randrange(480), random.randbytes(1))

    index = an_index(disk)

    for key_hash in range(12):
        assert len(hits(index, key_hash, -(1 << 63), 1 << 63)) < 100
    add(index, [(5, 999, TIME)] * 30)


def plain_file(slots: int, items: int, keys: Sequence[IndexKey]) -> bytes:
    """Return a file as upstream writes it: slot, item and header for each key, one after the other."""
    file = bytearray(40 + 4 * slots + 20 * items)
    used = 0
    for number, (key_hash, position, store_ms) in enumerate(keys, 1):
        at = 40 + 4 * (key_hash % slots)
        previous = int.from_bytes(file[at : at + 4], "big")
        used += previous == 0
        seconds = (store_ms - keys[0][2]) // 1000
        item_at = 40 + 4 * slots + 20 * number
        file[item_at : item_at + 20] = ITEM.pack(key_hash, position, seconds, previous)
        file[at : at + 4] = number.to_bytes(4, "big")
        file[:40] = HEADER.pack(keys[0][2], store_ms, keys[0][1], position, used, number + 1)
    return bytes(file)


@given(
    hashes=st.lists(st.integers(0, 60), min_size=1, max_size=150),
    parts=st.lists(st.integers(1, 40), min_size=1),
    slots=st.integers(1, 40),
    block=st.integers(1, 16),
    region=st.integers(1, 4),
    region_keys=st.integers(1, 30),
    scattered=st.integers(0, 5),
    asked=st.sets(st.integers(0, 30)),
    reopened=st.sets(st.integers(0, 30)),
)
@settings(deadline=None, max_examples=150)
def test_whatever_is_written_when_the_file_is_the_same(  # noqa: PLR0917 - examples
    hashes: list[int],
    parts: list[int],
    slots: int,
    block: int,
    region: int,
    region_keys: int,
    scattered: int,
    asked: set[int],
    reopened: set[int],
):
    """Keys come in parts, slots are written in regions, by several processes; searches in between see every key."""
    disk = SimDisk()
    keys = [(key_hash, 100 + number * 7, TIME + number * 300) for number, key_hash in enumerate(hashes)]
    sizes = {
        "BLOCK_SLOTS": block, "REGION_BLOCKS": region, "REGION_KEYS": region_keys, "_SCATTERED_MAX": scattered
    }  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        for name, value in sizes.items():
            patch.setattr(key_index, name, value)
        index = an_index(disk, slots=slots, items=200)
        start = 0
        for turn, part in enumerate(itertools.cycle(parts)):
            add(index, keys[start : start + part])
            start += part
            if turn in asked:
                wanted = hashes[min(start, len(hashes)) - 1]
                known = [position for key_hash, position, _ in keys[:start] if key_hash == wanted]
                assert hits(index, wanted, *FOREVER) == known[::-1]
            if start >= len(keys):
                break
            if turn in reopened:
                write_heads(index)
                index = an_index(disk, slots=slots, items=200)
        write_heads(index)

    (name,) = disk.list("index")
    assert disk.read_file(f"index/{name}") == plain_file(slots, 200, keys)


def test_many_keys_cost_few_writes():
    """Slots are anywhere in the table; written one by one each key would cost a write."""
    calls: list[str] = []
    disk = SimDisk(before=lambda call, path: calls.append(call))
    index = an_index(disk, slots=200_000, items=8000)
    random = Random(2)
    keys = [(random.getrandbits(31), number, TIME) for number in range(7000)]

    for start in range(0, len(keys), 256):
        add(index, keys[start : start + 256])

    assert calls.count("write") < len(keys) * 0.02


def test_what_is_only_in_memory_is_bounded(monkeypatch: pytest.MonkeyPatch):
    """However long it takes until somebody asks for the rest to be written."""
    monkeypatch.setattr(key_index, "BLOCK_SLOTS", 1)
    monkeypatch.setattr(key_index, "REGION_BLOCKS", 1 << 16)
    index = an_index(SimDisk(), slots=200_000, items=40_000)
    random = Random(3)

    for _ in range(150):
        add(index, [(random.getrandbits(31), 1, TIME) for _ in range(256)])
        index.write_due()

    regions = -(-200_000 // key_index.REGION_BLOCKS)
    assert sum(index.files[-1]._dirty) < (regions + 1) * key_index.REGION_KEYS


def test_a_full_file_is_left_whole():
    """Nothing of it stays in memory when the next one begins."""
    disk = SimDisk()
    index = an_index(disk)
    keys = [(number % 7, number, TIME) for number in range(25)]

    add(index, keys)

    assert disk.read_file(f"index/{disk.list('index')[0]}") == plain_file(10, 20, keys[:19])


def test_old_items_are_asked_for():
    """They may not be in memory; those that this process wrote are read at once."""
    disk = SimDisk()
    old = an_index(disk)
    add(old, [(3, 100, TIME)])
    write_heads(old)
    index = an_index(disk)
    add(index, [(3, 200, TIME)])
    search = index.search(3, *FOREVER)

    with pytest.raises(StopIteration) as newest:
        search.next().send(None)
    wanted = search.next().send(None)

    assert newest.value.value == 200
    assert isinstance(wanted, FileRange)
    assert (wanted.start, wanted.end) == (40 + 4 * 10 + 20, 40 + 4 * 10 + 40)


def test_a_file_whose_slots_do_not_know_its_first_key_is_left_alone():
    """The slot of the first item points nowhere: another number of slots was meant, or the slots are lost."""
    disk = SimDisk()
    written = an_index(disk)
    add(written, [(3, 100, TIME), (4, 200, TIME)])
    write_heads(written)
    name = f"index/{disk.list('index')[0]}"
    assert hits(an_index(disk), 4, *FOREVER) == [200]

    overwrite(disk, name, HEADER.size + 4 * 3, bytes(4))

    assert hits(an_index(disk), 4, *FOREVER) == []
