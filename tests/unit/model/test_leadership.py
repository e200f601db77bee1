"""Who leads each logical queue."""

import pytest
from tests.support.static_topics import MOCK, a_record, logical_queue

from holdfast.model.leadership import NO_LEADER, Leader, find_leaders, update_leaders
from holdfast.model.mapping import LogicalQueue, Segment, TopicMapping
from holdfast.model.queue import MessageQueue


def brokers(*records: TopicMapping) -> list[str]:
    return [leader.broker for leader in find_leaders("t", records).values()]


def test_a_topic_without_records_has_no_logical_queues():
    """It is a normal one."""
    assert find_leaders("t", []) == {}


def test_all_queues_are_there_in_order():
    """Under the mock broker of the scope, those that nobody leads too: keys are spread over all of them."""
    leaders = find_leaders("t", [a_record("b", {2: 0}), a_record("a", {0: 0})])

    assert list(leaders) == [logical_queue(number) for number in range(4)]
    assert [leader.broker for leader in leaders.values()] == ["a", "__syslo__none__", "b", "__syslo__none__"]
    assert leaders[logical_queue(3)] == NO_LEADER


def test_the_newest_generation_leads():
    """Whatever epoch its broker has heard of, and however the records are ordered."""
    old, new = a_record("a", {0: 1}, epoch=9), a_record("b", {0: 2}, epoch=7)

    assert brokers(old, new)[0] == brokers(new, old)[0] == "b"


def test_without_generations_the_newest_epoch_leads():
    """As Java clients decide it: during upstream's remap both brokers claim the queue."""
    old, new = a_record("a", {0: None, 1: None}, epoch=1), a_record("b", {1: None}, epoch=2)

    assert brokers(old, new) == brokers(new, old) == ["a", "b", "__syslo__none__", "__syslo__none__"]


def test_who_tells_no_generation_needs_a_newer_epoch():
    """Against one who does."""
    told = a_record("a", {0: 5}, epoch=3)

    assert brokers(told, a_record("b", {0: None}, epoch=3))[0] == "a"
    assert brokers(told, a_record("b", {0: None}, epoch=4))[0] == "b"


def test_who_handed_a_queue_over_is_believed_before_its_new_leader_is_heard():
    """An older leader that did not hear of it either must not be taken for the newest."""
    replaced = a_record("a", {0: 0}, epoch=9)
    gave_it_away = hearsay("b", Segment(generation=3, broker="c", queue_id=0, first=5))

    assert brokers(replaced, gave_it_away)[0] == brokers(gave_it_away, replaced)[0] == "c"


@pytest.mark.parametrize(("generation", "first"), [(3, None), (None, 5)])
def test_what_others_only_plan_or_cannot_date_is_no_claim(generation: int | None, first: int | None):
    """A home that is prepared does not lead; and without a generation only a broker's own record has an epoch."""
    home = Segment(generation=generation, broker="c", queue_id=0, first=first)

    assert brokers(a_record("a", {0: 0}), hearsay("b", home, epoch=9))[0] == "a"


def hearsay(broker: str, *homes: Segment, epoch: int = 1) -> TopicMapping:
    """Return the record of a broker of a queue that others lead."""
    return TopicMapping(topic="t", broker=broker, epoch=epoch, total=4, queues={0: LogicalQueue(0, homes)})


def test_two_equal_claims_are_decided_alike_by_everybody():
    """There is nothing to choose them by."""
    one, other = a_record("a", {0: 1}), a_record("b", {0: 1})

    assert brokers(one, other) == brokers(other, one)


def test_the_largest_number_of_queues_counts():
    """A broker that has not heard of growth yet takes nothing away; a number beyond all is nobody's."""
    assert len(brokers(a_record("a", {0: 0}, total=2), a_record("b", {3: 0}, total=4))) == 4
    assert brokers(a_record("a", {0: 0, 7: 0}, total=2)) == ["a", "__syslo__none__"]


def test_each_scope_has_its_own_queues():
    """Under its own mock broker."""
    leaders = find_leaders("t", [a_record("a", {0: 0}, total=1), a_record("b", {0: 0}, total=1, scope="c1")])

    assert {queue.broker_name: leader.broker for queue, leader in leaders.items()} == {MOCK: "a", "__syslo__c1": "b"}


def test_what_is_believed_is_given_up_only_for_something_newer():
    """Name servers may answer late."""
    held = update_leaders({}, {logical_queue(0): Leader("b", 3, 30)})

    assert update_leaders(held, {logical_queue(0): Leader("a", 2, 99)}) == held
    assert update_leaders(held, {logical_queue(0): NO_LEADER}) == held
    assert update_leaders(held, {}) == held
    assert update_leaders(held, {logical_queue(0): Leader("c", 3, 31)})[logical_queue(0)].broker == "c"
    assert update_leaders(held, {logical_queue(0): Leader("c", 4, 1)})[logical_queue(0)].broker == "c"


def test_a_leader_without_a_generation_does_not_open_the_way_back():
    """It is of a newer one than all that were told before."""
    held = update_leaders({logical_queue(0): Leader("a", 5, 10)}, {logical_queue(0): Leader("b", None, 20)})

    assert held == {logical_queue(0): Leader("b", 5, 20)}
    assert update_leaders(held, {logical_queue(0): Leader("c", 3, 30)}) == held


def test_new_queues_are_added_in_order():
    """A topic grows."""
    grown = update_leaders(
        {logical_queue(0): Leader("a", 0, 1)}, {logical_queue(number): Leader("b", 0, 2) for number in (0, 1)}
    )

    assert list(grown) == [logical_queue(0), logical_queue(1)]
    assert isinstance(next(iter(grown)), MessageQueue)
