"""The periodic scan: silent brokers leave, lapsed leases are forgotten, and topics that stay withheld are reported."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from holdfast.machine.component import Component
from holdfast.machine.turn import Turn
from holdfast.nameserver.cluster.queue_leases import QueueLeases
from holdfast.nameserver.cluster.registry import Registry
from holdfast.nameserver.config.settings import Settings
from holdfast.nameserver.push.publication import Publication
from holdfast.nameserver.routes.static_topics import StaticTopics

TIMER: Final = "scan"


class Scan(Component):
    """Scans at an interval that an operator may change."""

    def __init__(
        self,
        turn: Turn,
        settings: Settings,
        registry: Registry,
        leases: QueueLeases,
        static: StaticTopics,
        publication: Publication,
    ) -> None:
        self._turn = turn
        self._settings = settings
        self._registry = registry
        self._leases = leases
        self._static = static
        self._publication = publication
        self._interval_ms = 0  # of the timer that is set

    def timers(self) -> Mapping[str, Callable[[], None]]:
        """Return the timer of the scan."""
        return {TIMER: self._scan}

    def start(self) -> None:
        """Set the timer of the first scan."""
        self._set_timer()

    def _set_timer(self) -> None:
        self._interval_ms = self._settings.scan_interval_ms
        self._turn.set_timer(TIMER, self._turn.now_ms + self._interval_ms)

    def _scan(self) -> None:
        self._registry.expire()
        self._leases.advance_time(self._interval_ms)
        self._static.warn_withheld()
        self._publication.publish()
        self._set_timer()
