import pytest

from holdfast.sim.checkers.commits import NOTHING_SAVED, CommitChecker
from holdfast.sim.world.world import Violation

ROW = ("group", "topic", 0)


def test_a_new_leader_knows_what_the_old_one_knew():
    """Or more: members may have told it meanwhile."""
    commits = CommitChecker()
    commits.record(ROW, 5, 0, "a")

    commits.record(ROW, 5, 1, "b")
    commits.record(ROW, 9, 2, "a")

    with pytest.raises(Violation, match="a had 9"):
        commits.record(ROW, 8, 3, "b")


@pytest.mark.parametrize("offset", [4, None])
def test_a_new_leader_that_knows_less_is_a_violation(offset: int | None):
    """None is the worst: some clients then begin at the end."""
    commits = CommitChecker()
    commits.record(ROW, 5, 0, "a")

    with pytest.raises(Violation, match="moves along"):
        commits.record(ROW, offset, 1, "b")


def test_while_a_queue_stays_a_late_word_may_take_it_back():
    """Of a member that has lost the queue."""
    commits = CommitChecker()
    commits.record(ROW, 5, 0, "a")

    commits.record(ROW, 4, 1, "a")
    commits.record(ROW, 4, 2, "b")

    with pytest.raises(Violation, match="b had 4"):
        commits.record(ROW, 3, 3, "a")


def test_what_a_broker_had_not_saved_when_it_died_is_forgiven_and_nothing_else():
    """It saves every few seconds. What others know does not die with it."""
    commits = CommitChecker()
    commits.record(ROW, 5, 7, "a")
    commits.allow_loss("a", 7)
    commits.allow_loss("c", NOTHING_SAVED)
    with pytest.raises(Violation):
        commits.record(ROW, 4, 8, "b")

    commits.allow_loss("a", 6)
    commits.record(ROW, 4, 8, "b")


def test_who_replaces_a_leader_that_cannot_be_asked_need_not_know_what_that_had():
    """It has to keep what it has itself."""
    commits = CommitChecker()
    commits.record(ROW, 5, 0, "a")
    commits.record_forced_open(ROW, "b")
    commits.record(ROW, 3, 1, "b")
    commits.record_forced_open(ROW, "b")

    with pytest.raises(Violation, match="b had 3"):
        commits.record(ROW, 2, 2, "c")


def test_what_somebody_has_a_copy_of_is_not_forgiven():
    """A forced move finds no more than that, and no less."""
    commits = CommitChecker()
    commits.record(ROW, 9, 0, "a")
    commits.record_backup(ROW, 3, 5, 0, "b")
    commits.allow_loss("a", NOTHING_SAVED)
    commits.expect_backup(ROW, 3, "a", "b")

    with pytest.raises(Violation, match="moves along"):
        commits.record(ROW, 4, 2, "b")
    commits.record(ROW, 5, 2, "b")


def test_a_leader_that_comes_back_before_it_is_replaced_may_have_forgotten():
    """Nobody asks for the copy then; from there on it has to keep what it has."""
    commits = CommitChecker()
    commits.record_backup(ROW, 3, 5, 0, "b")
    commits.expect_backup(ROW, 3, "a", "b")

    commits.record(ROW, None, 1, "a")
    commits.record(ROW, None, 2, "b")

    commits.record_backup(ROW, 4, 5, 2, "c")
    commits.expect_backup(ROW, 4, "b", "c")
    commits.record(ROW, 3, 4, "b")
    with pytest.raises(Violation, match="b had 3"):
        commits.record(ROW, 2, 5, "c")


def test_a_copy_of_another_generation_counts_for_nothing():
    """Its leader was not the last one."""
    commits = CommitChecker()
    commits.record_backup(ROW, 2, 5, 0, "b")

    commits.expect_backup(ROW, 3, "a", "b")
    commits.record(ROW, None, 1, "b")

    commits.expect_backup(ROW, 2, "a", "b")
    with pytest.raises(Violation, match="a had 5"):
        commits.record(ROW, None, 2, "b")


def test_a_copy_may_be_forgotten_with_the_broker_that_keeps_it():
    """If it was not saved yet, or could not be; then its leader is dead, and nobody tells it again."""
    commits = CommitChecker()
    commits.record_backup(ROW, 3, 4, 0, "b")
    commits.record_backup(ROW, 3, 5, 1, "b")
    commits.expect_backup(ROW, 3, "a", "b")
    with pytest.raises(Violation, match="a had 5"):
        commits.record(ROW, None, 2, "b")

    commits.allow_loss("b", 0)
    commits.record(ROW, None, 2, "b")


def test_a_copy_that_was_saved_outlives_the_end_of_its_keeper():
    """It does not matter how often it was told again, nor that another broker died meanwhile."""
    commits = CommitChecker()
    commits.record_backup(ROW, 3, 5, 0, "b")
    commits.record_backup(ROW, 3, 5, 7, "b")
    commits.allow_loss("c", NOTHING_SAVED)
    commits.expect_backup(ROW, 3, "a", "b")

    commits.allow_loss("b", 0)
    with pytest.raises(Violation, match="moves along"):
        commits.record(ROW, None, 8, "b")


def test_what_a_keeper_may_have_forgotten_counts_from_when_it_is_told_again():
    """The copy of before its end is another one."""
    commits = CommitChecker()
    commits.record_backup(ROW, 3, 5, 1, "b")
    commits.allow_loss("b", 0)
    commits.record_backup(ROW, 3, 5, 2, "b")
    commits.expect_backup(ROW, 3, "a", "b")
    with pytest.raises(Violation, match="a had 5"):
        commits.record(ROW, None, 3, "b")

    commits.allow_loss("b", 1)
    commits.record(ROW, None, 3, "b")
