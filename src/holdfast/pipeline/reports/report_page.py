"""Renders a report as one self-contained HTML page: no scripts, no other files, plots as inline SVG."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape
from typing import Final

import msgspec

from holdfast.admin.tables import Cell, Table, cell_text
from holdfast.pipeline.reports.report import JobReport, Plot
from holdfast.pipeline.reports.report_plot import to_svg

_STYLE: Final = """
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 60rem; padding: 0 1rem; color: #1f2937; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
table { border-collapse: collapse; font-size: .9rem; } th, td { padding: .15rem .8rem .15rem 0; text-align: left;
vertical-align: top; } td.right, th.right { text-align: right; font-variant-numeric: tabular-nums; }
th { border-bottom: 1px solid #9ca3af; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .1rem 1.2rem; }
dt { color: #6b7280; } dd { margin: 0; } figure { margin: 0; } svg { max-width: 100%; height: auto; }
.note { color: #92400e; } .origin { color: #6b7280; font-size: .9rem; } .scroll { overflow-x: auto; }
"""


class PageOrigin(msgspec.Struct, frozen=True, kw_only=True):
    """The origin of a page, so that it can be archived and compared with others.

    Attributes:
        made: The creation time.
        version: The version of Holdfast.
        folders: The inputs of the job, usually folders.
    """

    made: datetime
    version: str
    folders: Sequence[str]


def to_page(report: JobReport, origin: PageOrigin) -> str:
    """Return the HTML text of the page."""
    parts = [f"<h1>{escape(report.title)}</h1>", _origin(origin), _facts(report.facts)]
    parts += [f'<p class="note">{escape(note)}</p>' for note in report.notes]
    parts += map(_plot, report.plots)
    parts += map(_table, report.tables)
    body = "\n".join(parts)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(report.title)}</title>'
        f"<style>{_STYLE}</style></head><body>\n{body}\n</body></html>\n"
    )


def _origin(origin: PageOrigin) -> str:
    folders = "".join(f"<br>{escape(folder)}" for folder in origin.folders)
    made = origin.made.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    return f'<p class="origin">{made}, Holdfast {escape(origin.version)}{folders}</p>'


def _facts(facts: Sequence[tuple[str, Cell]]) -> str:
    lines = "".join(f"<dt>{escape(name)}</dt><dd>{escape(cell_text(value))}</dd>" for name, value in facts)
    return f"<dl>{lines}</dl>"


def _table(table: Table) -> str:
    title = f"<h2>{escape(table.title)}</h2>" if table.title else ""
    if not table.rows:
        return f"{title}<p>{escape(table.empty)}</p>"
    headings = "".join(f'<th class="{column.align}">{escape(column.heading)}</th>' for column in table.columns)
    rows = "".join(
        "<tr>"
        + "".join(
            f'<td class="{column.align}">{escape(cell_text(cell))}</td>'
            for column, cell in zip(table.columns, row, strict=True)
        )
        + "</tr>"
        for row in table.rows
    )
    return f'{title}<div class="scroll"><table><tr>{headings}</tr>{rows}</table></div>'


def _plot(plot: Plot) -> str:
    return f'<h2>{escape(plot.title)}</h2><figure aria-label="{escape(plot.title)}">{to_svg(plot)}</figure>'
