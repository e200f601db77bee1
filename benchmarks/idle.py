"""The cost of a broker with ten thousand queues while it gets no requests.

    last message ── settling ──> caught up ── watched ──>       a reading every second, from the last message on

A broker that has yet to do deferred work is not idle: ours writes the files of its queues up to ten seconds after the
message, and is quiet until then. So the watch begins when the broker reports at `/metrics` that no such work is left.
Java's broker has no such report: its watch begins when it has been quiet for a while, or when the settling time is
over.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Final
from urllib.request import urlopen

import msgspec
from benchmarks.load import Load
from benchmarks.measure import Bench
from benchmarks.process_cost import cpu_seconds, memory
from benchmarks.programs import BenchmarkFailed
from benchmarks.servers import Server, create_topic

QUEUES: Final = 10_000
TOPIC: Final = "Idle"
ANONYMOUS_MB_MAX: Final = 150.0
CORES_MAX: Final = 0.01
WATCHED_S: Final = 60
PENDING_METRICS: Final = ("holdfast_broker_index_behind_bytes", "holdfast_broker_checkpoint_behind_bytes")
QUIET_CORES: Final = 0.012
QUIET_S: Final = 15
IDLE_TIMEOUT_S: Final = 90


class Idle(msgspec.Struct, frozen=True, kw_only=True):
    """Memory in MB at the end.

    Attributes:
        settling: Cores used in every second from the last message until the broker had caught up.
        watched: Cores used in every second after that.
    """

    queues: int
    settling: list[float]
    watched: list[float]
    rss_mb: float
    anonymous_mb: float

    @property
    def cores(self) -> float:
        """The average processor use during the watch."""
        return statistics.fmean(self.watched)

    @property
    def owed_cpu(self) -> float:
        """Processor seconds used after the last message until the broker had caught up."""
        return sum(self.settling)

    @property
    def reached(self) -> bool:
        """Whether the targets are met."""
        return self.anonymous_mb < ANONYMOUS_MB_MAX and self.cores < CORES_MAX


def measure_idle(bench: Bench, broker: Server, name_server: Server) -> Idle:
    """Give every queue a message, wait until the broker has caught up, then watch it.

    Raises:
        BenchmarkFailed: Our broker does not report in time that it has caught up.
    """
    create_topic(broker, name_server, TOPIC, queues=QUEUES)
    bench.load(broker, Load(mode="send", topic=TOPIC, queues=QUEUES, in_flight=16, requests=QUEUES))
    settling = _wait_until_idle(broker)
    watched = [_watch_second(broker.pid) for _ in range(WATCHED_S)]
    usage = memory(broker.pid)
    return Idle(queues=QUEUES, settling=settling, watched=watched, rss_mb=usage.rss_mb, anonymous_mb=usage.anonymous_mb)


def has_caught_up(metrics: str) -> bool:
    """Return whether our broker has nothing left to write, according to the text of its `/metrics`."""
    values = dict(line.rsplit(" ", 1) for line in metrics.splitlines() if line and not line.startswith("#"))
    return all(float(values[name]) == 0 for name in PENDING_METRICS)


def is_quiet(seconds: Sequence[float]) -> bool:
    """Return whether a broker was quiet in the last of *seconds*, long enough to be considered idle."""
    return len(seconds) >= QUIET_S and statistics.fmean(seconds[-QUIET_S:]) < QUIET_CORES


def _wait_until_idle(broker: Server) -> list[float]:
    """Wait until *broker* is idle; return the cores that it used, second by second."""
    spent: list[float] = []
    has_report = broker.metrics_port is not None
    is_idle: Callable[[], bool] = (
        (lambda: has_caught_up(_read_metrics(broker))) if has_report else (lambda: is_quiet(spent))
    )
    while not is_idle():
        if len(spent) >= IDLE_TIMEOUT_S:
            if has_report:
                raise BenchmarkFailed(f"{broker.name} has not caught up after {IDLE_TIMEOUT_S} s")
            break
        spent.append(_watch_second(broker.pid))
    return spent


def _read_metrics(broker: Server) -> str:
    with urlopen(f"http://127.0.0.1:{broker.metrics_port}/metrics", timeout=10) as answer:
        text: str = answer.read().decode()
    return text


def _watch_second(pid: int) -> float:
    start, before = time.monotonic(), cpu_seconds(pid)
    time.sleep(1)
    return (cpu_seconds(pid) - before) / (time.monotonic() - start)
