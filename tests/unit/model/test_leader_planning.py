"""Plans: even, stable, and with the fewest moves."""

from collections import Counter
from collections.abc import Callable, Iterable
from itertools import combinations, product
from random import Random

import pytest

from holdfast.model.errors import MappingRefused
from holdfast.model.leader_planning import (
    Leaders,
    PlannedMove,
    apply_moves,
    count_led_queues,
    plan_create,
    plan_drain,
    plan_grow,
    plan_move,
    plan_rebalance,
    plan_spread,
)


def names(count: int, start: int = 0) -> list[str]:
    return [f"b{number:03}" for number in range(start, start + count)]


def is_even(counts: Iterable[int]) -> bool:
    numbers = list(counts)
    return max(numbers) - min(numbers) <= 1


def led_after(leaders: Leaders, moves: list[PlannedMove], brokers: list[str]) -> list[int]:
    """Return how many each of *brokers* leads after *moves*; nobody else leads any."""
    counts = Counter(apply_moves(leaders, moves).values())
    assert set(counts) <= set(brokers)
    return [counts[broker] for broker in brokers]


def topics_after(topics: dict[str, dict[int, str]], moves: list[PlannedMove]) -> dict[str, dict[int, str]]:
    return {topic: apply_moves(led, [move for move in moves if move.topic == topic]) for topic, led in topics.items()}


# Creating and growing.


def test_queues_are_created_evenly():
    """Upstream's allocator: 6 over 3 are 2 each, 8 are 2 or 3, numbers dense from 0."""
    for total, expected in ((6, {2}), (8, {2, 3})):
        moves = plan_create("t", total, names(3))

        assert [move.queue for move in moves] == list(range(total))
        assert {move.source for move in moves} == {None}
        assert set(led_after({}, moves, names(3))) == expected
        assert moves == plan_create("t", total, list(reversed(names(3)))), "the same answer to the same question"


def test_what_is_left_over_goes_to_the_least_loaded():
    """Load of other topics decides between equals."""
    moves = plan_create("t", 4, ["a", "b", "c"], load={"a": 9, "b": 3, "c": 3})

    assert Counter(move.target for move in moves) == {"a": 1, "b": 2, "c": 1}


def test_growing_fills_new_brokers_first():
    """Upstream's case: two brokers and ten queues more each time end with five on each, and nothing moves."""
    leaders: dict[int, str] = {}
    for step in range(1, 10):
        moves = plan_grow("t", leaders, 10 * step, names(2 * step))
        assert all(move.queue not in leaders for move in moves)
        leaders = apply_moves(leaders, moves)

        assert sorted(leaders) == list(range(10 * step))
        assert set(Counter(leaders.values()).values()) == {5}


def test_growing_to_what_is_there_changes_nothing():
    """It can be asked twice."""
    assert plan_grow("t", {0: "a", 1: "a"}, 2, ["a", "b"]) == []


def test_queues_never_become_fewer():
    """And the reason is told."""
    with pytest.raises(MappingRefused, match="has 2 logical queues and cannot have 1") as refused:
        plan_grow("t", {0: "a", 1: "a"}, 1, ["a"])

    assert refused.value.rule == "queues never shrink"


@pytest.mark.parametrize("total", [0, -1, 65_537])
def test_a_number_of_queues_is_judged(total: int):
    """Clients make a list of all of them."""
    with pytest.raises(MappingRefused, match="1 to 65536"):
        plan_create("t", total, ["a"])


# Moving a topic.


@pytest.mark.parametrize("size", range(4, 23))
def test_an_even_topic_is_left_alone(size: int):
    """Upstream's case: n brokers with n queues each, one with one more, wherever that is."""
    brokers = names(size)
    for lucky in (brokers[0], brokers[size // 2], brokers[-1]):
        homes = [broker for broker in brokers for _ in range(size)] + [lucky]

        assert plan_move("t", dict(enumerate(homes)), brokers, load={lucky: 99}) == []


def test_moving_to_the_same_brokers_again_moves_nothing():
    """Upstream's case: ten times."""
    leaders = apply_moves({}, plan_create("t", 7, names(2)))
    for _ in range(10):
        assert plan_move("t", leaders, names(2)) == []


def test_a_topic_moves_to_other_brokers_as_a_whole():
    """Upstream's case: seven queues, each time to two fresh brokers."""
    leaders = apply_moves({}, plan_create("t", 7, names(2)))
    for step in range(1, 11):
        moves = plan_move("t", leaders, names(2, 2 * step))

        assert len(moves) == 7
        assert sorted(led_after(leaders, moves, names(2, 2 * step))) == [3, 4]
        leaders = apply_moves(leaders, moves)


def test_a_broker_gives_or_takes_but_never_both():
    """The fewest moves: what is over the share goes, no more."""
    random = Random(7)
    for _ in range(200):
        brokers = names(random.randint(1, 6))
        leaders = {queue: random.choice([*brokers, "gone"]) for queue in range(random.randint(1, 20))}

        moves = plan_move("t", leaders, brokers, load={broker: random.randint(0, 9) for broker in brokers})

        counts = Counter(leaders.values())
        share, rest = divmod(len(leaders), len(brokers))
        over = sorted((counts[broker] - share for broker in brokers if counts[broker] > share), reverse=True)
        fewest = counts["gone"] + sum(over) - min(rest, len(over))
        assert len(moves) == fewest
        assert is_even(led_after(leaders, moves, brokers))
        assert not {move.source for move in moves} & {move.target for move in moves}
        assert all(leaders[move.queue] == move.source for move in moves)


# Draining and spreading.


def test_a_drained_broker_leads_nothing_and_no_other_queue_moves():
    """Each goes to whoever leads the fewest of its topic, then the fewest of all."""
    topics = {"t": {0: "a", 1: "b", 2: "b", 3: "c"}, "u": {0: "a", 1: "b"}, "v": {0: "a"}}

    moves = plan_drain("b", topics, ["a", "b", "c"])

    assert moves == [PlannedMove("t", 1, "b", "c"), PlannedMove("t", 2, "b", "a"), PlannedMove("u", 1, "b", "c")]
    assert plan_drain("d", topics, ["a"]) == []


def test_a_drain_evens_out_the_whole_cluster():
    """A thousand topics of one queue do not all go to the first broker."""
    topics = {f"t{number}": {0: "z"} for number in range(1000)}

    counts = count_led_queues(topics_after(topics, plan_drain("z", topics, [*names(3), "z"])))

    assert is_even(counts[broker] for broker in names(3))


def test_a_last_broker_cannot_be_drained():
    """Its queues would have nobody."""
    with pytest.raises(MappingRefused, match="b leads 2 logical queues, and there is no other broker"):
        plan_drain("b", {"t": {0: "b", 1: "b"}}, ["b"])


def test_a_new_broker_gets_its_share():
    """Of every topic, from whoever has the most; nothing moves between the others."""
    random = Random(3)
    for _ in range(100):
        old = names(random.randint(1, 5))
        topics = {
            f"t{number}": apply_moves({}, plan_create("t", random.randint(1, 12), random.sample(old, len(old))))
            for number in range(random.randint(1, 6))
        }

        moves = plan_spread("new", topics, old)

        after = topics_after(topics, moves)
        assert {move.target for move in moves} <= {"new"}
        total = sum(len(led) for led in topics.values())
        assert count_led_queues(after)["new"] == total // (len(old) + 1)
        for topic, led in after.items():
            share = len(led) // (len(old) + 1)
            counts = Counter(led.values())
            assert share <= counts["new"] <= share + 1
            assert is_even([counts[broker] for broker in [*old, "new"]]), (topic, counts)


def test_spreading_twice_moves_nothing_more():
    """It has its share."""
    topics = {"t": apply_moves({}, plan_create("t", 8, names(2)))}
    after = topics_after(topics, plan_spread("new", topics, names(2)))

    assert plan_spread("new", after, [*names(2), "new"]) == []


# Rebalancing.


def fewest_moves(topics: dict[str, dict[int, str]], brokers: list[str]) -> int:
    """Return the fewest moves to an even cluster, by trying every choice of who has one more of what."""
    choices = []
    for led in topics.values():
        share, rest = divmod(len(led), len(brokers))
        counts = Counter(led.values())
        choices.append(
            [
                (extra, len(led) - sum(min(counts[name], share + (name in extra)) for name in brokers))
                for extra in combinations(brokers, rest)
            ]
        )
    best = None
    for chosen in product(*choices):
        extras = Counter(name for extra, _ in chosen for name in extra)
        if is_even(extras[name] for name in brokers):
            cost = sum(cost for _, cost in chosen)
            best = cost if best is None else min(best, cost)
    assert best is not None
    return best


def test_a_cluster_is_evened_with_the_fewest_moves():
    """Every topic and all together, against every possible choice."""
    random = Random(11)
    for _ in range(150):
        brokers = names(random.randint(1, 4))
        topics = {
            f"t{number}": {queue: random.choice(brokers) for queue in range(random.randint(1, 9))}
            for number in range(random.randint(1, 5))
        }

        moves = plan_rebalance(topics, brokers)

        after = topics_after(topics, moves)
        assert len(moves) == fewest_moves(topics, brokers)
        assert is_even(count_led_queues(after)[broker] for broker in brokers)
        for led in after.values():
            assert is_even(Counter(led.values())[broker] for broker in brokers)
        assert plan_rebalance(after, brokers) == []


def test_a_broker_that_is_not_asked_for_leads_nothing_afterwards():
    """Its queues are shared out with the rest."""
    topics = {"t": {0: "gone", 1: "a", 2: "a"}, "u": {0: "gone"}}

    after = topics_after(topics, plan_rebalance(topics, ["a", "b"]))

    assert count_led_queues(after) == {"a": 2, "b": 2}


def test_many_small_topics_do_not_pile_up():
    """A thousand topics of one queue, all on one broker."""
    topics = {f"t{number:04}": {0: "b000"} for number in range(1000)}

    moves = plan_rebalance(topics, names(10))

    assert len(moves) == 900
    assert set(count_led_queues(topics_after(topics, moves)).values()) == {100}


@pytest.mark.parametrize(
    "ask",
    [
        lambda: plan_create("t", 1, []),
        lambda: plan_move("t", {0: "a"}, []),
        lambda: plan_rebalance({"t": {0: "a"}}, []),
    ],
)
def test_somebody_must_lead(ask: Callable[[], list[PlannedMove]]):
    """No plan without brokers."""
    with pytest.raises(MappingRefused) as refused:
        ask()

    assert refused.value.rule == "a broker must lead"
