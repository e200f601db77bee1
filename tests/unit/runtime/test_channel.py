import asyncio
import struct
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest
from tests.support.deliveries import poll_until

from holdfast.machine.effects import Log
from holdfast.runtime import channel as channel_module
from holdfast.runtime.budget import MemoryBudget
from holdfast.runtime.channel import Channel
from holdfast.wire.frames.frame import Frame


def a_frame(body: bytes, header: bytes = b"{}") -> bytes:
    return struct.pack(">II", 4 + len(header) + len(body), len(header)) + header + body


class Owner:
    """Records what happens, with the bytes copied out."""

    def __init__(self) -> None:
        self.opened: asyncio.Queue[Channel] = asyncio.Queue()
        self.bodies: asyncio.Queue[bytes] = asyncio.Queue()
        self.closed: asyncio.Queue[str] = asyncio.Queue()

    def channel_opened(self, channel: Channel) -> None:
        self.opened.put_nowait(channel)

    def frames_received(self, channel: Channel, frames: list[Frame]) -> None:
        for frame in frames:
            self.bodies.put_nowait(bytes(frame.body))

    def channel_closed(self, channel: Channel, reason: str) -> None:
        self.closed.put_nowait(reason)


@asynccontextmanager
async def connected(
    budget: MemoryBudget | None = None,
) -> AsyncIterator[tuple[Owner, asyncio.StreamReader, asyncio.StreamWriter]]:
    """Provide the owner of a channel and the far end of its real connection."""
    owner = Owner()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Channel(owner, budget), "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    try:
        yield owner, reader, writer
    finally:
        writer.close()
        server.close()


@pytest.mark.parametrize("size", [0, 1, 1000, channel_module.RECEIVE_BUFFER_SIZE, 3_000_000])
async def test_a_frame_of_any_size_arrives_whole(size: int) -> None:
    """Also one larger than the buffer that all connections share."""
    async with connected() as (owner, _reader, writer):
        body = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
        writer.write(a_frame(body) + a_frame(b"next"))
        await writer.drain()

        assert await owner.bodies.get() == body
        assert await owner.bodies.get() == b"next"


async def test_connections_that_stop_in_the_middle_of_a_frame_do_not_disturb_each_other() -> None:
    """They share one receive buffer, but each keeps its own beginning."""
    async with connected() as (owner, _reader, writer):
        first = await owner.opened.get()
        host, port = writer.get_extra_info("peername")
        _, other = await asyncio.open_connection(host, port)
        await owner.opened.get()
        one, two = a_frame(b"one" * 100), a_frame(b"two" * 100)
        for at in range(0, len(one), 50):
            writer.write(one[at : at + 50])
            other.write(two[at : at + 50])
            await asyncio.sleep(0)

        assert {await owner.bodies.get(), await owner.bodies.get()} == {b"one" * 100, b"two" * 100}
        assert first.is_open
        other.close()


def test_a_large_frame_that_comes_byte_by_byte_is_not_copied_byte_by_byte() -> None:
    """Its buffer stays until it is full, then doubles: a slow peer must not buy our time with its own."""
    channel = Channel(Owner())
    frame = a_frame(b"x" * 4_000_000)
    buffers = set()
    at = 0
    while at < 3_000_000:
        part = channel.get_buffer(-1)
        size = min(len(part), 300_000 if at < 300_000 else 1000)
        part[:size] = frame[at : at + size]
        channel.buffer_updated(size)
        buffers.add(id(channel._unfinished))
        at += size

    assert len(buffers) < 10


async def test_a_lying_length_closes_that_connection() -> None:
    """Nothing is answered; the owner is told why."""
    async with connected() as (owner, reader, writer):
        writer.write(struct.pack(">II", 0x7FFFFFFF, 0))

        assert "outside" in await owner.closed.get()
        with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
            await reader.readexactly(1)


async def test_pieces_leave_in_order_whatever_their_sizes() -> None:
    """Small ones are joined, large ones go as they are."""
    async with connected() as (owner, reader, _writer):
        channel = await owner.opened.get()
        large = memoryview(bytes(100_000))

        channel.send([b"a"])
        channel.send([b"b", bytearray(b"c")])
        channel.send([b"d", large, b"e"])

        assert await reader.readexactly(4) == b"abcd"
        assert await reader.readexactly(len(large)) == large
        assert await reader.readexactly(1) == b"e"


async def test_a_peer_that_does_not_read_is_not_read_from() -> None:
    """Its requests stay in its own socket buffers until it takes its answers."""
    async with connected() as (owner, reader, writer):
        channel = await owner.opened.get()
        transport = channel._transport
        assert transport is not None
        channel.send([bytes(64_000_000)])

        assert not transport.is_reading()

        await reader.readexactly(64_000_000)
        writer.write(a_frame(b"after"))
        assert await owner.bodies.get() == b"after"


async def test_answers_that_a_peer_does_not_take_are_held_against_the_budget() -> None:
    """All of them, also those that come while it is behind; taken ones are not held any more."""
    lines: list[Log] = []
    budget = MemoryBudget(1 << 30, lines.append)

    async with connected(budget) as (owner, reader, _writer):
        channel = await owner.opened.get()
        channel.send([bytes(30_000_000)])
        channel.send([bytes(30_000_000)])

        assert budget.pressure.held > 40_000_000, "what the sockets have not swallowed"

        await reader.readexactly(60_000_000)
        channel.send([b"x"])
        await reader.readexactly(1)
        assert budget.pressure.held == 0


async def test_a_peer_that_takes_nothing_is_cut_off_when_the_budget_is_spent() -> None:
    """With the reason for the log, and what it held is given back."""
    lines: list[Log] = []
    budget = MemoryBudget(50_000_000, lines.append)

    async with connected(budget) as (owner, _reader, _writer):
        channel = await owner.opened.get()
        for _ in range(10):
            channel.send([bytes(10_000_000)])

        assert "unread answers" in await owner.closed.get()
        assert budget.pressure.held == 0


def receive(channel: Channel, data: bytes) -> Iterator[int]:
    """Let *data* arrive in reads of at most 100 000 bytes; yield how much has come."""
    at = 0
    while at < len(data):
        part = channel.get_buffer(-1)
        size = min(len(part), len(data) - at, 100_000)
        part[:size] = data[at : at + size]
        channel.buffer_updated(size)
        at += size
        yield at


def test_unfinished_frames_are_held_against_the_budget() -> None:
    """What has come of them, not what they promise; a whole frame is not held any more, nor is its buffer."""
    lines: list[Log] = []
    budget = MemoryBudget(1 << 30, lines.append)
    channel = Channel(Owner(), budget)
    frame = a_frame(b"x" * 4_000_000)

    for at in receive(channel, frame):
        assert at == len(frame) or at <= budget.pressure.held <= 2 * at

    assert budget.pressure.held == 0
    assert channel._buffer.nbytes == channel_module.RECEIVE_BUFFER_SIZE


def test_the_oldest_unfinished_frame_goes_when_the_budget_is_spent() -> None:
    """Somebody who stalls with much must not keep others from sending."""
    lines: list[Log] = []
    owner, budget = Owner(), MemoryBudget(5_000_000, lines.append)
    stalled, other = Channel(owner, budget), Channel(owner, budget)

    for _ in receive(stalled, a_frame(b"s" * 8_000_000)[:3_000_000]):
        assert stalled.closing_reason == ""
    for _ in receive(other, a_frame(b"o" * 2_000_000)):
        assert other.closing_reason == ""

    assert "unfinished requests" in stalled.closing_reason
    assert owner.bodies.get_nowait() == b"o" * 2_000_000
    assert budget.pressure.held == 0


class Unconnected(asyncio.Transport):
    """A transport without a socket, for bytes that the test puts into the buffer itself."""

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Ignore the limits."""


async def test_loops_in_two_threads_do_not_receive_into_the_same_memory() -> None:
    """A blocking client has a loop in a thread of its own; both may be in the middle of a read."""
    owners = Owner(), Owner()
    channels = [Channel(owners[0])]
    other_thread = threading.Thread(target=lambda: channels.append(Channel(owners[1])))
    other_thread.start()
    other_thread.join()
    frames = a_frame(b"of this thread"), a_frame(b"of another")
    for channel, frame in zip(channels, frames, strict=True):
        channel.connection_made(Unconnected())
        channel.get_buffer(-1)[: len(frame)] = frame

    for channel, frame in zip(channels, frames, strict=True):
        channel.buffer_updated(len(frame))

    assert owners[0].bodies.get_nowait() == b"of this thread"
    assert owners[1].bodies.get_nowait() == b"of another"


async def test_a_peer_that_has_read_its_answers_stays_paused_if_the_owner_wants_that() -> None:
    """There are two reasons not to read from a peer; each ends by itself."""
    async with connected() as (owner, reader, writer):
        channel = await owner.opened.get()
        transport = channel._transport
        assert transport is not None
        channel.pause_reading()
        channel.send([bytes(32_000_000)])
        await reader.readexactly(32_000_000)
        await poll_until(lambda: not transport.get_write_buffer_size())
        writer.write(a_frame(b"late"))
        await writer.drain()

        assert not transport.is_reading()
        channel.resume_reading()
        assert await owner.bodies.get() == b"late"


async def test_the_end_of_a_pause_does_not_read_from_a_peer_with_unread_answers() -> None:
    """Its backlog stays limited."""
    async with connected() as (owner, reader, _writer):
        channel = await owner.opened.get()
        transport = channel._transport
        assert transport is not None
        channel.send([bytes(32_000_000)])
        channel.pause_reading()
        channel.resume_reading()

        assert not transport.is_reading()
        await reader.readexactly(32_000_000)
        await poll_until(transport.is_reading)


@pytest.mark.parametrize(
    ("peername", "text"),
    [(("127.0.0.1", 80), "127.0.0.1:80"), (("::1", 80, 0, 0), "[::1]:80"), ("", "unknown"), (None, "unknown")],
)
def test_the_address_of_a_peer_is_text(peername: object, text: str):
    """An IPv6 address stands in brackets, so that its port can be told from it."""
    assert channel_module.peer_text(peername) == text
