from __future__ import annotations

import pytest
from tests.support.conversions import fill_store, plain_disk
from tests.support.stores import HOST, INNER_BATCH, NOW_MS, SMALL, open_store

from holdfast.model.errors import StoreError
from holdfast.sim.world.disk import SimDisk
from holdfast.store.base.log_file import LogFiles
from holdfast.store.conversion.entry_conversion import (
    blanks_before,
    check_message_entries,
    check_record_entries,
    read_message_entries,
    read_record_entries,
    require_narrow_gaps,
    to_message_entries,
    to_record_entries,
)
from holdfast.store.conversion.record_headers import Owner, RecordHeaders
from holdfast.store.queues.batch_consume_queue import RECORD_ENTRY, RECORD_ENTRY_SIZE, RecordIndex
from holdfast.store.queues.queue_index import BLANK_ENTRY_SIZE, ENTRY

OWNER = Owner("orders", 0)
BLANK = ENTRY.pack(77, BLANK_ENTRY_SIZE, 0)


def heads_of(disk: SimDisk) -> RecordHeaders:
    return RecordHeaders(LogFiles.load(disk, "commitlog", SMALL.log_file_size))


@pytest.fixture(scope="module")
def disk() -> SimDisk:
    disk = plain_disk()
    fill_store(disk, 20, queues=1)
    return disk


@pytest.fixture(scope="module")
def heads(disk: SimDisk) -> RecordHeaders:
    return heads_of(disk)


@pytest.fixture(scope="module")
def entries(disk: SimDisk) -> bytes:
    return b"".join(disk.read_file(f"consumequeue/orders/0/{at:020d}") or b"" for at in range(0, 400, 100))


def test_an_entry_becomes_one_of_a_single_message(entries: bytes, heads: RecordHeaders):
    """Position, size and tags stay; the time is the record's, the offset the number of the entry."""
    units = to_record_entries(entries[60:200], 3, heads)

    assert list(RECORD_ENTRY.iter_unpack(units)) == [
        (*ENTRY.unpack_from(entries, offset * 20), NOW_MS + offset * 3, offset, 1, -1, 0) for offset in range(3, 10)
    ]
    check_record_entries(units, entries[60:200], 3, OWNER, heads)
    assert to_message_entries(units, 3) == entries[60:200]
    check_message_entries(entries[60:200], units, 3, OWNER, heads)


def test_blank_entries_become_gaps_and_gaps_blanks(entries: bytes, heads: RecordHeaders):
    """A blank has the place of the next message."""
    blank = ENTRY.pack(ENTRY.unpack_from(entries, 80)[0], BLANK_ENTRY_SIZE, 0)
    holed = entries[:40] + blank * 2 + entries[80:120]

    units = to_record_entries(holed, 0, heads)

    assert [unit[4] for unit in RECORD_ENTRY.iter_unpack(units)] == [0, 1, 4, 5]
    assert to_message_entries(units, 0) == holed
    check_record_entries(units, holed, 0, OWNER, heads)
    check_message_entries(holed, units, 0, OWNER, heads)
    with pytest.raises(StoreError, match="has not the blank entries"):
        check_message_entries(holed.replace(blank, BLANK, 1), units, 0, OWNER, heads)


def test_a_piece_begins_with_the_gap_before_it(entries: bytes, heads: RecordHeaders):
    """So that pieces, one behind the other, are the whole."""
    units = to_record_entries(entries[80:120], 4, heads)
    blank = ENTRY.pack(ENTRY.unpack_from(entries, 80)[0], BLANK_ENTRY_SIZE, 0)

    assert to_message_entries(units, 2) == blank * 2 + entries[80:120]


def test_only_blanks_become_nothing(heads: RecordHeaders):
    """A piece may hold no message."""
    assert to_record_entries(BLANK * 3, 5, heads) == b""
    check_record_entries(b"", BLANK * 3, 5, OWNER, heads)


def test_a_record_that_is_gone_has_no_time(heads: RecordHeaders):
    """And the log is not asked."""
    entry = ENTRY.pack(1 << 40, 100, 5)

    units = to_record_entries(entry, 9, heads, is_gone=True)

    assert units == RecordIndex.pack_entry(1 << 40, 100, 5, 0, 9, 1)
    check_record_entries(units, entry, 9, OWNER, heads, is_gone=True)
    check_message_entries(entry, units, 9, OWNER, heads, is_gone=True)


@pytest.mark.parametrize("at", range(RECORD_ENTRY_SIZE))
def test_no_wrong_byte_passes(entries: bytes, heads: RecordHeaders, at: int):
    """Whichever of an entry by record it is."""
    units = to_record_entries(entries[:200], 0, heads)
    units[5 * RECORD_ENTRY_SIZE + at] ^= 1

    with pytest.raises(StoreError, match=r"orders|holds|rise"):
        check_record_entries(units, entries[:200], 0, OWNER, heads)


@pytest.mark.parametrize("at", range(20))
def test_no_wrong_byte_passes_on_the_way_back(entries: bytes, heads: RecordHeaders, at: int):
    """Whichever of an entry by message it is."""
    units = to_record_entries(entries[:200], 0, heads)
    made = to_message_entries(units, 0)
    made[5 * 20 + at] ^= 1

    with pytest.raises(StoreError, match="orders"):
        check_message_entries(made, units, 0, OWNER, heads)


def test_no_entry_may_be_missing(entries: bytes, heads: RecordHeaders):
    """On either way."""
    units = to_record_entries(entries[:200], 0, heads)

    with pytest.raises(StoreError, match="had 10 messages here, but would now have 9"):
        check_record_entries(units[:-RECORD_ENTRY_SIZE], entries[:200], 0, OWNER, heads)
    with pytest.raises(StoreError, match="had 10 messages here, but would now have 9"):
        check_message_entries(entries[:180], units, 0, OWNER, heads)
    with pytest.raises(StoreError, match="has not the blank entries"):
        check_message_entries(entries[:200] + BLANK, units, 0, OWNER, heads)


def test_a_wrong_source_is_found_by_the_log(entries: bytes, heads: RecordHeaders):
    """The conversion believes it; the proof does not."""
    swapped = entries[:40] + entries[60:80] + entries[40:60]

    with pytest.raises(StoreError, match="has message 2 at position"):
        check_record_entries(to_record_entries(swapped[:60], 0, heads), swapped[:60], 0, OWNER, heads)


def test_counts_and_order_are_looked_at():
    """What an index by message cannot say is refused by name."""
    units = [RecordIndex.pack_entry(1, 1, 1, 1, offset, 1) for offset in range(4)]

    with pytest.raises(StoreError, match="the record of offset 2 holds 3 messages"):
        read_record_entries(b"".join([*units[:2], RecordIndex.pack_entry(1, 1, 1, 1, 2, 3)]))
    with pytest.raises(StoreError, match="do not rise"):
        read_record_entries(b"".join([units[1], units[0]]))
    assert list(read_record_entries(b"".join(units)).offsets) == [0, 1, 2, 3]
    assert list(read_message_entries(BLANK + ENTRY.pack(1, 2, 3), 5).offsets) == [6]


def test_a_gap_may_be_too_wide():
    """Recovery would not fill it either."""
    require_narrow_gaps([5, 6, 300_006], 5)

    with pytest.raises(StoreError, match="no message has the 300001 offsets before 300008"):
        require_narrow_gaps([6, 300_008], 6)
    with pytest.raises(StoreError, match="before 900000"):
        require_narrow_gaps([900_000], 5)


def test_a_record_that_says_to_be_a_batch_has_no_entry_of_one_message():
    """Its index, made again from the log, would be another one."""
    disk = plain_disk()
    store = open_store(disk)
    properties = b"INNER_NUM\x015\x02"
    store.stage(store.queue("orders", 0), b"items", properties, 0, INNER_BATCH, NOW_MS, HOST, 0, NOW_MS)
    store.write()
    store.confirm(store.written)
    store.close(NOW_MS)
    heads, entry = heads_of(disk), (disk.read_file(f"consumequeue/orders/0/{0:020d}") or b"")[:20]

    with pytest.raises(StoreError, match="says that it is a batch of many messages"):
        check_record_entries(to_record_entries(entry, 0, heads), entry, 0, OWNER, heads)


def test_a_first_file_is_filled_up_to_the_first_offset():
    """With blanks that are nobody's."""
    assert blanks_before(7, 100) == ENTRY.pack(0, BLANK_ENTRY_SIZE, 0) * 2
    assert blanks_before(10, 100) == b""


def test_an_address_in_the_place_of_a_tag_is_refused(entries: bytes, heads: RecordHeaders):
    """What lies there would be lost with the old index."""
    address = (-(1 << 31) - 1).to_bytes(8, "big", signed=True)
    referring = entries[:32] + address + entries[40:60]

    with pytest.raises(
        StoreError, match="the entry of message 1 of queue 0 of topic orders refers to consumequeue_ext"
    ):
        check_record_entries(to_record_entries(referring, 0, heads), referring, 0, OWNER, heads)
