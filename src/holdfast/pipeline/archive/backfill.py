"""`backfill`: from an archive, or a table with its columns, back into a topic; order per key, each row once.

    source ─ plan of pieces, kept in a file ─ piece after piece: rows of a key to one task ─ in order ─ the exact sink

Each piece is an exact write of the sink under the plan's name and its own number: one that is repeated, because it was
stopped or its end was not recorded, adds only the missing rows. Key, tag and the user's properties are those of the
source. Properties of their own (`ORIGIN`) record when and where a row was stored first.

A task orders its rows, makes messages of them as columns, and sends them (`_write_partition`): they pass from Java to
Python once, and no row becomes a Python object.
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
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

from holdfast.admin.tables import Cell as TableCell
from holdfast.admin.tables import Table, right
from holdfast.columns.slices import Places
from holdfast.model.errors import ConfigError
from holdfast.pipeline.archive.backfill_plan import Cell, Piece, Plan, cut_pieces, in_order
from holdfast.pipeline.reports.report import Report
from holdfast.pipeline.scan.read_only import replace_small
from holdfast.pipeline.scan.tasks import ShowProgress, show_nothing
from holdfast.spark.sink_contact import require_contact
from holdfast.spark.sink_options import SinkOptions
from holdfast.spark.sink_rows import Rows, check_separators, join_properties, join_rows, to_pairs, to_rows
from holdfast.spark.writer import deliver_once

ORIGIN: Final = {
    "originTopic": "topic",
    "originQueue": "queue",
    "originOffset": "offset",
    "originStoreTimestamp": "storeTimestamp",
    "originBornTimestamp": "bornTimestamp",
}
"""Properties that say where a row came from, and of which column. Times are in milliseconds."""

ARCHIVE_SCHEMA: Final = (
    "key string, body binary, tags string, queue int, offset bigint, storeTimestamp timestamp, "
    "bornTimestamp timestamp, properties map<string,string>, generation int, broker string, topic string, day date"
)
ROWS_PER_PIECE: Final = 200_000
_NEEDED: Final = ("body", "queue", "offset", "storeTimestamp")
_STEPS_MAX: Final = 50_000
_QUEUE: Final = "_queue"
_FIRST: Final = "_first"
_END: Final = "_end"


class Backfilled(msgspec.Struct, kw_only=True):
    """What a run did.

    Attributes:
        rows: Of the whole plan.
        pieces: Of the whole plan.
        before: Pieces that earlier runs had done.
        empty: Rows without a body, which are no messages: they were left out.
    """

    name: str
    topic: str
    rows: int
    pieces: int
    before: int
    empty: int
    seconds: float


class _Progress(msgspec.Struct, frozen=True):
    """How many pieces are done."""

    done: int


def read_archive(spark: SparkSession, folder: str) -> DataFrame:
    """Return an archive as a table: the columns of the source `holdfast`, and `day`."""
    return spark.read.schema(ARCHIVE_SCHEMA).parquet(folder)


def backfill(
    rows: DataFrame,
    namesrv: str,
    topic: str,
    state: str,
    *,
    source: str = "",
    where: str = "",
    rows_per_piece: int = ROWS_PER_PIECE,
    show: ShowProgress = show_nothing,
) -> Backfilled:
    """Write rows to a static topic, each once, those of one key in their order.

    Args:
        rows: An archive (`read_archive`), or a table with its columns; `body`, `queue`, `offset` and `storeTimestamp`
            must be there. The rows that a plan names stay as they are until it is done.
        namesrv: Name servers of the topic.
        topic: A static topic, which is not grown meanwhile.
        state: A folder that is this backfill's own: its plan and how far it is. A run that finds it goes on.
        source: What *rows* are, in words that stay the same: another source is not taken for this one.
        where: Which of them, in SQL.
        rows_per_piece: About how many are written at once; tasks hold theirs in memory.
        show: Shows how far it is.

    Raises:
        ConfigError: a column is missing, or the folder belongs to another backfill.
    """
    began_s = time.monotonic()
    missing = [name for name in _NEEDED if name not in rows.columns]
    if missing:
        raise ConfigError(f"there are no columns {', '.join(missing)}: a backfill needs {', '.join(_NEEDED)}")
    require_contact(SinkOptions(namesrv=namesrv))
    chosen = rows.where(where) if where else rows
    named = chosen.withColumn(_QUEUE, _queue_name(rows.columns))
    plan = _load_plan(named, Path(state), source, where, topic, rows_per_piece)
    progress_path = Path(state) / "progress.json"
    before = done = (
        msgspec.json.decode(progress_path.read_bytes(), type=_Progress).done if progress_path.exists() else 0
    )
    tell = show("rows", len(plan.pieces) - done)
    for number in range(done, len(plan.pieces)):
        _write_piece(named, plan, number, namesrv)
        replace_small(progress_path, msgspec.json.encode(_Progress(number + 1)))
        tell(1)
    return Backfilled(
        name=plan.name,
        topic=topic,
        rows=plan.rows,
        pieces=len(plan.pieces),
        before=before,
        empty=plan.empty,
        seconds=time.monotonic() - began_s,
    )


def _queue_name(columns: list[str]) -> Column:
    """Return what names the queue of a row: a logical one of its topic, or one of a broker."""
    topic = F.col("topic") if "topic" in columns else F.lit("")
    number = F.col("queue").cast("string")
    if "broker" in columns and "generation" in columns:
        number = F.when(F.col("generation").isNull(), F.concat_ws("/", "broker", number)).otherwise(number)
    return F.concat_ws("|", topic, number)


# The plan.


def _load_plan(rows: DataFrame, state: Path, source: str, where: str, topic: str, rows_per_piece: int) -> Plan:
    """Return the plan that is kept, or make one and keep it."""
    path = state / "plan.json"
    if not path.exists():
        plan = _make_plan(rows, source, where, topic, rows_per_piece)
        replace_small(path, msgspec.json.encode(plan))
        return plan
    plan = msgspec.json.decode(path.read_bytes(), type=Plan)
    if (plan.source, plan.where, plan.topic) != (source, where, topic):
        raise ConfigError(
            f"{state} is the state of a backfill from {plan.source or 'a table'} where {plan.where or 'all'} to "
            f"{plan.topic}: give this one a folder of its own"
        )
    return plan


def _make_plan(rows: DataFrame, source: str, where: str, topic: str, rows_per_piece: int) -> Plan:
    seconds = F.unix_seconds("storeTimestamp")
    bounds = rows.agg(F.min(seconds), F.max(seconds)).first()
    assert bounds is not None, "there is always one row of sums"
    low, high = int(bounds[0] or 0), int(bounds[1] or 0)
    step_s = max(1, -(-(high - low) // _STEPS_MAX))
    offset = F.when(F.length("body") > 0, F.col("offset"))  # null where a row is empty
    found = (
        rows.groupBy(_QUEUE, F.floor(seconds / step_s).cast("long").alias("step"))
        .agg(F.count(offset), F.min(offset), F.max(offset), F.count("*") - F.count(offset))
        .collect()
    )
    cells = [Cell(str(row[0]), int(row[1]), int(row[2]), int(row[3]), int(row[4])) for row in found if row[2]]
    return Plan(
        name=f"backfill-{uuid.uuid4()}",
        source=source,
        where=where,
        topic=topic,
        rows=sum(cell.rows for cell in cells),
        step_s=step_s,
        partitions=max(1, rows.sparkSession.sparkContext.defaultParallelism),
        empty=sum(int(row[5]) for row in found),
        pieces=cut_pieces(cells, rows_per_piece),
    )


def _not_empty(rows: DataFrame) -> DataFrame:
    return rows.where(F.length("body") > 0)


# One piece.


def _write_piece(rows: DataFrame, plan: Plan, number: int, namesrv: str) -> None:
    """Write a piece of the plan; rows that were written before are not written again."""
    options = SinkOptions(namesrv=namesrv, topic=plan.topic, is_exact=True, is_ordered=True)
    wanted = [name for name in (_QUEUE, "body", "key", "tags", "properties", *ORIGIN.values()) if name in rows.columns]
    mine = _take_piece(rows, plan, plan.pieces[number]).select(*wanted)
    key = F.col("key") if "key" in rows.columns else F.lit(None).cast("string")
    # Rows without a key keep the order of the queue that they were in.
    placed = mine.repartition(plan.partitions, F.coalesce(F.concat(F.lit("k"), key), F.concat(F.lit("q"), _QUEUE)))
    write = partial(_write_partition, options=options, name=plan.name, number=number)
    placed.mapInArrow(write, "count long").collect()


def _take_piece(rows: DataFrame, plan: Plan, piece: Piece) -> DataFrame:
    ranges = [(queue, first, end) for queue, (first, end) in piece.ranges.items()]
    table = rows.sparkSession.createDataFrame(ranges, f"{_QUEUE} string, {_FIRST} long, {_END} long")
    low, high = (F.timestamp_seconds(F.lit(step * plan.step_s)) for step in (piece.first_step, piece.last_step + 1))
    near = _not_empty(rows).where((F.col("storeTimestamp") >= low) & (F.col("storeTimestamp") < high))
    if "day" in rows.columns:
        # Folders of other days are not even listed. Days are UTC, whatever the session's time zone is.
        days = [_day(step * plan.step_s) for step in (piece.first_step, piece.last_step + 1)]
        near = near.where(F.col("day").between(F.lit(days[0]).cast("date"), F.lit(days[1]).cast("date")))
    joined = near.join(F.broadcast(table), _QUEUE)
    return joined.where((F.col("offset") >= F.col(_FIRST)) & (F.col("offset") < F.col(_END))).drop(_FIRST, _END)


def _day(seconds: int) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(seconds))


# One partition of a piece, in a task.


def _write_partition(
    batches: Iterator[pa.RecordBatch], *, options: SinkOptions, name: str, number: int
) -> Iterator[pa.RecordBatch]:
    """Write the rows of a partition such that each queue is in the order of its offsets, and queues go by time."""
    parts = [batch for batch in batches if batch.num_rows]
    if not parts:
        return
    table = pa.Table.from_batches(parts)
    rows = join_rows([_to_messages(part, options.topic or "") for part in parts])
    deliver_once(options, rows, _order(table), name, number)
    yield pa.record_batch([pa.array([len(rows)])], names=["count"])


def _order(table: pa.Table) -> Places:
    names = table.column(_QUEUE).combine_chunks().dictionary_encode()
    # By name, not by how they came: the order is the same whenever it is made.
    ranks = np.argsort(np.argsort(np.array(names.dictionary.to_pylist(), dtype=object)))
    times = table.column("storeTimestamp").cast(pa.int64()).to_numpy()
    return in_order(ranks[names.indices.to_numpy()], table.column("offset").to_numpy(), times)


def _to_messages(batch: pa.RecordBatch, topic: str) -> Rows:
    """Return rows as messages that say where they came from."""
    known = [name for name in ("body", "key", "tags", "properties") if name in batch.schema.names]
    rows = to_rows(batch.select(known), topic, dropped=frozenset(ORIGIN))[topic]
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


def to_report(found: Backfilled) -> Report:
    """Return what people want to read of it."""
    facts: list[tuple[str, TableCell]] = [
        ("result", f"all rows are in {found.topic}"),
        ("written as", found.name),
        ("rows", found.rows),
        ("pieces", found.pieces),
        ("seconds", round(found.seconds, 1)),
    ]
    notes = [f"{found.empty} rows have no body, and were left out"] if found.empty else []
    tables = [
        Table(right("PIECES", "DONE BEFORE", "DONE NOW"), [(found.pieces, found.before, found.pieces - found.before)])
    ]
    return Report("Backfill", facts, tables, notes=notes)
