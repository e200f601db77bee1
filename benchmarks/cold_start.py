"""The first burst that a broker receives: how many sends it refuses, and how fast it is before it is warm."""

from __future__ import annotations

import msgspec
from benchmarks.load import Load
from benchmarks.measure import Bench
from benchmarks.servers import Server

SECONDS = 5.0


class ColdStart(msgspec.Struct, frozen=True, kw_only=True):
    """The result of 4 connections with 256 sends in flight each, as the first load after the start."""

    messages_per_s: float
    p99_us: float
    max_us: float
    sent: int
    refused: dict[str, int]


def measure_cold_start(bench: Bench, broker: Server, topic: str) -> ColdStart:
    """Send the burst to a broker that has just been started."""
    load = Load(mode="send", topic=topic, connections=4, in_flight=256, seconds=SECONDS, warm=0)
    result = bench.load(broker, load)
    return ColdStart(
        messages_per_s=result.messages_per_s,
        p99_us=result.p99_us,
        max_us=result.max_us,
        sent=result.total_requests,
        refused=result.refused,
    )
