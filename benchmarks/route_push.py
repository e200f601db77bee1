"""Route push, the name server alone: how soon clients learn of a change, and its cost for other clients.

    fake broker ─ 103, one topic changed ─> name server ─ 328 ─> watchers (one process, thousands of sockets) ─ 105 ─>

    watching    1, 1 000 and 10 000 clients: change to notice, to new route; memory of the name server
    death       a broker with 10 000 topics, watched by 1 000 clients, dies while others query routes
    missing     our producer sends to a topic that does not exist, without a pause
    queries     ours beside Java's, and ours again with the 10 000 clients connected

Name servers do not back off here (`notify_back_off=false`): measuring loads the machine, and on two cores that alone
would make them send fewer notices. Everything else is default.
"""

from __future__ import annotations

import functools
import itertools
import os
import resource
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, Self

import msgspec
from benchmarks.cells import HOT_FOUR, Cell, route_cells
from benchmarks.load import Load, LoadResult
from benchmarks.measure import Bench, CellResult
from benchmarks.preparation import warm_name_server
from benchmarks.process_cost import memory, wait_until_quiet
from benchmarks.programs import SOURCES, BenchmarkFailed
from benchmarks.push_findings import (
    BrokerDeath,
    MissingLoop,
    PushFindings,
    QueryFigures,
    WatchFigures,
    most_within,
    summarize_times,
)
from benchmarks.remoting import Remote
from benchmarks.servers import Kind, Server, ServerFleet
from benchmarks.watchers import COMMON_TOPIC, NOTICE_TIMEOUT_S, TICK_TOPIC, NoticeTimes, pool_topic
from tests.support.child import Child, ChildFailed

from holdfast.model.topic import TopicConfig
from holdfast.nameserver.options import NameServerOptions
from holdfast.nameserver.push.route_push import COALESCE_MS
from holdfast.wire.cluster.registration import DataVersion, Registration, Topics, encode_registration
from holdfast.wire.frames.codes import RequestCode

CLIENTS: Final = (1, 1_000, 10_000)
TOPICS_EACH: Final = 10
POOL: Final = 1_000
DEATH_TOPICS: Final = 10_000
DEATH_CLIENTS: Final = 1_000
DEATH_TOPICS_EACH: Final = (10, 100)
DEATH_LOAD: Final = Load(mode="route", topic=HOT_FOUR, connections=4, in_flight=1)
QUEUES: Final = 4
REST_S: Final = 1.2  # longer than a tick: the next change starts a new one
SPARE_DESCRIPTORS: Final = 200
LEASE_MS: Final = 3_600_000  # a fake broker sends no heartbeats
TIMEOUT_S: Final = 120.0
BACK_OFF_DISABLED: Final = ("--set", "notify_back_off=false")
WATCHED_GROUP: Final = "route query, 10 000 watchers connected"
DEFAULTS: Final = NameServerOptions()


class PushPace(msgspec.Struct, frozen=True, kw_only=True):
    """The number and duration of the measurements."""

    changes: int = 10
    rests: int = 4
    missing_s: float = 65.0
    rounds: int = 3
    seconds: float = 3.0
    java_warm_s: float = 10.0


class FakeBroker:
    """A broker as the name server sees it: a connection that registers topics."""

    def __init__(self, name_server: Server, name: str) -> None:
        self._name = name
        self._remote = Remote(name_server.port)
        self._versions = itertools.count(1)
        self._permissions = itertools.cycle((4, 6))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.die()

    def die(self) -> None:
        """Close the connection."""
        self._remote.__exit__()

    def next_permission(self) -> int:
        """Return a permission that differs from the previous one."""
        return next(self._permissions)

    def register(self, topics: Iterable[str], *, permission: int = 6) -> None:
        """Register *topics*; earlier ones stay registered.

        Raises:
            BenchmarkFailed: The name server refused.
        """
        body = Registration(
            topic_config_serialize_wrapper=Topics(
                topic_config_table={
                    topic: TopicConfig(name=topic, read_queues=QUEUES, write_queues=QUEUES, permission=permission)
                    for topic in topics
                },
                data_version=DataVersion(timestamp=time.time_ns() // 1_000_000, counter=next(self._versions)),
            )
        )
        fields = {
            "brokerName": self._name, "brokerAddr": f"{self._name}:10911", "clusterName": "DefaultCluster",
            "haServerAddr": "", "brokerId": 0, "heartbeatTimeoutMillis": LEASE_MS, "compressed": False, "bodyCrc32": 0,
        }  # fmt: skip
        reply = self._remote.request(RequestCode.REGISTER_BROKER, fields, encode_registration(body))
        if reply.code != 0:
            raise BenchmarkFailed(f"broker {self._name} was refused: {reply.code} {reply.remark}")


class WatcherProcess:
    """The process with the simulated clients."""

    def __init__(self, name_server: Server, clients: int, each: int, pool: int) -> None:
        self.clients = clients
        arguments = [str(number) for number in (name_server.port, clients, each, pool)]
        command = [sys.executable, "-m", "benchmarks.watchers", *arguments]
        self._child = Child(command, name="watchers", folder=SOURCES.parent)
        self._await("^ready$", 0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._child.kill()

    def measure_notices(self, action: Callable[[], None], text: str = "") -> tuple[float, NoticeTimes]:
        """Do something that notifies all clients; return when it began, and the notices that arrived.

        *text* is in the body of every new route, and in no old one.
        """
        line_count = len(self._child.lines())
        self._child.write_line(f"expect {self.clients} {text}")
        self._await("^expecting$", line_count)
        began = time.monotonic()
        action()
        return began, msgspec.json.decode(self._await("^{", line_count), type=NoticeTimes)

    def _await(self, pattern: str, after: int) -> str:
        try:
            return self._child.wait_for_line(pattern, timeout_s=NOTICE_TIMEOUT_S + TIMEOUT_S, after=after)
        except ChildFailed as error:
            self._child.kill()
            raise BenchmarkFailed(str(error)) from error


class PushBench:
    """Measures route push."""

    def __init__(self, fleet: ServerFleet, bench: Bench, log: Callable[[str], None], pace: PushPace) -> None:
        self._fleet = fleet
        self._bench = bench
        self._log = log
        self._pace = pace

    def measure(self) -> PushFindings:
        """Measure everything, one after the other.

        Raises:
            BenchmarkFailed: The limit of open files is too low, or the name server does not push.
        """
        _check_descriptors()
        load = os.getloadavg()[0]
        watching = [self._measure_watching(clients) for clients in CLIENTS[:-1]]
        deaths = [self._measure_death(each) for each in DEATH_TOPICS_EACH]
        missing = self._measure_missing_topic()
        own_mb = self._measure_memory(CLIENTS[-1])
        most, cells = self._measure_queries(CLIENTS[-1])
        return PushFindings(
            watching=[*watching, most], own_topics_mb=own_mb, deaths=deaths, missing=missing, cells=cells, load=load
        )

    def _start(self) -> Server:
        return self._fleet.start_holdfast_name_server(BACK_OFF_DISABLED)

    # Changes.

    def _measure_watching(self, count: int) -> WatchFigures:
        server = self._start()
        with FakeBroker(server, "broker-a") as broker:
            _register_pool(broker)
            before_mb = memory(server.pid).anonymous_mb
            with WatcherProcess(server, count, TOPICS_EACH, POOL) as clients:
                figures = self._measure_changes(server, broker, clients, before_mb)
        self._fleet.stop(server)
        return figures

    def _measure_changes(
        self, server: Server, broker: FakeBroker, clients: WatcherProcess, before_mb: float
    ) -> WatchFigures:
        count, rests = self._pace.changes, self._pace.rests
        # A tick is followed by a second without any: spread some changes over it, and let the others follow a rest.
        notice_ms, route_ms = _time_changes(broker, clients, [(number + 0.5) / count for number in range(count)])
        rested_ms, rested_route_ms = _time_changes(broker, clients, [None] * rests)
        expected = (count + rests) * clients.clients
        figures = WatchFigures(
            clients=clients.clients,
            topics_each=TOPICS_EACH,
            changes=count,
            told=summarize_times(notice_ms),
            pulled=summarize_times(route_ms),
            rested=summarize_times(rested_ms),
            untold=2 * expected - len(notice_ms) - len(route_ms) - len(rested_ms) - len(rested_route_ms),
            anonymous_before_mb=before_mb,
            anonymous_mb=memory(server.pid).anonymous_mb,
        )
        self._log(
            f"   {figures.clients:>6,} clients: notice p50 {figures.told.p50_ms:,.0f} ms, p99 "
            f"{figures.told.p99_ms:,.0f} ms; "
            f"new route p99 {figures.pulled.p99_ms:,.0f} ms; after a rest p99 {figures.rested.p99_ms:,.0f} ms; missed "
            f"{figures.untold}; RssAnon {figures.anonymous_mb:.0f} MB (before {before_mb:.0f})"
        )
        return figures

    def _measure_memory(self, count: int) -> float:
        """Return the memory of a name server whose clients have no watched topic in common."""
        server = self._start()
        with WatcherProcess(server, count, TOPICS_EACH, count * (TOPICS_EACH - 2)):
            anonymous_mb = memory(server.pid).anonymous_mb
        self._fleet.stop(server)
        self._log(f"   {count:,} clients without a common topic: RssAnon {anonymous_mb:.0f} MB")
        return anonymous_mb

    # A death.

    def _measure_death(self, topics_each: int) -> BrokerDeath:
        server = self._start()
        spread_s = DEFAULTS.broker_event_spread_ms / 1000
        with FakeBroker(server, "broker-a") as surviving, FakeBroker(server, "broker-b") as dying:
            surviving.register([HOT_FOUR, "Other"])
            dying.register([COMMON_TOPIC, TICK_TOPIC, *map(pool_topic, range(DEATH_TOPICS - 2))])
            with (
                WatcherProcess(server, DEATH_CLIENTS, topics_each, DEATH_TOPICS - 2) as clients,
                ThreadPoolExecutor(1) as executor,
            ):
                wait_until_quiet(server.pid)
                load = msgspec.structs.replace(DEATH_LOAD, seconds=spread_s + 3)
                before = self._bench.load(server, load)
                querying = executor.submit(self._bench.load, server, load)
                time.sleep(1)  # The reading shall include a second of calm before the death.
                began, notices = clients.measure_notices(dying.die)
                meanwhile = querying.result()
        self._fleet.stop(server)
        figures = BrokerDeath(
            topics=DEATH_TOPICS,
            clients=DEATH_CLIENTS,
            topics_each=topics_each,
            spread_ms=DEFAULTS.broker_event_spread_ms,
            rate_max=DEFAULTS.notify_rate_max,
            told=summarize_times([(moment - began) * 1000 for moment in notices.told]),
            pulled=summarize_times([(moment - began) * 1000 for moment in notices.pulled]),
            pulls=notices.pulls,
            untold=2 * DEATH_CLIENTS - len(notices.told) - len(notices.pulled),
            frames_per_s=most_within(notices.frames, 1.0),
            before=_queries(before),
            meanwhile=_queries(meanwhile),
        )
        self._log(
            f"   a broker dies, {topics_each} topics a client: notice p50 {figures.told.p50_ms:,.0f} ms, longest "
            f"{figures.told.max_ms:,.0f} ms, at most {figures.frames_per_s:,} notices/s; queries p99 "
            f"{figures.meanwhile.p99_us:,.0f} us, longest {figures.meanwhile.max_us:,.0f} us, before "
            f"{figures.before.p99_us:,.0f} and {figures.before.max_us:,.0f} us"
        )
        return figures

    # A missing topic.

    def _measure_missing_topic(self) -> MissingLoop:
        server = self._start()
        arguments = [server.name_server, str(self._pace.missing_s)]
        command = [sys.executable, "-m", "benchmarks.missing_loop", *arguments]
        with Child(command, name="missing loop", folder=SOURCES.parent) as child:
            try:
                line = child.wait_for_line("^{", timeout_s=self._pace.missing_s + TIMEOUT_S)
            except ChildFailed as error:
                raise BenchmarkFailed(str(error)) from error
        self._fleet.stop(server)
        figures = msgspec.json.decode(line, type=MissingLoop)
        self._log(
            f"   missing topic: {figures.calls:,} sends in {figures.seconds:.0f} s, lookups at "
            f"{', '.join(f'{moment:.1f}' for moment in figures.lookups_s)} s"
        )
        return figures

    # Queries.

    def _measure_queries(self, count: int) -> tuple[WatchFigures, list[CellResult]]:
        """Measure changes with the most clients, and keep these connected for the queries."""
        server = self._start()
        with FakeBroker(server, "broker-a") as broker:
            _register_pool(broker)
            before_mb = memory(server.pid).anonymous_mb
            with WatcherProcess(server, count, TOPICS_EACH, POOL) as clients:
                figures = self._measure_changes(server, broker, clients, before_mb)
                cells = self._query(server)
        self._fleet.stop(server)
        return figures, cells

    def _query(self, watched_server: Server) -> list[CellResult]:
        pace, plain, java = self._pace, self._start(), self._fleet.start_java_name_server()
        with FakeBroker(plain, "broker-a") as plain_broker, FakeBroker(java, "broker-a") as java_broker:
            _register_pool(plain_broker)
            _register_pool(java_broker)
            for server in (watched_server, plain, java):
                seconds = pace.java_warm_s if server is java else 1.0
                warm_name_server(self._bench, server, topic=HOT_FOUR, seconds=seconds)
            servers: dict[tuple[Kind, str], Server] = {
                ("holdfast", "namesrv"): plain,
                ("holdfast", "watched"): watched_server,
                ("java", "namesrv"): java,
                ("java", "watched"): java,
            }
            cells = self._bench.run_rounds(push_cells(pace.seconds), servers, rounds=pace.rounds)
        for server in (plain, java):
            self._fleet.stop(server)
        return cells


def push_cells(seconds: float) -> list[Cell]:
    """Return the route queries, and the same once more for a name server of ours that has watchers."""
    plain = [
        msgspec.structs.replace(cell, load=msgspec.structs.replace(cell.load, seconds=seconds))
        for cell in route_cells()
    ]
    return [*plain, *(msgspec.structs.replace(cell, group=WATCHED_GROUP, role="watched") for cell in plain)]


def _time_changes(
    broker: FakeBroker, clients: WatcherProcess, delays_s: Iterable[float | None]
) -> tuple[list[float], list[float]]:
    """Change the common topic at given times after a tick, or after a rest; return each client's waits.

    A change of another topic starts the tick. Its notices, and the queries that follow them, are then in flight.
    """
    notice_ms: list[float] = []
    route_ms: list[float] = []
    for delay_s in delays_s:
        time.sleep(REST_S)
        permission = broker.next_permission()
        if delay_s is not None:
            broker.register([TICK_TOPIC], permission=permission)
            time.sleep(COALESCE_MS / 1000 + delay_s)
        began, notices = clients.measure_notices(
            functools.partial(broker.register, [COMMON_TOPIC], permission=permission), f'"perm":{permission}'
        )
        notice_ms += [(moment - began) * 1000 for moment in notices.told]
        route_ms += [(moment - began) * 1000 for moment in notices.pulled]
    return notice_ms, route_ms


def _register_pool(broker: FakeBroker) -> None:
    broker.register([HOT_FOUR, COMMON_TOPIC, TICK_TOPIC, *map(pool_topic, range(POOL))])


def _queries(result: LoadResult) -> QueryFigures:
    return QueryFigures(per_s=result.requests_per_s, p50_us=result.p50_us, p99_us=result.p99_us, max_us=result.max_us)


def _check_descriptors() -> None:
    """Check the limit of open files.

    The name server needs one for each client, and so does the process of the clients; both inherit our limit.
    """
    needed = CLIENTS[-1] + SPARE_DESCRIPTORS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < needed:
        raise BenchmarkFailed(f"{CLIENTS[-1]:,} clients need {needed:,} open files, {hard:,} are allowed: ulimit -Hn")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, needed), hard))
