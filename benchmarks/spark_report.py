"""The results of Spark as Markdown tables."""

from __future__ import annotations

import statistics

from benchmarks import spark_findings
from benchmarks.spark_findings import GrowthPoint, Readings, SparkFindings
from benchmarks.tables import number, table


def spark_sections(found: SparkFindings) -> list[str]:
    """Return the note and the tables, in order."""
    return [
        text
        for text in (_note(found), _targets(found), _reads(found), _sinks(found), _batches(found), _growth(found))
        if text
    ]


def _note(found: SparkFindings) -> str:
    versions = found.versions
    return (
        f"{found.rows:,} rows with a key and a random body of {found.size:,} bytes in {found.queues} queues, the same "
        "on either side, written by either's own Spark sink (topics of Kafka that are read: with batches of 128 KiB "
        "instead of 16); one broker each, Spark on all cores of the same machine. "
        f"Ours runs in Spark {versions['spark']}. Spark's Kafka connector does not exist for that version: Kafka "
        f"{versions['kafka']} is read by Spark {versions['connector']} with its connector, in turn with ours; reading "
        "the same Parquet file in both shows how much the older Spark costs or saves. Cold is the first query of a "
        "freshly started Spark. Bare is a data source that passes the same rows from memory to Spark's Arrow "
        "interface, or a writer that discards them, and does nothing else. 'Again and again' is only one batch of "
        "them, which never leaves the processor's cache; the cold figure uses it too, because the source would have "
        "to load the others. Waiting less: `kafka.fetch.max.wait.ms` is 20 instead of 500, "
        "which the connector would wait at the end of every partition; growth is read so, too. Whole batches: the "
        "topic stores each batch that its sink sends as one record. MB/s count bodies. "
        "Medians; spread is (max - min) / median. Load "
        f"average before the run: {found.load:.1f}."
    )


def _targets(found: SparkFindings) -> str:
    rows = [
        [
            target.what,
            f"{target.ratio:.2f}",
            f"at least {target.wanted:g}",
            "reached" if target.reached else "**missed**",
        ]
        for target in found.targets
    ]
    return table(["rows/s, in the same run", "measured", "wanted", ""], rows) if rows else ""


def _reads(found: SparkFindings) -> str:
    rows = [
        [name, *_figures(found.cold.get(name)), *_figures(warm), *_ratios(found.warm, warm)]
        for name, warm in found.warm.items()
    ]
    head = [
        "topic to noop",
        "cold rows/s",
        "cold MB/s",
        "warm rows/s",
        "warm MB/s",
        "/ bare, all",
        "/ Kafka, waiting less",
        "/ Parquet",
    ]
    return table(head, rows) if rows else ""


def _ratios(warm: dict[str, Readings], one: Readings) -> list[str]:
    others = (warm.get(name) for name in (spark_findings.BARE, spark_findings.KAFKA_EAGER, spark_findings.PARQUET))
    return [f"{one.rows_per_s / other.rows_per_s:.2f}" if other else "" for other in others]


def _figures(readings: Readings | None) -> list[str]:
    if readings is None:
        return ["", ""]
    spread = f" ±{readings.spread / 2:.0%}" if len(readings.seconds) > 1 else ""
    return [f"{number(readings.rows_per_s)}{spread}", f"{readings.mb_per_s:,.0f}"]


def _sinks(found: SparkFindings) -> str:
    kafka = found.sinks.get(spark_findings.SINK_KAFKA)
    rows = [
        [name, *_figures(each), f"{each.rows_per_s / kafka.rows_per_s:.2f}" if kafka else ""]
        for name, each in found.sinks.items()
    ]
    return table(["memory to topic", "rows/s", "MB/s", "/ Kafka's"], rows) if rows else ""


def _batches(found: SparkFindings) -> str:
    rows = [
        [name, f"{1000 * statistics.median(seconds):.0f} ms", f"{1000 * min(seconds):.0f} ms", str(len(seconds))]
        for name, seconds in found.batches.items()
    ]
    return table(["micro-batch of 100 rows", "median", "least", "batches"], rows) if rows else ""


def _growth(found: SparkFindings) -> str:
    def row(point: GrowthPoint) -> list[str]:
        return [
            f"{point.axis}: {point.rows:,} x {point.size:,} B in {point.queues}",
            *_beside(point.ours, point.whole, point.kafka),
            "" if point.bare is None else number(point.bare.rows_per_s),
            *_beside(point.our_sink, point.whole_sink, point.kafka_sink),
        ]

    of_each = ["rows/s", "of whole batches", "Kafka's", "ratio"]
    figures = [*(f"source {figure}" for figure in of_each), "bare", *(f"sink {figure}" for figure in of_each)]
    head = ["growth, warm", *figures]
    return table(head, map(row, growth_points(found))) if found.growth else ""


def _beside(ours: Readings, whole: Readings | None, kafka: Readings) -> list[str]:
    return [
        number(ours.rows_per_s),
        "" if whole is None else number(whole.rows_per_s),
        number(kafka.rows_per_s),
        f"{(whole or ours).rows_per_s / kafka.rows_per_s:.2f}",
    ]


def growth_points(found: SparkFindings) -> list[GrowthPoint]:
    """Return the points by axis; each axis also has the main figures as a point."""
    axes = list(dict.fromkeys(point.axis for point in found.growth))
    main = [
        GrowthPoint(
            axis=axis,
            rows=found.rows,
            size=found.size,
            queues=found.queues,
            ours=found.warm[spark_findings.TOPIC],
            kafka=found.warm[spark_findings.KAFKA_EAGER],
            our_sink=found.sinks[spark_findings.SINK],
            kafka_sink=found.sinks[spark_findings.SINK_KAFKA_LARGE],
            whole=found.warm.get(spark_findings.TOPIC_WHOLE),
            whole_sink=found.sinks.get(spark_findings.SINK_WHOLE),
            bare=found.warm.get(spark_findings.BARE),
        )
        for axis in axes
    ]
    points = [*found.growth, *main]
    return sorted(points, key=lambda point: (axes.index(point.axis), point.queues, point.size, point.rows))
