"""The replication stream: a master's log on its way to a replica, in upstream's form. Contains no I/O.

    replica -> master   | end i64 |                            how far its log reaches: first of all, then as it grows
    master  -> replica  | position i64 | size i32 | bytes |    the log from a position on; no bytes: the master lives

There is no length of the whole, no version and no name: whoever connects to the port is a replica, and what it says
first is where the stream begins. The bytes are those of the log, records cut anywhere. They are handed on as they come,
so that no size that a master claims has to be believed, or to fit into memory.
"""

from __future__ import annotations

import struct
from typing import Final

import msgspec

from holdfast.model.errors import RemoteProtocolError

_REPORT = struct.Struct(">q")
_HEAD = struct.Struct(">qi")
HEAD_SIZE: Final = _HEAD.size


class Stretch(msgspec.Struct, frozen=True, gc=False):
    """Some of a master's log, or a sign of life.

    Attributes:
        data: A view of what was received: to be used at once. Empty in a sign of life, which says where the master
            will go on.
    """

    position: int
    data: memoryview


def encode_report(end: int) -> bytes:
    """Return how a replica says where its log ends."""
    return _REPORT.pack(end)


def encode_head(position: int, size: int) -> bytes:
    """Return what goes before *size* bytes of the log."""
    return _HEAD.pack(position, size)


class ReportReader:
    """What a replica says, from reads that are cut anywhere."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes | memoryview) -> list[int]:
        """Return the ends that were told, oldest first.

        Raises:
            RemoteProtocolError: no log ends there: this is no replica.
        """
        received = self._rest + bytes(data)
        whole = len(received) - len(received) % _REPORT.size
        self._rest = received[whole:]
        ends = [end for (end,) in _REPORT.iter_unpack(received[:whole])]
        if ends and min(ends) < 0:
            raise RemoteProtocolError(f"a replica says that its log ends at {min(ends)}")
        return ends


class LogReader:
    """What a master says, from reads that are cut anywhere."""

    def __init__(self) -> None:
        self._head = b""
        self._position = 0
        self._left = 0

    def feed(self, data: bytes | memoryview) -> list[Stretch]:
        """Return what came of the log, and signs of life, in order.

        Raises:
            RemoteProtocolError: a head says what cannot be: this is no master.
        """
        stretches: list[Stretch] = []
        view = memoryview(data)
        at = 0
        while at < len(view):
            if self._left:
                part = view[at : at + self._left]
                stretches.append(Stretch(self._position, part))
                self._position += len(part)
                self._left -= len(part)
                at += len(part)
                continue
            needed = HEAD_SIZE - len(self._head)
            self._head += bytes(view[at : at + needed])
            at += needed
            if len(self._head) == HEAD_SIZE:
                self._position, self._left = _HEAD.unpack(self._head)
                self._head = b""
                if self._position < 0 or self._left < 0:
                    raise RemoteProtocolError(f"a master sends {self._left} bytes of its log from {self._position} on")
                if not self._left:
                    stretches.append(Stretch(self._position, view[:0]))
        return stretches
