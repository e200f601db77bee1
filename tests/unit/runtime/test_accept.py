"""Connections that may begin with TLS: what gets a channel, and what strangers can do to those who have one."""

import asyncio
import contextlib
import resource
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.support.certificates import RUNNERS, Certificates, Run
from tests.support.deliveries import poll_until

from holdfast.machine.effects import Log
from holdfast.machine.security_options import SecurityOptions
from holdfast.runtime import accept as accept_module
from holdfast.runtime.accept import Acceptor
from holdfast.runtime.budget import MemoryBudget
from holdfast.runtime.channel import Channel
from holdfast.runtime.tls import RoleTls, client_context
from holdfast.wire.frames.frame import Frame

pytestmark = pytest.mark.parametrize("run", RUNNERS)

CLIENT_HELLO_HEAD = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"
MIB = 1 << 20


def a_frame(body: bytes) -> bytes:
    return struct.pack(">II", 6 + len(body), 2) + b"{}" + body


class Echo:
    """Answers every frame with the same body, in pieces as a broker answers a pull."""

    def __init__(self) -> None:
        self.opened: asyncio.Queue[Channel] = asyncio.Queue()
        self.closed: asyncio.Queue[str] = asyncio.Queue()

    def channel_opened(self, channel: Channel) -> None:
        self.opened.put_nowait(channel)

    def frames_received(self, channel: Channel, frames: list[Frame]) -> bool:
        for frame in frames:
            body = bytes(frame.body)
            middle = len(body) // 2
            channel.send([a_frame(body)[:10], memoryview(body)[:middle], memoryview(body)[middle:]])
        return False

    def channel_closed(self, channel: Channel, reason: str) -> None:
        self.closed.put_nowait(reason)


class Port:
    """A listening port, its log and those who connect to it."""

    def __init__(self, acceptor: Acceptor, port: int, echo: Echo, lines: list[Log], files: Certificates) -> None:
        self.acceptor = acceptor
        self.number = port
        self.echo = echo
        self.lines = lines
        self.files = files

    async def open(self, *, tls: bool, **how: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        context = client_context(self.files.client(**how), self.lines.append).current if tls else None
        return await asyncio.open_connection("127.0.0.1", self.number, ssl=context, limit=64 * MIB)

    def count(self, reason: str) -> float:
        samples = self.acceptor.samples()
        return next(sample.value for sample in samples if sample.labels.get("reason") == reason)

    @property
    def arriving(self) -> float:
        return next(sample.value for sample in self.acceptor.samples() if sample.name == "connections_arriving")


@asynccontextmanager
async def listening(files: Certificates, budget: MemoryBudget | None = None, **options: Any) -> AsyncIterator[Port]:
    """Provide a port with TLS."""
    lines: list[Log] = []
    echo = Echo()
    settings = SecurityOptions(**{"tls": "permissive", **files.options, **options})
    tls = RoleTls(settings, lines.append)
    assert tls.certificate is not None
    acceptor = Acceptor(tls, tls.certificate, lines.append)
    port = await acceptor.listen("127.0.0.1", 0, lambda: Channel(echo, budget))
    try:
        yield Port(acceptor, port, echo, lines, files)
    finally:
        acceptor.close()
        while not echo.opened.empty():
            echo.opened.get_nowait().abort("the test is over")
        await asyncio.sleep(0.01)  # Let transports close their sockets.


async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, body: bytes) -> bytes:
    """Return the answer to a frame with *body*."""
    writer.write(a_frame(body))
    size = struct.unpack(">I", await reader.readexactly(4))[0]
    return (await reader.readexactly(size))[6:]


async def hang_up(*writers: asyncio.StreamWriter) -> None:
    for writer in writers:
        writer.close()
    for writer in writers:
        with contextlib.suppress(OSError, ssl.SSLError):
            await writer.wait_closed()


@pytest.fixture
def files(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path)


def test_one_port_serves_tls_and_plain_connections(run: Run, files: Certificates):
    """Frames of any size, in both directions."""

    async def story() -> None:
        async with listening(files) as port:
            secured, plain = await port.open(tls=True), await port.open(tls=False)
            for body in (b"", b"x" * 1000, bytes(range(256)) * 20_000):
                assert await ask(*secured, body) == body
                assert await ask(*plain, body) == body
            assert (await port.echo.opened.get()).peer.startswith("127.0.0.1:")
            assert port.arriving == 0
            assert port.lines == []
            await hang_up(secured[1], plain[1])
            assert await port.echo.closed.get()

    run(story())


def test_many_frames_in_one_tls_write_are_read(run: Run, files: Certificates):
    """Also those that end in the middle of a record, and larger ones than the receive buffer."""

    async def story() -> None:
        async with listening(files) as port:
            reader, writer = await port.open(tls=True)
            bodies = [b"%d" % size * size for size in (0, 1, 5_000, 700_000, 3, 20_000)]
            writer.write(b"".join(map(a_frame, bodies)))
            for body in bodies:
                size = struct.unpack(">I", await reader.readexactly(4))[0]
                assert (await reader.readexactly(size))[6:] == body
            await hang_up(writer)

    run(story())


def test_plain_connections_are_refused_where_tls_is_enforced(run: Run, files: Certificates):
    """With one line in the log; nobody gets to see a channel."""

    async def story() -> None:
        async with listening(files, tls="enforcing") as port:
            reader, writer = await port.open(tls=False)
            writer.write(a_frame(b"plain"))
            with contextlib.suppress(ConnectionResetError):
                assert await reader.read() == b""
            assert [line.event for line in port.lines] == ["plain connection refused"]
            assert port.count("plain") == 1
            assert port.echo.opened.empty()

            secured = await port.open(tls=True)
            assert await ask(*secured, b"hello") == b"hello"
            await hang_up(writer, secured[1])

    run(story())


def test_what_a_peer_does_not_read_is_counted(run: Run, files: Certificates):
    """A single large answer, too: otherwise many TLS connections could fill the memory unnoticed."""

    async def story() -> None:
        budget = MemoryBudget(1024 * MIB, lambda _: None)
        async with listening(files, budget) as port:
            context = client_context(files.client(), lambda _: None).current
            loop = asyncio.get_running_loop()
            plain = socket.create_connection(("127.0.0.1", port.number))
            secured = await loop.run_in_executor(None, lambda: context.wrap_socket(plain, server_hostname="127.0.0.1"))
            channel = await port.echo.opened.get()
            channel.send([bytes(32 * MIB)])

            assert budget.pressure.held > 16 * MIB

            def read_all() -> int:
                size = 0
                while size < 32 * MIB:
                    size += len(secured.recv(MIB))
                return size

            assert await loop.run_in_executor(None, read_all) == 32 * MIB
            await poll_until(lambda: not budget.pressure.held)
            secured.close()

    run(story())


async def silent(port: Port) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await port.open(tls=False)


async def dripping(port: Port) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Send the beginning of a handshake byte after byte, for ever."""
    reader, writer = await port.open(tls=False)

    async def drip() -> None:
        with contextlib.suppress(OSError):
            for number in range(100_000):
                writer.write(CLIENT_HELLO_HEAD[number : number + 1] or b"\x00")
                await writer.drain()
                await asyncio.sleep(0.05)

    writer.drip = asyncio.create_task(drip())  # type: ignore[attr-defined]
    return reader, writer


async def garbage(port: Port) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await port.open(tls=False)
    writer.write(b"\x16" + b"\xff" * 3000)
    return reader, writer


async def endless(port: Port) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Announce the longest handshake that there is, and keep sending it."""
    reader, writer = await port.open(tls=False)
    writer.write((b"\x16\x03\x01\x40\x00\x01\xff\xff\xff" + b"\x00" * 16380) * 4)
    return reader, writer


Attack = Callable[[Port], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]


async def wait_until_closed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while await reader.read(65536):
            pass
    if (drip := getattr(writer, "drip", None)) is not None:
        drip.cancel()
    writer.close()


@pytest.mark.parametrize("attack", [silent, dripping, garbage, endless])
def test_handshakes_that_never_end_are_closed_and_disturb_nobody(run: Run, files: Certificates, attack: Attack):
    """Each costs a bounded time; a client beside them works all the while, and another one can come."""

    async def story() -> None:
        async with listening(files, handshake_timeout_ms=500) as port:
            client = await port.open(tls=True)
            attackers = [await attack(port) for _ in range(150)]
            closed = asyncio.gather(*(wait_until_closed(*attacker) for attacker in attackers))
            while not closed.done():
                assert await ask(*client, b"still here") == b"still here"
                newcomer = await port.open(tls=True)
                assert await ask(*newcomer, b"new") == b"new"
                await hang_up(newcomer[1])
            await closed

            assert await ask(*client, b"still here") == b"still here"
            assert port.count("slow") + port.count("failed") == len(attackers)
            assert port.arriving == 0
            await hang_up(client[1])

    run(story())


def test_too_many_arriving_connections_displace_the_oldest(run: Run, files: Certificates):
    """So that a working client, which needs a moment only, finds room among any number of silent ones."""

    async def story() -> None:
        async with listening(files, handshakes_max=20) as port:
            strangers = [await silent(port) for _ in range(300)]
            client = await port.open(tls=True)
            assert await ask(*client, b"hello") == b"hello"

            assert port.arriving <= 20
            assert port.count("crowded") >= 280
            await asyncio.gather(*(wait_until_closed(*stranger) for stranger in strangers[:200]))
            await hang_up(client[1], *(writer for _, writer in strangers))

    run(story())


def test_those_who_arrive_are_closed_with_the_port(run: Run, files: Certificates):
    """At any stage."""

    async def story() -> None:
        async with listening(files, handshake_timeout_ms=600_000) as port:
            strangers = [await attack(port) for attack in (silent, dripping)]
            await poll_until(lambda: port.arriving == 2)
            port.acceptor.close()
            await asyncio.gather(*(wait_until_closed(*stranger) for stranger in strangers))
            assert port.arriving == 0

    run(story())


def test_probes_leave_no_trace(run: Run, files: Certificates):
    """A load balancer connects and hangs up every second."""

    async def story() -> None:
        async with listening(files) as port:
            _, writer = await port.open(tls=False)
            await poll_until(lambda: port.arriving > 0)
            await hang_up(writer)
            await poll_until(lambda: not port.arriving)
            assert port.lines == []

    run(story())


def test_a_client_that_must_show_a_certificate_is_named_in_the_log(run: Run, files: Certificates):
    """With the reason of the failure."""

    async def story() -> None:
        async with listening(files, tls_client_auth="required") as port:
            known = await port.open(tls=True, cert=files.cert, key=files.key)
            assert await ask(*known, b"hello") == b"hello"
            with contextlib.suppress(ssl.SSLError, ConnectionResetError):
                reader, writer = await port.open(tls=True)
                with contextlib.suppress(OSError):
                    await reader.read()
                writer.close()
            await poll_until(lambda: bool(port.lines))
            assert port.lines[0].event == "TLS handshake not finished"
            assert "peer did not return a certificate" in str(port.lines[0].fields["reason"])
            assert str(port.lines[0].fields["peer"]).startswith("127.0.0.1:")
            await hang_up(known[1])

    run(story())


def test_new_certificates_are_used_without_a_lost_connection(
    run: Run, files: Certificates, monkeypatch: pytest.MonkeyPatch
):
    """The port looks at its files by itself."""
    monkeypatch.setattr(accept_module, "WATCH_S", 0.01)

    async def story() -> None:
        async with listening(files) as port:
            old = await port.open(tls=True)
            files.renew()
            await poll_until(lambda: bool(port.lines))
            new = await port.open(tls=True)

            assert serial_of(new[1]) != serial_of(old[1])
            assert await ask(*old, b"still here") == b"still here"
            assert await ask(*new, b"hello") == b"hello"
            await hang_up(old[1], new[1])

    run(story())


def serial_of(writer: asyncio.StreamWriter) -> object:
    return writer.get_extra_info("peercert")["serialNumber"]


def test_a_port_without_descriptors_recovers(run: Run, files: Certificates, monkeypatch: pytest.MonkeyPatch):
    """Nothing is accepted for a while, instead of trying in a circle."""
    monkeypatch.setattr(accept_module, "_RESOURCE_PAUSE_S", 0.01)

    async def story() -> None:
        async with listening(files) as port:
            stranger = socket.socket()
            stranger.setblocking(False)
            limits = resource.getrlimit(resource.RLIMIT_NOFILE)
            with socket.socket() as probe:
                free = probe.fileno()
            resource.setrlimit(resource.RLIMIT_NOFILE, (free, limits[1]))
            try:
                await asyncio.get_running_loop().sock_connect(stranger, ("127.0.0.1", port.number))
                await poll_until(lambda: bool(port.lines))
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, limits)
            assert port.lines[0].event == "cannot accept connections"
            await poll_until(lambda: port.arriving > 0)
            stranger.close()

    run(story())
