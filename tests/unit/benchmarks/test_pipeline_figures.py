"""What is wanted of jobs over stored logs, and how it is told."""

from pathlib import Path

import pytest

pytest.importorskip("pyarrow", reason="pyarrow is not installed: make install-spark")

from benchmarks.pipeline_findings import JobReading, PipelineFindings
from benchmarks.pipeline_report import pipeline_sections
from benchmarks.pipeline_stores import make_store, measure_parallel_conversion, measure_reading

from holdfast.pipeline.audit.audit_job import audit
from holdfast.pipeline.scan.tasks import InProcess


def reading(job: str, mb: int, seconds: float, cores: int = 2, entries: int = 1000) -> JobReading:
    return JobReading(job=job, cores=cores, size=mb * 1_000_000, entries=entries, seconds=[seconds])


def findings(*readings: JobReading) -> PipelineFindings:
    return PipelineFindings(
        body_size=1024,
        index_body_size=100,
        load=0.1,
        cached=3000.0,
        disk=900.0,
        converted={1: 500.0, 2: 1000.0},
        readings=[*readings],
    )


def missed(found: PipelineFindings) -> list[str]:
    return [target.what for target in found.targets if not target.reached]


def test_audit_and_archive_are_judged_by_what_a_core_does():
    """At the bound is enough, and only the run on all cores counts."""
    good = [reading("audit", 300, 1.0), reading("audit", 100, 9.0, cores=1), reading("stats", 1, 9.0)]

    assert missed(findings(*good)) == []
    assert missed(findings(reading("archive", 299, 1.0))) == ["archive, MB/s of log per core"]


def test_twice_the_data_may_take_a_little_more_than_twice_the_time():
    """Whatever the job."""
    assert missed(findings(reading("stats", 100, 1.0), reading("stats", 200, 2.1))) == []
    assert missed(findings(reading("stats", 100, 1.0), reading("stats", 200, 2.11))) == [
        "stats, time for twice the data"
    ]


def test_a_backfill_is_judged_beside_the_sink():
    """By the same rows on as many cores."""
    sink = [reading("sink", 10, 1.0, entries=600), reading("sink", 5, 0.1, cores=1, entries=600)]

    assert missed(findings(*sink, reading("backfill", 10, 2.0, entries=600))) == []
    assert missed(findings(*sink, reading("backfill", 10, 2.1, entries=600))) == ["backfill, rows/s / the sink's"]


def test_a_conversion_is_judged_beside_numpy_alone():
    """The whole job against one core of numpy, and each core that it has against one of as many at once."""
    ours = [reading("convert-index", 1, 1.0, cores=1, entries=150), reading("convert-index", 1, 1.0, entries=600)]
    assert missed(findings(*ours)) == []

    ours = [reading("convert-index", 1, 1.0, cores=1, entries=149), reading("convert-index", 1, 1.0, entries=598)]
    assert missed(findings(*ours)) == [
        "convert-index on 1, entries/s per core / numpy alone on as many",
        "convert-index on 2, entries/s per core / numpy alone on as many",
    ]
    assert "convert-index on 2 cores, entries/s / numpy alone" in missed(
        findings(reading("convert-index", 1, 1.0, entries=149))
    )


def test_what_does_not_grow_with_the_data_is_told_apart():
    """Half a second, and then two seconds for a million entries, by two cores."""
    found = findings(
        reading("stats", 1, 2.5, entries=1_000_000),
        reading("stats", 2, 4.5, entries=2_000_000),
        reading("audit", 1, 2.5),
    )

    (growth,) = found.growths

    assert (growth.job, growth.cores, growth.fixed_s, growth.entries_per_core) == ("stats", 2, 0.5, 250_000)
    assert "| stats | 2 | 0.50 | 250" in "\n".join(pipeline_sections(found))


def test_the_report_shows_what_was_missed():
    """In bold, beside the readings and the memory."""
    found = findings(reading("archive", 100, 1.0), reading("audit", 300, 1.0))
    found.memory["archive"] = 200_000_000

    text = "\n".join(pipeline_sections(found))

    assert text.count("**missed**") == 1
    assert "| audit | 2 | 300 |" in text
    assert "| archive | 200 |" in text


def test_a_store_is_made_and_read(tmp_path: Path):
    """Of about the size that was wanted, and a whole one."""
    count = make_store(tmp_path / "store", 1 << 20, 1024, file_size=1 << 19)

    found = audit(InProcess(), [str(tmp_path / "store")])
    assert found.is_clean
    assert found.stores[0].messages == count
    assert 1 << 20 <= found.size <= 3 << 19
    assert measure_reading(tmp_path / "store", 1 << 20, cold=True) > 0
    assert measure_parallel_conversion(2, 1000, 1) > 0
    assert measure_parallel_conversion(1, 1000, 1, is_complete=False) > 0
