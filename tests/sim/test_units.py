"""Two units, opened to each other and closed while everything goes wrong in them, and between them."""

from typing import Any

import pytest
from tests.sim.planted import Plant

from holdfast.client.routes import route_table
from holdfast.nameserver.routes import open_units, unit_visibility
from holdfast.sim.run import run_seed
from holdfast.sim.world.plan import RunPlan
from holdfast.sim.world.workload import ORDERED_TOPIC, PLAIN_TOPIC, MessageMix

CALM = RunPlan(
    name_servers=2,
    brokers=3,
    queues=3,
    concurrent_consumers=3,
    ordered_consumers=3,
    messages=150,
    storm_ms=60_000,
    static=(PLAIN_TOPIC, ORDERED_TOPIC),
    operators=1,
    units=("east", "west"),
    switch_pause_ms=8_000,
)
PLANS = {
    "and nothing else": CALM,
    "while they are cut off from each other": RunPlan(
        name_servers=2,
        brokers=4,
        queues=3,
        concurrent_consumers=4,
        ordered_consumers=4,
        messages=150,
        storm_ms=60_000,
        static=(PLAIN_TOPIC, ORDERED_TOPIC),
        operators=2,
        units=("east", "west"),
        faults=("sever", "name server", "partition", "break"),
        fault_pause_ms=3_000,
        message_mix=MessageMix(failing=0.1),
    ),
    "while they are lost and come back": RunPlan(
        name_servers=2,
        brokers=2,
        queues=4,
        concurrent_consumers=3,
        ordered_consumers=3,
        messages=150,
        storm_ms=80_000,
        static=(PLAIN_TOPIC, ORDERED_TOPIC),
        units=("east", "west"),
        faults=("lose unit", "lose unit", "name server", "sever"),
        fault_pause_ms=6_000,
        message_mix=MessageMix(failing=0.1, delayed=0.1, transactions=0.1),
    ),
}


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 6))])
@pytest.mark.parametrize("how", PLANS)
def test_every_promise_holds_while_units_are_opened_and_closed(how: str, seed: int):
    """Nothing is lost, order holds in each unit, nobody writes in another, and name servers are of one mind."""
    verdict = run_seed(seed, plan=PLANS[how])

    assert verdict.violation is None, "\n".join([verdict.line(), *verdict.tail[-20:], verdict.detail or ""])


def open_queues_take_writes(patch: pytest.MonkeyPatch) -> None:
    """What a unit reads of another, it may write to."""
    patch.setattr(unit_visibility.Visibility, "can_write_scope", lambda _self, _scope: True)


def what_brokers_bring_is_not_heard(patch: pytest.MonkeyPatch) -> None:
    """A name server that was down when a unit was opened, or closed, goes on with what it knew."""

    def deaf(_self: Any, _text: Any, _peer: Any) -> None:
        return None

    patch.setattr(open_units.OpenUnits, "merge_from_broker", deaf)


def a_closed_unit_is_forgotten_at_once(patch: pytest.MonkeyPatch) -> None:
    """Whoever read there does not say how far it came, and keeps its locks."""
    patch.setattr(route_table, "_CLOSING_MS", 0)


# Each with the seed that found it last time, which is tried before all others.
BUGS: dict[Plant, tuple[int, str]] = {
    open_queues_take_writes: (0, "and nothing else"),
    what_brokers_bring_is_not_heard: (6, "while they are cut off from each other"),
    a_closed_unit_is_forgotten_at_once: (1, "and nothing else"),
}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("plant", BUGS)
def test_a_mistake_about_units_is_noticed(plant: Plant, monkeypatch: pytest.MonkeyPatch):
    """By one of a few seeds."""
    known, how = BUGS[plant]
    plant(monkeypatch)

    assert any(run_seed(seed, plan=PLANS[how]).violation is not None for seed in (known, *range(20)))
