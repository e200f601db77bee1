"""Records looked up by their position."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.model.errors import CorruptRecord
from holdfast.store.base.cold_reads import LogRange, Steps
from holdfast.store.log.record_reader import decode_at, read_bytes, read_record
from holdfast.wire.frames.host import pack_host
from holdfast.wire.records.record import StoredRecord, decode_record, encode_record

HOST = pack_host("127.0.0.1:1")
RECORD = StoredRecord(
    0, 40, "T", 2, 7, 3, 1, 111, HOST, 222, HOST, 1, 0, 0, b"body", b"TAGS\x01a\x02KEYS\x01k\x02"
)  # fmt: skip
BYTES = encode_record(RECORD)
LOG = b"\0" * 40 + BYTES + b"\1" * 100


def run(steps: Steps[Any], log: bytes = LOG) -> Any:
    """Give *steps* the bytes they ask for."""
    data: bytes | None = None
    try:
        while True:
            wanted = steps.send(data)
            assert isinstance(wanted, LogRange)
            assert wanted.is_guess, "a stranger's position is no proof of damage"
            data = log[wanted.position : wanted.position + wanted.size]
    except StopIteration as stop:
        return stop.value


def test_a_record_is_read_knowing_its_position_only() -> None:
    """First its head, which tells the size, then the whole."""
    assert run(read_bytes(40)) == BYTES
    assert run(read_record(40)) == decode_record(BYTES)


@pytest.mark.parametrize("position", [-1, 0, 39, 41, 200, 10**15])
def test_where_no_record_begins_none_is_read(position: int) -> None:
    """Whatever a stranger sends as a position."""
    assert run(read_bytes(position)) == b""
    assert run(read_record(position)) is None


def test_a_record_that_belongs_elsewhere_is_none() -> None:
    """A body can hold the bytes of a record: only one that names its own position counts."""
    assert run(read_record(0), BYTES + b"\0" * 100) is None
    assert decode_at(BYTES, 41) is None


def test_a_size_that_lies_is_not_followed() -> None:
    """A head that claims gigabytes makes us ask for nothing."""
    lie = (2**31 - 1).to_bytes(4, "big") + BYTES[4:]

    assert run(read_bytes(0), lie) == b""


def test_a_damaged_record_is_told_from_none_at_all() -> None:
    """Whoever asked learns of it."""
    steps = read_record(40)
    steps.send(None)
    steps.send(BYTES[:91])

    with pytest.raises(CorruptRecord):
        steps.throw(CorruptRecord(40, "flipped"))
