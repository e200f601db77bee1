"""The replication stream: a master sends its log to a replica, in upstream's format. Contains no I/O.

    replica -> master   | end i64 |                            the end of its log: at the start, then as it grows
    master  -> replica  | position i64 | size i32 | bytes |    the log from a position; no bytes: a keep-alive

The stream has no total length, no version and no names: any peer that connects to the port is a replica, and the stream
starts at the end that it reports first. The bytes are those of the log, with records cut anywhere. They are passed on
as they arrive, so a size that a master declares need neither be trusted nor fit into memory.
"""

from __future__ import annotations

import struct
from typing import Final

import msgspec

from holdfast.model.errors import RemoteProtocolError

_REPORT = struct.Struct(">q")
_HEAD = struct.Struct(">qi")
HEAD_SIZE: Final = _HEAD.size


class LogChunk(msgspec.Struct, frozen=True, gc=False):
    """A chunk of a master's log, or a keep-alive.

    Attributes:
        data: A view of the receive buffer, to be used at once. Empty in a keep-alive, which gives the position where
            the master will continue.
    """

    position: int
    data: memoryview


def encode_report(end: int) -> bytes:
    """Return a replica's report of the end of its log."""
    return _REPORT.pack(end)


def encode_head(position: int, size: int) -> bytes:
    """Return the head that precedes *size* bytes of the log."""
    return _HEAD.pack(position, size)


class ReportReader:
    """Decodes a replica's reports from reads that are cut anywhere."""

    def __init__(self) -> None:
        self._partial = b""

    def feed(self, data: bytes | memoryview) -> list[int]:
        """Return the reported ends, oldest first.

        Raises:
            RemoteProtocolError: an end is negative: the peer is not a replica.
        """
        received = self._partial + bytes(data)
        complete = len(received) - len(received) % _REPORT.size
        self._partial = received[complete:]
        ends = [end for (end,) in _REPORT.iter_unpack(received[:complete])]
        if ends and min(ends) < 0:
            raise RemoteProtocolError(f"a replica reports that its log ends at {min(ends)}")
        return ends


class LogReader:
    """Decodes a master's stream from reads that are cut anywhere."""

    def __init__(self) -> None:
        self._head = b""
        self._position = 0
        self._remaining = 0

    def feed(self, data: bytes | memoryview) -> list[LogChunk]:
        """Return the received chunks of the log and keep-alives, in order.

        Raises:
            RemoteProtocolError: a head has a negative position or size: the peer is not a master.
        """
        chunks: list[LogChunk] = []
        view = memoryview(data)
        at = 0
        while at < len(view):
            if self._remaining:
                part = view[at : at + self._remaining]
                chunks.append(LogChunk(self._position, part))
                self._position += len(part)
                self._remaining -= len(part)
                at += len(part)
                continue
            needed = HEAD_SIZE - len(self._head)
            self._head += bytes(view[at : at + needed])
            at += needed
            if len(self._head) == HEAD_SIZE:
                self._position, self._remaining = _HEAD.unpack(self._head)
                self._head = b""
                if self._position < 0 or self._remaining < 0:
                    raise RemoteProtocolError(
                        f"a master sends {self._remaining} bytes of its log from {self._position} on"
                    )
                if not self._remaining:
                    chunks.append(LogChunk(self._position, view[:0]))
        return chunks
