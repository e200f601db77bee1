"""Request and answer types for handlers off the hot path."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from holdfast.machine.effects import Effect, Log
from holdfast.machine.events import ChannelId
from holdfast.nameserver.notices import ChangeCause
from holdfast.wire.frames.codes import ResponseCode
from holdfast.wire.frames.command import Command, response


class Request(msgspec.Struct, kw_only=True):
    """One request.

    Attributes:
        peer: `host:port` of the sender.
        effects: Further effects; performed before the answer is sent.
        cause: Why routes change, if they do; set by the handler.
    """

    command: Command
    channel: ChannelId
    peer: str
    now_ms: int
    effects: list[Effect]
    cause: ChangeCause = ChangeCause.TOPIC

    def answer(self, *, fields: dict[str, str] | None = None, body: bytes = b"") -> Command:
        """Return a success response."""
        return response(self.command, fields=fields, body=body)

    def log(self, level: str, event: str, **fields: object) -> None:
        """Write a log line that includes the peer."""
        self.effects.append(Log(level, event, {**fields, "peer": self.peer}))


class Refusal(msgspec.Struct, frozen=True):
    """A refusal with its reason. Turned into a response in one place."""

    code: ResponseCode
    remark: str
    fields: dict[str, str] = {}


Answer = Command | Refusal | None
Handler = Callable[[Request], Answer]
Handlers = dict[int, Handler]
"""By request code."""
