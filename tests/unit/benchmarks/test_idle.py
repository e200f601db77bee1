"""When a broker counts as idle, and what is said of it."""

import pytest
from benchmarks.idle import PENDING_METRICS, QUIET_CORES, QUIET_S, Idle, has_caught_up, is_quiet
from tests.support.cluster.broker_machine import BrokerHarness

from holdfast.broker.metrics import broker_samples

INDEX, CHECKPOINT = PENDING_METRICS


def metrics(index: float, checkpoint: float) -> str:
    return f"# HELP {INDEX} Bytes.\n# TYPE {INDEX} gauge\n{INDEX} {index}\n{CHECKPOINT} {checkpoint}\n"


def an_idle(*, settling: list[float] | None = None, watched: list[float], anonymous_mb: float = 50.0) -> Idle:
    return Idle(queues=1, settling=settling or [], watched=watched, rss_mb=100.0, anonymous_mb=anonymous_mb)


def test_a_broker_has_caught_up_when_neither_index_nor_checkpoint_is_behind():
    """One of them alone is not enough."""
    assert has_caught_up(metrics(0.0, 0.0))
    assert not has_caught_up(metrics(1.0, 0.0))
    assert not has_caught_up(metrics(0.0, 1.2e07))


def test_a_broker_that_does_not_say_what_is_left_is_not_taken_for_idle():
    """A metric with another name must not end the wait."""
    with pytest.raises(KeyError):
        has_caught_up("process_cpu_seconds_total 1.0\n")


def test_brokers_say_what_is_left():
    """Under the names that the benchmark looks for."""
    desk = BrokerHarness()

    names = {f"holdfast_{sample.name}" for sample in broker_samples(desk.options, desk.store, desk.components)}

    assert names >= set(PENDING_METRICS)


def test_a_short_pause_is_not_quiet():
    """It takes many seconds, and the busy ones must be over."""
    assert not is_quiet([0.0] * (QUIET_S - 1))
    assert not is_quiet([*[0.0] * (QUIET_S - 1), QUIET_CORES * QUIET_S * 2])
    assert is_quiet([1.0, *[0.0] * QUIET_S])


def test_what_is_owed_does_not_count_as_idle_use():
    """Work that was put off is told apart from what rest costs."""
    idle = an_idle(settling=[0.5, 0.25], watched=[0.002, 0.004])

    assert idle.owed_cpu == pytest.approx(0.75)
    assert idle.cores == pytest.approx(0.003)
    assert idle.reached


def test_idle_use_and_memory_have_bounds():
    """Either is enough to miss them."""
    assert not an_idle(watched=[0.02, 0.001]).reached
    assert not an_idle(watched=[0.001], anonymous_mb=151.0).reached
