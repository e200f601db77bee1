"""What the benchmark calls reached."""

from benchmarks.cells import Cell, CellTarget
from benchmarks.judgement import Verdict, find_verdicts
from benchmarks.load import Load, LoadResult
from benchmarks.measure import CellResult, Reading, summarize
from benchmarks.servers import Kind


def a_reading(figure: float, *, p99_us: float = 100.0, refused: dict[str, int] | None = None) -> Reading:
    load = LoadResult(
        seconds=1.0,
        requests=1,
        requests_per_s=figure,
        messages_per_s=figure,
        up_mb_per_s=0.0,
        down_mb_per_s=figure,
        p50_us=10.0,
        p99_us=p99_us,
        p999_us=p99_us,
        max_us=p99_us,
        client_cpu=0.1,
        total_requests=1,
        unanswered=0,
        wrong=0,
        refused=refused or {},
    )
    return Reading(
        figure=figure,
        load=load,
        server_cores=1.0,
        foreign_cores=0.0,
        stolen_cores=0.0,
        owed_cpu=0.0,
        rss_mb=1.0,
        anonymous_mb=1.0,
    )


def a_result(cell: Cell, figures: dict[Kind, float], p99_us: dict[Kind, float] | None = None) -> CellResult:
    p99_us = p99_us or {}
    summaries = {
        kind: summarize(kind, [a_reading(figure, p99_us=p99_us.get(kind, 100.0))]) for kind, figure in figures.items()
    }
    return CellResult(cell=cell, summaries=summaries)


def a_cell(wanted: CellTarget, *, group: str = "send", connections: int = 16, pulls: bool = False) -> Cell:
    load = Load(mode="pull" if pulls else "send", connections=connections)
    return Cell(group=group, role="async", load=load, unit="MB/s" if pulls else "messages/s", wanted=wanted)


def test_a_ratio_at_its_bound_is_reached_and_one_below_is_missed() -> None:
    """Ours / Java is compared with the least ratio that was wanted."""
    cell = a_cell(CellTarget(of_java=2.0))

    at_bound = find_verdicts([a_result(cell, {"holdfast": 200.0, "java": 100.0})])
    below = find_verdicts([a_result(cell, {"holdfast": 199.0, "java": 100.0})])

    assert at_bound == [Verdict(cell="send 16x1", baseline="Java", ratio=2.0, wanted=2.0, reached=True)]
    assert [verdict.reached for verdict in below] == [False]


def test_a_p99_above_javas_is_missed_however_high_the_rate() -> None:
    """A better rate does not buy a worse p99."""
    cell = a_cell(CellTarget(of_java=1.0, p99_no_worse=True))

    verdicts = find_verdicts([a_result(cell, {"holdfast": 500.0, "java": 100.0}, {"holdfast": 101.0, "java": 100.0})])

    assert [(verdict.baseline, verdict.reached) for verdict in verdicts] == [("Java", True), ("Java's p99", False)]


def test_large_pulls_are_compared_with_javas_best_pull_of_any_shape() -> None:
    """The best of our shapes stands against the best that Java did, also where that was another cell."""
    wanted = CellTarget(of_java_best_pull=1.5)
    results = [
        a_result(a_cell(CellTarget(), group="pull of 32", pulls=True), {"holdfast": 1.0, "java": 1000.0}),
        a_result(a_cell(wanted, group="pull of 1 MiB", pulls=True), {"holdfast": 900.0, "java": 500.0}),
        a_result(a_cell(wanted, group="pull of 1 MiB", connections=4, pulls=True), {"holdfast": 1600.0, "java": 400.0}),
    ]

    (verdict,) = find_verdicts(results)

    assert (verdict.cell, verdict.ratio, verdict.reached) == ("pull of 1 MiB, best shape", 1.6, True)


def test_a_cell_that_no_java_broker_was_measured_for_gets_no_verdict() -> None:
    """Nothing is claimed about a comparison that did not take place."""
    assert find_verdicts([a_result(a_cell(CellTarget(of_java=1.0, of_bare=0.6)), {"holdfast": 1.0})]) == []


def test_a_summary_is_the_median_and_its_spread_is_relative() -> None:
    """One disturbed reading moves the spread, not the figure; refusals of all readings add up."""
    summary = summarize(
        "holdfast", [a_reading(100.0, refused={"2": 1}), a_reading(50.0), a_reading(110.0, refused={"2": 3})]
    )

    assert (summary.figure, summary.spread, summary.refused) == (100.0, 0.6, {"2": 4})
