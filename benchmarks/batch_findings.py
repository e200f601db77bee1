"""What the batches part found out, the sums behind it, and whether it is what was wanted."""

from __future__ import annotations

import statistics
from typing import Final, Literal

import msgspec
from benchmarks.measure import CellResult, Summary
from benchmarks.push_findings import Times
from benchmarks.servers import Kind
from benchmarks.targets import Target

OF_JAVA: Final = 1.5
OF_JAVA_SYNC: Final = 1.0
OF_LIMIT: Final = 0.5
OF_OUTER: Final = 3.0
PRODUCED_MIN: Final = 300_000.0
COLUMNS_MIN: Final = 1_000_000.0

INNER: Final = "inner batch of 100 x 1 KiB, async flush"
CLOSED: Final = "inner batch as our producer writes it, async flush"
INNER_SYNC: Final = "inner batch of 100 x 1 KiB, sync flush"
OUTER: Final = "outer batch of 100 x 1 KiB, async flush"

# The two ways to produce of which one has to be fast enough; the rest is told beside them.
SEND_MANY: Final = "send_many, kept whole"
SEND_NOWAIT: Final = "send_nowait, kept whole"
SEND_MANY_SPLIT: Final = "send_many, split"
SEND_NOWAIT_KEYED: Final = "send_nowait with keys, kept whole"
# What is read into columns.
SLIM: Final = "queue, offset, key and body"
ALL_COLUMNS: Final = "all columns"

Way = Literal["inner", "outer"]


class Limit(msgspec.Struct, frozen=True, kw_only=True):
    """What the machine can do with pieces of the size of a batch, in MB/s."""

    loopback: float
    write: float

    @property
    def both(self) -> float:
        """What a byte may cost at most that goes through loopback and into a file, one after the other."""
        return 1 / (1 / self.loopback + 1 / self.write)


class IndexCost(msgspec.Struct, frozen=True, kw_only=True):
    """What a topic's index took on disk."""

    kind: Kind
    way: Way
    messages: int
    index_bytes: int

    @property
    def bytes_per_message(self) -> float:
        """Of the index alone."""
        return self.index_bytes / self.messages


class Visible(msgspec.Struct, frozen=True, kw_only=True):
    """From the acknowledgement of a batch to the answer of a pull that has all of it.

    Attributes:
        is_busy: Whether others sent such batches meanwhile, as fast as they could.
    """

    kind: Kind
    way: Way
    is_busy: bool
    times: Times


class Produced(msgspec.Struct, frozen=True, kw_only=True):
    """What one Python process sent, reading by reading.

    Attributes:
        client_cores: What the process used, median.
        server_cores: What the broker used meanwhile, median.
    """

    messages_per_s: list[float]
    client_cores: float
    server_cores: float

    @property
    def median(self) -> float:
        """Messages a second."""
        return statistics.median(self.messages_per_s)


class Columns(msgspec.Struct, frozen=True, kw_only=True):
    """A topic read into Arrow columns, reading by reading."""

    way: Way
    columns: str
    messages: int
    seconds: list[float]

    @property
    def messages_per_s(self) -> float:
        """The median."""
        return self.messages / statistics.median(self.seconds)


class BatchFindings(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that this part found out.

    Attributes:
        cells: Raw requests of the load generator, ours beside Java's.
        limits: One for each round.
        produced: By the way in which messages were given.
        size: Bytes of a message that was read into columns.
        load: How many programs wanted a processor before it began.
    """

    cells: list[CellResult]
    limits: list[Limit]
    index: list[IndexCost]
    visible: list[Visible]
    produced: dict[str, Produced]
    columns: list[Columns]
    size: int
    load: float

    @property
    def limit(self) -> Limit:
        """The medians of the rounds."""
        return Limit(
            loopback=statistics.median(limit.loopback for limit in self.limits),
            write=statistics.median(limit.write for limit in self.limits),
        )

    def best(self, group: str, kind: Kind) -> Summary:
        """Return the best shape of a group of cells."""
        summaries = [result.summaries[kind] for result in self.cells if result.cell.group == group]
        return max(summaries, key=lambda summary: summary.figure)

    def mb_per_s(self, group: str, kind: Kind) -> float:
        """Return how many bytes the best shape of a group of cells carried."""
        return statistics.median(reading.load.up_mb_per_s for reading in self.best(group, kind).readings)

    @property
    def targets(self) -> list[Target]:
        """What was wanted beside what was reached."""

        def ratio(what: str, measured: float, wanted: float) -> Target:
            return Target(what=what, measured=measured, wanted=wanted, is_least=True)

        inner, java = self.best(INNER, "holdfast").figure, self.best(INNER, "java").figure
        targets = [
            ratio("inner batches, ours / Java, the same frames", inner / java, OF_JAVA),
            ratio(
                "inner batches, ours / Java, each as its own producer writes them",
                self.best(CLOSED, "holdfast").figure / java,
                OF_JAVA,
            ),
            ratio(
                "inner batches, ours / limit of loopback and write",
                self.mb_per_s(INNER, "holdfast") / self.limit.both,
                OF_LIMIT,
            ),
            ratio("ours, inner / outer", inner / self.best(OUTER, "holdfast").figure, OF_OUTER),
            ratio(
                "inner batches with sync flush, ours / Java",
                self.best(INNER_SYNC, "holdfast").figure / self.best(INNER_SYNC, "java").figure,
                OF_JAVA_SYNC,
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
