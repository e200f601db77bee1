"""The one method every role has."""

from __future__ import annotations

from typing import Protocol

from holdfast.machine.effects import Effect
from holdfast.machine.events import Event


class Machine(Protocol):
    """A role without a world around it."""

    def handle(self, event: Event) -> list[Effect]:
        """Take note of *event* and return what shall be done about it, in order."""
        ...
