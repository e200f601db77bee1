"""The checker of resets: told with the next pull, undone by nothing, and forgiven only where nobody promised it."""

import pytest

from holdfast.sim.checkers.resets import UNKNOWN_OUTCOME_MS, ResetChecker
from holdfast.sim.world.world import Violation

ROW = ("topic", 0)


class Leader:
    """What the leader of the queue says: committed, if a reset waits there."""

    def __init__(self) -> None:
        self.waiting: int | None = None
        self.resets = ResetChecker(lambda _row: self.waiting)

    def take(self, offset: int, now_ms: int = 0) -> None:
        """Take a reset, and let it wait."""
        self.resets.requested(ROW, offset, "a", now_ms)
        self.waiting = offset
        self.resets.accepted(ROW, now_ms)


@pytest.mark.parametrize(("asked", "moved_to"), [(9, 5), (5, None)])
def test_a_member_that_is_sent_there_or_was_there_has_heard(asked: int, moved_to: int | None):
    """Then nothing is left to be told."""
    leader = Leader()
    leader.take(5)
    leader.waiting = None

    leader.resets.pulled(ROW, asked, 1, moved_to)

    assert leader.resets.find_unreported() == []


@pytest.mark.parametrize("moved_to", [None, 7])
def test_a_pull_that_hears_nothing_of_a_reset_that_waits_no_more_is_a_violation(moved_to: int | None):
    """Nobody will ever hear of it."""
    leader = Leader()
    leader.take(5)
    leader.waiting = None

    with pytest.raises(Violation, match="the next pull reports a reset"):
        leader.resets.pulled(ROW, 9, 1, moved_to)


def test_a_pull_that_began_before_or_that_a_sealed_queue_answered_says_nothing():
    """The reset still waits, and is to be heard in the end."""
    leader = Leader()
    leader.take(5)

    leader.resets.pulled(ROW, 9, 1, None)
    leader.waiting = None
    leader.resets.pulled(ROW, 9, 0, None)

    assert leader.resets.find_unreported() == ["queue 0 of topic, reset to 5 by a"]


def test_a_commit_that_undoes_what_waits_is_a_violation():
    """It is of the time before."""
    leader = Leader()
    leader.take(5)
    leader.resets.check()
    leader.waiting = 9

    with pytest.raises(Violation, match="nothing undoes"):
        leader.resets.check()


def test_what_was_not_taken_is_not_expected():
    """It was refused, or nobody has answered yet."""
    leader = Leader()
    leader.resets.requested(ROW, 5, "a", 0)
    leader.resets.pulled(ROW, 9, 1, None)
    leader.resets.check()
    leader.resets.refused(ROW)
    leader.resets.accepted(ROW, 2)

    assert leader.resets.find_unreported() == []


def test_what_was_taken_just_before_a_broker_ended_is_forgiven():
    """What is older is saved by then."""
    leader = Leader()
    leader.take(5, 7)
    leader.resets.allow_loss(7)
    assert leader.resets.find_unreported()

    leader.resets.allow_loss(6)
    assert leader.resets.find_unreported() == []


def test_a_forced_move_is_forgiven():
    """But whoever opened by force, and was asked since, has no excuse."""
    leader = Leader()
    leader.take(5)
    leader.resets.record_forced_open(ROW, "a")
    assert leader.resets.find_unreported()
    leader.resets.record_forced_open(ROW, "b")
    assert leader.resets.find_unreported() == []


def test_a_lost_request_leaves_its_queue_in_doubt_for_a_while():
    """It may arrive late, and hear of what was ordered since. A member that begins anew leaves all of them so."""
    leader = Leader()
    leader.resets.member_started(0)
    leader.resets.record_unknown_outcome(ROW, 0)
    leader.take(5, UNKNOWN_OUTCOME_MS - 1)
    assert leader.resets.find_unreported() == []
    leader.take(5, UNKNOWN_OUTCOME_MS)
    assert leader.resets.find_unreported()

    leader.resets.member_started(UNKNOWN_OUTCOME_MS)
    leader.take(5, 2 * UNKNOWN_OUTCOME_MS - 1)
    assert leader.resets.find_unreported() == []


def test_an_order_whose_sender_died_may_come_after_the_next_one():
    """So that one is not expected either."""
    leader = Leader()
    leader.resets.requested(ROW, 3, "a", 0)

    leader.take(5, 1)

    assert leader.resets.find_unreported() == []
