"""The name server on real sockets and a real disk."""

import asyncio
import json
import sys
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.support.child import Child
from tests.support.cluster.name_server_machine import a_registration, registration_fields, route_frame
from tests.support.cluster.ports import free_port

from holdfast.machine.effects import Log
from holdfast.machine.readings import Readings
from holdfast.model.errors import ConfigError, StoreError
from holdfast.nameserver.options import NameServerOptions
from holdfast.nameserver.service import NameServerService
from holdfast.wire.cluster.push_state import ReportedLinkCapacity, decode_push_state
from holdfast.wire.cluster.watch import ROUTES_CHANGED
from holdfast.wire.frames.codes import RequestCode
from holdfast.wire.frames.command import Command, decode_command, encode_command
from holdfast.wire.frames.frame import split_frames


@pytest.fixture
def unused_port() -> int:
    return free_port()


class Peer:
    """One connection of a client or a broker."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def receive(self) -> Command:
        """Return the next answer."""
        size = await self.reader.readexactly(4)
        frames, _ = split_frames(memoryview(size + await self.reader.readexactly(int.from_bytes(size))))
        return decode_command(frames[0])

    async def ask(self, code: int, fields: dict[str, str] | None = None, *, body: bytes = b"") -> Command:
        """Send one request and return its answer."""
        self.writer.write(encode_command(Command(code=code, opaque=1, fields=fields or {}, body=body)))
        return await self.receive()

    async def register(self, name: str, address: str, *topics: str) -> Command:
        """Register as a broker."""
        body = a_registration(*topics)
        return await self.ask(RequestCode.REGISTER_BROKER, registration_fields(name, address, body), body=body)

    async def close(self) -> None:
        """Disconnect."""
        self.writer.close()
        await self.writer.wait_closed()


class Running:
    """A name server that listens, and what it told its operator."""

    def __init__(self, options: NameServerOptions) -> None:
        self.logged: asyncio.Queue[Log] = asyncio.Queue()
        self.readings = Readings()  # Of no machine: this one may be busy.
        self.service = NameServerService(options, self.logged.put_nowait, self.readings)

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[Peer]:
        """Connect, and disconnect at the end."""
        host, port = self.service.address.rsplit(":", 1)
        peer = Peer(*await asyncio.open_connection(host, int(port)))
        try:
            yield peer
        finally:
            await peer.close()

    async def wait_for(self, event: str) -> Log:
        """Return the next *event* that is logged."""
        while True:
            log = await self.logged.get()
            if log.event == event:
                return log


@asynccontextmanager
async def running(**options: Any) -> AsyncIterator[Running]:
    """Run a name server on a free port."""
    server = Running(NameServerOptions(listen="127.0.0.1:0", **options))
    await server.service.start()
    try:
        yield server
    finally:
        await server.service.stop()


async def test_a_broker_registers_and_a_client_finds_it_until_its_connection_breaks():
    """From the first frame to the last, over loopback."""
    async with running() as server, server.connect() as client:
        async with server.connect() as broker:
            assert (await broker.register("a", "10.0.0.1:10911", "orders")).code == 0
            found = await client.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "orders"})
            assert json.loads(found.body)["brokerDatas"][0]["brokerName"] == "a"

        left = await server.wait_for("broker left")
        assert left.fields["reason"] == "its channel closed"
        assert (await client.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "orders"})).code == 17


async def test_frames_are_understood_however_they_are_cut():
    """Byte by byte, and two hundred queries in one write."""
    async with running() as server, server.connect() as broker, server.connect() as client:
        await broker.register("a", "10.0.0.1:10911", "orders")
        for byte in route_frame("orders", 9):
            client.writer.write(bytes([byte]))
            await client.writer.drain()
        assert (await client.receive()).opaque == 9

        client.writer.write(b"".join(route_frame("orders", number) for number in range(200)))
        assert [(await client.receive()).opaque for _ in range(200)] == list(range(200))


@pytest.mark.parametrize(
    "rubbish",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x00\x00\x00\x03\x00\x00\x00",
        b"\x7f\xff\xff\xff\x00\x00\x00\x05",
        b"\x00\x00\x00\x08\x02\x00\x00\x00abcd",
        b"\x00\x00\x00\x08\x00\x00\x00\x05{}{}",
        b"\x00\x00\x00\x06\x00\x00\x00\x02{]",
    ],
)
async def test_a_peer_that_speaks_rubbish_loses_its_connection_and_nobody_else_does(rubbish: bytes):
    """An impossible size, an unknown serializer, a header longer than its frame, a header that is not JSON."""
    async with running() as server, server.connect() as broker, server.connect() as stranger:
        await broker.register("a", "10.0.0.1:10911", "orders")

        stranger.writer.write(rubbish)

        assert await stranger.reader.read() == b""
        assert (await broker.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "orders"})).code == 0


async def test_the_kv_store_outlives_the_process(tmp_path: Path):
    """What was acknowledged is there after a restart, in the file that Java name servers use."""
    item = {"namespace": "ORDER_TOPIC_CONFIG", "key": "orders", "value": "a:4"}

    async with running(data=str(tmp_path / "data")) as server, server.connect() as client:
        assert (await client.ask(RequestCode.PUT_KV_CONFIG, item)).code == 0
        kept = json.loads((tmp_path / "data" / "kvConfig.json").read_bytes())
        assert kept == {"configTable": {"ORDER_TOPIC_CONFIG": {"orders": "a:4"}}}

    async with running(data=str(tmp_path / "data")) as server, server.connect() as client:
        assert (await client.ask(RequestCode.GET_KV_CONFIG, item)).fields == {"value": "a:4"}


async def test_two_name_servers_do_not_share_a_data_folder(tmp_path: Path):
    """The second one says so and does not start."""
    program = (
        "import sys; from holdfast.runtime.posix_disk import PosixDisk\n"
        "disk = PosixDisk(sys.argv[1]); disk.lock(); print('locked', flush=True); input()"
    )
    first = Child([sys.executable, "-c", program, str(tmp_path)], name="first name server")

    try:
        first.wait_for_line("locked", timeout_s=60)
        second = Running(NameServerOptions(listen="127.0.0.1:0", data=str(tmp_path)))
        with pytest.raises(StoreError, match="in use"):
            await second.service.start()
        await second.service.stop()
    finally:
        first.kill()


async def test_a_kv_file_that_cannot_be_read_stops_the_start(tmp_path: Path):
    """It is left alone for the operator to look at."""
    (tmp_path / "kvConfig.json").write_text("{", encoding="utf-8")

    server = Running(NameServerOptions(listen="127.0.0.1:0", data=str(tmp_path)))
    with pytest.raises(ConfigError, match=r"kvConfig\.json"):
        await server.service.start()
    await server.service.stop()
    assert (tmp_path / "kvConfig.json").read_text(encoding="utf-8") == "{"


@pytest.mark.parametrize("listen", ["nonsense", "127.0.0.1:99999", "192.0.2.1:9876"])
async def test_an_address_that_cannot_be_used_is_named(listen: str):
    """Whether it is no address or not one of ours."""
    server = Running(NameServerOptions(listen=listen, insecure=True))
    with pytest.raises(ConfigError, match=listen):
        await server.service.start()
    await server.service.stop()


async def test_a_name_server_without_access_control_is_not_open_to_a_network():
    """It does not even begin to listen."""
    server = Running(NameServerOptions(listen="0.0.0.0:0"))

    with pytest.raises(ConfigError, match=r"refused to listen on 0\.0\.0\.0"):
        await server.service.start()
    await server.service.stop()


@pytest.mark.parametrize(("listen", "is_warned"), [("127.0.0.1:0", False), ("0.0.0.0:0", True)])
async def test_listening_beyond_loopback_is_said_loudly(listen: str, *, is_warned: bool):
    """Even if the operator wants it."""
    server = Running(NameServerOptions(listen=listen, insecure=True))
    await server.service.start()
    await server.service.stop()
    warnings = [log for log in iter_queue(server.logged) if log.level == "warning"]
    assert bool(warnings) is is_warned


def iter_queue(queue: asyncio.Queue[Log]) -> list[Log]:
    return [queue.get_nowait() for _ in range(queue.qsize())]


async def test_metrics_and_health_are_served_on_a_port_of_their_own(unused_port: int):
    """Prometheus text with our counters; health says ok while the loop turns."""

    def fetch(path: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{unused_port}{path}", timeout=10) as answer:
            return str(answer.read().decode())

    async with running(metrics_listen=f"127.0.0.1:{unused_port}") as server, server.connect() as peer:
        await peer.register("a", "10.0.0.1:10911", "orders", "bills")
        await peer.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "orders"})
        metrics, health = await asyncio.to_thread(fetch, "/metrics"), await asyncio.to_thread(fetch, "/health")

    assert "holdfast_namesrv_topics 2.0" in metrics
    assert "holdfast_namesrv_brokers 1.0" in metrics
    assert "holdfast_namesrv_route_queries_total 1.0" in metrics
    assert health == "ok\n"
    with pytest.raises(urllib.error.URLError):
        fetch("/health")


async def test_a_client_that_watches_is_told_of_creation_and_death():
    """A topic that does not exist comes to be and goes again; nobody polls."""
    async with running(broker_event_spread_ms=1000) as server, server.connect() as client:
        asked = await client.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "orders", "watch": "true"})
        assert (asked.code, asked.fields) == (17, {"watching": "true"})
        async with server.connect() as broker:
            await broker.register("a", "10.0.0.1:10911", "orders", "bills")
            created = await client.receive()
        died = await client.receive()

    for notice in (created, died):
        assert (notice.code, notice.is_one_way, notice.fields) == (ROUTES_CHANGED, True, {"topics": "orders"})


async def test_a_busy_machine_is_noticed_and_told_and_what_waits_is_sent_when_it_is_not():
    """The readings are a value that somebody else keeps."""
    async with running() as server, server.connect() as client, server.connect() as broker:
        await client.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "orders", "watch": "true"})
        server.readings.memory = 95.0
        await broker.register("a", "10.0.0.1:10911", "orders")
        paused = await server.wait_for("route notices paused")
        state = decode_push_state((await broker.ask(RequestCode.GET_PUSH_STATE)).body)
        server.readings.memory = 10.0
        notice = await client.receive()

    assert paused.fields["reason"] == state.reason == "memory 95 %"
    assert (state.pace, state.pending_clients, state.watching_clients) == ("paused", 1, 1)
    assert notice.fields == {"topics": "orders"}


async def test_a_name_server_of_its_own_reads_the_machine_it_runs_on():
    """Memory and load are known on every Linux; the capacity of the link is what the operator states."""
    options = NameServerOptions(listen="127.0.0.1:0", link_capacity_mbit=2500)
    service = NameServerService(options, lambda _: None)
    await service.start()
    host, port = service.address.rsplit(":", 1)
    peer = Peer(*await asyncio.open_connection(host, int(port)))
    state = decode_push_state((await peer.ask(RequestCode.GET_PUSH_STATE)).body)
    await peer.close()
    await service.stop()

    assert isinstance(state.readings.memory, float)
    assert isinstance(state.readings.load, float)
    assert state.link_capacity == ReportedLinkCapacity(mbit=2500, source="stated")
