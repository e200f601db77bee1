"""What a job tells people at its end: facts, tables and plots, on a terminal or as a page.

Programs get the job's own figures, as JSON, and none of this.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from holdfast.admin.tables import Cell, Facts, Printable, Table


class Plot(msgspec.Struct, frozen=True):
    """Numbers that are better looked at.

    Attributes:
        labels: What stands below, one for each value.
        series: The values of each line, or of each kind of bar.
        unit: Of the values.
        kind: Bars have names, each of which is shown. A histogram and lines have a scale, of which some labels are.
    """

    title: str
    labels: Sequence[str]
    series: dict[str, Sequence[float]]
    unit: str = ""
    kind: Literal["bars", "histogram", "lines"] = "bars"


class Report(msgspec.Struct, frozen=True):
    """What a job has to say."""

    title: str
    facts: Sequence[tuple[str, Cell]]
    tables: Sequence[Table] = ()
    plots: Sequence[Plot] = ()
    notes: Sequence[str] = ()

    def printed(self) -> list[Printable]:
        """Return it for a terminal, which has no plots."""
        notes: list[Printable] = [f"note: {note}" for note in self.notes]
        return [Facts(self.facts, title=self.title), *self.tables, *notes]
