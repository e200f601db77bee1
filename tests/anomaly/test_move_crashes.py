"""Whoever dies at whatever step of a move: after its restart the move is done, or nothing has happened.

Meanwhile two producers send by way of both brokers, one message after the other. Checked at every instant: no queue
takes sends in two places. Checked at the end: everything that was acknowledged is stored once, at the offset that was
told, in order, without a hole; and no answer was an error but "ask again".
"""

import pytest
from tests.support.cluster.simulated import TOPIC, MovingCluster

from holdfast.broker.relay.group_gossip import ROUND_MS
from holdfast.model.errors import HoldfastError
from holdfast.wire.requests.moves import Move

STEPS = range(1, 26)
"""A move takes about ten events of each broker, those of the sends left out."""


def a_cluster(flush: str = "sync") -> MovingCluster:
    cluster = MovingCluster("a", "b", flush=flush)
    cluster.make_topic({0: "a", 1: "b"})
    return cluster


def order(cluster: MovingCluster) -> Move | None:
    """Order the move of queue 0, of which the broker may never hear."""
    try:
        return cluster.move("a", "b", 0)
    except HoldfastError:
        return None


def check_recovery(cluster: MovingCluster, victim: str, step: int, how: str) -> None:
    """Kill one broker before its *step*-th event, start it again, and check the ledger and the move."""
    producers = [cluster.produce(0, 50, "a", "b"), cluster.produce(1, 25, "b", "a")]
    cluster.run(30)
    cluster.kill_before(victim, step, how)
    move = order(cluster)

    def is_over() -> bool:
        return all(done() for done in producers) and cluster.are_moves_finished()

    cluster.run(20_000, lambda: not cluster.is_up(victim) or is_over())
    cluster.run(1_000)
    cluster.restart(victim)
    assert cluster.run(60_000, is_over), "everybody is answered, and the move ends"
    cluster.run(3_000)
    cluster.check_ledger(0, 1)
    assert cluster.refused == []
    if move is not None:
        assert cluster.leader(0) == "b", "an order that was confirmed is carried out"


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("victim", ["a", "b"])
def test_a_process_is_killed_at_any_step(victim: str, step: int) -> None:
    """The page cache outlives it: with either flush nothing that was acknowledged may be missing."""
    check_recovery(a_cluster("async" if step % 2 else "sync"), victim, step, "kill")


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("victim", ["a", "b"])
def test_a_host_loses_power_at_any_step(victim: str, step: int) -> None:
    """What was not synced is gone: a grant that nobody may rely on, or one that everybody must."""
    check_recovery(a_cluster(), victim, step, "power")


@pytest.mark.parametrize("step", range(1, 12))
def test_both_die_one_after_the_other(step: int) -> None:
    """The old leader in the middle, the new one when the old one is back."""
    cluster = a_cluster()
    done = cluster.produce(0, 30, "a", "b")
    cluster.run(30)
    cluster.kill_before("a", step, "kill")
    order(cluster)
    cluster.run(5_000, lambda: not cluster.is_up("a"))
    cluster.kill_before("b", 6, "power")
    cluster.restart("a")
    cluster.run(5_000, lambda: not cluster.is_up("b"))
    cluster.restart("b")

    assert cluster.run(60_000, lambda: done() and cluster.are_moves_finished())
    cluster.run(3_000)
    cluster.check_ledger(0)


def test_the_name_server_is_away_during_the_move() -> None:
    """Brokers know each other; clients find the new leader by way of the old one."""
    cluster = a_cluster()
    cluster.run(5_000, cluster.produce(0, 5, "b"))
    cluster.run(ROUND_MS)
    cluster.name_server.kill()

    order(cluster)
    cluster.run(20_000, cluster.are_moves_finished)

    assert cluster.leader(0) == "b"
    assert cluster.components["a"].mappings.placement(TOPIC, 0).leader == "b"
    assert len(cluster.consume("a", 0)) == 5
