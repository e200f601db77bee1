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

Reply = Callable[[Command | None], Answer]
"""Builds the answer for the requester from that of the client; the argument is None if the client did not answer."""


class _Waiting(msgspec.Struct, frozen=True):
    request: Request
    reply: Reply
    deadline_ms: int


class Relays:
    """Requests in flight to clients."""

    def __init__(self) -> None:
        self._number = 0
        self._waiting: dict[tuple[ChannelId, int], _Waiting] = {}

    def ask(
        self, request: Request, client: Client, command: Command, reply: Reply, *, timeout_ms: int = TIMEOUT_MS
    ) -> None:
        """Send *command* to *client*; *reply* turns the client's answer into the answer to *request*."""
        self._number = (self._number + 1) & 0x7FFFFFFF
        command.opaque = self._number
        command.serializer = client.serializer
        deadline_ms = request.now_ms + timeout_ms
        if not self._waiting:
            request.effects.append(SetTimer(TIMER, deadline_ms))
        if len(self._waiting) >= WAITING_MAX:
            oldest = next(iter(self._waiting))
            request.effects += _finish(self._waiting.pop(oldest), None)
        self._waiting[client.channel, self._number] = _Waiting(request, reply, deadline_ms)
        request.effects.append(SendBytes(client.channel, [encode_command(command)]))

    def answered(self, channel: ChannelId, command: Command) -> list[Effect]:
        """Answer the request that waits for this answer of a client."""
        waiting = self._waiting.pop((channel, command.opaque), None)
        return [] if waiting is None else _finish(waiting, command)

    def closed(self, channel: ChannelId) -> list[Effect]:
        """Answer the requests that wait for a client whose channel closed."""
        effects: list[Effect] = []
        for key in [key for key in self._waiting if key[0] == channel]:
            effects += _finish(self._waiting.pop(key), None)
        return effects

    def on_timer(self, name: str, now_ms: int, effects: list[Effect]) -> None:
        """Answer the requests whose deadline has passed."""
        assert name == TIMER
        for key, waiting in list(self._waiting.items()):
            if waiting.deadline_ms <= now_ms:
                effects += _finish(self._waiting.pop(key), None)
        if self._waiting:
            effects.append(SetTimer(TIMER, min(waiting.deadline_ms for waiting in self._waiting.values())))


def _finish(waiting: _Waiting, answer: Command | None) -> list[Effect]:
    request = waiting.request
    result = waiting.reply(answer)
    if isinstance(result, Refusal):
        result = response(request.command, result.code, result.remark)
    if result is None or request.command.is_one_way:
        return []
    return [SendBytes(request.channel, [encode_command(result)])]
