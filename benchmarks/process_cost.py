"""The cost of processes as the kernel reports it: processor time and memory of one process, and of all others.

CPU      of all its threads, including those that ended
RSS      resident: its private memory and the files it has mapped
RssAnon  its private memory alone; pages of the log belong to the page cache, which the system reclaims if need be
"""

from __future__ import annotations

import os
import resource
import time
from dataclasses import dataclass
from pathlib import Path

TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory of one process, in MB (10^6 bytes)."""

    rss_mb: float
    anonymous_mb: float


def cpu_seconds(pid: int) -> float:
    """Return the processor time that *pid* has used since its start."""
    # As clock_getcpuclockid(3) computes it: every process has a clock, which is exact where /proc counts hundredths.
    return time.clock_gettime(~pid << 3 | 2)


def memory(pid: int) -> Memory:
    """Return the current memory of *pid*."""
    sizes = dict[str, float]()
    for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines():
        name, _, rest = line.partition(":")
        if name in {"VmRSS", "RssAnon"}:
            sizes[name] = int(rest.split()[0]) * 1024 / 1e6
    return Memory(sizes["VmRSS"], sizes["RssAnon"])


def machine_cpu_seconds() -> tuple[float, float]:
    """Return the processor time used by all processes, and the time the host gave to other machines (steal)."""
    with Path("/proc/stat").open(encoding="utf-8") as file:
        user, nice, system, _idle, _iowait, _irq, _softirq, steal = map(int, file.readline().split()[1:9])
    return (user + nice + system) / TICKS_PER_S, steal / TICKS_PER_S


def _own_cpu_seconds() -> float:
    spent = 0.0
    for scope in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN):
        usage = resource.getrusage(scope)
        spent += usage.ru_utime + usage.ru_stime
    return spent


@dataclass(frozen=True, slots=True)
class CpuUse:
    """Processor use over an interval, in cores."""

    server: float
    foreign: float
    stolen: float


def wait_until_quiet(pid: int, *, quiet_cores: float = 0.08, window_s: float = 0.25, timeout_s: float = 30.0) -> float:
    """Wait until *pid* is nearly idle; return the processor seconds that it used until then.

    These are the work that a server deferred while it was loaded: indexes, checkpoints, garbage collection.
    """
    start, deadline = cpu_seconds(pid), time.monotonic() + timeout_s
    while True:
        before, since = cpu_seconds(pid), time.monotonic()
        time.sleep(window_s)
        used = cpu_seconds(pid) - before
        if used / (time.monotonic() - since) < quiet_cores or time.monotonic() > deadline:
            return cpu_seconds(pid) - start


class Stopwatch:
    """Measures the processor use of a server and of all other processes while a load runs.

    Foreign is all use except by the server, this process, and children that ended meanwhile (the generator): idle
    servers that wait for their turn, kernel threads that write pages back, and unrelated programs.
    """

    def __init__(self, server_pid: int) -> None:
        self._pid = server_pid
        self._start = self._read()

    def stop(self) -> CpuUse:
        """Return the processor use since the start."""
        wall, server, own, machine, stolen = (end - start for end, start in zip(self._read(), self._start, strict=True))
        return CpuUse(server / wall, max(0.0, machine - server - own) / wall, stolen / wall)

    def _read(self) -> tuple[float, float, float, float, float]:
        machine, stolen = machine_cpu_seconds()
        return time.monotonic(), cpu_seconds(self._pid), _own_cpu_seconds(), machine, stolen
