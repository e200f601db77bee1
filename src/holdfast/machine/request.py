"""Requests, answers, and the type of a handler.

A component offers handlers by request code. A handler gets one `Request` and returns the answer, a `Refusal`, or None
if it answers later (`answer_later`) or never. It causes everything else through the turn, before its answer is sent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar, final

import msgspec

from holdfast.machine.audit import record_change
from holdfast.machine.events import ChannelId
from holdfast.machine.turn import Turn
from holdfast.model.access.identity import ANONYMOUS, Identity
from holdfast.wire.frames.codes import ResponseCode
from holdfast.wire.frames.command import Command, encode_command, response
from holdfast.wire.frames.fields import NoFields

_Header = TypeVar("_Header", bound=msgspec.Struct)


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One request that is not on the hot path.

    Attributes:
        header: Its decoded fields, of the type that the table of requests names.
        peer: `host:port` of the sender.
        identity: Who sent it. `ANONYMOUS` while access control is off, except for changes.
        change: What it changes, for its audit line; None if it has none.
    """

    command: Command
    header: msgspec.Struct = NoFields()
    channel: ChannelId
    peer: str
    identity: Identity = ANONYMOUS
    change: Mapping[str, object] | None = None

    @property
    def sender(self) -> Identity:
        """Who sent it, with its address in any case."""
        return self.identity if self.identity.address else Identity(self.identity.kind, self.identity.user, self.peer)

    def header_as(self, kind: type[_Header]) -> _Header:
        """Return the decoded header, which has the type *kind* by the table of requests."""
        assert isinstance(self.header, kind), f"the table names {type(self.header).__name__} for {self.command.code}"
        return self.header

    def answer(
        self, code: int = 0, remark: str | None = None, *, fields: dict[str, str] | None = None, body: bytes = b""
    ) -> Command:
        """Return a response to this request."""
        return response(self.command, code, remark, fields=fields, body=body)


@final
class Refusal(msgspec.Struct, frozen=True):
    """An error answer: a response code and the reason. The dispatcher turns it into a response."""

    code: ResponseCode
    remark: str
    fields: dict[str, str] = {}


Answer = Command | Refusal | None
Handler = Callable[[Request], Answer]
Handlers = dict[int, Handler]
"""By request code."""


def not_supported(code: int) -> Refusal:
    """Return the answer to a request code without a handler."""
    return Refusal(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, f" request type {code} not supported")


def answer_later(turn: Turn, request: Request, answer: Command) -> None:
    """Send the answer to a request whose handler returned None. A one-way request gets no answer."""
    record_change(turn, request, answer)
    if not request.command.is_one_way:
        turn.send(request.channel, [encode_command(answer)])
