"""Whole clusters, each from one seed, with everything going wrong that its seed decides.

A failure prints the line that replays it. `make sim SEEDS=n` runs more.
"""

import pytest

from holdfast.sim.run import run_seed
from holdfast.sim.world.plan import RunPlan, draw_plan
from holdfast.sim.world.world import World

SEEDS = range(100)


def plan_of(seed: int) -> RunPlan:
    """Return what a seed decides before anything happens."""
    return draw_plan(World(seed).rng("plan"))


@pytest.mark.parametrize("seed", SEEDS)
def test_every_promise_holds_in_the_world_of_this_seed(seed: int):
    """Nothing acknowledged is lost, nothing is used twice, order holds, one leads, all is consumed in the end."""
    verdict = run_seed(seed)

    assert verdict.violation is None, "\n".join(
        [verdict.line(), *verdict.tail[-20:], verdict.detail or "", f"replay: python -m holdfast.sim {seed} --trace"]
    )


def test_the_seeds_of_the_gate_cover_what_can_happen():
    """All kinds of faults, both ways to flush, and calm runs: or the seeds above would say little."""
    plans = [plan_of(seed) for seed in SEEDS]

    assert {plan.flush for plan in plans} == {"sync", "async"}
    assert {fault for plan in plans for fault in plan.faults} >= {"kill", "power", "partition", "disk error", "clock"}
    assert any(not plan.faults for plan in plans)
    assert {plan.brokers for plan in plans} == {1, 2, 3, 4}
    guarded = [plan for plan in plans if plan.auth]
    assert {(bool(plan.static), bool(plan.units)) for plan in guarded} == {(False, False), (True, False), (True, True)}
    assert any(plan.old_producers or plan.old_consumers for plan in guarded)
    assert any(plan.leases_enabled for plan in guarded)
    whole = [plan for plan in plans if plan.message_mix.uses_inner_batches]
    assert {(bool(plan.static), bool(plan.old_consumers)) for plan in whole} >= {
        (False, False),
        (False, True),
        (True, False),
    }


def test_the_seeds_of_the_gate_open_units():
    """Whatever else happens, while they are cut off from each other, and while they are lost."""
    plans = [run_seed(seed, steps_max=1).plan for seed in SEEDS]

    fused = [plan for plan in plans if plan.units]
    assert len(fused) >= 5
    assert {fault for plan in fused for fault in plan.faults} >= {"sever", "lose unit", "name server", "ambush"}
    assert any(plan.name_servers > 1 for plan in fused)
    assert any(plan.old_producers for plan in fused)


def test_the_seeds_of_the_gate_move_queues_in_all_ways():
    """With old clients and new ones, one operator or two, calmly and while everything breaks."""
    plans = [plan_of(seed) for seed in SEEDS]

    static = [plan for plan in plans if plan.static]
    assert 40 <= len(static) <= 60
    assert {plan.operators for plan in static} == {1, 2}
    assert {fault for plan in static for fault in plan.faults} >= {"ambush", "break peers", "force", "detour", "kill"}
    assert any(not plan.faults for plan in static)
    assert any(plan.old_producers for plan in static)
    assert any(plan.old_consumers for plan in static)
    assert any(plan.growth_enabled for plan in static)
    assert any(plan.resets_enabled for plan in static)
    assert any(plan.resets_enabled and not plan.faults for plan in static)
    assert {plan.name_servers for plan in static if plan.leases_enabled and plan.faults} == {1, 2, 3}
