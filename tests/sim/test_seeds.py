"""Whole clusters, each from one seed, with everything going wrong that its seed decides.

A failure prints the line that replays it. `make sim SEEDS=n` runs more.
"""

import pytest

from holdfast.sim.run import run_seed

SEEDS = range(100)


@pytest.mark.parametrize("seed", SEEDS)
def test_every_promise_holds_in_the_world_of_this_seed(seed: int):
    """Nothing acknowledged is lost, nothing is used twice, order holds, everything is consumed in the end."""
    verdict = run_seed(seed)

    assert verdict.violation is None, "\n".join(
        [verdict.line(), *verdict.tail[-20:], verdict.detail or "", f"replay: python -m holdfast.sim {seed} --trace"]
    )


def test_the_seeds_of_the_gate_cover_what_can_happen():
    """All kinds of faults, both ways to flush, and calm runs: or the seeds above would say little."""
    verdicts = [run_seed(seed, steps_max=1) for seed in SEEDS]

    plans = [verdict.plan for verdict in verdicts]
    assert {plan.flush for plan in plans} == {"sync", "async"}
    assert {fault for plan in plans for fault in plan.faults} >= {"kill", "power", "partition", "disk error", "clock"}
    assert any(not plan.faults for plan in plans)
    assert {plan.brokers for plan in plans} == {1, 2, 3}
