from collections.abc import Generator
from typing import Any

import pytest

from holdfast.broker.records import decode_at, properties_of, read_bytes, read_record, read_scheduled, to_draft
from holdfast.broker.request import LogRange
from holdfast.model.errors import CorruptRecord
from holdfast.wire.host import pack_host
from holdfast.wire.record import StoredRecord, decode_record, encode_record

HOST = pack_host("127.0.0.1:1")
RECORD = StoredRecord(
    0, 40, "T", 2, 7, 3, 1, 111, HOST, 222, HOST, 1, 0, 0, b"body", b"TAGS\x01a\x02KEYS\x01k\x02"
)  # fmt: skip
BYTES = encode_record(RECORD)
LOG = b"\0" * 40 + BYTES + b"\1" * 100


def run(steps: Generator[LogRange, bytes, Any], log: bytes = LOG) -> Any:
    """Give *steps* the bytes they ask for."""
    data: bytes | None = None
    try:
        while True:
            wanted = next(steps) if data is None else steps.send(data)
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


def test_work_that_nobody_waits_for_passes_over_a_damaged_record() -> None:
    """It gets an error where a handler would, and goes on."""
    steps = read_scheduled(40, len(BYTES))
    next(steps)

    with pytest.raises(StopIteration) as stop:
        steps.throw(CorruptRecord(40, "flipped"))
    assert stop.value.value is None


def test_a_record_becomes_a_message_for_another_place() -> None:
    """With everything that makes it the same message."""
    record = decode_record(BYTES)

    draft = to_draft(record, properties_of(record), topic="U", queue_id=5)

    assert (draft.topic, draft.queue_id) == ("U", 5)
    assert (draft.body, draft.properties) == (b"body", {"TAGS": "a", "KEYS": "k"})
    assert (draft.flag, draft.born_ms, draft.born_host, draft.reconsume_times) == (3, 111, HOST, 1)
