"""Channels that speak no frames: what a role hears of them, on real sockets."""

import asyncio

from holdfast.machine import effects, events
from holdfast.runtime.server import MachineServer


class Talker:
    """Dials where it is told to, greets whom it dialed, and echoes what it hears."""

    def __init__(self, dials: str | None = None) -> None:
        self._dials = dials
        self.opened: list[tuple[str | None, str]] = []
        self.heard = b""
        self.closed = asyncio.Event()

    def handle(self, event: events.Event) -> list[effects.Effect]:
        match event:
            case events.Started() if self._dials is not None:
                return [effects.OpenChannel(self._dials, "talk", is_stream=True)]
            case events.ChannelOpened():
                self.opened.append((event.dialed, event.purpose))
                return [] if event.dialed is None else [effects.SendBytes(event.channel, [b"\0", b"\xff" * 9])]
            case events.StreamReceived():
                self.heard += bytes(event.data)
                if len(self.heard) < 10:
                    return []
                return [effects.SendBytes(event.channel, [self.heard]), effects.CloseChannel(event.channel)]
            case events.ChannelClosed():
                self.closed.set()
        return []


async def test_both_ends_hear_bytes_as_they_come_and_what_the_channel_is_for() -> None:
    """Nothing is taken for a frame, whatever it looks like."""
    answerer = Talker()
    server = MachineServer(answerer, emit=lambda _: None)
    port = await server.listen("127.0.0.1", 0, stream_purpose="talk")
    server.start()
    dialer = Talker(f"127.0.0.1:{port}")
    client = MachineServer(dialer, emit=lambda _: None)
    client.start()

    await asyncio.wait_for(dialer.closed.wait(), 10)

    assert answerer.heard == dialer.heard == b"\0" + b"\xff" * 9
    assert answerer.opened == [(None, "talk")]
    assert dialer.opened == [(f"127.0.0.1:{port}", "talk")]
    await client.stop()
    await server.stop()
