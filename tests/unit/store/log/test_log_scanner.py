"""Walking the log, and every way to be stopped."""

from __future__ import annotations

import msgspec
import pytest

from holdfast.sim.world.disk import SimDisk
from holdfast.store.base.log_file import LogFiles, file_name
from holdfast.store.log import log_scanner
from holdfast.store.log.log_scanner import LogWalk, StopReason, WalkedRecord, validate_record_at
from holdfast.wire.frames.host import pack_host
from holdfast.wire.records.record import BLANK, MAGIC_BLANK, StoredRecord, encode_record

SIZE = 4096
V4, V6 = pack_host("1.2.3.4:5"), pack_host("[::1]:5")


def a_record(position: int, **changes: object) -> bytes:
    record = StoredRecord(
        0, position, "t", 1, 2, 3, 0, 4, V4, 5, V4, 6, 7, 0, b"body" * 10, b"TAGS\x01a\x02"
    )  # fmt: skip
    return encode_record(msgspec.structs.replace(record, **changes))


def a_log(*contents: bytes) -> LogFiles:
    disk = SimDisk()
    for number, content in enumerate(contents):
        file = disk.create(f"log/{file_name(number * SIZE)}", SIZE)
        file.write(0, [content])
    return LogFiles.load(disk, "log", SIZE)


def walk_all(files: LogFiles, start: int = 0, **options: object) -> tuple[list[WalkedRecord], LogWalk]:
    walk = LogWalk(files, start, **options)  # type: ignore[arg-type]
    return list(walk), walk


def test_a_walk_goes_through_all_files():
    """A blank leads to the next one; the end of what was written is the end."""
    first = a_record(0)
    files = a_log(first + BLANK.pack(SIZE - len(first), MAGIC_BLANK), a_record(SIZE, born_host=V6, topic="u" * 200))

    records, walk = walk_all(files)

    assert [(record.position, record.topic) for record in records] == [(0, b"t"), (SIZE, b"u" * 200)]
    assert records[0] == WalkedRecord(0, len(first), 1, 2, 0, 5, b"t", b"TAGS\x01a\x02")
    assert walk.position == SIZE + records[1].size
    assert walk.stop is StopReason.EMPTY


def test_a_walk_may_end_before_the_log_does():
    """Exactly there."""
    one = a_record(0)
    files = a_log(one + a_record(len(one)))

    records, walk = walk_all(files, end=len(one))

    assert (len(records), walk.position, walk.stop) == (1, len(one), StopReason.END)


def test_records_larger_than_a_window_are_walked(monkeypatch: pytest.MonkeyPatch):
    """The window grows for them, and shrinks again."""
    monkeypatch.setattr(log_scanner, "WINDOW_SIZE", 64)
    content = b""
    for body in (b"a", b"b" * 1000, b"c"):
        content += a_record(len(content), body=body)

    records, walk = walk_all(a_log(content))

    assert len(records) == 3
    assert walk.stop is StopReason.EMPTY


@pytest.mark.parametrize(
    ("at", "data", "stop"),
    [
        (0, bytes(8), StopReason.EMPTY),
        (4, b"\0", StopReason.BROKEN),
        (0, b"\x7f", StopReason.BROKEN),
        (0, bytes(4), StopReason.BROKEN),
        (3, b"\xff", StopReason.BROKEN),
        (35, b"\1", StopReason.BROKEN),
        (12, b"\xff", StopReason.BROKEN),
        (20, b"\xff", StopReason.BROKEN),
        (39, b"\x10", StopReason.BROKEN),
        (84, b"\xff", StopReason.BROKEN),
        (87, b"\x29", StopReason.BROKEN),
        (88 + 40, b"\xff", StopReason.BROKEN),
        (88, b"x", StopReason.DAMAGED),
        (8, b"\x01", StopReason.DAMAGED),
    ],
)
def test_a_walk_stops_at_what_is_no_record(at: int, data: bytes, stop: StopReason):
    """Wrong magic, size, position, queue, offset, host bits, lengths, checksum."""
    raw = bytearray(a_record(0))
    raw[at : at + len(data)] = data

    records, walk = walk_all(a_log(bytes(raw)))

    assert (records, walk.position, walk.stop) == ([], 0, stop)


def test_a_record_must_leave_room_for_a_blank():
    """Its end would otherwise be a place where nothing could ever be written."""
    fitting = SIZE - 8 - len(a_record(0, body=b""))

    assert len(walk_all(a_log(a_record(0, body=b"x" * fitting)))[0]) == 1
    assert walk_all(a_log(a_record(0, body=b"x" * (fitting + 1))))[0] == []


def test_checksums_need_not_be_checked():
    """Where they have been already."""
    raw = bytearray(a_record(0))
    raw[88] ^= 1

    assert len(walk_all(a_log(bytes(raw)), check_body=False)[0]) == 1


@pytest.mark.parametrize("position", [-1, SIZE, SIZE - 4])
def test_there_is_no_record_outside_the_log(position: int):
    """Nor in the last bytes of a file."""
    assert isinstance(validate_record_at(a_log(a_record(0)), position), StopReason)
