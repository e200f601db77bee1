import pytest
from tests.support.stores import append, open_store, overwrite

from holdfast.broker.recovery_report import DAMAGES_LOGGED_MAX, report_recovery
from holdfast.machine.effects import Log
from holdfast.sim.world.disk import SimDisk
from holdfast.store.message_store import MessageStore
from holdfast.store.recovery.log_repair import Damage
from holdfast.store.recovery.recovery import RecoveryResult


def report(store: MessageStore) -> list[Log]:
    return list(report_recovery(store.recovered, store.log.files.unused))


def test_a_store_that_was_closed_in_order_is_one_line() -> None:
    """With nothing to worry about in it."""
    disk = SimDisk()
    store = open_store(disk)
    append(store)
    store.close(0)

    (line,) = report(open_store(disk))

    assert (line.level, line.event) == ("info", "store opened")
    assert line.fields == {"records": 1, "start": 0, "end": store.written}


def test_a_crash_is_told_with_what_was_read_and_what_was_cut_off() -> None:
    """A torn end is no damage: it was promised to nobody."""
    disk = SimDisk()
    store = open_store(disk)
    for _ in range(3):
        append(store)
    overwrite(disk, "commitlog/00000000000000000000", store.written + 5, b"torn")

    (line,) = report(open_store(disk))

    assert (line.level, line.event) == ("warning", "store recovered after a crash")
    assert line.fields == {"records": 3, "start": 0, "end": store.written, "cut": 9}


def test_bytes_behind_the_end_of_a_closed_store_are_told() -> None:
    """Somebody else has written there."""
    disk = SimDisk()
    store = open_store(disk)
    append(store)
    store.close(0)
    overwrite(disk, "commitlog/00000000000000000000", store.written, b"strange")

    (line,) = report(open_store(disk))

    assert (line.level, line.fields["cut"]) == ("warning", 7)


def test_every_damage_is_told_with_its_place() -> None:
    """So that somebody can look at it, or at a copy."""
    disk = SimDisk()
    store = open_store(disk)
    placed = [append(store, b"body" * 20)[0] for _ in range(4)]
    overwrite(disk, "commitlog/00000000000000000000", placed[1] + 90, b"X")

    _, line = report(open_store(disk))

    assert (line.level, line.event) == ("error", "log damaged")
    assert line.fields["position"] == placed[1]
    assert line.fields["size"] == placed[2] - placed[1]
    assert "checksum" in str(line.fields["reason"])


@pytest.mark.parametrize("count", [DAMAGES_LOGGED_MAX, DAMAGES_LOGGED_MAX + 5])
def test_the_report_is_bounded(count: int) -> None:
    """A rotten disk must not fill another one with lines."""
    found = RecoveryResult(damages=[Damage(number, 1, "rot") for number in range(count)])

    lines = list(report_recovery(found, ["f"] * count))

    assert len(lines) <= 2 + 2 * DAMAGES_LOGGED_MAX
    more = [line.fields["count"] for line in lines if line.event == "log damaged in more places"]
    assert more == ([10] if count > DAMAGES_LOGGED_MAX else [])
