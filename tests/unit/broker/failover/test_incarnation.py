"""The number of a process rises with every start."""

from holdfast.broker.failover.incarnation import FILE, start_incarnation
from holdfast.machine.turn import Turn
from holdfast.sim.world.disk import SimDisk
from holdfast.store.base.config_files import config_path


def test_the_number_rises_when_the_clock_goes_back():
    """Whoever compares two of them knows which process is the newer one."""
    disk = SimDisk()

    boots = [start_incarnation(disk, Turn(now_ms)) for now_ms in (5_000, 4_000, 4_000, 9_000)]

    assert boots == [5_000, 5_001, 5_002, 9_000]


def test_the_number_is_on_disk_before_anybody_hears_of_it():
    """Else the next process could have the same."""
    disk = SimDisk()

    boot = start_incarnation(disk, Turn(5_000))

    assert str(boot).encode() in (disk.read_file(config_path(FILE)) or b"")
