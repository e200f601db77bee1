"""Jobs over stored logs: their rates per core, beside plain reading and plain numpy in the same run.

    two stores, one twice as large ─> plain reading, cached and from disk ─> numpy alone
    ─> Spark on one core, then on all ─> audit, stats, archive, convert-index over either store
                                      ─> the sink and backfill to a broker

Each number of cores is one long-lived Spark process, and one more for backfills, started as the command would start it;
its first run of each job warms it. Times are those of the whole job: listing the folder, tasks, commit, syncs.
"""

from __future__ import annotations

import itertools
import os
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec
from benchmarks.pipeline_findings import (
    BACKFILL,
    SINK,
    TASK_JOBS,
    DriverPlan,
    JobReading,
    PipelineExtent,
    PipelineFindings,
)
from benchmarks.pipeline_stores import QUEUES, make_store, measure_parallel_conversion, measure_reading
from benchmarks.programs import BenchmarkFailed
from benchmarks.servers import ServerFleet

HOLDFAST: Final = str(Path(sys.executable).with_name("holdfast"))
_CORES: Final = sorted({1, os.cpu_count() or 1})
_PLAIN_ROUNDS: Final = 3
_CONVERTED: Final = 4_000_000
_TARGET: Final = "brought-back"


class _Line(msgspec.Struct, frozen=True):
    reading: JobReading
    memory: int


class PipelineBench:
    """One measurement."""

    def __init__(self, fleet: ServerFleet, folder: Path, log: Callable[[str], None], extent: PipelineExtent) -> None:
        self._fleet = fleet
        self._folder = folder
        self._log = log
        self._extent = extent

    def measure(self) -> PipelineFindings:
        """Measure everything."""
        load, extent = os.getloadavg()[0], self._extent
        logs, indexes = self._make("log", extent.body_size), self._make("index", extent.index_body_size)
        size = extent.log_mib << 20
        findings = PipelineFindings(
            body_size=extent.body_size,
            index_body_size=extent.index_body_size,
            load=load,
            disk=measure_reading(logs[0], size, cold=True),
            cached=statistics.median(measure_reading(logs[0], size, cold=False) for _ in range(_PLAIN_ROUNDS)),
            converted={cores: measure_parallel_conversion(cores, _CONVERTED, _PLAIN_ROUNDS) for cores in _CORES},
            overwritten={
                cores: measure_parallel_conversion(cores, _CONVERTED, _PLAIN_ROUNDS, is_complete=False)
                for cores in _CORES
            },
        )
        name_server = self._fleet.start_holdfast_name_server()
        broker = self._fleet.start_holdfast(name_server, "async")
        options = ["--namesrv", name_server.name_server, "--logical-queues", str(QUEUES)]
        subprocess.run([HOLDFAST, "topic", "create", _TARGET, *options], check=True, stdout=subprocess.DEVNULL)
        (self._folder / "scratch").mkdir()
        for cores, jobs in itertools.product(_CORES, ([*TASK_JOBS], [SINK, BACKFILL])):
            plan = DriverPlan(
                jobs=jobs,
                cores=cores,
                rounds=extent.rounds,
                scratch=str(self._folder / "scratch"),
                logs=[str(store) for store in logs],
                indexes=[str(store) for store in indexes],
                namesrv=name_server.name_server,
                topic=_TARGET,
                rows=extent.rows,
            )
            self._run_jobs(plan, findings)
        self._fleet.stop(broker)
        self._fleet.stop(name_server)
        shutil.rmtree(self._folder, ignore_errors=True)
        return findings

    def _make(self, name: str, body_size: int) -> list[Path]:
        """Return two stores, the second twice as large as the first."""
        stores = [self._folder / f"{name}-{number}" for number in (1, 2)]
        for number, store in enumerate(stores, 1):
            count = make_store(store, (self._extent.log_mib << 20) * number, body_size)
            self._log(f"   {store.name}: {count:,} messages of {body_size:,} bytes")
        return stores

    def _run_jobs(self, plan: DriverPlan, findings: PipelineFindings) -> None:
        command = [sys.executable, "-m", "benchmarks.pipeline_driver", msgspec.json.encode(plan).decode()]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as driver:
            assert driver.stdout is not None
            for output in driver.stdout:
                line = msgspec.json.decode(output, type=_Line)
                reading = line.reading
                findings.readings.append(reading)
                findings.memory[reading.job] = max(line.memory, findings.memory.get(reading.job, 0))
                speed = f"{reading.mb_per_core:.0f} MB/s, {reading.entries_per_core:,.0f} entries/s per core"
                self._log(f"   {reading.job}, {plan.cores} cores, {reading.size / 1e6:,.0f} MB: {speed}")
        if driver.returncode:
            raise BenchmarkFailed(f"jobs on {plan.cores} cores failed: run {command} to see why")
