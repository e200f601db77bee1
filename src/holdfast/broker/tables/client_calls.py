"""Requests that only a client can answer; the broker puts them to it for the requester (221, 307, 309, 326).

    requester ──request──> broker ──request──> client
    requester <──answer─── broker <──answer─── client      or no answer in time, or the client is gone

The broker numbers these requests itself. It matches a client's answer by channel and number and ignores anything else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from holdfast.broker.flow.request import Answer, Refusal, Request
from holdfast.broker.tables.clients import Client
from holdfast.machine.effects import Effect, SendBytes, SetTimer
from holdfast.machine.events import ChannelId
from holdfast.wire.frames.command import Command, encode_command, response

TIMER: Final = "relays"
TIMEOUT_MS: Final = 10_000
WAITING_MAX: Final = 10_000

AnswerBuilder = Callable[[Command | None], Answer]
"""Builds the answer for the requester from that of the client; the argument is None if the client did not answer."""


class _PendingCall(msgspec.Struct, frozen=True):
    request: Request
    build_answer: AnswerBuilder
    deadline_ms: int


class ClientCalls:
    """Requests in flight to clients."""

    def __init__(self) -> None:
        self._last_opaque = 0
        self._pending: dict[tuple[ChannelId, int], _PendingCall] = {}

    def call(
        self,
        request: Request,
        client: Client,
        command: Command,
        build_answer: AnswerBuilder,
        *,
        timeout_ms: int = TIMEOUT_MS,
    ) -> None:
        """Send *command* to *client*; *build_answer* turns the client's answer into the answer to *request*."""
        self._last_opaque = (self._last_opaque + 1) & 0x7FFFFFFF
        command.opaque = self._last_opaque
        command.serializer = client.serializer
        deadline_ms = request.now_ms + timeout_ms
        if not self._pending:
            request.effects.append(SetTimer(TIMER, deadline_ms))
        if len(self._pending) >= WAITING_MAX:
            oldest = next(iter(self._pending))
            request.effects += _finish(self._pending.pop(oldest), None)
        self._pending[client.channel, self._last_opaque] = _PendingCall(request, build_answer, deadline_ms)
        request.effects.append(SendBytes(client.channel, [encode_command(command)]))

    def handle_response(self, channel: ChannelId, command: Command) -> list[Effect]:
        """Answer the request that waits for this answer of a client."""
        pending = self._pending.pop((channel, command.opaque), None)
        return [] if pending is None else _finish(pending, command)

    def channel_closed(self, channel: ChannelId) -> list[Effect]:
        """Answer the requests that wait for a client whose channel closed."""
        effects: list[Effect] = []
        for key in [key for key in self._pending if key[0] == channel]:
            effects += _finish(self._pending.pop(key), None)
        return effects

    def on_timer(self, name: str, now_ms: int, effects: list[Effect]) -> None:
        """Answer the requests whose deadline has passed."""
        assert name == TIMER
        for key, pending in list(self._pending.items()):
            if pending.deadline_ms <= now_ms:
                effects += _finish(self._pending.pop(key), None)
        if self._pending:
            effects.append(SetTimer(TIMER, min(pending.deadline_ms for pending in self._pending.values())))


def _finish(pending: _PendingCall, answer: Command | None) -> list[Effect]:
    request = pending.request
    result = pending.build_answer(answer)
    if isinstance(result, Refusal):
        result = response(request.command, result.code, result.remark)
    if result is None or request.command.is_one_way:
        return []
    return [SendBytes(request.channel, [encode_command(result)])]
