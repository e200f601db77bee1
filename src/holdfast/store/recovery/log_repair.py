"""Find the next record after corrupt bytes, and cover them.

    record | ? ? ? ? ? ? ? ? | record | record          as found
    record | filler          | record | record          as repaired: every reader can walk over it

The filler is a rollback record of an internal topic, with the corrupt bytes as its body: indexes, Java's too, ignore
rollback records. Where the rest of a file is lost, a blank is enough.
"""

from __future__ import annotations

import msgspec

from holdfast.store.base.log_file import LogFiles
from holdfast.store.log.log_scanner import WalkedRecord, validate_record_at
from holdfast.wire.records.record import (
    BLANK,
    BLANK_SIZE,
    FIXED_SIZE,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    RECORD_SIZE_MIN,
    TRANSACTION_ROLLBACK,
    StoredRecord,
    encode_record,
)

FILLER_TOPIC = "H"
FILLER_SIZE_MIN = RECORD_SIZE_MIN + len(FILLER_TOPIC)
_NO_HOST = bytes(8)
_MAGICS = (MAGIC_V1.to_bytes(4, "big", signed=True), MAGIC_V2.to_bytes(4, "big", signed=True))
_CHUNK = 1 << 20
# A crash leaves at most the unsynced bytes; so many zeros in a row mean that nothing was ever written there.
_ZEROS_MAX = 64 << 20


class Damage(msgspec.Struct, frozen=True):
    """A corrupt place in the log."""

    position: int
    size: int
    reason: str


def find_next_record(files: LogFiles, start: int) -> int | None:
    """Return the start of the first whole record at or after *start*, or None if there is none within reach."""
    zeros = 0
    at = start
    while (found := files.find(at)) is not None:
        file_end = found.start + files.size
        end = min(at + _CHUNK, file_end)
        chunk = found.file.read(at - found.start, end - found.start)
        if chunk.count(0) != len(chunk):
            zeros = 0
            # There must be space for a filler before it in its file.
            record = _find_in(files, at, chunk, max(start, found.start + FILLER_SIZE_MIN))
            if record is not None:
                return record
        else:
            zeros += len(chunk)
            if zeros >= _ZEROS_MAX:
                return None
        # The magic number of a record may span two chunks.
        at = end if end == file_end else end - BLANK_SIZE
    return None


def _find_in(files: LogFiles, start: int, chunk: bytes, lowest: int) -> int | None:
    indexes = sorted(index for magic in _MAGICS for index in _find_all(chunk, magic))
    for index in indexes:
        address = start + index - 4
        if address < lowest and address % files.size:
            continue
        if isinstance(validate_record_at(files, address), WalkedRecord):
            return address
    return None


def _find_all(chunk: bytes, magic: bytes) -> list[int]:
    indexes = []
    at = chunk.find(magic)
    while at >= 0:
        if at >= 4:
            indexes.append(at)
        at = chunk.find(magic, at + 1)
    return indexes


def cover_damage(files: LogFiles, position: int, resume_at: int, *, store_ms: int) -> None:
    """Cover [position, resume_at) so that a walk passes over it. Synced: no crash may leave it half done.

    *store_ms* is the time of the previous record: with an older filler, retention would remove recent records.
    """
    while position < resume_at:
        found = files.find(position)
        assert found is not None
        at = position - found.start
        end = min(resume_at, found.start + files.size)
        if end == found.start + files.size:
            found.file.write(at, (BLANK.pack(files.size - at, MAGIC_BLANK),))
        else:
            body = found.file.read(at + FIXED_SIZE, at + FIXED_SIZE + end - position - FILLER_SIZE_MIN)
            found.file.write(at, (_make_filler(position, end - position, body, store_ms),))
        found.file.sync()
        position = end


def _make_filler(position: int, size: int, body: bytes, store_ms: int) -> bytes:
    assert size >= FILLER_SIZE_MIN, "the search left space for it"
    return encode_record(
        StoredRecord(
            size=size,
            position=position,
            topic=FILLER_TOPIC,
            queue_id=0,
            offset=0,
            flag=0,
            sys_flag=TRANSACTION_ROLLBACK,
            born_ms=0,
            born_host=_NO_HOST,
            store_ms=max(1, store_ms),
            store_host=_NO_HOST,
            reconsume_times=0,
            prepared_position=0,
            body_crc=0,
            body=body,
            properties=b"",
        )
    )
