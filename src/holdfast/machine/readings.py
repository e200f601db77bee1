"""How busy the machine is: readings that the shell keeps up to date and a role looks at, as it looks at the memory."""

from __future__ import annotations

from typing import Literal

import msgspec


class LinkCapacity(msgspec.Struct, frozen=True):
    """How much a network interface can carry in one direction.

    Attributes:
        mbit: Megabits a second.
        source: The operator stated it, or the interface reports it.
    """

    mbit: int
    source: Literal["stated", "detected"]


class Readings(msgspec.Struct):
    """Percentages of what there is; None where that is not known, which is not the same as 0.

    Attributes:
        memory: Of the machine's memory, or of what this process may use of it.
        load: Runnable tasks for each processor; above 100 they wait for each other.
        network: Of the capacity of the busiest network interface.
        link: That capacity.
    """

    memory: float | None = None
    load: float | None = None
    network: float | None = None
    link: LinkCapacity | None = None
