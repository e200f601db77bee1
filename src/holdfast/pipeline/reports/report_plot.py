"""Draws the plots of a report with matplotlib, as SVG for an HTML page.

Text stays text, so that the browser can choose a font for any script.
"""

from __future__ import annotations

import io
import warnings
from typing import Any, Final

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator

from holdfast.pipeline.reports.report import Plot

_WIDTH_IN: Final = 9.0
_HEIGHT_IN: Final = 3.4
_BAR_IN: Final = 0.26
_LABELS_MAX: Final = 14
_LABEL_SIZE_MAX: Final = 40
_LONG_LABEL: Final = 12
_LEGEND_LINE_IN: Final = 0.18
_LEGEND_LINE_CHARS: Final = 115
_LEGEND_GAP_CHARS: Final = 8  # the colour sample, and the space between two columns
_LEGEND_COLUMNS_MAX: Final = 4
_COLOURS: Final = ("#2563eb", "#d97706", "#059669", "#db2777", "#7c3aed", "#0891b2", "#65a30d", "#dc2626")
_NO_METADATA: Final = {"Creator": None, "Date": None, "Format": None, "Type": None}


def to_svg(plot: Plot) -> str:
    """Return the plot as SVG, without its title."""
    # User-chosen names may contain a $, which must not start a formula. The salt keeps SVG ids unique within a page.
    style: dict[Any, Any] = {
        "svg.fonttype": "none",
        "svg.hashsalt": plot.title,
        "text.parse_math": False,
        "font.size": 9,
    }
    with mpl.rc_context(style), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # The browser has the glyphs that are missing here.
        figure = Figure(figsize=(_WIDTH_IN, _height_of(plot)), layout="constrained")
        axes = figure.subplots()
        axes.spines[["top", "right"]].set_visible(False)
        drawn = _draw_horizontal_bars(axes, plot) if _is_horizontal(plot) else _draw(axes, plot)
        if len(plot.series) > 1 or plot.kind == "lines":
            # Pass the names here: from drawn objects matplotlib leaves out names that begin with an underscore.
            names, columns = list(map(_shorten_name, plot.series)), _legend_columns(plot)
            figure.legend(drawn, names, loc="outside lower center", ncols=columns, frameon=False)
        written = io.StringIO()
        figure.savefig(written, format="svg", metadata=_NO_METADATA, transparent=True)
    text = written.getvalue()
    return text[text.index("<svg") :]


def _is_horizontal(plot: Plot) -> bool:
    """Return whether to draw horizontal bars, because the labels do not all fit below vertical ones."""
    is_crowded = len(plot.labels) > _LABELS_MAX or any(len(label) > _LONG_LABEL for label in plot.labels)
    return plot.kind == "bars" and is_crowded


def _height_of(plot: Plot) -> float:
    drawing = 1.0 + _BAR_IN * len(plot.labels) if _is_horizontal(plot) else _HEIGHT_IN
    return drawing + _LEGEND_LINE_IN * (-(-len(plot.series) // _legend_columns(plot)) - 1)


def _legend_columns(plot: Plot) -> int:
    """Return the number of legend columns that fit."""
    longest = max((len(_shorten_name(name)) for name in plot.series), default=0)
    return max(1, min(_LEGEND_COLUMNS_MAX, _LEGEND_LINE_CHARS // (longest + _LEGEND_GAP_CHARS)))


def _draw(axes: Any, plot: Plot) -> list[Any]:
    """Draw lines or vertical bars; return the legend handle of each series."""
    count, kinds = len(plot.labels), max(1, len(plot.series))
    drawn = []
    for kind, values in enumerate(plot.series.values()):
        colour = _COLOURS[kind % len(_COLOURS)]
        if plot.kind == "lines":
            drawn += axes.plot(range(count), values, color=colour, marker="o", markersize=3)
        else:
            positions = [number + (kind + 0.5) * 0.8 / kinds - 0.4 for number in range(count)]
            drawn.append(axes.bar(positions, values, width=0.8 / kinds, color=colour))
    shown = range(0, count, max(1, -(-count // _LABELS_MAX)))
    labels = [_shorten(plot.labels[number]) for number in shown]
    is_wide = sum(map(len, labels)) > 90
    axes.set_xticks(list(shown), labels, rotation=30 if is_wide else 0, ha="right" if is_wide else "center")
    axes.set_ylim(bottom=0)
    axes.grid(axis="y", color="#e5e7eb")
    _scale(axes.yaxis, plot)
    return drawn


def _draw_horizontal_bars(axes: Any, plot: Plot) -> list[Any]:
    """Draw horizontal bars; return the legend handle of each series."""
    count, kinds = len(plot.labels), max(1, len(plot.series))
    drawn = []
    for kind, values in enumerate(plot.series.values()):
        positions = [number + (kind + 0.5) * 0.8 / kinds - 0.4 for number in range(count)]
        drawn.append(axes.barh(positions, values, height=0.8 / kinds, color=_COLOURS[kind % len(_COLOURS)]))
    axes.set_yticks(range(count), [_shorten(label) for label in plot.labels])
    axes.invert_yaxis()
    axes.grid(axis="x", color="#e5e7eb")
    _scale(axes.xaxis, plot)
    return drawn


def _scale(axis: Any, plot: Plot) -> None:
    axis.set_major_locator(MaxNLocator(5, integer=True))
    axis.set_major_formatter(EngFormatter(unit=plot.unit))
    axis.get_major_formatter().set_useMathText(False)
    axis.axes.set_axisbelow(True)


def _shorten(label: str, size_max: int = _LABEL_SIZE_MAX) -> str:
    return label if len(label) <= size_max else f"{label[: size_max - 1]}…"


def _shorten_name(name: str) -> str:
    """Return the name of a series, shortened to one line of the legend."""
    return _shorten(name, _LEGEND_LINE_CHARS - _LEGEND_GAP_CHARS)
