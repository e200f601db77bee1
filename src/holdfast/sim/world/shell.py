"""One simulated process: runs a machine, performs its effects in the virtual world, and feeds it events.

This is the counterpart of `runtime.server`. It decides nothing either, and takes the same liberties: reads deliver
frames split and merged anywhere, and disk work completes later and in any order. A sync may reach the disk long before
its completion is reported, or only then.

A process ends in one of three ways: `stop` in order, `kill` at once, `power_off` together with its host. Its remaining
actions on the agenda then have no effect.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import Any, Final
from zlib import crc32

import msgspec

from holdfast.machine import effects, events
from holdfast.machine.machine import Machine
from holdfast.model.errors import DiskFailed, DiskFull, RemoteProtocolError
from holdfast.sim.world.network import Network, Socket
from holdfast.sim.world.world import World
from holdfast.store.base.disk import Disk, File
from holdfast.wire.frames.frame import split_frames

_POISON_BYTE: Final = 0xDD
_STOP_POLL_MS: Final = 20


class DiskLatency(msgspec.Struct):
    """How long disk work takes. The nemesis changes it."""

    sync_ms: tuple[int, int] = (1, 8)
    work_ms: tuple[int, int] = (0, 5)


class HostEnvironment(msgspec.Struct):
    """The host of a process: everything that outlives the process.

    Attributes:
        skew_ms: How far the host's clock is ahead of the world's.
        disk: None for a role that stores nothing.
    """

    name: str
    host: str
    rng: Random
    disk: Disk | None = None
    disk_latency: DiskLatency = msgspec.field(default_factory=DiskLatency)
    skew_ms: int = 0


class Shell:
    """One process, from its start to its end.

    Attributes:
        synced: The log position up to which the log is known to be on disk.
        turns: The number of events that the machine has handled.
    """

    def __init__(self, world: World, network: Network, environment: HostEnvironment, machine: Machine) -> None:
        self.host = environment.host
        self.machine = machine
        self.synced = 0
        self.turns = 0
        self._world = world
        self._network = network
        self._environment = environment
        self._is_alive = True
        self._is_stopping = False
        self._channels: dict[int, Socket] = {}
        self._partial_frames: dict[int, bytes] = {}
        self._streams: set[Socket] = set()  # connections that carry a byte stream, not frames
        self._dialed_streams: set[tuple[str, str]] = set()
        self._channel_count = 0
        self._timers: dict[str, int] = {}
        self._timer_count = 0
        self._sync_files: dict[File, None] = {}
        self._sync_position = 0
        self._is_syncing = False
        self._active_jobs = 0
        self._effect_handlers: dict[type, Callable[[Any], None]] = {
            effects.SendBytes: self._send,
            effects.CloseChannel: self._close_channel,
            effects.Fault: self._raise,
            effects.OpenChannel: self._open_channel,
            effects.SetTimer: self._set_timer,
            effects.SyncLog: self._sync_log,
            effects.SyncFiles: self._sync_derived,
            effects.ReadLog: self._read_log,
            effects.WriteFile: self._write_file,
            effects.Log: self._log,
        }

    @property
    def now_ms(self) -> int:
        """The time on this host's clock."""
        return self._world.now_ms + self._environment.skew_ms

    @property
    def is_idle(self) -> bool:
        """Whether no disk work is in progress."""
        return not self._active_jobs and not self._is_syncing

    # Start and end.

    def start(self, *addresses: str, streams: Mapping[str, str] | None = None) -> None:
        """Listen and start the machine. *streams* maps addresses that carry no frames to their purposes."""
        for address in addresses:
            self._network.listen(address, self)
        for address, purpose in (streams or {}).items():
            self._network.listen(address, self, purpose)
        self.feed(events.Started(self.now_ms))

    def kill(self) -> None:
        """End the process at once. The page cache outlives it, so its files keep every write."""
        self._is_alive = False
        self._network.kill(self)

    def power_off(self) -> None:
        """End the process together with its host. The disk decides which writes survive."""
        self._is_alive = False
        self._network.power_off(self)

    def stop(self, then: Callable[[], None]) -> None:
        """Stop in order: notify the machine, finish its disk work, close the channels, then call *then*."""
        self.feed(events.Stopping(self.now_ms))
        self._is_stopping = True
        self._timers.clear()

        def wait() -> None:
            if not self._is_alive:
                return
            if not self.is_idle:
                self._world.schedule(wait, delay_ms=_STOP_POLL_MS)
                return
            self._is_alive = False
            for socket in list(self._channels.values()):
                self._network.close(socket)
            self._network.kill(self)
            then()

        wait()

    def feed(self, event: events.Event, lent_buffer: bytearray | None = None) -> None:
        """Pass *event* to the machine and perform its effects. The machine must not keep views of *lent_buffer*."""
        self.turns += 1
        emitted = self.machine.handle(event)
        if lent_buffer is not None:
            # The views are invalid now. Overwrite the bytes, so that code that kept a view fails.
            lent_buffer[:] = bytes([_POISON_BYTE]) * len(lent_buffer)
        for effect in emitted:
            self._effect_handlers[type(effect)](effect)

    def _note(self, label: str, detail: str = "") -> None:
        self._world.trace.note(self._environment.name, label, detail)

    def _schedule(self, span_ms: tuple[int, int], action: Callable[[], None]) -> None:
        """Run *action* after a random time, unless the process ends before."""

        def act() -> None:
            if self._is_alive:
                action()

        self._world.schedule(act, delay_ms=self._environment.rng.randint(*span_ms))

    # Socket events.

    def accepted(self, socket: Socket) -> None:
        """Number an incoming connection."""
        if socket.purpose:
            self._streams.add(socket)
        self._register_channel(socket, None, socket.purpose)

    def connected(self, socket: Socket, dialed: str, purpose: str) -> None:
        """Number a connection that this process opened."""
        if (dialed, purpose) in self._dialed_streams:
            self._streams.add(socket)
        self._register_channel(socket, dialed, purpose)

    def _register_channel(self, socket: Socket, dialed: str | None, purpose: str) -> None:
        if not self._is_alive:
            return
        self._channel_count += 1
        socket.tag = self._channel_count
        self._channels[socket.tag] = socket
        self._note("opened", f"channel {socket.tag} {'to' if dialed else 'from'} {socket.remote_address}")
        self.feed(
            events.ChannelOpened(events.ChannelId(socket.tag), socket.remote_address, self.now_ms, dialed, purpose)
        )

    def refused(self, dialed: str, reason: str, purpose: str) -> None:
        """Notify the machine that a connection could not be made."""
        if self._is_alive:
            self._note("refused", f"{dialed} {reason}")
            self.feed(events.ChannelFailed(dialed, reason, self.now_ms, purpose))

    def received(self, socket: Socket, data: bytes) -> None:
        """Pass the complete frames of one read to the machine."""
        if not self._is_alive or socket.tag not in self._channels:
            return
        if socket in self._streams:
            self._received_stream(socket, data)
            return
        buffer = bytearray(self._partial_frames.pop(socket.tag, b"") + data)
        try:
            frames, consumed = split_frames(memoryview(buffer))
        except RemoteProtocolError as error:
            self._note("bad frame", f"channel {socket.tag} {error}")
            self._network.close(socket)
            return
        if consumed < len(buffer):
            self._partial_frames[socket.tag] = bytes(buffer[consumed:])
        if not frames:
            return
        checksum = crc32(buffer[:consumed])
        self._note("frames", f"channel {socket.tag}, {len(frames)} frames, {consumed} bytes {checksum:08x}")
        self.feed(events.FramesReceived(events.ChannelId(socket.tag), frames, self.now_ms), lent_buffer=buffer)

    def _received_stream(self, socket: Socket, data: bytes) -> None:
        """Pass one read to the machine without splitting it into frames."""
        self._note("stream", f"channel {socket.tag}, {len(data)} bytes {crc32(data):08x}")
        buffer = bytearray(data)
        self.feed(
            events.StreamReceived(events.ChannelId(socket.tag), memoryview(buffer), self.now_ms), lent_buffer=buffer
        )

    def closed(self, socket: Socket, reason: str) -> None:
        """Forget a connection and notify the machine."""
        self._streams.discard(socket)
        if self._is_alive and self._channels.pop(socket.tag, None) is not None:
            self._partial_frames.pop(socket.tag, None)
            self._note("closed", f"channel {socket.tag} {reason}")
            self.feed(events.ChannelClosed(events.ChannelId(socket.tag), self.now_ms))

    # Effects.

    def _send(self, effect: effects.SendBytes) -> None:
        socket = self._channels.get(effect.channel)
        if socket is not None:
            self._network.send(socket, b"".join(effect.pieces))

    def _close_channel(self, effect: effects.CloseChannel) -> None:
        socket = self._channels.get(effect.channel)
        if socket is not None:
            self._network.close(socket)

    @staticmethod
    def _raise(effect: effects.Fault) -> None:
        raise effect.error  # A bug in our code: finding these is the purpose of the simulator.

    def _open_channel(self, effect: effects.OpenChannel) -> None:
        if effect.is_stream:
            self._dialed_streams.add((effect.address, effect.purpose))
        self._network.connect(self, effect.address, effect.purpose)

    def _set_timer(self, effect: effects.SetTimer) -> None:
        self._timer_count += 1
        ticket = self._timers[effect.name] = self._timer_count

        def fire() -> None:
            # The delay was computed when the timer was set, so a clock that jumps meanwhile does not change it.
            if self._is_alive and self._timers.get(effect.name) == ticket:
                del self._timers[effect.name]
                self._note("timer", effect.name)
                self.feed(events.TimerFired(effect.name, self.now_ms))

        if not self._is_stopping:
            self._world.schedule(fire, delay_ms=max(0, effect.at_ms - self.now_ms))

    def _log(self, effect: effects.Log) -> None:
        fields = " ".join(f"{key}={value}" for key, value in effect.fields.items())
        self._note(f"log {effect.level}", f"{effect.event} {fields}")

    # Disk work.

    def _sync_log(self, effect: effects.SyncLog) -> None:
        self._sync_files |= dict.fromkeys(effect.files)
        self._sync_position = max(self._sync_position, effect.position)
        if not self._is_syncing:
            self._begin_sync()

    def _begin_sync(self) -> None:
        """Sync everything requested so far. Requests that arrive meanwhile are combined into the next sync."""
        self._is_syncing = True
        files, self._sync_files = list(self._sync_files), {}
        position = self._sync_position
        # A disk may finish early and report late, or finish just before it reports. Simulate both.
        is_early = self._environment.rng.random() < 0.5
        fault = _sync(files) if is_early else None

        def end() -> None:
            problem = fault if is_early else _sync(files)
            if problem is not None:
                # Like the real shell: never use a disk again after it has failed.
                self._report_disk_fault(problem)
                self._sync_files.clear()
                self._is_syncing = not self._is_stopping
                return
            self._is_syncing = False
            self.synced = max(self.synced, position)
            self._note("synced", f"log to {position}")
            self.feed(events.LogSynced(position, self.now_ms))
            if self._sync_files and not self._is_syncing:
                self._begin_sync()

        self._schedule(self._environment.disk_latency.sync_ms, end)

    def _sync_derived(self, effect: effects.SyncFiles) -> None:
        def sync() -> events.Event:
            for file in effect.files:
                file.sync()
            return events.FilesSynced(effect.token, self.now_ms)

        self._work("files synced", sync)

    def _read_log(self, effect: effects.ReadLog) -> None:
        def read() -> events.Event:
            try:
                data = effect.file.read(effect.start, effect.end)
            except DiskFailed as error:
                return events.DiskFault(str(error), self.now_ms, effect.token)
            return events.LogRead(effect.token, data, self.now_ms)

        self._work("log read", read)

    def _write_file(self, effect: effects.WriteFile) -> None:
        disk = self._environment.disk
        assert disk is not None, "a role that writes files needs a disk"

        def write() -> events.Event:
            try:
                disk.replace(effect.path, effect.data, is_private=effect.is_private)
            except DiskFailed as error:
                return events.DiskFault(str(error), self.now_ms, path=effect.path, is_full=isinstance(error, DiskFull))
            return events.FileWritten(effect.path, self.now_ms)

        self._work(f"wrote {effect.path}", write)

    def _work(self, label: str, job: Callable[[], events.Event]) -> None:
        """Run *job* after a random time and feed its event to the machine."""
        self._active_jobs += 1

        def end() -> None:
            self._active_jobs -= 1
            try:
                event = job()
            except DiskFailed as error:
                self._report_disk_fault(str(error))
                return
            self._note("disk", label)
            self.feed(event)

        self._schedule(self._environment.disk_latency.work_ms, end)

    def _report_disk_fault(self, reason: str) -> None:
        self._note("disk fault", reason)
        self.feed(events.DiskFault(reason, self.now_ms))


def _sync(files: list[File]) -> str | None:
    """Sync *files*; return the reason if that failed."""
    try:
        for file in files:
            file.sync()
    except DiskFailed as error:
        return str(error)
    return None
