"""Memory, load and network use of this machine, as Linux reports them, each in percent; None if it reports none.

    memory    /proc/meminfo: unavailable of total memory; or the control group's use of its limit, if that is lower
    load      /proc/loadavg: runnable tasks of the last minute for each processor
    network   /proc/net/dev: bytes per second of the busiest interface in its busier direction, relative to its speed in
              /sys, or to the capacity that the operator stated

Loopback has no speed, and most virtual interfaces report none: if no interface reports one and the operator stated no
capacity, the network use is unknown. Reads a few small files on the event loop: some 100 µs once per second.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, Literal

from holdfast.machine.readings import LinkCapacity, Readings

INTERVAL_S: Final = 1.0
"""The recommended interval between two calls of `update`."""
_SPEED_REUSE_READS: Final = 60
_BITS_PER_MBIT: Final = 1_000_000
_LOOPBACK: Final = "lo"
_CGROUP: Final = "sys/fs/cgroup"
# For control groups version 2 and 1: the files with the limit and the use, and the name of the reclaimable part.
_LIMIT_FILES: Final = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


_TrafficCount = tuple[float, dict[str, tuple[int, int]]]
"""The time, and the bytes received and sent by interface."""


class SystemReadings:
    """Keeps `readings` up to date with each call of `update`.

    Args:
        root: The parent of `proc` and `sys`.
        processors: The number of processors; None: ask the system.
        link_capacity_mbit: The capacity of each interface except loopback; None: ask the system.

    Attributes:
        readings: The latest readings, for the role to read.
    """

    def __init__(
        self, root: Path = Path("/"), processors: int | None = None, *, link_capacity_mbit: int | None = None
    ) -> None:
        self._root = root
        self._processors = processors or os.cpu_count() or 1
        self._last_traffic: _TrafficCount | None = None
        self._stated_mbit = link_capacity_mbit
        self._speeds: dict[str, int] = {}  # megabits per second
        self._speed_reads_remaining = 0  # the number of readings for which these speeds are still used
        self.readings = Readings()

    def update(self, now_s: float) -> None:
        """Read everything; *now_s* is the time of a monotonic clock."""
        self.readings.memory = self._memory()
        self.readings.load = self._load()
        self._update_network(now_s)

    def _read(self, path: str) -> str:
        try:
            return (self._root / path).read_text()
        except (OSError, UnicodeDecodeError):
            return ""  # This kernel or container does not have it: unknown.

    # Memory.

    def _memory(self) -> float | None:
        machine = _sizes(self._read("proc/meminfo"))
        total, available = machine.get("MemTotal"), machine.get("MemAvailable")
        if not total or available is None:
            return None
        limited = self._limited_memory(below=total * 1024)
        return 100 * (total - available) / total if limited is None else limited

    def _limited_memory(self, *, below: int) -> float | None:
        """Return the use of the control group's memory, if its limit is *below* the machine's memory."""
        group = self._read("proc/self/cgroup").strip().rpartition("::")[2].strip("/")
        # If groups are hidden, as in a container, the process's own group is the root.
        for folder in (f"{_CGROUP}/{group}", _CGROUP, f"{_CGROUP}/memory"):
            for limit_file, used_file, reclaimable in _LIMIT_FILES:
                limit, used = (_number(self._read(f"{folder}/{file}")) for file in (limit_file, used_file))
                if limit and used is not None and limit < below:
                    spare = _sizes(self._read(f"{folder}/memory.stat")).get(reclaimable, 0)
                    return 100 * max(0, used - spare) / limit
        return None

    # Load.

    def _load(self) -> float | None:
        words = self._read("proc/loadavg").split()
        try:
            return 100 * float(words[0]) / self._processors
        except (IndexError, ValueError):
            return None

    # Network.

    def _update_network(self, now_s: float) -> None:
        traffic = _traffic(self._read("proc/net/dev"))
        before, self._last_traffic = self._last_traffic, (now_s, traffic)
        if self._speed_reads_remaining == 0:
            self._speeds = {name: mbit for name in traffic if (mbit := self._speed(name))}
            self._speed_reads_remaining = _SPEED_REUSE_READS
        self._speed_reads_remaining -= 1
        uses = self._uses(before, now_s)
        percent, mbit = max(uses, default=(None, max(self._speeds.values(), default=self._stated_mbit)))
        self.readings.network = percent
        source: Literal["stated", "detected"] = "detected" if self._stated_mbit is None else "stated"
        self.readings.link = None if mbit is None else LinkCapacity(mbit, source)

    def _uses(self, before: _TrafficCount | None, now_s: float) -> list[tuple[float, int]]:
        """Return (use in percent of capacity, capacity) for each interface since *before*."""
        if before is None or self._last_traffic is None or now_s <= before[0]:
            return []
        passed_s, traffic = now_s - before[0], self._last_traffic[1]
        uses = []
        for name, mbit in self._speeds.items():
            if name in traffic and name in before[1]:
                carried = max(now - then for now, then in zip(traffic[name], before[1][name], strict=True))
                uses.append((max(0.0, 100 * 8 * carried / passed_s / (mbit * _BITS_PER_MBIT)), mbit))
        return uses

    def _speed(self, interface: str) -> int | None:
        """Return the speed in megabits per second; None if the interface reports none or -1."""
        if interface == _LOOPBACK:
            return None
        if self._stated_mbit is not None:
            return self._stated_mbit
        speed = _number(self._read(f"sys/class/net/{interface}/speed"))
        return speed if speed is not None and speed > 0 else None


def _sizes(text: str) -> dict[str, int]:
    """Parse lines that have a name and a number."""
    found = {}
    for line in text.splitlines():
        name, *rest = line.replace(":", " ").split() or [""]
        if rest and rest[0].isdecimal():
            found[name] = int(rest[0])
    return found


def _number(text: str) -> int | None:
    try:
        return int(text)
    except ValueError:
        return None  # Empty, or a word such as "max".


def _traffic(text: str) -> dict[str, tuple[int, int]]:
    """Return bytes received and sent, by interface."""
    found = {}
    for line in text.splitlines():
        name, colon, rest = line.partition(":")
        words = rest.split()
        if colon and len(words) > _SENT_COLUMN and words[0].isdecimal() and words[_SENT_COLUMN].isdecimal():
            found[name.strip()] = (int(words[0]), int(words[_SENT_COLUMN]))
    return found


_SENT_COLUMN: Final = 8  # The ninth number in a line of /proc/net/dev.
