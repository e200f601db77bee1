"""`make bench`: our servers beside Java's and the bare path, in one run, on one machine.

    python -m benchmarks.run [--quick] [--growth] [--spark] [--only cells,idle,...] [--rounds N] [--seconds S]

    compile ─> limits, ceilings ─> first burst ─> warm ─> rounds ─> growth ─> idle, recovery, moves, push, batches
    ─> replicas ─> access ─> spark ─> profile ─> report

All stores are in one temporary folder on the measured disk, which is removed at the end. The results are written to
docs/benchmarks: results.json (every reading), results.md (tables), *.svg.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec
from benchmarks import growth, plots, profile_send, report, results
from benchmarks.access import AccessBench, AccessPace
from benchmarks.batches import BatchBench, BatchPace
from benchmarks.cells import Cell, main_cells
from benchmarks.cold_start import measure_cold_start
from benchmarks.idle import measure_idle
from benchmarks.judgement import find_verdicts
from benchmarks.load import Load, LoadResult
from benchmarks.measure import Bench
from benchmarks.moves import MoveBench, MovePace
from benchmarks.pipeline_findings import QUICK_PIPELINE, PipelineExtent
from benchmarks.preparation import TOPIC, fill_hot_topics, warm_broker, warm_name_server
from benchmarks.programs import BenchmarkFailed, Programs, compile_programs
from benchmarks.recovery import LOG_MIB, measure_recovery
from benchmarks.replicas import ReplicaBench, ReplicaPace
from benchmarks.route_push import PushBench, PushPace
from benchmarks.servers import JAVA_VERSION, Flush, Kind, Server, ServerFleet, create_topic
from benchmarks.spark_figures import QUICK, Extent, SparkBench

OUTPUT: Final = Path("docs/benchmarks")
PARTS: Final = (
    "limits",
    "cells",
    "growth",
    "idle",
    "recovery",
    "moves",
    "push",
    "batches",
    "replicas",
    "access",
    "spark",
    "pipeline",
    "profile",
)
# Data that a round of the cells writes, over all servers; none of it is removed before the end.
GB_PER_ROUND: Final = 16.0
ACCESS_GB_PER_ROUND: Final = 6.0
GROWTH_ROUNDS_MAX: Final = 3


class BenchPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The parts to measure, and their durations."""

    parts: frozenset[str]
    cells: list[Cell]
    rounds: int
    seconds: float
    java_warm_seconds: float
    folder: Path
    output: Path
    base_port: int
    recovery_mib: int
    move_pace: MovePace
    push_pace: PushPace
    batch_pace: BatchPace
    replica_pace: ReplicaPace
    access_pace: AccessPace
    spark_extent: Extent
    pipeline_extent: PipelineExtent


class ServerGroup(msgspec.Struct, frozen=True, kw_only=True):
    """A name server and the brokers of one kind."""

    kind: Kind
    name_server: Server
    brokers: dict[Flush, Server]


def log(line: str) -> None:
    """Print a line of progress at once."""
    print(line, flush=True)


class Run:
    """One run, part by part. Every part stores its results in `results`."""

    def __init__(self, plan: BenchPlan, programs: Programs, fleet: ServerFleet) -> None:
        self._plan = plan
        self._programs = programs
        self._fleet = fleet
        self._bench = Bench(programs.loadgen, log)
        self.results = self._load_earlier() or results.Results(
            seconds=plan.seconds, rounds=plan.rounds, machine=results.describe_machine(_java_version())
        )
        if "cells" in plan.parts:
            self.results.seconds, self.results.rounds = plan.seconds, plan.rounds

    def run(self) -> None:
        """Measure every requested part."""
        parts: dict[str, Callable[[], None]] = {
            "limits": self._limits,
            "cells": self._cells,
            "growth": self._growth,
            "idle": self._idle,
            "recovery": self._recovery,
            "moves": self._moves,
            "push": self._push,
            "batches": self._batches,
            "replicas": self._replicas,
            "access": self._access,
            "spark": self._spark,
            "pipeline": self._pipeline,
            "profile": self._profile,
        }
        for name, part in parts.items():
            if name in self._plan.parts:
                log(f"== {name}")
                self.results.taken[name] = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
                part()
                self._save()

    def _load_earlier(self) -> results.Results | None:
        """Return the results of an earlier run.

        Parts that are not measured again stay, with the time of their measurement.
        """
        file = self._plan.output / "results.json"
        return results.load(file) if file.exists() else None

    def _save(self) -> None:
        """Store the results so far, so that an interrupted run keeps them."""
        results.save(self.results, self._plan.output / "results.json")
        (self._plan.output / "results.md").write_text(report.markdown(self.results), encoding="utf-8")

    def _limits(self) -> None:
        readings = []
        for _ in range(self._plan.rounds):
            command = [str(self._programs.limits), f"dir={self._plan.folder}", "seconds=1"]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            readings.append(msgspec.json.decode(done.stdout, type=dict[str, float]))
        self.results.limits = {name: statistics.median(reading[name] for reading in readings) for name in readings[0]}

    def _start(self, kind: Kind, flushes: Sequence[Flush]) -> ServerGroup:
        """Start a name server and brokers of *kind*, with the topic of the sends."""
        fleet = self._fleet
        name_server = fleet.start_java_name_server() if kind == "java" else fleet.start_holdfast_name_server()
        start = fleet.start_java if kind == "java" else fleet.start_holdfast
        brokers: dict[Flush, Server] = {}
        for flush in flushes:
            brokers[flush] = start(name_server, flush)
            create_topic(brokers[flush], name_server, TOPIC, queues=4)
        return ServerGroup(kind=kind, name_server=name_server, brokers=brokers)

    def _stop(self, cluster: ServerGroup) -> None:
        for server in (*cluster.brokers.values(), cluster.name_server):
            self._fleet.stop(server)

    def _cells(self) -> None:
        plan, bench = self._plan, self._bench
        self.results.ceilings = self._ceilings(plan.cells)
        clusters = [self._start(kind, ("async", "sync")) for kind in ("holdfast", "java")]
        bare = self._fleet.start_bare()
        for cluster in clusters:
            cold = measure_cold_start(bench, cluster.brokers["async"], TOPIC)
            log(f"   first burst, {cluster.kind}: {cold.messages_per_s:,.0f}/s, refused {cold.refused or 'none'}")
            self.results.cold[cluster.kind] = cold
        for cluster in clusters:
            seconds = plan.java_warm_seconds if cluster.kind == "java" else 3.0
            log(f"   warming {cluster.kind}")
            warm_broker(bench, cluster.brokers["async"], seconds=seconds, pulls=True)
            warm_broker(bench, cluster.brokers["sync"], seconds=seconds, pulls=False)
            warm_name_server(bench, cluster.name_server, seconds=seconds / 3)
        servers: dict[tuple[Kind, str], Server] = {("bare", "async"): bare}
        for cluster in clusters:
            servers[cluster.kind, "namesrv"] = cluster.name_server
            servers |= {(cluster.kind, flush): broker for flush, broker in cluster.brokers.items()}
        pairs = [(cluster.brokers["async"], cluster.name_server) for cluster in clusters]
        self.results.cells = bench.run_rounds(
            plan.cells, servers, rounds=plan.rounds, prepare=lambda number: fill_hot_topics(bench, pairs, number)
        )
        self.results.verdicts = find_verdicts(self.results.cells)
        self._fleet.stop(bare)
        for cluster in clusters:
            self._stop(cluster)

    def _ceilings(self, cells: Sequence[Cell]) -> dict[str, LoadResult]:
        """Measure the generator against a server that does nothing."""
        sink = self._fleet.start_sink()
        found = {}
        for cell in cells:
            found[cell.name] = self._bench.load(sink, msgspec.structs.replace(cell.load, seconds=1.0, warm=0.2))
        self._fleet.stop(sink)
        return found

    def _growth(self) -> None:
        bench, plan = self._bench, self._plan
        clusters = [self._start(kind, ("async",)) for kind in ("holdfast", "java")]
        for cluster in clusters:
            broker = cluster.brokers["async"]
            log(f"   making topics and warming {cluster.kind}")
            for topic, queues in growth.topics().items():
                create_topic(broker, cluster.name_server, topic, queues=queues)
            seconds = plan.java_warm_seconds if cluster.kind == "java" else 1.0
            bench.load(broker, Load(mode="send", topic=TOPIC, connections=16, in_flight=16, seconds=seconds))
        servers: dict[tuple[Kind, str], Server] = {
            (cluster.kind, "async"): cluster.brokers["async"] for cluster in clusters
        }
        self.results.growth.clear()
        for axis in growth.axes(plan.seconds):
            found = bench.run_rounds(
                [point.cell for point in axis.points], servers, rounds=min(GROWTH_ROUNDS_MAX, plan.rounds)
            )
            self.results.growth.append(results.Growth(axis=axis, results=found))
            self._save()
        for cluster in clusters:
            self._stop(cluster)

    def _idle(self) -> None:
        for kind in ("holdfast", "java"):
            cluster = self._start(kind, ())
            names = cluster.name_server
            if kind == "java":
                broker = self._fleet.start_java(names, "async")
            else:
                broker = self._fleet.start_holdfast(names, "async", has_metrics=True)
            log(f"   {kind}: a message to every queue, then rest")
            idle = measure_idle(self._bench, broker, names)
            log(f"   {kind}: RssAnon {idle.anonymous_mb:,.0f} MB, {idle.cores:.2%} of a core")
            self.results.idle[kind] = idle
            self._fleet.stop(broker)
            self._stop(cluster)

    def _recovery(self) -> None:
        for kind in ("holdfast", "java"):
            cluster = self._start(kind, ())
            start = self._fleet.start_java if kind == "java" else self._fleet.start_holdfast

            def restart(
                store: Path | None, start: Callable[..., Server] = start, name_server: Server = cluster.name_server
            ) -> Server:
                return start(name_server, "async", store=store)

            found = measure_recovery(
                self._bench, self._fleet, cluster.name_server, restart, log_mib=self._plan.recovery_mib
            )
            log(f"   {kind}: {found.seconds:.1f} s, with everything rebuilt {found.seconds_rebuilding:.1f} s")
            self.results.recovery[kind] = found
            self._stop(cluster)

    def _moves(self) -> None:
        self.results.moves = MoveBench(self._fleet, self._plan.folder, log, self._plan.move_pace).measure()

    def _push(self) -> None:
        self.results.push = PushBench(self._fleet, self._bench, log, self._plan.push_pace).measure()

    def _batches(self) -> None:
        bench = BatchBench(self._fleet, self._programs, self._plan.folder, log, self._plan.batch_pace)
        self.results.batches = bench.measure()

    def _replicas(self) -> None:
        bench = ReplicaBench(self._fleet, self._programs, log, self._plan.replica_pace)
        self.results.replicas = bench.measure()

    def _access(self) -> None:
        bench = AccessBench(self._fleet, self._programs, self._plan.folder / "access", log, self._plan.access_pace)
        self.results.access = bench.measure() or self.results.access

    def _spark(self) -> None:
        self.results.spark = SparkBench(
            self._fleet, self._plan.folder / "spark", log, self._plan.spark_extent
        ).measure()

    def _pipeline(self) -> None:
        from benchmarks.pipeline_figures import PipelineBench  # noqa: PLC0415 - needs numpy, which Spark brings

        extent = self._plan.pipeline_extent
        self.results.pipeline = PipelineBench(self._fleet, self._plan.folder / "pipeline", log, extent).measure()

    def _profile(self) -> None:
        ours = profile_send.profile_ours(self._plan.folder / "profile-ours", 64, 300)
        bare = profile_send.profile_bare(self._plan.folder / "profile-bare", 64, 300)
        self.results.profile = profile_send.table(ours, bare)
        profile_send.print_table(self.results.profile)


def _java_version() -> str:
    lines = subprocess.run(["java", "-version"], capture_output=True, text=True, check=False).stderr.splitlines()
    return f"Java RocketMQ {JAVA_VERSION} on {lines[0] if lines else 'an unknown JVM'}"


def parse(arguments: Sequence[str] | None = None) -> tuple[argparse.Namespace, frozenset[str]]:
    """Return the options, and the requested parts."""
    parser = argparse.ArgumentParser(prog="benchmarks.run", description="Our servers beside Java's, in one run.")
    parser.add_argument(
        "--quick",
        action="store_true",
        help="short readings; skip growth, idle, recovery, moves, push, batches, replicas and access",
    )
    parser.add_argument("--growth", action="store_true", help="also measure growth curves (connections, queues, size)")
    parser.add_argument(
        "--spark", action="store_true", help="also measure Spark: source and sink, beside Kafka's; jobs"
    )
    parser.add_argument("--only", help=f"only these parts, separated by commas: {', '.join(PARTS)}")
    parser.add_argument("--cells", default="", help="only cells whose name contains this text")
    parser.add_argument("--rounds", type=int, default=3, help="readings of each cell (default 3)")
    parser.add_argument("--seconds", type=float, help="of one reading (default 3; quick 1.5)")
    parser.add_argument(
        "--java-warm", type=float, help="seconds of sends that warm a Java broker (default 30; quick 12)"
    )
    parser.add_argument("--folder", type=Path, help="where stores go (default: the temporary folder)")
    parser.add_argument("--output", type=Path, default=OUTPUT, help=f"where results go (default {OUTPUT})")
    parser.add_argument("--base-port", type=int, default=27000)
    parser.add_argument("--recovery-mib", type=int, default=LOG_MIB, help=f"log to recover (default {LOG_MIB} MiB)")
    options = parser.parse_args(arguments)
    parts = {"limits", "cells", "profile"}
    if not options.quick:
        parts |= {"idle", "recovery", "moves", "push", "batches", "replicas", "access"}
    if options.growth:
        parts.add("growth")
    if options.spark:
        parts |= {"spark", "pipeline"}
    if options.only:
        parts = set(options.only.split(","))
        if unknown := parts - set(PARTS):
            parser.error(f"unknown part {', '.join(sorted(unknown))}; choose from {', '.join(PARTS)}")
    return options, frozenset(parts)


def make_plan(options: argparse.Namespace, parts: frozenset[str], folder: Path) -> BenchPlan:
    """Return the plan for the options."""
    seconds = options.seconds or (1.5 if options.quick else 3.0)
    java_warm_seconds = options.java_warm or (12.0 if options.quick else 30.0)
    cells = [
        msgspec.structs.replace(cell, load=msgspec.structs.replace(cell.load, seconds=seconds))
        for cell in main_cells()
        if options.cells in cell.name
    ]
    return BenchPlan(
        parts=parts,
        cells=cells,
        rounds=options.rounds,
        seconds=seconds,
        java_warm_seconds=java_warm_seconds,
        folder=folder,
        output=options.output,
        base_port=options.base_port,
        recovery_mib=options.recovery_mib,
        move_pace=MovePace(warm_s=5.0, calm_s=5.0, java_moves=2) if options.quick else MovePace(),
        push_pace=PushPace(
            changes=4 if options.quick else 10,
            rests=2 if options.quick else 4,
            missing_s=35.0 if options.quick else 65.0,
            rounds=options.rounds,
            seconds=seconds,
            java_warm_s=java_warm_seconds / 3,
        ),
        batch_pace=BatchPace(
            rounds=options.rounds,
            seconds=min(seconds, BatchPace().seconds),
            java_warm_s=java_warm_seconds / 3,
            probes=30 if options.quick else BatchPace().probes,
        ),
        replica_pace=ReplicaPace(
            rounds=options.rounds,
            seconds=min(seconds, ReplicaPace().seconds),
            java_warm_s=min(java_warm_seconds / 2, ReplicaPace().java_warm_s),
            openings=3 if options.quick else ReplicaPace().openings,
        ),
        access_pace=AccessPace(
            rounds=options.rounds,
            seconds=options.seconds or (1.5 if options.quick else AccessPace().seconds),
            java_warm_s=min(java_warm_seconds, AccessPace().java_warm_s),
        ),
        spark_extent=QUICK if options.quick else Extent(),
        pipeline_extent=QUICK_PIPELINE if options.quick else PipelineExtent(),
    )


def check_disk_space(plan: BenchPlan) -> None:
    """Raise BenchmarkFailed unless the disk has enough space for the run."""
    free_gb = shutil.disk_usage(plan.folder).free / 1e9
    rounds_gb = plan.rounds * GB_PER_ROUND * plan.seconds / 3 if plan.parts & {"cells", "growth"} else 0
    access_gb = plan.rounds * ACCESS_GB_PER_ROUND * plan.access_pace.seconds / 5 if "access" in plan.parts else 0
    wanted_gb = 15 + max(rounds_gb, access_gb)  # a part leaves nothing to the next one
    if free_gb < wanted_gb:
        raise BenchmarkFailed(
            f"{plan.folder} has {free_gb:.0f} GB free and the run may write {wanted_gb:.0f} GB: "
            "use --folder on another disk, fewer --rounds or shorter --seconds"
        )


def _draw(found: results.Results, output: Path) -> None:
    try:
        plots.draw(found, output)
    except ModuleNotFoundError:
        log("no plots: matplotlib is missing, `make bench` installs it (benchmarks/requirements.lock)")


def main() -> int:
    """Run, and return the exit status."""
    options, parts = parse()
    # Servers run in separate sessions, so a signal to this program does not reach them: end them on exit.
    signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit(143))
    folder = Path(tempfile.mkdtemp(prefix="holdfast-bench-", dir=options.folder))
    since = time.monotonic()
    try:
        plan = make_plan(options, parts, folder)
        plan.output.mkdir(parents=True, exist_ok=True)
        check_disk_space(plan)
        programs = compile_programs(folder / "bin")
        with ServerFleet(folder, programs, base_port=plan.base_port) as fleet:
            run = Run(plan, programs, fleet)
            run.run()
        _draw(run.results, plan.output)
    except BenchmarkFailed as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(report.markdown(run.results))
    log(f"{time.monotonic() - since:.0f} s; kept in {plan.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
