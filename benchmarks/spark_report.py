"""The results of Spark as Markdown tables."""

from __future__ import annotations

import statistics

from benchmarks import spark_findings
from benchmarks.spark_findings import GrowthPoint, Readings, SparkFindings
from benchmarks.tables import number, table


def spark_sections(findings: SparkFindings) -> list[str]:
    """Return the note and the tables, in order."""
    return [
        text
        for text in (
            _note(findings),
            _targets(findings),
            _reads(findings),
            _sinks(findings),
            _batches(findings),
            _growth(findings),
        )
        if text
    ]


def _note(findings: SparkFindings) -> str:
    versions = findings.versions
    return (
        f"{findings.rows:,} rows with a key and a random body of {findings.size:,} bytes in {findings.queues} "
        "queues, the same "
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
        f"average before the run: {findings.load:.1f}."
    )


def _targets(findings: SparkFindings) -> str:
    rows = [
        [
            target.what,
            f"{target.ratio:.2f}",
            f"at least {target.wanted:g}",
            "reached" if target.reached else "**missed**",
        ]
        for target in findings.targets
    ]
    return table(["rows/s, in the same run", "measured", "wanted", ""], rows) if rows else ""


def _reads(findings: SparkFindings) -> str:
    rows = [
        [name, *_figures(findings.cold.get(name)), *_figures(warm), *_ratios(findings.warm, warm)]
        for name, warm in findings.warm.items()
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


def _sinks(findings: SparkFindings) -> str:
    kafka = findings.sinks.get(spark_findings.SINK_KAFKA)
    rows = [
        [name, *_figures(each), f"{each.rows_per_s / kafka.rows_per_s:.2f}" if kafka else ""]
        for name, each in findings.sinks.items()
    ]
    return table(["memory to topic", "rows/s", "MB/s", "/ Kafka's"], rows) if rows else ""


def _batches(findings: SparkFindings) -> str:
    rows = [
        [name, f"{1000 * statistics.median(seconds):.0f} ms", f"{1000 * min(seconds):.0f} ms", str(len(seconds))]
        for name, seconds in findings.batches.items()
    ]
    return table(["micro-batch of 100 rows", "median", "least", "batches"], rows) if rows else ""


def _growth(findings: SparkFindings) -> str:
    def row(point: GrowthPoint) -> list[str]:
        return [
            f"{point.axis}: {point.rows:,} x {point.size:,} B in {point.queues}",
            *_compare(point.ours, point.whole, point.kafka),
            "" if point.bare is None else number(point.bare.rows_per_s),
            *_compare(point.our_sink, point.whole_sink, point.kafka_sink),
        ]

    of_each = ["rows/s", "of whole batches", "Kafka's", "ratio"]
    figures = [*(f"source {figure}" for figure in of_each), "bare", *(f"sink {figure}" for figure in of_each)]
    head = ["growth, warm", *figures]
    return table(head, map(row, growth_points(findings))) if findings.growth else ""


def _compare(ours: Readings, whole: Readings | None, kafka: Readings) -> list[str]:
    return [
        number(ours.rows_per_s),
        "" if whole is None else number(whole.rows_per_s),
        number(kafka.rows_per_s),
        f"{(whole or ours).rows_per_s / kafka.rows_per_s:.2f}",
    ]


def growth_points(findings: SparkFindings) -> list[GrowthPoint]:
    """Return the points by axis; each axis also has the main figures as a point."""
    axes = list(dict.fromkeys(point.axis for point in findings.growth))
    main = [
        GrowthPoint(
            axis=axis,
            rows=findings.rows,
            size=findings.size,
            queues=findings.queues,
            ours=findings.warm[spark_findings.TOPIC],
            kafka=findings.warm[spark_findings.KAFKA_EAGER],
            our_sink=findings.sinks[spark_findings.SINK],
            kafka_sink=findings.sinks[spark_findings.SINK_KAFKA_LARGE],
            whole=findings.warm.get(spark_findings.TOPIC_WHOLE),
            whole_sink=findings.sinks.get(spark_findings.SINK_WHOLE),
            bare=findings.warm.get(spark_findings.BARE),
        )
        for axis in axes
    ]
    points = [*findings.growth, *main]
    return sorted(points, key=lambda point: (axes.index(point.axis), point.queues, point.size, point.rows))
