"""Plots of the results as SVG: ratios to Java with their targets, growth of rates, cost at rest."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks.idle import CORES_MAX, QUEUES, Idle
from benchmarks.pipeline_findings import CONVERT, MB_PER_CORE_MIN, PLAIN_RATIO_MIN, PipelineFindings
from benchmarks.results import Growth, Results
from benchmarks.spark_findings import SparkFindings

if TYPE_CHECKING:
    from matplotlib.axes import Axes

OURS: Final = "#1f6f8b"
JAVA: Final = "#c8553d"
BARE: Final = "#9aa5b1"


def draw(results: Results, folder: Path) -> list[Path]:
    """Draw all plots that *results* has data for into *folder*; return the files. Needs matplotlib."""
    import matplotlib as mpl  # noqa: PLC0415 - only `make bench` installs it

    mpl.use("svg")
    mpl.rcParams |= {
        "svg.hashsalt": "holdfast",
        "svg.fonttype": "none",
        "font.size": 9,
        "axes.spines.top": False,
        "axes.spines.right": False,
    }
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    if results.cells:
        files = [_draw_ratios(results, folder / "ratios.svg"), _draw_sends(results, folder / "sends.svg")]
    if results.growth:
        files.append(_draw_growth(results.growth, folder / "growth.svg"))
    if results.idle:
        files.append(_draw_idle(results.idle, folder / "idle.svg"))
    if results.spark is not None and results.spark.sinks:
        files.append(_draw_spark(results.spark, folder / "spark.svg"))
    if results.pipeline is not None and results.pipeline.readings:
        files.append(_draw_pipeline(results.pipeline, folder / "pipeline.svg"))
    return files


def _save(figure: object, file: Path) -> Path:
    from matplotlib.figure import Figure  # noqa: PLC0415

    assert isinstance(figure, Figure)
    figure.savefig(file, bbox_inches="tight", metadata={"Date": None})
    return file


def _draw_ratios(results: Results, file: Path) -> Path:
    """Draw ours / Java for every cell that has both, with the target as a mark."""
    from matplotlib.figure import Figure  # noqa: PLC0415

    shown = [result for result in results.cells if {"holdfast", "java"} <= result.summaries.keys()]
    figure = Figure(figsize=(8, 0.28 * len(shown) + 1))
    axes = figure.subplots()
    for row, result in enumerate(reversed(shown)):
        ratio = result.summaries["holdfast"].figure / result.summaries["java"].figure
        wanted = result.cell.wanted.of_java
        axes.barh(row, ratio, color=OURS if wanted is None or ratio >= wanted else JAVA, height=0.7)
        if wanted is not None:
            axes.plot([wanted, wanted], [row - 0.45, row + 0.45], color="black", linewidth=1.5)
        axes.text(ratio + 0.03, row, f"{ratio:.2f}", va="center", fontsize=8)
    axes.axvline(1, color="#444444", linewidth=0.8, linestyle=":")
    axes.set_yticks(range(len(shown)), [result.cell.name for result in reversed(shown)])
    axes.set_xlabel("rate, ours / Java 5.5.0 in the same run (black mark: target)")
    return _save(figure, file)


def _draw_sends(results: Results, file: Path) -> Path:
    """Draw rate and p99 of single sends."""
    from matplotlib.figure import Figure  # noqa: PLC0415

    figure = Figure(figsize=(9, 6))
    grid = figure.subplots(2, 2)
    for column, flush in enumerate(("async", "sync")):
        cells = [result for result in results.cells if result.cell.group == f"send 1 KiB, {flush} flush"]
        shapes = [result.cell.load.shape for result in cells]
        for row, (title, scale) in enumerate((("messages/s, thousands", 1e3), ("p99, ms", 1e3))):
            axes: Axes = grid[row][column]
            for index, (kind, colour) in enumerate((("holdfast", OURS), ("java", JAVA), ("bare", BARE))):
                values = [
                    (summary.figure if row == 0 else summary.p99_us) / scale if summary else 0.0
                    for summary in (result.summaries.get(kind) for result in cells)  # type: ignore[call-overload]
                ]
                if any(values):
                    at = [position + (index - 1) * 0.27 for position in range(len(shapes))]
                    axes.bar(at, values, width=0.25, color=colour, label=kind)
            axes.set_xticks(range(len(shapes)), shapes)
            axes.set_title(f"{flush} flush: {title}")
            if row == 1:
                axes.set_yscale("log")
    if any(result.cell.group.startswith("send") for result in results.cells):
        grid[0][0].legend(frameon=False)
    figure.tight_layout()
    return _save(figure, file)


def _draw_growth(growths: list[Growth], file: Path) -> Path:
    """Draw the rate along each axis; in MB/s where the message size grows."""
    from matplotlib.figure import Figure  # noqa: PLC0415

    figure = Figure(figsize=(4 * len(growths), 3.4))
    grid = figure.subplots(1, len(growths), squeeze=False)[0]
    for axes, growth in zip(grid, growths, strict=True):
        by_size = growth.axis.name == "message size"
        for kind, colour in (("holdfast", OURS), ("java", JAVA)):
            xs, ys = [], []
            for point, result in zip(growth.axis.points, growth.results, strict=True):
                summary = result.summaries.get(kind)  # type: ignore[call-overload]
                if summary is not None:
                    xs.append(point.value)
                    ys.append(summary.figure * point.cell.load.size / 1e6 if by_size else summary.figure / 1e3)
            axes.plot(xs, ys, marker="o", color=colour, label=kind)
        axes.set_xscale("log")
        axes.set_xticks([point.value for point in growth.axis.points], [point.label for point in growth.axis.points])
        axes.minorticks_off()
        if by_size:
            axes.set_yscale("log")  # from 100 B to 1 MiB the MB/s grow a hundredfold
        else:
            axes.set_ylim(bottom=0)
        axes.set_title(f"sends by {growth.axis.name}")
        axes.set_ylabel("MB/s" if by_size else "thousand messages/s")
    grid[0].legend(frameon=False)
    figure.tight_layout()
    return _save(figure, file)


def _draw_idle(idle: Mapping[str, Idle], file: Path) -> Path:
    """Draw the processor use of each broker in every second after the last message; thick while it was watched."""
    from matplotlib.figure import Figure  # noqa: PLC0415

    figure = Figure(figsize=(8, 3))
    axes = figure.subplots()
    for kind, colour in (("holdfast", OURS), ("java", JAVA)):
        if kind in idle:
            percents = [cores * 100 for cores in (*idle[kind].settling, *idle[kind].watched)]
            start = len(idle[kind].settling)
            axes.plot(range(1, len(percents) + 1), percents, color=colour, linewidth=0.8)
            axes.plot(range(start + 1, len(percents) + 1), percents[start:], color=colour, linewidth=2.2, label=kind)
    axes.axhline(CORES_MAX * 100, color="#444444", linewidth=0.8, linestyle=":")
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:g} %")
    axes.set_title(f"of a core, {QUEUES:,} queues at rest")
    axes.set_xlabel("seconds after the last message (thick: watched; dotted: our target)")
    axes.legend(frameon=False)
    return _save(figure, file)


def _draw_spark(findings: SparkFindings, file: Path) -> Path:
    """Draw rows per second: first queries, later queries, writes."""
    from matplotlib.figure import Figure  # noqa: PLC0415

    panels = {
        "cold: topic to noop": findings.cold,
        "warm: topic to noop": findings.warm,
        "memory to topic": findings.sinks,
    }
    heights = [len(panel) for panel in panels.values()]
    figure = Figure(figsize=(8, 0.3 * sum(heights) + 2))
    grid = figure.subplots(len(panels), 1, height_ratios=heights)
    for axes, (title, panel) in zip(grid, panels.items(), strict=True):
        names = list(reversed(panel))
        rates = [panel[name].rows_per_s / 1e3 for name in names]
        colours = [OURS if name.startswith(("topic", "sink")) else JAVA if "Kafka" in name else BARE for name in names]
        axes.barh(range(len(names)), rates, color=colours, height=0.7)
        for row, rate in enumerate(rates):
            axes.text(rate, row, f" {rate:,.0f}", va="center", fontsize=8)
        axes.set_yticks(range(len(names)), names)
        axes.set_title(f"{title}, thousand rows/s", loc="left")
    figure.tight_layout()
    return _save(figure, file)


def _draw_pipeline(findings: PipelineFindings, file: Path) -> Path:
    """Draw the rate of each job per core, on one core and on all, and how its time grows with the data."""
    from matplotlib.figure import Figure  # noqa: PLC0415

    figure = Figure(figsize=(11, 3.4))
    rates, conversions, times = figure.subplots(1, 3, width_ratios=(4, 2, 3))
    cores = sorted({reading.cores for reading in findings.readings})
    jobs = list(dict.fromkeys(reading.job for reading in findings.readings))
    logs = [job for job in jobs if job != CONVERT]
    for index, count in enumerate(cores):
        largest = {reading.job: reading for reading in findings.readings if reading.cores == count}
        colour = (BARE, OURS)[index % 2]
        at = [row + (index - (len(cores) - 1) / 2) * 0.4 for row in range(len(logs))]
        rates.bar(at, [largest[job].mb_per_core for job in logs], width=0.38, color=colour, label=f"of {count}")
        if CONVERT in largest:
            conversions.bar(index, largest[CONVERT].entries_per_core / 1e6, color=colour)
    rates.axhline(MB_PER_CORE_MIN, color="#444444", linewidth=0.8, linestyle=":")
    rates.set_xticks(range(len(logs)), logs)
    rates.set_title("MB/s of log per core (dotted: target)", loc="left")
    rates.legend(frameon=False, title="cores")
    conversions.bar(len(cores), findings.converted[cores[-1]] / 1e6, color=JAVA)
    conversions.axhline(
        findings.converted[cores[-1]] * PLAIN_RATIO_MIN / 1e6, color="#444444", linewidth=0.8, linestyle=":"
    )
    conversions.set_xticks(range(len(cores) + 1), [*(f"of {count}" for count in cores), "numpy"])
    conversions.set_title("million entries/s per core", loc="left")
    for job in jobs:
        readings = [reading for reading in findings.readings if (reading.job, reading.cores) == (job, cores[-1])]
        times.plot(range(1, len(readings) + 1), [reading.median_s for reading in readings], marker="o", label=job)
    times.set_xticks((1, 2), ("once", "twice the data"))
    times.set_ylim(bottom=0)
    times.set_title(f"seconds, {cores[-1]} cores", loc="left")
    times.legend(frameon=False)
    figure.tight_layout()
    return _save(figure, file)
