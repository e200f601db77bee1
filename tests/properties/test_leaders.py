"""Routes in any order: a client never goes back."""

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.static_topics import a_record, a_static_route

from holdfast.client.routes.route_table import RouteTable
from holdfast.model.mapping import TopicMapping
from holdfast.model.segment import generation_order, is_newer

TOTAL_MAX = 3
generations = st.one_of(st.none(), st.integers(0, 6))
claims = st.dictionaries(st.integers(0, TOTAL_MAX - 1), generations, max_size=TOTAL_MAX)
records = st.builds(
    lambda broker, leads, epoch, total: a_record(broker, leads, epoch=epoch, total=total),
    st.sampled_from("abc"),
    claims,
    st.integers(0, 9),
    st.integers(0, TOTAL_MAX),
)
routes = st.lists(records, min_size=1, max_size=3, unique_by=lambda record: record.broker)


@settings(max_examples=200)
@given(st.lists(routes, min_size=1, max_size=6), st.sampled_from(["one by one", "together"]))
def test_no_queue_goes_back_a_generation_and_none_is_lost(told: list[list[TopicMapping]], how: str):
    """Whatever name servers say, in whatever order, one by one or several at a time."""
    table = RouteTable()
    before: dict[int, int | None] = {}
    for now_ms, said in enumerate(told):
        route = a_static_route(*said)
        if how == "together":
            table.put_all("t", [route], now_ms, is_complete=False)
        else:
            table.put("t", route, now_ms)
        found = table.find("t")
        assert found is not None
        after = {queue.queue_id: leader.generation for queue, leader in found.leaders.items()}
        assert found.publishable == found.readable == tuple(found.leaders)
        assert list(after) == list(range(len(after)))
        assert not any(is_newer(generation, than=after[number]) for number, generation in before.items())
        assert set(found.sendable) <= set(found.publishable)
        before = after


@settings(max_examples=200)
@given(st.lists(routes, min_size=1, max_size=5), st.randoms(use_true_random=False))
def test_where_generations_are_told_the_order_of_routes_makes_no_difference(
    told: list[list[TopicMapping]], rng: Random
):
    """The newest generation of each queue is believed in the end."""
    told = [
        [
            a_record(
                record.broker,
                {number: queue.generation for number, queue in record.queues.items() if queue.generation is not None},
                epoch=record.epoch,
                total=record.total,
            )
            for record in said
        ]
        for said in told
    ]
    shuffled = rng.sample(told, len(told))
    tables = RouteTable(), RouteTable()
    for table, order in zip(tables, (told, shuffled), strict=True):
        for now_ms, said in enumerate(order):
            table.put("t", a_static_route(*said), now_ms)

    one, other = (table.find("t") for table in tables)

    assert one is not None
    assert other is not None
    ranks = [
        [(generation_order(leader.generation), leader.epoch) for leader in found.leaders.values()]
        for found in (one, other)
    ]
    assert ranks[0] == ranks[1]
