"""Leases of logical queues: what a broker asks of every name server, and what it is told (7040).

    broker ─ I lead these, in these generations ─> name server ─ all but these; and these have lapsed ─> broker

A request names everything that the broker leads. What it names no more, it has given up.
"""

from __future__ import annotations

from typing import Final

import msgspec

from holdfast.model.numbers import Int32, Int64


class Claim(msgspec.Struct, frozen=True, array_like=True):
    """One logical queue that a broker leads, or is about to lead.

    Attributes:
        handed_by: Who led it before, and handed it over by a move: it takes no writes any more. Empty after a force.
    """

    generation: Int32
    handed_by: str = ""


class LeaseRequest(msgspec.Struct, frozen=True, kw_only=True):
    """7040.

    Attributes:
        boot: The same as long as the process lives; higher than that of all processes before it.
        number: Rises with every request of a process: one that was overtaken says nothing.
        lease_ms: For how long the broker goes by the answer, from when it asked.
    """

    broker: str
    boot: Int64
    number: Int64
    lease_ms: Int64
    topics: dict[str, dict[Int32, Claim]] = {}


class Holding(msgspec.Struct, frozen=True, array_like=True):
    """Who holds a logical queue, and in which generation."""

    broker: str
    generation: Int32


NOBODY: Final = Holding("", -1)


class LeaseAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Answer to 7040.

    Attributes:
        refused: Queues that somebody else holds, and who; nobody, where somebody may whom this name server forgot.
        lapsed: Queues whose holder was silent for so long that it has stopped by itself.
    """

    refused: dict[str, dict[Int32, Holding]] = {}
    lapsed: dict[str, dict[Int32, Holding]] = {}
