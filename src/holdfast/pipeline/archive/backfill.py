"""`backfill`: writes an archive, or a table with its columns, back into a topic, in order per key and exactly once.

    source ─ plan of pieces, in a file ─ piece after piece: rows of a key to one task ─ in order ─ the exactly-once sink

Each piece is an exactly-once write under the plan's name and the piece's number. Repeating a piece, because it was
stopped or its end was not recorded, adds only the missing rows. Keys, tags and user properties are copied from the
source. Additional properties (`ORIGIN`) record when and where a row was first stored.

A task sorts its rows, encodes them as columns of messages, and sends them (`_write_partition`): the data passes from
Java to Python once, and no row becomes a Python object.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the conventional name

from holdfast.admin.tables import Cell as TableCell
from holdfast.admin.tables import Table, right
from holdfast.client.access.credentials_options import CredentialsOptions
from holdfast.columns.slices import Int64Array
from holdfast.model.access.client_tls import ClientTls
from holdfast.model.errors import ConfigError
from holdfast.pipeline.archive.backfill_plan import BackfillPiece, BackfillPlan, StepCount, plan_pieces, write_order
from holdfast.pipeline.reports.report import JobReport
from holdfast.pipeline.scan.read_only import replace_file
from holdfast.pipeline.scan.tasks import ShowProgress, no_progress
from holdfast.spark.sink_contact import require_contact
from holdfast.spark.sink_options import SinkOptions
from holdfast.spark.sink_rows import MessageColumns, check_separators, join_properties, join_rows, to_pairs, to_rows
from holdfast.spark.writer import deliver_once

ORIGIN: Final = {
    "originTopic": "topic",
    "originQueue": "queue",
    "originOffset": "offset",
    "originStoreTimestamp": "storeTimestamp",
    "originBornTimestamp": "bornTimestamp",
}
"""Properties that record the origin of a row, and the column that each is copied from. Times are in milliseconds."""

ARCHIVE_SCHEMA: Final = (
    "key string, body binary, tags string, queue int, offset bigint, storeTimestamp timestamp, "
    "bornTimestamp timestamp, properties map<string,string>, generation int, broker string, topic string, day date"
)
ROWS_PER_PIECE: Final = 200_000
_REQUIRED_COLUMNS: Final = ("body", "queue", "offset", "storeTimestamp")
_STEPS_MAX: Final = 50_000
_QUEUE: Final = "_queue"
_FIRST: Final = "_first"
_END: Final = "_end"


class BackfillResult(msgspec.Struct, kw_only=True):
    """The result of a run.

    Attributes:
        rows: Rows in the whole plan.
        pieces: Pieces in the whole plan.
        before: Pieces completed by earlier runs.
        empty: Skipped rows: they have no body, so they cannot be messages.
    """

    name: str
    topic: str
    rows: int
    pieces: int
    before: int
    empty: int
    seconds: float


class _Progress(msgspec.Struct, frozen=True):
    """The number of completed pieces."""

    done: int


def read_archive(spark: SparkSession, folder: str) -> DataFrame:
    """Return an archive as a table with the columns of the source `holdfast`, and `generation`, `broker` and `day`."""
    return spark.read.schema(ARCHIVE_SCHEMA).parquet(folder)


def backfill(  # noqa: PLR0913 - one name for each option
    rows: DataFrame,
    namesrv: str,
    topic: str,
    state: str,
    *,
    source: str = "",
    where: str = "",
    rows_per_piece: int = ROWS_PER_PIECE,
    show: ShowProgress = no_progress,
    tls: ClientTls | None = None,
    credentials: CredentialsOptions | None = None,
) -> BackfillResult:
    """Write rows to a static topic, each exactly once, and rows of the same key in order.

    Args:
        rows: An archive (`read_archive`), or a table with its columns; `body`, `queue`, `offset` and `storeTimestamp`
            are required. Planned rows must not change until the plan is completed.
        namesrv: Name servers of the topic.
        topic: A static topic. It must not get more queues meanwhile.
        state: A folder for this backfill's plan and progress. A run that finds a plan there resumes it.
        source: Identifies the source of *rows*. It must be the same in every run, to detect another source.
        where: Selects rows, as an SQL condition.
        rows_per_piece: About how many rows to write at once; each task holds its share in memory.
        show: Shows the progress.
        tls: Use TLS on every connection; None for plain connections.
        credentials: What proves the identity of the writers; None for no access control.

    Raises:
        ConfigError: a column is missing, or the folder belongs to another backfill.
    """
    began_s = time.monotonic()
    missing = [name for name in _REQUIRED_COLUMNS if name not in rows.columns]
    if missing:
        raise ConfigError(
            f"the rows lack the columns {', '.join(missing)}: a backfill needs {', '.join(_REQUIRED_COLUMNS)}"
        )
    servers = SinkOptions(namesrv=namesrv, tls=tls, credentials=credentials)
    require_contact(servers)
    selected = rows.where(where) if where else rows
    with_queue = selected.withColumn(_QUEUE, _queue_name(rows.columns))
    plan = _load_plan(with_queue, Path(state), source, where, topic, rows_per_piece)
    progress_path = Path(state) / "progress.json"
    before = done = (
        msgspec.json.decode(progress_path.read_bytes(), type=_Progress).done if progress_path.exists() else 0
    )
    progress = show("rows", len(plan.pieces) - done)
    for number in range(done, len(plan.pieces)):
        _write_piece(with_queue, plan, number, servers)
        replace_file(progress_path, msgspec.json.encode(_Progress(number + 1)))
        progress(1)
    return BackfillResult(
        name=plan.name,
        topic=topic,
        rows=plan.rows,
        pieces=len(plan.pieces),
        before=before,
        empty=plan.empty,
        seconds=time.monotonic() - began_s,
    )


def _queue_name(columns: list[str]) -> Column:
    """Return a column that names the queue of a row: a logical queue of its topic, or a queue of a broker."""
    topic = F.col("topic") if "topic" in columns else F.lit("")
    number = F.col("queue").cast("string")
    if "broker" in columns and "generation" in columns:
        number = F.when(F.col("generation").isNull(), F.concat_ws("/", "broker", number)).otherwise(number)
    return F.concat_ws("|", topic, number)


# The plan.


def _load_plan(rows: DataFrame, state: Path, source: str, where: str, topic: str, rows_per_piece: int) -> BackfillPlan:
    """Return the saved plan, or create and save one."""
    path = state / "plan.json"
    if not path.exists():
        plan = _make_plan(rows, source, where, topic, rows_per_piece)
        replace_file(path, msgspec.json.encode(plan))
        return plan
    plan = msgspec.json.decode(path.read_bytes(), type=BackfillPlan)
    if (plan.source, plan.where, plan.topic) != (source, where, topic):
        raise ConfigError(
            f"{state} is the state of a backfill from {plan.source or 'a table'} where {plan.where or 'all'} to "
            f"{plan.topic}: use another folder for this one"
        )
    return plan


def _make_plan(rows: DataFrame, source: str, where: str, topic: str, rows_per_piece: int) -> BackfillPlan:
    seconds = F.unix_seconds("storeTimestamp")
    bounds = rows.agg(F.min(seconds), F.max(seconds)).first()
    assert bounds is not None, "there is always one row of sums"
    low, high = int(bounds[0] or 0), int(bounds[1] or 0)
    step_s = max(1, -(-(high - low) // _STEPS_MAX))
    offset = F.when(F.length("body") > 0, F.col("offset"))  # null if the row has no body
    step_counts = (
        rows.groupBy(_QUEUE, F.floor(seconds / step_s).cast("long").alias("step"))
        .agg(F.count(offset), F.min(offset), F.max(offset), F.count("*") - F.count(offset))
        .collect()
    )
    counts = [
        StepCount(str(row[0]), int(row[1]), int(row[2]), int(row[3]), int(row[4])) for row in step_counts if row[2]
    ]
    return BackfillPlan(
        name=f"backfill-{uuid.uuid4()}",
        source=source,
        where=where,
        topic=topic,
        rows=sum(count.rows for count in counts),
        step_s=step_s,
        partitions=max(1, rows.sparkSession.sparkContext.defaultParallelism),
        empty=sum(int(row[5]) for row in step_counts),
        pieces=plan_pieces(counts, rows_per_piece),
    )


def _not_empty(rows: DataFrame) -> DataFrame:
    return rows.where(F.length("body") > 0)


# One piece.


def _write_piece(rows: DataFrame, plan: BackfillPlan, number: int, servers: SinkOptions) -> None:
    """Write a piece of the plan, without the rows that were written before."""
    options = replace(servers, topic=plan.topic, is_exactly_once=True, is_ordered=True)
    column_names = [
        name for name in (_QUEUE, "body", "key", "tags", "properties", *ORIGIN.values()) if name in rows.columns
    ]
    piece_rows = _select_piece(rows, plan, plan.pieces[number]).select(*column_names)
    key = F.col("key") if "key" in rows.columns else F.lit(None).cast("string")
    # Rows without a key keep the order of their original queue.
    partitioned = piece_rows.repartition(
        plan.partitions, F.coalesce(F.concat(F.lit("k"), key), F.concat(F.lit("q"), _QUEUE))
    )
    write = partial(_write_partition, options=options, name=plan.name, number=number)
    partitioned.mapInArrow(write, "count long").collect()


def _select_piece(rows: DataFrame, plan: BackfillPlan, piece: BackfillPiece) -> DataFrame:
    ranges = [(queue, first, end) for queue, (first, end) in piece.ranges.items()]
    table = rows.sparkSession.createDataFrame(ranges, f"{_QUEUE} string, {_FIRST} long, {_END} long")
    low, high = (F.timestamp_seconds(F.lit(step * plan.step_s)) for step in (piece.first_step, piece.last_step + 1))
    candidates = _not_empty(rows).where((F.col("storeTimestamp") >= low) & (F.col("storeTimestamp") < high))
    if "day" in rows.columns:
        # So Spark does not even list the folders of other days. Days are in UTC, regardless of the session's time zone.
        days = [_day(step * plan.step_s) for step in (piece.first_step, piece.last_step + 1)]
        candidates = candidates.where(F.col("day").between(F.lit(days[0]).cast("date"), F.lit(days[1]).cast("date")))
    joined = candidates.join(F.broadcast(table), _QUEUE)
    return joined.where((F.col("offset") >= F.col(_FIRST)) & (F.col("offset") < F.col(_END))).drop(_FIRST, _END)


def _day(seconds: int) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(seconds))


# One partition of a piece, in a task.


def _write_partition(
    batches: Iterator[pa.RecordBatch], *, options: SinkOptions, name: str, number: int
) -> Iterator[pa.RecordBatch]:
    """Write the rows of a partition: each queue in the order of its offsets, and queues merged by store time."""
    parts = [batch for batch in batches if batch.num_rows]
    if not parts:
        return
    table = pa.Table.from_batches(parts)
    rows = join_rows([_to_messages(part, options.topic or "") for part in parts])
    deliver_once(options, rows, _write_order(table), name, number)
    yield pa.record_batch([pa.array([len(rows)])], names=["count"])


def _write_order(table: pa.Table) -> Int64Array:
    names = table.column(_QUEUE).combine_chunks().dictionary_encode()
    # Rank queues by name, not by arrival: a repeated piece must have the same order.
    ranks = np.argsort(np.argsort(np.array(names.dictionary.to_pylist(), dtype=object)))
    times = table.column("storeTimestamp").cast(pa.int64()).to_numpy()
    return write_order(ranks[names.indices.to_numpy()], table.column("offset").to_numpy(), times)


def _to_messages(batch: pa.RecordBatch, topic: str) -> MessageColumns:
    """Return rows as messages with properties that record their origin."""
    column_names = [name for name in ("body", "key", "tags", "properties") if name in batch.schema.names]
    rows = to_rows(batch.select(column_names), topic, dropped=frozenset(ORIGIN))[topic]
    origin = [
        to_pairs(_to_text(batch.column(column)), name)
        for name, column in ORIGIN.items()
        if column in batch.schema.names
    ]
    return replace(rows, properties=join_properties(rows.properties, *origin))


def _to_text(column: pa.Array) -> pa.LargeStringArray:
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("ms", column.type.tz), safe=False).cast(pa.int64())
    texts = column.cast(pa.large_string())
    check_separators(texts)
    return texts


def to_report(result: BackfillResult) -> JobReport:
    """Return the human-readable report of a run."""
    facts: list[tuple[str, TableCell]] = [
        ("result", f"all rows are in {result.topic}"),
        ("written as", result.name),
        ("rows", result.rows),
        ("pieces", result.pieces),
        ("seconds", round(result.seconds, 1)),
    ]
    notes = [f"{result.empty} rows were skipped: they have no body"] if result.empty else []
    tables = [
        Table(
            right("PIECES", "DONE BEFORE", "DONE NOW"), [(result.pieces, result.before, result.pieces - result.before)]
        )
    ]
    return JobReport("Backfill", facts, tables, notes=notes)
