"""Questions about logical queues, asked at their leader."""

from __future__ import annotations

import pytest
from tests.support.cluster.broker_machines import EPOCH, TOPIC, StaticBrokers

from holdfast.broker.flow.awaitables import PeerCall
from holdfast.model.errors import PeerFailed
from holdfast.model.mapping import LogicalQueue
from holdfast.wire.frames.codes import RequestCode
from holdfast.wire.frames.command import Command

START_MS = 1_700_000_000_000


def a_question(code: int, queue: int = 0, **fields: str) -> Command:
    return Command(code=code, fields={"topic": TOPIC, "queueId": str(queue)} | fields)


def ask(desks: StaticBrokers, code: int, name: str = "offset", **fields: str) -> int:
    """Ask the leader of queue 0."""
    (answer,) = desks[desks.queue(0).leader.broker].call(a_question(code, **fields))
    assert answer.code == 0, answer
    return int(answer.fields[name])


@pytest.fixture
def desks() -> StaticBrokers:
    """Return three segments: two records on a, then three on b, then one on a again, a second apart each."""
    desks = StaticBrokers("a", "b")
    desks.create("a")
    for target, count in ((None, 2), ("b", 3), ("a", 1)):
        if target is not None:
            desks.move(0, target)
        for _ in range(count):
            for desk in desks.brokers.values():
                desk.now_ms += 1_000
            desks.send(0, b"x")
    return desks


def clean(desks: StaticBrokers, broker: str, physical: int, offset: int) -> None:
    """Let the first records of a physical queue be gone, as if their log file were."""
    log = desks[broker].store.find_queue(TOPIC, physical)
    assert log is not None
    log.offset_min = offset


def test_bounds_are_those_of_all_segments_together(desks: StaticBrokers):
    """Not those of the leader's own."""
    assert (ask(desks, 31), ask(desks, 30)) == (0, 6)


def test_an_answer_for_physical_queues_is_as_ever(desks: StaticBrokers):
    """That is what another broker asks for."""
    (answer,) = desks["a"].call(a_question(30, queue=0, lo="false"))

    assert answer.fields["offset"] == "2"


def test_whoever_does_not_lead_says_so(desks: StaticBrokers):
    """In upstream's words, so that every client understands."""
    queues = desks["b"].components.queues

    assert queues.resolve(TOPIC, 0) is None
    assert queues.resolve(TOPIC, 7) is None


def test_the_lowest_offset_follows_what_old_brokers_cleaned(desks: StaticBrokers):
    """The start of the newest part in which nothing is missing; a broker that went down has been heard before."""
    clean(desks, "b", 0, 1)

    asked = ask(desks, 31)
    desks.kill("b")
    remembered = ask(desks, 31)

    assert (asked, remembered) == (3, 3)


def test_what_lies_behind_a_cleaned_segment_does_not_count(desks: StaticBrokers):
    """Records before a part that is gone are not offered: a reader could not go on from them."""
    clean(desks, "b", 0, 3)

    assert ask(desks, 31) == 5


@pytest.mark.parametrize(
    ("after_ms", "first", "last"),
    [(0, 0, 0), (1_000, 0, 0), (2_500, 2, 1), (5_000, 4, 4), (6_000, 5, 5), (9_000, 6, 5)],
)
def test_times_are_looked_for_in_all_segments(desks: StaticBrokers, after_ms: int, first: int, last: int):
    """The first record at or after a time, and the last at or before it; a border makes no difference."""
    time = str(START_MS + after_ms)

    assert ask(desks, 29, timestamp=time) == first
    assert ask(desks, 29, timestamp=time, boundaryType="UPPER") == last


def test_the_first_record_of_a_later_segment_is_found(desks: StaticBrokers):
    """Its physical offset is 0, which is an offset like any other."""
    assert ask(desks, 29, timestamp=str(START_MS + 2_001)) == 2


def test_the_earliest_time_is_that_of_the_oldest_record(desks: StaticBrokers):
    """Of whichever broker; when a segment is empty, of the next."""
    before = ask(desks, 32, "timestamp")
    clean(desks, "a", 0, 2)

    assert (before, ask(desks, 32, "timestamp")) == (START_MS + 1_000, START_MS + 3_000)


def test_a_search_that_needs_a_broker_that_is_down_fails_and_names_it(desks: StaticBrokers):
    """One that does not need it succeeds: the times of sealed segments are recorded."""
    desks.kill("b")

    (failed,) = desks["a"].call(a_question(29, timestamp=str(START_MS + 3_000)))

    assert failed.code == 1
    assert "broker b" in (failed.remark or "")
    assert ask(desks, 29, timestamp=str(START_MS + 5_500)) == 5


def test_a_topic_that_is_gone_is_forgotten(desks: StaticBrokers):
    """What old brokers told of it does not count for a topic of the same name."""
    clean(desks, "b", 0, 1)
    ask(desks, 31)
    desks["a"].components.segment_queries.forget_topic(TOPIC)

    view = desks["a"].components.queues.resolve(TOPIC, 0)
    assert view is not None
    assert view.offset_min == 0


def test_an_undecided_segment_is_passed_over(desks: StaticBrokers):
    """-1 never gets into the numbers."""
    queue = desks.queue(0)
    coming = LogicalQueue(0, (*queue.segments,)).prepare("b", 9)
    desks.record(coming, total=1, epoch=EPOCH + 50_000)

    assert (ask(desks, 31), ask(desks, 30), ask(desks, 29, timestamp=str(START_MS + 9_000))) == (0, 6, 6)


def test_a_replica_answers_for_a_broker_that_is_down(desks: StaticBrokers):
    """The same question, to somebody who has the same records."""
    reads = desks["a"].components.segment_queries
    segment = desks.queue(0).segments[1]
    desks["a"].components.view._replicas["b"] = "10.1.0.9:10911"
    steps = reads.request(segment, RequestCode.GET_MAX_OFFSET, {"topic": TOPIC})

    to_master = steps.send(None)
    to_replica = steps.throw(PeerFailed("connection refused"))
    with pytest.raises(StopIteration) as ended:
        steps.send(Command(code=0, fields={"offset": "3"}))

    assert isinstance(to_master, PeerCall)
    assert isinstance(to_replica, PeerCall)
    assert (to_master.address, to_replica.address) == (desks.address("b"), "10.1.0.9:10911")
    assert to_replica.command.fields == to_master.command.fields == {"topic": TOPIC, "lo": "false", "bname": "b"}
    assert ended.value.value.fields == {"offset": "3"}


def test_where_neither_answers_the_broker_is_named(desks: StaticBrokers):
    """It is the one that an operator can start."""
    reads = desks["a"].components.segment_queries
    desks["a"].components.view._replicas["b"] = "10.1.0.9:10911"
    steps = reads.request(desks.queue(0).segments[1], RequestCode.GET_MAX_OFFSET, {"topic": TOPIC})
    steps.send(None)
    steps.throw(PeerFailed("connection refused"))

    with pytest.raises(PeerFailed, match="broker b, which holds this part of the queue"):
        steps.throw(PeerFailed("connection refused"))


@pytest.mark.parametrize("fields", [{}, {"offset": "-1"}, {"offset": "many"}])
def test_an_answer_without_an_offset_is_no_answer(desks: StaticBrokers, fields: dict[str, str]):
    """A number in its place would expire messages, or let readers skip them."""
    reads = desks["a"].components.segment_queries
    steps = reads.bounds(TOPIC, desks.queue(0).segments[1])
    steps.send(None)

    with pytest.raises(PeerFailed, match="broker b, which holds this part of the queue, answered without an offset"):
        steps.send(Command(code=0, fields=fields))
