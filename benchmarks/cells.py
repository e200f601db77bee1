"""The measurements, cell by cell, and the target of each.

A cell is one load and the servers it is run against. Its figure is a rate: messages, requests or megabytes per second.
The targets are ratios to the Java broker of the same run, and for single sends also to the bare path of the same run.
"""

from __future__ import annotations

from typing import Literal

import msgspec
from benchmarks.load import Load, LoadResult
from benchmarks.servers import Kind

Role = Literal["async", "sync", "namesrv", "watched"]  # watched: a name server with watchers connected
Unit = Literal["messages/s", "requests/s", "MB/s"]

SHAPES = ((1, 1), (16, 1), (16, 16), (4, 256))
MIB = 1 << 20
# A record of a 1 KiB message is 1.2 KB in the log: 1 MiB holds fewer than this, so the byte limit stops a pull.
COUNT_MAX = 2048
# Messages in each queue that pulls walk over: more bytes than a processor's caches hold, far fewer than memory.
SPAN = 60_000
HOT_ONE = "HotOne"
HOT_FOUR = "HotFour"


class CellTarget(msgspec.Struct, frozen=True, kw_only=True):
    """The target of a cell.

    Attributes:
        of_java: Least ratio to Java's figure in the same cell.
        of_java_best_pull: Least ratio of the best shape of this group to Java's best pull in bytes, of any shape.
        of_bare: Least share of the bare path.
        p99_no_worse: Whether our p99 must not exceed Java's.
    """

    of_java: float | None = None
    of_java_best_pull: float | None = None
    of_bare: float | None = None
    p99_no_worse: bool = False


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """One load, the server role that receives it, and the kinds of servers that have this role."""

    group: str
    role: Role
    load: Load
    unit: Unit
    kinds: tuple[Kind, ...] = ("holdfast", "java")
    wanted: CellTarget = CellTarget()
    writes: bool = False

    @property
    def name(self) -> str:
        """Group and shape, unique among the cells."""
        return f"{self.group} {self.load.shape}"

    def figure(self, result: LoadResult) -> float:
        """Return the cell's rate."""
        if self.unit == "MB/s":
            return result.down_mb_per_s
        return result.messages_per_s if self.unit == "messages/s" else result.requests_per_s


def main_cells() -> list[Cell]:
    """Return the cells of the comparison, pulls first: their messages must still be in the hot part of the log."""
    return [*_pulls(), *route_cells(), *_sends("async"), *_sends("sync"), *_batches()]


def _sends(flush: Literal["async", "sync"]) -> list[Cell]:
    wanted = {"1x1": 1.2, "16x1": 1.5, "16x16": 2.0, "4x256": 2.0}
    if flush == "sync":
        wanted = {"16x1": 1.2, "16x16": 1.2, "4x256": 1.2}
    cells = []
    for connections, in_flight in SHAPES:
        load = Load(mode="send", connections=connections, in_flight=in_flight)
        of_java = wanted.get(load.shape)
        has_bare = flush == "async"
        cells.append(
            Cell(
                group=f"send 1 KiB, {flush} flush",
                role=flush,
                load=load,
                unit="messages/s",
                kinds=("holdfast", "java", "bare") if has_bare else ("holdfast", "java"),
                wanted=CellTarget(of_java=of_java, of_bare=0.6 if has_bare else None, p99_no_worse=of_java is not None),
                writes=True,
            )
        )
    return cells


def _batches() -> list[Cell]:
    return [
        Cell(
            group="outer batch of 100 x 1 KiB",
            role="async",
            load=Load(mode="outer", connections=connections, in_flight=4, batch=100),
            unit="messages/s",
            wanted=CellTarget(of_java=0.4),
            writes=True,
        )
        for connections in (4, 16)
    ]


def _pulls() -> list[Cell]:
    cells = []
    for topic, queues, label, best_ratio_min in ((HOT_ONE, 1, "one queue", 1.5), (HOT_FOUR, 4, "4 interleaved", 1.0)):
        hot = Load(mode="pull", topic=topic, queues=queues, span=SPAN, warm=0.8)
        for connections, in_flight in ((1, 1), (4, 4), (16, 4)):
            load = msgspec.structs.replace(hot, connections=connections, in_flight=in_flight, count=32, step=32)
            wanted = CellTarget(of_java=0.8)
            cells.append(Cell(group=f"pull of 32, {label}", role="async", load=load, unit="MB/s", wanted=wanted))
        for connections, in_flight in ((1, 1), (4, 1), (4, 4)):
            load = msgspec.structs.replace(
                hot, connections=connections, in_flight=in_flight, count=COUNT_MAX, bytes=MIB, step=800
            )
            wanted = CellTarget(of_java_best_pull=best_ratio_min)
            cells.append(Cell(group=f"pull of 1 MiB, {label}", role="async", load=load, unit="MB/s", wanted=wanted))
    return cells


def route_cells() -> list[Cell]:
    """Return the cells of the name server."""
    return [
        Cell(
            group="route query",
            role="namesrv",
            load=Load(mode="route", connections=16, in_flight=in_flight, topic=HOT_FOUR),
            unit="requests/s",
            wanted=CellTarget(of_java=1.2),
        )
        for in_flight in (1, 16)
    ]
