"""What brokers report of static topics, what is refused, and what is served when they do not agree."""

import pytest
from tests.support.cluster.name_server_machine import pop_changes
from tests.support.static_reports import a_java_report, a_leader_report, a_report, a_segment

from holdfast.machine.effects import Log
from holdfast.machine.turn import Turn
from holdfast.nameserver.route_changes import RouteChanges
from holdfast.nameserver.routes import static_topics
from holdfast.nameserver.routes.static_topics import StaticTopics


class Table:
    """A table of reports, and the brokers that are alive."""

    def __init__(self, *alive: str) -> None:
        self.alive = set(alive)
        self.turn = Turn()
        self.changes = RouteChanges()
        self.static = StaticTopics(self.turn, self.alive, self.changes)

    def report(self, broker: str, plain: object, *, topic: str = "orders", normal: tuple[str, ...] = ()) -> str | None:
        return self.static.accept_report(broker, topic, plain, normal_hosts=normal)

    def leave(self, broker: str) -> None:
        self.alive.discard(broker)
        self.static.broker_left(broker)

    def served(self, topic: str = "orders") -> dict[int, str] | None:
        found = self.static.find(topic)
        return None if found is None or found.served is None else found.served.leaders

    def logs(self) -> list[tuple[str, str]]:
        return [(log.event, str(log.fields.get("reasons", log.fields.get("reason", "")))) for log in self.pop_logs()]

    def pop_logs(self) -> list[Log]:
        return [effect for effect in self.turn.drain_effects() if isinstance(effect, Log)]


def moved(broker: str, *, epoch: int, total: int = 2) -> dict[str, object]:
    """Return the report of *broker* after queue 0 went from a to b."""
    homes = [a_segment("a", 0, end=100), a_segment("b", 7, generation=1, first=100)]
    more = {1: [a_segment("b", 1)]} if broker == "b" else {}
    return a_report(broker, {0: homes, **more}, total=total, epoch=epoch)


def test_reports_are_served_when_every_queue_has_its_leader():
    """A topic of which some brokers told nothing yet is withheld; then it is complete."""
    table = Table("a", "b")

    assert table.report("a", a_leader_report("a", 0)) is None
    assert table.served() is None
    assert table.logs() == [("static topic withheld", "no broker leads logical queues 1 of 2")]

    assert table.report("b", a_leader_report("b", 1)) is None
    assert table.served() == {0: "a", 1: "b"}
    assert table.logs() == [("static topic complete", "")]


def test_the_operator_is_warned_of_what_stays_withheld():
    """While a topic is made its brokers are heard one after the other: that is no reason to worry. Told once."""
    table = Table("a", "b")
    table.report("a", a_leader_report("a", 0))
    (log,) = table.pop_logs()
    assert log.level == "info"

    table.static.warn_withheld()
    assert table.pop_logs() == []
    for _ in range(3):
        table.static.warn_withheld()

    (log,) = table.pop_logs()
    assert (log.level, log.event) == ("warning", "static topic stays withheld")
    assert log.fields["reasons"] == "no broker leads logical queues 1 of 2"
    table.report("b", a_leader_report("b", 1))
    table.static.warn_withheld()
    assert table.logs() == [("static topic complete", "")]


def test_the_same_report_again_changes_nothing():
    """Nothing is rendered anew, nobody is told anything."""
    table = Table("a")
    table.report("a", a_leader_report("a", 0, 1))
    assert pop_changes(table.changes) == {"orders"}
    table.logs()

    table.report("a", a_leader_report("a", 0, 1))

    assert pop_changes(table.changes) == set()
    assert table.logs() == []


def test_a_move_is_served_whichever_broker_reports_first():
    """The newer generation leads, before and after the old leader says so too."""
    for order in ("ab", "ba"):
        table = Table("a", "b")
        table.report("a", a_leader_report("a", 0))
        table.report("b", a_leader_report("b", 1))
        served = []

        for broker in order:
            assert table.report(broker, moved(broker, epoch=2)) is None
            served.append(table.served())

        # Between the two reports nobody claims the queue when the old leader speaks first: the old route stays.
        assert served == [{0: "a" if order == "ab" else "b", 1: "b"}, {0: "b", 1: "b"}]


def test_an_old_epoch_of_the_same_broker_is_refused_and_the_last_report_stays():
    """A broker that comes back with an older disk does not undo what it said before."""
    table = Table("a", "b")
    table.report("a", moved("a", epoch=5))
    table.report("b", moved("b", epoch=5))
    table.logs()

    reason = table.report("b", a_leader_report("b", 1, epoch=4))

    assert reason is not None
    assert "b was at epoch 5 of orders and comes back with 4" in reason
    assert table.served() == {0: "b", 1: "b"}
    assert [event for event, _ in table.logs()] == ["mapping refused"]


def test_a_report_that_was_overtaken_by_a_newer_one_is_refused():
    """In one epoch a queue's generation tells which was first."""
    table = Table("a", "b")
    table.report("a", a_leader_report("a", 0))
    table.report("b", moved("b", epoch=2))

    prepared = [a_segment("a", 0), a_segment("b", 7, generation=1, first=None)]
    reason = table.report("b", a_report("b", {0: prepared, 1: [a_segment("b", 1)]}, total=2, epoch=2))

    assert "b was at generation 1 of logical queue 0 of orders and comes back with 0" in str(reason)
    assert table.served() == {0: "b", 1: "b"}


def test_a_java_broker_that_took_over_a_store_is_heard():
    """It tells no generations, and that is no step back."""
    table = Table("a")
    homes = [a_segment("b", end=3), a_segment("a", 4, generation=1, first=3)]
    table.report("a", a_report("a", {0: homes}, total=1, epoch=2))

    assert table.report("a", a_java_report("a", {0: 4}, total=1, epoch=2)) is None
    assert table.served() == {0: "a"}


def test_a_broker_that_slept_through_a_forced_move_leads_nothing():
    """Its own last report is no older than before, but its generation is."""
    table = Table("a", "b")
    table.report("a", a_leader_report("a", 0))
    table.report("b", a_leader_report("b", 1))
    table.leave("a")
    forced = [a_segment("a", 0), a_segment("b", 7, generation=1, first=2**40)]
    table.report("b", a_report("b", {0: forced, 1: [a_segment("b", 1)]}, total=2, epoch=2))
    assert ("stale claim not served", "a still claims logical queue 0, which b leads now") in table.logs()

    table.alive.add("a")
    table.report("a", a_leader_report("a", 0, epoch=3))

    assert table.served() == {0: "b", 1: "b"}
    assert table.logs() == []  # What it claims was told when the other took over.


def test_a_mapping_copied_from_another_broker_is_refused_by_name():
    """Its true owner's report is untouched, and the operator is told whom to blame, once."""
    table = Table("a", "b")
    table.report("a", a_leader_report("a", 0, 1))
    table.logs()

    reasons = {table.report("b", a_leader_report("a", 0, 1)) for _ in range(3)}

    assert len(reasons) == 1
    assert "b has a mapping of orders that belongs to a" in str(reasons)
    assert table.served() == {0: "a", 1: "a"}
    assert [event for event, _ in table.logs()] == ["mapping refused"]
    assert table.static.refusals == 1


@pytest.mark.parametrize(
    "plain",
    [
        7,
        None,
        {},
        {"bname": 7},
        a_leader_report("a", 0) | {"totalQueues": -1},
        a_leader_report("a", 0) | {"totalQueues": 2**20},
        a_leader_report("a", 0) | {"topic": "bills"},
        a_leader_report("a", 0) | {"dirty": True},
        a_leader_report("a", 5),
    ],
)
def test_a_mapping_that_makes_no_sense_is_refused(plain: object):
    """Whatever a peer sends in its place: nothing of it is kept, and the topic is not taken for a normal one."""
    table = Table("a")

    assert table.report("a", plain) is not None

    assert not table.static.topics
    assert table.static.find_fault("orders") is not None
    assert pop_changes(table.changes) == set()


def test_two_leaders_of_one_generation_are_a_contradiction_and_the_last_route_stays():
    """Neither is believed; what was served before is served on, and it is told once."""
    table = Table("a", "b", "c")
    table.report("a", a_leader_report("a", 0, 1))
    table.logs()

    for _ in range(2):
        table.report("b", a_leader_report("b", 0))

    assert table.served() == {0: "a", 1: "a"}
    assert table.logs() == [("static topic withheld", "logical queue 0 is led by b and by a, both newest")]

    table.report("b", a_leader_report("b", epoch=2))
    assert table.logs() == [("static topic complete", "")]


def test_reports_without_homes_are_merged_by_epoch():
    """Java brokers tell no generations: the newer epoch leads, equal ones contradict."""
    table = Table("a", "b")
    table.report("a", a_java_report("a", {0: 0, 1: 1}, total=2, epoch=1))
    table.report("b", a_java_report("b", {0: 0}, total=2, epoch=2))
    assert table.served() == {0: "b", 1: "a"}

    table.report("a", a_java_report("a", {0: 0, 1: 1}, total=2, epoch=2))
    assert table.served() == {0: "b", 1: "a"}
    assert table.logs()[-1] == ("static topic withheld", "logical queue 0 is led by b and by a, both newest")


def test_while_a_topic_grows_its_old_queues_follow_their_leaders():
    """The new queues appear together, when the last of them is led; moves of the old ones do not wait for that."""
    table = Table("a", "b")
    table.report("a", a_leader_report("a", 0))
    table.report("b", a_leader_report("b", 1))

    table.report("a", a_leader_report("a", 0, 2, total=4, epoch=2))
    assert table.served() == {0: "a", 1: "b"}

    homes = [a_segment("a", 0, end=5), a_segment("b", 8, generation=1, first=5)]
    table.report("a", a_report("a", {0: homes, 2: [a_segment("a", 2)]}, total=4, epoch=3))
    table.report("b", a_report("b", {0: homes, 1: [a_segment("b", 1)]}, total=4, epoch=3))
    assert table.served() == {0: "b", 1: "b"}

    table.report("b", a_report("b", {0: homes, 1: [a_segment("b", 1)], 3: [a_segment("b", 3)]}, total=4, epoch=4))
    assert table.served() == {0: "b", 1: "b", 2: "a", 3: "b"}


def test_fewer_queues_than_before_are_a_contradiction_until_everybody_says_so():
    """Only a topic that was deleted and made anew where we did not see it has fewer."""
    table = Table("a", "b")
    table.report("a", a_leader_report("a", 0, 2, total=3))
    table.report("b", a_leader_report("b", 1, total=3))

    table.report("a", a_leader_report("a", 0, total=2, epoch=9))
    assert table.served() == {0: "a", 1: "b", 2: "a"}
    table.report("b", a_leader_report("b", 1, total=2, epoch=9))
    assert table.served() == {0: "a", 1: "b"}


def test_a_report_outlives_its_broker_while_it_leads():
    """The queue still has a place; nobody is told that it has none."""
    table = Table("a", "b")
    table.report("a", a_leader_report("a", 0))
    table.report("b", a_leader_report("b", 1))

    table.leave("a")

    assert table.served() == {0: "a", 1: "b"}


def test_a_report_outlives_its_broker_while_it_has_something_to_read():
    """Drained, away, but its old records are not expired."""
    table = Table("a", "b")
    table.report("a", moved("a", epoch=2))
    table.report("b", moved("b", epoch=2))

    table.leave("a")

    assert "a" in table.static.topics["orders"].reports
    assert table.static.topics["orders"].holders == {"a", "b"}


def test_a_report_of_an_absent_broker_goes_when_others_have_taken_over_everything():
    """Away first and superseded later, or superseded first and away later."""
    for leaves_first in (True, False):
        table = Table("a", "b")
        table.report("a", a_leader_report("a", 0))
        table.report("b", a_leader_report("b", 1))
        if leaves_first:
            table.leave("a")
        table.report("b", a_leader_report("b", 1, 0, epoch=2))  # Another incarnation of the queue, with no home on a.
        homes = [a_segment("b", 7, generation=1, first=100)]
        table.report("b", a_report("b", {0: homes, 1: [a_segment("b", 1)]}, total=2, epoch=3))
        table.leave("a")

        assert set(table.static.topics["orders"].reports) == {"b"}
        assert table.served() == {0: "b", 1: "b"}


def test_the_newest_stamp_stays_though_its_broker_is_away():
    """It may be the only one that knows of a larger number of queues."""
    table = Table("a", "b")
    table.report("a", a_leader_report("a", 0, 1))
    table.report("b", a_leader_report("b", epoch=2))

    table.leave("b")

    assert set(table.static.topics["orders"].reports) == {"a", "b"}


def test_what_was_deleted_is_not_brought_back_by_a_late_registration():
    """Not even by a broker that was away; but a new topic of that name is another one."""
    table = Table("a", "b")
    table.report("a", a_leader_report("a", 0))
    table.report("b", a_leader_report("b", 1))

    assert table.static.drop("orders", ["a", "b"])
    reason = table.report("b", a_leader_report("b", 1))

    assert reason is not None
    assert "was deleted, but b still has it" in reason
    assert table.static.find("orders") is None
    assert table.static.find_fault("orders") is None

    table.report("b", a_leader_report("b", 0, 1, epoch=2))
    assert table.served() == {0: "b", 1: "b"}


def test_deleting_in_one_cluster_leaves_nothing_that_was_true_before():
    """What other clusters have of it is incomplete, and not served as if it were not."""
    table = Table("a", "b")
    table.report("a", a_leader_report("a", 0))
    table.report("b", a_leader_report("b", 1))

    table.static.drop("orders", ["a"])

    assert table.served() is None
    assert table.static.find("orders") is not None


def test_a_normal_topic_stays_one_until_all_its_brokers_were_converted():
    """Clients see the normal topic, on the brokers it was on, and then the static one: nothing in between."""
    table = Table("a", "b")

    table.report("a", a_leader_report("a", 0), normal=("a", "b"))
    assert table.static.find("orders") is None
    assert table.static.topics["orders"].normal_hosts == {"a", "b"}

    table.report("b", a_leader_report("b", 1), normal=("a", "b"))
    assert table.served() == {0: "a", 1: "b"}


def test_a_normal_topic_beside_a_static_one_is_told_once():
    """By the name of its broker."""
    table = Table("a", "b")
    table.report("a", a_leader_report("a", 0, 1))
    table.logs()

    for _ in range(2):
        table.static.note_normal_hosts("orders", ["a", "b"])

    assert table.static.topics["orders"].conflicting_hosts == {"b"}
    assert [event for event, _ in table.logs()] == ["normal topic not served"]


def test_what_is_known_of_all_topics_together_is_bounded(monkeypatch: pytest.MonkeyPatch):
    """Reports outlive their brokers, so there must be an end; what is dropped makes room again."""
    monkeypatch.setattr(static_topics, "SEGMENTS_MAX", 6)
    table = Table("a")
    table.report("a", a_leader_report("a", 0, 1))

    reason = table.report("a", a_java_report("a", {0: 0, 1: 1, 2: 2}, total=3, topic="bills"), topic="bills")
    assert reason is not None
    assert "exceeds the limit" in reason

    table.static.drop("orders", ["a"])
    assert table.report("a", a_java_report("a", {0: 0, 1: 1, 2: 2}, total=3, topic="bills"), topic="bills") is None


def test_long_reasons_are_cut():
    """A topic of thousands of queues does not make a log line of megabytes."""
    table = Table("a")
    table.report("a", a_leader_report("a", total=60_000))

    ((_, reason),) = table.logs()
    assert len(reason) < 200
    assert reason.endswith("and 59984 more of 60000")
    assert static_topics.join_reasons([f"reason {number}" for number in range(100)]).endswith("reason 7; and 92 more")


# Several topics of one name.


def scoped(**clusters: str) -> Table:
    table = Table(*clusters)
    table.static = StaticTopics(table.turn, table.alive, table.changes, clusters.get)
    return table


def test_two_clusters_may_each_have_a_static_topic_of_one_name():
    """With queues and epochs of their own; neither waits for the other."""
    table = scoped(a="east", b="west")

    assert table.report("a", a_leader_report("a", 0, 1, epoch=9, scope="east")) is None
    assert table.report("b", a_leader_report("b", 0, 1, 2, total=3, epoch=2, scope="west")) is None

    east, west = table.static.find_all("orders")
    assert (east.scope, west.scope) == ("east", "west")
    assert east.served is not None
    assert west.served is not None
    assert (east.served.total, west.served.total) == (2, 3)
    assert table.static.find("orders") is None


@pytest.mark.parametrize(("first", "second"), [("east", "__global__"), ("__global__", "east"), ("east", "east_west")])
def test_what_shares_a_cluster_with_another_of_the_name_is_refused(first: str, second: str):
    """Whichever was there first stays, and the other's operator is told."""
    table = scoped(a="east", b="east")
    table.report("a", a_leader_report("a", 0, 1, scope=first))
    table.logs()

    refusal = table.report("b", a_leader_report("b", 0, 1, scope=second))

    assert refusal is not None
    assert "delete one of the two" in refusal
    assert [topic.scope for topic in table.static.find_all("orders")] == [first]
    assert table.logs() == [("mapping refused", refusal)]


def test_a_topic_that_was_made_anew_in_another_scope_replaces_what_its_broker_had():
    """The name server may have been away while it was deleted."""
    table = scoped(a="east")
    table.report("a", a_leader_report("a", 0, 1, epoch=5))

    assert table.report("a", a_leader_report("a", 0, 1, epoch=2, scope="east")) is None

    assert [topic.scope for topic in table.static.find_all("orders")] == ["east"]
    assert table.static.topics.keys() == {"orders@east"}


def test_a_record_of_a_topic_that_is_fixed_elsewhere_is_refused():
    """As of a broker that came to another cluster with its disk."""
    table = scoped(b="west")

    refusal = table.report("b", a_leader_report("b", 0, 1, scope="east"))

    assert refusal is not None
    assert "orders is fixed in east, and b belongs to cluster west" in refusal
    assert not table.static.topics


def test_deleting_one_of_a_name_leaves_the_other():
    """A late registration brings back neither of them."""
    table = scoped(a="east", b="west")
    table.report("a", a_leader_report("a", 0, 1, scope="east"))
    table.report("b", a_leader_report("b", 0, 1, scope="west"))

    assert table.static.drop("orders", ["a"])

    assert [topic.scope for topic in table.static.find_all("orders")] == ["west"]
    assert "deleted" in (table.report("a", a_leader_report("a", 0, 1, scope="east")) or "")
    assert table.report("b", a_leader_report("b", 0, 1, epoch=2, scope="west")) is None


def test_a_normal_topic_in_another_cluster_is_no_intruder():
    """A static topic rules its scope, not beyond."""
    table = scoped(a="east", b="west", c="east")
    table.report("a", a_leader_report("a", 0, 1, scope="east"))

    table.static.note_normal_hosts("orders", ["a", "b", "c"])

    assert table.static.topics["orders@east"].conflicting_hosts == {"c"}
