"""Compares figures with their targets: ratios to Java and to the bare path of the same run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec
from benchmarks.measure import CellResult

Baseline = Literal["Java", "Java's best pull", "bare", "Java's p99"]


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """One comparison of a figure with its target.

    Attributes:
        ratio: Ours / baseline.
        wanted: The least ratio, or for a p99 the greatest.
    """

    cell: str
    baseline: Baseline
    ratio: float
    wanted: float
    reached: bool


def best_java_pull(results: Sequence[CellResult]) -> float:
    """Return the highest rate of any of Java's pulls, in MB/s."""
    figures = [
        result.summaries["java"].figure
        for result in results
        if result.cell.unit == "MB/s" and "java" in result.summaries
    ]
    return max(figures, default=0.0)


def find_verdicts(results: Sequence[CellResult]) -> list[Verdict]:
    """Return a verdict for every measured ratio that has a target."""
    verdicts = [verdict for result in results for verdict in _compare_cell(result)]
    return verdicts + _compare_best_pulls(results)


def _compare_best_pulls(results: Sequence[CellResult]) -> list[Verdict]:
    """Compare the best shape of each group of pulls with Java's best pull of any shape."""
    best = best_java_pull(results)
    groups: dict[str, tuple[float, float]] = {}
    for result in results:
        target = result.cell.wanted.of_java_best_pull
        if target is not None and best and "holdfast" in result.summaries:
            figure, _ = groups.get(result.cell.group, (0.0, target))
            groups[result.cell.group] = max(figure, result.summaries["holdfast"].figure), target
    return [
        Verdict(
            cell=f"{group}, best shape",
            baseline="Java's best pull",
            ratio=figure / best,
            wanted=target,
            reached=figure / best >= target,
        )
        for group, (figure, target) in groups.items()
    ]


def _compare_cell(result: CellResult) -> list[Verdict]:
    target, summaries = result.cell.wanted, result.summaries
    ours, java, bare = (summaries.get(kind) for kind in ("holdfast", "java", "bare"))
    if ours is None:
        return []
    verdicts = []

    def at_least(baseline: Baseline, figure: float, share: float | None) -> None:
        if share is not None and figure:
            ratio = ours.figure / figure
            verdicts.append(
                Verdict(cell=result.cell.name, baseline=baseline, ratio=ratio, wanted=share, reached=ratio >= share)
            )

    if java is not None:
        at_least("Java", java.figure, target.of_java)
    if bare is not None:
        at_least("bare", bare.figure, target.of_bare)
    if java is not None and target.p99_no_worse and java.p99_us:
        ratio = ours.p99_us / java.p99_us
        verdicts.append(
            Verdict(cell=result.cell.name, baseline="Java's p99", ratio=ratio, wanted=1.0, reached=ratio <= 1.0)
        )
    return verdicts
