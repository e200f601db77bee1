"""How long a broker takes to serve again after kill -9 with a log of 1 GiB.

    fill 1 GiB ─> kill -9 ─> start ─> ready           the state after a crash
                  kill -9 ─> indexes and checkpoint removed ─> start ─> ready       the worst case: all is rebuilt

Ready means that it answers, and its queues end where the acknowledged messages end.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec
from benchmarks.load import Load
from benchmarks.measure import Bench
from benchmarks.programs import BenchmarkFailed
from benchmarks.remoting import Remote
from benchmarks.servers import Server, ServerFleet, create_topic

TOPIC: Final = "Recovery"
QUEUES: Final = 4
LOG_MIB: Final = 1024
RECORD_SIZE: Final = 1_220  # at most: 1 KiB of body, 88 of head, topic and properties
SECONDS_MAX: Final = 10.0
DERIVED: Final = ("consumequeue", "index", "checkpoint")


class Recovery(msgspec.Struct, frozen=True, kw_only=True):
    """Times from the start of the process to its first correct answer.

    Attributes:
        log_mb: Bytes of the log, in MB.
        acknowledged: Messages that were acknowledged before the kill; all of them were found again.
    """

    acknowledged: int
    log_mb: float
    seconds: float
    seconds_rebuilding: float

    @property
    def reached(self) -> bool:
        """Whether it meets the target, in the worst case too."""
        return max(self.seconds, self.seconds_rebuilding) < SECONDS_MAX


def measure_recovery(
    bench: Bench,
    fleet: ServerFleet,
    name_server: Server,
    start: Callable[[Path | None], Server],
    *,
    log_mib: int = LOG_MIB,
) -> Recovery:
    """Fill a log of *log_mib*, crash and start a broker twice. *start* starts one, on a given store or a new one."""
    broker = start(None)
    store = broker.store
    assert store is not None
    create_topic(broker, name_server, TOPIC, queues=QUEUES)
    count = log_mib * (1 << 20) // RECORD_SIZE
    load = Load(mode="send", topic=TOPIC, queues=QUEUES, connections=4, in_flight=64, requests=count)
    accepted = bench.load(broker, load).requests
    fleet.crash(broker)
    log_mb = accepted * RECORD_SIZE / 1e6

    def restart() -> tuple[Server, float]:
        since = time.monotonic()
        server = start(store)
        stored = _count_messages(server)
        if stored < accepted:
            raise BenchmarkFailed(f"{server.kind} lost messages: {accepted} were acknowledged, {stored} are stored")
        return server, time.monotonic() - since

    broker, seconds = restart()
    fleet.crash(broker)
    for name in DERIVED:
        _remove(store / name)
    broker, seconds_rebuilding = restart()
    fleet.stop(broker)
    return Recovery(acknowledged=accepted, log_mb=log_mb, seconds=seconds, seconds_rebuilding=seconds_rebuilding)


def _count_messages(broker: Server) -> int:
    with Remote(broker.port) as remote:
        return sum(remote.max_offset(TOPIC, queue) for queue in range(QUEUES))


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
