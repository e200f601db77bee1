"""The protocol that every role implements."""

from __future__ import annotations

from typing import Protocol

from holdfast.machine.effects import Effect
from holdfast.machine.events import Event


class Machine(Protocol):
    """A role as a pure state machine: events in, effects out."""

    def handle(self, event: Event) -> list[Effect]:
        """Process *event* and return its effects, in order."""
        ...
