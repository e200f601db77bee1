from __future__ import annotations

import pytest

from holdfast.model.errors import StoreError
from holdfast.sim.world.disk import SimDisk
from holdfast.store.recovery.conversion_plan import (
    ConversionPlan,
    ConversionProgress,
    IndexLayout,
    PiecePlan,
    SourceQueue,
    load_plan,
    load_progress,
    refuse_half_switched,
    save_plan,
)

PLAN = ConversionPlan(
    topic="orders",
    to="simple",
    source_file_size=230,
    target_file_size=100,
    queues=[SourceQueue(queue_id=3, first=1, end=9, is_gone=False, last=b"\xff\0", last_ms=7)],
    spans={3: (4, 12)},
    pieces=[PiecePlan(0, 3, 1, 9, 4)],
)


def test_plan_and_progress_are_found_again():
    """As they were saved; where there is none, nothing."""
    disk = SimDisk()
    assert (load_plan(disk, "orders"), load_progress(disk, "orders")) == (None, None)
    progress = ConversionProgress(topic="orders", to="simple", state="building", done=[(0, 4)])

    save_plan(disk, PLAN)
    progress.save(disk)

    assert (load_plan(disk, "orders"), load_progress(disk, "orders")) == (PLAN, progress)


def test_what_cannot_be_read_is_told():
    """Nobody guesses how far it was."""
    disk = SimDisk()
    disk.replace("holdfast/conversion/orders/progress.json", b"{")

    with pytest.raises(StoreError, match=r"progress.json cannot be read"):
        load_progress(disk, "orders")


def test_places_are_those_that_brokers_look_at():
    """And the one aside is none of them."""
    assert PLAN.source == IndexLayout("batchconsumequeue/orders", 46, 230)
    assert PLAN.target == IndexLayout("consumequeue/orders", 20, 100)
    assert PLAN.built == IndexLayout("holdfast/conversion/orders/new", 20, 100)
    names = ["00000000000000000000", "00000000000000000100", "00000000000000000200"]
    assert list(PLAN.built_paths()) == [f"holdfast/conversion/orders/new/3/{name}" for name in names]


def test_done_pieces_are_kept_as_ranges():
    """In whatever order they come."""
    progress = ConversionProgress(topic="orders", to="batch", state="building")

    for numbers in ([4], [0, 1], [3], [1], [7]):
        progress = progress.with_done(numbers)

    assert progress.done == [(0, 2), (3, 5), (7, 8)]
    assert progress.missing(10) == [2, 5, 6, 8, 9]


@pytest.mark.parametrize("state", ["planning", "building", "done"])
def test_a_folder_is_served_while_one_index_is_whole(state: str):
    """The old one, or the new one."""
    disk = SimDisk()
    ConversionProgress(topic="orders", to="batch", state=state).save(disk)  # type: ignore[arg-type]

    refuse_half_switched(disk)

    ConversionProgress(topic="bills", to="batch", state="switching").save(disk)
    with pytest.raises(StoreError, match="topic bills is half switched"):
        refuse_half_switched(disk)


def test_a_folder_is_not_served_in_the_middle_of_a_switch():
    """The text says how to end it."""
    disk = SimDisk()
    ConversionProgress(topic="orders", to="batch", state="switching").save(disk)

    with pytest.raises(StoreError, match="holdfast index convert orders --to batch --store"):
        refuse_half_switched(disk)
