"""A client that signs its requests and repeats a refused pull waits as long as for a message."""

import pytest
from tests.support.access import Users, guarded_broker, log_in, signed
from tests.support.cluster.broker_machine import BrokerHarness, a_pull
from tests.support.cluster.machine import codes

from holdfast.broker.consume.refused_pulls import REFUSED_PULLS_TIMER, REMEMBERED_MAX
from holdfast.machine.effects import SetTimer
from holdfast.wire.frames.codes import ResponseCode
from holdfast.wire.frames.command import Command

NO_PERMISSION = ResponseCode.NO_PERMISSION
RULES = ("Topic:T Sub", "Group:consumers Sub")
WAIT_MS = 15_000


def a_long_poll(opaque: int = 1, **fields: str) -> Command:
    """Return a signed pull that may wait."""
    all_fields = {"sysFlag": "6", "suspendTimeoutMillis": str(WAIT_MS), **fields}
    return signed(a_pull(opaque=opaque, **all_fields), "alice")


@pytest.fixture
def desk() -> BrokerHarness:
    """A broker with a topic."""
    desk = guarded_broker()
    desk.make_topic("T")
    return desk


@pytest.fixture
def users(desk: BrokerHarness) -> Users:
    """Its users: alice may pull."""
    users = Users(desk)
    users.add("alice", *RULES)
    return users


def test_only_the_first_refusal_of_a_parked_pull_is_answered_at_once(desk: BrokerHarness, users: Users) -> None:
    """The repeated pull is refused when it would have found nothing, and so is the one after it."""
    assert desk.call(a_long_poll(1)) == []
    users.revoke("alice")
    assert codes(desk.pop_answers(1)) == [NO_PERMISSION]

    for opaque in (2, 3):
        assert desk.call(a_long_poll(opaque)) == []
        desk.pass_time(WAIT_MS - 1, REFUSED_PULLS_TIMER)
        assert desk.pop_answers(1) == []
        desk.pass_time(1, REFUSED_PULLS_TIMER)

        (answer,) = desk.pop_answers(1)
        assert (answer.opaque, answer.code) == (opaque, NO_PERMISSION)
        assert "It needs Sub" in answer.remark


def test_every_parked_pull_is_answered_by_a_timer(desk: BrokerHarness, users: Users) -> None:
    """The timer is set for the earliest deadline, and again for the next one."""
    users.revoke("alice")
    deadlines = []
    for queue in ("0", "1"):
        desk.call(a_long_poll(queueId=queue))
        desk.call(a_long_poll(queueId=queue))
        deadlines.append(desk.now_ms + WAIT_MS)
        desk.pass_time(1_000)
    desk.pop_answers(1)

    for deadline_ms in deadlines:
        set_for = [effect.at_ms for effect in desk.effects if isinstance(effect, SetTimer) and is_ours(effect)]
        assert set_for[-1] == deadline_ms
        desk.pass_time(deadline_ms - desk.now_ms, REFUSED_PULLS_TIMER)
        assert codes(desk.pop_answers(1)) == [NO_PERMISSION]


def is_ours(effect: SetTimer) -> bool:
    """Return whether a timer is the one of refused pulls."""
    return effect.name == REFUSED_PULLS_TIMER


def test_only_the_first_refusal_of_a_new_pull_is_answered_at_once(desk: BrokerHarness, users: Users) -> None:
    """Another queue is another pull."""
    users.revoke("alice")

    assert codes(desk.call(a_long_poll())) == [NO_PERMISSION]
    assert desk.call(a_long_poll()) == []
    assert codes(desk.call(a_long_poll(queueId="1"))) == [NO_PERMISSION]


@pytest.mark.parametrize(
    "fields", [{"sysFlag": "4"}, {"suspendTimeoutMillis": "0"}], ids=["no long poll", "waits for no time"]
)
def test_a_pull_that_does_not_wait_is_always_answered_at_once(
    desk: BrokerHarness, users: Users, fields: dict[str, str]
) -> None:
    users.revoke("alice")

    for _ in range(3):
        assert codes(desk.call(a_long_poll(**fields))) == [NO_PERMISSION]


def test_a_client_that_has_logged_in_is_always_answered_at_once(desk: BrokerHarness, users: Users) -> None:
    """It waits longer after each failure."""
    log_in(desk, 1, "alice")
    users.revoke("alice")

    for _ in range(3):
        assert codes(desk.call(a_pull(sysFlag="6", suspendTimeoutMillis=str(WAIT_MS)))) == [NO_PERMISSION]


def test_a_client_that_has_proven_nothing_is_always_answered_at_once(desk: BrokerHarness) -> None:
    """A stranger does not make the broker keep anything."""
    for _ in range(3):
        assert codes(desk.call(a_long_poll())) == [NO_PERMISSION]


def test_a_deleted_user_is_known_by_its_connection(desk: BrokerHarness, users: Users) -> None:
    assert desk.call(a_long_poll()) == []
    users.delete("alice")
    assert codes(desk.pop_answers(1)) == [NO_PERMISSION]

    assert desk.call(a_long_poll()) == []


def test_a_permission_reaches_parked_pulls_at_once(desk: BrokerHarness, users: Users) -> None:
    """The client pulls again where it was. A later refusal is a first one. Other changes wake nothing."""
    users.revoke("alice")
    assert codes(desk.call(a_long_poll())) == [NO_PERMISSION]
    assert desk.call(a_long_poll(2, queueOffset="7")) == []
    users.add("bob", *RULES)
    assert desk.pop_answers(1) == []

    users.grant("alice", *RULES)

    (answer,) = desk.pop_answers(1)
    assert (answer.opaque, answer.code) == (2, ResponseCode.PULL_RETRY_IMMEDIATELY)
    assert answer.fields["nextBeginOffset"] == "7"
    users.revoke("alice")
    assert codes(desk.call(a_long_poll())) == [NO_PERMISSION]


def test_a_closed_channel_leaves_nothing(desk: BrokerHarness, users: Users) -> None:
    users.revoke("alice")
    desk.call(a_long_poll())
    desk.call(a_long_poll())
    refused_pulls = desk.components.refused_pulls
    assert refused_pulls._refused
    assert [sample.value for sample in refused_pulls.metrics()] == [1]

    desk.disconnect(1)

    assert not refused_pulls._refused
    assert [sample.value for sample in refused_pulls.metrics()] == [0]


def test_what_is_kept_is_bounded(users: Users, desk: BrokerHarness) -> None:
    """A channel that is refused more queues than are remembered is answered at once again."""
    users.revoke("alice")
    for queue in range(REMEMBERED_MAX + 1):
        assert codes(desk.call(a_long_poll(queueId=str(queue)))) == [NO_PERMISSION]

    assert codes(desk.call(a_long_poll(queueId="0"))) == [NO_PERMISSION]


def test_only_so_many_pulls_are_parked() -> None:
    desk = guarded_broker(parked_pulls_max=1)
    desk.make_topic("T")
    users = Users(desk)
    users.add("alice", *RULES)
    users.revoke("alice")
    assert codes(desk.call(a_long_poll())) == [NO_PERMISSION]

    assert desk.call(a_long_poll()) == []
    assert codes(desk.call(a_long_poll())) == [NO_PERMISSION]
