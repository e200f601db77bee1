"""How often clients are told of changed routes, by how busy the machine is: telling is a service, answering a duty.

    everything below 60 %       every second
    anything from 60 to 90 %    every 10 s
    anything above 90 %         not at all, until it is less

What is not known does not count. Whatever changes meanwhile is told later: `notices.py` forgets nothing.
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
    """How often clients are told; the value is how it is called."""

    FULL = "every second"
    SLOW = "every 10 s"
    PAUSED = "paused"

    @property
    def interval_ms(self) -> int | None:
        """The least time between two rounds of notices; None when there are none."""
        return _INTERVALS_MS[self]


_INTERVALS_MS: Final = {Pace.FULL: 1_000, Pace.SLOW: 10_000, Pace.PAUSED: None}


class Burden(msgspec.Struct, frozen=True):
    """What the readings mean.

    Attributes:
        reason: The readings that are to blame, in words; empty at full pace.
    """

    pace: Pace
    reason: str = ""


_NONE: Final = Burden(Pace.FULL)


def judge(readings: Readings) -> Burden:
    """Return the pace that fits *readings*."""
    known = {"memory": readings.memory, "load": readings.load, "network": readings.network}
    busy = {name: percent for name, percent in known.items() if percent is not None and percent >= BUSY_PERCENT}
    if not busy:
        return _NONE
    is_full = max(busy.values()) > FULL_PERCENT
    to_blame = {name: percent for name, percent in busy.items() if not is_full or percent > FULL_PERCENT}
    # Rounded up: that is never on the other side of a limit.
    reason = ", ".join(f"{name} {ceil(percent)} %" for name, percent in to_blame.items())
    return Burden(Pace.PAUSED if is_full else Pace.SLOW, reason)
