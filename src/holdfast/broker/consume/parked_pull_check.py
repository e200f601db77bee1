"""Checks parked pulls again when users or rules change: a revoked permission counts at once."""

from __future__ import annotations

from holdfast.access.directory_store import ACCESS_TIMER
from holdfast.access.door import Door
from holdfast.broker.consume.long_poll import ParkedPull, ParkedPulls
from holdfast.broker.consume.physical_pull import refuse
from holdfast.broker.consume.refused_pulls import RefusedPulls
from holdfast.broker.flow.request import Refusal, Timers
from holdfast.machine.component import Component
from holdfast.machine.turn import Turn
from holdfast.store.queues.queue_index import QueueIndex


class ParkedPullCheck(Component):
    """Refuses the parked pulls of senders that may no longer pull."""

    def __init__(
        self, parked_pulls: ParkedPulls[QueueIndex], refused_pulls: RefusedPulls, door: Door, turn: Turn
    ) -> None:
        self._parked_pulls = parked_pulls
        self._refused_pulls = refused_pulls
        self._door = door
        self._turn = turn

    def timers(self) -> Timers:
        """Return the timers of this component, by name."""
        return {ACCESS_TIMER: self.check}

    def check(self) -> None:
        """Answer every parked pull that the door would refuse now."""
        if not self._door.is_enabled:
            return
        refusals: dict[int, Refusal] = {}

        def is_refused(parked: ParkedPull) -> bool:
            refusal = None
            if parked.sender is not None:
                refusal = self._door.recheck_pull(parked.sender, parked.header, parked.channel)
            if refusal is not None:
                refusals[id(parked)] = refusal
            return refusal is not None

        for parked in self._parked_pulls.remove(is_refused):
            answer = refuse(refusals[id(parked)], parked.header.opaque, parked.serializer)
            self._turn.send(parked.channel, [answer])
            self._refused_pulls.note(parked.channel, parked.header)
