"""The curves: which points they have, and how they are told."""

from pathlib import Path

import pytest
from benchmarks import growth
from benchmarks.cells import Cell
from benchmarks.idle import Idle
from benchmarks.measure import CellResult, summarize
from benchmarks.plots import draw
from benchmarks.report import markdown
from benchmarks.results import Growth, Machine, Results, load, save
from tests.unit.benchmarks.test_judgement import a_reading

MACHINE = Machine(
    processor="a processor", cores=2, memory_gb=8.0, kernel="6", congestion_control="cubic", python="3.11",
    libraries={}, java="Java",
)  # fmt: skip


def results_of_growth() -> Results:
    """Return figures that grow with the value on the axis; Java's are half of ours and refuse two in a reading."""

    def measured(value: int, cell: Cell) -> CellResult:
        ours, java = [a_reading(1000.0 + value)] * 3, [a_reading((1000.0 + value) / 2, refused={"2": 2})] * 3
        return CellResult(
            cell=cell, summaries={"holdfast": summarize("holdfast", ours), "java": summarize("java", java)}
        )

    found = [
        Growth(axis=axis, results=[measured(point.value, point.cell) for point in axis.points])
        for axis in growth.axes(3.0)
    ]
    return Results(seconds=1.5, rounds=2, machine=MACHINE, growth=found, taken={"growth": "2026-01-01 00:00 UTC"})


def test_every_axis_has_the_points_that_were_promised():
    """One thing grows, everything else stays."""
    labels = {axis.name: [point.label for point in axis.points] for axis in growth.axes(1.0)}

    assert labels == {
        "connections": ["1", "16", "256", "2,000"],
        "queues": ["1", "100", "10,000"],
        "message size": ["100 B", "1 KiB", "10 KiB", "1 MiB"],
    }


def test_every_point_sends_to_a_topic_that_is_made_with_as_many_queues():
    """A load that goes round more queues than there are would be refused."""
    made = growth.topics()

    for axis in growth.axes(1.0):
        for point in axis.points:
            assert made[point.cell.load.topic] == point.cell.load.queues


def test_no_two_points_have_the_same_name():
    """Readings are kept by it."""
    names = [point.cell.name for axis in growth.axes(1.0) for point in axis.points]

    assert len(set(names)) == len(names)


def test_the_report_says_how_curves_were_read_and_who_refused():
    """They may be of another run than the cells, with other readings."""
    text = markdown(results_of_growth())

    assert "2026-01-01 00:00 UTC. Readings of 3 s, medians of 3 rounds" in text
    assert "| 2,000 (2000x1) | 3,000 ±0% | 1,500 ±0% | 3.07 | 1.54 | 2.00 |" in text
    assert text.count("| 0 | 6 |") == 11


def test_curves_are_the_same_after_they_were_kept(tmp_path: Path):
    """A run of the curves alone adds to what is there."""
    found = results_of_growth()

    save(found, tmp_path / "results.json")

    assert load(tmp_path / "results.json") == found


def test_curves_and_rest_are_drawn_with_the_values_that_were_measured(tmp_path: Path):
    """Powers of ten would stand where nothing was measured."""
    pytest.importorskip("matplotlib", reason="make bench installs it")
    found = results_of_growth()
    found.idle["holdfast"] = Idle(queues=1, settling=[0.3], watched=[0.001] * 3, rss_mb=1.0, anonymous_mb=1.0)

    files = draw(found, tmp_path)

    assert [file.name for file in files] == ["growth.svg", "idle.svg"]
    picture = files[0].read_text(encoding="utf-8")
    assert all(f">{label}<" in picture for label in ("256", "2,000", "10,000", "10 KiB"))
