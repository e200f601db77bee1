"""Isolation of faults between the channels of one turn: a fault on one channel does not affect the others."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from holdfast.machine.effects import Effect, Fault
from holdfast.machine.events import FramesReceived


def handle_isolated(
    handle_read: Callable[[FramesReceived], list[Effect]], reads: Iterable[FramesReceived]
) -> list[Effect]:
    """Return the effects of all *reads*. An exception in one of them becomes a `Fault` of its channel."""
    effects: list[Effect] = []
    for read in reads:
        try:
            effects += handle_read(read)
        except Exception as error:  # noqa: BLE001 - no exception may cost the other channels their answers
            effects.append(Fault(read.channel, error))
    return effects
