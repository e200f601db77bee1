"""Answering the reads of one turn each by itself: a fault on one channel is nobody else's business."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from holdfast.machine.effects import Effect, Fault
from holdfast.machine.events import FramesReceived


def answer_apart(answer: Callable[[FramesReceived], list[Effect]], reads: Iterable[FramesReceived]) -> list[Effect]:
    """Return the effects of all *reads*. What one of them breaks is told as a `Fault` of its channel."""
    effects: list[Effect] = []
    for read in reads:
        try:
            effects += answer(read)
        except Exception as error:  # noqa: BLE001 - whatever it is, the others' answers must not go with it
            effects.append(Fault(read.channel, error))
    return effects
