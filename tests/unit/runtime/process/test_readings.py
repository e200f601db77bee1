"""How busy the machine is, read from files as Linux writes them."""

from pathlib import Path

import pytest

from holdfast.machine.readings import LinkCapacity
from holdfast.runtime.process.readings import SystemReadings

MEMINFO = "MemTotal:       1000 kB\nMemFree:         100 kB\nMemAvailable:    250 kB\nHugePages_Total:       0\n"
NET = """Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes packets errs drop fifo colls carrier compressed
    lo: {lo} 9 0 0 0 0 0 0 {lo} 9 0 0 0 0 0 0
  eth0: {received} 9 0 0 0 0 0 0 {sent} 9 0 0 0 0 0 0
  eth1:{other} 9 0 0 0 0 0 0 0 9 0 0 0 0 0 0
"""


def write(root: Path, path: str, text: str) -> None:
    """Put a file where the system would have it."""
    place = root / path
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(text)


def count(root: Path, *, lo: int = 0, received: int = 0, sent: int = 0, other: int = 0) -> None:
    """Let the interfaces have carried so many bytes."""
    write(root, "proc/net/dev", NET.format(lo=lo, received=received, sent=sent, other=other))


def test_memory_is_what_is_not_available_of_all(tmp_path: Path):
    """What can be given back is not in use."""
    write(tmp_path, "proc/meminfo", MEMINFO)
    system = SystemReadings(tmp_path)

    system.update(1.0)

    assert system.readings.memory == 75.0


@pytest.mark.parametrize(
    ("folder", "limit_file", "used_file", "stat"),
    [
        ("sys/fs/cgroup", "memory.max", "memory.current", "inactive_file 100000\n"),
        ("sys/fs/cgroup/slice/holdfast", "memory.max", "memory.current", "anon 1\ninactive_file 100000\n"),
        ("sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file 100000\n"),
    ],
)
def test_a_lower_limit_of_the_control_group_counts_instead(
    tmp_path: Path, folder: str, limit_file: str, used_file: str, stat: str
):
    """Of either version; its page cache can be given back too."""
    write(tmp_path, "proc/meminfo", MEMINFO)
    write(tmp_path, "proc/self/cgroup", "0::/slice/holdfast\n")
    write(tmp_path, f"{folder}/{limit_file}", "500000\n")
    write(tmp_path, f"{folder}/{used_file}", "200000\n")
    write(tmp_path, f"{folder}/memory.stat", stat)
    system = SystemReadings(tmp_path)

    system.update(1.0)

    assert system.readings.memory == 20.0


@pytest.mark.parametrize("limit", ["max", "9223372036854771712"])
def test_a_control_group_without_a_limit_does_not_count(tmp_path: Path, limit: str):
    """Then the machine's memory is the limit."""
    write(tmp_path, "proc/meminfo", MEMINFO)
    write(tmp_path, "sys/fs/cgroup/memory.max", limit)
    write(tmp_path, "sys/fs/cgroup/memory.current", "200000")
    system = SystemReadings(tmp_path)

    system.update(1.0)

    assert system.readings.memory == 75.0


def test_load_is_runnable_tasks_for_each_processor(tmp_path: Path):
    """Of the last minute; it may be above 100."""
    write(tmp_path, "proc/loadavg", "3.00 1.00 0.50 2/300 4711\n")
    system = SystemReadings(tmp_path, processors=2)

    system.update(1.0)

    assert system.readings.load == 150.0


def test_network_is_the_busier_direction_of_the_busiest_interface(tmp_path: Path):
    """Known from the second reading on: it takes two to make a rate."""
    write(tmp_path, "sys/class/net/eth0/speed", "8\n")  # a million bytes a second
    write(tmp_path, "sys/class/net/eth1/speed", "80\n")
    system = SystemReadings(tmp_path)
    count(tmp_path, received=1_000, sent=5_000)
    system.update(10.0)
    assert system.readings.network is None

    count(tmp_path, received=101_000, sent=1_405_000, other=2_000_000)
    system.update(12.0)

    assert system.readings.network == pytest.approx(70.0)


@pytest.mark.parametrize("speed", ["-1\n", "0\n", "unreadable", None])
def test_an_interface_without_a_known_capacity_makes_the_use_of_the_network_unknown(tmp_path: Path, speed: str | None):
    """Not 0: nobody knows. Loopback never counts, whatever it carries."""
    if speed is not None:
        write(tmp_path, "sys/class/net/eth0/speed", speed)
    write(tmp_path, "sys/class/net/lo/speed", "1")
    system = SystemReadings(tmp_path)

    for number in range(3):
        count(tmp_path, lo=number * 10**9, sent=number * 10**9)
        system.update(float(number))

    assert (system.readings.network, system.readings.link) == (None, None)


@pytest.mark.parametrize("speed", [None, "-1\n", "80\n"])
def test_a_stated_capacity_counts_for_every_interface(tmp_path: Path, speed: str | None):
    """Where an interface reports no speed, and also where it reports another one; loopback still never counts."""
    if speed is not None:
        write(tmp_path, "sys/class/net/eth0/speed", speed)
    system = SystemReadings(tmp_path, link_capacity_mbit=8)  # a million bytes a second
    count(tmp_path)
    system.update(10.0)
    assert (system.readings.network, system.readings.link) == (None, LinkCapacity(8, "stated"))

    count(tmp_path, lo=10**9, received=100_000, sent=1_400_000)
    system.update(12.0)

    assert system.readings.network == pytest.approx(70.0)
    assert system.readings.link == LinkCapacity(8, "stated")


def test_the_capacity_is_that_of_the_busiest_interface(tmp_path: Path):
    """It is what the percentage is of; before there is a rate, that of the fastest."""
    write(tmp_path, "sys/class/net/eth0/speed", "8\n")
    write(tmp_path, "sys/class/net/eth1/speed", "80\n")
    system = SystemReadings(tmp_path)
    count(tmp_path)
    system.update(1.0)
    assert system.readings.link == LinkCapacity(80, "detected")

    count(tmp_path, sent=100_000)
    system.update(2.0)

    assert system.readings.network == pytest.approx(10.0)
    assert system.readings.link == LinkCapacity(8, "detected")


def test_an_interface_that_comes_or_is_counted_anew_makes_no_nonsense(tmp_path: Path):
    """Fewer bytes than before are none; an interface that was not there has no rate yet."""
    write(tmp_path, "sys/class/net/eth0/speed", "8")
    system = SystemReadings(tmp_path)
    count(tmp_path, sent=5_000_000)
    system.update(1.0)

    count(tmp_path, sent=7)
    system.update(2.0)
    assert system.readings.network == 0.0
    system.update(2.0)
    assert system.readings.network is None

    write(tmp_path, "proc/net/dev", "")
    system.update(3.0)
    assert system.readings.network is None


def test_where_the_system_tells_nothing_nothing_is_known(tmp_path: Path):
    """Files that are not there, or hold something else."""
    system = SystemReadings(tmp_path)
    system.update(1.0)
    readings = system.readings
    assert (readings.memory, readings.load, readings.network) == (None, None, None)

    for path in ("proc/meminfo", "proc/loadavg", "proc/net/dev"):
        write(tmp_path, path, "MemTotal: many kB\n: :\n eth0: a b c\n")
    system.update(2.0)
    assert (readings.memory, readings.load, readings.network) == (None, None, None)


def test_the_readings_stay_the_same_object(tmp_path: Path):
    """A role was given it once."""
    system = SystemReadings(tmp_path)
    readings = system.readings
    write(tmp_path, "proc/meminfo", MEMINFO)

    system.update(1.0)

    assert system.readings is readings
    assert readings.memory == 75.0


def test_this_machine_tells_its_memory_and_load():
    """On any Linux."""
    system = SystemReadings()

    system.update(1.0)

    assert system.readings.memory is not None
    assert 0 < system.readings.memory < 100
    assert system.readings.load is not None
