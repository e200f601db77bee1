"""The time of a send, stage by stage, in one process: ours beside the bare path.

    python -m benchmarks.profile_send [--frames 64] [--rounds 400]

Feeds reads of that many sends of 1 KiB to a real broker with a real store, and to the bare path. Each figure is the
median over all reads, kernel included, in nanoseconds per message. Deferred work (the key index) is listed below the
line: no client waits for it, but the same core has to do it.
"""

from __future__ import annotations

import argparse
import os
import random
import socket
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

from benchmarks import bare_send

from holdfast.broker.assembly import Components
from holdfast.broker.core import Broker
from holdfast.broker.options import BrokerOptions
from holdfast.broker.service import store_options
from holdfast.machine.effects import SendBytes
from holdfast.machine.events import ChannelId, ChannelOpened, FramesReceived
from holdfast.runtime.posix_disk import PosixDisk
from holdfast.store.message_store import MessageStore
from holdfast.wire.frames.frame import Frame, split_frames
from holdfast.wire.requests.send import decode_send

TOPIC: Final = "TopicTest"
BODY: Final = bytes(range(32, 96)) * 16
CHANNEL: Final = ChannelId(1)
THREAD_CLOCK_FRAMES: Final = 8
HEADER: Final = (
    b'{"code":310,"extFields":{"a":"load","b":"TopicTest","c":"TBW102","d":"4","e":"%d","f":"0","g":"1700000000000",'
    b'"h":"0","i":"UNIQ_KEY\\u00017F0000010000251A69D70A1B%08X\\u0002WAIT\\u0001true\\u0002TAGS\\u0001TagA\\u0002",'
    b'"j":"0","k":"false","m":"false","n":"broker-a"},"flag":0,"language":"JAVA","opaque":%d,'
    b'"serializeTypeCurrentRPC":"JSON","version":513}'
)

_Result = TypeVar("_Result")


class Stages:
    """Nanoseconds by stage, one figure per read."""

    def __init__(self, frames: int) -> None:
        self._frames = frames
        # The thread's clock ignores other programs, but is slow to read: use it only where reads take longer.
        self.clock = time.thread_time_ns if frames >= THREAD_CLOCK_FRAMES else time.perf_counter_ns
        self._readings: dict[str, list[int]] = {}

    def record(self, stage: str, spent_ns: int) -> None:
        """Add a reading."""
        self._readings.setdefault(stage, []).append(spent_ns)

    def measure(self, stage: str, work: Callable[..., _Result], *arguments: object) -> _Result:
        """Run *work* and record its duration."""
        start = self.clock()
        result = work(*arguments)
        self.record(stage, self.clock() - start)
        return result

    def watch(self, owner: object, method: str, stage: str) -> None:
        """Record the duration of every call of *method* of *owner* from now on."""
        original = getattr(owner, method)

        def timed(*arguments: Any) -> Any:
            start = self.clock()
            result = original(*arguments)
            self.record(stage, self.clock() - start)
            return result

        setattr(owner, method, timed)

    def per_message(self, stage: str) -> float:
        """Return the median, in ns per message."""
        return statistics.median(self._readings.get(stage, [0])) / self._frames


def make_read(frames: int, *, first_opaque: int) -> bytes:
    """Return the bytes of one read: *frames* sends, to four queues in rotation."""
    parts = []
    for number in range(first_opaque, first_opaque + frames):
        header = HEADER % (number % 4, number, number)
        parts += [(4 + len(header) + len(BODY)).to_bytes(4, "big"), len(header).to_bytes(4, "big"), header, BODY]
    return b"".join(parts)


def decode_all(decode: Callable[[memoryview], object], frames: list[Frame]) -> list[object]:
    """Decode the header of every frame."""
    return [decode(frame.header) for frame in frames]


def open_broker(folder: Path) -> tuple[Broker, MessageStore, Components]:
    """Return a broker with one topic and one connection."""
    options = BrokerOptions(store=str(folder), flush="async", namesrv=())
    disk = PosixDisk(folder)
    store = MessageStore.open(disk, store_options(options), 0)
    components = Components(options, store, disk, random.Random(1), 0)
    components.topics.create_from_template(TOPIC, "TBW102", 4)
    broker = Broker(options, store, components)
    broker.handle(ChannelOpened(CHANNEL, "127.0.0.1:50000", 0))
    return broker, store, components


class Wire:
    """A loopback connection within this process: the cost of the kernel for receiving bytes and sending answers."""

    def __init__(self) -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        self._peer = socket.create_connection(listener.getsockname())
        self._server, _ = listener.accept()
        listener.close()
        for end in (self._peer, self._server):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 << 20)
            end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        self._buffer = bytearray(4 << 20)

    def receive(self, data: bytes, stages: Stages) -> memoryview:
        """Receive *data* as the server's read would."""
        self._peer.sendall(data)
        view, size_received, spent = memoryview(self._buffer), 0, 0
        while size_received < len(data):
            start = stages.clock()
            size_received += self._server.recv_into(view[size_received:])
            spent += stages.clock() - start
        stages.record("receive", spent)
        return view[:size_received]

    def answer(self, data: bytes, stages: Stages) -> None:
        """Send *data* as the server would, and empty the other end."""
        stages.measure("send", self._server.sendall, data)
        remaining = len(data)
        while remaining:
            remaining -= len(self._peer.recv(remaining))

    def close(self) -> None:
        self._peer.close()
        self._server.close()


def profile_ours(folder: Path, frames: int, rounds: int) -> Stages:
    """Return the stages of our broker."""
    broker, store, components = open_broker(folder)
    stages, wire = Stages(frames), Wire()
    stages.watch(components.fast_sends, "handle_run", "run")
    stages.watch(components.stats, "count_puts", "count")
    stages.watch(store, "write", "write")
    stages.watch(store, "confirm", "confirm")
    for number in range(rounds):
        now_ms = 1_700_000_000_000 + number
        received = wire.receive(make_read(frames, first_opaque=number * frames), stages)
        split, _ = stages.measure("split", split_frames, received)
        event = FramesReceived(CHANNEL, split, now_ms)
        effects = stages.measure("handle", broker.handle, event)
        (pieces,) = [effect.pieces for effect in effects if isinstance(effect, SendBytes)]
        answers = stages.measure("join", b"".join, pieces)
        wire.answer(answers, stages)
        stages.measure("decode", decode_all, decode_send, split)
    profile_checks(components, stages, rounds=rounds // 2, frames=frames)
    profile_index(store, stages, frames=frames)
    wire.close()
    return stages


def profile_checks(components: Components, stages: Stages, *, rounds: int, frames: int) -> None:
    """Time a run of sends once more without staging: what remains is checks and answers."""
    store = components.store
    original_stage_run = store.stage_run
    store.stage_run = lambda drafts, _: [(123_456_789, 12_345)] * len(drafts)
    for number in range(rounds):
        split, _ = split_frames(memoryview(make_read(frames, first_opaque=number * frames)))
        headers, bodies = [decode_send(frame.header) for frame in split], [frame.body for frame in split]
        hosts = [bytes(8)] * frames
        stages.measure(
            "checks",
            type(components.fast_sends).handle_run,
            components.fast_sends,
            headers,
            bodies,
            hosts,
        )
    store.stage_run = original_stage_run


def profile_index(store: MessageStore, stages: Stages, *, frames: int) -> None:
    """Time the deferred work of the key index for the messages stored so far."""
    indexer = store._indexer  # noqa: SLF001 - a profile needs internals
    slices = 0
    while indexer.is_lagging(store.confirmed) and slices < 100:
        before, start = indexer.indexed, time.thread_time_ns()
        indexer.advance(store.confirmed)
        spent, size = time.thread_time_ns() - start, indexer.indexed - before
        # Slices have another length than reads: scale their time by the bytes they cover.
        records = size / (store.queue(TOPIC, 0).header_size + len(BODY) + 90)
        stages.record("index", int(spent / records * frames))
        slices += 1


def profile_bare(folder: Path, frames: int, rounds: int) -> Stages:
    """Return the stages of the bare path."""
    log, stages, wire = bare_send.BareLog(folder), Stages(frames), Wire()
    stages.watch(os, "writev", "write")  # the bare path alone calls it
    for number in range(rounds):
        received = wire.receive(make_read(frames, first_opaque=number * frames), stages)
        _, answers = stages.measure("handle", log.store_frames, received)
        wire.answer(answers, stages)
        split, _ = split_frames(received)
        stages.measure("decode", decode_all, bare_send.decode, split)
    wire.close()
    return stages


def table(ours: Stages, bare: Stages) -> list[tuple[str, float, float | None]]:
    """Return (stage, our ns, bare's ns) in the order of the path."""
    a, b = ours.per_message, bare.per_message
    checks = a("checks") - a("count")
    path: list[tuple[str, float, float | None]] = [
        ("receive (kernel)", a("receive"), b("receive")),
        ("split into frames", a("split"), None),
        ("find runs, dispatch, effects", a("handle") - a("decode") - a("run") - a("write") - a("confirm"), None),
        ("decode headers", a("decode"), b("decode")),
        ("checks and answers", checks, None),
        ("stage: checksum, record, entry", a("run") - a("checks"), None),
        ("count", a("count"), None),
        ("bare: frames, record, entry, answers", 0.0, b("handle") - b("decode") - b("write")),
        ("write to the log (kernel)", a("write"), b("write")),
        ("confirm: entries into queues", a("confirm"), None),
        ("join answers", a("join"), None),
        ("send answers (kernel)", a("send"), b("send")),
    ]
    total = sum(ours_ns for _, ours_ns, _ in path), sum(bare_ns or 0.0 for _, _, bare_ns in path)
    return [*path, ("= a message", *total), ("later: key index", a("index"), None)]


def print_table(rows: list[tuple[str, float, float | None]]) -> None:
    """Print the stages."""
    print(f"{'ns a message':<40}{'ours':>10}{'bare':>10}")
    for stage, ours_ns, bare_ns in rows:
        print(f"{stage:<40}{ours_ns or 0:>10,.0f}{'' if bare_ns is None else f'{bare_ns:,.0f}':>10}")


def main() -> None:
    """Profile and print."""
    parser = argparse.ArgumentParser(description="Print the time of each stage of a send.")
    parser.add_argument("--frames", type=int, default=64, help="sends in one read (default 64)")
    parser.add_argument("--rounds", type=int, default=400, help="reads (default 400)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="holdfast-profile-") as folder:
        ours = profile_ours(Path(folder, "ours"), options.frames, options.rounds)
        bare = profile_bare(Path(folder, "bare"), options.frames, options.rounds)
    print_table(table(ours, bare))


if __name__ == "__main__":
    main()
