"""What is wanted of the Spark source and sink, and how it is told."""

from pathlib import Path

import msgspec
import pytest
from benchmarks import kafka, run, spark_findings
from benchmarks.programs import BenchmarkFailed
from benchmarks.report import markdown
from benchmarks.results import Machine, Results, load, save
from benchmarks.spark_figures import check_requirements
from benchmarks.spark_findings import GrowthPoint, Readings, SparkFindings

BARE = ("source / bare Arrow, cold", "source / bare Arrow, warm")
KAFKAS = (
    "source / Kafka connector, cold",
    "source / Kafka connector, warm",
    "source / Kafka connector, waiting less, cold",
    "source / Kafka connector, waiting less, warm",
)
SINKS = ("sink / Kafka's sink", "sink / Kafka's sink, larger batches")


def readings(rows_per_s: float, rows: int = 1000) -> Readings:
    return Readings(rows=rows, size=1024, seconds=[rows / rows_per_s])


def findings(*, ours: float = 100.0, bare: float = 200.0, kafka: float = 100.0) -> SparkFindings:
    reads = {
        spark_findings.TOPIC: readings(ours),
        spark_findings.BARE: readings(bare),
        spark_findings.KAFKA: readings(kafka),
        spark_findings.KAFKA_EAGER: readings(kafka),
    }
    sinks = {
        spark_findings.SINK: readings(ours),
        spark_findings.SINK_KAFKA: readings(kafka),
        spark_findings.SINK_KAFKA_LARGE: readings(kafka),
    }
    return SparkFindings(
        rows=1000, size=1024, queues=4, load=0.1, cold=reads, warm=reads, sinks=sinks,
        versions={"spark": "4.3.0", "connector": "4.0.0", "kafka": "4.2.0"},
        batches={spark_findings.TOPIC: [0.2, 0.1, 0.3]},
    )  # fmt: skip


def missed(found: SparkFindings) -> tuple[str, ...]:
    return tuple(target.what for target in found.targets if not target.reached)


def test_half_of_the_bare_source_and_as_much_as_kafka_are_wanted() -> None:
    """A ratio at its bound is reached, one below is missed, cold and warm."""
    assert missed(findings()) == ()
    assert missed(findings(bare=201.0)) == BARE
    assert missed(findings(kafka=101.0)) == KAFKAS + SINKS


def test_what_was_not_measured_is_not_judged() -> None:
    """Without Kafka's figures nothing is said of them."""
    found = findings()
    for name in (spark_findings.KAFKA, spark_findings.KAFKA_EAGER):
        del found.warm[name]
    found.sinks.clear()

    assert tuple(target.what for target in found.targets) == BARE


def test_the_same_is_wanted_of_topics_that_keep_batches_whole() -> None:
    """And of small rows, which were too much for the others."""
    found = findings()
    found.cold = found.warm = {**found.warm, spark_findings.TOPIC_WHOLE: readings(99.0)}
    found.sinks |= {spark_findings.SINK_WHOLE: readings(99.0)}
    each = readings(50.0)
    point = {"axis": "row size", "rows": 10, "queues": 4, "ours": each, "kafka": each, "our_sink": each}
    whole = {"kafka_sink": readings(51.0), "whole": each, "whole_sink": each, "bare": readings(101.0)}
    found.growth = [GrowthPoint(size=size, **point, **whole) for size in (100, 10_240)]
    found.growth += [GrowthPoint(size=100, **point, kafka_sink=each)]

    assert missed(found) == (
        *(what.replace("source", "source of whole batches") for what in BARE + KAFKAS),
        *(what.replace("sink /", "sink of whole batches /") for what in SINKS),
        "source of whole batches / bare Arrow, rows of 100 bytes",
        "sink of whole batches / Kafka's sink, larger batches, rows of 100 bytes",
    )


def test_a_rate_is_the_median() -> None:
    """One slow reading does not move it; the spread tells of it."""
    several = Readings(rows=1000, size=2000, seconds=[1.0, 5.0, 2.0])

    assert several.rows_per_s == 500.0
    assert several.mb_per_s == 1.0
    assert several.spread == 2.0


def test_findings_are_kept_and_told(tmp_path: Path) -> None:
    """They survive the file; the report judges, and shows the main figures as one more point of every axis."""
    machine = Machine(
        processor="", cores=2, memory_gb=1, kernel="", congestion_control="", python="", libraries={}, java=""
    )
    found = findings(bare=201.0)
    each = readings(50.0, rows=10)
    point = {"size": 1024, "queues": 4, "ours": each, "kafka": each, "our_sink": each, "kafka_sink": each}
    found.growth = [GrowthPoint(axis="rows", rows=rows, **point) for rows in (5000, 10)]
    results = Results(seconds=1, rounds=1, machine=machine, spark=found)

    save(results, tmp_path / "results.json")
    kept = load(tmp_path / "results.json")

    assert msgspec.to_builtins(kept) == msgspec.to_builtins(results)
    text = markdown(kept)
    assert "| source / bare Arrow, warm | 0.50 | at least 0.5 | **missed** |" in text
    assert "| topic, all columns | 200 ms | 100 ms | 3 |" in text
    assert [line.split("|")[1].strip() for line in text.splitlines() if line.startswith("| rows: ")] == [
        "rows: 10 x 1,024 B in 4",
        "rows: 1,000 x 1,024 B in 4",
        "rows: 5,000 x 1,024 B in 4",
    ]


def test_spark_is_measured_only_when_asked_for() -> None:
    """It needs half a gigabyte more than the rest."""
    assert "spark" not in run.parse([])[1]
    assert "spark" in run.parse(["--spark"])[1]
    assert run.parse(["--only", "spark"])[1] == {"spark"}


def test_a_missing_spark_is_told_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is started."""
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)

    with pytest.raises(BenchmarkFailed, match=r"^Spark is missing: `make install-spark` installs it$"):
        check_requirements()


def test_a_missing_maven_is_told_in_one_line_and_leaves_nothing_behind(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What is half fetched would be taken for whole by the next run."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("shutil.which", lambda _program: None)

    with pytest.raises(
        BenchmarkFailed, match=r"^Kafka is fetched with Maven: install it \(Debian: apt install maven\)$"
    ):
        kafka.fetch(lambda _line: None)

    assert list((tmp_path / "holdfast-bench").iterdir()) == []
