"""What the part on stored logs found out, and whether it is what was wanted."""

from __future__ import annotations

import statistics
from typing import Final

import msgspec

MB_PER_CORE: Final = 150.0
OF_PLAIN: Final = 0.3
TWICE: Final = 2.1
JUDGED: Final = ("audit", "archive")
CONVERT: Final = "convert-index"
BACKFILL: Final = "backfill"
SINK: Final = "sink"
"""The same rows through the exact sink alone: what a backfill is judged by."""
OF_SINK: Final = 0.5
BY_TASKS: Final = ("audit", "stats", "archive", CONVERT)
"""Jobs that need nothing of Spark but that it runs tasks."""


class PipelineExtent(msgspec.Struct, frozen=True, kw_only=True):
    """How much is measured, of the smaller of two.

    Attributes:
        log_mib: The log that is read.
        body_size: Bytes of each body in it.
        index_body_size: The same of the log whose index is converted: an index is worth converting that is long.
        rows: What is brought back.
        rounds: Readings of each.
    """

    log_mib: int = 1024
    body_size: int = 1024
    index_body_size: int = 100
    rows: int = 100_000
    rounds: int = 3


QUICK_PIPELINE: Final = PipelineExtent(log_mib=128, rows=10_000, rounds=1)


class DriverPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What one Spark process is told to run.

    Attributes:
        scratch: A folder for what jobs write.
        logs, indexes: Stores that are read, and those whose index is converted; of each the smaller one first.
        namesrv, topic: Where rows are brought back to.
        rows: How many rows that are; then twice as many.
        jobs: What is run.
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
        size: Bytes of log; of a conversion, bytes of the index that is read.
        entries: Records; of a conversion, entries.
    """

    job: str
    cores: int
    size: int
    entries: int
    seconds: list[float]

    @property
    def median_s(self) -> float:
        """The median."""
        return statistics.median(self.seconds)

    @property
    def mb_per_core(self) -> float:
        """MB/s, for each core that Spark had."""
        return self.size / self.median_s / 1e6 / self.cores

    @property
    def entries_per_core(self) -> float:
        """Entries in a second, for each core that Spark had."""
        return self.entries / self.median_s / self.cores

    @property
    def spread(self) -> float:
        """(max - min) / median."""
        return (max(self.seconds) - min(self.seconds)) / self.median_s


class JobGrowth(msgspec.Struct, frozen=True, kw_only=True):
    """Time is *fixed_s*, and each core's entries by *entries_per_core* in a second."""

    job: str
    cores: int
    fixed_s: float
    entries_per_core: float


class PipelineTarget(msgspec.Struct, frozen=True, kw_only=True):
    """A figure that is wanted; *at_most* turns it round."""

    what: str
    measured: float
    wanted: float
    at_most: bool = False

    @property
    def reached(self) -> bool:
        """Whether it is so."""
        return self.measured <= self.wanted if self.at_most else self.measured >= self.wanted


class PipelineFindings(msgspec.Struct, kw_only=True):
    """What was measured.

    Attributes:
        cached, disk: MB/s of plain reading by one core, from the page cache and, after it was emptied, from the disk.
        converted: Entries that numpy converts in a second on each of so many cores at once, in memory, with no store
            times, no check and no file.
        overwritten: The same, if the new index is not kept, but its parts are put in one place.
        memory: The largest memory of a Python worker, in bytes, by job: its own, without files that are mapped.
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
        """Judge what was measured."""
        found: list[PipelineTarget] = []
        for mine in self._by_job().values():
            cores = max(reading.cores for reading in mine)
            full = sorted((reading for reading in mine if reading.cores == cores), key=lambda reading: reading.size)
            job, largest = mine[0].job, full[-1]
            if job in JUDGED:
                what = f"{job}, MB/s of log per core"
                found.append(PipelineTarget(what=what, measured=largest.mb_per_core, wanted=MB_PER_CORE))
            if job == CONVERT:
                by_core = {each.cores: each.entries_per_core for each in sorted(mine, key=lambda each: each.size)}
                for what, ratio in (
                    (f"{job} on {cores} cores, entries/s / numpy alone", cores * by_core[cores] / self.converted[1]),
                    *(
                        (f"{job} on {each}, entries/s per core / numpy alone on as many", rate / self.converted[each])
                        for each, rate in by_core.items()
                    ),
                ):
                    found.append(PipelineTarget(what=what, measured=ratio, wanted=OF_PLAIN))
            if job == BACKFILL:
                beside = [each for each in self.readings if each.job == SINK and each.cores == cores]
                found += [self._beside_sink(largest, each) for each in beside if each.entries == largest.entries]
            if len(full) > 1:
                ratio = largest.median_s / full[0].median_s * 2 * full[0].size / largest.size
                what = f"{job}, time for twice the data"
                found.append(PipelineTarget(what=what, measured=ratio, wanted=TWICE, at_most=True))
        return found

    def _beside_sink(self, backfill: JobReading, sink: JobReading) -> PipelineTarget:
        ratio = backfill.entries_per_core / sink.entries_per_core
        return PipelineTarget(what="backfill, rows/s / the sink's", measured=ratio, wanted=OF_SINK)

    @property
    def growths(self) -> list[JobGrowth]:
        """Say of each job what does not grow with the data, where two sizes were measured."""
        found: list[JobGrowth] = []
        for mine in self._by_job().values():
            for cores in sorted({reading.cores for reading in mine}):
                sizes = sorted((each for each in mine if each.cores == cores), key=lambda each: each.entries)
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
