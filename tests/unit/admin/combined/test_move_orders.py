"""Orders that move queues."""

from tests.support.cluster.scripted_admin import scripted_admin
from tests.support.cluster.scripted_topics import ScriptedTopics

from holdfast.admin.combined.move_orders import (
    DrainOrder,
    MoveOrder,
    MoveQueueOrder,
    MoveTopicOrder,
    RebalanceOrder,
    SpreadOrder,
    find_changes,
    fingerprint,
    goal_of,
    plan_order,
    start_order,
)
from holdfast.wire.frames.codes import RequestCode


def a_cluster() -> ScriptedTopics:
    cluster = ScriptedTopics()
    cluster.put_topic("orders", {0: "a", 1: "a", 2: "b"})
    cluster.put_topic("other", {0: "a"})
    return cluster


async def state_of(cluster: ScriptedTopics, order: MoveOrder) -> dict[str, str]:
    return fingerprint((await plan_order(scripted_admin(cluster), order)).view)


async def test_each_order_plans_its_moves():
    """With its goal in words."""
    admin = scripted_admin(a_cluster())
    expected: list[tuple[MoveOrder, set[tuple[str, int, str]], str]] = [
        (MoveQueueOrder(topic="orders", queue=0, to="b"), {("orders", 0, "b")}, "b leads it"),
        (
            MoveTopicOrder(topic="orders", to=["b"]),
            {("orders", 0, "b"), ("orders", 1, "b")},
            "b lead it evenly",
        ),
        (
            DrainOrder(broker="a"),
            {("orders", 0, "b"), ("orders", 1, "b"), ("other", 0, "b")},
            "a leads nothing",
        ),
        (SpreadOrder(broker="a"), set(), "a leads its share"),
        (RebalanceOrder(topic="orders"), set(), "every broker leads its share"),
    ]

    for order, moves, goal in expected:
        plan = await plan_order(admin, order)
        assert {(move.topic, move.queue, move.target) for move in plan.moves} == moves, order
        assert goal_of(order) == goal


async def test_draining_and_spreading_record_the_state_of_the_broker_first():
    """Other orders leave it alone."""
    cluster = a_cluster()
    admin = scripted_admin(cluster)
    for order, draining in ((DrainOrder(broker="a"), {"a"}), (SpreadOrder(broker="a"), set())):
        await start_order(admin, order, await plan_order(admin, order))
        assert cluster.draining == draining
    codes = [request.code for request in cluster.requests]
    assert codes.index(RequestCode.SET_DRAINING) < codes.index(RequestCode.MOVE_QUEUES)

    other = a_cluster()
    order = MoveQueueOrder(topic="orders", queue=2, to="a")
    await start_order(scripted_admin(other), order, await plan_order(scripted_admin(other), order))
    assert other.requests_of(RequestCode.SET_DRAINING) == []
    assert len(other.requests_of(RequestCode.MOVE_QUEUES)) == 1


async def test_the_same_state_has_the_same_fingerprint():
    """However often it is read, and whatever messages arrive meanwhile."""
    cluster = a_cluster()
    order = DrainOrder(broker="a")
    before = await state_of(cluster, order)
    cluster.ends["orders", 0] = 100

    assert find_changes(before, await state_of(cluster, order)) == []
    assert before.keys() == {"topic orders of global", "topic other of global", "broker a", "broker b"}


async def test_a_change_of_what_the_plan_read_is_found():
    """A leader, an epoch, a setting, a broker's state; each by its noun."""
    order = RebalanceOrder()

    def lead_elsewhere(cluster: ScriptedTopics) -> None:
        cluster.put_topic("orders", {0: "b", 1: "a", 2: "b"})

    def raise_epoch(cluster: ScriptedTopics) -> None:
        cluster.put_topic("other", {0: "a"}, epoch=2)

    def create_topic(cluster: ScriptedTopics) -> None:
        cluster.put_topic("new", {0: "a"})

    def drain(cluster: ScriptedTopics) -> None:
        cluster.draining.add("b")

    for change, expected in (
        (lead_elsewhere, ["topic orders of global"]),
        (raise_epoch, ["topic other of global"]),
        (create_topic, ["topic new of global"]),
        (drain, ["broker b"]),
    ):
        cluster = a_cluster()
        before = await state_of(cluster, order)
        change(cluster)
        assert find_changes(before, await state_of(cluster, order)) == expected, change


async def test_other_topics_do_not_matter_to_the_move_of_one_queue():
    """A plan reads no more than it needs."""
    cluster = a_cluster()
    order = MoveQueueOrder(topic="orders", queue=0, to="b")
    before = await state_of(cluster, order)

    cluster.put_topic("other", {0: "b"}, epoch=5)

    assert find_changes(before, await state_of(cluster, order)) == []
