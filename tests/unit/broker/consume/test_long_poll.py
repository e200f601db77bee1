from holdfast.broker.consume.long_poll import ParkedPull, ParkedPulls
from holdfast.machine.events import ChannelId
from holdfast.wire.requests.pull import PullFields, PullHeader


def a_hold(*, channel: int = 1, deadline_ms: int = 100) -> ParkedPull:
    fields = PullFields(consumer_group="g", topic="t", queue_id=0, queue_offset=0)
    return ParkedPull(ChannelId(channel), 0, PullHeader(code=11, opaque=1, fields=fields), deadline_ms, scan_from=0)


def test_a_message_wakes_the_pulls_of_its_queue_only() -> None:
    """Waking a queue takes out what waits for it and leaves the rest."""
    holds: ParkedPulls[str] = ParkedPulls()
    mine, other = a_hold(), a_hold()
    holds.park("q0", mine)
    holds.park("q1", other)

    assert holds.wake("q0") == [mine]

    assert len(holds) == 1
    assert holds.wake("q0") == []
    assert holds.wake("q1") == [other]


def test_pulls_expire_in_the_order_of_their_deadlines() -> None:
    """Only those whose time is up are taken out, earliest first."""
    holds: ParkedPulls[str] = ParkedPulls()
    late, soon, later = a_hold(deadline_ms=30), a_hold(deadline_ms=10), a_hold(deadline_ms=31)
    for hold in (late, soon, later):
        holds.park("q", hold)

    assert holds.next_deadline_ms() == 10
    assert holds.expire(30) == [("q", soon), ("q", late)]

    assert holds.next_deadline_ms() == 31
    assert holds.wake("q") == [later]


def test_a_closed_channel_leaves_no_trace() -> None:
    """Its pulls neither wake nor expire, and nothing keeps them in memory."""
    holds: ParkedPulls[str] = ParkedPulls()
    gone, stays = a_hold(channel=1), a_hold(channel=2)
    holds.park("q", gone)
    holds.park("q", stays)

    holds.drop_channel(ChannelId(1))

    assert len(holds) == 1
    assert holds.wake("q") == [stays]
    assert holds.expire(1000) == []
    assert not holds._by_channel
    assert not holds._by_queue


def test_deadlines_of_woken_pulls_do_not_pile_up() -> None:
    """A busy queue wakes its pulls long before their deadlines; those are dropped."""
    holds: ParkedPulls[str] = ParkedPulls()

    for _ in range(10_000):
        holds.park("q", a_hold(deadline_ms=15_000))
        holds.wake("q")

    assert len(holds._deadlines) < 2_000
    assert holds.next_deadline_ms() is None


def test_a_pull_can_be_parked_again() -> None:
    """A pull that was woken for nothing waits on, with its old deadline."""
    holds: ParkedPulls[str] = ParkedPulls()
    hold = a_hold(deadline_ms=50)
    holds.park("q", hold)
    (woken,) = holds.wake("q")
    woken.is_gone = False
    holds.park("q", woken)

    assert holds.expire(50) == [("q", hold)]
    assert len(holds) == 0


def test_a_pull_that_is_parked_again_for_another_queue_expires_there() -> None:
    """A logical queue that moved away and came back has another physical queue."""
    parked_pulls: ParkedPulls[str] = ParkedPulls()
    parked = a_hold(deadline_ms=10)
    parked_pulls.park("before", parked)
    parked_pulls.wake("before")
    parked.is_gone = False
    parked_pulls.park("after", parked)

    assert parked_pulls.expire(10) == [("after", parked)]

    assert not parked_pulls
    assert parked_pulls.next_deadline_ms() is None
