"""Notifies clients that routes they watch have changed: 105 with `watch`, 329, 7050, and the timer that sends 328.

    105 watch=true ─> watches ─┐
    329            ─> watches  │
    routes changed ────────────┴─> watchers whose view of the route changed ─> notices ─┬─> 328, oneway
    timer, once a second while a notice is pending; less often under load ──────────────┘

A notice only names the changed topics; the client then queries their routes. It is sent once and never repeated: the
clients' own polling is the fallback. Notices are sent a slice at a time, so that queries are answered in between.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from random import Random
from typing import Final

from holdfast.machine.component import Component
from holdfast.machine.events import ChannelId
from holdfast.machine.readings import Readings
from holdfast.machine.request import Answer, Handlers, Request
from holdfast.machine.sample import Sample
from holdfast.machine.turn import Turn
from holdfast.nameserver.notices import TICK_MS, ChangeCause, NoticeSchedule
from holdfast.nameserver.options import NameServerOptions
from holdfast.nameserver.push.push_pacing import LoadPace, Pace, choose_pace
from holdfast.nameserver.push.watches import Watches
from holdfast.nameserver.routes.unit_visibility import Viewer
from holdfast.wire.cluster.push_state import (
    PushState,
    ReportedLinkCapacity,
    ReportedReadings,
    encode_push_state,
    to_percent,
)
from holdfast.wire.cluster.watch import ROUTES_CHANGED, TOPICS_FIELD, UNWATCH, WatchedTopicsFields, split_topics
from holdfast.wire.frames.codes import RequestCode
from holdfast.wire.frames.command import ONE_WAY, Command, encode_command

TIMER: Final = "notify"
COALESCE_MS: Final = 200
"""How long the first change waits for more: a topic is created on one broker after the other."""
SLICE: Final = 256
"""Clients notified before other events have a turn; takes a few milliseconds."""
_INTERVAL: Final = "Seconds between notices of changed routes at the current pace; 0 while they are paused."
_READINGS: Final = {
    "memory": "Memory in use, in percent of the total; absent while unknown.",
    "load": "Runnable tasks per processor, in percent; absent while unknown.",
    "network": "Use of the busiest network interface; absent while its capacity is unknown.",
}


class RoutePush(Component):
    """Watches, and the notices sent to watching clients.

    Args:
        turn: The turn of the name server.
        options: Settings of the operator.
        random: Spreads notices that concern all clients.
        readings: Load of the machine, kept up to date by the caller.
        route_digest: Returns a number that changes when a viewer's route of a topic does.
    """

    def __init__(
        self,
        turn: Turn,
        options: NameServerOptions,
        random: Random,
        readings: Readings,
        route_digest: Callable[[str, Viewer], int],
    ) -> None:
        self._turn = turn
        self._broker_events = options.broker_events
        self._backs_off = options.notify_back_off
        self.readings = readings
        self.watches = Watches(
            route_digest, per_channel_max=options.watches_per_channel_max, total_max=options.watches_max
        )
        self.notices = NoticeSchedule(
            random,
            broker_events=options.broker_events,
            spread_ms=options.broker_event_spread_ms,
            rate_max=options.notify_rate_max,
        )
        self._is_ticking = False  # the timer is set
        self._ticked_ms: int | None = None  # when the last tick was
        self._round_ms: int | None = None  # when the last round of notices began
        self._logged_pace = Pace.FULL  # the pace that was logged last
        self._is_urgent = False  # a pending notice must be sent whatever the load

    def handlers(self) -> Handlers:
        """Return the request handlers by code."""
        return {UNWATCH: self._unwatch, RequestCode.GET_PUSH_STATE: self._report_state}

    def timers(self) -> Mapping[str, Callable[[], None]]:
        """Return the timer that sends notices."""
        return {TIMER: self._send_notices}

    def metrics(self) -> Iterator[Sample]:
        """Yield the numbers of watching clients and notices, and the readings that decide on the pace."""
        watches, notices = self.watches, self.notices
        yield Sample("namesrv_watching_clients", "gauge", "Connections that watch routes.", watches.channel_count)
        yield Sample("namesrv_watched_topics", "gauge", "Topics whose routes are watched.", watches.topic_count)
        yield Sample("namesrv_watches", "gauge", "Topics watched, counted for each connection.", len(watches))
        yield Sample("namesrv_notices_pending_clients", "gauge", "Clients with pending notices.", len(notices))
        yield Sample("namesrv_notices_sent", "counter", "Notices of changed routes sent.", notices.sent)
        interval_ms = self.load_pace.pace.interval_ms
        yield Sample("namesrv_notice_interval_seconds", "gauge", _INTERVAL, (interval_ms or 0) / 1000)
        readings = {name: getattr(self.readings, name) for name in _READINGS}
        known = {name: percent for name, percent in readings.items() if percent is not None}
        yield Sample("namesrv_readings_known", "gauge", "How many of memory, load and network are known.", len(known))
        for name, percent in known.items():
            yield Sample(f"namesrv_{name}_percent", "gauge", _READINGS[name], percent)

    @property
    def load_pace(self) -> LoadPace:
        """The current pace, and why it is not faster."""
        return choose_pace(self.readings) if self._backs_off else LoadPace(Pace.FULL)

    # Watches.

    def watch(self, channel: ChannelId, topic: str, viewer: Viewer) -> bool:
        """Notify *channel* of changes of *topic* from now on; return False if the client has to poll."""
        return self.watches.watch(channel, topic, viewer)

    def channel_closed(self, channel: ChannelId) -> None:
        """Forget a closed channel."""
        self.watches.channel_closed(channel)
        self.notices.channel_closed(channel)

    def _unwatch(self, request: Request) -> Answer:
        topics = split_topics(request.header_as(WatchedTopicsFields).topics)
        self.watches.unwatch(request.channel, topics)
        self.notices.cancel(request.channel, topics)
        return request.answer()

    def _report_state(self, request: Request) -> Answer:
        load_pace, readings, link = self.load_pace, self.readings, self.readings.link
        state = PushState(
            broker_events=self._broker_events,
            watching_clients=self.watches.channel_count,
            watched_topics=self.watches.topic_count,
            watches=len(self.watches),
            pending_clients=len(self.notices),
            notices_sent=self.notices.sent,
            pace=load_pace.pace.value,
            reason=load_pace.reason,
            readings=ReportedReadings(
                memory=to_percent(readings.memory), load=to_percent(readings.load), network=to_percent(readings.network)
            ),
            link_capacity=ReportedLinkCapacity(mbit=link.mbit, source=link.source) if link else ReportedLinkCapacity(),
        )
        return request.answer(body=encode_push_state(state))

    # Notices.

    def routes_changed(self, topics: Iterable[str], cause: ChangeCause, *, is_urgent: bool = False) -> None:
        """Schedule notices of the topics whose routes changed, for the clients that watch them.

        Args:
            topics: Topics whose routes may have changed.
            cause: Why.
            is_urgent: An operator handles an outage and waits for this: send it whatever the load.
        """
        if self.watches:
            self.notices.add(self.watches.find_changed(topics), cause)
            self._is_urgent = (self._is_urgent or is_urgent) and bool(len(self.notices))
            self._set_timer()

    def _send_notices(self) -> None:
        """Send one slice of the notices that are due; the rest follows after other events had a turn."""
        self._is_ticking = False
        if not self.notices.is_sending:
            self._ticked_ms = self._turn.now_ms
            self.notices.tick()
            load_pace = self.load_pace
            self._log_pace(load_pace)
            if self._is_urgent or self._is_round_due(load_pace.pace):
                self._round_ms = self._turn.now_ms
                self.notices.begin_round()
        frames: dict[str, bytes] = {}
        for channel, texts in self.notices.next_batch(SLICE):
            for text in texts:
                if text not in frames:
                    frames[text] = _encode(text)
            self._turn.send(channel, [frames[text] for text in texts])
        self._is_urgent = self._is_urgent and bool(len(self.notices))
        self._set_timer()

    def _is_round_due(self, pace: Pace) -> bool:
        interval_ms = pace.interval_ms
        if interval_ms is None:
            return False
        # At full pace, notices are sent at every tick.
        return pace is Pace.FULL or _remaining_ms(self._round_ms, interval_ms, self._turn.now_ms) == 0

    def _set_timer(self) -> None:
        """Set the timer, unless it is set or no notice is pending."""
        if self._is_ticking or not len(self.notices):
            return
        self._is_ticking = True
        now_ms = self._turn.now_ms
        wait_ms = 0 if self.notices.is_sending else max(COALESCE_MS, _remaining_ms(self._ticked_ms, TICK_MS, now_ms))
        self._turn.set_timer(TIMER, now_ms + wait_ms)

    def _log_pace(self, load_pace: LoadPace) -> None:
        """Log the pace if it changed since the last line."""
        if load_pace.pace is self._logged_pace:
            return
        self._logged_pace = load_pace.pace
        pending = len(self.notices)
        if load_pace.pace is Pace.FULL:
            self._turn.log("info", "route notices every second again", pending_clients=pending)
            return
        change = "paused" if load_pace.pace is Pace.PAUSED else "slowed to one in 10 s"
        self._turn.log("warning", f"route notices {change}", reason=load_pace.reason, pending_clients=pending)


def _remaining_ms(since_ms: int | None, interval_ms: int, now_ms: int) -> int:
    """Return how much of an interval is left; nothing if the clock was set back, so that notices are not delayed."""
    if since_ms is None or not 0 <= now_ms - since_ms < interval_ms:
        return 0
    return since_ms + interval_ms - now_ms


def _encode(text: str) -> bytes:
    """Return the frame of one notice. It is one-way, so it needs no unique opaque."""
    return encode_command(Command(code=ROUTES_CHANGED, flag=ONE_WAY, fields={TOPICS_FIELD: text}))
