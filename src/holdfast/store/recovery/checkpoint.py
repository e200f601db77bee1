"""The `checkpoint` file: the positions up to which log and indexes are on disk.

    0   physic time    8  logics time   16  index time      store times, as in RocketMQ: all up to there is synced
    24  master flushed  32  confirmed position              kept as found
    40  logics position                                     RocketMQ 5.5 starts its recovery there
    64  "HOLDFAST" | position | indexed | physic time | logics time | crc32 u32     our mark

The mark is exact, RocketMQ's times are not: every record before `position` is synced and so is its queue entry; every
record before `indexed` is in the key index. The mark repeats RocketMQ's times. If they differ, a Java broker has
written the file since, and the mark is void.
"""

from __future__ import annotations

import struct
from zlib import crc32

import msgspec

from holdfast.store.base.disk import Disk, File

PATH = "checkpoint"
FILE_SIZE = 4096

_UPSTREAM = struct.Struct(">qqqqqq")
_MARK = struct.Struct(">8sqqqqI")
_MARK_AT = 64
_MAGIC = b"HOLDFAST"
# RocketMQ starts this much earlier than its times say: concurrent threads record them.
_MARGIN_MS = 3000


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """The content of the file. `position` and `indexed` are None if there is no valid mark."""

    physic_ms: int = 0
    logics_ms: int = 0
    index_ms: int = 0
    master_flushed: int = 0
    confirmed: int = 0
    logics_position: int = 0
    position: int | None = None
    indexed: int | None = None

    @property
    def safe_ms(self) -> int:
        """The time up to which everything stored is on disk, by RocketMQ's fields alone."""
        return max(0, min(self.physic_ms, self.logics_ms) - _MARGIN_MS)


def parse_checkpoint(data: bytes) -> Checkpoint:
    """Return the checkpoint in *data*, or an empty one if the file is too short."""
    if len(data) < _MARK_AT + _MARK.size:
        return Checkpoint()
    physic, logics, index, master, confirmed, logics_position = _UPSTREAM.unpack_from(data)
    magic, position, indexed, mark_physic, mark_logics, crc = _MARK.unpack_from(data, _MARK_AT)
    has_mark = (
        magic == _MAGIC
        and crc == crc32(data[_MARK_AT : _MARK_AT + _MARK.size - 4])
        and (mark_physic, mark_logics) == (physic, logics)
    )
    return Checkpoint(
        physic_ms=physic,
        logics_ms=logics,
        index_ms=index,
        master_flushed=master,
        confirmed=confirmed,
        logics_position=logics_position,
        position=position if has_mark else None,
        indexed=indexed if has_mark else None,
    )


def format_checkpoint(checkpoint: Checkpoint) -> bytes:
    """Return the bytes up to the end of the mark; an absent mark is zeros."""
    head = _UPSTREAM.pack(
        checkpoint.physic_ms,
        checkpoint.logics_ms,
        checkpoint.index_ms,
        checkpoint.master_flushed,
        checkpoint.confirmed,
        checkpoint.logics_position,
    ).ljust(_MARK_AT, b"\0")
    if checkpoint.position is None or checkpoint.indexed is None:
        return head + bytes(_MARK.size)
    mark = _MARK.pack(_MAGIC, checkpoint.position, checkpoint.indexed, checkpoint.physic_ms, checkpoint.logics_ms, 0)[
        :-4
    ]
    return head + mark + crc32(mark).to_bytes(4, "big")


class CheckpointFile:
    """The file, written in place: the used part lies within one sector, which disks write atomically."""

    def __init__(self, disk: Disk) -> None:
        data = disk.read_file(PATH)
        self.value = parse_checkpoint(data or b"")
        self.file: File = disk.open(PATH) if data and len(data) == FILE_SIZE else disk.create(PATH, FILE_SIZE)

    def write(self, value: Checkpoint) -> None:
        """Write without syncing: the checkpoint takes effect with the next sync."""
        self.file.write(0, (format_checkpoint(value),))
        self.value = value

    def void_mark(self, position: int) -> None:
        """Ensure, durably, that recovery never again starts after *position*."""
        indexed = self.value.indexed
        value = msgspec.structs.replace(
            self.value,
            position=position,
            indexed=min(position, indexed) if indexed is not None else position,
            logics_position=min(self.value.logics_position, position),
        )
        self.write(value)
        self.file.sync()
