"""Print results as tables and facts for people, or as JSON for programs.

A table has a header, aligned columns and no lines between them: it reads well on a terminal and splits well with `awk`.
On a terminal it is fitted to the width (`table_layout`). Otherwise nothing is coloured, wrapped, shortened or left out.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Final

import msgspec
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from holdfast.admin.table_layout import EMPTY, GAP, Column, Fitted, fit

# Wider than any row: a pipe has no width.
_PIPE_WIDTH: Final = 100_000
_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")

Cell = str | int | float | None


class Table(msgspec.Struct, frozen=True):
    """Rows of cells. None is printed as `-`, numbers with separators.

    Attributes:
        empty: The text to print when there are no rows.
    """

    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    title: str = ""
    empty: str = "nothing"


class Facts(msgspec.Struct, frozen=True):
    """Names and values, one pair a line."""

    pairs: Sequence[tuple[str, Cell]]
    title: str = ""


Printable = Table | Facts | str


def left(*headings: str) -> list[Column]:
    """Return columns of text."""
    return [Column(heading) for heading in headings]


def right(*headings: str) -> list[Column]:
    """Return columns of numbers."""
    return [Column(heading, "right") for heading in headings]


def whole(*headings: str) -> list[Column]:
    """Return columns of ids, addresses or times, which are never wrapped or shortened."""
    return [Column(heading, flow="whole") for heading in headings]


def names(*headings: str) -> list[Column]:
    """Return columns of sentences with names that users type: they wrap, but no word is shortened."""
    return [Column(heading, flow="names") for heading in headings]


def truncated(*headings: str) -> list[Column]:
    """Return columns of text of any length, which a narrow terminal cuts off at the end."""
    return [Column(heading, flow="text") for heading in headings]


def spare(rank: int, columns: Iterable[Column]) -> list[Column]:
    """Return *columns* marked as columns that a narrow terminal may leave out, the highest rank first.

    Columns with a rank below 0 stay as long as the others can be shortened.
    """
    return [msgspec.structs.replace(column, spare=rank) for column in columns]


def print_all(parts: Iterable[Printable]) -> None:
    """Print *parts* to standard output, with an empty line before each table or list of facts."""
    console = _console()
    with console.capture() as captured:
        for number, part in enumerate(parts):
            if number and not isinstance(part, str):
                console.print()
            _print(console, part)
    # Columns are padded to their width; after the last column the padding is only noise.
    lines = (line.rstrip() for line in captured.get().splitlines())
    sys.stdout.write("\n".join(lines) + "\n")
    sys.stdout.flush()


def print_json(value: object) -> None:
    """Print *value* as one JSON document: indented for a terminal, on one line for a program."""
    data = msgspec.json.encode(value)
    if sys.stdout.isatty():
        data = msgspec.json.format(data, indent=2)
    sys.stdout.write(data.decode() + "\n")
    sys.stdout.flush()


def cell_text(value: Cell) -> str:
    """Return a cell as it is printed."""
    if value is None:
        return EMPTY
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.1f}"
    return value


def size_text(size: float) -> str:
    """Return a number of bytes in a readable unit."""
    for unit in _UNITS[:-1]:
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} {_UNITS[-1]}"


def count_text(count: int, noun: str) -> str:
    """Return a count with its noun: 1 logical queue, 2 logical queues."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def time_text(time_ms: int | None) -> str | None:
    """Return local time to the millisecond; None for no time, which the wire encodes as -1 or 0."""
    if time_ms is None or time_ms <= 0:
        return None
    return datetime.fromtimestamp(time_ms / 1000).astimezone().strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]


def _console() -> Console:
    width = None if sys.stdout.isatty() else _PIPE_WIDTH
    return Console(file=sys.stdout, width=width, highlight=False, markup=False, soft_wrap=False)


def _print(console: Console, part: Printable) -> None:
    if isinstance(part, str):
        console.print(Text(part))
        return
    if part.title:
        console.print(Text(part.title, style="bold"))
    if isinstance(part, Facts):
        _print_facts(console, part)
    elif not part.rows:
        console.print(Text(part.empty, style="dim"))
    else:
        _print_table(console, part)


def _print_facts(console: Console, facts: Facts) -> None:
    grid = RichTable.grid(padding=(0, 2))
    grid.add_column(no_wrap=True, style="dim")
    grid.add_column(overflow="fold")
    for name, value in facts.pairs:
        grid.add_row(Text(name), Text(cell_text(value)))
    console.print(grid)


def _print_table(console: Console, table: Table) -> None:
    for row in table.rows:
        assert len(row) == len(table.columns), f"a row of {len(row)} cells does not fit {len(table.columns)} columns"
    fitted = fit(table.columns, [[cell_text(cell) for cell in row] for row in table.rows], console.width)
    # Print finished lines: rich would crop a line that an id makes too long.
    _print_row(console, fitted, [column.heading for column in fitted.columns], style="bold")
    for cells in fitted.rows:
        _print_row(console, fitted, cells)
    if fitted.left_out:
        text = f"not shown: {', '.join(fitted.left_out)} (use a wider terminal, or --json)"
        console.print(Text(text, style="dim"))


def _print_row(console: Console, fitted: Fitted, cells: Sequence[str], style: str = "") -> None:
    columns = [
        _lines(console, cell, column, width)
        for cell, column, width in zip(cells, fitted.columns, fitted.widths, strict=True)
    ]
    for parts in itertools.zip_longest(*columns):
        line = Text(style=style)
        for part, column, width in zip(parts, fitted.columns, fitted.widths, strict=True):
            text = part or Text()
            text.align(column.align, width)
            line.append_text(text).append(" " * GAP)
        line.rstrip()
        console.print(line, no_wrap=True, overflow="ignore", crop=False)


def _lines(console: Console, cell: str, column: Column, width: int) -> list[Text]:
    if column.flow not in {"words", "names"} or column.align == "right":
        return [Text(cell)]
    return list(Text(cell).wrap(console, width)) or [Text()]
