"""Readings: one load against one server, with the cost of both; and interleaved rounds of them.

    round 1   cell A: holdfast, java, bare    cell B: holdfast, java ...
    round 2   cell A: java, bare, holdfast    cell B: java, holdfast ...
    round 3   cell A: bare, holdfast, java    ...

The order rotates, so that no server is always first after a pause or always follows a heavy writer. A machine's speed
drifts by a third within minutes, so only adjacent readings of one run may be compared. Before a load that writes, all
dirty pages are synced: one server's write-back must not fall into another's reading.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec
from benchmarks.cells import Cell
from benchmarks.load import Load, LoadResult, run_load
from benchmarks.process_cost import Stopwatch, memory, wait_until_quiet
from benchmarks.servers import Kind, Server

# If other processes use more cores than this, the reading is repeated; of the two the quieter one counts.
FOREIGN_MAX: Final = 0.35
# Owed processor seconds per second of load from which on they are reported.
OWED_MIN: Final = 0.05


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """One load against one server. Processor use in cores, memory in MB at the end of the load.

    Attributes:
        owed_cpu: Processor seconds that the server used after the load had ended, per second of load.
    """

    figure: float
    load: LoadResult
    server_cores: float
    foreign_cores: float
    stolen_cores: float
    owed_cpu: float
    rss_mb: float
    anonymous_mb: float


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """The readings of one cell and kind. All figures are medians; spread is (max - min) / median of the rate."""

    kind: str
    figure: float
    spread: float
    p50_us: float
    p99_us: float
    max_us: float
    server_cores: float
    client_cores: float
    foreign_cores: float
    owed_cpu: float
    rss_mb: float
    anonymous_mb: float
    refused: dict[str, int]
    readings: list[Reading]


class CellResult(msgspec.Struct, frozen=True, kw_only=True):
    """The summaries of one cell, one for each kind."""

    cell: Cell
    summaries: dict[Kind, Summary]


Servers = Mapping[tuple[Kind, str], Server]
"""By kind and role."""
Prepare = Callable[[int], Mapping[str, str]]


class Bench:
    """Takes readings with one compiled generator.

    Args:
        loadgen: The generator.
        log: Receives lines of progress.
        before_write: Called before every load that writes.
    """

    def __init__(
        self, loadgen: Path, log: Callable[[str], None], *, before_write: Callable[[], None] = os.sync
    ) -> None:
        self._loadgen = loadgen
        self._log = log
        self._before_write = before_write

    def load(self, server: Server, load: Load) -> LoadResult:
        """Run *load* without measuring its cost: to fill or to warm."""
        return run_load(self._loadgen, server.port, msgspec.structs.replace(load, broker=server.name))

    def read(self, server: Server, cell: Cell) -> Reading:
        """Take one reading; repeat it if other processes used the machine meanwhile."""
        first = self._read_once(server, cell)
        if first.foreign_cores + first.stolen_cores <= FOREIGN_MAX:
            return first
        second = self._read_once(server, cell)
        return min(first, second, key=lambda reading: reading.foreign_cores + reading.stolen_cores)

    def run_rounds(
        self, cells: Sequence[Cell], servers: Servers, *, rounds: int, prepare: Prepare | None = None
    ) -> list[CellResult]:
        """Return every cell read *rounds* times on every kind that it names.

        *prepare* is called with the number of each round before it, and returns which topics replace those of the
        cells.
        """
        readings: dict[tuple[str, Kind], list[Reading]] = {}
        for number in range(rounds):
            topics = prepare(number) if prepare is not None else {}
            for cell in (_with_topic(cell, topics) for cell in cells):
                kinds = [*cell.kinds[number % len(cell.kinds) :], *cell.kinds[: number % len(cell.kinds)]]
                for kind in kinds:
                    reading = self.read(servers[kind, cell.role], cell)
                    readings.setdefault((cell.name, kind), []).append(reading)
                    self._log(f"{number + 1}/{rounds}  {describe(cell, kind, reading)}")
        return [
            CellResult(cell=cell, summaries={kind: summarize(kind, readings[cell.name, kind]) for kind in cell.kinds})
            for cell in cells
        ]

    def _read_once(self, server: Server, cell: Cell) -> Reading:
        if cell.writes:
            self._before_write()
        stopwatch = Stopwatch(server.pid)
        result = self.load(server, cell.load)
        spent = stopwatch.stop()
        usage = memory(server.pid)
        deferred_s = wait_until_quiet(server.pid)
        return Reading(
            figure=cell.figure(result),
            load=result,
            server_cores=spent.server,
            foreign_cores=spent.foreign,
            stolen_cores=spent.stolen,
            owed_cpu=deferred_s / (cell.load.seconds + cell.load.warm),
            rss_mb=usage.rss_mb,
            anonymous_mb=usage.anonymous_mb,
        )


def _with_topic(cell: Cell, topics: Mapping[str, str]) -> Cell:
    topic = topics.get(cell.load.topic, cell.load.topic)
    return msgspec.structs.replace(cell, load=msgspec.structs.replace(cell.load, topic=topic))


def summarize(kind: Kind, readings: Sequence[Reading]) -> Summary:
    """Return the medians of *readings*."""

    def median(value: Callable[[Reading], float]) -> float:
        return statistics.median(map(value, readings))

    figures = [reading.figure for reading in readings]
    median_figure = statistics.median(figures)
    refused: dict[str, int] = {}
    for reading in readings:
        for code, count in reading.load.refused.items():
            refused[code] = refused.get(code, 0) + count
    return Summary(
        kind=kind,
        figure=median_figure,
        spread=(max(figures) - min(figures)) / median_figure if median_figure else 0.0,
        p50_us=median(lambda reading: reading.load.p50_us),
        p99_us=median(lambda reading: reading.load.p99_us),
        max_us=median(lambda reading: reading.load.max_us),
        server_cores=median(lambda reading: reading.server_cores),
        client_cores=median(lambda reading: reading.load.client_cpu),
        foreign_cores=median(lambda reading: reading.foreign_cores + reading.stolen_cores),
        owed_cpu=median(lambda reading: reading.owed_cpu),
        rss_mb=median(lambda reading: reading.rss_mb),
        anonymous_mb=median(lambda reading: reading.anonymous_mb),
        refused=refused,
        readings=list(readings),
    )


def describe(cell: Cell, kind: str, reading: Reading) -> str:
    """Return one line of progress."""
    load = reading.load
    return (
        f"{cell.name:<44} {kind:<9} {reading.figure:>12,.0f} {cell.unit:<11}"
        f" p50 {load.p50_us:>8,.0f} us  p99 {load.p99_us:>9,.0f} us"
        f"  cores {reading.server_cores:.2f} + client {load.client_cpu:.2f} + foreign {reading.foreign_cores:.2f}"
        f"{f'  owes {reading.owed_cpu:.2f}' if reading.owed_cpu >= OWED_MIN else ''}"
        f"{f'  refused {load.refused}' if load.refused else ''}"
    )
