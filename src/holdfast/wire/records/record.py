"""One stored message, as in the commit log and in the body of a pull answer.

    size i32 | magic i32 | body crc i32 | queue id i32 | flag i32 | queue offset i64 | position i64 | sys flag i32 |
    born time i64 | born host 8 or 20 | store time i64 | store host 8 or 20 | reconsume times i32 |
    prepared position i64 | body size i32 | body | topic size 1 (version 2: 2) | topic |
    properties size i16 | properties

Everything is big-endian. Two bits of the sys flag mark IPv6 hosts; a topic of more than 127 bytes makes a version 2
record. `size` counts the whole record. A blank follows the last record of a log file:

    size i32: the rest of the file | magic i32 of a blank

The bytes come from disks and untrusted peers: every length is validated before it is used. Does no file I/O.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator

import msgspec

from holdfast.model.errors import CorruptRecord

try:
    from isal.isal_zlib import crc32 as _crc32
except ImportError:  # Same polynomial, several times slower.
    from zlib import crc32 as _crc32

Piece = bytes | bytearray | memoryview

crc32: Callable[[Piece], int] = _crc32

MAGIC_V1 = 0xDAA320A7 - (1 << 32)
MAGIC_V2 = 0xDAA320AB - (1 << 32)
MAGIC_BLANK = 0xCBD43194 - (1 << 32)
BLANK_SIZE = 8
BLANK = struct.Struct(">ii")

FIXED_SIZE = 88
"""The size of the fields before the body, with two IPv4 hosts."""
RECORD_SIZE_MIN = FIXED_SIZE + 1 + 2
TOPIC_SIZE_MAX_V1 = 127
CRC_MASK = 0x7FFFFFFF

COMPRESSED = 0x1
TRANSACTION_MASK = 0xC
TRANSACTION_PREPARED = 0x4
TRANSACTION_COMMIT = 0x8
TRANSACTION_ROLLBACK = 0xC
BORN_HOST_V6 = 0x10
STORE_HOST_V6 = 0x20
INNER_BATCH = 0x80

# Indexed by the two host bits: neither, born, store, both.
LAYOUTS = tuple(struct.Struct(f">iiiiiqqiq{born}sq{store}siqi") for born, store in ((8, 8), (20, 8), (8, 20), (20, 20)))
_SYS_FLAG = struct.Struct(">i")
_HEAD = struct.Struct(">ii")


class StoredRecord(msgspec.Struct, frozen=True, gc=False):
    """A decoded record. Hosts are as stored (see `frames.host`), properties are UTF-8 (see `records.properties`)."""

    size: int
    position: int
    topic: str
    queue_id: int
    offset: int
    flag: int
    sys_flag: int
    born_ms: int
    born_host: bytes
    store_ms: int
    store_host: bytes
    reconsume_times: int
    prepared_position: int
    body_crc: int
    body: Piece
    properties: bytes


def body_crc(body: Piece) -> int:
    """Return the checksum of a stored body: 31 bits, as upstream masks it."""
    return crc32(body) & CRC_MASK


def topic_part(topic: str) -> tuple[int, bytes]:
    """Return (magic, length and name) of a topic as its records store it."""
    raw = topic.encode()
    if len(raw) <= TOPIC_SIZE_MAX_V1:
        return MAGIC_V1, len(raw).to_bytes(1, "big") + raw
    return MAGIC_V2, len(raw).to_bytes(2, "big") + raw


def encode_record(record: StoredRecord) -> bytes:
    """Return the bytes of *record*. `size`, `body_crc` and the host bits of the sys flag are computed."""
    magic, topic = topic_part(record.topic)
    hosts = (len(record.born_host) != 8) | (len(record.store_host) != 8) << 1
    layout = LAYOUTS[hosts]
    fixed = layout.pack(
        layout.size + len(record.body) + len(topic) + 2 + len(record.properties),
        magic,
        body_crc(record.body),
        record.queue_id,
        record.flag,
        record.offset,
        record.position,
        record.sys_flag & ~0x30 | hosts << 4,
        record.born_ms,
        record.born_host,
        record.store_ms,
        record.store_host,
        record.reconsume_times,
        record.prepared_position,
        len(record.body),
    )
    return b"".join((fixed, record.body, topic, len(record.properties).to_bytes(2, "big"), record.properties))


def decode_record(data: Piece, at: int = 0, *, check_body: bool = True) -> StoredRecord:
    """Return the record that begins at byte *at* of *data*, with a copy of its body.

    Raises:
        CorruptRecord: the bytes are not a complete record, or the checksum is wrong.
    """
    available = len(data) - at
    if available < RECORD_SIZE_MIN:
        raise CorruptRecord(at, f"{available} bytes are too few for a record")
    (sys_flag,) = _SYS_FLAG.unpack_from(data, at + 36)
    layout = LAYOUTS[sys_flag >> 4 & 3]
    size, magic = _HEAD.unpack_from(data, at)
    if magic not in (MAGIC_V1, MAGIC_V2):
        raise CorruptRecord(at, f"magic is {magic & 0xFFFFFFFF:#x}")
    if not layout.size + 3 <= size <= available:
        raise CorruptRecord(at, f"size is {size}, but {available} bytes are available")
    fields = layout.unpack_from(data, at)
    body_start = at + layout.size
    body, topic, properties = _variable_parts(data, at, body_start, fields[-1], size, wide=magic == MAGIC_V2)
    if check_body and body_crc(body) != fields[2]:
        raise CorruptRecord(at, "checksum of the body is wrong")
    try:
        name = topic.decode()
    except UnicodeDecodeError as error:
        raise CorruptRecord(at, "topic is not UTF-8") from error
    _, _, crc, queue_id, flag, offset, position, _, born_ms, born_host, store_ms, store_host, times, prepared, _ = (
        fields
    )
    return StoredRecord(
        size, position, name, queue_id, offset, flag, sys_flag, born_ms, born_host, store_ms, store_host, times,
        prepared, crc, body, properties,
    )  # fmt: skip


def _variable_parts(
    data: Piece, at: int, body_start: int, body_size: int, size: int, *, wide: bool
) -> tuple[bytes, bytes, bytes]:
    """Return (body, topic, properties); their lengths must fill the record exactly."""
    end = at + size
    topic_at = body_start + body_size
    length_size = 2 if wide else 1
    if body_size < 0 or topic_at + length_size + 2 > end:
        raise CorruptRecord(at, f"body size is {body_size} in a record of {size}")
    topic_start = topic_at + length_size
    topic_end = topic_start + int.from_bytes(data[topic_at:topic_start], "big")
    properties_start = topic_end + 2
    if properties_start > end or properties_start + int.from_bytes(data[topic_end:properties_start], "big") != end:
        raise CorruptRecord(at, "sizes of topic and properties do not add up")
    return (
        bytes(data[body_start:topic_at]),
        bytes(data[topic_start:topic_end]),
        bytes(data[properties_start:end]),
    )


def decode_records(data: Piece, *, check_body: bool = True) -> Iterator[StoredRecord]:
    """Yield the records that follow each other in *data*, as in a pull answer.

    Raises:
        CorruptRecord: the next bytes are not a complete record.
    """
    at = 0
    while at < len(data):
        record = decode_record(data, at, check_body=check_body)
        yield record
        at += record.size
