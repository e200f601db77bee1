"""Talking to a machine as peers do: requests go in as frames, answers come out as commands, nothing is in between.

    server = Conversation(NameServer(...))
    answer = server.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "orders"})

Time stands still unless a test moves it. What a machine asks for besides sending (timers, files, logs) is kept in
`effects` and waits there for the test to react.
"""

from collections.abc import Mapping

from holdfast.machine.effects import CloseChannel, Effect, Log, SendBytes
from holdfast.machine.events import ChannelClosed, ChannelId, ChannelOpened, Event, FramesReceived, Started
from holdfast.machine.machine import Machine
from holdfast.wire.frames.command import JSON, ONE_WAY, Command, decode_command, encode_command
from holdfast.wire.frames.frame import split_frames

START_MS = 1_700_000_000_000


class MachineHarness:
    """One machine and the channels that tests open to it."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.now_ms = START_MS
        self.effects: list[Effect] = []
        self.sent: dict[ChannelId, bytes] = {}
        self._channel_count = 0
        self._opaque = 0
        self.feed(Started(self.now_ms))

    def feed(self, event: Event) -> list[Effect]:
        """Let *event* happen; return its effects other than sending."""
        other_effects: list[Effect] = []
        for effect in self.machine.handle(event):
            if isinstance(effect, SendBytes):
                self.sent[effect.channel] = self.sent.get(effect.channel, b"") + b"".join(effect.pieces)
            else:
                other_effects.append(effect)
        self.effects += other_effects
        return other_effects

    def open(self) -> ChannelId:
        """Connect and return the channel."""
        self._channel_count += 1
        channel = ChannelId(self._channel_count)
        self.feed(ChannelOpened(channel, f"192.0.2.1:{40000 + channel}", self.now_ms))
        return channel

    def close(self, channel: ChannelId) -> list[Effect]:
        """Disconnect."""
        return self.feed(ChannelClosed(channel, self.now_ms))

    def receive(self, channel: ChannelId, data: bytes) -> list[Effect]:
        """Let *data*, which is whole frames, arrive in one read."""
        buffer = bytearray(data)
        frames, consumed = split_frames(memoryview(buffer))
        assert consumed == len(data), "the test's own frames are cut"
        effects = self.feed(FramesReceived(channel, frames, self.now_ms))
        # The receive buffer is used again: whoever kept a view of it now reads rubbish, as in real life.
        buffer[:] = bytes(len(buffer))
        return effects

    def pop_answers(self, channel: ChannelId) -> list[Command]:
        """Take everything that was sent to *channel* since the last time."""
        data = self.sent.pop(channel, b"")
        frames, consumed = split_frames(memoryview(data))
        assert consumed == len(data), "the machine sent half a frame"
        return [decode_command(frame) for frame in frames]

    def request(self, code: int, fields: Mapping[str, str] | None = None, **parts: object) -> Command:
        """Return a request with a number of its own."""
        self._opaque += 1
        return Command(code=code, opaque=self._opaque, fields=dict(fields or {}), **parts)  # type: ignore[arg-type]

    def call(
        self,
        code: int,
        fields: Mapping[str, str] | None = None,
        *,
        body: bytes = b"",
        channel: ChannelId | None = None,
        serializer: int = JSON,
        version: int = 479,
    ) -> Command:
        """Send one request, on a channel of its own unless one is given, and return its answer."""
        channel = channel if channel is not None else self.open()
        request = self.request(code, fields, body=body, serializer=serializer, version=version)
        self.receive(channel, encode_command(request))
        (answer,) = self.pop_answers(channel)
        assert answer.opaque == request.opaque
        assert answer.is_response
        assert answer.serializer == serializer
        return answer

    def send_one_way(
        self, code: int, fields: Mapping[str, str] | None = None, *, body: bytes = b"", channel: ChannelId | None = None
    ) -> list[Command]:
        """Send a one-way request; return what was answered, which should be nothing."""
        channel = channel if channel is not None else self.open()
        self.receive(channel, encode_command(self.request(code, fields, body=body, flag=ONE_WAY)))
        return self.pop_answers(channel)

    def logged(self) -> list[str]:
        """Return the events that the operator was told of."""
        return [effect.event for effect in self.effects if isinstance(effect, Log)]

    def closed(self) -> set[ChannelId]:
        """Return the channels that the machine hung up."""
        return {effect.channel for effect in self.effects if isinstance(effect, CloseChannel)}
