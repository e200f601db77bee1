"""The results of jobs over stored logs as Markdown tables."""

from __future__ import annotations

from benchmarks.pipeline_findings import PipelineFindings
from benchmarks.tables import number, table


def pipeline_sections(found: PipelineFindings) -> list[str]:
    """Return the note and the tables."""
    return [part for part in (_note(found), _targets(found), _readings(found), _growths(found), _memory(found)) if part]


def _note(found: PipelineFindings) -> str:
    plain = ", ".join(
        f"{number(rate)} on each of {cores} at once ({number(found.overwritten.get(cores, 0))} if it does not keep "
        "the result)"
        for cores, rate in found.converted.items()
    )
    return (
        f"Messages with random bodies of {found.body_size:,} bytes ({found.index_body_size:,} where an index is "
        "converted) in 8 queues, in the page cache. Plain reading by "
        f"one core: {found.cached:,.0f} MB/s from the page cache, {found.disk:,.0f} MB/s from the disk. Numpy alone, "
        f"in memory, converts {plain} index entries/s. Times are those of whole jobs in a Spark "
        "that is warm; Spark and its Python workers share the cores that they have. Medians; spread is (max - min) / "
        f"median. Load average before the run: {found.load:.1f}."
    )


def _targets(found: PipelineFindings) -> str:
    rows = [
        [
            target.what,
            number(target.measured),
            f"{'at most' if target.at_most else 'at least'} {target.wanted:g}",
            "reached" if target.reached else "**missed**",
        ]
        for target in found.targets
    ]
    return table(["in the same run", "measured", "wanted", ""], rows) if rows else ""


def _readings(found: PipelineFindings) -> str:
    rows = [
        [
            reading.job,
            str(reading.cores),
            f"{reading.size / 1e6:,.0f}",
            f"{reading.median_s:.1f}",
            f"{reading.spread:.0%}",
            f"{reading.mb_per_core:.0f}",
            number(reading.entries_per_core),
            f"{reading.mb_per_core / found.cached:.2f}",
        ]
        for reading in found.readings
    ]
    head = ["job", "cores", "MB", "s", "spread", "MB/s per core", "entries/s per core", "/ plain reading"]
    return table(head, rows) if rows else ""


def _growths(found: PipelineFindings) -> str:
    rows = [
        [growth.job, str(growth.cores), f"{growth.fixed_s:.2f}", number(growth.entries_per_core)]
        for growth in found.growths
    ]
    return table(["what grows", "cores", "s, fixed", "entries/s per core after that"], rows) if rows else ""


def _memory(found: PipelineFindings) -> str:
    rows = [[job, f"{size / 1e6:,.0f}"] for job, size in found.memory.items() if size]
    return table(["largest Python worker, without mapped files", "MB"], rows) if rows else ""
