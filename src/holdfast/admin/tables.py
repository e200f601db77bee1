"""How answers look to people, and to programs.

A table has a header, aligned columns and no lines between them: it reads well on a terminal and cuts well with `awk`.
Where standard output is no terminal nothing is coloured, wrapped or shortened.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Final, Literal

import msgspec
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

# Wider than any row: a pipe has no width.
_PIPE_WIDTH: Final = 100_000
_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")

Cell = str | int | float | None
Align = Literal["left", "right"]


class Column(msgspec.Struct, frozen=True):
    """A heading and what stands below it."""

    heading: str
    align: Align = "left"


class Table(msgspec.Struct, frozen=True):
    """Rows of cells. None is printed as `-`, numbers with separators.

    Attributes:
        empty: What is said when there are no rows.
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


def print_all(parts: Iterable[Printable]) -> None:
    """Print *parts* to standard output, an empty line between them."""
    console = _console()
    with console.capture() as captured:
        for number, part in enumerate(parts):
            if number and not isinstance(part, str):
                console.print()
            _print(console, part)
    # Columns are padded to their width; behind the last one that is only noise.
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


def count_text(value: Cell) -> str:
    """Return a cell as it is printed."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.1f}"
    return value


def size_text(size: float) -> str:
    """Return a number of bytes in the unit that fits."""
    for unit in _UNITS[:-1]:
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} {_UNITS[-1]}"


def time_text(time_ms: int | None) -> str | None:
    """Return local time to the millisecond; None for no time, as -1 and 0 mean on the wire."""
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
        grid.add_row(Text(name), Text(count_text(value)))
    console.print(grid)


def _print_table(console: Console, table: Table) -> None:
    grid = RichTable(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in table.columns:
        grid.add_column(column.heading, justify=column.align, overflow="fold", no_wrap=column.align == "right")
    for row in table.rows:
        assert len(row) == len(table.columns), f"a row of {len(row)} cells does not fit {len(table.columns)} columns"
        grid.add_row(*(Text(count_text(cell)) for cell in row))
    console.print(grid)
