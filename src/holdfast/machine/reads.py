"""Isolation of faults between the channels of one turn: a fault on one channel does not affect the others."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from holdfast.machine.effects import Fault
from holdfast.machine.events import FramesReceived
from holdfast.machine.turn import Turn


def isolate_reads(turn: Turn, handle_read: Callable[[FramesReceived], None], reads: Iterable[FramesReceived]) -> None:
    """Handle all *reads*. An exception in one of them becomes a `Fault` of its channel, and drops its other effects."""
    for read in reads:
        mark = turn.mark()
        try:
            handle_read(read)
        except Exception as error:  # noqa: BLE001 - no exception may cost the other channels their answers
            turn.discard_effects(mark)
            turn.cause(Fault(read.channel, error))
