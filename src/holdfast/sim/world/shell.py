"""One simulated process: runs a machine, performs its effects in the virtual world, feeds it what happens.

The twin of `runtime.server`: it decides nothing either, and takes the same liberties. Reads bring frames split and
merged anywhere; disk work ends later and in any order; a sync may have been done long before its end is told, or only
then.

A process ends in one of three ways: `stop` in order, `kill` at once, `power_off` together with its host. Whatever was
on the agenda for it then comes to nothing.
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

_SCRIBBLE: Final = 0xDD
_STOP_LOOK_MS: Final = 20
_RETRY_MS: Final = 1000


class DiskPace(msgspec.Struct):
    """How long disk work takes. The nemesis changes it."""

    sync_ms: tuple[int, int] = (1, 8)
    work_ms: tuple[int, int] = (0, 5)


class Surroundings(msgspec.Struct):
    """What a process finds on its host, and what outlives it.

    Attributes:
        skew_ms: How far the host's clock is ahead of the world's.
        disk: None for a role that keeps nothing.
    """

    name: str
    host: str
    chance: Random
    disk: Disk | None = None
    pace: DiskPace = msgspec.field(default_factory=DiskPace)
    skew_ms: int = 0


class Shell:
    """One process, from its start to its end.

    Attributes:
        synced: Up to where the log is known to be on disk.
        turns: How many events the machine has taken.
    """

    def __init__(self, world: World, network: Network, around: Surroundings, machine: Machine) -> None:
        self.host = around.host
        self.machine = machine
        self.synced = 0
        self.turns = 0
        self._world = world
        self._network = network
        self._around = around
        self._is_alive = True
        self._is_stopping = False
        self._channels: dict[int, Socket] = {}
        self._unfinished: dict[int, bytes] = {}
        self._streams: set[Socket] = set()  # connections that speak no frames
        self._stream_calls: set[tuple[str, str]] = set()
        self._channel_count = 0
        self._timers: dict[str, int] = {}
        self._timer_count = 0
        self._sync_files: dict[File, None] = {}
        self._sync_position = 0
        self._is_syncing = False
        self._working = 0
        self._newest_writes: dict[str, effects.WriteFile] = {}
        self._perform: dict[type, Callable[[Any], None]] = {
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
        """What this host's clock shows."""
        return self._world.now_ms + self._around.skew_ms

    @property
    def is_idle(self) -> bool:
        """Whether no disk work is under way."""
        return not self._working and not self._is_syncing

    # Life and death.

    def start(self, *addresses: str, streams: Mapping[str, str] | None = None) -> None:
        """Listen, and tell the machine that it is up. *streams* are addresses with a purpose that speak no frames."""
        for address in addresses:
            self._network.listen(address, self)
        for address, purpose in (streams or {}).items():
            self._network.listen(address, self, purpose)
        self.feed(events.Started(self.now_ms))

    def kill(self) -> None:
        """End the process at once. Its files are as it left them: the page cache outlives it."""
        self._is_alive = False
        self._network.kill(self)

    def power_off(self) -> None:
        """End the process together with its host. What its disk makes of that is the disk's business."""
        self._is_alive = False
        self._network.power_off(self)

    def stop(self, then: Callable[[], None]) -> None:
        """End in order: the machine's last words, the disk work it asked for, then the channels; then *then*."""
        self.feed(events.Stopping(self.now_ms))
        self._is_stopping = True
        self._timers.clear()

        def wait() -> None:
            if not self._is_alive:
                return
            if not self.is_idle:
                self._world.schedule(wait, delay_ms=_STOP_LOOK_MS)
                return
            self._is_alive = False
            for socket in list(self._channels.values()):
                self._network.close(socket)
            self._network.kill(self)
            then()

        wait()

    def feed(self, event: events.Event, lent: bytearray | None = None) -> None:
        """Hand *event* to the machine and perform what it answers. The bytes that it was lent are its own no longer."""
        self.turns += 1
        answers = self.machine.handle(event)
        if lent is not None:
            # The views are dead now: whoever kept one shall see that it did.
            lent[:] = bytes([_SCRIBBLE]) * len(lent)
        for effect in answers:
            self._perform[type(effect)](effect)

    def _note(self, what: str, detail: str = "") -> None:
        self._world.trace.note(self._around.name, what, detail)

    def _later(self, span_ms: tuple[int, int], action: Callable[[], None]) -> None:
        """Let *action* happen in a while, unless the process ends before."""

        def act() -> None:
            if self._is_alive:
                action()

        self._world.schedule(act, delay_ms=self._around.chance.randint(*span_ms))

    # What happens on sockets.

    def accepted(self, socket: Socket) -> None:
        """Number a connection that somebody made to us."""
        if socket.purpose:
            self._streams.add(socket)
        self._take(socket, None, socket.purpose)

    def connected(self, socket: Socket, dialed: str, purpose: str) -> None:
        """Number a connection that we asked for."""
        if (dialed, purpose) in self._stream_calls:
            self._streams.add(socket)
        self._take(socket, dialed, purpose)

    def _take(self, socket: Socket, dialed: str | None, purpose: str) -> None:
        if not self._is_alive:
            return
        self._channel_count += 1
        socket.tag = self._channel_count
        self._channels[socket.tag] = socket
        self._note("opened", f"channel {socket.tag} {'to' if dialed else 'from'} {socket.shown}")
        self.feed(events.ChannelOpened(events.ChannelId(socket.tag), socket.shown, self.now_ms, dialed, purpose))

    def refused(self, dialed: str, reason: str, purpose: str) -> None:
        """Tell the machine that a connection could not be made."""
        if self._is_alive:
            self._note("refused", f"{dialed} {reason}")
            self.feed(events.ChannelFailed(dialed, reason, self.now_ms, purpose))

    def received(self, socket: Socket, data: bytes) -> None:
        """Hand over the whole frames of one read."""
        if not self._is_alive or socket.tag not in self._channels:
            return
        if socket in self._streams:
            self._received_stream(socket, data)
            return
        buffer = bytearray(self._unfinished.pop(socket.tag, b"") + data)
        try:
            frames, taken = split_frames(memoryview(buffer))
        except RemoteProtocolError as error:
            self._note("bad frame", f"channel {socket.tag} {error}")
            self._network.close(socket)
            return
        if taken < len(buffer):
            self._unfinished[socket.tag] = bytes(buffer[taken:])
        if not frames:
            return
        checksum = crc32(buffer[:taken])
        self._note("frames", f"channel {socket.tag}, {len(frames)} frames, {taken} bytes {checksum:08x}")
        self.feed(events.FramesReceived(events.ChannelId(socket.tag), frames, self.now_ms), lent=buffer)

    def _received_stream(self, socket: Socket, data: bytes) -> None:
        """Hand over one read as it is."""
        self._note("stream", f"channel {socket.tag}, {len(data)} bytes {crc32(data):08x}")
        buffer = bytearray(data)
        self.feed(events.StreamReceived(events.ChannelId(socket.tag), memoryview(buffer), self.now_ms), lent=buffer)

    def closed(self, socket: Socket, reason: str) -> None:
        """Forget a connection and tell the machine."""
        self._streams.discard(socket)
        if self._is_alive and self._channels.pop(socket.tag, None) is not None:
            self._unfinished.pop(socket.tag, None)
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
        raise effect.error  # A mistake of ours: that is what is being looked for.

    def _open_channel(self, effect: effects.OpenChannel) -> None:
        if effect.is_stream:
            self._stream_calls.add((effect.address, effect.purpose))
        self._network.connect(self, effect.address, effect.purpose)

    def _set_timer(self, effect: effects.SetTimer) -> None:
        self._timer_count += 1
        ticket = self._timers[effect.name] = self._timer_count

        def fire() -> None:
            # The time to wait was measured when the timer was set: a clock that jumps meanwhile changes nothing.
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
        """Sync everything that was asked for so far; what is asked for meanwhile comes next, together."""
        self._is_syncing = True
        files, self._sync_files = list(self._sync_files), {}
        position = self._sync_position
        # A disk may be done at once and the news take its time, or be done only at the last moment. Both happen.
        is_early = self._around.chance.random() < 0.5
        fault = _sync(files) if is_early else None

        def end() -> None:
            problem = fault if is_early else _sync(files)
            if problem is not None:
                # As a real shell does: a disk that failed once is never asked again.
                self._fault(problem)
                self._sync_files.clear()
                self._is_syncing = not self._is_stopping
                return
            self._is_syncing = False
            self.synced = max(self.synced, position)
            self._note("synced", f"log to {position}")
            self.feed(events.LogSynced(position, self.now_ms))
            if self._sync_files and not self._is_syncing:
                self._begin_sync()

        self._later(self._around.pace.sync_ms, end)

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
        disk = self._around.disk
        assert disk is not None, "a role that writes files is given a disk"
        self._newest_writes[effect.path] = effect

        def retry() -> None:
            if self._newest_writes[effect.path] is effect:
                self._write_file(effect)

        def write() -> events.Event:
            try:
                disk.replace(effect.path, effect.data)
            except DiskFailed as error:
                is_full = isinstance(error, DiskFull)
                if is_full and effect.is_retried:
                    self._later((_RETRY_MS, _RETRY_MS), retry)
                return events.DiskFault(str(error), self.now_ms, path=effect.path, is_full=is_full)
            return events.FileWritten(effect.path, self.now_ms)

        self._work(f"wrote {effect.path}", write)

    def _work(self, what: str, job: Callable[[], events.Event]) -> None:
        """Do *job* in a while and feed the machine what came of it."""
        self._working += 1

        def end() -> None:
            self._working -= 1
            try:
                event = job()
            except DiskFailed as error:
                self._fault(str(error))
                return
            self._note("disk", what)
            self.feed(event)

        self._later(self._around.pace.work_ms, end)

    def _fault(self, reason: str) -> None:
        self._note("disk fault", reason)
        self.feed(events.DiskFault(reason, self.now_ms))


def _sync(files: list[File]) -> str | None:
    """Sync *files*; return why that failed, if it did."""
    try:
        for file in files:
            file.sync()
    except DiskFailed as error:
        return str(error)
    return None
