"""Targets beside measured figures, and their table."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from benchmarks.tables import number, table


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """A target: a greatest or a least value."""

    what: str
    measured: float
    wanted: float
    unit: str = ""
    is_least: bool = False

    @property
    def reached(self) -> bool:
        """Whether the target is met."""
        return self.measured >= self.wanted if self.is_least else self.measured <= self.wanted


def target_table(title: str, targets: Iterable[Target]) -> str:
    """Return *targets* as a table."""
    return table([title, "measured", "wanted", ""], map(_row, targets))


def _row(target: Target) -> list[str]:
    measured = f"{target.measured:,}" if isinstance(target.measured, int) else number(target.measured)
    bound = "at least" if target.is_least else "at most"
    return [
        target.what,
        f"{measured} {target.unit}".strip(),
        f"{bound} {target.wanted:,.10g} {target.unit}".strip(),
        "reached" if target.reached else "**missed**",
    ]
