"""An asyncio event loop in the simulated world: its time is virtual, and its connections reach simulated servers.

The real client, the admin library and the command line run on it unchanged. While they wait, the world runs.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from holdfast.sim.world.network import Network, Socket
from holdfast.sim.world.world import World

CLIENT_HOST = "10.0.3.1"
_IDLE_MS = 600_000
"""How much virtual time may pass while a program waits for something that no timer of its own will end."""


class WorldLoop(asyncio.BaseEventLoop):
    """Runs coroutines in a simulated world."""

    def __init__(self, world: World, network: Network) -> None:
        super().__init__()
        self._clock_resolution = 1e-4
        self._selector = _WorldSelector(self, world)
        self._world = world
        self._network = network
        self._sockets: list[_ClientSocket] = []

    def time(self) -> float:
        """Return the virtual time."""
        return self._world.elapsed_ms / 1000

    async def create_connection(  # type: ignore[override]
        self,
        protocol_factory: Callable[[], asyncio.BufferedProtocol],
        host: str,
        port: int,
        *,
        ssl: None = None,
        server_hostname: None = None,
    ) -> tuple[asyncio.Transport, asyncio.BufferedProtocol]:
        """Connect to a simulated server, which has no TLS.

        Raises:
            OSError: no process listens there.
        """
        assert ssl is None
        assert server_hostname is None
        opened: asyncio.Future[None] = self.create_future()
        client_socket = _ClientSocket(self._network, protocol_factory(), opened)
        self._sockets.append(client_socket)
        self._network.connect(client_socket, f"{host}:{port}")
        await opened
        return client_socket.transport, client_socket.protocol

    def close(self) -> None:
        """Close the loop, and what programs left open."""
        for client_socket in self._sockets:
            self._network.kill(client_socket)
        super().close()

    def has_work(self) -> bool:
        """Return whether a callback is ready to run."""
        return bool(self._ready)

    def _process_events(self, event_list: list[Any]) -> None:
        """Do nothing: connections call their protocols while the world runs."""

    def _write_to_self(self) -> None:
        """Do nothing: no other thread wakes this loop."""


class _WorldSelector:
    """Lets the world run where another loop would wait for sockets."""

    def __init__(self, loop: WorldLoop, world: World) -> None:
        self._loop = loop
        self._world = world

    def select(self, timeout: float | None) -> list[Any]:
        """Let time pass until a callback is ready, or until the next timer of the loop."""
        if timeout == 0:
            return []
        span_ms = _IDLE_MS if timeout is None else math.ceil(timeout * 1000 - 1e-6)
        found = self._world.run(until_ms=self._world.now_ms + span_ms, until=self._loop.has_work)
        assert found or timeout is not None, "the program waits for something that never happens"
        return []


class _ClientSocket:
    """The owner of one simulated connection, for the network; passes its events to an asyncio protocol."""

    def __init__(self, network: Network, protocol: asyncio.BufferedProtocol, opened: asyncio.Future[None]) -> None:
        self.host = CLIENT_HOST
        self.protocol = protocol
        self.transport = _Transport(network)
        self._opened = opened

    def accepted(self, socket: Socket) -> None:
        """Fail: a client does not listen."""
        raise AssertionError(socket)

    def connected(self, socket: Socket, dialed: str, purpose: str) -> None:
        """Begin to use the connection, unless the program has given up."""
        self.transport.open(socket)
        if self._opened.cancelled():
            self.transport.close()
            return
        self.protocol.connection_made(self.transport)
        self._opened.set_result(None)

    def refused(self, dialed: str, reason: str, purpose: str) -> None:
        """Fail the attempt to connect."""
        if not self._opened.done():
            self._opened.set_exception(ConnectionRefusedError(reason))

    def received(self, socket: Socket, data: bytes) -> None:
        """Pass the bytes of one read to the protocol."""
        at = 0
        while at < len(data):
            buffer = self.protocol.get_buffer(len(data) - at)
            size = min(len(buffer), len(data) - at)
            memoryview(buffer)[:size] = data[at : at + size]
            self.protocol.buffer_updated(size)
            at += size

    def closed(self, socket: Socket, reason: str) -> None:
        """Report the end of the connection."""
        if self._opened.done() and not self._opened.cancelled():
            self.protocol.connection_lost(None)


class _Transport(asyncio.Transport):
    """Writes to a simulated connection, which takes any number of bytes at once."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self._network = network
        self._socket: Socket | None = None

    def open(self, socket: Socket) -> None:
        """Use *socket* from now on."""
        self._socket = socket

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send *data*."""
        assert self._socket is not None
        self._network.send(self._socket, bytes(data))

    def close(self) -> None:
        """Close after what was written."""
        assert self._socket is not None
        self._network.close(self._socket)

    abort = close

    def is_closing(self) -> bool:
        """Return whether the connection ends."""
        return self._socket is None or not self._socket.is_open

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return the address of the server; nothing else is known."""
        if name == "peername" and self._socket is not None:
            host, _, port = self._socket.remote_address.rpartition(":")
            return host, int(port)
        return default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Do nothing: there is no limit."""

    def get_write_buffer_size(self) -> int:
        """Return 0: everything is sent at once."""
        return 0

    def pause_reading(self) -> None:
        """Do nothing: what arrives is small."""

    def resume_reading(self) -> None:
        """Do nothing."""


@contextmanager
def world_time(world: World, network: Network) -> Iterator[None]:
    """Let programs that run in this block see the clocks of *world*, and run in its event loop."""
    clocks = {
        "time": lambda: world.now_ms / 1000,
        "time_ns": lambda: world.now_ms * 1_000_000,
        "monotonic": lambda: world.now_ms / 1000,
        "monotonic_ns": lambda: world.now_ms * 1_000_000,
    }

    def new_event_loop() -> WorldLoop:
        return WorldLoop(world, network)

    with mock.patch.multiple(time, **clocks), mock.patch.object(asyncio.events, "new_event_loop", new_event_loop):
        yield
