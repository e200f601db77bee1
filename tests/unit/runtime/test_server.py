"""The shell of a role, on real sockets: what it hands over as one event, and whom a fault concerns."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

import pytest
import uvloop

from holdfast.machine import effects, events
from holdfast.model.errors import DiskFull
from holdfast.runtime import channel as channel_module
from holdfast.runtime.channel import FrameLimits
from holdfast.runtime.server import MachineServer, now_ms
from holdfast.sim.world.disk import SimDisk
from holdfast.wire.frames.command import Command, encode_command

REQUEST = encode_command(Command(code=1, opaque=1))


class Echo:
    """Sends back what it was sent; breaks on what it is told to break on."""

    def __init__(self) -> None:
        self.turns: list[int] = []  # how many reads each event brought
        self.broken_by = b"\0"

    def handle(self, event: events.Event) -> list[effects.Effect]:
        reads = event.reads if isinstance(event, events.ReadsReceived) else [event]
        answers: list[effects.Effect] = []
        for read in reads:
            if isinstance(read, events.FramesReceived):
                bodies = [bytes(frame.body) for frame in read.frames]
                if self.broken_by in bodies:
                    raise ZeroDivisionError
                answers.append(effects.SendBytes(read.channel, bodies))
        if answers:
            self.turns.append(len(answers))
        return answers


@asynccontextmanager
async def a_server(machine: Echo) -> AsyncIterator[int]:
    server = MachineServer(machine, emit=lambda _: None)
    port = await server.listen("127.0.0.1", 0)
    server.start()
    try:
        yield port
    finally:
        await server.stop()


def a_frame(body: bytes) -> bytes:
    return encode_command(Command(code=1, opaque=1, body=body))


async def test_what_is_there_to_be_read_is_one_event() -> None:
    """However many connections it came from, and every one of them gets its own bytes back."""
    machine = Echo()
    async with a_server(machine) as port:
        peers = [await asyncio.open_connection("127.0.0.1", port) for _ in range(20)]
        machine.turns.clear()
        for number, (_, writer) in enumerate(peers):
            writer.write(a_frame(b"%02d" % number) * 3)  # without giving the server a turn in between
        answers = [await reader.readexactly(6) for reader, _ in peers]
        for _, writer in peers:
            writer.close()

    assert answers == [b"%02d" % number * 3 for number in range(20)]
    assert len(machine.turns) < 20


async def test_more_than_the_receive_buffer_holds_is_several_events() -> None:
    """Reads that are kept for later are never overwritten by the next one."""
    machine = Echo()
    size = channel_module.RECEIVE_BUFFER_SIZE // 5
    async with a_server(machine) as port:
        peers = [await asyncio.open_connection("127.0.0.1", port, limit=2 * size) for _ in range(12)]
        for number, (_, writer) in enumerate(peers):
            writer.write(a_frame(bytes([number + 1]) * size))
        answers = [await reader.readexactly(size) for reader, _ in peers]
        for _, writer in peers:
            writer.close()

    assert [set(answer) for answer in answers] == [{number + 1} for number in range(12)]


async def test_a_fault_closes_the_connection_that_met_it_and_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server goes on, and the operator sees where it happened."""
    machine = Echo()
    told: list[object] = []
    monkeypatch.setattr(
        asyncio.get_running_loop(),
        "call_exception_handler",
        lambda context: told.append(context["exception"]),
        raising=False,
    )
    async with a_server(machine) as port:
        good, bad = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        bad[1].write(a_frame(machine.broken_by))
        assert await bad[0].read() == b""
        good[1].write(a_frame(b"still here"))
        assert await good[0].readexactly(10) == b"still here"
        good[1].close()
        bad[1].close()

    assert [type(error) for error in told] == [ZeroDivisionError]


class Clockwork:
    """Wants to be woken again and again; keeps when it was, and when it should have been."""

    def __init__(self, wakes: int) -> None:
        self.wakes: list[tuple[int, int]] = []
        self.is_over = asyncio.Event()
        self._left = wakes
        self._wanted_ms = 0

    def handle(self, event: events.Event) -> list[effects.Effect]:
        if isinstance(event, events.TimerFired):
            self.wakes.append((event.now_ms, self._wanted_ms))
        elif not isinstance(event, events.Started):
            return []
        if self._left == 0:
            self.is_over.set()
            return []
        self._left -= 1
        self._wanted_ms = event.now_ms + 5
        return [effects.SetTimer("wake", self._wanted_ms)]


def keep_busy(loop: asyncio.AbstractEventLoop, machine: Clockwork) -> None:
    """A loop with something to do looks at its timers all the time."""
    if not machine.is_over.is_set():
        loop.call_soon(keep_busy, loop, machine)


def test_no_timer_fires_before_its_moment() -> None:
    """By the clock that the machine is told, however busy the loop is: it would take one moment for two."""

    async def scenario() -> None:
        machine = Clockwork(40)
        server = MachineServer(machine, emit=lambda _: None)
        server.start()
        keep_busy(asyncio.get_running_loop(), machine)
        await machine.is_over.wait()
        await server.stop()

        assert len(machine.wakes) == 40
        assert [wake for wake in machine.wakes if wake[0] < wake[1]] == []

    uvloop.run(scenario())


class Clerk:
    """Writes a file as often as it is asked to, and notes the outcome."""

    def __init__(self) -> None:
        self.outcomes: asyncio.Queue[events.Event] = asyncio.Queue()

    def handle(self, event: events.Event) -> list[effects.Effect]:
        if isinstance(event, events.FileWritten | events.DiskFault):
            self.outcomes.put_nowait(event)
        if isinstance(event, events.TimerFired):
            return [effects.WriteFile("config/a.json", event.name.encode())]
        return []


async def test_a_file_without_space_is_reported_as_a_shortage_and_not_as_a_broken_disk() -> None:
    """Every attempt; the machine decides when to try again."""
    machine, disk = Clerk(), SimDisk()
    server = MachineServer(machine, emit=lambda _: None, disk=disk)
    server.start()

    def refuse(call: str, path: str) -> None:
        raise DiskFull(f"no space for {path}")

    disk.before = refuse
    for version in ("first", "second"):
        server.feed(events.TimerFired(version, 0))
        outcome = await machine.outcomes.get()
        assert isinstance(outcome, events.DiskFault)
        assert (outcome.path, outcome.is_full) == ("config/a.json", True)
    disk.before = None
    server.feed(events.TimerFired("third", 0))
    assert isinstance(await machine.outcomes.get(), events.FileWritten)
    await server.stop()

    assert disk.read_file("config/a.json") == b"third"


async def test_a_stop_waits_for_writes_that_begin_when_others_end() -> None:
    """A value that changes while it is written is written again, also in the last moment."""
    disk = SimDisk()

    class Chain(Clerk):
        """Writes three versions of a file, each when the one before is on disk."""

        def handle(self, event: events.Event) -> list[effects.Effect]:
            if isinstance(event, events.Stopping):
                return [effects.WriteFile("config/a.json", b"1")]
            written = disk.read_file("config/a.json")
            if isinstance(event, events.FileWritten) and written != b"3":
                return [effects.WriteFile("config/a.json", b"%d" % (int(written or 0) + 1))]
            return []

    server = MachineServer(Chain(), emit=lambda _: None, disk=disk)
    server.start()
    await server.stop()

    assert disk.read_file("config/a.json") == b"3"


class Pausing(Echo):
    """Echoes, and pauses a connection for a while after each read of it."""

    def __init__(self, *pauses_ms: int) -> None:
        super().__init__()
        self._pauses_ms = list(pauses_ms)

    def handle(self, event: events.Event) -> list[effects.Effect]:
        answers = super().handle(event)
        if answers and self._pauses_ms:
            until_ms = event.now_ms + self._pauses_ms.pop(0)
            answers.append(effects.PauseReading(answers[0].channel, until_ms))  # type: ignore[union-attr]
        return answers


async def test_a_paused_connection_is_read_later_and_loses_nothing() -> None:
    """Others are read meanwhile."""
    server = MachineServer(Pausing(60, 3_600_000), emit=lambda _: None)
    port = await server.listen("127.0.0.1", 0)
    server.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for body in (b"1", b"2"):  # The first pause ends by itself.
        writer.write(a_frame(body))
        assert await reader.readexactly(1) == body
    writer.write(a_frame(b"3"))
    await writer.drain()
    other_reader, other = await asyncio.open_connection("127.0.0.1", port)
    other.write(a_frame(b"x"))
    assert await other_reader.readexactly(1) == b"x"

    (paused,) = server._pauses
    assert not cast("asyncio.Transport", paused._transport).is_reading()
    server._resume_reading(paused)
    assert await reader.readexactly(1) == b"3"

    other.close()
    writer.close()
    await server.stop()


async def test_the_later_of_two_pauses_counts_and_a_closed_connection_has_none() -> None:
    """A pause of a peer that has left, or that the role closes, is forgotten."""
    machine = Echo()
    server = MachineServer(machine, emit=lambda _: None)
    port = await server.listen("127.0.0.1", 0)
    server.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(a_frame(b"1"))
    await reader.readexactly(1)
    (channel,) = server._channels

    until = now_ms() + 60_000
    for at in (until - 50_000, until, until - 30_000):
        server._perform_all([effects.PauseReading(events.ChannelId(channel), at)])
    (timer,) = server._pauses.values()
    assert timer.when() - asyncio.get_running_loop().time() > 58
    assert next(each.value for each in server.samples() if each.name == "connections_paused") == 1

    server._perform_all([effects.CloseChannel(events.ChannelId(channel))])
    assert await reader.read() == b""
    assert not server._pauses
    server._perform_all([effects.PauseReading(events.ChannelId(channel), until)])
    assert not server._pauses
    writer.close()
    await server.stop()


async def test_a_frame_above_the_limits_of_the_role_closes_its_connection() -> None:
    """Counted; connections that the role opens have no such limit."""
    server = MachineServer(Echo(), emit=lambda _: None, frame_limits=FrameLimits(1_000, 200))
    port = await server.listen("127.0.0.1", 0)
    for frame in (a_frame(bytes(2_000)), encode_command(Command(code=1, opaque=1, fields={"x": "y" * 300}))):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(frame)
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read() == b""
        writer.close()

    assert next(each.value for each in server.samples() if each.name == "frames_refused") == 2
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(a_frame(b"x" * 500))
    assert await reader.readexactly(500) == b"x" * 500
    writer.close()
    await server.stop()
