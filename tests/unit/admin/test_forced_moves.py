"""Forced moves and abandoned ends."""

import msgspec
import pytest
from tests.support.cluster.scripted import Reply
from tests.support.cluster.scripted_topics import ScriptedTopics

from holdfast.admin.cluster_access import NotAllowed
from holdfast.admin.forced_moves import ForcedMoveOperations
from holdfast.admin.static_topics import StaticTopics
from holdfast.model.errors import ConnectionLost
from holdfast.wire.frames.codes import RequestCode
from holdfast.wire.requests.moves import ForceRequest, decode_body

THREE = {"a": "a:1", "b": "b:1", "c": "c:1"}


def forced_moves_of(cluster: ScriptedTopics) -> ForcedMoveOperations:
    return ForcedMoveOperations(cluster, StaticTopics(cluster), lambda: 77_000)


def a_cluster(*, dead: bool = True) -> ScriptedTopics:
    cluster = ScriptedTopics(brokers_by_name=THREE)
    cluster.put_topic("t", {0: "a", 1: "a", 2: "b"}, epoch=5)
    if dead:
        cluster.kill("a")
    return cluster


async def test_a_dead_brokers_queues_open_elsewhere_behind_a_gap():
    """The target gets the last known homes and a higher epoch."""
    cluster = a_cluster()

    forced_moves = forced_moves_of(cluster)
    assert {move.state for move in await forced_moves.force(await forced_moves.plan_evacuation("a"))} == {"done"}

    asked = cluster.requests_of(RequestCode.FORCE_QUEUES)[0]
    order = decode_body(asked.body, ForceRequest)
    assert (order.epoch, order.total, order.queues[0].segments[0].broker) == (77_000, 3, "a")
    assert cluster.leader("t", 0) != "a"
    assert cluster.records[cluster.leader("t", 0)]["t"].queues[0].leader.first == 2**40


async def test_a_broker_that_answers_is_not_passed_over():
    """Unless somebody insists: it may be alive and useless."""
    cluster = a_cluster(dead=False)

    with pytest.raises(NotAllowed, match="a answers: move its queues without --force"):
        await forced_moves_of(cluster).plan_evacuation("a")
    with pytest.raises(NotAllowed, match="a answers"):
        await forced_moves_of(cluster).plan_queue("t", 0, "b")
    assert len((await forced_moves_of(cluster).plan_evacuation("a", even_if_alive=True)).moves) == 2


async def test_a_topic_is_forced_only_away_from_the_dead():
    """What lives stays; where nobody is dead force is refused."""
    cluster = a_cluster()

    plan = await forced_moves_of(cluster).plan_topic("t", ["b", "c"])

    assert {(move.queue, move.source) for move in plan.moves} == {(0, "a"), (1, "a")}
    with pytest.raises(NotAllowed, match="every leader of t answers"):
        await forced_moves_of(a_cluster(dead=False)).plan_topic("t", ["b"])


async def test_nobody_left_to_take_over_is_told():
    """Before anything is opened."""
    cluster = a_cluster()
    cluster.kill("b", "c")

    with pytest.raises(NotAllowed, match="only broker that can lead"):
        await forced_moves_of(cluster).plan_evacuation("a")


async def test_a_topic_that_only_the_dead_recorded_is_found():
    """A broker that came later never heard of it; the name server did."""
    cluster = a_cluster()
    cluster.kill("b")
    del cluster.records["c"]["t"]

    plan = await forced_moves_of(cluster).plan_evacuation("a")

    assert {(move.queue, move.target) for move in plan.moves} == {(0, "c"), (1, "c")}


async def test_a_target_that_refuses_is_told():
    """The others are opened all the same."""
    cluster = a_cluster()
    plan = await forced_moves_of(cluster).plan_evacuation("a")
    cluster.refusing["c"] = "disk full"

    made = await forced_moves_of(cluster).force(plan)

    assert {move.target: move.state for move in made} == {"b": "done", "c": "refused"}


async def test_an_end_is_abandoned_behind_what_was_consumed():
    """The furthest group decides, unless the operator names an offset; offsets behind the gap do not count."""
    cluster = a_cluster()
    await forced_moves_of(cluster).force(await forced_moves_of(cluster).plan_queue("t", 0, "b"))
    cluster.offsets["b", "slow", "t", 0] = 10
    cluster.offsets["b", "fast", "t", 0] = 30
    cluster.offsets["b", "new", "t", 0] = 2**40 + 5

    plan = await forced_moves_of(cluster).plan_abandon("t", 0)
    named = await forced_moves_of(cluster).plan_abandon("t", 0, end=99)
    await forced_moves_of(cluster).abandon(plan)

    assert (plan.broker, plan.first, plan.end, named.end) == ("a", 0, 30, 99)
    assert cluster.records["b"]["t"].queues[0].segments[0].end == 30


@pytest.mark.parametrize(("answer", "end"), [({"offset": "40"}, 40), (ConnectionLost("down"), 30)])
async def test_an_end_is_abandoned_behind_what_a_replica_has(answer: Reply, end: int):
    """It has more than anybody has consumed; where it does not answer, that counts."""
    cluster = a_cluster()
    await forced_moves_of(cluster).force(await forced_moves_of(cluster).plan_queue("t", 0, "b"))
    cluster.offsets["b", "g", "t", 0] = 30
    table = {
        "a": {"cluster": "c", "brokerName": "a", "brokerAddrs": {"1": "replica:1"}},
        "b": {"cluster": "c", "brokerName": "b", "brokerAddrs": {"0": "b:1"}},
        "c": {"cluster": "c", "brokerName": "c", "brokerAddrs": {"0": "c:1"}},
    }
    info = msgspec.json.encode({"brokerAddrTable": table, "clusterAddrTable": {"c": list(table)}})
    cluster.on(RequestCode.GET_BROKER_CLUSTER_INFO, lambda _: info)
    cluster.on(RequestCode.GET_MAX_OFFSET, lambda asked: answer if asked.address == "replica:1" else 1)

    plan = await forced_moves_of(cluster).plan_abandon("t", 0)

    assert (plan.broker, plan.end) == ("a", end)
    (asked,) = cluster.requests_of(RequestCode.GET_MAX_OFFSET)
    assert asked.fields == {"topic": "t", "queueId": "0", "lo": "false"}


async def test_what_waits_for_nobody_is_not_abandoned():
    """Nor is what a returned broker will tell."""
    cluster = a_cluster()
    with pytest.raises(NotAllowed, match="nothing to abandon"):
        await forced_moves_of(cluster).plan_abandon("t", 2)

    await forced_moves_of(cluster).force(await forced_moves_of(cluster).plan_queue("t", 0, "b"))
    cluster.restart(*cluster.dead)
    with pytest.raises(NotAllowed, match="a is back"):
        await forced_moves_of(cluster).plan_abandon("t", 0)
