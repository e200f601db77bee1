"""The key index files: upstream's bytes, capacity, guessing of slots, damage."""

from __future__ import annotations

from random import Random

import msgspec
import pytest
from tests.support.stores import SMALL, overwrite

from holdfast.sim.disk import SimDisk
from holdfast.store.disk import Disk
from holdfast.store.key_index import HEADER, ITEM, KeyIndex

TIME = 1_700_000_000_000
FOREVER = (0, 1 << 62)


def an_index(disk: Disk, *, slots: int = 10, items: int = 20, is_clean: bool = True) -> KeyIndex:
    return KeyIndex(disk, msgspec.structs.replace(SMALL, index_slots=slots, index_items=items), is_clean=is_clean)


def test_a_file_has_upstreams_layout():
    """Header, slots with the newest item, items with the one before; item 0 is never used."""
    disk = SimDisk()
    index = an_index(disk)

    index.add([(13, 500, TIME), (7, 600, TIME + 1999), (23, 700, TIME + 2000)])

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

    index.add([(number, number, TIME) for number in range(399)])
    assert len(disk.list("index")) == 1
    index.add([(60, 1000, TIME)])

    assert disk.list("index") == ["20231114221320000", "20231114221320001"]
    assert list(index.find(60, *FOREVER)) == [1000, 60]


def test_hits_are_newest_first_and_within_the_time():
    """To the second: the caller looks closer."""
    index = an_index(SimDisk())
    index.add([(3, 100, TIME), (13, 150, TIME), (3, 200, TIME + 10_000), (3, 300, TIME + 20_000)])

    assert list(index.find(3, *FOREVER)) == [300, 200, 100]
    assert list(index.find(13, *FOREVER)) == [150]
    assert list(index.find(3, TIME + 10_000, TIME + 10_000)) == [200]
    assert list(index.find(3, TIME + 30_000, TIME + 40_000)) == []
    assert list(index.find(4, *FOREVER)) == []


@pytest.mark.parametrize(("slots", "items"), [(10, 40), (1000, 2000), (7, 28)])
def test_the_number_of_slots_is_guessed_from_what_is_in_the_file(slots: int, items: int):
    """When it is not that of the options, upstream's proportions are tried."""
    disk = SimDisk()
    random = Random(1)
    keys = [(random.getrandbits(31), number, TIME) for number in range(items - 1)]
    an_index(disk, slots=slots, items=items).add(keys)

    index = an_index(disk, slots=5, items=50)

    for key_hash, position, _ in keys:
        assert position in index.find(key_hash, *FOREVER)


def test_a_file_that_fits_no_guess_is_left_alone():
    """Neither searched nor removed, and new keys go to a file of their own."""
    disk = SimDisk()
    random = Random(1)
    an_index(disk, slots=13, items=33).add([(random.getrandbits(31), number, TIME) for number in range(30)])

    index = an_index(disk)
    index.add([(1, 1, TIME)])

    assert list(index.find(1, *FOREVER)) == [1]
    assert len(disk.list("index")) == 2


def test_after_a_crash_the_last_file_is_made_again():
    """Any page of it may be gone; those before it are whole."""
    disk = SimDisk()
    index = an_index(disk)
    index.add([(number, number, TIME) for number in range(25)])

    again = an_index(disk, is_clean=False)

    assert len(disk.list("index")) == 1
    assert again.end_position == 18


def test_files_that_know_only_removed_records_go():
    """But never the last."""
    disk = SimDisk()
    index = an_index(disk)
    index.add([(number, number * 10, TIME) for number in range(60)])
    names = disk.list("index")
    assert len(names) == 4

    assert index.clean(380) == [f"index/{names[0]}", f"index/{names[1]}"]
    assert index.clean(1 << 60) == [f"index/{names[2]}"]
    assert disk.list("index") == names[3:]


def test_times_that_no_calendar_has_do_not_matter():
    """Damaged records have any time at all."""
    disk = SimDisk()
    index = an_index(disk, items=3)

    index.add([(1, 1, -(1 << 62)), (1, 2, 0), (1, 3, 1 << 62), (1, 4, TIME), (1, 5, TIME)])

    assert max(index.find(1, -(1 << 62), 1 << 62)) == 5


@pytest.mark.parametrize("seed", range(40))
def test_any_damage_is_survived(seed: int):
    """Chains lead backwards only, so a query ends; new keys can still be added."""
    random = Random(seed)
    disk = SimDisk()
    an_index(disk).add([(random.randrange(12), number, TIME) for number in range(30)])
    for name in disk.list("index"):
        for _ in range(random.randint(1, 30)):
            overwrite(disk, f"index/{name}", random.randrange(480), random.randbytes(1))

    index = an_index(disk)

    for key_hash in range(12):
        assert len(list(index.find(key_hash, -(1 << 63), 1 << 63))) < 100
    index.add([(5, 999, TIME)] * 30)
