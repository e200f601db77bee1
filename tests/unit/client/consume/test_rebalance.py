"""Who of a group consumes which queues."""

from hypothesis import given
from hypothesis import strategies as st

from holdfast.client.consume.rebalance import allocate_average, plan_change
from holdfast.model.queue import MessageQueue


def queues(count: int) -> list[MessageQueue]:
    return [MessageQueue("t", "b", number) for number in range(count)]


def upstream_average(count: int, members: int, index: int) -> list[int]:
    """Upstream's formula, word by word."""
    rest = count % members
    size = 1 if count <= members else count // members + (1 if rest > 0 and index < rest else 0)
    start = index * size if rest > 0 and index < rest else index * size + rest
    return list(range(start, min(start + size, count)))


@given(count=st.integers(0, 40), members=st.integers(1, 12))
def test_every_queue_has_exactly_one_consumer_as_upstream_has_it(count: int, members: int):
    """Members of different languages share a group: they must work out the same."""
    everybody = [f"10.0.0.1@{number:02}" for number in range(members)]

    shares = [allocate_average(reversed(queues(count)), everybody[::-1], member) for member in everybody]

    assert [queue for share in shares for queue in share] == queues(count)
    assert [[queue.queue_id for queue in share] for share in shares] == [
        upstream_average(count, members, index) for index in range(members)
    ]


def test_a_member_that_nobody_knows_gets_nothing():
    """The others share everything already."""
    assert allocate_average(queues(4), ["a", "b"], "c") == []


def test_queues_are_sorted_by_topic_broker_and_number():
    """Two before ten, though the text says otherwise."""
    given_queues = [MessageQueue("t", "b", 10), MessageQueue("t", "b", 2), MessageQueue("t", "a", 99)]

    assert allocate_average(given_queues, ["me"], "me") == [given_queues[2], given_queues[1], given_queues[0]]


def test_a_change_is_what_differs():
    """And false if nothing does."""
    one, two, three = queues(3)

    change = plan_change([one, two], [two, three])

    assert (change.lost, change.gained) == ((one,), (three,))
    assert not plan_change([one], [one])
