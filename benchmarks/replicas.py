"""Replicas: the cost for their master, ours beside Java's, and how soon another unit reads a lost one.

    pairs      master alone     master ─async─> replica     master ─sync─> replica        of either kind, all at once
    rounds     each load on each pair in turn; the order rotates from round to round
    openings   unit A, unit B ─ `holdfast dr open --unit A` ─> a consumer of B gets the first message of A

The ends of both logs are requested at the same time, from either kind as tools do it (28): every 50 ms under load, and
after it until they are equal.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Self

import msgspec
from benchmarks.load import Load
from benchmarks.measure import FOREIGN_MAX, Bench
from benchmarks.openings import OpeningBench
from benchmarks.preparation import TOPIC, touch_memory
from benchmarks.process_cost import Stopwatch, cpu_seconds, wait_until_quiet
from benchmarks.programs import BenchmarkFailed, Programs
from benchmarks.remoting import Remote, log_ends
from benchmarks.replica_findings import REPLICATIONS, PairFigures, PairReading, ReplicaFindings, Replication
from benchmarks.servers import Kind, Server, ServerFleet, create_topic

KINDS: Final[tuple[Kind, ...]] = ("holdfast", "java")
SHAPES: Final = ((16, 1), (16, 16), (4, 256))
JAVA_ROLES: Final[dict[Replication, str]] = {"none": "ASYNC_MASTER", "async": "ASYNC_MASTER", "sync": "SYNC_MASTER"}
WATCH_S: Final = 0.05
POLL_S: Final = 0.005
CAUGHT_UP_TIMEOUT_S: Final = 60.0
MEMORY: Final = 1 << 29  # more than a reading writes, at both ends


class ReplicaPace(msgspec.Struct, frozen=True, kw_only=True):
    """The durations and amounts."""

    rounds: int = 3
    seconds: float = 1.2
    java_warm_s: float = 12.0
    openings: int = 7


@dataclass(frozen=True, slots=True)
class MeasuredPair:
    """A master and its replica, if it has one."""

    kind: Kind
    replication: Replication
    master: Server
    replica: Server | None


class ReplicaBench:
    """Takes every figure once, in a few minutes."""

    def __init__(
        self, fleet: ServerFleet, programs: Programs, log: Callable[[str], None], pace: ReplicaPace | None = None
    ) -> None:
        self._fleet = fleet
        self._bench = Bench(programs.loadgen, log)
        self._log = log
        self._pace = pace or ReplicaPace()

    def measure(self) -> ReplicaFindings:
        """Measure everything."""
        load = os.getloadavg()[0]
        openings = OpeningBench(self._fleet, self._log, self._pace.openings).measure()
        return ReplicaFindings(figures=self._measure_pairs(), openings=openings, load=load)

    def _measure_pairs(self) -> list[PairFigures]:
        name_servers: dict[Kind, Server] = {
            "holdfast": self._fleet.start_holdfast_name_server(),
            "java": self._fleet.start_java_name_server(),
        }
        pairs = [self._start(kind, replication, name_servers[kind]) for kind in KINDS for replication in REPLICATIONS]
        for pair in pairs:
            self._warm(pair)
        figures = self._run_rounds(pairs)
        for pair in pairs:
            for server in (pair.replica, pair.master):
                if server is not None:
                    self._fleet.discard(server)
        for server in name_servers.values():
            self._fleet.discard(server)
        return figures

    # Before the first reading.

    def _start(self, kind: Kind, replication: Replication, name_server: Server) -> MeasuredPair:
        """Start a master with the topic of the sends, and its replica."""
        start = self._start_java if kind == "java" else self._start_ours
        self._log(f"   starting {kind}, replication {replication}")
        master = start(replication, name_server, is_replica=False)
        create_topic(master, name_server, TOPIC, queues=4)
        replica = None if replication == "none" else start(replication, name_server, is_replica=True)
        return MeasuredPair(kind, replication, master, replica)

    def _start_ours(self, replication: Replication, name_server: Server, *, is_replica: bool) -> Server:
        name = f"pair-{replication}"
        options = ["--replica-of", name] if is_replica else []
        if replication == "sync":
            options += ["--set", "replication=sync"]
        return self._fleet.start_holdfast(name_server, "async", name=name, options=options)

    def _start_java(self, replication: Replication, name_server: Server, *, is_replica: bool) -> Server:
        settings = {"brokerRole": "SLAVE", "brokerId": "1"} if is_replica else {"brokerRole": JAVA_ROLES[replication]}
        if replication == "sync":
            settings["inSyncReplicas"] = "2"  # 1, the default, counts the master itself: it would not wait
        return self._fleet.start_java(name_server, "async", name=f"pair-{replication}", settings=settings)

    def _warm(self, pair: MeasuredPair) -> None:
        """Send the load of the readings, so that the JVMs at both ends have compiled their code."""
        self._log(f"   warming {pair.kind}, replication {pair.replication}")
        seconds = self._pace.java_warm_s if pair.kind == "java" else 1.0
        for connections, in_flight in SHAPES:
            self._bench.load(pair.master, self._load(connections, in_flight, seconds / len(SHAPES)))
        with ReplicaLag(pair) as lag:
            lag.close()
        self._wait_until_quiet(pair)

    def _load(self, connections: int, in_flight: int, seconds: float) -> Load:
        return Load(mode="send", topic=TOPIC, connections=connections, in_flight=in_flight, seconds=seconds, warm=0.2)

    # Rounds.

    def _run_rounds(self, pairs: Sequence[MeasuredPair]) -> list[PairFigures]:
        found: dict[tuple[str, Kind, Replication], list[PairReading]] = {}
        for number in range(self._pace.rounds):
            for connections, in_flight in SHAPES:
                load = self._load(connections, in_flight, self._pace.seconds)
                turn = number % len(pairs)
                for pair in (*pairs[turn:], *pairs[:turn]):
                    reading = self._read(pair, load)
                    found.setdefault((load.shape, pair.kind, pair.replication), []).append(reading)
                    self._log(f"{number + 1}/{self._pace.rounds}  {describe(pair, load, reading)}")
        return [
            PairFigures(kind=kind, replication=replication, shape=shape, readings=readings)
            for (shape, kind, replication), readings in found.items()
        ]

    def _read(self, pair: MeasuredPair, load: Load) -> PairReading:
        """Take one reading; repeat it if other processes used the machine meanwhile."""
        first = self._read_once(pair, load)
        if first.foreign_cores <= FOREIGN_MAX:
            return first
        return min(first, self._read_once(pair, load), key=lambda reading: reading.foreign_cores)

    def _read_once(self, pair: MeasuredPair, load: Load) -> PairReading:
        os.sync()
        touch_memory(MEMORY)
        with ReplicaLag(pair) as lag:
            before_s, replica_before_s = time.monotonic(), _used(pair.replica)
            stopwatch = Stopwatch(pair.master.pid)
            result = self._bench.load(pair.master, load)
            spent = stopwatch.stop()
            replica_cores = (_used(pair.replica) - replica_before_s) / (time.monotonic() - before_s)
            lag_bytes, caught_up_s = lag.close()
        self._wait_until_quiet(pair)
        return PairReading(
            load=result,
            master_cores=spent.server,
            replica_cores=replica_cores,
            foreign_cores=max(0.0, spent.foreign - replica_cores) + spent.stolen,
            most_behind_bytes=lag.most,
            behind_bytes=lag_bytes,
            caught_up_s=caught_up_s,
        )

    def _wait_until_quiet(self, pair: MeasuredPair) -> None:
        for server in (pair.master, pair.replica):
            if server is not None:
                wait_until_quiet(server.pid)


class ReplicaLag:
    """Measures while the block runs how much of its master's log a replica lacks.

    Attributes:
        most: The largest distance, in bytes.
    """

    def __init__(self, pair: MeasuredPair) -> None:
        self._pair = pair
        self.most = 0
        self._ends: tuple[Remote, Remote] | None = None
        self._has_ended = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="distance", daemon=True)

    def __enter__(self) -> Self:
        if self._pair.replica is not None:
            self._ends = (Remote(self._pair.master.port), Remote(self._pair.replica.port))
            self._measure()
            self._watcher.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._ends is not None:
            self._end_watch()
            for end in self._ends:
                end.close()

    def close(self) -> tuple[int, float]:
        """Wait until the replica has everything; return the first distance, and how long that took.

        Raises:
            BenchmarkFailed: It did not catch up in time.
        """
        since_s = time.monotonic()
        if self._ends is None:
            return 0, 0.0
        self._end_watch()
        lag_now = lag_bytes = self._measure()
        while lag_now:
            if time.monotonic() - since_s > CAUGHT_UP_TIMEOUT_S:
                raise BenchmarkFailed(f"the replica of {self._pair.kind} still lacks {lag_now} bytes")
            time.sleep(POLL_S)  # poll: neither sends a notice
            lag_now = self._measure()
        return lag_bytes, time.monotonic() - since_s if lag_bytes else 0.0

    def _measure(self) -> int:
        assert self._ends is not None
        master, replica = log_ends(self._ends)
        lag_now = max(0, master - replica)  # the replica may have answered a moment later
        self.most = max(self.most, lag_now)
        return lag_now

    def _watch(self) -> None:
        while not self._has_ended.wait(WATCH_S):
            self._measure()

    def _end_watch(self) -> None:
        self._has_ended.set()
        self._watcher.join()


def _used(server: Server | None) -> float:
    return cpu_seconds(server.pid) if server is not None else 0.0


def describe(pair: MeasuredPair, load: Load, reading: PairReading) -> str:
    """Return one line of progress."""
    result = reading.load
    return (
        f"{load.shape:<6} {pair.kind:<9} replication {pair.replication:<6} {result.messages_per_s:>9,.0f} messages/s"
        f"  p50 {result.p50_us:>7,.0f} us  p99 {result.p99_us:>8,.0f} us"
        f"  cores {reading.master_cores:.2f} + replica {reading.replica_cores:.2f}"
        f" + foreign {reading.foreign_cores:.2f}"
        f"  lacks {reading.most_behind_bytes / 1e6:.2f}, at the end {reading.behind_bytes / 1e6:.2f} MB,"
        f" {reading.caught_up_s * 1000:.0f} ms"
        f"{f'  refused {result.refused}' if result.refused else ''}"
    )
