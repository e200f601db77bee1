"""Parks refused pulls that a client repeats: Java clients would otherwise repeat each of them every second.

    refused ─> answered at once ─> repeated ─> parked ─┬─ its deadline passes ─────> refused
                                                       └─ it would be admitted now ─> "pull again"

Only the first refusal is news to a client. Clients that log in are not affected: they wait longer after each failure.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from holdfast.access.directory_store import ACCESS_TIMER
from holdfast.access.door import Door
from holdfast.broker.consume.long_poll import ParkedPull, ParkedPulls
from holdfast.broker.consume.physical_pull import refuse
from holdfast.broker.consume.pull import SUSPEND_MAX_MS, retry_answer
from holdfast.broker.flow.request import Refusal, Timers
from holdfast.machine.component import Component
from holdfast.machine.events import ChannelId
from holdfast.machine.sample import Sample
from holdfast.machine.turn import Turn
from holdfast.wire.requests.pull import SUSPEND, PullHeader

REFUSED_PULLS_TIMER: Final = "refused pulls"
REMEMBERED_MAX: Final = 1_000  # refused pulls of each channel

_Key = tuple[str, str, int]


class RefusedPulls(Component):
    """The refused pulls of clients that sign their requests.

    Args:
        door: Says who may pull.
        turn: The turn of the broker.
        parked_max: How many pulls are parked at most. The others are answered at once.
    """

    def __init__(self, door: Door, turn: Turn, parked_max: int) -> None:
        self._door = door
        self._turn = turn
        self._parked_max = parked_max
        self._refused: dict[ChannelId, dict[_Key, PullHeader]] = {}
        self._parked: ParkedPulls[_Key] = ParkedPulls()
        self._timer_ms: int | None = None

    def timers(self) -> Timers:
        """Return the timers of this component, by name."""
        return {ACCESS_TIMER: self._release, REFUSED_PULLS_TIMER: self._expire}

    def channel_closed(self, channel: ChannelId) -> None:
        """Forget the pulls of a closed channel."""
        self._refused.pop(channel, None)
        self._parked.drop_channel(channel)

    def metrics(self) -> Iterator[Sample]:
        """Yield the number of parked pulls."""
        about = "Refused pulls that clients repeated: parked until their deadline."
        yield Sample("broker_refused_pulls_parked", "gauge", about, len(self._parked))

    def note(self, channel: ChannelId, header: PullHeader) -> None:
        """Remember a pull that is refused now."""
        if self._door.find_signer(channel) is None:
            return
        refused = self._refused.setdefault(channel, {})
        if len(refused) >= REMEMBERED_MAX:
            refused.clear()
        refused[_key(header)] = header

    def park(self, channel: ChannelId, header: PullHeader, serializer: int, refusal: Refusal) -> bool:
        """Park a refused pull if its client repeats it; return False if it must be answered at once."""
        signer, fields = self._door.find_signer(channel), header.fields
        if signer is None or _key(header) not in self._refused.get(channel, {}):
            self.note(channel, header)
            return False
        wait_ms = min(fields.suspend_timeout_millis, SUSPEND_MAX_MS) if fields.sys_flag & SUSPEND else 0
        if wait_ms <= 0 or len(self._parked) >= self._parked_max:
            return False
        deadline_ms = self._turn.now_ms + wait_ms
        parked = ParkedPull(
            channel, serializer, header, deadline_ms, fields.queue_offset, sender=signer, refusal=refusal
        )
        self._parked.park(_key(header), parked)
        self._set_timer()
        return True

    def _release(self) -> None:
        """Forget the pulls that would be admitted now, and let the clients of parked ones pull again."""
        for channel, refused in self._refused.items():
            signer = self._door.find_signer(channel)
            for key, header in list(refused.items()):
                if self._door.may_pull(signer, header, channel):
                    del refused[key]
        for parked in self._parked.remove(self._may_pull_again):
            self._turn.send(parked.channel, [retry_answer(parked.header, parked.serializer, "PERMITTED_AGAIN")])

    def _may_pull_again(self, parked: ParkedPull) -> bool:
        return self._door.may_pull(parked.sender, parked.header, parked.channel)

    def _expire(self) -> None:
        """Refuse the pulls whose deadline has passed."""
        self._timer_ms = None
        for _, parked in self._parked.expire(self._turn.now_ms):
            assert parked.refusal is not None
            self._turn.send(parked.channel, [refuse(parked.refusal, parked.header.opaque, parked.serializer)])
        self._set_timer()

    def _set_timer(self) -> None:
        deadline_ms = self._parked.next_deadline_ms()
        if deadline_ms is not None and (self._timer_ms is None or deadline_ms < self._timer_ms):
            self._timer_ms = max(deadline_ms, self._turn.now_ms)
            self._turn.set_timer(REFUSED_PULLS_TIMER, self._timer_ms)


def _key(header: PullHeader) -> _Key:
    fields = header.fields
    return fields.consumer_group, fields.topic, fields.queue_id
