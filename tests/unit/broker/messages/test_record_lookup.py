import pytest

from holdfast.broker.messages.record_lookup import properties_of, to_draft, try_read_record
from holdfast.model.errors import CorruptRecord
from holdfast.wire.frames.host import pack_host
from holdfast.wire.records.record import StoredRecord, decode_record, encode_record

HOST = pack_host("127.0.0.1:1")
RECORD = StoredRecord(
    0, 40, "T", 2, 7, 3, 1, 111, HOST, 222, HOST, 1, 0, 0, b"body", b"TAGS\x01a\x02KEYS\x01k\x02"
)  # fmt: skip
BYTES = encode_record(RECORD)


def test_work_that_nobody_waits_for_passes_over_a_damaged_record() -> None:
    """It gets an error where a handler would, and goes on."""
    steps = try_read_record(40, len(BYTES))
    steps.send(None)

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
