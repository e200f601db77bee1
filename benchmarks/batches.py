"""Batches: kept whole beside split, ours beside Java's, beside the limit of the machine.

    rounds   limits of the machine, then each cell on either broker in turn
    probes   the time from sending a batch until a pull has all of it, at rest and under a load of such batches
    index    the size of the topics' indexes on disk
    API      one Python process that sends with the library           our broker alone, freshly started
    columns  a topic of small messages into Arrow

Readings are short, because inner batches fill a disk at a gigabyte per second.
"""

from __future__ import annotations

import importlib.util
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import msgspec
from benchmarks.batch_findings import (
    ALL_COLUMNS,
    INNER,
    INNER_BY_PRODUCER,
    INNER_SYNC,
    OUTER,
    SEND_MANY,
    SEND_MANY_SPLIT,
    SEND_NOWAIT,
    SEND_NOWAIT_KEYED,
    SLIM,
    BatchFindings,
    BatchKind,
    ColumnReads,
    IndexCost,
    MachineLimit,
    ProducerRates,
    VisibilityTimes,
)
from benchmarks.cells import Cell, Role
from benchmarks.load import Load, Mode
from benchmarks.measure import Bench
from benchmarks.preparation import touch_memory
from benchmarks.process_cost import Stopwatch, wait_until_quiet
from benchmarks.programs import SOURCES, BenchmarkFailed, Programs
from benchmarks.push_findings import summarize_times
from benchmarks.remoting import Remote
from benchmarks.servers import Flush, Kind, Server, ServerFleet, create_topic

from holdfast.wire.records.batch import encode_items

TOPICS: Final[Mapping[BatchKind, str]] = {"inner": "Whole", "outer": "Split"}
QUEUES: Final = 4
BATCH: Final = 100
KIB: Final = 1024
SMALL: Final = 100
KINDS: Final[tuple[Kind, ...]] = ("holdfast", "java")
FLUSHES: Final[tuple[Flush, ...]] = ("async", "sync")
# Index folder and size of an entry, the same in both brokers' stores.
INDEXES: Final[Mapping[BatchKind, tuple[str, int]]] = {
    "inner": ("batchconsumequeue", 46),
    "outer": ("consumequeue", 20),
}
SEND_BATCH: Final = 320
PULL: Final = 11
SUBSCRIPTION_FLAG: Final = 4
PROBE_TIMEOUT_S: Final = 30.0
MEMORY: Final = 3 << 29  # as much as a reading writes


class BatchPace(msgspec.Struct, frozen=True, kw_only=True):
    """The durations and amounts."""

    rounds: int = 3
    seconds: float = 1.0
    java_warm_s: float = 12.0
    probes: int = 100
    columns_messages: int = 1_000_000


def batch_cells(seconds: float) -> list[Cell]:
    """Return the cells for both brokers."""

    def cell(group: str, role: Role, mode: Mode, connections: int, kinds: tuple[Kind, ...] = KINDS) -> Cell:
        load = Load(
            mode=mode,
            topic=TOPICS["outer" if mode == "outer" else "inner"],
            connections=connections,
            in_flight=4,
            batch=BATCH,
            size=KIB,
            seconds=seconds,
            warm=0.2,
        )
        return Cell(group=group, role=role, load=load, unit="messages/s", kinds=kinds, writes=True)

    return [
        cell(INNER, "async", "inner", 4),
        cell(INNER, "async", "inner", 16),
        cell(INNER_BY_PRODUCER, "async", "closed", 4, ("holdfast",)),
        cell(INNER_SYNC, "sync", "inner", 4),
        cell(INNER_SYNC, "sync", "inner", 16),
        cell(OUTER, "async", "outer", 4),
        cell(OUTER, "async", "outer", 16),
    ]


class BatchBench:
    """Takes every figure once, in a few minutes."""

    def __init__(
        self,
        fleet: ServerFleet,
        programs: Programs,
        folder: Path,
        log: Callable[[str], None],
        pace: BatchPace | None = None,
    ) -> None:
        self._fleet = fleet
        self._bench = Bench(programs.loadgen, log, before_write=_prepare_write)
        self._programs = programs
        self._folder = folder
        self._log = log
        self._pace = pace or BatchPace()
        self._limits: list[MachineLimit] = []

    def measure(self) -> BatchFindings:
        """Measure everything."""
        pace, load = self._pace, os.getloadavg()[0]
        name_servers: dict[Kind, Server] = {
            "holdfast": self._fleet.start_holdfast_name_server(),
            "java": self._fleet.start_java_name_server(),
        }
        servers: dict[tuple[Kind, str], Server] = {
            (kind, flush): self._start(kind, flush, name_servers[kind]) for kind in KINDS for flush in FLUSHES
        }
        for (kind, _), server in servers.items():
            self._warm(kind, server)
        cells = self._bench.run_rounds(
            batch_cells(pace.seconds), servers, rounds=pace.rounds, prepare=self._measure_limit
        )
        visible = [
            self._probe(servers[kind, "async"], kind, batch_kind, is_busy=is_busy)
            for is_busy in (False, True)
            for batch_kind in TOPICS
            for kind in KINDS
        ]
        index = [cost for kind in KINDS for cost in self._measure_index(kind, servers[kind, "async"])]
        for kind in KINDS:
            self._fleet.stop(servers[kind, "sync"])
        self._fleet.stop(name_servers["java"])
        broker = self._start("holdfast", "async", name_servers["holdfast"])
        produced = self._produce(name_servers["holdfast"], broker)
        columns = self._read_columns(name_servers["holdfast"], broker)
        for server in (broker, name_servers["holdfast"]):
            self._fleet.stop(server)
        return BatchFindings(
            cells=cells,
            limits=self._limits,
            index=index,
            visible=visible,
            produced=produced,
            columns=columns,
            size=SMALL,
            load=load,
        )

    # Before the first reading.

    def _start(self, kind: Kind, flush: Flush, name_server: Server) -> Server:
        """Start a broker with a topic of each index type."""
        server = (self._fleet.start_java if kind == "java" else self._fleet.start_holdfast)(name_server, flush)
        for batch_kind, topic in TOPICS.items():
            create_topic(server, name_server, topic, queues=QUEUES, batches=batch_kind == "inner")
        return server

    def _warm(self, kind: Kind, server: Server) -> None:
        """Send the load of the readings with small messages: a JVM compiles the same code, and the disk stays empty."""
        seconds = self._pace.java_warm_s if kind == "java" else 1.0
        self._log(f"   warming {kind}, {server.name}")
        batch_kinds: tuple[BatchKind, ...] = ("inner", "outer")
        for batch_kind in batch_kinds:
            load = Load(mode=batch_kind, topic=TOPICS[batch_kind], connections=4, in_flight=4, batch=BATCH, size=SMALL)
            self._bench.load(server, msgspec.structs.replace(load, seconds=seconds / 2))
        wait_until_quiet(server.pid)

    def _measure_limit(self, number: int) -> Mapping[str, str]:
        """Measure the limits of the machine at the beginning of a round. The topics do not change."""
        command = [str(self._programs.limits), f"dir={self._folder}", "seconds=0.7", "only=batch"]
        completed = subprocess.run(command, capture_output=True, text=True, check=True)
        found = msgspec.json.decode(completed.stdout, type=dict[str, float])
        limit = MachineLimit(loopback=found["loopback_110kib_mb_per_s"], write=found["write_110kib_mb_per_s"])
        self._log(f"{number + 1}/{self._pace.rounds}  loopback and write: {limit.combined:,.0f} MB/s")
        self._limits.append(limit)
        return {}

    # The time until a batch can be consumed.

    def _probe(self, server: Server, kind: Kind, batch_kind: BatchKind, *, is_busy: bool) -> VisibilityTimes:
        background = (
            threading.Thread(target=self._bench.load, args=(server, self._background(batch_kind))) if is_busy else None
        )
        if background is not None:
            background.start()
        times_ms = []
        with Remote(server.port) as sender, Remote(server.port) as puller:
            probe = VisibilityProbe(sender, puller, server.name, batch_kind)
            for number in range(self._pace.probes):
                if background is not None and not background.is_alive():
                    break
                times_ms.append(probe.measure(number))
        if background is not None:
            background.join()
        times = summarize_times(times_ms)
        condition = "under load" if is_busy else "at rest"
        self._log(
            f"   consumable after, {kind}, {batch_kind}, {condition}: p50 {times.p50_ms:.2f} ms, p99 "
            f"{times.p99_ms:.2f} ms"
        )
        return VisibilityTimes(kind=kind, way=batch_kind, is_busy=is_busy, times=times)

    def _background(self, batch_kind: BatchKind) -> Load:
        return Load(
            mode=batch_kind,
            topic=TOPICS[batch_kind],
            connections=2,
            in_flight=2,
            batch=BATCH,
            size=KIB,
            seconds=1.5,
            warm=0.0,
        )

    # The sizes of the indexes.

    def _measure_index(self, kind: Kind, server: Server) -> list[IndexCost]:
        """Stop a broker, so that everything is on disk, and measure its indexes."""
        assert server.store is not None
        with Remote(server.port) as remote:
            messages = {
                batch_kind: sum(remote.max_offset(topic, queue) for queue in range(QUEUES))
                for batch_kind, topic in TOPICS.items()
            }
        self._fleet.stop(server, remove_store=False)
        costs = [
            IndexCost(
                kind=kind,
                way=batch_kind,
                messages=messages[batch_kind],
                index_bytes=count_index_bytes(server.store, batch_kind, topic),
            )
            for batch_kind, topic in TOPICS.items()
        ]
        self._fleet.remove(server.store)
        return costs

    # The library.

    def _produce(self, name_server: Server, broker: Server) -> dict[str, ProducerRates]:
        calls: dict[str, tuple[str, BatchKind]] = {
            SEND_MANY: ("many", "inner"),
            SEND_NOWAIT: ("nowait", "inner"),
            SEND_NOWAIT_KEYED: ("keyed", "inner"),
            SEND_MANY_SPLIT: ("many", "outer"),
        }
        rates: dict[str, list[float]] = {name: [] for name in calls}
        cores: dict[str, list[tuple[float, float]]] = {name: [] for name in calls}
        for number in range(self._pace.rounds):
            for name, (call, batch_kind) in calls.items():
                _prepare_write()
                stopwatch = Stopwatch(broker.pid)
                begun_s = time.monotonic()
                sent = self._run_producer(
                    name_server,
                    TOPICS[batch_kind],
                    call,
                    f"seconds={self._pace.seconds}",
                    f"whole={int(batch_kind == 'inner')}",
                )
                # The watch began before the producer started, but the broker is idle until the producer sends.
                server_s = stopwatch.stop().server * (time.monotonic() - begun_s)
                rates[name].append(sent["messages"] / sent["seconds"])
                cores[name].append((sent["cpu_seconds"] / sent["seconds"], server_s / sent["seconds"]))
                wait_until_quiet(broker.pid)
                self._log(f"{number + 1}/{self._pace.rounds}  {name}: {rates[name][-1]:,.0f} messages/s")
        return {
            name: ProducerRates(
                messages_per_s=rates[name],
                client_cores=statistics.median(client for client, _ in cores[name]),
                server_cores=statistics.median(server for _, server in cores[name]),
            )
            for name in calls
        }

    def _run_producer(self, name_server: Server, topic: str, call: str, *options: str) -> dict[str, float]:
        command = [str(SOURCES / "produce.py"), name_server.name_server, topic, call, *options]
        return msgspec.json.decode(_run_python(command), type=dict[str, float])

    def _read_columns(self, name_server: Server, broker: Server) -> list[ColumnReads]:
        """Read topics of small messages that our producer wrote, one topic of each index type."""
        if importlib.util.find_spec("pyarrow") is None:
            self._log("   no columns: `pip install 'holdfast[arrow]'` installs pyarrow")
            return []
        found = []
        for batch_kind, topic in (("inner", "SmallWhole"), ("outer", "SmallSplit")):
            create_topic(broker, name_server, topic, queues=QUEUES, batches=batch_kind == "inner")
            count, whole_option = f"count={self._pace.columns_messages}", f"whole={int(batch_kind == 'inner')}"
            self._run_producer(name_server, topic, "many", count, whole_option, f"size={SMALL}")
            wait_until_quiet(broker.pid)
            for title, columns in ((SLIM, ("queue", "offset", "key", "body")), (ALL_COLUMNS, ())):
                command = [
                    str(SOURCES / "arrow_read.py"),
                    name_server.name_server,
                    topic,
                    str(self._pace.rounds),
                    *columns,
                ]
                said = msgspec.json.decode(_run_python(command), type=_ArrowTimes)
                if said.messages < self._pace.columns_messages:
                    raise BenchmarkFailed(f"{said.messages} of {self._pace.columns_messages} messages were read")
                read = ColumnReads(
                    way="inner" if batch_kind == "inner" else "outer",
                    columns=title,
                    messages=said.messages,
                    seconds=said.seconds,
                )
                self._log(f"   into Arrow, {batch_kind}, {title}: {read.messages_per_s:,.0f} messages/s")
                found.append(read)
        return found


class _ArrowTimes(msgspec.Struct, frozen=True):
    messages: int
    seconds: list[float]


class VisibilityProbe:
    """Sends a batch and pulls until all of it has arrived."""

    def __init__(self, sender: Remote, puller: Remote, broker: str, batch_kind: BatchKind) -> None:
        self._sender = sender
        self._puller = puller
        self._broker = broker
        self._batch_kind = batch_kind
        self._topic = TOPICS[batch_kind]

    def measure(self, number: int) -> float:
        """Return the milliseconds from the acknowledgement of a batch to a pull that has all of it."""
        queue = number % QUEUES
        base = self._send(queue, number)
        acknowledged_s = time.perf_counter()
        while time.perf_counter() - acknowledged_s < PROBE_TIMEOUT_S:
            reply = self._puller.request(PULL, self._pull_fields(queue, base))
            if reply.code == 0 and int(reply.fields["nextBeginOffset"]) >= base + BATCH:
                return (time.perf_counter() - acknowledged_s) * 1000
        raise BenchmarkFailed(f"a batch in {self._topic} cannot be consumed")

    def _send(self, queue: int, number: int) -> int:
        """Send a batch and return the offset of its first message."""
        batch_id = f"7F0000010000251A69D70A1B{number:08X}"
        texts = [f"UNIQ_KEY\x017F0000010000251A69D7{number:06X}{item:06X}\x02".encode() for item in range(BATCH)]
        fields = {
            "a": "load", "b": self._topic, "c": "TBW102", "d": "4", "e": str(queue), "f": "0",
            "g": str(int(time.time() * 1000)), "h": "0",
            "i": f"UNIQ_KEY\x01{batch_id}\x02" if self._batch_kind == "inner" else "WAIT\x01true\x02",
            "j": "0", "k": "false", "m": "true", "n": self._broker,
        }  # fmt: skip
        reply = self._sender.request(SEND_BATCH, fields, encode_items((0, bytes(KIB), text) for text in texts))
        if reply.code != 0:
            raise BenchmarkFailed(f"a batch was refused: {reply.code} {reply.remark}")
        return int(reply.fields["queueOffset"])

    def _pull_fields(self, queue: int, offset: int) -> dict[str, str]:
        return {
            "consumerGroup": "load", "topic": self._topic, "queueId": str(queue), "queueOffset": str(offset),
            "maxMsgNums": str(BATCH), "maxMsgBytes": str(4 << 20), "sysFlag": str(SUBSCRIPTION_FLAG),
            "commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": "*", "subVersion": "0",
            "bname": self._broker,
        }  # fmt: skip


def count_index_bytes(store: Path, batch_kind: BatchKind, topic: str) -> int:
    """Return the bytes of entries in the index of *topic*. Its files are larger: zeros follow the last entry."""
    folder, entry_size = INDEXES[batch_kind]
    total = 0
    for file in (store / folder / topic).glob("*/*"):
        used = len(file.read_bytes().rstrip(b"\0"))
        total += -(-used // entry_size) * entry_size
    return total


def _prepare_write() -> None:
    os.sync()
    touch_memory(MEMORY)


def _run_python(command: list[str]) -> str:
    """Run a script of this folder, and return its output.

    Raises:
        BenchmarkFailed: The script failed; the text ends with its error output.
    """
    completed = subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, check=False, cwd=SOURCES.parent
    )
    if completed.returncode != 0:
        raise BenchmarkFailed(f"{' '.join(command)} failed:\n{completed.stderr[-2000:]}")
    return completed.stdout
