"""One machine and the channels that a test opens to it: frames go in, answers come out as commands.

    server = a_name_server()
    answer = server.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "orders"})

Time stands still unless a test moves it. What a machine wants besides sending (timers, files, logs) is kept in
`effects`, and the test reacts to it.
"""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.machine.effects import CloseChannel, Effect, Log, SendBytes
from holdfast.machine.events import (
    ChannelClosed,
    ChannelId,
    ChannelOpened,
    Event,
    FramesReceived,
    Started,
    TimerFired,
)
from holdfast.machine.machine import Machine
from holdfast.wire.frames.command import JSON, ONE_WAY, Command, decode_command, encode_command
from holdfast.wire.frames.frame import split_frames

START_MS = 1_700_000_000_000


class MachineHarness:
    """One machine, with clients.

    Attributes:
        effects: Everything that the machine wanted, with what it sent.
        answers: By channel, what it sent and no test has taken.
        streams: By channel, what was sent on channels without frames. A test adds the channels.
    """

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.now_ms = START_MS
        self.effects: list[Effect] = []
        self.answers: dict[int, list[Command]] = {}
        self.streams: dict[int, bytearray] = {}
        self._channel_count = 0
        self._opaque = 0
        self.feed(Started(self.now_ms))

    def feed(self, event: Event) -> list[Effect]:
        """Let *event* happen; return all effects."""
        effects = self.machine.handle(event)
        self.effects += effects
        for effect in effects:
            if isinstance(effect, SendBytes):
                self._keep_sent(effect)
        return effects

    def _keep_sent(self, effect: SendBytes) -> None:
        data = b"".join(bytes(piece) for piece in effect.pieces)
        if effect.channel in self.streams:
            self.streams[effect.channel] += data
            return
        frames, consumed = split_frames(memoryview(data))
        assert consumed == len(data), "the machine sent part of a frame"
        self.answers[effect.channel] += [decode_command(frame) for frame in frames]

    # Channels.

    def connect(self, channel: int | None = None) -> ChannelId:
        """Let a client connect, with the next number unless one is given; return its channel."""
        self._channel_count += 1
        number = ChannelId(self._channel_count if channel is None else channel)
        self.answers[number] = []
        self.feed(ChannelOpened(number, self._client_address(number), self.now_ms))
        return number

    def _client_address(self, channel: ChannelId) -> str:
        return f"192.0.2.1:{40000 + channel}"

    def disconnect(self, channel: int) -> list[Effect]:
        """Let a client disconnect."""
        return self.feed(ChannelClosed(ChannelId(channel), self.now_ms))

    def receive(self, channel: int, data: bytes) -> list[Effect]:
        """Let *data*, which is whole frames, arrive in one read."""
        buffer = bytearray(data)
        frames, consumed = split_frames(memoryview(buffer))
        assert consumed == len(data), "the test's own frames are cut"
        effects = self.feed(FramesReceived(ChannelId(channel), frames, self.now_ms))
        # The receive buffer is used again: a machine that kept a view of it reads rubbish now, as in real life.
        buffer[:] = bytes(len(buffer))
        return effects

    def pop_answers(self, channel: int) -> list[Command]:
        """Take everything that was sent to *channel* since the last time."""
        answers, self.answers[channel] = self.answers[channel], []
        return answers

    # Requests.

    def new_request(self, code: int, fields: Mapping[str, str] | None = None, **parts: object) -> Command:
        """Return a request with a number of its own."""
        self._opaque += 1
        return Command(code=code, opaque=self._opaque, fields=dict(fields or {}), **parts)  # type: ignore[arg-type]

    def request(
        self,
        code: int,
        fields: Mapping[str, str] | None = None,
        *,
        body: bytes = b"",
        channel: int | None = None,
        serializer: int = JSON,
        version: int = 479,
    ) -> Command:
        """Send one request, on a channel of its own unless one is given, and return its answer."""
        channel = channel if channel is not None else self.connect()
        request = self.new_request(code, fields, body=body, serializer=serializer, version=version)
        self.receive(channel, encode_command(request))
        (answer,) = self.pop_answers(channel)
        assert answer.opaque == request.opaque
        assert answer.is_response
        assert answer.serializer == serializer
        return answer

    def send_one_way(
        self, code: int, fields: Mapping[str, str] | None = None, *, body: bytes = b"", channel: int | None = None
    ) -> list[Command]:
        """Send a one-way request; return what was answered, which should be nothing."""
        channel = channel if channel is not None else self.connect()
        self.receive(channel, encode_command(self.new_request(code, fields, body=body, flag=ONE_WAY)))
        return self.pop_answers(channel)

    # Time, and what the machine wanted.

    def pass_time(self, milliseconds: int, *timers: str) -> None:
        """Let time pass and *timers* fire."""
        self.now_ms += milliseconds
        for name in timers:
            self.feed(TimerFired(name, self.now_ms))

    def logged(self) -> list[str]:
        """Return the events that were logged."""
        return [effect.event for effect in self.effects if isinstance(effect, Log)]

    def closed(self) -> set[ChannelId]:
        """Return the channels that the machine closed."""
        return {effect.channel for effect in self.effects if isinstance(effect, CloseChannel)}


def logs(effects: list[Effect], event: str) -> list[Log]:
    """Return the log lines of one event."""
    return [effect for effect in effects if isinstance(effect, Log) and effect.event == event]


def codes(answers: list[Command]) -> list[int]:
    """Return the response codes of *answers*."""
    return [answer.code for answer in answers]
