"""Moving queues under load: ours beside Java's remap, 1 000 queues off a broker, and static topics at rest.

    two brokers ─> static topic, half of its queues on each ─> load ─> the operator's command ─> all on one broker

8 ordered producers, each with one queue and one send of 1 KiB in flight, and one ordered consumer, all in one process
that records every acknowledgement. The commands are the operators' tools, `holdfast topic move` and `mqadmin
remappingStaticTopic`: processes whose start counts. Our cluster is loaded with the Java client and with our own.
Another measurement compares a static topic with a normal one while nothing moves.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Literal

import msgspec
from benchmarks.move_ledger import MoveTotals, OperatorCommand, compute_totals, percentile, read_rows
from benchmarks.programs import SOURCES, BenchmarkFailed
from benchmarks.remoting import Remote
from benchmarks.servers import JAVA_VERSION, Kind, Server, ServerFleet
from benchmarks.static_cost import RATIO_MAX, Cost, measure_static_cost
from tests.support import java_peer
from tests.support.child import Child, ChildFailed
from tests.support.cluster.operator import HoldfastCommand

Client = Literal["holdfast", "java"]

TOPIC: Final = "Moved"
MANY_TOPIC: Final = "Many"
BROKERS: Final = ("broker-a", "broker-b")
KEYS: Final = 8
MANY: Final = 1000
TIMEOUT_S: Final = 180.0
PAUSE_P99_MS_MAX: Final[dict[Client, float]] = {"holdfast": 100.0, "java": 1000.0}
DRAIN_SECONDS_MAX: Final = 30.0
MQADMIN: Final = "org.apache.rocketmq.tools.command.MQAdminStartup"


class MovePace(msgspec.Struct, frozen=True, kw_only=True):
    """The durations of the parts of a trial, and how often our cluster moves: each move gives four pauses."""

    warm_s: float = 10.0
    calm_s: float = 8.0
    our_moves: int = 6
    java_moves: int = 3


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """One cluster under the load of one client, and the result."""

    servers: Kind
    client: Client
    account: MoveTotals

    @property
    def pause_p99_ms(self) -> float:
        """The pause that 99 of 100 moved queues do not exceed."""
        return percentile(self.account.pauses_ms, 0.99)


class MoveLimit(msgspec.Struct, frozen=True, kw_only=True):
    """A target for our servers."""

    what: str
    measured: float
    wanted: float
    unit: str
    reached: bool


class MoveFindings(msgspec.Struct, frozen=True, kw_only=True):
    """All results of this part.

    Attributes:
        drain: Under the load of our client: all of a broker's queues moved off it.
    """

    trials: list[Trial]
    drain: Trial
    costs: list[Cost]

    @property
    def targets(self) -> list[MoveLimit]:
        """The targets, each with the measured figure."""
        ours = [trial for trial in self.trials if trial.servers == "holdfast"]
        pauses = [
            _at_most(f"pause p99, {trial.client} client", trial.pause_p99_ms, PAUSE_P99_MS_MAX[trial.client], "ms")
            for trial in ours
        ]
        noticed = [
            _at_most(f"failed, lost, repeated, late, holes: {name}", _count_wrong(trial.account), 0, "")
            for name, trial in [*((f"{trial.client} client", trial) for trial in ours), ("drain", self.drain)]
        ]
        drain = _at_most(f"{MANY:,} queues off a broker", self.drain.account.commands_s[0], DRAIN_SECONDS_MAX, "s")
        costs = [_at_most(f"static / normal, {cost.work}", cost.ratio, RATIO_MAX, "x") for cost in self.costs]
        return [*pauses, *noticed, drain, *costs]


def _at_most(what: str, measured: float, wanted: float, unit: str) -> MoveLimit:
    return MoveLimit(what=what, measured=measured, wanted=wanted, unit=unit, reached=measured <= wanted)


def _count_wrong(totals: MoveTotals) -> int:
    return totals.failed + totals.lost + totals.repeated + totals.out_of_order + totals.holes


class MoveBench:
    """Measures moves."""

    def __init__(self, fleet: ServerFleet, folder: Path, log: Callable[[str], None], pace: MovePace) -> None:
        self._fleet = fleet
        self._folder = folder
        self._log = log
        self._pace = pace
        self._peer = java_peer.fetch(JAVA_VERSION, SOURCES / "java")
        self._client_count = 0

    def measure(self) -> MoveFindings:
        """Measure everything. Clusters run one after the other, because two of them would share the processor."""
        costs = measure_static_cost(self._folder / "static-cost")
        for cost in costs:
            self._log(f"   {cost.work}: {cost.normal_ns:,.0f} ns, static {cost.static_ns:,.0f} ns, {cost.ratio:.3f}")
        clients: list[tuple[Kind, Client]] = [("holdfast", "holdfast"), ("holdfast", "java"), ("java", "java")]
        trials = [self._with_cluster(kind, client, self._move) for kind, client in clients]
        return MoveFindings(trials=trials, drain=self._with_cluster("holdfast", "holdfast", self._drain), costs=costs)

    def _with_cluster(
        self, kind: Kind, client: Client, measure: Callable[[Server, Kind, Client], MoveTotals]
    ) -> Trial:  # fmt: skip
        fleet = self._fleet
        name_server = fleet.start_java_name_server() if kind == "java" else fleet.start_holdfast_name_server()
        start = fleet.start_java if kind == "java" else fleet.start_holdfast
        brokers = [start(name_server, "async", name=name) for name in BROKERS]
        trial = Trial(servers=kind, client=client, account=measure(name_server, kind, client))
        totals = trial.account
        self._log(
            f"   {kind} servers, {client} client: pause p99 {trial.pause_p99_ms:,.0f} ms, failed {totals.failed}, lost "
            f"{totals.lost}, repeated {totals.repeated}, late {totals.out_of_order}, holes {totals.holes}, "
            f"commands {', '.join(f'{each:.1f}' for each in totals.commands_s)} s"
        )
        for server in (*brokers, name_server):
            fleet.stop(server)
        return trial

    def _move(self, name_server: Server, kind: Kind, client: Client) -> MoveTotals:
        all_brokers, last_broker = ",".join(BROKERS), BROKERS[1]
        count = self._pace.java_moves if kind == "java" else self._pace.our_moves
        targets = [all_brokers if number % 2 else last_broker for number in range(count)]
        if kind == "java":
            self._mqadmin(name_server, "updateStaticTopic", "-t", TOPIC, "-qn", str(KEYS), "-b", all_brokers)
            moves = [["remappingStaticTopic", "-t", TOPIC, "-b", target] for target in targets]
            return self._load(name_server, client, TOPIC, moves, self._mqadmin)
        self._holdfast(name_server, "topic", "create", TOPIC, "--logical-queues", str(KEYS), "--brokers", all_brokers)
        moves = [["topic", "move", TOPIC, "--to", target, "--yes"] for target in targets]
        return self._load(name_server, client, TOPIC, moves, self._holdfast)

    def _drain(self, name_server: Server, kind: Kind, client: Client) -> MoveTotals:
        assert kind == "holdfast"
        words = ["topic", "create", MANY_TOPIC, "--logical-queues", str(MANY), "--brokers", BROKERS[0]]
        self._holdfast(name_server, *words)
        totals = self._load(name_server, client, MANY_TOPIC, [["broker", "drain", BROKERS[0]]], self._holdfast)
        leaders = asyncio.run(HoldfastCommand(name_server.name_server).leaders(MANY_TOPIC))
        if len(leaders) != MANY or set(leaders.values()) != {BROKERS[1]}:
            raise BenchmarkFailed(f"the drain ended, but these brokers lead {MANY_TOPIC}: {Counter(leaders.values())}")
        return totals

    def _load(
        self,
        name_server: Server,
        client: Client,
        topic: str,
        commands: Sequence[Sequence[str]],
        run_command: Callable[..., None],
    ) -> MoveTotals:
        """Run *commands* under load; return the totals."""
        _await_route(name_server, topic)
        file = self._client_folder() / "rows"
        with self._start_client(client, [name_server.name_server, topic, str(KEYS), str(file)]) as load:
            _command(load, "flow", "flowing")
            time.sleep(self._pace.warm_s)
            since = time.time()
            time.sleep(self._pace.calm_s)
            commands_run = []
            for arguments in commands:
                began = time.time()
                run_command(name_server, *arguments)
                commands_run.append(OperatorCommand(began=began, ended=time.time()))
                _command(load, "flow", "flowing")
            time.sleep(self._pace.calm_s)
            until = time.time()
            _command(load, "stop", "written")
        with file.open(encoding="utf-8") as lines:
            return compute_totals(read_rows(lines), commands_run, since=since, until=until)

    def _start_client(self, client: Client, arguments: Sequence[str]) -> Child:
        if client == "java":
            return self._peer.start_program("MoveLoad", arguments, home=self._client_folder())
        return Child(
            [sys.executable, "-m", "benchmarks.move_load", *arguments], name="our client", folder=SOURCES.parent
        )

    def _client_folder(self) -> Path:
        self._client_count += 1
        home = self._folder / f"client-{self._client_count}"
        home.mkdir(parents=True)
        return home

    def _mqadmin(self, name_server: Server, *arguments: str) -> None:
        child = self._peer.start_program(
            MQADMIN, [*arguments, "-n", name_server.name_server], home=self._client_folder()
        )
        child.wait(timeout_s=TIMEOUT_S)
        if "Exception" in child.last_lines():  # Its exit status is 0 even after a failure.
            raise BenchmarkFailed(f"mqadmin {' '.join(arguments)}:\n{child.last_lines()}")

    def _holdfast(self, name_server: Server, *arguments: str) -> None:
        program = str(Path(sys.executable).with_name("holdfast"))
        command = [program, *arguments, "--namesrv", name_server.name_server, "--json"]
        done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
        if done.returncode != 0:
            raise BenchmarkFailed(f"holdfast {' '.join(arguments)}:\n{done.stdout}{done.stderr}")


def _command(load: Child, word: str, answer: str) -> None:
    line_count = len(load.lines())
    load.write_line(word)
    try:
        load.wait_for_line(f"^{answer}$", timeout_s=TIMEOUT_S, after=line_count)
    except ChildFailed as error:
        raise BenchmarkFailed(str(error)) from error


def _await_route(name_server: Server, topic: str) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    with Remote(name_server.port) as remote:
        while not remote.has_route(topic):
            if time.monotonic() > deadline:
                raise BenchmarkFailed(f"timed out while waiting for the route of {topic}")
            time.sleep(0.05)  # poll: a name server does not push new topics
