"""Run one seed, from an empty world to a verdict.

start ─> topics ─> clients join ─> storm: messages, moves and faults ─> all faults healed ─> every move is done or
          cancelled ─> all messages acknowledged and consumed ─> units are closed ─> routes are true ─> a probe of
          every queue ─> the audit of every queue ─> key lookups ─> an intruder is refused ─> one broker dies for good
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Final

import msgspec

from holdfast.model.topic import dead_letter_topic
from holdfast.sim.actors.admin import Auditor, TopicMaker
from holdfast.sim.actors.intruder import Intruder
from holdfast.sim.actors.operator import Repairer
from holdfast.sim.actors.probe import Prober
from holdfast.sim.actors.search import Searcher
from holdfast.sim.actors.survey import Surveyor
from holdfast.sim.actors.switcher import Closer
from holdfast.sim.checkers.unit_isolation import find_difference
from holdfast.sim.cluster import BROKER_TIMEOUT_MS, SimCluster
from holdfast.sim.nemesis import Nemesis
from holdfast.sim.site import CONCURRENT_GROUP, Site
from holdfast.sim.world.plan import RunPlan, draw_plan
from holdfast.sim.world.trace import Trace
from holdfast.sim.world.workload import ORDERED_TOPIC, PLAIN_TOPIC
from holdfast.sim.world.world import Violation, World

_START_MS: Final = 20_000
_JOIN_MS: Final = 12_000
_CONSUME_MAX_MS: Final = 400_000
_QUIET_MS: Final = 25_000
_MOVES_MAX_MS: Final = 120_000
_PROBE_MS: Final = 4_000
_AUDIT_MS: Final = 60_000
_INTRUSION_MS: Final = 20_000
_SURVEYS: Final = 6


class OutOfSteps(Exception):
    """The run has reached its step limit."""


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a run.

    Attributes:
        violation: The broken promise; None if every promise held.
        detail: The traceback if our own code raised an exception.
    """

    seed: int
    plan: RunPlan
    violation: str | None
    detail: str | None
    messages: int
    consumed: int
    redelivered: int
    moves: int
    crashes: int
    restarts: int
    faults: int
    steps: int
    seconds: int
    digest: str
    tail: list[str]

    def line(self) -> str:
        """Return the verdict as one line of fixed columns."""
        return (
            f"seed {self.seed:>8}  {'ok  ' if self.violation is None else 'FAIL'}  {self.plan.flush:<5} "
            f"messages {self.messages:>5}  consumed {self.consumed:>5}  redelivered {self.redelivered:>4}  "
            f"moves {self.moves:>3}  "
            f"faults {self.faults:>3}  crashes {self.crashes:>3}  restarts {self.restarts:>3}  steps {self.steps:>7}  "
            f"{self.seconds:>4} s  {self.digest[:12]}{f'  {self.violation}' if self.violation else ''}"
        )


def run_seed(
    seed: int, *, plan: RunPlan | None = None, steps_max: int | None = None, show: Callable[[str], None] | None = None
) -> Verdict:
    """Run *seed* and return its verdict; every run of a seed is identical.

    Args:
        seed: Decides everything.
        plan: Replaces the plan that the seed would draw for the cluster and the faults.
        steps_max: Ends the run after this many steps. The verdict then covers only these steps.
        show: Receives every line of the trace.
    """
    world = World(seed, Trace(show))
    plan = plan or draw_plan(world.rng("plan"))
    cluster = SimCluster(world, plan)
    nemesis = Nemesis(cluster)
    violation = detail = None
    if steps_max is not None:
        world.checks.append(_step_limit_check(world, steps_max))
    try:
        _Run(world, cluster, nemesis).run()
    except OutOfSteps:
        pass
    except Violation as broken:
        violation = str(broken)
    except Exception as error:  # noqa: BLE001 - any exception here is the finding
        violation = f"a machine raised an exception: {type(error).__name__}: {error}"
        detail = traceback.format_exc()
    return Verdict(
        seed=seed,
        plan=plan,
        violation=violation,
        detail=detail,
        messages=len(cluster.ledger.acks),
        consumed=cluster.progress_checker.consumed_count,
        redelivered=cluster.progress_checker.redelivered,
        moves=sum(site.leader_checker.count_moves() for site in cluster.sites) + nemesis.forced_count,
        crashes=sum(nemesis.counts[kind] for kind in ("kill", "power", "relapse", "name server", "client")),
        restarts=sum(max(0, node.start_count - 1) for node in cluster.nodes),
        faults=nemesis.counts.total(),
        steps=world.trace.step,
        seconds=world.elapsed_ms // 1000,
        digest=world.trace.digest(),
        tail=list(world.trace.tail),
    )


def _step_limit_check(world: World, steps_max: int) -> Callable[[], None]:
    def check() -> None:
        if world.trace.step >= steps_max:
            raise OutOfSteps

    return check


class _Run:
    """The phases of a run."""

    def __init__(self, world: World, cluster: SimCluster, nemesis: Nemesis) -> None:
        self._world = world
        self._cluster = cluster
        self._nemesis = nemesis

    def run(self) -> None:
        """Run all phases in order."""
        self._start_cluster()
        self._storm()
        self._await_moves()
        self._await_consumption()
        self._close_units()
        surveyors = self._survey()
        self._probe()
        self._audit()
        self._search()
        self._intrude()
        self._lose_broker(surveyors)

    def _wait(self, limit_ms: int, until: Callable[[], bool], promise: str, evidence: Callable[[], str]) -> None:
        if not self._world.run(until_ms=self._world.now_ms + limit_ms, until=until):
            raise Violation(promise, evidence())

    def _advance(self, span_ms: int) -> None:
        self._world.run(until_ms=self._world.now_ms + span_ms)

    def _start_cluster(self) -> None:
        cluster = self._cluster
        for node in cluster.servers:
            node.start()
        makers = [
            TopicMaker(
                cluster.namesrv_text,
                self._world.rng(f"topic-maker{site.unit}"),
                addresses=site.addresses,
                queues=cluster.plan.queues,
                static=cluster.plan.static,
                indexed_by_record=(PLAIN_TOPIC,) if cluster.plan.message_mix.uses_inner_batches else (),
                unit=site.unit,
            )
            for site in cluster.sites
        ]
        for maker in makers:
            cluster.add_client(maker)
        self._wait(
            _START_MS, lambda: all(maker.is_done for maker in makers), "topics can be created", lambda: "not in time"
        )
        for node in cluster.consumers:
            node.start()
        self._advance(_JOIN_MS)
        cluster.ledger.may_repeat = bool(cluster.plan.faults)
        cluster.progress_checker.is_undisturbed = cluster.ledger.is_undisturbed = not cluster.plan.faults

    def _storm(self) -> None:
        for node in (*self._cluster.producers, *self._cluster.operators):
            node.start()
        self._nemesis.start()
        self._advance(self._cluster.plan.storm_ms)
        self._cluster.are_moves_over = True
        self._nemesis.heal()
        self._world.trace.note("nemesis", "heal")

    def _await_consumption(self) -> None:
        cluster = self._cluster
        self._wait(
            _CONSUME_MAX_MS,
            lambda: cluster.workload.is_done,
            "every send ends",
            lambda: (
                f"{sum(not lane.is_done for lanes in cluster.workload.sequences.values() for lane in lanes)} lanes wait"
            ),
        )
        # This scan is slow, so it does not run after every step.
        limit_ms = self._world.now_ms + _CONSUME_MAX_MS
        while missing := cluster.find_unconsumed():
            if self._world.now_ms > limit_ms:
                raise Violation("everything is consumed in the end", f"{len(missing)} messages are not: {missing[:5]}")
            self._advance(1_000)
        self._advance(_QUIET_MS)

    def _await_moves(self) -> None:
        """Check that every move has ended, and that all brokers can be repaired to hold equal records."""
        cluster = self._cluster
        if not cluster.plan.static:
            return
        limit_ms = self._world.now_ms + _MOVES_MAX_MS
        while unresolved := [
            description for site in cluster.sites for description in site.leader_checker.find_unresolved()
        ]:
            if self._world.now_ms > limit_ms:
                raise Violation("a move ends", "; ".join(unresolved[:5]))
            self._advance(1_000)
        for site in cluster.sites:
            self._repair(site)
        self._advance(_QUIET_MS)
        unfinished = cluster.report_checker.find_unfinished()
        if unfinished:
            raise Violation("a static topic is served whole", "; ".join(unfinished[:5]))
        unreported = [description for site in cluster.sites for description in site.reset_checker.find_unreported()]
        if unreported:
            raise Violation("the next pull reports a reset", "; ".join(unreported[:5]))

    def _repair(self, site: Site) -> None:
        name = f"repairer{site.unit}"
        repairer = Repairer(
            name,
            self._cluster.namesrv_text,
            self._world.rng(name),
            addresses=site.addresses,
            topics=self._cluster.plan.static,
        )
        self._cluster.add_client(repairer)
        self._wait(_AUDIT_MS, lambda: repairer.is_done, "a static topic can be repaired", lambda: "not in time")

    def _close_units(self) -> None:
        """Close all openings, and check that all name servers agree on the state."""
        cluster = self._cluster
        if not cluster.plan.units:
            return
        closer = Closer(cluster.namesrv_text, self._world.rng("closer"), addresses=cluster.addresses)
        cluster.add_client(closer)
        self._wait(_AUDIT_MS, lambda: closer.is_done, "every opening can be closed", lambda: "not in time")
        self._advance(_QUIET_MS)
        difference = find_difference(cluster.find_switches())
        if difference is not None:
            raise Violation("name servers agree on the openings", difference)

    def _survey(self) -> list[tuple[Site, Surveyor]]:
        """Check that every name server knows every live broker, and keeps knowing it."""
        text = self._cluster.namesrv_text
        surveyors = [
            (site, Surveyor(text, self._world.rng("surveyor"), leaders=site.leader_checker.leaders, unit=site.unit))
            for site in self._cluster.sites
        ]
        for _, surveyor in surveyors:
            self._cluster.add_client(surveyor)
        self._advance(1_500)
        for _ in range(_SURVEYS):
            self._check_routes(surveyors)
            self._advance(1_000)
        return surveyors

    def _check_routes(self, surveyors: list[tuple[Site, Surveyor]]) -> None:
        for site, surveyor in surveyors:
            error = surveyor.find_error(sorted(node.name for node in site.brokers if node.is_up))
            if error is not None:
                raise Violation("routes are true", error)

    def _lose_broker(self, surveyors: list[tuple[Site, Surveyor]]) -> None:
        """Stop one broker for good, and check that the name servers notice."""
        rng = self._world.rng("bereavement")
        node = rng.choice(self._cluster.brokers)
        if rng.random() < 0.5:
            node.kill()
            self._advance(3_000)
        else:
            node.power_off()
            self._advance(BROKER_TIMEOUT_MS + 5_000)
        self._check_routes(surveyors)

    def _probe(self) -> None:
        """Check that a new message wakes a parked pull: it is consumed long before the pull would time out."""
        self._cluster.ledger.is_undisturbed = True
        for site in self._cluster.sites:
            self._probe_in(site.unit)

    def _probe_in(self, unit: str) -> None:
        cluster = self._cluster
        prober = Prober(
            cluster.namesrv_text,
            self._world.rng("prober"),
            workload=cluster.workload,
            ledger=cluster.ledger,
            progress_checker=cluster.progress_checker,
            group=CONCURRENT_GROUP,
            unit=unit,
        )
        cluster.add_client(prober)
        self._wait(
            _AUDIT_MS,
            lambda: prober.is_sent,
            "every queue accepts a message",
            lambda: f"{prober.remaining} queues do not",
        )
        self._wait(
            _PROBE_MS,
            lambda: prober.is_consumed,
            "a new message wakes a parked pull",
            lambda: f"after {_PROBE_MS} ms these are not consumed: {prober.unconsumed}",
        )

    def _audit(self) -> None:
        cluster = self._cluster
        auditor = Auditor(cluster.namesrv_text, self._world.rng("auditor"), offset_checker=cluster.offset_checker)
        cluster.add_client(auditor)
        self._wait(_AUDIT_MS, lambda: auditor.is_done, "every queue can be read", lambda: "not in time")
        cluster.ledger.audit(auditor.records, (PLAIN_TOPIC, ORDERED_TOPIC))
        cluster.unit_checker.audit(auditor.records)
        dead = {
            record.uid for record in auditor.records if record.queue_offset.topic == dead_letter_topic(CONCURRENT_GROUP)
        }
        for planned in cluster.ledger.expected():
            if planned.failures is None and planned.uid not in dead and not cluster.is_tainted(planned.uid):
                raise Violation("a message that fails too often is a dead letter", f"{planned.uid} is not there")

    def _search(self) -> None:
        cluster = self._cluster
        searcher = Searcher(cluster.namesrv_text, self._world.rng("searcher"), ledger=cluster.ledger)
        cluster.add_client(searcher)
        self._wait(_AUDIT_MS, lambda: searcher.is_done, "keys can be looked up", lambda: "not in time")

    def _intrude(self) -> None:
        """Check that the doors have admitted every user and server, and admit no program without a user."""
        cluster = self._cluster
        if not cluster.plan.auth:
            return
        refused = {name: parts.door.refusals for name, parts in cluster.components.items() if parts.door.refusals}
        if refused:
            raise Violation("no user and no server is refused", f"refusals: {refused}")
        brokers = list(cluster.addresses.values())
        intruder = Intruder(cluster.namesrv_text, self._world.rng("intruder"), brokers=brokers)
        cluster.add_client(intruder)
        self._wait(
            _INTRUSION_MS,
            lambda: not intruder.remaining,
            "every server answers an intruder",
            lambda: f"{intruder.remaining} requests have no answer",
        )
