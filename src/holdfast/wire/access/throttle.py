"""Throttle: a server asks a client to wait, because the client's user is above its rate.

    7061  acceptsThrottle=true   client ─> server   with the login: on this connection, I obey
    7063  waitMs=250                    <─          oneway: send nothing more for so long

The server answers the requests that it has received; the client delays the next ones. No request fails. A client
that does not announce this is never asked: the server reads its connection later instead.
"""

from __future__ import annotations

from typing import Final

import msgspec

from holdfast.model.errors import RemoteProtocolError
from holdfast.model.numbers import Int32
from holdfast.wire.frames.codes import RequestCode
from holdfast.wire.frames.command import ONE_WAY, Command, encode_command
from holdfast.wire.frames.fields import BadField, from_fields, to_fields

WAIT_MS_MAX: Final = 30_000
"""A longer wait would make a connection look lost. Servers ask for no longer one, and clients obey no longer one."""


class ThrottleFields(msgspec.Struct, frozen=True, rename="camel"):
    """Header of 7063."""

    wait_ms: Int32


def encode_throttle(wait_ms: int) -> bytes:
    """Return the frame that asks a client to wait."""
    fields = to_fields(ThrottleFields(wait_ms))
    return encode_command(Command(code=RequestCode.THROTTLE, flag=ONE_WAY, fields=fields))


def read_wait_ms(command: Command) -> int:
    """Return for how long a server asks this client to wait.

    Raises:
        RemoteProtocolError: the request does not say it.
    """
    try:
        wait_ms = from_fields(ThrottleFields, command.fields).wait_ms
    except BadField as error:
        raise RemoteProtocolError(f"throttle: {error}") from error
    return max(0, min(wait_ms, WAIT_MS_MAX))
