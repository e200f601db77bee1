"""Run one machine: perform its effects with sockets, timers and threads, and pass it the events.

    sockets ─┐                                   ┌─ sockets
    timers  ─┼─> event ─> machine.handle ─> effects ─┼─ timers
    threads ─┘                                   └─ threads (sync, cold reads, file writes)

The shell does all I/O and makes no decisions. There is no await between an event and its effects: a machine never sees
another connection's event while it handles one.

Everything that one turn of the event loop reads is one event, for all connections together: their records are one
write, and their answers leave when the whole event is done. So a peer is not woken for each answer separately, which
would cost more than the rest of a send (docs/performance.md).
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from holdfast.machine import effects, events
from holdfast.machine.machine import Machine
from holdfast.machine.sample import Sample
from holdfast.model.errors import DiskFailed, DiskFull
from holdfast.runtime.accept import Acceptor
from holdfast.runtime.address import to_listen_error
from holdfast.runtime.budget import MemoryBudget
from holdfast.runtime.channel import KEPT_SIZE_MAX, Channel, FrameLimits, ReceiveBuffer
from holdfast.runtime.log_sync import LogSyncer
from holdfast.runtime.stream import StreamChannel
from holdfast.runtime.tls import RoleTls, WatchedContext, describe_tls_error
from holdfast.store.base.disk import Disk
from holdfast.wire.frames.frame import Frame

CONNECT_TIMEOUT_S: Final = 3.0
# A connection without traffic in either direction for four ticks is closed, as every RocketMQ peer closes it.
IDLE_TICK_S: Final = 30.0
IDLE_TICKS_MAX: Final = 4
FAULT_PAUSE_MS: Final = 10_000
Emit = Callable[[effects.Log], None]


def now_ms() -> int:
    """Return the wall clock, the only clock that we share with peers."""
    return time.time_ns() // 1_000_000


class MachineServer:
    """The asyncio shell of one role.

    Args:
        machine: The role.
        emit: Writes one log line.
        disk: The target of `WriteFile`; None if the role stores nothing.
        budget: The memory limit for all connections; None for no limit.
        grace_period_s: How long an orderly stop continues to serve, so that peers can move to other servers first.
        tls: How to use TLS; None for plain connections only.
        frame_limits: The largest frames of accepted connections.
    """

    def __init__(
        self,
        machine: Machine,
        *,
        emit: Emit,
        disk: Disk | None = None,
        budget: MemoryBudget | None = None,
        grace_period_s: float = 0,
        tls: RoleTls | None = None,
        frame_limits: FrameLimits | None = None,
    ) -> None:
        self._machine = machine
        self._frame_limits = frame_limits or FrameLimits()
        self._emit = emit
        self._disk = disk
        self._budget = budget
        self._grace_period_s = grace_period_s
        self._outgoing_tls: WatchedContext | None = None
        self._acceptor: Acceptor | None = None
        if tls is not None:
            self._outgoing_tls = tls.outgoing
            self._acceptor = None if tls.certificate is None else Acceptor(tls, tls.certificate, emit)
        self._loop = asyncio.get_running_loop()
        self._receive_buffer = ReceiveBuffer()
        self._reads: list[events.FramesReceived] = []  # in this turn
        self._channels: dict[int, Channel] = {}
        self._dialed: dict[Channel, effects.OpenChannel] = {}
        self._channel_count = 0
        self._pauses: dict[Channel, asyncio.TimerHandle] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._servers: list[asyncio.Server] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._workers = ThreadPoolExecutor(max_workers=4, thread_name_prefix="disk")
        # A single thread, so that the later of two writes of a file wins.
        self._file_writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="files")
        self._syncer = LogSyncer(self._loop, self._log_synced, self._disk_failed)
        self._turn_ms = 0
        self._is_stopped = False
        self._idle_timer: asyncio.TimerHandle | None = None
        self._perform: dict[type, Callable[[Any], None]] = {
            effects.CloseChannel: self._close_channel,
            effects.PauseReading: self._pause_reading,
            effects.Fault: self._report_fault,
            effects.OpenChannel: self._open_channel,
            effects.SetTimer: self._set_timer,
            effects.SyncLog: self._syncer.request,
            effects.SyncFiles: self._sync_files,
            effects.ReadLog: self._read_log,
            effects.WriteFile: self._write_file,
            effects.Log: emit,
        }

    async def listen(self, host: str, port: int, *, stream_purpose: str = "") -> int:
        """Accept connections on *host*:*port* (0: any free port) and return the port.

        The connections carry frames. With *stream_purpose*, the machine is notified of that purpose, and receives the
        bytes as they arrive.

        Raises:
            ConfigError: the address is invalid.
            PortTaken: another process listens there.
        """

        def make_stream() -> Channel:
            return StreamChannel(self, self._budget, self._receive_buffer, stream_purpose)

        def make_channel() -> Channel:
            return Channel(self, self._budget, self._receive_buffer, self._frame_limits)

        make = make_stream if stream_purpose else make_channel
        try:
            if self._acceptor is not None:
                return await self._acceptor.listen(host, port, make)
            server = await self._loop.create_server(make, host, port, backlog=1024)
        except OSError as error:
            raise to_listen_error(host, port, error, option="listen") from error
        self._servers.append(server)
        return int(server.sockets[0].getsockname()[1])

    def start(self) -> None:
        """Notify the machine that it has started."""
        self._idle_timer = self._loop.call_later(IDLE_TICK_S, self._close_idle)
        self.feed(events.Started(now_ms()))

    async def stop(self) -> None:
        """Stop in order: accept no connections, let the machine finish, complete pending work, then close all."""
        for server in self._servers:
            server.close()
        if self._acceptor is not None:
            self._acceptor.close()
        if self._grace_period_s and self._channels:
            self.feed(events.Leaving(now_ms()))
            await asyncio.sleep(self._grace_period_s)
        self.feed(events.Stopping(now_ms()))
        for timer in (*self._timers.values(), self._idle_timer):
            if timer is not None:
                timer.cancel()
        await self._loop.run_in_executor(None, self._syncer.close)
        while self._tasks:  # The end of a write may begin another one.
            await asyncio.gather(*self._tasks, return_exceptions=True)
        self._is_stopped = True
        for channel in list(self._channels.values()):
            channel.close("the server is stopping")
        await asyncio.sleep(0)  # Let the last answers reach the sockets.
        self._workers.shutdown(wait=True)
        self._file_writer.shutdown(wait=True)

    def feed(self, event: events.Event) -> None:
        """Pass *event* to the machine and perform its effects. Pending reads are passed first."""
        if self._reads:
            self._end_turn()
        self._perform_all(self._machine.handle(event))

    def samples(self) -> Iterator[Sample]:
        """Yield the metrics of the sockets."""
        about = "connections that were closed because of a frame that was too large or malformed"
        yield Sample("frames_refused", "counter", about, self._frame_limits.refused)
        yield Sample("connections_paused", "gauge", "connections that are not read for now", len(self._pauses))
        if self._acceptor is not None:
            yield from self._acceptor.samples()

    # Events of channels.

    def channel_opened(self, channel: Channel) -> None:
        """Assign a number to a new connection and notify the machine."""
        self._channel_count += 1
        channel.channel_id = events.ChannelId(self._channel_count)
        self._channels[channel.channel_id] = channel
        dialed = self._dialed.pop(channel, None)
        if dialed is None:
            address, purpose = None, channel.purpose if isinstance(channel, StreamChannel) else ""
        else:
            address, purpose = dialed.address, dialed.purpose
        self.feed(events.ChannelOpened(channel.channel_id, channel.peer, now_ms(), address, purpose))

    def frames_received(self, channel: Channel, frames: list[Frame]) -> bool:
        """Keep one read until the loop has read everything that is available."""
        reads = self._reads
        if not reads:
            self._turn_ms = now_ms()
            self._loop.call_soon(self._end_turn)
        reads.append(events.FramesReceived(channel.channel_id, frames, self._turn_ms))
        if self._receive_buffer.used > KEPT_SIZE_MAX or len(frames[-1].body) > KEPT_SIZE_MAX:
            self._end_turn()
        return True

    def stream_received(self, channel: Channel, data: memoryview) -> None:
        """Pass on one read of a channel without frames."""
        if not self._is_stopped:
            self.feed(events.StreamReceived(channel.channel_id, data, now_ms()))

    def _end_turn(self) -> None:
        """Pass on everything that was read in this turn."""
        reads = self._reads
        if not reads:
            return
        self._reads = []
        try:
            results = self._machine.handle(reads[0] if len(reads) == 1 else events.ReadsReceived(reads, self._turn_ms))
        except Exception as error:  # noqa: BLE001 - reported with its traceback by the exception handler
            results = [effects.Fault(read.channel, error) for read in reads]
        self._receive_buffer.used = 0
        self._perform_all(results)

    def channel_closed(self, channel: Channel, reason: str) -> None:
        """Remove a connection and notify the machine."""
        if channel.closing_reason:
            self._emit(effects.Log("info", "channel closed", {"peer": channel.peer, "reason": reason}))
        if (pause := self._pauses.pop(channel, None)) is not None:
            pause.cancel()
        if self._channels.pop(channel.channel_id, None) is not None and not self._is_stopped:
            self.feed(events.ChannelClosed(channel.channel_id, now_ms()))

    def _close_idle(self) -> None:
        for channel in list(self._channels.values()):
            channel.idle_ticks += 1
            if channel.idle_ticks > IDLE_TICKS_MAX:
                channel.close("no traffic for two minutes")
        self._idle_timer = self._loop.call_later(IDLE_TICK_S, self._close_idle)

    # Effects.

    def _perform_all(self, pending: list[effects.Effect]) -> None:
        find_channel = self._channels.get
        for effect in pending:
            if type(effect) is effects.SendBytes:  # The vast majority: avoid a further call.
                channel = find_channel(effect.channel)
                if channel is not None:
                    channel.send(effect.pieces)
            else:
                self._perform[type(effect)](effect)

    def _close_channel(self, effect: effects.CloseChannel) -> None:
        channel = self._channels.get(effect.channel)
        if channel is not None:
            channel.close("the role closed it")

    def _pause_reading(self, effect: effects.PauseReading) -> None:
        channel = self._channels.get(effect.channel)
        if channel is None:
            return
        end = self._loop.time() + (effect.until_ms - now_ms()) / 1000
        pause = self._pauses.get(channel)
        if pause is None:
            channel.pause_reading()
        elif pause.when() < end:
            pause.cancel()
        else:
            return
        self._pauses[channel] = self._loop.call_at(end, self._resume_reading, channel)

    def _resume_reading(self, channel: Channel) -> None:
        del self._pauses[channel]
        channel.resume_reading()

    def _report_fault(self, effect: effects.Fault) -> None:
        channel = self._channels.get(effect.channel)
        peer = "a closed channel" if channel is None else channel.peer
        self._loop.call_exception_handler({"message": f"fault while answering {peer}", "exception": effect.error})
        if channel is not None:
            channel.abort("an internal error of this server; its log has the traceback")

    def _open_channel(self, effect: effects.OpenChannel) -> None:
        self._spawn(self._connect(effect))

    async def _connect(self, dialed: effects.OpenChannel) -> None:
        host, _, port = dialed.address.rpartition(":")
        host = host.strip("[]")
        context = None if self._outgoing_tls is None else self._outgoing_tls.refresh()
        name = None if context is None else host
        channel = (StreamChannel if dialed.is_stream else Channel)(self, self._budget, self._receive_buffer)
        self._dialed[channel] = dialed
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                await self._loop.create_connection(lambda: channel, host, int(port), ssl=context, server_hostname=name)
        except (OSError, ValueError, TimeoutError) as error:
            self._dialed.pop(channel, None)
            reason = describe_tls_error(error) if str(error) else "no answer in time"
            self.feed(events.ChannelFailed(dialed.address, reason, now_ms(), dialed.purpose))

    def _set_timer(self, effect: effects.SetTimer) -> None:
        previous = self._timers.pop(effect.name, None)
        if previous is not None:
            previous.cancel()
        wait_ms = effect.at_ms - now_ms()
        # The loop's clock is not the wall clock. Add 1 ms, so that a deadline has really passed when its timer fires.
        delay_s = (wait_ms + 1) / 1000 if wait_ms > 0 else 0
        self._timers[effect.name] = self._loop.call_later(delay_s, self._fire, effect.name)

    def _fire(self, name: str) -> None:
        self._timers.pop(name, None)
        if self._is_stopped:
            return
        try:
            self.feed(events.TimerFired(name, now_ms()))
        except Exception:
            # An internal error is reported with its traceback. The timer must fire again nevertheless.
            self._set_timer(effects.SetTimer(name, now_ms() + FAULT_PAUSE_MS))
            raise

    def _log_synced(self, position: int) -> None:
        self.feed(events.LogSynced(position, now_ms()))

    def _disk_failed(self, reason: str) -> None:
        self.feed(events.DiskFault(reason, now_ms()))

    def _sync_files(self, effect: effects.SyncFiles) -> None:
        def sync() -> events.Event:
            for file in effect.files:
                file.sync()
            return events.FilesSynced(effect.token, now_ms())

        self._run_in_thread(sync)

    def _read_log(self, effect: effects.ReadLog) -> None:
        def read() -> events.Event:
            try:
                data = effect.file.read(effect.start, effect.end)
            except DiskFailed as error:
                return events.DiskFault(str(error), now_ms(), effect.token)
            return events.LogRead(effect.token, data, now_ms())

        self._run_in_thread(read)

    def _write_file(self, effect: effects.WriteFile) -> None:
        disk = self._disk
        assert disk is not None, "a role that writes files must have a disk"

        def write() -> events.Event:
            try:
                disk.replace(effect.path, effect.data, is_private=effect.is_private)
            except DiskFailed as error:
                return events.DiskFault(str(error), now_ms(), path=effect.path, is_full=isinstance(error, DiskFull))
            return events.FileWritten(effect.path, now_ms())

        self._run_in_thread(write, self._file_writer)

    def _run_in_thread(self, job: Callable[[], events.Event], threads: ThreadPoolExecutor | None = None) -> None:
        """Run *job* in a disk thread, or in one of *threads*, and pass the resulting event to the machine."""

        async def run() -> None:
            try:
                event = await self._loop.run_in_executor(threads or self._workers, job)
            except DiskFailed as error:
                event = events.DiskFault(str(error), now_ms())
            self.feed(event)

        self._spawn(run())

    def _spawn(self, coroutine: Any) -> None:
        task = self._loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._finish)

    def _finish(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        with contextlib.suppress(asyncio.CancelledError):
            task.result()
