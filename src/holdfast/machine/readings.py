"""Load of the host: the shell keeps these readings up to date, and roles inspect them."""

from __future__ import annotations

from typing import Literal

import msgspec


class LinkCapacity(msgspec.Struct, frozen=True):
    """The capacity of a network interface in one direction.

    Attributes:
        mbit: Megabits per second.
        source: Whether the operator stated it or the interface reports it.
    """

    mbit: int
    source: Literal["stated", "detected"]


class Readings(msgspec.Struct):
    """Usage in percent. None means unknown, which is not the same as 0.

    Attributes:
        memory: Share of the host's memory, or of this process's memory limit.
        load: Runnable tasks per processor; above 100 they wait for each other.
        network: Share of the capacity of the busiest network interface.
        link: That capacity.
    """

    memory: float | None = None
    load: float | None = None
    network: float | None = None
    link: LinkCapacity | None = None
