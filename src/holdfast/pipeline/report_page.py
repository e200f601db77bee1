"""A report as one HTML page: no script, no other file, plots as SVG in it. It can be mailed, and kept."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from itertools import pairwise
from typing import Final

from holdfast.admin.tables import Cell, Table, count_text
from holdfast.pipeline.report import Plot, Report

_WIDTH: Final = 760
_HEIGHT: Final = 240
_LEFT: Final = 70
_BOTTOM: Final = 60
_LABELS_MAX: Final = 12
_COLOURS: Final = ("#2563eb", "#d97706", "#059669", "#db2777", "#7c3aed", "#0891b2", "#65a30d", "#dc2626")
_STYLE: Final = """
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 60rem; padding: 0 1rem; color: #1f2937; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
table { border-collapse: collapse; font-size: .9rem; } th, td { padding: .15rem .8rem .15rem 0; text-align: left;
vertical-align: top; } td.right, th.right { text-align: right; font-variant-numeric: tabular-nums; }
th { border-bottom: 1px solid #9ca3af; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .1rem 1.2rem; }
dt { color: #6b7280; } dd { margin: 0; } svg text { font: 11px system-ui, sans-serif; fill: #4b5563; }
.note { color: #92400e; } .scroll { overflow-x: auto; }
"""


def to_page(report: Report) -> str:
    """Return the page."""
    parts = [f"<h1>{escape(report.title)}</h1>", _facts(report.facts)]
    parts += [f'<p class="note">{escape(note)}</p>' for note in report.notes]
    parts += map(_plot, report.plots)
    parts += map(_table, report.tables)
    body = "\n".join(parts)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(report.title)}</title>'
        f"<style>{_STYLE}</style></head><body>\n{body}\n</body></html>\n"
    )


def _facts(facts: Sequence[tuple[str, Cell]]) -> str:
    lines = "".join(f"<dt>{escape(name)}</dt><dd>{escape(count_text(value))}</dd>" for name, value in facts)
    return f"<dl>{lines}</dl>"


def _table(table: Table) -> str:
    title = f"<h2>{escape(table.title)}</h2>" if table.title else ""
    if not table.rows:
        return f"{title}<p>{escape(table.empty)}</p>"
    heads = "".join(f'<th class="{column.align}">{escape(column.heading)}</th>' for column in table.columns)
    rows = "".join(
        "<tr>"
        + "".join(
            f'<td class="{column.align}">{escape(count_text(cell))}</td>'
            for column, cell in zip(table.columns, row, strict=True)
        )
        + "</tr>"
        for row in table.rows
    )
    return f'{title}<div class="scroll"><table><tr>{heads}</tr>{rows}</table></div>'


def _plot(plot: Plot) -> str:
    top = max((value for values in plot.series.values() for value in values), default=0.0) or 1.0
    shapes = [*_axes(plot, top)]
    draw = _lines if plot.kind == "lines" else _bars
    shapes += draw(plot, top)
    height = _HEIGHT + _BOTTOM
    return (
        f'<h2>{escape(plot.title)}</h2><svg viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" role="img"'
        f' aria-label="{escape(plot.title)}">{"".join(shapes)}</svg>{_legend(plot)}'
    )


def _legend(plot: Plot) -> str:
    if len(plot.series) < 2:
        return ""
    names = (
        f'<span style="color:{_colour(number)}">&#9632;</span> {escape(name)} &nbsp; '
        for number, name in enumerate(plot.series)
    )
    return f"<p>{''.join(names)}</p>"


def _axes(plot: Plot, top: float) -> Iterator[str]:
    for part in range(5):
        y = _y(top * part / 4, top)
        yield f'<line x1="{_LEFT}" y1="{y:.1f}" x2="{_WIDTH}" y2="{y:.1f}" stroke="#e5e7eb"/>'
        told = f"{_number(top * part / 4)}{escape(plot.unit)}"
        yield f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{told}</text>'
    step = max(1, -(-len(plot.labels) // _LABELS_MAX))
    for number in range(0, len(plot.labels), step):
        x, y = _x(number + 0.5, len(plot.labels)), _HEIGHT + 14
        label = escape(plot.labels[number][:24])
        yield f'<text x="{x:.1f}" y="{y}" text-anchor="end" transform="rotate(-25 {x:.1f} {y})">{label}</text>'


def _bars(plot: Plot, top: float) -> Iterator[str]:
    count, kinds = len(plot.labels), max(1, len(plot.series))
    width = (_WIDTH - _LEFT) / max(1, count) * 0.8 / kinds
    for kind, values in enumerate(plot.series.values()):
        for number, value in enumerate(values):
            x, y = _x(number + 0.1, count) + kind * width, _y(value, top)
            yield (
                f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.2f}" height="{_HEIGHT - y:.1f}" fill="{_colour(kind)}">'
                f"<title>{escape(plot.labels[number])}: {_number(value)}{escape(plot.unit)}</title></rect>"
            )


def _lines(plot: Plot, top: float) -> Iterator[str]:
    count = len(plot.labels)
    for kind, values in enumerate(plot.series.values()):
        points = [(_x(number + 0.5, count), _y(value, top)) for number, value in enumerate(values)]
        for (x1, y1), (x2, y2) in pairwise(points):
            places = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
            yield f'<line {places} stroke="{_colour(kind)}" stroke-width="2"/>'
        for (x, y), value, label in zip(points, values, plot.labels, strict=True):
            told = f"<title>{escape(label)}: {_number(value)}{escape(plot.unit)}</title>"
            yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="{_colour(kind)}">{told}</circle>'


def _x(number: float, count: int) -> float:
    return _LEFT + (_WIDTH - _LEFT) * number / max(1, count)


def _y(value: float, top: float) -> float:
    return _HEIGHT - (_HEIGHT - 10) * value / top


def _colour(number: int) -> str:
    return _COLOURS[number % len(_COLOURS)]


def _number(value: float) -> str:
    for limit, sign in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= limit:
            return f"{value / limit:.3g} {sign}"
    return f"{value:.3g} " if value else "0 "
