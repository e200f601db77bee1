"""The results of the replicas part, and the sums they come from."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Final, Literal

import msgspec
from benchmarks.load import LoadResult
from benchmarks.servers import Kind
from benchmarks.targets import Target

Replication = Literal["none", "async", "sync"]
Reader = Literal["master", "replica"]
"""Where a lost unit is read: at its broker, or at the replica of its broker, which is gone."""

REPLICATIONS: Final[tuple[Replication, ...]] = ("none", "async", "sync")
FIRST_MESSAGE_S_MAX: Final = 1.0


class PairReading(msgspec.Struct, frozen=True, kw_only=True):
    """One load against one master. Processor use in cores.

    Attributes:
        foreign_cores: Use by all processes except master, replica and generator, including the host's share.
        most_behind_bytes: The largest part of the log that the replica lacked under load.
        behind_bytes: The part of the log that it lacked when the load had ended.
        caught_up_s: The time from then until it lacked nothing.
    """

    load: LoadResult
    master_cores: float
    replica_cores: float
    foreign_cores: float
    most_behind_bytes: int
    behind_bytes: int
    caught_up_s: float


class PairFigures(msgspec.Struct, frozen=True, kw_only=True):
    """All readings of one load against one pair. Figures are medians."""

    kind: Kind
    replication: Replication
    shape: str
    readings: list[PairReading]

    @property
    def rate(self) -> float:
        """Acknowledged messages per second."""
        return self._median(lambda reading: reading.load.messages_per_s)

    @property
    def spread(self) -> float:
        """(max - min) / median of the rates."""
        rates = [reading.load.messages_per_s for reading in self.readings]
        return (max(rates) - min(rates)) / self.rate if self.rate else 0.0

    @property
    def p50_us(self) -> float:
        """The median latency."""
        return self._median(lambda reading: reading.load.p50_us)

    @property
    def p99_us(self) -> float:
        """The latency that 99 of 100 answers do not exceed."""
        return self._median(lambda reading: reading.load.p99_us)

    @property
    def master_cores(self) -> float:
        """Processor use of the master."""
        return self._median(lambda reading: reading.master_cores)

    @property
    def replica_cores(self) -> float:
        """Processor use of the replica."""
        return self._median(lambda reading: reading.replica_cores)

    @property
    def foreign_cores(self) -> float:
        """Processor use of other processes."""
        return self._median(lambda reading: reading.foreign_cores)

    @property
    def most_behind_bytes(self) -> float:
        """The largest part of the log that the replica lacked under load."""
        return self._median(lambda reading: reading.most_behind_bytes)

    @property
    def behind_bytes(self) -> float:
        """The part of the log that the replica lacked at the end of the load."""
        return self._median(lambda reading: reading.behind_bytes)

    @property
    def caught_up_s(self) -> float:
        """The time until the replica had that part."""
        return self._median(lambda reading: reading.caught_up_s)

    @property
    def refused(self) -> dict[str, int]:
        """The number of answers with a code other than 0, in all readings, by code."""
        found: dict[str, int] = {}
        for reading in self.readings:
            for code, count in reading.load.refused.items():
                found[code] = found.get(code, 0) + count
        return found

    def _median(self, value: Callable[[PairReading], float]) -> float:
        return statistics.median(map(value, self.readings))


class OpeningTimes(msgspec.Struct, frozen=True, kw_only=True):
    """One `dr open`: seconds from the start of the command.

    Attributes:
        ended_s: Until its end.
        first_s: Until a consumer of the other unit gets the first message of the opened unit.
    """

    ended_s: float
    first_s: float


class OpeningStats(msgspec.Struct, frozen=True, kw_only=True):
    """Openings of a unit that is read at one broker."""

    reader: Reader
    queues: int
    openings: list[OpeningTimes]

    @property
    def ended_s(self) -> float:
        """The median."""
        return statistics.median(each.ended_s for each in self.openings)

    @property
    def first_s(self) -> float:
        """The median."""
        return statistics.median(each.first_s for each in self.openings)

    @property
    def delay_after_command_s(self) -> float:
        """The median time from the end of the command to the message; negative if the message came first."""
        return statistics.median(each.first_s - each.ended_s for each in self.openings)


class ReplicaFindings(msgspec.Struct, frozen=True, kw_only=True):
    """All results of this part.

    Attributes:
        figures: By load, then kind, then replication.
        load: The load average before the run.
    """

    figures: list[PairFigures]
    openings: list[OpeningStats]
    load: float

    @property
    def shapes(self) -> list[str]:
        """The loads, in their order."""
        return list(dict.fromkeys(each.shape for each in self.figures))

    def find(self, kind: Kind, replication: Replication, shape: str) -> PairFigures:
        """Return the figures of one pair under one load."""
        return next(
            each for each in self.figures if (each.kind, each.replication, each.shape) == (kind, replication, shape)
        )

    def rate_share(self, kind: Kind, replication: Replication, shape: str) -> float:
        """Return the share of its rate that a broker keeps with a replica."""
        alone = self.find(kind, "none", shape).rate
        return self.find(kind, replication, shape).rate / alone if alone else 0.0

    @property
    def targets(self) -> list[Target]:
        """The targets, each with the measured figure: consumers learn of an opening within a second."""
        return [
            Target(
                what=f"from the end of `dr open` to the first message, at the {stats.reader}",
                measured=max(0.0, stats.delay_after_command_s),
                wanted=FIRST_MESSAGE_S_MAX,
                unit="s",
            )
            for stats in self.openings
        ]
