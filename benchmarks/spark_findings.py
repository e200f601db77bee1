"""The results of the Spark part, and the targets."""

from __future__ import annotations

import statistics
from typing import Final

import msgspec

BARE_RATIO_MIN: Final = 0.5
KAFKA_RATIO_MIN: Final = 1.0
# Rows so small that the work per row, not per byte, dominates.
SMALL_ROWS_AXIS: Final = "row size"
SMALL_ROW: Final = 100

TOPIC: Final = "topic, all columns"
TOPIC_PLAIN: Final = "topic, without properties"
TOPIC_SLIM: Final = "topic, body and offset"
TOPIC_WHOLE: Final = "topic of whole batches, all columns"
TOPIC_WHOLE_SLIM: Final = "topic of whole batches, body and offset"
BARE: Final = "bare Arrow, all columns"
BARE_AGAIN: Final = "bare Arrow, one batch again and again"
BARE_SLIM: Final = "bare Arrow, body and offset"
PARQUET: Final = "Parquet, all columns"
KAFKA: Final = "Kafka connector"
KAFKA_EAGER: Final = "Kafka connector, waiting less"
KAFKA_PARQUET: Final = "Parquet, Spark of the connector"
SINK: Final = "sink, at least once"
SINK_ONCE: Final = "sink, exactly once"
SINK_WHOLE: Final = "sink of whole batches, at least once"
SINK_WHOLE_ONCE: Final = "sink of whole batches, exactly once"
SINK_KAFKA: Final = "Kafka's sink"
SINK_KAFKA_LARGE: Final = "Kafka's sink, larger batches"
SINK_BARE: Final = "bare Arrow writer"


class Readings(msgspec.Struct, frozen=True, kw_only=True):
    """The readings of one kind of work."""

    rows: int
    size: int
    seconds: list[float]

    @property
    def rows_per_s(self) -> float:
        """The median rate."""
        return self.rows / statistics.median(self.seconds)

    @property
    def mb_per_s(self) -> float:
        """The median rate, in MB of bodies."""
        return self.rows_per_s * self.size / 1e6

    @property
    def spread(self) -> float:
        """(max - min) / median."""
        return (max(self.seconds) - min(self.seconds)) / statistics.median(self.seconds)


class RatioTarget(msgspec.Struct, frozen=True, kw_only=True):
    """A target for a ratio."""

    what: str
    ratio: float
    wanted: float

    @property
    def reached(self) -> bool:
        """Whether the target is met."""
        return self.ratio >= self.wanted


class GrowthPoint(msgspec.Struct, frozen=True, kw_only=True):
    """One point of one axis: each source and each sink, ours and Kafka's.

    Attributes:
        whole: Our source, on a topic whose batches are kept whole; None in results from before these existed.
        whole_sink: Our sink into such a topic.
        bare: The source that only passes such rows to Spark.
    """

    axis: str
    rows: int
    size: int
    queues: int
    ours: Readings
    kafka: Readings
    our_sink: Readings
    kafka_sink: Readings
    whole: Readings | None = None
    whole_sink: Readings | None = None
    bare: Readings | None = None


class SparkFindings(msgspec.Struct, kw_only=True):
    """All results of this part.

    Attributes:
        versions: Of each Spark, of Kafka and of its connector.
        load: The load average before the run; if it is much above 0, the figures mean little.
        cold: First queries of freshly started processes, by name.
        warm: Later queries, by name.
        sinks: Writes of rows from memory, by name.
        batches: Seconds of each micro-batch with almost no work, by name.
    """

    rows: int
    size: int
    queues: int
    versions: dict[str, str]
    load: float
    cold: dict[str, Readings] = {}
    warm: dict[str, Readings] = {}
    sinks: dict[str, Readings] = {}
    batches: dict[str, list[float]] = {}
    growth: list[GrowthPoint] = []

    @property
    def targets(self) -> list[RatioTarget]:
        """The targets of our side, each with its measured ratio."""
        ratios: list[tuple[str, Readings | None, Readings | None, float]] = []
        for kind, ours in (("source", TOPIC), ("source of whole batches", TOPIC_WHOLE)):
            for baseline, other, ratio_min in (
                ("bare Arrow", BARE, BARE_RATIO_MIN),
                ("Kafka connector", KAFKA, KAFKA_RATIO_MIN),
                ("Kafka connector, waiting less", KAFKA_EAGER, KAFKA_RATIO_MIN),
            ):
                for when, readings in (("cold", self.cold), ("warm", self.warm)):
                    what = f"{kind} / {baseline}, {when}"
                    ratios.append((what, readings.get(ours), readings.get(other), ratio_min))
        for kind, ours in (("sink", SINK), ("sink of whole batches", SINK_WHOLE)):
            for baseline, other in (("Kafka's sink", SINK_KAFKA), ("Kafka's sink, larger batches", SINK_KAFKA_LARGE)):
                ratios.append((f"{kind} / {baseline}", self.sinks.get(ours), self.sinks.get(other), KAFKA_RATIO_MIN))
        for point in self.growth:
            if point.axis == SMALL_ROWS_AXIS and point.size <= SMALL_ROW:
                row_size = f"rows of {point.size} bytes"
                ratios.append(
                    (f"source of whole batches / bare Arrow, {row_size}", point.whole, point.bare, BARE_RATIO_MIN)
                )
                baseline = "Kafka's sink, larger batches"
                ratios.append(
                    (
                        f"sink of whole batches / {baseline}, {row_size}",
                        point.whole_sink,
                        point.kafka_sink,
                        KAFKA_RATIO_MIN,
                    )
                )
        return [
            RatioTarget(what=what, ratio=ours.rows_per_s / other.rows_per_s, wanted=ratio_min)
            for what, ours, other, ratio_min in ratios
            if ours is not None and other is not None
        ]
