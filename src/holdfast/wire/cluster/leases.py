"""Leases of logical queues: a broker's request to every name server, and the answer (7040).

    broker ─ I lead these queues, in these generations ─> name server
    broker <─ granted except these; these have expired ── name server

A request lists every queue that the broker leads. A queue that is no longer listed has been given up.
"""

from __future__ import annotations

from typing import Final

import msgspec

from holdfast.model.numbers import Int32, Int64
from holdfast.wire.cluster.mapping import QueueNumber


class Claim(msgspec.Struct, frozen=True, array_like=True):
    """One logical queue that a broker leads, or is about to lead.

    Attributes:
        previous_leader: The previous leader, which handed the queue over by a move and accepts no writes any more.
            Empty after a forced move.
    """

    generation: Int32
    previous_leader: str = ""


class LeaseRequest(msgspec.Struct, frozen=True, kw_only=True):
    """7040.

    Attributes:
        boot: Constant while the process lives; higher than that of every earlier process.
        number: Rises with every request of a process. A request with a lower number than an earlier one is ignored.
        lease_ms: How long the broker relies on the answer, counted from the request.
    """

    broker: str
    boot: Int64
    number: Int64
    lease_ms: Int64
    topics: dict[str, dict[QueueNumber, Claim]] = {}


class QueueLease(msgspec.Struct, frozen=True, array_like=True):
    """The broker that holds a logical queue, and its generation."""

    broker: str
    generation: Int32


UNKNOWN_HOLDER: Final = QueueLease("", -1)


class LeaseAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Answer to 7040.

    Attributes:
        refused: Queues that another broker holds, with that broker. `UNKNOWN_HOLDER` if another broker may hold the
            queue, but this name server does not remember which.
        lapsed: Queues whose holder has been silent for so long that it has stopped leading on its side, too.
    """

    refused: dict[str, dict[QueueNumber, QueueLease]] = {}
    lapsed: dict[str, dict[QueueNumber, QueueLease]] = {}
