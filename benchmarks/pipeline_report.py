"""The results of jobs over stored logs as Markdown tables."""

from __future__ import annotations

from benchmarks.pipeline_findings import PipelineFindings
from benchmarks.tables import number, table


def pipeline_sections(findings: PipelineFindings) -> list[str]:
    """Return the note and the tables."""
    return [
        part
        for part in (_note(findings), _targets(findings), _readings(findings), _growths(findings), _memory(findings))
        if part
    ]


def _note(findings: PipelineFindings) -> str:
    conversions = ", ".join(
        f"{number(rate)} on each of {cores} at once ({number(findings.overwritten.get(cores, 0))} if it does not keep "
        "the result)"
        for cores, rate in findings.converted.items()
    )
    return (
        f"Messages with random bodies of {findings.body_size:,} bytes ({findings.index_body_size:,} where an index is "
        "converted) in 8 queues, in the page cache. Plain reading by "
        f"one core: {findings.cached:,.0f} MB/s from the page cache, {findings.disk:,.0f} MB/s from the disk. Numpy "
        "alone, "
        f"in memory, converts {conversions} index entries/s. Times are those of whole jobs in a Spark "
        "that is warm; Spark and its Python workers share the cores that they have. Medians; spread is (max - min) / "
        f"median. Load average before the run: {findings.load:.1f}."
    )


def _targets(findings: PipelineFindings) -> str:
    rows = [
        [
            target.what,
            number(target.measured),
            f"{'at most' if target.at_most else 'at least'} {target.wanted:g}",
            "reached" if target.reached else "**missed**",
        ]
        for target in findings.targets
    ]
    return table(["in the same run", "measured", "wanted", ""], rows) if rows else ""


def _readings(findings: PipelineFindings) -> str:
    rows = [
        [
            reading.job,
            str(reading.cores),
            f"{reading.size / 1e6:,.0f}",
            f"{reading.median_s:.1f}",
            f"{reading.spread:.0%}",
            f"{reading.mb_per_core:.0f}",
            number(reading.entries_per_core),
            f"{reading.mb_per_core / findings.cached:.2f}",
        ]
        for reading in findings.readings
    ]
    head = ["job", "cores", "MB", "s", "spread", "MB/s per core", "entries/s per core", "/ plain reading"]
    return table(head, rows) if rows else ""


def _growths(findings: PipelineFindings) -> str:
    rows = [
        [growth.job, str(growth.cores), f"{growth.fixed_s:.2f}", number(growth.entries_per_core)]
        for growth in findings.growths
    ]
    return table(["what grows", "cores", "s, fixed", "entries/s per core after that"], rows) if rows else ""


def _memory(findings: PipelineFindings) -> str:
    rows = [[job, f"{size / 1e6:,.0f}"] for job, size in findings.memory.items() if size]
    return table(["largest Python worker, without mapped files", "MB"], rows) if rows else ""
