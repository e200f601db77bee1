"""How busy this machine is, as Linux tells it: memory, load and network, each in percent; None where it does not tell.

    memory    /proc/meminfo: what is not available, of all; or the control group's use of its limit, if that is lower
    load      /proc/loadavg: runnable tasks of the last minute for each processor
    network   /proc/net/dev: bytes a second of the busiest interface, the busier direction, of its speed in /sys, or of
              the capacity that the operator stated

Loopback has no speed and most virtual interfaces report none: where no interface does and the operator stated no
capacity, the use of the network is not known. A few small files, read where the event loop runs: some 100 µs once a
second.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, Literal

from holdfast.machine.readings import LinkCapacity, Readings

INTERVAL_S: Final = 1.0
"""How often whoever keeps the readings should take them."""
_SPEEDS_KEPT_READS: Final = 60
_BITS_PER_MBIT: Final = 1_000_000
_LOOPBACK: Final = "lo"
_CGROUP: Final = "sys/fs/cgroup"
# Of control groups, version 2 and 1: what may be used, what is used, and how that is called which can be given back.
_LIMIT_FILES: Final = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


_Counted = tuple[float, dict[str, tuple[int, int]]]
"""When, and the bytes received and sent by interface."""


class SystemReadings:
    """Keeps `readings` up to date, whenever it is told to.

    Args:
        root: Where `proc` and `sys` are.
        processors: How many there are; None: ask the system.
        link_capacity_mbit: What each interface but loopback can carry; None: ask the system.

    Attributes:
        readings: The last that were taken, for the role to read.
    """

    def __init__(
        self, root: Path = Path("/"), processors: int | None = None, *, link_capacity_mbit: int | None = None
    ) -> None:
        self._root = root
        self._processors = processors or os.cpu_count() or 1
        self._counted: _Counted | None = None
        self._stated_mbit = link_capacity_mbit
        self._speeds: dict[str, int] = {}  # megabits a second
        self._speeds_left = 0  # how many more readings these speeds are good for
        self.readings = Readings()

    def take(self, now_s: float) -> None:
        """Read everything; *now_s* is of a clock that is never set back."""
        self.readings.memory = self._memory()
        self.readings.load = self._load()
        self._take_network(now_s)

    def _read(self, path: str) -> str:
        try:
            return (self._root / path).read_text()
        except (OSError, UnicodeDecodeError):
            return ""  # Not this kernel, or not in this container: not known.

    # Memory.

    def _memory(self) -> float | None:
        machine = _sizes(self._read("proc/meminfo"))
        total, available = machine.get("MemTotal"), machine.get("MemAvailable")
        if not total or available is None:
            return None
        limited = self._limited_memory(below=total * 1024)
        return 100 * (total - available) / total if limited is None else limited

    def _limited_memory(self, *, below: int) -> float | None:
        """Return the use of the control group's memory, if its limit is *below* what the machine has."""
        group = self._read("proc/self/cgroup").strip().rpartition("::")[2].strip("/")
        # Where groups are hidden, as in a container, one's own is the root.
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

    def _take_network(self, now_s: float) -> None:
        counted = _traffic(self._read("proc/net/dev"))
        before, self._counted = self._counted, (now_s, counted)
        if self._speeds_left == 0:
            self._speeds = {name: mbit for name in counted if (mbit := self._speed(name))}
            self._speeds_left = _SPEEDS_KEPT_READS
        self._speeds_left -= 1
        uses = self._uses(before, now_s)
        percent, mbit = max(uses, default=(None, max(self._speeds.values(), default=self._stated_mbit)))
        self.readings.network = percent
        source: Literal["stated", "detected"] = "detected" if self._stated_mbit is None else "stated"
        self.readings.link = None if mbit is None else LinkCapacity(mbit, source)

    def _uses(self, before: _Counted | None, now_s: float) -> list[tuple[float, int]]:
        """Return the use of every interface since *before*, in percent of its capacity, and that capacity."""
        if before is None or self._counted is None or now_s <= before[0]:
            return []
        passed_s, counted = now_s - before[0], self._counted[1]
        uses = []
        for name, mbit in self._speeds.items():
            if name in counted and name in before[1]:
                carried = max(now - then for now, then in zip(counted[name], before[1][name], strict=True))
                uses.append((max(0.0, 100 * 8 * carried / passed_s / (mbit * _BITS_PER_MBIT)), mbit))
        return uses

    def _speed(self, interface: str) -> int | None:
        """Return megabits a second; None where the interface does not say, or says -1."""
        if interface == _LOOPBACK:
            return None
        if self._stated_mbit is not None:
            return self._stated_mbit
        speed = _number(self._read(f"sys/class/net/{interface}/speed"))
        return speed if speed is not None and speed > 0 else None


def _sizes(text: str) -> dict[str, int]:
    """Return lines of a name and a number."""
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
        return None  # Nothing, or a word such as "max".


def _traffic(text: str) -> dict[str, tuple[int, int]]:
    """Return bytes received and sent, by interface."""
    found = {}
    for line in text.splitlines():
        name, colon, rest = line.partition(":")
        words = rest.split()
        if colon and len(words) > _SENT and words[0].isdecimal() and words[_SENT].isdecimal():
            found[name.strip()] = (int(words[0]), int(words[_SENT]))
    return found


_SENT: Final = 8  # The ninth number of a line of /proc/net/dev.
