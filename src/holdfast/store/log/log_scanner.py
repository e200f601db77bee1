"""Walk the log record by record, validating each.

    ... record | record | blank ........ (file ends) record | record | 0 0 0 0        stops here: EMPTY
    ... record | garbage ...                                                          stops here: BROKEN
    ... record | record with a wrong checksum | record                                stops here: DAMAGED

A record is valid only if its magic number is right, it contains its own position, all its lengths add up and, if
requested, its body matches its checksum. This module knows no queues and repairs nothing.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import Enum

import msgspec

from holdfast.store.base.log_file import LogFiles
from holdfast.wire.records.record import (
    BLANK_SIZE,
    BORN_HOST_V6,
    CRC_MASK,
    FIXED_SIZE,
    LAYOUTS,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    RECORD_SIZE_MIN,
    STORE_HOST_V6,
    crc32,
)

WINDOW_SIZE = 4 << 20

_HEAD = struct.Struct(">ii")
_SYS_FLAG = struct.Struct(">i")
_FIXED_MIN = LAYOUTS[0].size
_HOSTS_V6 = BORN_HOST_V6 | STORE_HOST_V6
# For records with IPv4 hosts: size, magic, crc, queue id, offset, position, sys flag, store time, body size.
_unpack_plain = struct.Struct(">iiii4xqqi16xq20xi").unpack_from


class StopReason(Enum):
    """Why a walk stopped."""

    END = "the log has no more files"
    EMPTY = "nothing was written here"
    BLANK = "the file ends here"
    BROKEN = "these bytes are no record"
    DAMAGED = "the checksum of the body is wrong"
    INCOMPLETE = "the record continues beyond the window"


class WalkedRecord(msgspec.Struct, frozen=True, gc=False):
    """The fields of a record that the indexes need."""

    position: int
    size: int
    queue_id: int
    offset: int
    sys_flag: int
    store_ms: int
    topic: bytes
    properties: bytes


def validate_record(
    data: memoryview, at: int, position: int, remaining: int, *, check_body: bool
) -> WalkedRecord | StopReason:
    """Validate the record at byte *at* of *data*: *position* in the log, *remaining* bytes before its file ends."""
    # Recovery may validate a million records before the store is ready: nearly all take this fast path.
    if len(data) - at >= RECORD_SIZE_MIN:
        size, magic, crc, queue_id, offset, own_position, sys_flag, store_ms, body_size = _unpack_plain(data, at)
        end = at + size
        body_at = at + FIXED_SIZE
        topic_at = body_at + body_size
        if (
            magic == MAGIC_V1
            and own_position == position
            and body_at <= topic_at <= end - 3
            and size <= remaining - BLANK_SIZE
            and end <= len(data)
            and queue_id >= 0
            and offset >= 0
            and not sys_flag & _HOSTS_V6
        ):
            rest = data[topic_at:end].tobytes()
            topic_end = rest[0] + 1
            start = topic_end + 2
            if (
                start <= len(rest)
                and start + (rest[topic_end] << 8 | rest[topic_end + 1]) == len(rest)
                and (not check_body or crc32(data[body_at:topic_at]) & CRC_MASK == crc)
            ):
                return WalkedRecord(
                    position, size, queue_id, offset, sys_flag, store_ms, rest[1:topic_end], rest[start:]
                )
    return _validate_any(data, at, position, remaining, check_body=check_body)


def _validate_any(
    data: memoryview, at: int, position: int, remaining: int, *, check_body: bool
) -> WalkedRecord | StopReason:
    """Return a valid record of any kind, or why there is none."""
    available = len(data) - at
    if available < BLANK_SIZE:
        return StopReason.INCOMPLETE
    size, magic = _HEAD.unpack_from(data, at)
    if magic == MAGIC_BLANK:
        return StopReason.BLANK
    if magic not in (MAGIC_V1, MAGIC_V2):
        return StopReason.BROKEN if size or magic else StopReason.EMPTY
    if not _FIXED_MIN + 3 <= size <= remaining - BLANK_SIZE:
        return StopReason.BROKEN
    if size > available:
        return StopReason.INCOMPLETE
    layout = LAYOUTS[_SYS_FLAG.unpack_from(data, at + 36)[0] >> 4 & 3]
    if size < layout.size + 3:
        return StopReason.BROKEN
    _, _, crc, queue_id, _, offset, own_position, sys_flag, _, _, store_ms, _, _, _, body_size = layout.unpack_from(
        data, at
    )
    body_at, end = at + layout.size, at + size
    topic_at = body_at + body_size
    topic_start = topic_at + (1 if magic == MAGIC_V1 else 2)
    if own_position != position or body_size < 0 or queue_id < 0 or offset < 0 or topic_start + 2 > end:
        return StopReason.BROKEN
    topic_end = topic_start + (data[topic_at] if magic == MAGIC_V1 else data[topic_at] << 8 | data[topic_at + 1])
    properties_at = topic_end + 2
    if properties_at > end or properties_at + (data[topic_end] << 8 | data[topic_end + 1]) != end:
        return StopReason.BROKEN
    if check_body and crc32(data[body_at:topic_at]) & CRC_MASK != crc:
        return StopReason.DAMAGED
    topic, properties = bytes(data[topic_start:topic_end]), bytes(data[properties_at:end])
    return WalkedRecord(position, size, queue_id, offset, sys_flag, store_ms, topic, properties)


def validate_record_at(files: LogFiles, position: int, *, check_body: bool = True) -> WalkedRecord | StopReason:
    """Validate and return the record at *position*, or return why there is none."""
    found = files.find(position)
    if found is None:
        return StopReason.END
    at = position - found.start
    remaining = files.size - at
    if remaining < BLANK_SIZE:
        return StopReason.BROKEN
    size, _ = _HEAD.unpack(found.file.read(at, at + BLANK_SIZE))
    data = found.file.view(at, at + min(max(size, BLANK_SIZE), remaining))
    return validate_record(data, 0, position, remaining, check_body=check_body)


class LogWalk:
    """One walk. After the loop, `position` is the end of the last valid record, and `stop` says why the walk ended."""

    def __init__(self, files: LogFiles, start: int, *, end: int | None = None, check_body: bool = True) -> None:
        self._files = files
        self._end = end
        self._check_body = check_body
        self.position = start
        self.stop = StopReason.END

    def __iter__(self) -> Iterator[WalkedRecord]:
        files, check_body = self._files, self._check_body
        window_size = WINDOW_SIZE
        while (found := files.find(self.position)) is not None:
            base = position = self.position
            file_end = found.start + files.size
            end = file_end if self._end is None else self._end
            data = found.file.view(base - found.start, min(base - found.start + window_size, files.size))
            stop = StopReason.END
            while position < end:
                record = validate_record(data, position - base, position, file_end - position, check_body=check_body)
                if isinstance(record, StopReason):
                    stop = record
                    break
                yield record
                self.position = position = position + record.size
            if stop is StopReason.BLANK:
                self.position = file_end
            elif stop is not StopReason.INCOMPLETE or base + len(data) == file_end:
                self.stop = StopReason.BROKEN if stop is StopReason.INCOMPLETE else stop
                return
            # No step in this window: the next record is larger than the window.
            window_size = window_size * 2 if stop is StopReason.INCOMPLETE and position == base else WINDOW_SIZE
        self.stop = StopReason.END
