"""The results of the batches part as Markdown tables."""

from __future__ import annotations

from benchmarks.batch_findings import BatchFindings
from benchmarks.measure import Summary
from benchmarks.tables import microseconds, number, table
from benchmarks.targets import target_table

NAMES = {"holdfast": "ours", "java": "Java"}
BATCH_KINDS = {"inner": "kept whole (BatchCQ)", "outer": "split (SimpleCQ)"}


def batch_sections(findings: BatchFindings) -> list[str]:
    """Return the note and the tables, in order."""
    return [
        text
        for text in (
            _note(findings),
            target_table("wanted, in the same run", findings.targets),
            _cells(findings),
            _index(findings),
            _visible(findings),
            _produced(findings),
            _columns(findings),
        )
        if text
    ]


def _note(findings: BatchFindings) -> str:
    limit = findings.limit
    return (
        "The same frames for both brokers, from the load generator: 100 messages of 1 KiB in a request (320). Inner "
        "batches carry their own id and go to a topic that is indexed by batch (`queue.type=BatchCQ`), where each "
        "stays one record; our producer's batches also state in their properties how many messages they hold, and "
        "that the ids follow that of the batch. Outer batches go to a normal topic and are split. The limit is the "
        "rate of a byte that passes "
        f"loopback ({limit.loopback:,.0f} MB/s) and is written to a file ({limit.write:,.0f} MB/s), both in pieces of "
        f"110 KiB, one after the other: {limit.combined:,.0f} MB/s. Ratios are of the best shapes. Load average "
        "before the "
        f"run: {findings.load:.1f}."
    )


def _cells(findings: BatchFindings) -> str:
    rows = []
    for result in findings.cells:
        ours, java = result.summaries["holdfast"], result.summaries.get("java")
        summaries = (ours, java)
        rows.append(
            [
                result.cell.name,
                *(f"{number(each.figure)} ±{each.spread / 2:.0%}" if each else "" for each in summaries),
                f"{ours.figure / java.figure:.2f}" if java else "",
                *(f"{_bytes(each):,.0f}" if each else "" for each in summaries),
                f"{_bytes(ours) / findings.limit.combined:.2f}",
                *(microseconds(each.p99_us) if each else "" for each in summaries),
                *(f"{each.server_cores:.2f}" if each else "" for each in summaries),
                f"{ours.owed_cpu:.2f}",
            ]
        )
    head = [
        "messages/s", "ours", "Java", "ours / Java", "MB/s", "MB/s Java", "/ limit", "p99", "p99 Java", "cores",
        "cores Java", "owed",
    ]  # fmt: skip
    return table(head, rows)


def _bytes(summary: Summary) -> float:
    readings = sorted(reading.load.up_mb_per_s for reading in summary.readings)
    return readings[len(readings) // 2]


def _index(findings: BatchFindings) -> str:
    rows = [
        [
            f"{NAMES[cost.kind]}, {BATCH_KINDS[cost.way]}",
            f"{cost.messages:,}",
            f"{cost.index_bytes:,}",
            f"{cost.bytes_per_message:.2f}",
        ]
        for cost in findings.index
    ]
    return table(["index", "messages", "bytes", "bytes / message"], rows) if rows else ""


def _visible(findings: BatchFindings) -> str:
    rows = [
        [
            f"{NAMES[each.kind]}, {BATCH_KINDS[each.way]}, {'under load' if each.is_busy else 'at rest'}",
            f"{each.times.count}",
            *(f"{value:.2f} ms" for value in (each.times.p50_ms, each.times.p99_ms, each.times.max_ms)),
        ]
        for each in findings.visible
    ]
    head = ["from the acknowledgement of a batch to all of it in a pull", "batches", "p50", "p99", "longest"]
    return table(head, rows) if rows else ""


def _produced(findings: BatchFindings) -> str:
    rows = [
        [
            name,
            number(rates.median),
            ", ".join(map(number, rates.messages_per_s)),
            f"{rates.client_cores:.2f}",
            f"{rates.server_cores:.2f}",
        ]
        for name, rates in findings.produced.items()
    ]
    head = ["one Python process, 1 KiB", "messages/s", "each reading", "cores", "cores of the broker"]
    return table(head, rows) if rows else ""


def _columns(findings: BatchFindings) -> str:
    rows = [
        [
            f"{BATCH_KINDS[read.way]}, {read.columns}",
            f"{read.messages:,}",
            number(read.messages_per_s),
            ", ".join(f"{seconds:.2f}" for seconds in read.seconds),
        ]
        for read in findings.columns
    ]
    return (
        table([f"topic into Arrow, {findings.size} B", "messages", "messages/s", "seconds each"], rows) if rows else ""
    )
