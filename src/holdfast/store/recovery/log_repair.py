"""Find the log's thread again behind bytes that are no record, and mend the place.

    record | ? ? ? ? ? ? ? ? | record | record          what was found
    record | filler          | record | record          what is left: every reader can walk over it

The filler is a rollback record of a topic of ours, with the damaged bytes as its body: indexes, Java's too, take no
rollback records. Where the rest of a file is lost a blank is enough.
"""

from __future__ import annotations

import msgspec

from holdfast.store.base.log_file import LogFiles
from holdfast.store.log.log_scanner import WalkedRecord, judge_at
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
_NOWHERE = bytes(8)
_MAGICS = (MAGIC_V1.to_bytes(4, "big", signed=True), MAGIC_V2.to_bytes(4, "big", signed=True))
_CHUNK = 1 << 20
# A crash leaves at most what was not synced; so many zeros in a row mean that nothing was ever written there.
_ZEROS_MAX = 64 << 20


class Damage(msgspec.Struct, frozen=True):
    """A place in the log that is not what was written."""

    position: int
    size: int
    reason: str


def find_next_record(files: LogFiles, start: int) -> int | None:
    """Return where the first whole record at or behind *start* begins, or None when there is none within reach."""
    zeros = 0
    at = start
    while (found := files.find(at)) is not None:
        file_end = found.start + files.size
        end = min(at + _CHUNK, file_end)
        chunk = found.file.read(at - found.start, end - found.start)
        if chunk.count(0) != len(chunk):
            zeros = 0
            # What comes before it in its file must have room for a filler.
            record = _find_in(files, at, chunk, max(start, found.start + FILLER_SIZE_MIN))
            if record is not None:
                return record
        else:
            zeros += len(chunk)
            if zeros >= _ZEROS_MAX:
                return None
        # The magic of a record may lie across two chunks.
        at = end if end == file_end else end - BLANK_SIZE
    return None


def _find_in(files: LogFiles, start: int, chunk: bytes, lowest: int) -> int | None:
    places = sorted(place for magic in _MAGICS for place in _places(chunk, magic))
    for place in places:
        address = start + place - 4
        if address < lowest and address % files.size:
            continue
        if isinstance(judge_at(files, address), WalkedRecord):
            return address
    return None


def _places(chunk: bytes, magic: bytes) -> list[int]:
    places = []
    at = chunk.find(magic)
    while at >= 0:
        if at >= 4:
            places.append(at)
        at = chunk.find(magic, at + 1)
    return places


def mend(files: LogFiles, position: int, resumed: int, *, store_ms: int) -> None:
    """Cover [position, resumed) so that a walk passes over it. Synced: the next crash must not find it half done.

    *store_ms* is the time of the record before: a filler that looked older would make retention remove what is young.
    """
    while position < resumed:
        found = files.find(position)
        assert found is not None
        at = position - found.start
        end = min(resumed, found.start + files.size)
        if end == found.start + files.size:
            found.file.write(at, (BLANK.pack(files.size - at, MAGIC_BLANK),))
        else:
            body = found.file.read(at + FIXED_SIZE, at + FIXED_SIZE + end - position - FILLER_SIZE_MIN)
            found.file.write(at, (_make_filler(position, end - position, body, store_ms),))
        found.file.sync()
        position = end


def _make_filler(position: int, size: int, body: bytes, store_ms: int) -> bytes:
    assert size >= FILLER_SIZE_MIN, "the search left room for it"
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
            born_host=_NOWHERE,
            store_ms=max(1, store_ms),
            store_host=_NOWHERE,
            reconsume_times=0,
            prepared_position=0,
            body_crc=0,
            body=body,
            properties=b"",
        )
    )
