"""The bare path of a send: the rate that one Python core reaches when it does only the unavoidable work.

    python benchmarks/bare_send.py PORT FOLDER

Accepts single sends (310) as `loadgen` makes them: decodes the header, checksums the body, builds the stored record,
appends it to a file, writes the 20-byte index entry, answers. It does nothing else: one topic, no sync, no limits, no
reads, no recovery, no validation of the peer. A broker that is far below this rate spends its time on other work, and
`profile_send.py` shows on which.

    one read of a socket ─> every whole frame in it ─> one writev of all records ─> one write of all answers
"""

from __future__ import annotations

import asyncio
import mmap
import os
import struct
import sys
import time
from pathlib import Path
from typing import Final, cast

import msgspec
import uvloop
from isal.isal_zlib import crc32

LOG_SIZE: Final = 1 << 30
LOG_RESERVE: Final = 16 << 20
RECEIVE_SIZE: Final = 1 << 20
QUEUES: Final = 4
INDEX_SIZE: Final = 20 * 300_000
# Three pieces a record, and IOV_MAX is 1024.
PIECES_MAX: Final = 1023

SIZES: Final = struct.Struct(">II")
# size, magic, crc, queue, flag, offset, position, sys flag, born time and host, store time and host, retries, prepared,
# body size
RECORD: Final = struct.Struct(">IIIIIQQIQ8sQ8sIQI")
ENTRY: Final = struct.Struct(">QIQ")
MAGIC: Final = 0xDAA320A7
HOST: Final = bytes((127, 0, 0, 1)) + (10911).to_bytes(4, "big")
TOPIC: Final = b"\x09TopicTest"
ANSWER: Final = (
    b'{"code":0,"extFields":{"queueId":"%d","TRACE_ON":"true","MSG_REGION":"DefaultRegion",'
    b'"msgId":"7F00000100002A9F%016X","queueOffset":"%d"},"flag":1,"language":"OTHER","opaque":%d,'
    b'"serializeTypeCurrentRPC":"JSON","version":513}'
)


class SendFields(msgspec.Struct, gc=False):
    """The fields of a send that decide the stored record."""

    queue_id: int = msgspec.field(name="e")
    sys_flag: int = msgspec.field(name="f")
    born_ms: int = msgspec.field(name="g")
    flag: int = msgspec.field(name="h")
    properties: str = msgspec.field(name="i")


class Send(msgspec.Struct, gc=False):
    """The header of a send."""

    opaque: int
    fields: SendFields = msgspec.field(name="extFields")


decode = msgspec.json.Decoder(Send, strict=False).decode


class BareLog:
    """A series of log files, and an index that is overwritten in a ring."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / "log"
        self._file = self._open_log()
        self._position = 0
        self._offsets = [0] * QUEUES
        self._indexes = [self._open_index(folder / f"queue{queue}") for queue in range(QUEUES)]

    def store_frames(self, received: memoryview) -> tuple[int, bytes]:
        """Store every whole frame of *received*; return the number of bytes consumed, and the answers."""
        at, size_received, now_ms = 0, len(received), time.time_ns() // 1_000_000
        position, offsets = self._position, self._offsets
        pieces: list[bytes | memoryview] = []
        answers: list[bytes] = []
        while size_received - at >= 8:
            frame_size, header_size = SIZES.unpack_from(received, at)
            end = at + 4 + frame_size
            if end > size_received:
                break
            body_at = at + 8 + header_size
            send = decode(received[at + 8 : body_at])
            fields, body = send.fields, received[body_at:end]
            queue, properties, body_size = fields.queue_id, fields.properties.encode(), end - body_at
            offset = offsets[queue]
            offsets[queue] = offset + 1
            tail = b"%b%b%b" % (TOPIC, len(properties).to_bytes(2, "big"), properties)
            size = 88 + body_size + len(tail)
            header = RECORD.pack(
                size, MAGIC, crc32(body) & 0x7FFFFFFF, queue, fields.flag, offset, position, fields.sys_flag,
                fields.born_ms, HOST, now_ms, HOST, 0, 0, body_size,
            )  # fmt: skip
            pieces += (header, body, tail)
            ENTRY.pack_into(self._indexes[queue], offset * 20 % INDEX_SIZE, position, size, 0)
            answer = ANSWER % (queue, position, offset, send.opaque)
            answers.append(SIZES.pack(4 + len(answer), len(answer)) + answer)
            position += size
            at = end
        for start in range(0, len(pieces), PIECES_MAX):
            os.writev(self._file, pieces[start : start + PIECES_MAX])
        self._position = position
        if position > LOG_SIZE - LOG_RESERVE:
            self._roll()
        return at, b"".join(answers)

    def _roll(self) -> None:
        """Continue in a new file, so that new pages cost as much as in a real log."""
        os.close(self._file)
        self._path.unlink()
        self._file = self._open_log()
        self._position = 0

    def _open_log(self) -> int:
        file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
        os.posix_fallocate(file, 0, LOG_SIZE)
        return file

    @staticmethod
    def _open_index(path: Path) -> mmap.mmap:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
        os.ftruncate(file, INDEX_SIZE)
        index = mmap.mmap(file, INDEX_SIZE)
        os.close(file)
        return index


class BareChannel(asyncio.BufferedProtocol):
    """A connection. All share one receive buffer; each keeps only the beginning of an unfinished frame."""

    _shared = memoryview(bytearray(RECEIVE_SIZE))

    def __init__(self, log: BareLog) -> None:
        self._log = log
        self._unfinished = b""
        self._buffer = self._shared

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - asyncio's signature
        unfinished_size = len(self._unfinished)
        self._buffer = (
            self._shared if unfinished_size < RECEIVE_SIZE // 2 else memoryview(bytearray(4 * unfinished_size))
        )
        self._buffer[:unfinished_size] = self._unfinished
        return self._buffer[unfinished_size:]

    def buffer_updated(self, nbytes: int) -> None:
        received = self._buffer[: len(self._unfinished) + nbytes]
        consumed, answers = self._log.store_frames(received)
        self._unfinished = bytes(received[consumed:])
        if answers:
            self._transport.write(answers)


async def serve(port: int, folder: Path) -> None:
    """Accept sends until the process is killed."""
    log = BareLog(folder)
    server = await asyncio.get_running_loop().create_server(lambda: BareChannel(log), "127.0.0.1", port, backlog=1024)
    print("ready", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1]), Path(sys.argv[2])))
