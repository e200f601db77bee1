"""`convert-index`: converts the index of a topic to the other kind, in parallel tasks.

    driver    locks the folders, plans, and hands out a wave of pieces ─┬─ task: convert, verify, write, sync, read back
              records the wave as done, continues with the next         └─ task: ...
              switches to the new index when all pieces are verified

This is the conversion of `store.conversion.index_conversion`, with the same plan, progress record and switch. So
`holdfast index convert` can finish a conversion that was begun here, and vice versa; only the pieces are converted
elsewhere. Tasks write into the folder: on a cluster every executor must see it under the same path. A task that runs
twice writes the same bytes.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import msgspec

from holdfast.admin.tables import Table, left, right
from holdfast.pipeline.convert.numpy_conversion import NumpyConverter
from holdfast.pipeline.reports.report import JobReport
from holdfast.pipeline.scan.tasks import Progress, ShowProgress, Tasks, no_progress
from holdfast.runtime.folder_lock import lock_store
from holdfast.runtime.posix_disk import PosixDisk
from holdfast.store.base.log_file import LogFiles
from holdfast.store.base.options import StoreOptions
from holdfast.store.conversion.index_conversion import IndexConversion
from holdfast.store.conversion.piece_conversion import write_pieces
from holdfast.store.conversion.record_headers import RecordHeaders
from holdfast.store.log.commit_log import FOLDER as LOG_FOLDER
from holdfast.store.recovery.conversion_plan import ConversionPlan, ConvertedKind, PiecePlan, QueueFigures

PIECE_SIZE: Final = 16_384
"""Entries per piece. A task holds the entries of `PIECES_PER_SYNC` pieces in memory: some 25 MB, however long the index
is."""
PIECES_PER_TASK: Final = 512
"""The most pieces per task: a second of work. Pieces of a task are adjacent in the log, so a part of the log that
several queues share is read once. With fewer pieces there is one task per core: tasks are of equal size, and each
costs Spark some 60 ms."""
PIECES_PER_SYNC: Final = 32
"""Pieces that are synced to disk together, while the next ones are converted."""
TASKS_PER_WAVE: Final = 32
"""Tasks submitted before progress is recorded: the most work that is repeated after a stop."""


class StoreConversion(msgspec.Struct, frozen=True, kw_only=True):
    """The result for one folder.

    Attributes:
        resumed: An earlier run, perhaps of `holdfast index convert`, had begun the conversion.
        converted: Entries that this run converted.
        queues: Empty if the topic already had the wanted kind of index.
    """

    store: str
    resumed: bool
    converted: int
    queues: list[QueueFigures]


class ConvertResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a run."""

    topic: str
    to: ConvertedKind
    seconds: float
    stores: list[StoreConversion]


class _ConvertTask(msgspec.Struct, frozen=True):
    """The input of a task: some pieces, and the plan that they belong to."""

    root: str
    plan: ConversionPlan
    pieces: list[PiecePlan]


def convert_index(
    tasks: Tasks,
    stores: Sequence[str],
    topic: str,
    to: ConvertedKind,
    *,
    show: ShowProgress = no_progress,
    options: StoreOptions | None = None,
    piece_size: int = PIECE_SIZE,
    wave: int = TASKS_PER_WAVE,
) -> ConvertResult:
    """Convert the index of *topic* in each of *stores*, which are folders of stopped brokers. Can be interrupted.

    Raises:
        ConfigError: a folder is not a store.
        StoreError: the conversion is impossible, or impossible now; the text says why. The served index is unchanged.
        TaskFailed: a task failed. The served index is unchanged.
    """
    began_s = time.monotonic()
    converted: list[StoreConversion] = []
    with ExitStack() as locks:
        folders = [(store, locks.enter_context(lock_store(Path(store)))) for store in stores]
        conversions = [
            (store, IndexConversion(disk, topic, to, options=options or StoreOptions(), piece_size=piece_size))
            for store, disk in folders
        ]
        progress = show(
            "converting, tasks",
            sum(len(_group(conversion.remaining_pieces(), tasks.cores)) for _, conversion in conversions),
        )
        for store, conversion in conversions:
            count = _build(tasks, store, conversion, progress, wave)
            plan = conversion.plan
            figures = [] if plan is None else plan.figures()
            converted.append(
                StoreConversion(store=store, resumed=conversion.is_resumed, converted=count, queues=figures)
            )
        for _, conversion in conversions:
            if conversion.plan is not None:
                conversion.switch(time.time_ns() // 1_000_000)
    return ConvertResult(topic=topic, to=to, seconds=round(time.monotonic() - began_s, 3), stores=converted)


def _build(tasks: Tasks, store: str, conversion: IndexConversion, progress: Progress, wave: int) -> int:
    """Convert the remaining pieces of one folder, wave by wave; return the number of entries converted."""
    groups, count = _group(conversion.remaining_pieces(), tasks.cores), 0
    root = str(Path(store).resolve())
    for at in range(0, len(groups), wave):
        assert conversion.plan is not None
        wave_groups = groups[at : at + wave]
        inputs = [_ConvertTask(root, conversion.plan.restricted_to(pieces), pieces) for pieces in wave_groups]
        count += sum(tasks.run(_convert, inputs, int, progress))
        conversion.note_done([piece for pieces in wave_groups for piece in pieces])
    return count


def _group(pieces: list[PiecePlan], cores: int) -> list[list[PiecePlan]]:
    """Divide the pieces among tasks."""
    size = max(1, min(PIECES_PER_TASK, -(-len(pieces) // cores)))
    return [pieces[at : at + size] for at in range(0, len(pieces), size)]


def _convert(task: _ConvertTask) -> int:
    """Convert the pieces of a task, on any executor; return the number of their entries."""
    disk = PosixDisk(task.root)
    converter = NumpyConverter(RecordHeaders(LogFiles.load(disk, LOG_FOLDER, 0)))
    with ThreadPoolExecutor(1) as syncer:
        syncs = [
            syncer.submit(
                write_pieces(disk, task.plan, task.pieces[at : at + PIECES_PER_SYNC], converter).sync_and_verify
            )
            for at in range(0, len(task.pieces), PIECES_PER_SYNC)
        ]
        for each in syncs:
            each.result()
    return sum(piece.end - piece.start for piece in task.pieces)


def to_report(result: ConvertResult) -> JobReport:
    """Return the human-readable report of a run."""
    kind = "by record (batch)" if result.to == "batch" else "by message (simple)"
    count = sum(store.converted for store in result.stores)
    rows = [
        (store.store, queue.queue, queue.entries, queue.new_entries, queue.bytes, queue.new_bytes)
        for store in result.stores
        for queue in store.queues
    ]
    columns = [*left("STORE"), *right("QUEUE", "ENTRIES", "NEW ENTRIES", "BYTES", "NEW BYTES")]
    return JobReport(
        title=f"{result.topic} has an index {kind}",
        facts=[
            ("converted by this run", f"{count:,} entries, each verified against its record"),
            ("seconds", result.seconds),
            ("entries a second", count / result.seconds if result.seconds else 0.0),
        ],
        tables=[Table(columns, rows, empty="there was nothing to convert")],
    )
