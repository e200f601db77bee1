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
    CLOSED,
    INNER,
    INNER_SYNC,
    OUTER,
    SEND_MANY,
    SEND_MANY_SPLIT,
    SEND_NOWAIT,
    SEND_NOWAIT_KEYED,
    SLIM,
    BatchFindings,
    Columns,
    IndexCost,
    Limit,
    Produced,
    Visible,
    Way,
)
from benchmarks.cells import Cell, Role
from benchmarks.load import Load, Mode
from benchmarks.measure import Bench
from benchmarks.preparation import touch_memory
from benchmarks.process_cost import Stopwatch, wait_until_quiet
from benchmarks.programs import SOURCES, BenchmarkFailed, Programs
from benchmarks.push_findings import summarize_times
from benchmarks.remoting import Remote
from benchmarks.servers import Fleet, Flush, Kind, Server, create_topic

from holdfast.wire.records.batch import encode_items

TOPICS: Final[Mapping[Way, str]] = {"inner": "Whole", "outer": "Split"}
QUEUES: Final = 4
BATCH: Final = 100
KIB: Final = 1024
SMALL: Final = 100
KINDS: Final[tuple[Kind, ...]] = ("holdfast", "java")
FLUSHES: Final[tuple[Flush, ...]] = ("async", "sync")
# Index folder and size of an entry, the same in both brokers' stores.
INDEXES: Final[Mapping[Way, tuple[str, int]]] = {"inner": ("batchconsumequeue", 46), "outer": ("consumequeue", 20)}
SEND_BATCH: Final = 320
PULL: Final = 11
SUBSCRIPTION_GIVEN: Final = 4
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
        cell(CLOSED, "async", "closed", 4, ("holdfast",)),
        cell(INNER_SYNC, "sync", "inner", 4),
        cell(INNER_SYNC, "sync", "inner", 16),
        cell(OUTER, "async", "outer", 4),
        cell(OUTER, "async", "outer", 16),
    ]


class BatchBench:
    """Takes every figure once, in a few minutes."""

    def __init__(
        self,
        fleet: Fleet,
        programs: Programs,
        folder: Path,
        say: Callable[[str], None],
        pace: BatchPace | None = None,
    ) -> None:
        self._fleet = fleet
        self._bench = Bench(programs.loadgen, say, settle=_settle)
        self._programs = programs
        self._folder = folder
        self._say = say
        self._pace = pace or BatchPace()
        self._limits: list[Limit] = []

    def measure(self) -> BatchFindings:
        """Measure everything."""
        pace, load = self._pace, os.getloadavg()[0]
        names: dict[Kind, Server] = {
            "holdfast": self._fleet.start_holdfast_name_server(),
            "java": self._fleet.start_java_name_server(),
        }
        servers: dict[tuple[Kind, str], Server] = {
            (kind, flush): self._start(kind, flush, names[kind]) for kind in KINDS for flush in FLUSHES
        }
        for (kind, _), server in servers.items():
            self._warm(kind, server)
        cells = self._bench.run_rounds(
            batch_cells(pace.seconds), servers, rounds=pace.rounds, prepare=self._measure_limit
        )
        visible = [
            self._probe(servers[kind, "async"], kind, way, is_busy=is_busy)
            for is_busy in (False, True)
            for way in TOPICS
            for kind in KINDS
        ]
        index = [cost for kind in KINDS for cost in self._measure_index(kind, servers[kind, "async"])]
        for kind in KINDS:
            self._fleet.stop(servers[kind, "sync"])
        self._fleet.stop(names["java"])
        broker = self._start("holdfast", "async", names["holdfast"])
        produced = self._produce(names["holdfast"], broker)
        columns = self._read_columns(names["holdfast"], broker)
        for server in (broker, names["holdfast"]):
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

    def _start(self, kind: Kind, flush: Flush, names: Server) -> Server:
        """Start a broker with a topic of each index type."""
        server = (self._fleet.start_java if kind == "java" else self._fleet.start_holdfast)(names, flush)
        for way, topic in TOPICS.items():
            create_topic(server, names, topic, queues=QUEUES, batches=way == "inner")
        return server

    def _warm(self, kind: Kind, server: Server) -> None:
        """Send the load of the readings with small messages: a JVM compiles the same code, and the disk stays empty."""
        seconds = self._pace.java_warm_s if kind == "java" else 1.0
        self._say(f"   warming {kind}, {server.name}")
        ways: tuple[Way, ...] = ("inner", "outer")
        for way in ways:
            load = Load(mode=way, topic=TOPICS[way], connections=4, in_flight=4, batch=BATCH, size=SMALL)
            self._bench.load(server, msgspec.structs.replace(load, seconds=seconds / 2))
        wait_until_quiet(server.pid)

    def _measure_limit(self, number: int) -> Mapping[str, str]:
        """Measure the limits of the machine at the beginning of a round. The topics do not change."""
        command = [str(self._programs.limits), f"dir={self._folder}", "seconds=0.7", "only=batch"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        found = msgspec.json.decode(done.stdout, type=dict[str, float])
        limit = Limit(loopback=found["loopback_110kib_mb_per_s"], write=found["write_110kib_mb_per_s"])
        self._say(f"{number + 1}/{self._pace.rounds}  loopback and write: {limit.both:,.0f} MB/s")
        self._limits.append(limit)
        return {}

    # The time until a batch can be consumed.

    def _probe(self, server: Server, kind: Kind, way: Way, *, is_busy: bool) -> Visible:
        others = threading.Thread(target=self._bench.load, args=(server, self._background(way))) if is_busy else None
        if others is not None:
            others.start()
        times_ms = []
        with Remote(server.port) as sender, Remote(server.port) as puller:
            probe = Probe(sender, puller, server.name, way)
            for number in range(self._pace.probes):
                if others is not None and not others.is_alive():
                    break
                times_ms.append(probe.take(number))
        if others is not None:
            others.join()
        times = summarize_times(times_ms)
        word = "under load" if is_busy else "at rest"
        self._say(f"   consumable after, {kind}, {way}, {word}: p50 {times.p50_ms:.2f} ms, p99 {times.p99_ms:.2f} ms")
        return Visible(kind=kind, way=way, is_busy=is_busy, times=times)

    def _background(self, way: Way) -> Load:
        return Load(
            mode=way, topic=TOPICS[way], connections=2, in_flight=2, batch=BATCH, size=KIB, seconds=1.5, warm=0.0
        )

    # The sizes of the indexes.

    def _measure_index(self, kind: Kind, server: Server) -> list[IndexCost]:
        """Stop a broker, so that everything is on disk, and measure its indexes."""
        assert server.store is not None
        with Remote(server.port) as remote:
            messages = {
                way: sum(remote.max_offset(topic, queue) for queue in range(QUEUES)) for way, topic in TOPICS.items()
            }
        self._fleet.stop(server, remove_store=False)
        costs = [
            IndexCost(
                kind=kind, way=way, messages=messages[way], index_bytes=count_index_bytes(server.store, way, topic)
            )
            for way, topic in TOPICS.items()
        ]
        self._fleet.remove(server.store)
        return costs

    # The library.

    def _produce(self, names: Server, broker: Server) -> dict[str, Produced]:
        ways: dict[str, tuple[str, Way]] = {
            SEND_MANY: ("many", "inner"),
            SEND_NOWAIT: ("nowait", "inner"),
            SEND_NOWAIT_KEYED: ("keyed", "inner"),
            SEND_MANY_SPLIT: ("many", "outer"),
        }
        rates: dict[str, list[float]] = {name: [] for name in ways}
        cores: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
        for number in range(self._pace.rounds):
            for name, (call, way) in ways.items():
                _settle()
                watch = Stopwatch(broker.pid)
                begun_s = time.monotonic()
                sent = self._run_producer(
                    names, TOPICS[way], call, f"seconds={self._pace.seconds}", f"whole={int(way == 'inner')}"
                )
                # The watch began before the producer started, but the broker is idle until the producer sends.
                server_s = watch.stop().server * (time.monotonic() - begun_s)
                rates[name].append(sent["messages"] / sent["seconds"])
                cores[name].append((sent["cpu_seconds"] / sent["seconds"], server_s / sent["seconds"]))
                wait_until_quiet(broker.pid)
                self._say(f"{number + 1}/{self._pace.rounds}  {name}: {rates[name][-1]:,.0f} messages/s")
        return {
            name: Produced(
                messages_per_s=rates[name],
                client_cores=statistics.median(client for client, _ in cores[name]),
                server_cores=statistics.median(server for _, server in cores[name]),
            )
            for name in ways
        }

    def _run_producer(self, names: Server, topic: str, call: str, *options: str) -> dict[str, float]:
        command = [str(SOURCES / "produce.py"), names.name_server, topic, call, *options]
        return msgspec.json.decode(_run_python(command), type=dict[str, float])

    def _read_columns(self, names: Server, broker: Server) -> list[Columns]:
        """Read topics of small messages that our producer wrote, one topic of each index type."""
        if importlib.util.find_spec("pyarrow") is None:
            self._say("   no columns: `pip install 'holdfast[arrow]'` installs pyarrow")
            return []
        found = []
        for way, topic in (("inner", "SmallWhole"), ("outer", "SmallSplit")):
            create_topic(broker, names, topic, queues=QUEUES, batches=way == "inner")
            count, is_whole = f"count={self._pace.columns_messages}", f"whole={int(way == 'inner')}"
            self._run_producer(names, topic, "many", count, is_whole, f"size={SMALL}")
            wait_until_quiet(broker.pid)
            for title, columns in ((SLIM, ("queue", "offset", "key", "body")), (ALL_COLUMNS, ())):
                command = [str(SOURCES / "arrow_read.py"), names.name_server, topic, str(self._pace.rounds), *columns]
                said = msgspec.json.decode(_run_python(command), type=_Said)
                if said.messages < self._pace.columns_messages:
                    raise BenchmarkFailed(f"{said.messages} of {self._pace.columns_messages} messages were read")
                read = Columns(
                    way="inner" if way == "inner" else "outer",
                    columns=title,
                    messages=said.messages,
                    seconds=said.seconds,
                )
                self._say(f"   into Arrow, {way}, {title}: {read.messages_per_s:,.0f} messages/s")
                found.append(read)
        return found


class _Said(msgspec.Struct, frozen=True):
    messages: int
    seconds: list[float]


class Probe:
    """Sends a batch and pulls until all of it has arrived."""

    def __init__(self, sender: Remote, puller: Remote, broker: str, way: Way) -> None:
        self._sender = sender
        self._puller = puller
        self._broker = broker
        self._way = way
        self._topic = TOPICS[way]

    def take(self, number: int) -> float:
        """Return the milliseconds from the acknowledgement of a batch to a pull that has all of it."""
        queue = number % QUEUES
        base = self._send(queue, number)
        acknowledged_s = time.perf_counter()
        while time.perf_counter() - acknowledged_s < PROBE_TIMEOUT_S:
            reply = self._puller.ask(PULL, self._pull_fields(queue, base))
            if reply.code == 0 and int(reply.fields["nextBeginOffset"]) >= base + BATCH:
                return (time.perf_counter() - acknowledged_s) * 1000
        raise BenchmarkFailed(f"a batch in {self._topic} cannot be consumed")

    def _send(self, queue: int, number: int) -> int:
        """Send a batch and return the offset of its first message."""
        batch_id = f"7F0000010000251A69D70A1B{number:08X}"
        texts = [f"UNIQ_KEY\x017F0000010000251A69D7{number:06X}{place:06X}\x02".encode() for place in range(BATCH)]
        fields = {
            "a": "load", "b": self._topic, "c": "TBW102", "d": "4", "e": str(queue), "f": "0",
            "g": str(int(time.time() * 1000)), "h": "0",
            "i": f"UNIQ_KEY\x01{batch_id}\x02" if self._way == "inner" else "WAIT\x01true\x02",
            "j": "0", "k": "false", "m": "true", "n": self._broker,
        }  # fmt: skip
        reply = self._sender.ask(SEND_BATCH, fields, encode_items((0, bytes(KIB), text) for text in texts))
        if reply.code != 0:
            raise BenchmarkFailed(f"a batch was refused: {reply.code} {reply.remark}")
        return int(reply.fields["queueOffset"])

    def _pull_fields(self, queue: int, offset: int) -> dict[str, str]:
        return {
            "consumerGroup": "load", "topic": self._topic, "queueId": str(queue), "queueOffset": str(offset),
            "maxMsgNums": str(BATCH), "maxMsgBytes": str(4 << 20), "sysFlag": str(SUBSCRIPTION_GIVEN),
            "commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": "*", "subVersion": "0",
            "bname": self._broker,
        }  # fmt: skip


def count_index_bytes(store: Path, way: Way, topic: str) -> int:
    """Return the bytes of entries in the index of *topic*. Its files are larger: zeros follow the last entry."""
    folder, entry_size = INDEXES[way]
    total = 0
    for file in (store / folder / topic).glob("*/*"):
        used = len(file.read_bytes().rstrip(b"\0"))
        total += -(-used // entry_size) * entry_size
    return total


def _settle() -> None:
    os.sync()
    touch_memory(MEMORY)


def _run_python(command: list[str]) -> str:
    """Run a script of this folder, and return its output.

    Raises:
        BenchmarkFailed: The script failed; the text ends with its error output.
    """
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=False, cwd=SOURCES.parent)
    if done.returncode != 0:
        raise BenchmarkFailed(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    return done.stdout
