"""Paces route notices by the load of the machine: queries must be answered, notices can wait.

    all readings below 60 %     every second
    one from 60 to 90 %         every 10 s
    one above 90 %              paused until it drops

Unknown readings are ignored. Notices that are held back are sent later: `notices.py` keeps them.
"""

from __future__ import annotations

from enum import Enum
from math import ceil
from typing import Final

import msgspec

from holdfast.machine.readings import Readings

BUSY_PERCENT: Final = 60.0
FULL_PERCENT: Final = 90.0


class Pace(Enum):
    """How often notices are sent; the value is the displayed text."""

    FULL = "every second"
    SLOW = "every 10 s"
    PAUSED = "paused"

    @property
    def interval_ms(self) -> int | None:
        """The minimum time between two rounds of notices; None while they are paused."""
        return _INTERVALS_MS[self]


_INTERVALS_MS: Final = {Pace.FULL: 1_000, Pace.SLOW: 10_000, Pace.PAUSED: None}


class LoadPace(msgspec.Struct, frozen=True):
    """The pace, and its reason.

    Attributes:
        reason: The readings that slow the pace, as text; empty at full pace.
    """

    pace: Pace
    reason: str = ""


_FULL_PACE: Final = LoadPace(Pace.FULL)


def choose_pace(readings: Readings) -> LoadPace:
    """Return the pace for *readings*."""
    known = {"memory": readings.memory, "load": readings.load, "network": readings.network}
    busy = {name: percent for name, percent in known.items() if percent is not None and percent >= BUSY_PERCENT}
    if not busy:
        return _FULL_PACE
    is_full = max(busy.values()) > FULL_PERCENT
    causes = {name: percent for name, percent in busy.items() if not is_full or percent > FULL_PERCENT}
    # Rounded up, so that the shown value is on the same side of the limit.
    reason = ", ".join(f"{name} {ceil(percent)} %" for name, percent in causes.items())
    return LoadPace(Pace.PAUSED if is_full else Pace.SLOW, reason)
