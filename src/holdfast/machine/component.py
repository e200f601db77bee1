"""The protocol of a component: how the parts of a role are put together.

A role builds its components one after the other, in the order of its packages, and then only loops over them. A
component gets the components that it uses in its constructor, and nothing is set on it later. So every component can be
built and tested alone. Components are asked in the order in which they were built.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from holdfast.machine.events import ChannelId
from holdfast.machine.kept_file import KeptFile
from holdfast.machine.request import Request
from holdfast.machine.sample import Sample


class Component:
    """A part of a role. It causes everything through the turn of the role, and offers only what it has."""

    def handlers(self) -> Mapping[int, Callable[[Request], Any]]:
        """Return the request handlers by code; the role defines whether a handler may wait."""
        return {}

    def timers(self) -> Mapping[str, Callable[[], None]]:
        """Return what to call when a timer fires, by the name of the timer."""
        return {}

    def files(self) -> Sequence[KeptFile[Any]]:
        """Return the files of the component: the role passes them the results of their writes."""
        return ()

    def start(self) -> None:
        """Begin to work: called once, in the first event, when the shell is listening."""

    def stop(self) -> None:
        """Save what is only in memory: called in the last event."""

    def channel_closed(self, channel: ChannelId) -> None:
        """Forget a closed channel: nothing that is sent to it will arrive."""

    def on_synced(self, position: int) -> None:
        """Continue what waited until the log was on disk up to *position*."""

    def metrics(self) -> Iterable[Sample]:
        """Return the present metrics of the component."""
        return ()


def collect_handlers(components: Iterable[Component]) -> dict[int, Callable[[Request], Any]]:
    """Return the handlers of all *components* by request code. No request has two."""
    handlers: dict[int, Callable[[Request], Any]] = {}
    for component in components:
        offered = component.handlers()
        twice = handlers.keys() & offered.keys()
        assert not twice, f"{type(component).__name__} offers handlers of {sorted(twice)}, which another one has"
        handlers.update(offered)
    return handlers
