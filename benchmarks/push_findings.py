"""The results of the route push part, the sums they come from, and the targets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
from benchmarks.judgement import find_verdicts
from benchmarks.measure import CellResult
from benchmarks.move_ledger import percentile
from benchmarks.targets import Target

NOTICE_P99_MS_MAX: Final = 1_500.0
ANONYMOUS_MB_MAX: Final = 100.0
LOOKUPS_MAX: Final = 1
SLACK_S: Final = 0.05


class WaitTimes(msgspec.Struct, frozen=True, kw_only=True):
    """The durations of one kind of wait, in milliseconds."""

    count: int
    p50_ms: float
    p99_ms: float
    max_ms: float


def summarize_times(times_ms: Sequence[float]) -> WaitTimes:
    """Return the statistics of *times_ms*."""
    return WaitTimes(
        count=len(times_ms),
        p50_ms=percentile(times_ms, 0.5),
        p99_ms=percentile(times_ms, 0.99),
        max_ms=max(times_ms, default=0.0),
    )


def most_within(moments_s: Sequence[float], window_s: float) -> int:
    """Return the largest number of *moments_s* in any window of that length; the end of a window is exclusive."""
    ordered = sorted(moments_s)
    first = most = 0
    for last, moment in enumerate(ordered):
        while moment - ordered[first] >= window_s:
            first += 1
        most = max(most, last - first + 1)
    return most


class WatchFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Changes of a topic that all clients watch.

    Attributes:
        told: From sending the change to the notice, for every client and change. Changes are spread evenly after a
            tick.
        pulled: From sending the change to the new route.
        rested: As `told`, for changes after more than a second without notices.
        untold: Clients that had not received the notice, or the new route, when the time was over.
        anonymous_mb: Memory of the name server with all clients connected, after the changes.
        anonymous_before_mb: Memory of the name server before the first client connected.
    """

    clients: int
    topics_each: int
    changes: int
    told: WaitTimes
    pulled: WaitTimes
    rested: WaitTimes
    untold: int
    anonymous_before_mb: float
    anonymous_mb: float


class QueryFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Route queries over some seconds."""

    per_s: float
    p50_us: float
    p99_us: float
    max_us: float


class BrokerDeath(msgspec.Struct, frozen=True, kw_only=True):
    """A broker with many topics dies while clients watch them.

    Attributes:
        told: From the end of the broker's connection to the notice, for every client.
        pulled: Until the last of the client's routes, all of which it requests again.
        pulls: The number of these requests.
        frames_per_s: The most notices within a second.
        before: Queries of other clients in the seconds before.
        meanwhile: Queries of other clients from a second before the death until a while after the last notice.
    """

    topics: int
    clients: int
    topics_each: int
    spread_ms: int
    rate_max: int
    told: WaitTimes
    pulled: WaitTimes
    pulls: int
    untold: int
    frames_per_s: int
    before: QueryFigures
    meanwhile: QueryFigures

    @property
    def targets(self) -> list[Target]:
        """The targets, each with the measured figure."""
        what = f"a broker dies, {self.topics_each} topics a client"
        return [
            Target(what=f"{what}: longest wait", measured=self.told.max_ms, wanted=self.spread_ms, unit="ms"),
            Target(what=f"{what}: notices within a second", measured=self.frames_per_s, wanted=self.rate_max),
        ]


class MissingLoop(msgspec.Struct, frozen=True, kw_only=True):
    """Sends to a topic that does not exist, as fast as our producer refuses them.

    Attributes:
        lookups_s: When the producer asked the name server for the topic, from the first send on.
        template_lookups_s: When it asked for the template topic, whose route says whether brokers create topics
            automatically.
    """

    seconds: float
    poll_s: float
    tasks: int
    calls: int
    lookups_s: list[float]
    template_lookups_s: list[float]

    @property
    def lookups_per_poll(self) -> int:
        """The most queries for the topic within a poll interval, with a tolerance for clocks and relays."""
        return most_within(self.lookups_s, self.poll_s - SLACK_S)


class PushFindings(msgspec.Struct, frozen=True, kw_only=True):
    """All results of this part.

    Attributes:
        watching: By the number of clients, the most at the end.
        own_topics_mb: Memory of a name server with the most clients, when no two clients watch a common topic.
        deaths: By the number of topics that each client watches.
        cells: Route queries beside Java's name server, without and with watchers connected to ours.
        load: The load average before the run.
    """

    watching: list[WatchFigures]
    own_topics_mb: float
    deaths: list[BrokerDeath]
    missing: MissingLoop
    cells: list[CellResult]
    load: float

    @property
    def targets(self) -> list[Target]:
        """The targets, each with the measured figure."""
        most = self.watching[-1]
        clients = f"{most.clients:,} clients"
        missed = sum(each.untold for each in (*self.watching, *self.deaths))
        return [
            Target(
                what=f"change to client, p99, {clients}", measured=most.told.p99_ms, wanted=NOTICE_P99_MS_MAX, unit="ms"
            ),
            Target(
                what=f"RssAnon, {clients} x {most.topics_each} topics",
                measured=most.anonymous_mb,
                wanted=ANONYMOUS_MB_MAX,
                unit="MB",
            ),
            Target(
                what="the same, no topic in common", measured=self.own_topics_mb, wanted=ANONYMOUS_MB_MAX, unit="MB"
            ),
            Target(what="notices that never came", measured=missed, wanted=0),
            *(target for death in self.deaths for target in death.targets),
            Target(
                what="lookups of a missing topic in a poll interval",
                measured=self.missing.lookups_per_poll,
                wanted=LOOKUPS_MAX,
            ),
            *(
                Target(
                    what=f"{verdict.cell}, ours / {verdict.baseline}",
                    measured=verdict.ratio,
                    wanted=verdict.wanted,
                    is_least=True,
                )
                for verdict in find_verdicts(self.cells)
            ),
        ]
