"""The results of the part on stored logs, and the targets."""

from __future__ import annotations

import statistics
from typing import Final

import msgspec

MB_PER_CORE_MIN: Final = 150.0
PLAIN_RATIO_MIN: Final = 0.3
TWICE_RATIO_MAX: Final = 2.1
RATED_JOBS: Final = ("audit", "archive")
CONVERT: Final = "convert-index"
BACKFILL: Final = "backfill"
SINK: Final = "sink"
"""The same rows through the exact sink alone: the baseline of a backfill."""
SINK_RATIO_MIN: Final = 0.5
TASK_JOBS: Final = ("audit", "stats", "archive", CONVERT)
"""Jobs that use Spark only to run tasks."""


class PipelineExtent(msgspec.Struct, frozen=True, kw_only=True):
    """The amounts to measure, for the smaller of two stores.

    Attributes:
        log_mib: The log that is read.
        body_size: Bytes of each body in it.
        index_body_size: Bytes of each body in the log whose index is converted: small, so that the index is long.
        rows: The number of rows that a backfill sends.
        rounds: Readings of each.
    """

    log_mib: int = 1024
    body_size: int = 1024
    index_body_size: int = 100
    rows: int = 100_000
    rounds: int = 3


QUICK_PIPELINE: Final = PipelineExtent(log_mib=128, rows=10_000, rounds=1)


class DriverPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The jobs for one Spark process.

    Attributes:
        scratch: A folder for the output of jobs.
        logs, indexes: The stores that are read, and those whose index is converted; in each the smaller one first.
        namesrv, topic: The destination of backfilled rows.
        rows: How many rows are backfilled; then twice as many.
        jobs: The names of the jobs.
    """

    cores: int
    rounds: int
    scratch: str
    logs: list[str]
    indexes: list[str]
    namesrv: str
    topic: str
    rows: int
    jobs: list[str]


class JobReading(msgspec.Struct, frozen=True, kw_only=True):
    """One job over one store, several times.

    Attributes:
        size: Bytes of the log; for a conversion, bytes of the index that is read.
        entries: Records; for a conversion, entries.
    """

    job: str
    cores: int
    size: int
    entries: int
    seconds: list[float]

    @property
    def median_s(self) -> float:
        """The median time."""
        return statistics.median(self.seconds)

    @property
    def mb_per_core(self) -> float:
        """MB/s per core of Spark."""
        return self.size / self.median_s / 1e6 / self.cores

    @property
    def entries_per_core(self) -> float:
        """Entries per second and core of Spark."""
        return self.entries / self.median_s / self.cores

    @property
    def spread(self) -> float:
        """(max - min) / median."""
        return (max(self.seconds) - min(self.seconds)) / self.median_s


class JobGrowth(msgspec.Struct, frozen=True, kw_only=True):
    """A linear fit: a job takes *fixed_s*, plus its entries at *entries_per_core* per second and core."""

    job: str
    cores: int
    fixed_s: float
    entries_per_core: float


class PipelineTarget(msgspec.Struct, frozen=True, kw_only=True):
    """A target for a figure: a least value, or with *at_most* a greatest."""

    what: str
    measured: float
    wanted: float
    at_most: bool = False

    @property
    def reached(self) -> bool:
        """Whether the target is met."""
        return self.measured <= self.wanted if self.at_most else self.measured >= self.wanted


class PipelineFindings(msgspec.Struct, kw_only=True):
    """All results of this part.

    Attributes:
        cached, disk: MB/s of plain reading by one core, from the page cache and, after emptying it, from the disk.
        converted: By the number of cores at once, the entries that numpy converts per second and core, in memory,
            without store times, checks and files.
        overwritten: The same figure if the new index is not kept, but its parts overwrite each other.
        memory: By job, the largest private memory of a Python worker in bytes, without mapped files.
    """

    body_size: int
    index_body_size: int
    load: float
    cached: float
    disk: float
    converted: dict[int, float]
    overwritten: dict[int, float] = {}
    readings: list[JobReading] = []
    memory: dict[str, int] = {}

    @property
    def targets(self) -> list[PipelineTarget]:
        """Compare the figures with their targets."""
        found: list[PipelineTarget] = []
        for mine in self._by_job().values():
            cores = max(reading.cores for reading in mine)
            full = sorted((reading for reading in mine if reading.cores == cores), key=lambda reading: reading.size)
            job, largest = mine[0].job, full[-1]
            if job in RATED_JOBS:
                what = f"{job}, MB/s of log per core"
                found.append(PipelineTarget(what=what, measured=largest.mb_per_core, wanted=MB_PER_CORE_MIN))
            if job == CONVERT:
                by_core = {each.cores: each.entries_per_core for each in sorted(mine, key=lambda each: each.size)}
                for what, ratio in (
                    (f"{job} on {cores} cores, entries/s / numpy alone", cores * by_core[cores] / self.converted[1]),
                    *(
                        (f"{job} on {each}, entries/s per core / numpy alone on as many", rate / self.converted[each])
                        for each, rate in by_core.items()
                    ),
                ):
                    found.append(PipelineTarget(what=what, measured=ratio, wanted=PLAIN_RATIO_MIN))
            if job == BACKFILL:
                sink_readings = [each for each in self.readings if each.job == SINK and each.cores == cores]
                found += [
                    self._compare_with_sink(largest, each) for each in sink_readings if each.entries == largest.entries
                ]
            if len(full) > 1:
                ratio = largest.median_s / full[0].median_s * 2 * full[0].size / largest.size
                what = f"{job}, time for twice the data"
                found.append(PipelineTarget(what=what, measured=ratio, wanted=TWICE_RATIO_MAX, at_most=True))
        return found

    def _compare_with_sink(self, backfill: JobReading, sink: JobReading) -> PipelineTarget:
        ratio = backfill.entries_per_core / sink.entries_per_core
        return PipelineTarget(what="backfill, rows/s / the sink's", measured=ratio, wanted=SINK_RATIO_MIN)

    @property
    def growths(self) -> list[JobGrowth]:
        """Return the fixed time and the rate of each job of which two sizes were measured."""
        found: list[JobGrowth] = []
        for readings in self._by_job().values():
            for cores in sorted({reading.cores for reading in readings}):
                sizes = sorted((each for each in readings if each.cores == cores), key=lambda each: each.entries)
                less, more = sizes[0], sizes[-1]
                if more.entries > less.entries and more.median_s > less.median_s:
                    rate = (more.entries - less.entries) / (more.median_s - less.median_s)
                    fixed_s = less.median_s - less.entries / rate
                    found.append(JobGrowth(job=less.job, cores=cores, fixed_s=fixed_s, entries_per_core=rate / cores))
        return found

    def _by_job(self) -> dict[str, list[JobReading]]:
        found: dict[str, list[JobReading]] = {}
        for reading in self.readings:
            found.setdefault(reading.job, []).append(reading)
        return found
