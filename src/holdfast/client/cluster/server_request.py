"""A request that a server sends to this client, and the type of its handlers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec

from holdfast.wire.frames.command import Command
from holdfast.wire.requests.table import CLIENT_REQUESTS

_Header = TypeVar("_Header", bound=msgspec.Struct)


class ServerRequest(msgspec.Struct, frozen=True):
    """One request of a server.

    Attributes:
        address: `host:port` of the server.
        header: The decoded fields, of the type that the table of requests names.
    """

    address: str
    command: Command
    header: msgspec.Struct

    def header_as(self, kind: type[_Header]) -> _Header:
        """Return the decoded header, which has the type *kind* by the table of requests."""
        assert isinstance(self.header, kind), f"the table names {type(self.header).__name__} for {self.command.code}"
        return self.header


Handler = Callable[[ServerRequest], Awaitable[Command | None]]
"""Answers a request of a server. Returns the answer, or None for none."""


def decode_request(address: str, command: Command) -> ServerRequest | None:
    """Return *command* with its decoded header; None if no client answers such a request.

    Raises:
        BadField: a field is missing or cannot be read.
    """
    spec = CLIENT_REQUESTS.get(command.code)
    return None if spec is None else ServerRequest(address, command, spec.decode(command))
