"""Kinds of components of a broker, and the timer that they share."""

from __future__ import annotations

from typing import Final

from holdfast.machine.component import Component

SAVE_TIMER: Final = "kept files"
"""When it fires, the changed files of all components are saved. `KeptFiles` sets it."""
NEWS_TIMER: Final = "registration news"
"""A table fires it when name servers must learn something at once, apart from changed topics."""


class MasterComponent(Component):
    """A component whose background work writes to the log. A replica must not do that, and does not start it."""
