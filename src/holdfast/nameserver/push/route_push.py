"""Tells clients that the routes they watch have changed: 105 with `watch`, 329, 7050, and the timer that sends 328.

    105 watch=true ─> watches ─┐
    329            ─> watches  │
    routes changed ────────────┴─> who watches them, and sees a difference ─> notices ─┬─> 328, oneway
    timer, once a second while somebody is owed something; less often under burden ────┘

A notice says only which topics changed; whoever gets it asks for their routes. It is sent once and never repeated:
the clients' own poll is the net below. Clients are told a slice at a time, so that questions are answered in between.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from random import Random
from typing import Final

from holdfast.machine.effects import Effect, Log, SendBytes, SetTimer
from holdfast.machine.events import ChannelId
from holdfast.machine.readings import Readings
from holdfast.nameserver.notices import TICK_MS, Notices, Occasion
from holdfast.nameserver.options import NameServerOptions
from holdfast.nameserver.push.push_pacing import Burden, Pace, judge
from holdfast.nameserver.push.watches import Watches
from holdfast.nameserver.request import Answer, Handlers, Request
from holdfast.nameserver.routes.unit_visibility import Viewer
from holdfast.wire.cluster.push_state import LinkCapacityTold, PushState, ReadingsTold, encode_push_state, to_percent
from holdfast.wire.cluster.watch import ROUTES_CHANGED, TOPICS_FIELD, UNWATCH, split_topics
from holdfast.wire.frames.codes import RequestCode
from holdfast.wire.frames.command import ONE_WAY, Command, encode_command

TIMER: Final = "notify"
SETTLING_MS: Final = 200
"""How long a first change waits for others: a topic is created on one broker after the other."""
SLICE: Final = 256
"""How many clients are told before others have a turn: a few milliseconds."""


class RoutePush:
    """Watches, notices, and the pace at which these become those.

    Args:
        options: What the operator set.
        random: Spreads what concerns everybody.
        readings: How busy the machine is, kept up to date by somebody else.
        look: Returns a number that differs when the route of a topic does, as somebody sees it.
    """

    def __init__(
        self, options: NameServerOptions, random: Random, readings: Readings, look: Callable[[str, Viewer], int]
    ) -> None:
        self._broker_events = options.broker_events
        self._backs_off = options.notify_back_off
        self.readings = readings
        self.watches = Watches(look, per_channel_max=options.watches_per_channel_max, total_max=options.watches_max)
        self.notices = Notices(
            random,
            broker_events=options.broker_events,
            spread_ms=options.broker_event_spread_ms,
            rate_max=options.notify_rate_max,
        )
        self._is_ticking = False  # the timer is set
        self._ticked_ms: int | None = None  # when the last tick was
        self._told_ms: int | None = None  # when the last round of notices began
        self._pace_told = Pace.FULL  # to the operator
        self._is_urgent = False  # something is owed that no burden holds back

    def handlers(self) -> Handlers:
        """Return what this room answers."""
        return {UNWATCH: self._unwatch, RequestCode.GET_PUSH_STATE: self._tell_state}

    @property
    def burden(self) -> Burden:
        """How often clients are told, and why not more often."""
        return judge(self.readings) if self._backs_off else Burden(Pace.FULL)

    # Who watches.

    def watch(self, channel: ChannelId, topic: str, viewer: Viewer) -> bool:
        """Tell *channel* of changes of *topic* from now on; return False when it has to look for itself."""
        return self.watches.watch(channel, topic, viewer)

    def closed(self, channel: ChannelId) -> None:
        """Forget *channel*."""
        self.watches.closed(channel)
        self.notices.closed(channel)

    def _unwatch(self, request: Request) -> Answer:
        topics = split_topics(request.command.fields.get(TOPICS_FIELD))
        self.watches.unwatch(request.channel, topics)
        self.notices.forget(request.channel, topics)
        return request.answer()

    def _tell_state(self, request: Request) -> Answer:
        burden, readings, link = self.burden, self.readings, self.readings.link
        state = PushState(
            broker_events=self._broker_events,
            watching_clients=self.watches.channel_count,
            watched_topics=self.watches.topic_count,
            watches=len(self.watches),
            pending_clients=len(self.notices),
            notices_sent=self.notices.sent,
            pace=burden.pace.value,
            reason=burden.reason,
            readings=ReadingsTold(
                memory=to_percent(readings.memory), load=to_percent(readings.load), network=to_percent(readings.network)
            ),
            link_capacity=LinkCapacityTold(mbit=link.mbit, source=link.source) if link else LinkCapacityTold(),
        )
        return request.answer(body=encode_push_state(state))

    # Who is told.

    def changed(
        self, topics: Iterable[str], occasion: Occasion, now_ms: int, *, is_urgent: bool = False
    ) -> list[Effect]:
        """Owe a notice of every topic whose route differs now to whoever watches it.

        Args:
            topics: Whose routes may differ.
            occasion: Why.
            now_ms: When.
            is_urgent: An operator waits for it, in trouble: no burden of the machine holds it back.
        """
        if not self.watches:
            return []
        self.notices.add(self.watches.differing(topics), occasion)
        self._is_urgent = (self._is_urgent or is_urgent) and bool(len(self.notices))
        return self._go_on(now_ms)

    def fired(self, now_ms: int) -> list[Effect]:
        """Tell those whose moment has come: as many as one slice has, then others have a turn."""
        self._is_ticking = False
        effects: list[Effect] = []
        if not self.notices.is_sending:
            self._ticked_ms = now_ms
            self.notices.tick()
            burden = self.burden
            effects += self._tell_operator(burden)
            if self._is_urgent or self._is_time(burden.pace, now_ms):
                self._told_ms = now_ms
                self.notices.begin()
        frames: dict[str, bytes] = {}
        for channel, texts in self.notices.take(SLICE):
            for text in texts:
                if text not in frames:
                    frames[text] = _encode(text)
            effects.append(SendBytes(channel, [frames[text] for text in texts]))
        self._is_urgent = self._is_urgent and bool(len(self.notices))
        return effects + self._go_on(now_ms)

    def _is_time(self, pace: Pace, now_ms: int) -> bool:
        interval_ms = pace.interval_ms
        if interval_ms is None:
            return False
        # At full pace every tick is one.
        return pace is Pace.FULL or _rest_ms(self._told_ms, interval_ms, now_ms) == 0

    def _go_on(self, now_ms: int) -> list[Effect]:
        """Set the timer, unless it is set or nobody is owed anything."""
        if self._is_ticking or not len(self.notices):
            return []
        self._is_ticking = True
        wait_ms = 0 if self.notices.is_sending else max(SETTLING_MS, _rest_ms(self._ticked_ms, TICK_MS, now_ms))
        return [SetTimer(TIMER, now_ms + wait_ms)]

    def _tell_operator(self, burden: Burden) -> list[Effect]:
        """Tell once when the pace changes."""
        if burden.pace is self._pace_told:
            return []
        self._pace_told = burden.pace
        fields: dict[str, object] = {"pending_clients": len(self.notices)}
        if burden.pace is Pace.FULL:
            return [Log("info", "route notices every second again", fields)]
        did = "paused" if burden.pace is Pace.PAUSED else "slowed to one in 10 s"
        return [Log("warning", f"route notices {did}", {"reason": burden.reason, **fields})]


def _rest_ms(since_ms: int | None, interval_ms: int, now_ms: int) -> int:
    """Return how much of an interval is left. A clock that was set back holds nothing up."""
    if since_ms is None or not 0 <= now_ms - since_ms < interval_ms:
        return 0
    return since_ms + interval_ms - now_ms


def _encode(text: str) -> bytes:
    """Return the frame of one notice. Nobody answers it, so it needs no number of its own."""
    return encode_command(Command(code=ROUTES_CHANGED, flag=ONE_WAY, fields={TOPICS_FIELD: text}))
