"""Finding the next record behind damage, and covering the damage."""

from __future__ import annotations

import pytest
from tests.unit.store.log.test_log_scanner import SIZE, a_log, a_record

from holdfast.store.base.log_file import LogFiles
from holdfast.store.log.log_scanner import LogWalk, StopReason
from holdfast.store.recovery import log_repair
from holdfast.store.recovery.log_repair import cover_damage, find_next_record
from holdfast.wire.records.record import TRANSACTION_ROLLBACK


@pytest.mark.parametrize("place", [300, 1000, 3500])
@pytest.mark.parametrize("noise", [b"\0", b"\xff", b"\xda\xa3\x20\xa7"])
def test_the_next_record_is_found_behind_anything(place: int, noise: bytes):
    """Zeros, garbage, even the magic of records: only a whole record that lies where it says counts."""
    content = (noise * SIZE)[:place] + a_record(place)

    assert find_next_record(a_log(content), 100) == place


def test_a_magic_across_two_chunks_is_found(monkeypatch: pytest.MonkeyPatch):
    """Wherever the chunks are cut."""
    monkeypatch.setattr(log_repair, "_CHUNK", 64)
    for place in range(100, 170):
        assert find_next_record(a_log(bytes(place) + a_record(place)), 50) == place


def test_the_next_file_is_looked_at_too():
    """When the rest of a file is lost."""
    assert find_next_record(a_log(b"\xff" * SIZE, a_record(SIZE)), 10) == SIZE


def test_a_record_of_another_place_does_not_count():
    """A copy inside a body is no record of the log."""
    assert find_next_record(a_log(bytes(500) + a_record(0)), 10) is None


def test_the_search_ends_behind_many_zeros(monkeypatch: pytest.MonkeyPatch):
    """A start must not read a whole empty file."""
    monkeypatch.setattr(log_repair, "_CHUNK", 64)
    monkeypatch.setattr(log_repair, "_ZEROS_MAX", 640)

    assert find_next_record(a_log(bytes(2000) + a_record(2000)), 0) is None
    assert find_next_record(a_log(bytes(500) + a_record(500)), 0) == 500


def positions(files: LogFiles) -> tuple[list[int], StopReason]:
    walk = LogWalk(files, 0)
    return [record.position for record in walk], walk.stop


@pytest.mark.parametrize("hole", [92, 93, 500])
def test_a_hole_is_covered_by_a_record_that_no_index_takes(hole: int):
    """Its body keeps what was there."""
    first = a_record(0)
    place = len(first) + hole
    files = a_log(first + b"\xee" * hole + a_record(place))

    cover_damage(files, len(first), place, store_ms=5)

    assert positions(files) == ([0, len(first), place], StopReason.EMPTY)
    filler = list(LogWalk(files, 0))[1]
    assert (filler.sys_flag, filler.store_ms) == (TRANSACTION_ROLLBACK, 5)
    assert files.files[0].read(len(first) + 88, place - 4) == b"\xee" * (hole - 92)


def test_a_lost_end_of_a_file_becomes_a_blank():
    """Then the walk goes on in the next one."""
    first = a_record(0)
    files = a_log(first, a_record(SIZE))

    cover_damage(files, len(first), SIZE, store_ms=5)

    assert positions(files) == ([0, SIZE], StopReason.EMPTY)


@pytest.mark.parametrize("behind", [92, 500])
def test_a_hole_across_files_is_covered_in_each(behind: int):
    """Whole files in between, too: otherwise the rest of the last one would be lost to every later walk."""
    first = a_record(0)
    place = 2 * SIZE + behind
    files = a_log(first, b"\xee" * 100, b"\xee" * behind + a_record(place))

    cover_damage(files, len(first), place, store_ms=5)

    assert positions(files) == ([0, 2 * SIZE, place], StopReason.EMPTY)


def test_a_record_with_no_room_for_a_filler_before_it_does_not_count():
    """It could never be walked to; the next one can."""
    near = a_record(SIZE + 91)
    files = a_log(b"\xff" * SIZE, b"\xff" * 91 + near + a_record(SIZE + 91 + len(near)))

    assert find_next_record(files, 10) == SIZE + 91 + len(near)
