"""An index is converted, and for every n the power goes at the n-th call to the disk, or that call fails.

Whatever is left, a broker serves the old index whole, or the new one, or says what to run; and running it ends well.
"""

from __future__ import annotations

import copy
from random import Random

import pytest
from tests.anomaly.test_store_faults import Countdown, PowerCut
from tests.support.conversions import convert, damaged_disk, fill_store, index_files, plain_disk, read_served

from holdfast.model.errors import DiskFailed, StoreError
from holdfast.model.topic import find_index_name
from holdfast.sim.world.disk import SimDisk
from holdfast.store.conversion.index_conversion import find_configured_kind
from holdfast.store.recovery.conversion_plan import ConvertedKind

COUNT = 1 << 40
FOLDERS = {"batch": "batchconsumequeue", "simple": "consumequeue"}


def start(to: ConvertedKind) -> SimDisk:
    """Return a folder of several queues and files, with the kind of index that is not *to*."""
    disk = plain_disk()
    fill_store(disk, 13, queues=2)
    if to == "simple":
        convert(disk, "batch")
    disk.sync()
    return disk


def count_calls(disk: SimDisk, to: ConvertedKind, *, only_changes: bool) -> int:
    counter = Countdown(COUNT, PowerCut(), only_changes=only_changes)
    disk.before = counter
    convert(disk, to)
    disk.before = None
    return COUNT - counter.left


def check_as_strangers_see_it(disk: SimDisk) -> None:
    """A Java broker knows no notes of ours: it refuses two indexes, and one must be what the attribute says."""
    kinds = {kind for kind, folder in FOLDERS.items() if disk.list(f"{folder}/orders")}
    assert kinds in ({find_index_name(find_configured_kind(disk, "orders").queue_type)}, {"batch", "simple"})


def is_served(disk: SimDisk, before: object) -> bool:
    """Return whether a broker starts, then serving all that there was; if not, it has said why."""
    disk = copy.deepcopy(disk)
    disk.before = disk.after = None
    check_as_strangers_see_it(disk)
    try:
        assert read_served(disk) == before
    except StoreError as error:
        assert "holdfast index convert orders" in str(error)  # noqa: PT017 - it may also not happen
        return False
    return True


@pytest.mark.parametrize("to", ["batch", "simple"])
@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_conversion_survives_a_power_cut_at_every_call(to: ConvertedKind, moment: str):
    """Twice in a row, in fact: the second one in the middle of what goes on behind the first."""
    fresh = start(to)
    wanted = copy.deepcopy(fresh)
    before = read_served(copy.deepcopy(fresh))
    total = count_calls(wanted, to, only_changes=True)
    assert total > 30
    refused = 0
    for n in range(1, total + 1):
        disk, random = copy.deepcopy(fresh), Random(n)
        for cut in (n, random.randint(1, total)):
            setattr(disk, moment, Countdown(cut, PowerCut(), only_changes=True))
            try:
                convert(disk, to)
            except PowerCut:
                setattr(disk, moment, None)
                disk.crash(random)
            refused += not is_served(disk, before)

        setattr(disk, moment, None)
        convert(disk, to)

        assert index_files(disk, "consumequeue") == index_files(wanted, "consumequeue")
        assert index_files(disk, "batchconsumequeue") == index_files(wanted, "batchconsumequeue")
        assert read_served(disk) == before
    assert refused, "no cut was in the middle of a switch"


@pytest.mark.parametrize("to", ["batch", "simple"])
def test_a_conversion_survives_a_failing_call(to: ConvertedKind):
    """It says so, and the next run goes on."""
    fresh = start(to)
    before = read_served(copy.deepcopy(fresh))
    total = count_calls(copy.deepcopy(fresh), to, only_changes=False)
    for n in range(1, total + 1):
        disk = copy.deepcopy(fresh)
        disk.before = Countdown(n, DiskFailed("planted"), only_changes=False)
        with pytest.raises(StoreError, match="planted"):
            convert(disk, to)
        disk.before = None
        is_served(disk, before)

        convert(disk, to)

        assert read_served(disk) == before


def test_a_broker_may_work_between_any_two_runs():
    """Lost offsets and all: whatever was converted when it started, nothing is served that is not in the log."""
    fresh = damaged_disk()
    fresh.sync()
    total = count_calls(copy.deepcopy(fresh), "batch", only_changes=True)
    for n in range(1, total + 1):
        disk = copy.deepcopy(fresh)
        disk.after = Countdown(n, PowerCut(), only_changes=True)
        with pytest.raises(PowerCut):
            convert(disk, "batch")
        disk.after = None
        disk.crash(Random(n))
        before = read_served(copy.deepcopy(fresh))
        if is_served(disk, before):
            fill_store(disk, 3)
            before = read_served(copy.deepcopy(disk))

        convert(disk, "batch")

        assert read_served(disk) == before
