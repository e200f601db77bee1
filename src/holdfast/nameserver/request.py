"""How a request that is not on the hot path reaches a handler, and what a handler may answer."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from holdfast.machine.effects import Effect, Log
from holdfast.machine.events import ChannelId
from holdfast.nameserver.notices import Occasion
from holdfast.wire.frames.codes import ResponseCode
from holdfast.wire.frames.command import Command, response


class Request(msgspec.Struct, kw_only=True):
    """One request.

    Attributes:
        peer: `host:port` of the other end.
        effects: What else shall happen; performed before the answer is sent.
        occasion: What changes of routes are due to, if there are any; for a handler to set.
    """

    command: Command
    channel: ChannelId
    peer: str
    now_ms: int
    effects: list[Effect]
    occasion: Occasion = Occasion.CHANGE

    def answer(self, *, fields: dict[str, str] | None = None, body: bytes = b"") -> Command:
        """Return the answer that all went well."""
        return response(self.command, fields=fields, body=body)

    def log(self, level: str, event: str, **fields: object) -> None:
        """Tell the operator."""
        self.effects.append(Log(level, event, {**fields, "peer": self.peer}))


class Refusal(msgspec.Struct, frozen=True):
    """No, and why. Turned into a response in one place."""

    code: ResponseCode
    remark: str
    fields: dict[str, str] = {}


Answer = Command | Refusal | None
Handler = Callable[[Request], Answer]
Handlers = dict[int, Handler]
"""By request code."""
