"""The human-readable result of a job: facts, tables and plots, for a terminal or an HTML page.

Programs use the job's own result, as JSON, instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from holdfast.admin.tables import Cell, Facts, Printable, Table


class Plot(msgspec.Struct, frozen=True):
    """A plot of one or several series of numbers.

    Attributes:
        labels: The labels of the axis, one per value.
        series: The values of each line, or of each kind of bar.
        unit: The unit of the values.
        kind: Bars have names, all of which are shown. A histogram and lines have a scale, which shows some labels.
    """

    title: str
    labels: Sequence[str]
    series: dict[str, Sequence[float]]
    unit: str = ""
    kind: Literal["bars", "histogram", "lines"] = "bars"


class JobReport(msgspec.Struct, frozen=True):
    """The human-readable result of a job."""

    title: str
    facts: Sequence[tuple[str, Cell]]
    tables: Sequence[Table] = ()
    plots: Sequence[Plot] = ()
    notes: Sequence[str] = ()

    def printed(self) -> list[Printable]:
        """Return the parts that a terminal can show: everything except the plots."""
        notes: list[Printable] = [f"note: {note}" for note in self.notes]
        return [Facts(self.facts, title=self.title), *self.tables, *notes]
