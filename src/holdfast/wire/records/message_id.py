"""The offset message id: the location of a record, as upper-case hex.

    | address 4 or 16 bytes | port i32 | position i64 |   32 or 56 characters

The address is the record's store host. Clients dial it to view the message, so it must be reachable for them.
"""

from __future__ import annotations

import struct

import msgspec

from holdfast.model.errors import RemoteProtocolError
from holdfast.model.queue import Position
from holdfast.wire.frames.host import format_host

_POSITION = struct.Struct(">q")
_LENGTHS = (32, 56)


class MessageId(msgspec.Struct, frozen=True):
    """A decoded id.

    Attributes:
        host: Address and port in the form stored in records, 8 or 20 bytes.
        position: The record's position in that broker's log.
    """

    host: bytes
    position: Position

    @property
    def address(self) -> str:
        """The broker that holds the record, as `host:port`."""
        return format_host(self.host)


def format_message_id(host: bytes, position: int) -> str:
    """Return the id of the record at *position* in the log of the broker at *host*."""
    return (host + _POSITION.pack(position)).hex().upper()


def parse_message_id(text: str) -> MessageId:
    """Decode the offset message id *text*.

    Raises:
        RemoteProtocolError: *text* is not an offset message id.
    """
    if len(text) not in _LENGTHS:
        raise RemoteProtocolError(f"message id {text[:64]!r} has {len(text)} characters, wanted 32 or 56")
    try:
        raw = bytes.fromhex(text)
    except ValueError as error:
        raise RemoteProtocolError(f"message id {text!r} is not hexadecimal") from error
    if len(raw) * 2 != len(text):
        raise RemoteProtocolError(f"message id {text!r} is not hexadecimal")
    (position,) = _POSITION.unpack_from(raw, len(raw) - 8)
    if position < 0:
        raise RemoteProtocolError(f"message id {text!r} has the negative position {position}")
    return MessageId(raw[:-8], Position(position))
