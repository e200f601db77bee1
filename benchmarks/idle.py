"""What a broker with ten thousand queues costs while nobody asks anything of it."""

from __future__ import annotations

import time
from typing import Final

import msgspec
from benchmarks.load import Load
from benchmarks.measure import Bench
from benchmarks.process_cost import cpu_seconds, memory, wait_until_quiet
from benchmarks.servers import Server, create_topic

QUEUES: Final = 10_000
TOPIC: Final = "Idle"
ANONYMOUS_MB_MAX: Final = 150.0
CORES_MAX: Final = 0.01
SETTLED_CORES: Final = 0.012
SETTLED_WINDOW_S: Final = 5.0
SETTLED_TIMEOUT_S: Final = 150.0


class Idle(msgspec.Struct, frozen=True, kw_only=True):
    """Memory in MB; processor use in cores over the interval.

    Attributes:
        settling_seconds: How long it worked on after the last message before it was idle.
    """

    queues: int
    settling_seconds: float
    seconds: float
    rss_mb: float
    anonymous_mb: float
    cores: float

    @property
    def reached(self) -> bool:
        """Whether it is as cheap as it should be."""
        return self.anonymous_mb < ANONYMOUS_MB_MAX and self.cores < CORES_MAX


def measure_idle(bench: Bench, broker: Server, name_server: Server, *, seconds: float) -> Idle:
    """Give every queue a message, wait until the broker has nothing left to do, then watch it."""
    create_topic(broker, name_server, TOPIC, queues=QUEUES)
    bench.load(broker, Load(mode="send", topic=TOPIC, queues=QUEUES, in_flight=16, requests=QUEUES))
    # Ten thousand index files are synced bit by bit: a short look would take a pause in between for the end.
    settled = time.monotonic()
    wait_until_quiet(broker.pid, quiet_cores=SETTLED_CORES, window_s=SETTLED_WINDOW_S, timeout_s=SETTLED_TIMEOUT_S)
    settling_seconds = time.monotonic() - settled
    start, before = time.monotonic(), cpu_seconds(broker.pid)
    time.sleep(seconds)
    cores = (cpu_seconds(broker.pid) - before) / (time.monotonic() - start)
    held = memory(broker.pid)
    return Idle(
        queues=QUEUES,
        settling_seconds=settling_seconds,
        seconds=seconds,
        rss_mb=held.rss_mb,
        anonymous_mb=held.anonymous_mb,
        cores=cores,
    )
