import pytest

from holdfast.model.queue import MessageQueue
from holdfast.sim.checkers.offset_identity import QueueOffset
from holdfast.sim.checkers.progress import COMMIT_LAG_MS, FinishInfo, ProgressChecker
from holdfast.sim.world.workload import Kind, PlannedMessage
from holdfast.sim.world.world import Violation

QUEUE = MessageQueue("t", "broker-a", 0)


def consume(progress: ProgressChecker, *offsets: int, now_ms: int = 0, shares: int = 4) -> None:
    for offset in offsets:
        progress.consumed("g", f"m{offset}", QueueOffset("broker-a", "t", 0, offset), FinishInfo(now_ms, shares))


def test_what_is_committed_has_been_consumed():
    """Up to the first offset that has not."""
    progress = ProgressChecker()
    consume(progress, 0, 1, 3)

    progress.committed("g", QUEUE, 2)
    with pytest.raises(Violation, match="committed means consumed"):
        progress.committed("g", QUEUE, 3)

    consume(progress, 2)
    progress.committed("g", QUEUE, 4)


def test_offsets_without_a_message_need_not_be_consumed():
    """Whether they are found before or after their neighbours."""
    progress = ProgressChecker()
    progress.skip(QUEUE, [range(1)])
    consume(progress, 1)
    progress.skip(QUEUE, [range(2, 3)])

    progress.committed("g", QUEUE, 3)

    assert progress.find_frontier("g", QUEUE) == 3
    with pytest.raises(Violation, match="committed 4, consumed 3"):
        progress.committed("g", QUEUE, 4)


def test_a_redelivery_is_counted_and_in_a_calm_run_a_violation():
    """There it has no excuse."""
    progress = ProgressChecker()
    consume(progress, 0, 1, 0)
    assert progress.redelivered == 1

    progress.is_undisturbed = True
    with pytest.raises(Violation, match="nothing comes twice"):
        consume(progress, 1)


def test_two_members_may_have_a_message_while_only_one_of_them_has_heard_of_a_growth():
    """For so long as the first one's commit may take; after that the same is a violation, as it is among equals."""
    progress = ProgressChecker()
    progress.is_undisturbed = True
    consume(progress, 0, 1, now_ms=1_000, shares=4)

    consume(progress, 0, now_ms=1_000 + COMMIT_LAG_MS - 1, shares=6)

    with pytest.raises(Violation, match="nothing comes twice"):
        consume(progress, 1, now_ms=1_000 + COMMIT_LAG_MS, shares=6)
    with pytest.raises(Violation, match="nothing comes twice"):
        consume(progress, 1, now_ms=1_001, shares=4)


def test_an_ordered_group_has_no_such_excuse():
    """Its members lock their queues, whatever they know of the topic."""
    progress = ProgressChecker()
    progress.is_undisturbed = True
    consume(progress, 0, shares=0)

    with pytest.raises(Violation, match="nothing comes twice"):
        consume(progress, 0, shares=0)


def test_what_a_group_has_not_finished_is_missing():
    """To be done with a place is not to have consumed the message: it may have been given back."""
    progress = ProgressChecker()
    jobs = [PlannedMessage(uid=uid, topic="t", kind=Kind.PLAIN, size=10) for uid in ("m0", "m1")]
    consume(progress, 0, 1)

    progress.finished("g", "m1")

    assert progress.find_missing("g", jobs) == ["m0"]
    assert progress.find_missing("other", jobs) == ["m0", "m1"]


def test_the_gap_of_a_forced_move_need_not_be_consumed():
    """Known before what is in front of it, or after."""
    progress = ProgressChecker()
    consume(progress, 0)
    progress.skip(QUEUE, [range(2, 1 << 40)])
    progress.committed("g", QUEUE, 1)
    assert progress.find_frontier("g", QUEUE) == 1

    consume(progress, 1)

    progress.committed("g", QUEUE, 1 << 40)
    assert progress.find_frontier("g", QUEUE) == 1 << 40
