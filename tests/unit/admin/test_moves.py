"""Planning, ordering and following moves."""

import asyncio
from collections.abc import Sequence

import msgspec
import pytest
from tests.support.cluster.scripted import Reply, ScriptedRequest
from tests.support.cluster.scripted_topics import ScriptedTopics

from holdfast.admin.cluster_access import NameServerUnreachable, NotAllowed, NotFound
from holdfast.admin.moves import MovePlan, Moves, find_move, to_orders
from holdfast.admin.static_topics import StaticTopics
from holdfast.model.errors import ConnectionLost
from holdfast.model.leader_planning import PlannedMove as Step
from holdfast.wire.frames.codes import RequestCode
from holdfast.wire.requests.moves import Move, MoveList, MoveRequest, decode_body, encode_body

THREE = {"a": "a:1", "b": "b:1", "c": "c:1"}


async def no_pause(seconds: float) -> None:
    """Let others run, but do not wait."""
    del seconds
    await asyncio.sleep(0)


def moves_of(cluster: ScriptedTopics) -> Moves:
    return Moves(cluster, StaticTopics(cluster), sleep=no_pause)


def a_cluster() -> ScriptedTopics:
    cluster = ScriptedTopics(brokers_by_name=THREE)
    cluster.put_topic("t", {0: "a", 1: "a", 2: "b", 3: "b"})
    cluster.put_topic("u", {0: "a"})
    return cluster


async def carry_out(cluster: ScriptedTopics, plan: MovePlan) -> list[Move]:
    moves = moves_of(cluster)
    return await moves.follow(await moves.start(plan))


async def test_a_broker_is_drained_with_one_order_for_each_topic_and_target():
    """Every step is then one sync for many queues."""
    cluster = a_cluster()

    made = await carry_out(cluster, await moves_of(cluster).plan_drain("a"))

    assert {cluster.leader("t", queue) for queue in range(4)} == {"b", "c"}
    assert cluster.leader("u", 0) in {"b", "c"}
    assert [move.state for move in made] == ["done"] * len(made)
    assert {asked.address for asked in cluster.requests_of(RequestCode.MOVE_QUEUES)} == {"a:1"}


def test_orders_are_grouped_by_topic_source_and_target():
    """Queues in order, groups in order."""
    steps = [Step("t", 3, "a", "b"), Step("t", 1, "a", "b"), Step("t", 2, "c", "b"), Step("u", 0, "a", "b")]

    assert to_orders(steps) == [
        ("a", MoveRequest(topic="t", queues=[1, 3], target="b")),
        ("c", MoveRequest(topic="t", queues=[2], target="b")),
        ("a", MoveRequest(topic="u", queues=[0], target="b")),
    ]


async def test_a_plan_shows_where_each_queue_ends_now():
    """The preview asks the leaders and changes nothing."""
    cluster = a_cluster()
    cluster.ends["t", 0] = 101

    plan = await moves_of(cluster).plan_queue("t", 0, "c")

    (preview,) = plan.previews
    assert ("a", "0(0-100)") in {(row.broker, row.label) for row in preview.after}
    assert cluster.requests_of(RequestCode.MOVE_QUEUES) == []


async def test_the_last_broker_is_not_drained():
    """Nobody could take its queues."""
    cluster = ScriptedTopics(brokers_by_name={"a": "a:1"})
    cluster.put_topic("t", {0: "a"})

    with pytest.raises(NotAllowed, match="only broker that can lead queues"):
        await moves_of(cluster).plan_drain("a")


async def test_a_dead_source_is_told_with_the_way_out():
    """Moving needs its word; without it there is only force."""
    cluster = a_cluster()
    cluster.kill("a")

    with pytest.raises(NotAllowed, match="holdfast broker evacuate a --force"):
        await moves_of(cluster).plan_queue("t", 0, "c")


async def test_wrong_queues_and_targets_are_named():
    """A number that there is not, a leader that it has already, a broker that nobody knows."""
    moves = moves_of(a_cluster())

    with pytest.raises(NotFound, match="0 to 3, no 4"):
        await moves.plan_queue("t", 4, "c")
    with pytest.raises(NotAllowed, match="led by a already"):
        await moves.plan_queue("t", 0, "a")
    with pytest.raises(NotFound, match="no broker 'x'"):
        await moves.plan_topic("t", ["x"])


async def test_spreading_and_rebalancing_end_evenly():
    """A new broker gets its share; afterwards there is nothing to do."""
    cluster = a_cluster()

    await carry_out(cluster, await moves_of(cluster).plan_spread("c"))

    assert [cluster.leader("t", queue) for queue in range(4)].count("c") == 1
    assert (await moves_of(cluster).plan_rebalance("t")).moves == []


async def test_a_refused_order_is_told_and_the_others_go_on():
    """Two operators who move one queue: one wins, the other hears why."""
    cluster = a_cluster()
    plan = await moves_of(cluster).plan_topic("t", ["c"])
    cluster.refusing["a"] = "logical queue 0 is already being moved to b"

    made = await carry_out(cluster, plan)

    by_source = {move.source: move for move in made}
    assert (by_source["a"].state, by_source["a"].reason) == ("refused", "logical queue 0 is already being moved to b")
    assert by_source["b"].state == "done"


async def test_a_source_that_restarts_is_waited_for():
    """It answers nothing for a while, the name server neither; the move ends when both are back."""
    cluster = a_cluster()
    cluster.state_of_new_moves = "planned"
    told: list[list[str]] = []
    looks = 0

    def tell(now: Sequence[Move]) -> None:
        told.append([move.state for move in now])

    def listing(asked: ScriptedRequest) -> Reply:
        nonlocal looks
        looks += 1
        if looks < 5:
            return ConnectionLost("restarting")
        state = "granted" if looks == 5 else "done"
        return encode_body(MoveList(moves=[msgspec.structs.replace(cluster.moves["a"][0], state=state)]))

    moves = moves_of(cluster)
    started = await moves.start(await moves.plan_queue("t", 0, "c"))
    cluster.on(RequestCode.LIST_MOVES, listing)
    info = cluster.scripts[RequestCode.GET_BROKER_CLUSTER_INFO]
    cluster.on(
        RequestCode.GET_BROKER_CLUSTER_INFO,
        lambda asked: NameServerUnreachable("away") if looks in {2, 3} else info(asked),
    )
    (ended,) = await moves.follow(started, tell)

    assert ended.state == "done"
    assert told == [["planned"], ["granted"], ["done"]]


async def test_a_source_that_stays_away_ends_the_looking_and_not_the_move():
    """After two minutes we say where to look."""
    cluster = a_cluster()
    cluster.state_of_new_moves = "planned"

    moves = moves_of(cluster)
    started = await moves.start(await moves.plan_queue("t", 0, "c"))
    cluster.kill("a")
    (ended,) = await moves.follow(started)

    assert ended.state == "unknown"
    assert "holdfast move list" in ended.reason


async def test_a_move_that_its_source_does_not_know_is_not_waited_for():
    """It lost its plan, or never had one: the mapping tells what became of it."""
    cluster = a_cluster()
    cluster.state_of_new_moves = "planned"

    moves = moves_of(cluster)
    started = await moves.start(await moves.plan_queue("t", 0, "c"))
    cluster.moves.clear()
    (ended,) = await moves.follow(started)

    assert "holdfast queue list t" in ended.reason


async def test_a_move_is_cancelled_and_resumed_at_its_source():
    """Named by the beginning of its id."""
    cluster = a_cluster()
    cluster.moves["b"] = [
        Move(id="abc1", topic="t", queues=[2], source="b", target="c", state="failed"),
        Move(id="abd2", topic="t", queues=[3], source="b", target="c", state="planned"),
    ]

    cancelled = await moves_of(cluster).cancel("abd")
    resumed = await moves_of(cluster).resume("abc1")

    assert (cancelled.id, cancelled.state) == ("abd2", "cancelled")
    assert (resumed.id, resumed.state) == ("abc1", "done")
    assert [asked.address for asked in cluster.requests_of(RequestCode.CANCEL_MOVE)] == ["b:1"]


def test_a_move_that_there_is_not_is_told():
    """With the nearest id, or that there is none; a beginning that fits two is not guessed."""
    known = [Move(id=name, topic="t", queues=[], source="a", target="b", state="planned") for name in ("abc1", "abd2")]

    with pytest.raises(NotFound, match="did you mean 'abd2'"):
        find_move(known, "bd2")
    with pytest.raises(NotFound, match="2 moves begin with 'ab'"):
        find_move(known, "ab")
    with pytest.raises(NotFound, match="there are no moves"):
        find_move([], "x")


async def test_an_order_names_queues_and_target():
    """What goes over the wire."""
    cluster = a_cluster()

    await carry_out(cluster, await moves_of(cluster).plan_queue("t", 1, "c"))

    (asked,) = cluster.requests_of(RequestCode.MOVE_QUEUES)
    assert decode_body(asked.body, MoveRequest) == MoveRequest(topic="t", queues=[1], target="c")


async def test_a_drained_broker_gets_queues_only_by_name():
    """Plans pass it over, until somebody spreads to it; an order that names it is carried out."""
    cluster = ScriptedTopics(brokers_by_name={"a": "a:1", "b": "b:1", "c": "c:1"})
    cluster.put_topic("t", {0: "a", 1: "a", 2: "b", 3: "b"})
    cluster.draining.add("c")
    moves = moves_of(cluster)

    rebalanced = (await moves.plan_rebalance()).moves
    drained = (await moves.plan_drain("a")).moves
    named = (await moves.plan_queue("t", 0, "c")).moves
    spread = (await moves.plan_spread("c")).moves

    assert rebalanced == []
    assert {move.target for move in drained} == {"b"}
    assert [move.target for move in named] == ["c"]
    assert {move.target for move in spread} == {"c"}


async def test_the_last_broker_that_is_not_drained_is_not_drained():
    """The text names who could be taken back."""
    cluster = a_cluster()
    cluster.draining |= {"b", "c"}

    with pytest.raises(NotAllowed, match=r"draining of b, c.*spread"):
        await moves_of(cluster).plan_drain("a")


# Scopes.


def two_units() -> ScriptedTopics:
    """Return two brokers in each of two clusters, both with a topic t of their own; u is everybody's."""
    names = ("a", "b", "c", "d")
    clusters = {"a": "east", "b": "east", "c": "west", "d": "west"}
    cluster = ScriptedTopics(brokers_by_name={name: f"{name}:1" for name in names}, clusters=clusters)
    cluster.put_topic("t", {0: "a", 1: "a", 2: "a"}, scope="east")
    cluster.put_topic("t", {0: "c", 1: "d"}, scope="west")
    cluster.put_topic("u", {0: "a", 1: "a", 2: "a", 3: "a"})
    return cluster


async def test_draining_moves_a_topic_inside_its_scope():
    """What is fixed in a cluster stays there, what is global goes anywhere."""
    plan = await moves_of(two_units()).plan_drain("a")

    assert {move.target for move in plan.moves if move.topic == "t"} == {"b"}
    assert len([move for move in plan.moves if move.topic == "t"]) == 3
    assert {move.target for move in plan.moves if move.topic == "u"} == {"b", "c", "d"}


async def test_spreading_gives_a_broker_nothing_of_other_scopes():
    """Its share of what may be there."""
    plan = await moves_of(two_units()).plan_spread("b")

    assert {(move.topic, move.source) for move in plan.moves} == {("t", "a"), ("u", "a")}


async def test_a_target_outside_of_the_scope_is_refused_by_name():
    """One queue or a whole topic."""
    cluster = two_units()
    cluster.unit = "east"

    for plan in (moves_of(cluster).plan_queue("t", 0, "c"), moves_of(cluster).plan_topic("t", ["b", "c"])):
        with pytest.raises(NotAllowed, match="broker c is in cluster west, and t is fixed in east"):
            await plan


async def test_where_a_name_has_several_meanings_the_unit_is_asked_for():
    """With it each is seen by itself."""
    cluster = two_units()

    with pytest.raises(NotAllowed, match="t is a separate static topic in each of east, west: choose one"):
        await moves_of(cluster).plan_queue("t", 0, "b")
    cluster.unit = "west"
    assert (await moves_of(cluster).plan_queue("t", 0, "d")).moves == [Step("t", 0, "c", "d")]


async def test_evening_out_covers_all_scopes_also_where_they_share_a_name():
    """Each order goes to the broker that leads the queue: the name alone would not say which."""
    cluster = two_units()
    moves = moves_of(cluster)
    cluster.put_topic("t", {0: "c", 1: "c"}, scope="west")

    plan = await moves.plan_rebalance()
    await carry_out(cluster, plan)

    assert {(move.source, move.target) for move in plan.moves if move.topic == "t"} == {("a", "b"), ("c", "d")}
    assert {asked.address for asked in cluster.requests_of(RequestCode.MOVE_QUEUES)} == {"a:1", "c:1"}
    assert [preview.topic for preview in plan.previews] == ["u", "t", "t"]


async def test_the_last_broker_of_a_cluster_keeps_what_is_fixed_there():
    """The others cannot take it, and the refusal says so."""
    cluster = two_units()
    cluster.draining.add("b")

    with pytest.raises(NotAllowed, match="a leads 3 logical queues of topics that are fixed in east, and no other"):
        await moves_of(cluster).plan_drain("a")


async def test_evening_out_names_a_cluster_that_has_nobody():
    """Others can be named."""
    cluster = two_units()
    cluster.draining |= {"c", "d"}

    with pytest.raises(NotAllowed, match="no broker of west that can lead queues"):
        await moves_of(cluster).plan_rebalance()


async def test_evening_out_keeps_every_topic_in_its_scope():
    """Each scope by itself."""
    cluster = two_units()
    cluster.unit = "east"

    plan = await moves_of(cluster).plan_rebalance()

    assert {move.target for move in plan.moves if move.topic == "t"} == {"b"}
