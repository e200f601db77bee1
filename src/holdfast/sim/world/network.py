"""A virtual network of hosts that behaves like TCP.

    connect ─> a pair of sockets ─> bytes, in order, cut and merged anywhere ─> closed at one end, and then at the other

Within a living connection no byte is lost, duplicated or reordered. But connections break, hosts lose power, and links
are cut in one direction or in both. Each end then notices at its own time, or only when it sends something:

    process killed     bytes already sent may still arrive; then the other end sees the close
    power lost         the other end sees nothing: its bytes wait, and are answered by a reset once the host is back
    link cut           bytes wait until it is mended; the sender gives up after a while, the other end is never notified
    connection delayed its bytes arrive much later, after bytes sent later on other connections
    connection broken  one end sees a reset, the other one too, or not until it sends
"""

from __future__ import annotations

from collections.abc import Iterable
from random import Random
from typing import Final, Protocol

import msgspec

from holdfast.sim.world.world import Action, World

CONNECT_TIMEOUT_MS: Final = 3_000
_FIRST_PORT: Final = 40_000


class SocketOwner(Protocol):
    """A process that receives the events of its sockets."""

    host: str

    def accepted(self, socket: Socket) -> None:
        """Handle an incoming connection."""
        ...

    def connected(self, socket: Socket, dialed: str, purpose: str) -> None:
        """Handle a connection that this process opened."""
        ...

    def refused(self, dialed: str, reason: str, purpose: str) -> None:
        """Handle the failure of a connection that this process tried to open."""
        ...

    def received(self, socket: Socket, data: bytes) -> None:
        """Handle the bytes of one read."""
        ...

    def closed(self, socket: Socket, reason: str) -> None:
        """Handle the end of a connection."""
        ...


class NetworkConditions(msgspec.Struct):
    """The current state of the network. The nemesis changes it.

    Attributes:
        delay_ms: The range of the transmission time.
        spike_probability: The probability of a much longer transmission time.
        partial_read: The probability that a read delivers only a part of the available bytes.
    """

    delay_ms: tuple[int, int] = (0, 4)
    spike_probability: float = 0.01
    spike_ms: int = 400
    partial_read: float = 0.3


class Socket:
    """One end of a connection.

    Attributes:
        remote_address: `host:port` of the other end.
        tag: The owner's number for it.
        is_open: Whether the owner still uses it.
        buffer: Bytes that the owner sent and the other end has not received.
        is_ending: Whether a close follows the buffer.
        is_delayed: Whether its bytes are held back for now.
        purpose: The purpose of the address that the other end connected to; empty if it carries frames.
    """

    __slots__ = (
        "buffer",
        "is_delayed",
        "is_delivery_scheduled",
        "is_ending",
        "is_open",
        "owner",
        "peer",
        "purpose",
        "remote_address",
        "stalled_ms",
        "tag",
    )

    def __init__(self, owner: SocketOwner, remote_address: str) -> None:
        self.owner = owner
        self.remote_address = remote_address
        self.peer = self
        self.tag = 0
        self.is_open = True
        self.buffer = bytearray()
        self.is_ending = False
        self.is_delivery_scheduled = False
        self.is_delayed = False
        self.purpose = ""
        self.stalled_ms: int | None = None


class Network:
    """Every host, listener, link and connection."""

    def __init__(self, world: World) -> None:
        self.conditions = NetworkConditions()
        self._world = world
        self._rng: Random = world.rng("network")
        self._listeners: dict[str, SocketOwner] = {}
        self._purposes: dict[str, str] = {}
        self._sockets: dict[Socket, None] = {}
        self._stalled: dict[Socket, None] = {}
        self._cut_links: set[tuple[str, str]] = set()
        self._powered_off: set[str] = set()
        self._port = _FIRST_PORT

    # Calls by processes.

    def listen(self, address: str, owner: SocketOwner, purpose: str = "") -> None:
        """Route connections to *address* to *owner*. They carry frames, unless a *purpose* is given."""
        self._listeners[address] = owner
        self._purposes[address] = purpose

    def connect(self, owner: SocketOwner, address: str, purpose: str = "") -> None:
        """Try to connect, and notify *owner* of the result."""
        host = address.rpartition(":")[0]
        if self._is_cut(owner.host, host):
            self._schedule(CONNECT_TIMEOUT_MS, lambda: owner.refused(address, "no answer in time", purpose))
        else:
            self._schedule(self._delay_ms(), lambda: self._arrive(owner, address, purpose))

    def _arrive(self, owner: SocketOwner, address: str, purpose: str) -> None:
        """Deliver a connection attempt to its target."""
        host = address.rpartition(":")[0]
        listener = self._listeners.get(address)
        if self._is_cut(owner.host, host) or self._is_cut(host, owner.host):
            self._schedule(CONNECT_TIMEOUT_MS, lambda: owner.refused(address, "no answer in time", purpose))
        elif listener is None:
            self._schedule(self._delay_ms(), lambda: owner.refused(address, "connection refused", purpose))
        else:
            self._port += 1
            near = Socket(owner, address)
            far = Socket(listener, f"{owner.host}:{self._port}")
            near.peer, far.peer = far, near
            far.purpose = self._purposes[address]
            self._sockets[near] = self._sockets[far] = None
            listener.accepted(far)
            self._schedule(self._delay_ms(), lambda: self._establish(near, address, purpose))

    @staticmethod
    def _establish(near: Socket, address: str, purpose: str) -> None:
        if near.is_open:
            near.owner.connected(near, address, purpose)
        else:  # It broke before the caller learned of it.
            near.owner.refused(address, "connection reset", purpose)

    def send(self, socket: Socket, data: bytes) -> None:
        """Send *data*. Data sent on a closed or closing socket is lost."""
        if socket.is_open and data:
            socket.buffer += data
            self._schedule_delivery(socket)

    def close(self, socket: Socket) -> None:
        """Close after the buffered bytes were sent. The owner is notified, as of any other close."""
        if socket.is_open:
            self._close_end(socket, "closed here")

    def kill(self, owner: SocketOwner) -> None:
        """End a process: its kernel closes its sockets. The bytes it sent last may be lost."""
        for socket in self._detach_sockets(owner):
            socket.is_open = False
            if self._rng.random() < 0.5:
                socket.buffer.clear()
            socket.is_ending = True
            self._schedule_delivery(socket)

    def power_off(self, owner: SocketOwner) -> None:
        """End a host: all its connections are gone, and no peer is notified."""
        for socket in self._detach_sockets(owner):
            socket.is_open = False
            socket.buffer.clear()
            self._forget(socket)
        self._powered_off.add(owner.host)

    def power_on(self, host: str) -> None:
        """Restore the power of a host."""
        self._powered_off.discard(host)
        self._retry_stalled()

    def _detach_sockets(self, owner: SocketOwner) -> list[Socket]:
        """Return the open sockets of a process that ends, and stop accepting connections for it."""
        self._listeners = {address: other for address, other in self._listeners.items() if other is not owner}
        return [socket for socket in self._sockets if socket.owner is owner and socket.is_open]

    # Calls by the nemesis.

    def cut_link(self, source: str, target: str) -> None:
        """Stop all traffic from one host to another."""
        self._cut_links.add((source, target))

    def mend(self, links: Iterable[tuple[str, str]] | None = None) -> None:
        """Restore all links, or only *links*."""
        self._cut_links -= set(links) if links is not None else set(self._cut_links)
        self._retry_stalled()

    def connections(self) -> list[Socket]:
        """Return both ends of every connection that both ends consider open."""
        return [socket for socket in self._sockets if socket.is_open and socket.peer.is_open]

    def break_connection(self, socket: Socket, *, is_seen_by_both: bool) -> None:
        """Break a connection: one end sees a reset; the other end too, or not until it sends."""
        for end in (socket, socket.peer):
            end.buffer.clear()
        self._reset(socket, "connection reset")
        if is_seen_by_both:
            self._reset(socket.peer, "connection reset")

    def delay(self, socket: Socket, span_ms: int) -> None:
        """Hold back the bytes sent on *socket* for a while, even if it is closed meanwhile."""
        socket.is_delayed = True

        def end() -> None:
            socket.is_delayed = False
            if socket in self._sockets:
                self._schedule_delivery(socket)

        self._schedule(span_ms, end)

    # Transmission.

    def _schedule_delivery(self, socket: Socket) -> None:
        if not socket.is_delivery_scheduled:
            socket.is_delivery_scheduled = True
            self._schedule(self._delay_ms(), lambda: self._deliver(socket))

    def _deliver(self, socket: Socket) -> None:
        """Deliver some of a socket's buffered bytes to the other end."""
        socket.is_delivery_scheduled = False
        peer = socket.peer
        if socket not in self._sockets or socket.is_delayed:
            return
        hosts = (socket.owner.host, peer.owner.host)
        if self._is_cut(*hosts) or (not peer.is_open and self._is_cut(*reversed(hosts))):
            self._stall(socket)
            return
        socket.stalled_ms = None
        if not peer.is_open:
            # The process is gone: the other host's kernel sends a reset.
            socket.buffer.clear()
            self._reset(socket, "connection reset")
            return
        if socket.buffer:
            size = len(socket.buffer)
            if size > 1 and self._rng.random() < self.conditions.partial_read:
                size = self._rng.randrange(1, size)
            data = bytes(socket.buffer[:size])
            del socket.buffer[:size]
            peer.owner.received(peer, data)
        if socket.buffer:
            self._schedule_delivery(socket)
        elif socket.is_ending:
            self._forget(socket)
            if peer.is_open:
                self._close_end(peer, "closed by the other end")

    def _stall(self, socket: Socket) -> None:
        """Hold back bytes until the link is mended, or give up after a while."""
        self._stalled[socket] = None
        if socket.stalled_ms is None:
            since_ms = socket.stalled_ms = self._world.now_ms

            def give_up() -> None:
                if socket.stalled_ms == since_ms and socket in self._stalled:
                    socket.buffer.clear()
                    self._reset(socket, "timed out")

            self._schedule(self._rng.randrange(10_000, 60_000), give_up)

    def _retry_stalled(self) -> None:
        stalled, self._stalled = self._stalled, {}
        for socket in stalled:
            self._schedule_delivery(socket)

    def _close_end(self, socket: Socket, reason: str) -> None:
        """Close one end in order: the other end sees the close after the last byte."""
        socket.is_open = False
        socket.is_ending = True
        self._schedule(0, lambda: socket.owner.closed(socket, reason))
        self._schedule_delivery(socket)

    def _reset(self, socket: Socket, reason: str) -> None:
        """Close one end without notifying the other."""
        self._forget(socket)
        if socket.is_open:
            socket.is_open = False
            self._schedule(self._delay_ms(), lambda: socket.owner.closed(socket, reason))

    def _forget(self, socket: Socket) -> None:
        self._sockets.pop(socket, None)
        self._stalled.pop(socket, None)

    def _is_cut(self, source: str, target: str) -> bool:
        return (source, target) in self._cut_links or source in self._powered_off or target in self._powered_off

    def _delay_ms(self) -> int:
        conditions = self.conditions
        if conditions.spike_probability and self._rng.random() < conditions.spike_probability:
            return self._rng.randrange(conditions.spike_ms)
        return self._rng.randint(*conditions.delay_ms)

    def _schedule(self, delay_ms: int, action: Action) -> None:
        self._world.schedule(action, delay_ms=delay_ms)
