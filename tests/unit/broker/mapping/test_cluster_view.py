"""What a broker believes of the others, driven by hand: each call it makes is answered, or not."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from holdfast.broker.flow.awaitables import ParallelCalls, Pause, PeerCall, Procedure
from holdfast.broker.mapping.cluster_view import ClusterView
from holdfast.broker.options import BrokerOptions
from holdfast.model.errors import PeerFailed
from holdfast.model.leadership import Leader
from holdfast.model.mapping import TopicMapping, new_logical_queue
from holdfast.model.queue import MessageQueue
from holdfast.model.scope import GLOBAL
from holdfast.wire.cluster.mapping import encode, to_info
from holdfast.wire.cluster.route import join_route
from holdfast.wire.frames.command import Command

SERVERS = ("10.0.0.1:9876", "10.0.0.2:9876")
CLUSTER = (
    b'{"brokerAddrTable":{"b":{"brokerAddrs":{0:"10.0.1.2:1"},"brokerName":"b","cluster":"C"},'
    b'"slave":{"brokerAddrs":{1:"10.0.1.3:1"},"brokerName":"slave","cluster":"C"}},"clusterAddrTable":{"C":["b"]}}'
)


def a_view() -> ClusterView:
    return ClusterView(BrokerOptions(name="a", namesrv=SERVERS, listen="10.0.1.1:1"))


def a_route(*leaders: str, generation_of: int = 0, scope: str = GLOBAL) -> bytes:
    """Return a route in which each of *leaders* leads the queue of its place."""
    mappings = {}
    for name in set(leaders):
        queues = {
            number: new_logical_queue(number, name, number) for number, leader in enumerate(leaders) if leader == name
        }
        record = TopicMapping(
            topic="T", broker=name, scope=scope, epoch=generation_of, total=len(leaders), queues=queues
        )
        mappings[name] = encode(to_info(record))
    return join_route([], [], filter_servers={}, mappings=mappings)


def run(steps: Procedure[object], answer: Callable[[PeerCall], Command | None]) -> list[PeerCall]:
    """Run *steps*; return the calls they made. None means that nobody answers."""
    calls = []
    try:
        wait = steps.send(None)
        while True:
            assert isinstance(wait, ParallelCalls)
            calls += wait.calls
            wait = steps.send([answer(call) or PeerFailed("no answer") for call in wait.calls])
    except StopIteration:
        return calls


def by_code(**bodies: bytes) -> Callable[[PeerCall], Command | None]:
    """Answer 106 and 105 with these bodies."""
    return lambda call: Command(code=0, body=bodies[f"c{call.command.code}"])


def test_name_servers_are_asked_for_addresses_and_leaders():
    """All of them, at once: one may be behind, and several may be dead. Slaves are nobody to us."""
    view = a_view()

    calls = run(view.refresh("T"), by_code(c106=CLUSTER, c105=a_route("b", "c")))

    assert [(call.address, call.command.code) for call in calls] == [
        (server, code) for server in SERVERS for code in (106, 105)
    ]
    assert calls[1].command.fields == {
        "topic": "T",
        "hf.mapping": "1",
        "hf.reports": "1",
        "scope": "DefaultCluster",
    }
    assert (view.address("b"), view.address("slave"), view.address("a")) == ("10.0.1.2:1", None, "10.0.1.1:1")
    assert (view.leader("T", 0), view.leader("T", 1), view.leader("T", 2)) == ("b", "c", None)


@pytest.mark.parametrize("body", [b"", b"nonsense", b"[]", b'{"brokerAddrTable":7}'])
def test_nonsense_and_silence_leave_what_was_believed(body: bytes):
    """A name server that is down, or says something strange, is no reason to forget."""
    view = a_view()
    view.record_address("b", "10.0.1.2:1")
    view.record_leader(MessageQueue("T", "__syslo__global__", 0), Leader("b", 3, 1))

    run(view.refresh("T"), lambda _: None)
    run(view.refresh("T"), lambda _: Command(code=0, body=body))
    run(view.refresh("T"), lambda _: Command(code=1, body=b""))

    assert (view.address("b"), view.leader("T", 0)) == ("10.0.1.2:1", "b")


def test_a_leader_of_an_older_generation_is_not_believed_again():
    """Name servers may answer late, or out of order."""
    view = a_view()
    place = MessageQueue("T", "__syslo__global__", 0)

    view.record_leader(place, Leader("c", 5, 2))
    view.record_leader(place, Leader("b", 4, 9))

    assert view.leader("T", 0) == "c"
    assert view.leader_above("T", 0, 4) == "c"
    assert view.leader_above("T", 0, 5) is None
    view.forget_topic("T")
    assert view.leader("T", 0) is None


def test_doubt_lasts_until_the_next_refresh():
    """Whoever finds that a leader leads no more asks first; when nobody answers, the old belief has to do."""
    view = a_view()
    view.record_address("b", "10.0.1.2:1")

    view.suspect_addresses()
    doubted = view.address("b")
    run(view.refresh(), lambda _: None)

    assert (doubted, view.address("b")) == (None, "10.0.1.2:1")


def test_an_address_that_proved_wrong_is_forgotten():
    """Never our own."""
    view = a_view()
    view.record_address("b", "10.0.1.2:1")

    view.forget_address("10.0.1.2:1")
    view.forget_address("10.0.1.1:1")

    assert (view.address("b"), view.address("a")) == (None, "10.0.1.1:1")


def test_a_broker_that_nobody_knows_is_told_by_name():
    """After the name servers were asked."""
    view = a_view()
    steps = view.find_address("z")

    with pytest.raises(PeerFailed, match="broker z"):
        run(steps, by_code(c106=CLUSTER))


def test_what_several_want_at_once_is_asked_once():
    """The others wait for the first."""
    view = a_view()
    first, second = view.refresh("T"), view.refresh("T")
    first.send(None)

    assert isinstance(second.send(None), Pause)
    first.close()
    with pytest.raises(StopIteration):
        second.send(b"")


def test_a_topic_of_the_same_name_in_another_cluster_is_no_concern():
    """Its queues have the same numbers. Brokers of a scope are those of its clusters."""
    view = a_view()
    queues = {0: new_logical_queue(0, "far", 0)}
    view.record_mappings("T", [TopicMapping(topic="T", broker="far", scope="C", epoch=9, total=1, queues=queues)])
    run(view.refresh(), by_code(c106=CLUSTER))

    assert view.leader("T", 0) is None
    assert view.cluster_of("b") == "C"
    assert view.cluster_of("unheard") == "DefaultCluster"
    assert (view.brokers(), view.brokers("C"), view.brokers("DefaultCluster")) == (["b"], ["b"], [])


STATIC, NORMAL = Command(code=0, body=a_route("b")), Command(code=0, body=join_route([], [], filter_servers={}))
ELSEWHERE = Command(code=0, body=a_route("far", scope="C"))
BUSY, UNHEARD_OF, BROKEN = Command(code=2), Command(code=17), Command(code=1)


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ((STATIC, UNHEARD_OF), True),
        ((NORMAL, UNHEARD_OF), False),
        ((ELSEWHERE, UNHEARD_OF), False),
        ((BUSY, NORMAL), True),
        ((None, UNHEARD_OF), False),
        ((None, BROKEN), None),
        ((None, None), None),
    ],
)
@pytest.mark.parametrize("believed", [True, False])
def test_whether_a_topic_is_static_is_believed_until_somebody_knows_better(
    answers: tuple[Command | None, Command | None], *, expected: bool | None, believed: bool
):
    """Who is busy has heard of it, who never heard of it knows that much; silence says nothing."""
    view = a_view()
    run(view.refresh("T"), lambda call: None if call.command.code == 106 else STATIC if believed else UNHEARD_OF)

    told = iter(answers)
    run(view.refresh("T"), lambda call: None if call.command.code == 106 else next(told))

    assert view.is_static("T") is (believed if expected is None else expected)
    view.forget_topic("T")
    assert not view.is_static("T")


def test_replicas_are_known_for_reading_and_are_nobodys_address() -> None:
    """A broker of which only a replica is up is down; its replica can be read. One that is gone is forgotten."""
    view = a_view()
    run(view.refresh(), lambda call: Command(code=0, body=CLUSTER))

    assert (view.address("slave"), view.replica("slave"), view.replica("b")) == (None, "10.0.1.3:1", None)
    assert view.replicas() == ["10.0.1.3:1"]
    run(view.refresh(), lambda call: Command(code=0, body=CLUSTER.replace(b'{1:"10.0.1.3:1"}', b'{0:"10.0.1.3:1"}')))

    assert (view.address("slave"), view.replica("slave")) == ("10.0.1.3:1", None)
