"""Requests, answers, and the type of a handler.

A component offers handlers by request code. A handler gets one `Request` and returns the answer, a `Refusal`, or None
if it answers later or never. A handler that has to wait (for log bytes, for another server) is a procedure: a coroutine
that awaits conditions and returns its answer (`scheduler.py`).
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from holdfast.broker.flow.awaitables import Procedure
from holdfast.machine.effects import Effect
from holdfast.machine.events import ChannelId
from holdfast.store.base.cold_reads import FileRange, LogRange, Steps
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.frames.command import Command, response

__all__ = [
    "Answer",
    "FileRange",
    "Handler",
    "Handlers",
    "LogRange",
    "Refusal",
    "Request",
    "Steps",
    "not_supported",
]


class Request(msgspec.Struct, kw_only=True):
    """One request that is not on the hot path.

    Attributes:
        peer: `host:port` of the other end.
        effects: Other effects (notifications, timers, logs); performed before the answer is sent.
    """

    command: Command
    channel: ChannelId
    peer: str
    now_ms: int
    effects: list[Effect] = []

    def answer(
        self, code: int = 0, remark: str | None = None, *, fields: dict[str, str] | None = None, body: bytes = b""
    ) -> Command:
        """Return a response to this request."""
        return response(self.command, code, remark, fields=fields, body=body)


class Refusal(msgspec.Struct, frozen=True):
    """An error answer: a response code and the reason. The dispatcher turns it into a response."""

    code: ResponseCode
    remark: str


Answer = Command | Refusal | None
Handler = Callable[[Request], Answer | Procedure[Answer]]


def not_supported(code: int) -> Refusal:
    """Return the answer to a request code without a handler."""
    return Refusal(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, f" request type {code} not supported")


Handlers = dict[RequestCode, Handler]
