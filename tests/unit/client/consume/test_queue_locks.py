"""Which queues only we may consume."""

from holdfast.client.consume.queue_locks import LOCK_EXPIRY_MS, HeldLocks
from holdfast.model.queue import MessageQueue

ONE, TWO = MessageQueue("t", "b", 0), MessageQueue("t", "b", 1)


def test_a_lock_is_believed_for_half_a_minute_after_it_was_asked_for():
    """The broker forgets it after a whole one, so two never believe at once."""
    locks = HeldLocks()
    locks.grant([ONE], 1000)

    assert locks.is_held(ONE, 1000 + LOCK_EXPIRY_MS - 1)
    assert not locks.is_held(ONE, 1000 + LOCK_EXPIRY_MS)
    assert not locks.is_held(TWO, 1000)


def test_a_renewed_lock_is_held_on():
    """Counted from the renewal."""
    locks = HeldLocks()
    locks.grant([ONE], 0)
    locks.grant([ONE], 20_000)

    assert locks.is_held(ONE, 40_000)


def test_a_dropped_lock_is_not_held():
    """At once."""
    locks = HeldLocks()
    locks.grant([ONE, TWO], 0)

    locks.drop([ONE])

    assert not locks.is_held(ONE, 1)
    assert locks.is_held(TWO, 1)
