"""The results of the batches part, the sums they come from, and the targets."""

from __future__ import annotations

import statistics
from typing import Final, Literal

import msgspec
from benchmarks.measure import CellResult, Summary
from benchmarks.push_findings import WaitTimes
from benchmarks.servers import Kind
from benchmarks.targets import Target

JAVA_RATIO_MIN: Final = 1.5
JAVA_SYNC_RATIO_MIN: Final = 1.0
LIMIT_RATIO_MIN: Final = 0.5
OUTER_RATIO_MIN: Final = 3.0
PRODUCED_MIN: Final = 300_000.0
COLUMNS_MIN: Final = 1_000_000.0

INNER: Final = "inner batch of 100 x 1 KiB, async flush"
INNER_BY_PRODUCER: Final = "inner batch as our producer writes it, async flush"
INNER_SYNC: Final = "inner batch of 100 x 1 KiB, sync flush"
OUTER: Final = "outer batch of 100 x 1 KiB, async flush"

# One of these two ways to produce must reach the target; the others are only reported.
SEND_MANY: Final = "send_many, kept whole"
SEND_NOWAIT: Final = "send_nowait, kept whole"
SEND_MANY_SPLIT: Final = "send_many, split"
SEND_NOWAIT_KEYED: Final = "send_nowait with keys, kept whole"
# The sets of columns that are read.
SLIM: Final = "queue, offset, key and body"
ALL_COLUMNS: Final = "all columns"

BatchKind = Literal["inner", "outer"]


class MachineLimit(msgspec.Struct, frozen=True, kw_only=True):
    """The speed of the machine with pieces of the size of a batch, in MB/s."""

    loopback: float
    write: float

    @property
    def combined(self) -> float:
        """The highest rate for bytes that pass loopback and are then written to a file."""
        return 1 / (1 / self.loopback + 1 / self.write)


class IndexCost(msgspec.Struct, frozen=True, kw_only=True):
    """The size of a topic's index on disk."""

    kind: Kind
    way: BatchKind
    messages: int
    index_bytes: int

    @property
    def bytes_per_message(self) -> float:
        """Bytes of index entries per message."""
        return self.index_bytes / self.messages


class VisibilityTimes(msgspec.Struct, frozen=True, kw_only=True):
    """From the acknowledgement of a batch to the answer of a pull that has all of it.

    Attributes:
        is_busy: Whether other connections sent such batches at full speed meanwhile.
    """

    kind: Kind
    way: BatchKind
    is_busy: bool
    times: WaitTimes


class ProducerRates(msgspec.Struct, frozen=True, kw_only=True):
    """The rates of one Python producer process, reading by reading.

    Attributes:
        client_cores: Processor use of the process, median.
        server_cores: Processor use of the broker meanwhile, median.
    """

    messages_per_s: list[float]
    client_cores: float
    server_cores: float

    @property
    def median(self) -> float:
        """Messages per second."""
        return statistics.median(self.messages_per_s)


class ColumnReads(msgspec.Struct, frozen=True, kw_only=True):
    """A topic read into Arrow columns, reading by reading."""

    way: BatchKind
    columns: str
    messages: int
    seconds: list[float]

    @property
    def messages_per_s(self) -> float:
        """The median rate."""
        return self.messages / statistics.median(self.seconds)


class BatchFindings(msgspec.Struct, frozen=True, kw_only=True):
    """All results of this part.

    Attributes:
        cells: Raw requests of the load generator, ours beside Java's.
        limits: One for each round.
        produced: By the call that was used to send.
        size: Bytes of a message that was read into columns.
        load: The load average before the run.
    """

    cells: list[CellResult]
    limits: list[MachineLimit]
    index: list[IndexCost]
    visible: list[VisibilityTimes]
    produced: dict[str, ProducerRates]
    columns: list[ColumnReads]
    size: int
    load: float

    @property
    def limit(self) -> MachineLimit:
        """The medians of the rounds."""
        return MachineLimit(
            loopback=statistics.median(limit.loopback for limit in self.limits),
            write=statistics.median(limit.write for limit in self.limits),
        )

    def best(self, group: str, kind: Kind) -> Summary:
        """Return the best shape of a group of cells."""
        summaries = [result.summaries[kind] for result in self.cells if result.cell.group == group]
        return max(summaries, key=lambda summary: summary.figure)

    def mb_per_s(self, group: str, kind: Kind) -> float:
        """Return the MB/s of the best shape of a group of cells."""
        return statistics.median(reading.load.up_mb_per_s for reading in self.best(group, kind).readings)

    @property
    def targets(self) -> list[Target]:
        """The targets, each with the measured figure."""

        def ratio(title: str, measured: float, wanted: float) -> Target:
            return Target(what=title, measured=measured, wanted=wanted, is_least=True)

        inner, java = self.best(INNER, "holdfast").figure, self.best(INNER, "java").figure
        targets = [
            ratio("inner batches, ours / Java, the same frames", inner / java, JAVA_RATIO_MIN),
            ratio(
                "inner batches, ours / Java, each as its own producer writes them",
                self.best(INNER_BY_PRODUCER, "holdfast").figure / java,
                JAVA_RATIO_MIN,
            ),
            ratio(
                "inner batches, ours / limit of loopback and write",
                self.mb_per_s(INNER, "holdfast") / self.limit.combined,
                LIMIT_RATIO_MIN,
            ),
            ratio("ours, inner / outer", inner / self.best(OUTER, "holdfast").figure, OUTER_RATIO_MIN),
            ratio(
                "inner batches with sync flush, ours / Java",
                self.best(INNER_SYNC, "holdfast").figure / self.best(INNER_SYNC, "java").figure,
                JAVA_SYNC_RATIO_MIN,
            ),
        ]
        apis = {name: self.produced[name].median for name in (SEND_MANY, SEND_NOWAIT) if name in self.produced}
        if apis:
            best = max(apis, key=apis.__getitem__)
            targets.append(ratio(f"one Python producer, {best}", apis[best], PRODUCED_MIN))
        targets += [
            ratio(f"into Arrow: {read.columns}", read.messages_per_s, COLUMNS_MIN)
            for read in self.columns
            if read.way == "inner" and read.columns == SLIM
        ]
        return targets
