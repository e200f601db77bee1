"""Jobs over stored logs: what they do in a second for each core, beside plain reading and plain numpy in the same run.

    two stores, one twice as large ─> plain reading, cached and from disk ─> numpy alone
    ─> Spark on one core, then on all ─> audit, stats, archive, convert-index over either store

Each number of cores is one Spark process that stays; its first run of each job warms it. Times are those of the whole
job: looking at the folder, tasks, commit, syncs.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
from benchmarks.pipeline_findings import JobReading, PipelineExtent, PipelineFindings
from benchmarks.pipeline_stores import convert_plainly, make_store, read_plainly
from benchmarks.programs import BenchmarkFailed

_PLAIN_ROUNDS = 3
_CONVERTED = 4_000_000


class _Line(msgspec.Struct, frozen=True):
    reading: JobReading
    memory: int


class PipelineBench:
    """One measurement."""

    def __init__(self, folder: Path, say: Callable[[str], None], extent: PipelineExtent) -> None:
        self._folder = folder
        self._say = say
        self._extent = extent

    def measure(self) -> PipelineFindings:
        """Return what was found."""
        load = os.getloadavg()[0]
        size = self._extent.log_mib << 20
        stores = [self._folder / name for name in ("small", "large")]
        for number, store in enumerate(stores, 1):
            count = make_store(store, size * number, self._extent.body_size)
            self._say(f"   {store.name}: {count:,} messages")
        found = PipelineFindings(
            body_size=self._extent.body_size,
            load=load,
            disk=read_plainly(stores[0], size, cold=True),
            cached=statistics.median(read_plainly(stores[0], size, cold=False) for _ in range(_PLAIN_ROUNDS)),
            converted=statistics.median(convert_plainly(_CONVERTED) for _ in range(_PLAIN_ROUNDS)),
        )
        for cores in sorted({1, os.cpu_count() or 1}):
            self._run_jobs(cores, stores, found)
        shutil.rmtree(self._folder, ignore_errors=True)
        return found

    def _run_jobs(self, cores: int, stores: list[Path], found: PipelineFindings) -> None:
        command = [sys.executable, "-m", "benchmarks.pipeline_driver", f"local[{cores}]", str(cores)]
        command += [str(self._extent.rounds), str(self._folder / "scratch"), *map(str, stores)]
        (self._folder / "scratch").mkdir(exist_ok=True)
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as driver:
            assert driver.stdout is not None
            for text in driver.stdout:
                line = msgspec.json.decode(text, type=_Line)
                reading = line.reading
                found.readings.append(reading)
                found.memory[reading.job] = max(line.memory, found.memory.get(reading.job, 0))
                speed = f"{reading.mb_per_core:.0f} MB/s per core"
                self._say(f"   {reading.job}, {cores} cores, {reading.size / 1e6:,.0f} MB: {speed}")
        if driver.returncode:
            raise BenchmarkFailed(f"jobs on {cores} cores failed: run {' '.join(command)} to see why")
