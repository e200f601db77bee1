"""Fit a table into the width of a terminal without breaking words or ids.

1. Columns are left out until the others fit: first those without any value, then spare ones by their rank.
2. Columns of words wrap between words. Numbers, ids and times never wrap.
3. If their longest words still do not fit, the widest words are shortened in the middle: order…eu-west.

An id is never shortened: if nothing else helps, a line is longer than the terminal, which then wraps it and loses
nothing. This module knows widths, not the meaning of columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

import msgspec
from rich.cells import cell_len

GAP: Final = 2
EMPTY: Final = "-"
_ELLIPSIS: Final = "…"
_COMFORT_WIDTH: Final = 24  # a sentence in a column narrower than this is hard to read
_LEAST_WIDTH: Final = 9

Align = Literal["left", "right"]
Flow = Literal["words", "names", "whole", "text"]


class Column(msgspec.Struct, frozen=True):
    """A heading and how the cells below it are shown.

    Attributes:
        flow: `words` wraps between words; `names` does, too, but none of its words is shortened; `whole` is neither
            wrapped nor shortened; `text` is cut at its end.
        spare: 0 for a column that is always shown. Above 0, the highest is left out first. A column below 0 is left
            out only if the others do not fit even when shortened.
    """

    heading: str
    align: Align = "left"
    flow: Flow = "words"
    spare: int = 0


class Fitted(msgspec.Struct, frozen=True):
    """The part of a table that is shown.

    Attributes:
        widths: The width of each shown column.
        left_out: The headings of the other columns.
    """

    columns: Sequence[Column]
    rows: Sequence[Sequence[str]]
    widths: Sequence[int]
    left_out: Sequence[str]


class _Widths(msgspec.Struct, frozen=True):
    """The preferred, comfortable and minimum width of a column."""

    natural: int
    comfort: int
    least: int


def fit(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int) -> Fitted:
    """Return the part of a table that fits into *width*, and how wide its columns are."""
    measured = [_measure(column, [row[at] for row in rows]) for at, column in enumerate(columns)]
    shown = list(range(len(columns)))
    for at in _removable_columns(columns, rows):
        if _total([measured[each].comfort for each in shown]) <= width:
            break
        shown.remove(at)
    for at in sorted(shown, key=lambda at: columns[at].spare):
        if (
            columns[at].spare >= 0
            or _total([_shortest_width(measured[each], columns[each]) for each in shown]) <= width
        ):
            break
        shown.remove(at)
    kept_columns = [columns[at] for at in shown]
    widths = _fit_widths([measured[at] for at in shown], kept_columns, width)
    return Fitted(
        kept_columns,
        [[_shorten(row[at], size, columns[at]) for at, size in zip(shown, widths, strict=True)] for row in rows],
        widths,
        [column.heading for at, column in enumerate(columns) if at not in shown],
    )


def _removable_columns(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> list[int]:
    """Return the columns that may be left out, in the order in which to leave them out."""
    empty = {at for at in range(len(columns)) if all(row[at] == EMPTY for row in rows)}
    spare = {at for at, column in enumerate(columns) if column.spare > 0}
    return sorted(empty | spare, key=lambda at: (at in empty, columns[at].spare, at), reverse=True)


def _measure(column: Column, cells: Sequence[str]) -> _Widths:
    texts = (column.heading, *cells)
    natural = max(map(cell_len, texts))
    if column.flow == "text":
        least = max(cell_len(column.heading), min(natural, _LEAST_WIDTH))
    elif column.flow == "whole" or column.align == "right":
        least = natural
    else:
        least = max((cell_len(word) for text in texts for word in text.split()), default=0)
    return _Widths(natural, max(least, min(natural, _COMFORT_WIDTH)), least)


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + GAP * (len(widths) - 1)


def _fit_widths(measured: Sequence[_Widths], columns: Sequence[Column], width: int) -> list[int]:
    """Return the width of each column."""
    widths = [each.comfort for each in measured]
    _narrow(widths, [each.least for each in measured], width)
    _narrow(widths, [_shortest_width(each, column) for each, column in zip(measured, columns, strict=True)], width)
    _widen(widths, [each.natural for each in measured], width)
    return widths


def _shortest_width(measured: _Widths, column: Column) -> int:
    """Return the width below which a column is not even shortened."""
    return measured.least if _is_unbreakable(column) or column.flow == "names" else min(measured.least, _LEAST_WIDTH)


def _is_unbreakable(column: Column) -> bool:
    return column.flow == "whole" or column.align == "right"


def _narrow(widths: list[int], least: Sequence[int], width: int) -> None:
    """Narrow the widest columns that exceed their *least* width, until all columns fit or none exceeds it."""
    while (excess := _total(widths) - width) > 0:
        narrowable = [at for at, size in enumerate(widths) if size > least[at]]
        if not narrowable:
            return
        widest = max(narrowable, key=lambda at: widths[at])
        second = max((widths[at] for at in narrowable if widths[at] < widths[widest]), default=0)
        widths[widest] -= min(excess, max(1, widths[widest] - max(second, least[widest])))


def _widen(widths: list[int], natural: Sequence[int], width: int) -> None:
    """Give the rest of *width* to columns below their natural width, first to those that need the least."""
    while (free := width - _total(widths)) > 0:
        too_narrow = [at for at, size in enumerate(widths) if size < natural[at]]
        if not too_narrow:
            return
        nearest = min(too_narrow, key=lambda at: natural[at] - widths[at])
        widths[nearest] += min(free, natural[nearest] - widths[nearest])


def _shorten(cell: str, width: int, column: Column) -> str:
    """Return *cell* shortened so that no word of it is wider than its column."""
    if _is_unbreakable(column) or column.flow == "names" or cell_len(cell) <= width:
        return cell
    if column.flow == "text":
        return _prefix(cell, width - 1) + _ELLIPSIS
    return " ".join(word if cell_len(word) <= width else _shorten_middle(word, width) for word in cell.split())


def _shorten_middle(word: str, width: int) -> str:
    tail = _prefix(word[::-1], (width - 1) // 2)[::-1]
    return _prefix(word, width - 1 - cell_len(tail)) + _ELLIPSIS + tail


def _prefix(text: str, width: int) -> str:
    """Return as much of *text* as fits into *width*: some characters are two columns wide."""
    while cell_len(text) > width:
        text = text[: min(width, len(text) - 1)]
    return text
