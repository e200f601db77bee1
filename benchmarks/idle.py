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


class Idle(msgspec.Struct, frozen=True, kw_only=True):
    """Memory in MB; processor use in cores over the interval."""

    queues: int
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
    wait_until_quiet(broker.pid)
    time.sleep(2)  # work that is put off by a second must not be missed
    wait_until_quiet(broker.pid)
    start, before = time.monotonic(), cpu_seconds(broker.pid)
    time.sleep(seconds)
    cores = (cpu_seconds(broker.pid) - before) / (time.monotonic() - start)
    held = memory(broker.pid)
    return Idle(queues=QUEUES, seconds=seconds, rss_mb=held.rss_mb, anonymous_mb=held.anonymous_mb, cores=cores)
