"""Parked pulls are checked again when users or rules change. What the door decides is tested with the door."""

from tests.support.access import Users, guarded_broker, log_in
from tests.support.cluster.broker_machine import BrokerHarness, a_pull, a_send
from tests.support.cluster.machine import codes

from holdfast.access.directory_store import ACCESS_TIMER
from holdfast.broker.completion import PARKED_PULLS_TIMER
from holdfast.wire.frames.codes import ResponseCode


def test_a_refused_pull_is_answered_at_once_and_gets_no_message() -> None:
    """Its deadline does nothing any more either."""
    desk = guarded_broker()
    desk.make_topic("T")
    users = Users(desk)
    users.add("alice", "Topic:T Sub", "Group:consumers Sub")
    users.add("bob", "Topic:T Pub")
    sender = desk.connect()
    log_in(desk, 1, "alice")
    log_in(desk, sender, "bob")
    assert desk.call(a_pull(opaque=5, sysFlag="6")) == []

    users.revoke("alice")

    (answer,) = desk.pop_answers(1)
    assert (answer.opaque, answer.code) == (5, ResponseCode.NO_PERMISSION)
    assert answer.remark == (
        "User:alice has no permission to access Group:consumers from 10.0.0.1, no matched policies. It needs Sub."
    )
    assert codes(desk.call(a_send(), channel=sender)) == [0]
    desk.pass_time(60_000, PARKED_PULLS_TIMER)
    assert desk.pop_answers(1) == []


def test_without_access_control_parked_pulls_wait_on() -> None:
    """Users may be changed then, too."""
    desk = BrokerHarness()
    desk.make_topic("T")
    assert desk.call(a_pull(sysFlag="6")) == []

    Users(desk).add("alice")
    desk.pass_time(0, ACCESS_TIMER)

    assert desk.pop_answers(1) == []
    assert len(desk.components.pull_handler.parked_pulls) == 1
