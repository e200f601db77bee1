"""What is wanted of batches, the sums behind it, and how it is told."""

from pathlib import Path

import msgspec
import pytest
from benchmarks.batch_findings import (
    ALL_COLUMNS,
    INNER,
    INNER_BY_PRODUCER,
    INNER_SYNC,
    OUTER,
    SEND_MANY,
    SEND_NOWAIT,
    SEND_NOWAIT_KEYED,
    SLIM,
    BatchFindings,
    BatchKind,
    ColumnReads,
    IndexCost,
    MachineLimit,
    ProducerRates,
    VisibilityTimes,
)
from benchmarks.batches import batch_cells, count_index_bytes
from benchmarks.load import LoadResult
from benchmarks.measure import CellResult, Reading, summarize
from benchmarks.push_findings import WaitTimes
from benchmarks.report import markdown
from benchmarks.results import Machine, Results, load, save
from benchmarks.servers import Kind

LIMIT = MachineLimit(loopback=3000.0, write=6000.0)  # 2000 MB/s together


def a_reading(figure: float) -> Reading:
    result = LoadResult(
        seconds=1.0, requests=1, requests_per_s=figure / 100, messages_per_s=figure, up_mb_per_s=figure / 1000,
        down_mb_per_s=0, p50_us=1, p99_us=1, p999_us=1, max_us=1, client_cpu=0.1, total_requests=1, unanswered=0,
        wrong=0, refused={},
    )  # fmt: skip
    return Reading(
        figure=figure, load=result, server_cores=1, foreign_cores=0, stolen_cores=0, owed_cpu=0, rss_mb=1,
        anonymous_mb=1,
    )  # fmt: skip


def the_cells(ours: dict[str, float]) -> list[CellResult]:
    """The first shape of each group reaches the figure, the second half of it."""
    java = {INNER: 600_000.0, INNER_SYNC: 300_000.0, OUTER: 500_000.0}
    all_ours = {INNER: 1_200_000.0, INNER_BY_PRODUCER: 1_200_000.0, INNER_SYNC: 400_000.0, OUTER: 350_000.0} | ours

    def figure(result: CellResult, kind: Kind) -> float:
        return (java if kind == "java" else all_ours)[result.cell.group] * 4 / result.cell.load.connections

    bare = [CellResult(cell=cell, summaries={}) for cell in batch_cells(1.0)]
    return [
        msgspec.structs.replace(
            result, summaries={kind: summarize(kind, [a_reading(figure(result, kind))]) for kind in result.cell.kinds}
        )
        for result in bare
    ]


def produced(*rates: float) -> ProducerRates:
    return ProducerRates(messages_per_s=list(rates), client_cores=0.9, server_cores=0.4)


def columns(way: BatchKind, title: str, seconds: float) -> ColumnReads:
    return ColumnReads(way=way, columns=title, messages=1_000_000, seconds=[seconds, 0.1, 9.0])


def findings(
    *,
    ours: dict[str, float] | None = None,
    many: float = 350_000.0,
    nowait: float = 250_000.0,
    slim_s: float = 0.9,
    limit: MachineLimit = LIMIT,
) -> BatchFindings:
    return BatchFindings(
        cells=the_cells(ours or {}),
        limits=[limit],
        index=[IndexCost(kind="holdfast", way="inner", messages=1000, index_bytes=460)],
        visible=[
            VisibilityTimes(
                kind="java", way="outer", is_busy=True, times=WaitTimes(count=9, p50_ms=1.5, p99_ms=8.0, max_ms=9.0)
            )
        ],
        produced={
            SEND_MANY: produced(many, 0.0, 10 * many),
            SEND_NOWAIT: produced(nowait),
            SEND_NOWAIT_KEYED: produced(100.0),
        },
        columns=[
            columns("inner", SLIM, slim_s), columns("inner", ALL_COLUMNS, 5.0), columns("outer", SLIM, 5.0)
        ],
        size=100,
        load=0.1,
    )  # fmt: skip


def missed(found: BatchFindings) -> list[str]:
    return [target.what for target in found.targets if not target.reached]


def test_a_byte_passes_both_limits_one_after_the_other():
    """So what both allow is less than what either does."""
    assert LIMIT.combined == pytest.approx(2000.0)


def test_what_is_fast_enough_misses_nothing():
    """The figures of these tests are such."""
    assert missed(findings()) == []


@pytest.mark.parametrize(
    ("group", "figure", "what"),
    [
        (INNER, 1_049_000.0, ["ours, inner / outer"]),
        (INNER, 999_000.0, ["inner batches, ours / limit of loopback and write", "ours, inner / outer"]),
        (INNER_BY_PRODUCER, 899_000.0, ["inner batches, ours / Java, each as its own producer writes them"]),
        (
            INNER,
            899_000.0,
            [
                "inner batches, ours / Java, the same frames",
                "inner batches, ours / limit of loopback and write",
                "ours, inner / outer",
            ],
        ),
        (OUTER, 401_000.0, ["ours, inner / outer"]),
        (INNER_SYNC, 299_000.0, ["inner batches with sync flush, ours / Java"]),
    ],
)
def test_batches_are_compared_in_their_best_shapes(group: str, figure: float, what: list[str]):
    """With Java's, with what the machine can do, and with what would be split."""
    assert missed(findings(ours={group: figure})) == what


def test_one_of_the_ways_to_produce_has_to_be_fast_enough():
    """The median of its readings; keys are no part of it."""
    assert missed(findings(many=250_000.0, nowait=310_000.0)) == []
    assert missed(findings(many=290_000.0)) == [f"one Python producer, {SEND_MANY}"]


def test_whole_batches_have_to_become_columns_fast_enough():
    """Those that are read most; all of them, and what was split, is told beside it."""
    assert missed(findings(slim_s=1.01)) == [f"into Arrow: {SLIM}"]


def test_cells_go_to_topics_of_their_kind():
    """Inner batches where they are kept whole, the others where they are split."""
    assert {(cell.load.mode, cell.load.topic) for cell in batch_cells(1.0)} == {
        ("inner", "Whole"),
        ("closed", "Whole"),
        ("outer", "Split"),
    }
    assert {cell.role for cell in batch_cells(1.0) if cell.group == INNER_SYNC} == {"sync"}


def test_an_index_is_as_large_as_its_entries(tmp_path: Path):
    """Its files are larger, and the last entry may end with zeros."""
    for queue, content in (("0", b"\1" * 46 + b"\1" + bytes(45) + bytes(1000)), ("1", bytes(500))):
        file = tmp_path / "batchconsumequeue" / "t" / queue / "00000000000000000000"
        file.parent.mkdir(parents=True)
        file.write_bytes(content)

    assert count_index_bytes(tmp_path, "inner", "t") == 92
    assert count_index_bytes(tmp_path, "outer", "t") == 0


def test_findings_are_kept_and_told(tmp_path: Path):
    """They survive the file, and the report has every table and a verdict for each target."""
    machine = Machine(
        processor="", cores=2, memory_gb=1, kernel="", congestion_control="", python="", libraries={}, java=""
    )
    results = Results(seconds=1, rounds=1, machine=machine, batches=findings(many=200_000.0))

    save(results, tmp_path / "results.json")
    kept = load(tmp_path / "results.json")
    text = markdown(kept)

    assert msgspec.to_builtins(kept) == msgspec.to_builtins(results)
    assert "| inner batches, ours / Java, the same frames | 2.00 | at least 1.5 | reached |" in text
    assert f"| one Python producer, {SEND_NOWAIT} | 250.0 k | at least 300,000 | **missed** |" in text
    assert "| ours, kept whole (BatchCQ) | 1,000 | 460 | 0.46 |" in text
    assert "| Java, split (SimpleCQ), under load | 9 | 1.50 ms | 8.00 ms | 9.00 ms |" in text
    assert f"| {SEND_MANY} | 200.0 k | 200.0 k, 0.00, 2.00 M | 0.90 | 0.40 |" in text
    assert f"| kept whole (BatchCQ), {SLIM} | 1,000,000 | 1.11 M | 0.90, 0.10, 9.00 |" in text
