"""What the Spark part found out, and whether it is what was wanted."""

from __future__ import annotations

import statistics
from typing import Final

import msgspec

OF_BARE: Final = 0.5
OF_KAFKA: Final = 1.0

TOPIC: Final = "topic, all columns"
TOPIC_PLAIN: Final = "topic, without properties"
TOPIC_SLIM: Final = "topic, body and offset"
BARE: Final = "bare Arrow, all columns"
BARE_SLIM: Final = "bare Arrow, body and offset"
PARQUET: Final = "Parquet, all columns"
KAFKA: Final = "Kafka connector"
KAFKA_EAGER: Final = "Kafka connector, waiting less"
KAFKA_PARQUET: Final = "Parquet, Spark of the connector"
SINK: Final = "sink, at least once"
SINK_ONCE: Final = "sink, exactly once"
SINK_KAFKA: Final = "Kafka's sink"
SINK_KAFKA_LARGE: Final = "Kafka's sink, larger batches"
SINK_BARE: Final = "bare Arrow writer"


class Readings(msgspec.Struct, frozen=True, kw_only=True):
    """The same work, several times."""

    rows: int
    size: int
    seconds: list[float]

    @property
    def rows_per_s(self) -> float:
        """The median."""
        return self.rows / statistics.median(self.seconds)

    @property
    def mb_per_s(self) -> float:
        """The median, in bytes of bodies."""
        return self.rows_per_s * self.size / 1e6

    @property
    def spread(self) -> float:
        """(max - min) / median."""
        return (max(self.seconds) - min(self.seconds)) / statistics.median(self.seconds)


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """A ratio that is wanted."""

    what: str
    ratio: float
    wanted: float

    @property
    def reached(self) -> bool:
        """Whether it is so."""
        return self.ratio >= self.wanted


class GrowthPoint(msgspec.Struct, frozen=True, kw_only=True):
    """One point of one axis: each source and each sink, ours and Kafka's."""

    axis: str
    rows: int
    size: int
    queues: int
    ours: Readings
    kafka: Readings
    our_sink: Readings
    kafka_sink: Readings


class SparkFindings(msgspec.Struct, kw_only=True):
    """Everything that this part found out.

    Attributes:
        versions: Of each Spark, of Kafka and of its connector.
        load: How many programs wanted a processor before it began; much above 0 says that the figures mean little.
        cold: First queries of processes that were just started, by name.
        warm: Later queries, by name.
        sinks: Writes of rows that are in memory, by name.
        batches: Seconds of each micro-batch that has next to nothing to do, by name.
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
    def targets(self) -> list[Target]:
        """What is wanted of our side, as far as it was measured."""
        wanted = [
            ("source / bare Arrow, cold", self.cold, TOPIC, BARE, OF_BARE),
            ("source / bare Arrow, warm", self.warm, TOPIC, BARE, OF_BARE),
            ("source / Kafka connector, cold", self.cold, TOPIC, KAFKA, OF_KAFKA),
            ("source / Kafka connector, warm", self.warm, TOPIC, KAFKA, OF_KAFKA),
            ("source / Kafka connector, waiting less, cold", self.cold, TOPIC, KAFKA_EAGER, OF_KAFKA),
            ("source / Kafka connector, waiting less, warm", self.warm, TOPIC, KAFKA_EAGER, OF_KAFKA),
            ("sink / Kafka's sink", self.sinks, SINK, SINK_KAFKA, OF_KAFKA),
            ("sink / Kafka's sink, larger batches", self.sinks, SINK, SINK_KAFKA_LARGE, OF_KAFKA),
        ]
        return [
            Target(what=what, ratio=readings[ours].rows_per_s / readings[other].rows_per_s, wanted=least)
            for what, readings, ours, other, least in wanted
            if ours in readings and other in readings
        ]
