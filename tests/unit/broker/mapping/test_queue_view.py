"""A queue of a normal topic and one of a static topic that never moved answer every query alike."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from tests.support.broker_clients import a_heartbeat, a_subscription
from tests.support.cluster.broker_machine import a_pull, a_send
from tests.support.cluster.broker_machines import EPOCH, TOPIC, StaticBroker, StaticBrokers, records

from holdfast.broker.mapping.queue_view import QueueView
from holdfast.broker.metrics import broker_samples
from holdfast.model.queue import LogicalOffset, PhysicalOffset
from holdfast.model.topic import BATCH_QUEUE, QUEUE_TYPE, SIMPLE_QUEUE
from holdfast.wire.frames import java_json
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.frames.command import Command

NORMAL = "N"
GROUP = "consumers"
START_MS = 1_700_000_000_000
MOCK = "__syslo__global__"


def new_pair(attributes: dict[str, str] | None = None) -> StaticBrokers:
    """Return a broker with an empty queue 0 of a normal and of a static topic."""
    desks = StaticBrokers("a", "b")
    desks.attributes = attributes or {}
    desks.create("a")
    desk = desks["a"]
    desk.make_topic(NORMAL, queues=1, attributes=desks.attributes)
    desk.components.groups.ensure(GROUP)
    return desks


def fill(desk: StaticBroker, count: int) -> None:
    """Store the same messages in both queues, a second apart."""
    for number in range(count):
        desk.now_ms += 1_000
        for topic in (NORMAL, TOPIC):
            (answer,) = desk.call(a_send(topic, queue=0, body=b"%d" % number))
            assert answer.code == 0


def with_messages(desks: StaticBrokers) -> None:
    fill(desks["a"], 4)


def with_a_cleaned_start(desks: StaticBrokers) -> None:
    fill(desks["a"], 4)
    for topic in (NORMAL, TOPIC):
        index = desks["a"].store.find_queue(topic, 0)
        assert index is not None
        index.offset_min = 2


def with_a_commit(desks: StaticBrokers) -> None:
    fill(desks["a"], 4)
    for topic in (NORMAL, TOPIC):
        desks["a"].components.offsets.commit(GROUP, topic, 0, 3)


def with_a_commit_beyond(desks: StaticBrokers) -> None:
    fill(desks["a"], 1)
    for topic in (NORMAL, TOPIC):
        desks["a"].components.offsets.commit(GROUP, topic, 0, 9)


def with_a_consumer_from_the_end(desks: StaticBrokers) -> None:
    with_a_cleaned_start(desks)
    subscriptions = (a_subscription(NORMAL), a_subscription(TOPIC))
    desks["a"].call(a_heartbeat("client", consumer_group=GROUP, topics=subscriptions))


def with_a_reset(desks: StaticBrokers) -> None:
    with_a_commit(desks)
    for topic in (NORMAL, TOPIC):
        desks["a"].components.offsets.reset(GROUP, topic, 0, 1, deliver=True)


SCENES = [
    lambda desks: None,
    with_messages,
    with_a_cleaned_start,
    with_a_commit,
    with_a_commit_beyond,
    with_a_consumer_from_the_end,
    with_a_reset,
]
SCENE_NAMES = ["empty", "messages", "cleaned", "committed", "committed beyond", "from the end", "reset"]


def a_request(code: int, **fields: object) -> Callable[[str], Command]:
    """Return what makes the same request for any topic."""
    return lambda topic: Command(
        code=code, fields={name: str(value) for name, value in fields.items()} | {"topic": topic}
    )


def a_reset(**fields: object) -> Callable[[str], Command]:
    return a_request(222, **({"group": GROUP, "timestamp": -1, "isForce": "true"} | fields))


QUERIES: dict[str, Callable[[str], Command]] = {
    **{f"pull {at}": (lambda topic, at=at: a_pull(topic, offset=at, maxMsgNums="2")) for at in (0, 1, 2, 3, 4, 5, 99)},
    "pull by a broker": lambda topic: a_pull(topic, offset=1, lo="false"),
    "pull a tag that no message has": lambda topic: a_pull(topic, offset=2, subscription="TagZ"),
    "commit with a pull": lambda topic: a_pull(topic, offset=2, sysFlag="5", commitOffset="10"),
    "committed": a_request(14, consumerGroup=GROUP, queueId=0),
    "committed, without a default": a_request(14, consumerGroup=GROUP, queueId=0, setZeroIfNotFound="false"),
    "commit": a_request(15, consumerGroup=GROUP, queueId=0, commitOffset=2),
    "commit nothing": a_request(15, consumerGroup=GROUP, queueId=0, commitOffset=-1),
    **{
        f"{bound.lower()} at {after_ms}": a_request(29, queueId=0, timestamp=START_MS + after_ms, boundaryType=bound)
        for bound in ("LOWER", "UPPER")
        for after_ms in (0, 1_000, 2_500, 3_000, 4_000, 9_000)
    },
    "end": a_request(30, queueId=0),
    "start": a_request(31, queueId=0),
    "earliest time": a_request(32, queueId=0),
    "end for a broker": a_request(30, queueId=0, lo="false"),
    "start for a broker": a_request(31, queueId=0, lo="false"),
    "earliest time for a broker": a_request(32, queueId=0, lo="false"),
    "upper for a broker": a_request(29, queueId=0, timestamp=START_MS + 2_500, boundaryType="UPPER", lo="false"),
    "bounds of all queues": a_request(202),
    "bounds of all queues, logical": a_request(202, lo="true"),
    "lag": a_request(208, consumerGroup=GROUP),
    "lag, with gaps": a_request(208, consumerGroup=GROUP, lo="true"),
    "time spans": a_request(303, group=GROUP),
    "reset to a time": a_reset(timestamp=START_MS + 2_500),
    "reset to the end": a_reset(),
    "reset to an offset": a_reset(offset=3, queueId=0),
    "reset without force": a_reset(isForce="false"),
    "reset a queue that is not there": a_reset(offset=3, queueId=7),
}


def shown(answer: Command, topic: str) -> object:
    """Return an answer without the names of its topic and broker."""
    if answer.body and answer.body[:1] not in b"{[":
        body: object = [(record.queue_id, record.offset, bytes(record.body)) for record in records(answer)]
    elif answer.body:
        body = java_json.loads(answer.body.replace(MOCK.encode(), b"a").replace(b'"%s"' % topic.encode(), b'"topic"'))
    else:
        body = None
    fields = {name: value for name, value in answer.fields.items() if (name, value) != ("offsetDelta", "0")}
    return answer.code, re.sub(rf"\b{topic}\b", "topic", answer.remark or ""), fields, body


@pytest.mark.parametrize("scene", SCENES, ids=SCENE_NAMES)
@pytest.mark.parametrize("query", QUERIES)
@pytest.mark.parametrize("queue_type", [SIMPLE_QUEUE, BATCH_QUEUE])
def test_every_query_of_a_queue_is_answered_alike(query: str, scene: Callable[[StaticBrokers], None], queue_type: str):
    """A client need not know the kind of its topic, and neither does the code that answers."""
    desks = new_pair({QUEUE_TYPE: queue_type})
    scene(desks)

    (normal,) = desks["a"].call(QUERIES[query](NORMAL))
    (static,) = desks["a"].call(QUERIES[query](TOPIC))

    assert shown(static, TOPIC) == shown(normal, NORMAL)
    offsets = desks["a"].components.offsets
    assert offsets.queues_of(GROUP, TOPIC) == offsets.queues_of(GROUP, NORMAL)
    assert offsets.find_pulled(GROUP, TOPIC, 0) == offsets.find_pulled(GROUP, NORMAL, 0) or query == "pull by a broker"


@pytest.mark.parametrize("scene", SCENES, ids=SCENE_NAMES)
def test_the_metric_of_lag_is_the_same(scene: Callable[[StaticBrokers], None]):
    """It was once forgotten for static topics."""
    desks = new_pair()
    scene(desks)
    components = desks["a"].components

    lags = {
        sample.labels["topic"]: sample.value
        for sample in broker_samples(components.options, components.store, components)
        if sample.name == "broker_group_lag"
    }

    assert lags.get(NORMAL) == lags.get(TOPIC)
    assert (NORMAL in lags) == (components.offsets.groups_of(NORMAL) == [GROUP])


def view_of(desks: StaticBrokers, topic: str, number: int = 0, *, at: str = "a", **flags: bool) -> QueueView:
    view = desks[at].components.queues.resolve(topic, number, **flags)
    assert view is not None
    return view


def test_a_normal_queue_is_a_logical_queue_with_one_segment_here():
    """Its offsets are those of its index."""
    desks = new_pair()
    with_a_cleaned_start(desks)

    view = view_of(desks, NORMAL)

    assert (view.name.broker_name, view.number, view.queue.leader.delta) == ("a", 0, 0)
    assert (view.offset_min, view.offset_max) == (2, 4)
    assert view.count_gap(0, 4) == 0
    assert view.index is desks["a"].store.find_queue(NORMAL, 0)


def test_a_queue_without_messages_is_empty():
    """Also one that its topic does not have, and one of a topic that does not exist."""
    desks = new_pair()

    views = [view_of(desks, NORMAL), view_of(desks, NORMAL, 9), view_of(desks, "nothing")]

    assert [view.has_number for view in views] == [True, False, False]
    assert {(view.offset_min, view.offset_max, view.first_offset_if_hot) for view in views} == {(0, 0, None)}


def test_a_moved_queue_continues_its_offsets():
    """Its bounds are those of all segments; only the leader has a view of it."""
    desks = new_pair()
    fill(desks["a"], 3)
    desks.move(0, "b")
    desks.send(0, b"x")

    view = view_of(desks, TOPIC, at="b")

    assert desks["a"].components.queues.resolve(TOPIC, 0) is None
    assert (view.name.broker_name, view.offset_min, view.offset_max, view.queue.leader.delta) == (MOCK, 0, 4, 3)
    assert view.first_offset_if_hot is None


def test_a_broker_sees_the_physical_queue_behind_a_segment():
    """Whether it leads the logical queue or not: that is what another broker asks for."""
    desks = new_pair()
    fill(desks["a"], 3)
    desks.move(0, "b")

    assert view_of(desks, TOPIC, at="a", is_logical=False).offset_max == 3
    assert view_of(desks, TOPIC, at="b", is_logical=False).offset_max == 0


def test_queues_of_other_leaders_are_not_listed():
    """Readable queues are those that consumers may ask this broker for."""
    desks = StaticBrokers("a", "b")
    desks.create("a", "b", "a")
    desks["a"].make_topic(NORMAL, queues=2)
    queues = desks["a"].components.queues

    assert [view.number for view in queues.readable(TOPIC)] == [0, 2]
    assert [view.number for view in queues.readable(NORMAL)] == [0, 1]
    assert [view.number for view in queues.physical(TOPIC)] == [0, 1]
    assert queues.readable("nothing") == queues.all("nothing") == []


def test_a_queue_that_is_handed_over_is_not_settled():
    """Its next leader may already have the offsets of its groups. A normal queue is never handed over."""
    desks = new_pair()
    queues = desks["a"].components.queues
    static, normal = view_of(desks, TOPIC), view_of(desks, NORMAL)
    before = queues.is_settled(static)

    desks["a"].components.mappings.seal(TOPIC, [0])

    assert (before, queues.is_settled(static), queues.is_settled(normal)) == (True, False, True)


def test_an_undecided_segment_is_skipped():
    """It has no offsets yet."""
    desks = new_pair()
    fill(desks["a"], 2)
    desks.record(desks.queue(0).prepare("b", 9), total=1, epoch=EPOCH + 50_000)

    view = view_of(desks, TOPIC)

    assert (view.offset_min, view.offset_max) == (0, 2)


@pytest.mark.parametrize("topic", [NORMAL, TOPIC])
def test_messages_of_both_kinds_of_topics_are_stored_by_one_rule(topic: str):
    """The target is the physical queue at the end. The topic has no other queue."""
    desks = new_pair()
    fill(desks["a"], 2)
    queues = desks["a"].components.queues

    target = queues.find_target(topic, 0)

    assert target is not None
    assert (target.index, target.to_logical(PhysicalOffset(2))) == (desks["a"].store.find_queue(topic, 0), 2)
    assert (queues.targets(topic), list(queues.writable(topic))) == ({0: target}, [0])
    assert [queues.has_number(topic, number) for number in (-1, 0, 1)] == [False, True, False]
    assert queues.find_state(topic, 0) == "open"


def test_a_moved_queue_has_its_target_at_its_leader():
    """With the delta of its newest segment. The former leader stores nothing for it."""
    desks = new_pair()
    fill(desks["a"], 3)
    desks.move(0, "b")
    before, after = desks["a"].components.queues, desks["b"].components.queues

    target = after.find_target(TOPIC, 0)

    assert target is not None
    assert (target.to_logical(PhysicalOffset(0)), target.offset_max) == (3, 3)
    assert (before.find_target(TOPIC, 0), before.targets(TOPIC), before.find_state(TOPIC, 0)) == (None, {}, "elsewhere")
    assert before.has_number(TOPIC, 0)


def test_a_message_for_any_queue_is_refused_if_none_is_open_here():
    """It names no queue that could be relayed, so its producer chooses another broker."""
    desks = new_pair()
    desks.move(0, "b")

    (answer,) = desks["a"].call(a_send(TOPIC, queue=-1))

    assert answer.code == ResponseCode.NOT_LEADER_FOR_QUEUE


@pytest.mark.parametrize("topic", [NORMAL, TOPIC])
def test_a_topic_that_is_created_again_is_pulled_from_its_new_queue(topic: str):
    """The broker remembers the queues that it was asked for. Those of a deleted topic are gone."""
    desks = new_pair()
    fill(desks["a"], 2)
    desks["a"].call(a_pull(topic, queue=0))
    desks["a"].call(Command(code=RequestCode.DELETE_TOPIC_IN_BROKER, fields={"topic": topic}))
    desks["a"].make_topic(topic, queues=1)

    desks["a"].call(a_send(topic, queue=0, body=b"new"))
    (answer,) = desks["a"].call(a_pull(topic, queue=0))

    assert [record.body for record in records(answer)] == [b"new"]


def test_committed_offsets_are_kept_under_the_logical_queue():
    """A broker that names a segment gets and sends physical offsets."""
    desks = new_pair()
    fill(desks["a"], 3)
    desks.move(0, "b")
    queues = desks["b"].components.queues

    logical, segment = view_of(desks, TOPIC, at="b"), view_of(desks, TOPIC, at="b", is_logical=False)
    clients, brokers = queues.find_commit_target(logical), queues.find_commit_target(segment)

    assert clients is not None
    assert brokers is not None
    assert (clients.number, clients.to_logical(4), clients.to_named(LogicalOffset(4))) == (0, 4, 4)
    assert (brokers.number, brokers.to_logical(1), brokers.to_named(LogicalOffset(4))) == (0, 4, 1)
    assert (brokers.to_named(LogicalOffset(2)), brokers.to_named(None)) == (None, None)
    assert queues.find_commit_target(view_of(desks, NORMAL, 9, at="b")) is None
