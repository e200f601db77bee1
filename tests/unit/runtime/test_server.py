"""The shell of a role, on real sockets: what it hands over as one event, and whom a fault concerns."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from holdfast.machine import effects, events
from holdfast.runtime import channel as channel_module
from holdfast.runtime.server import MachineServer
from holdfast.wire.command import Command, encode_command

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


def test_what_is_there_to_be_read_is_one_event() -> None:
    """However many connections it came from, and every one of them gets its own bytes back."""

    async def scenario() -> None:
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

    asyncio.run(scenario())


def test_more_than_the_receive_buffer_holds_is_several_events() -> None:
    """Reads that are kept for later are never overwritten by the next one."""

    async def scenario() -> None:
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

    asyncio.run(scenario())


def test_a_fault_closes_the_connection_that_met_it_and_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server goes on, and the operator sees where it happened."""

    async def scenario() -> None:
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

    asyncio.run(scenario())
