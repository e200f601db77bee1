"""`convert-index`: the index of a topic from one kind into the other, with as many hands as there are.

    driver    holds the folders, plans, and gives a wave of pieces out ─┬─ task: convert, prove, write, sync, read back
              notes the wave as done, goes on with the next             └─ task: ...
              switches, when everything is proven

It is the conversion of `store.index_conversion`, with its plan, its notes and its switch, so that one may be begun here
and ended by `holdfast index convert`, or the other way round; only who converts a piece is another. Tasks write into
the folder: on a cluster every executor must see it under the same path. A task that is run twice writes the same bytes.
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
from holdfast.pipeline.convert.numpy_conversion import ColumnCraft
from holdfast.pipeline.reports.report import Report
from holdfast.pipeline.scan.tasks import Progress, ShowProgress, Tasks, show_nothing
from holdfast.runtime.folder_lock import hold_store
from holdfast.runtime.posix_disk import PosixDisk
from holdfast.store.base.log_file import LogFiles
from holdfast.store.base.options import StoreOptions
from holdfast.store.conversion.index_conversion import IndexConversion
from holdfast.store.conversion.piece_conversion import write_pieces
from holdfast.store.conversion.record_headers import RecordHeads
from holdfast.store.log.commit_log import FOLDER as LOG_FOLDER
from holdfast.store.recovery.conversion_plan import PiecePlan, Plan, QueueFigures, Target

PIECE_SIZE: Final = 16_384
"""Entries of a piece. Those of as many as are made together are in memory: some 25 MB, however long the index is."""
GROUP: Final = 512
"""Pieces of one task, at most: a second of work. They follow each other in the log: what several queues have there is
read once. Of less there is one task for each core: they are alike, and each costs Spark some 60 ms."""
SETTLED: Final = 32
"""Pieces that are brought to disk together, while the next ones are converted."""
WAVE: Final = 32
"""Tasks that are given out before any is noted as done: so much is done again after a stop, at most."""


class StoreConverted(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the topic in one folder.

    Attributes:
        resumed: An earlier run, perhaps of `holdfast index convert`, had begun it.
        converted: Entries that this run converted.
        queues: Empty where the topic had the wanted kind of index already.
    """

    store: str
    resumed: bool
    converted: int
    queues: list[QueueFigures]


class Converted(msgspec.Struct, frozen=True, kw_only=True):
    """What a run did."""

    topic: str
    to: Target
    seconds: float
    stores: list[StoreConverted]


class _Job(msgspec.Struct, frozen=True):
    """Some pieces, and all that their task has to know."""

    root: str
    plan: Plan
    pieces: list[PiecePlan]


def convert_index(
    tasks: Tasks,
    stores: Sequence[str],
    topic: str,
    to: Target,
    *,
    show: ShowProgress = show_nothing,
    options: StoreOptions | None = None,
    piece_size: int = PIECE_SIZE,
    wave: int = WAVE,
) -> Converted:
    """Convert the index of *topic* in each of *stores*, folders of brokers that do not run. It may be stopped.

    Raises:
        ConfigError: one of them is no store folder.
        StoreError: it cannot be done, or not now; the text says why. Nothing that is served has changed.
        TaskFailed: the same, of a task.
    """
    began_s = time.monotonic()
    converted: list[StoreConverted] = []
    with ExitStack() as held:
        folders = [(store, held.enter_context(hold_store(Path(store)))) for store in stores]
        conversions = [
            (store, IndexConversion(disk, topic, to, options=options or StoreOptions(), piece_size=piece_size))
            for store, disk in folders
        ]
        progress = show(
            "converting, tasks", sum(len(_group(conversion.left(), tasks.cores)) for _, conversion in conversions)
        )
        for store, conversion in conversions:
            count = _build(tasks, store, conversion, progress, wave)
            plan = conversion.plan
            figures = [] if plan is None else plan.figures()
            converted.append(
                StoreConverted(store=store, resumed=conversion.is_resumed, converted=count, queues=figures)
            )
        for _, conversion in conversions:
            if conversion.plan is not None:
                conversion.switch(time.time_ns() // 1_000_000)
    return Converted(topic=topic, to=to, seconds=round(time.monotonic() - began_s, 3), stores=converted)


def _build(tasks: Tasks, store: str, conversion: IndexConversion, progress: Progress, wave: int) -> int:
    """Convert what is left of one folder, wave by wave; return how many entries that were."""
    groups, count = _group(conversion.left(), tasks.cores), 0
    root = str(Path(store).resolve())
    for at in range(0, len(groups), wave):
        assert conversion.plan is not None
        given = groups[at : at + wave]
        jobs = [_Job(root, conversion.plan.only(pieces), pieces) for pieces in given]
        count += sum(tasks.run(_convert, jobs, int, progress))
        conversion.note_done([piece for pieces in given for piece in pieces])
    return count


def _group(pieces: list[PiecePlan], cores: int) -> list[list[PiecePlan]]:
    """Return the pieces of each task."""
    size = max(1, min(GROUP, -(-len(pieces) // cores)))
    return [pieces[at : at + size] for at in range(0, len(pieces), size)]


def _convert(job: _Job) -> int:
    """Convert some pieces, wherever this runs; return how many entries they have."""
    disk = PosixDisk(job.root)
    craft = ColumnCraft(RecordHeads(LogFiles.load(disk, LOG_FOLDER, 0)))
    with ThreadPoolExecutor(1) as settling:
        settled = [
            settling.submit(write_pieces(disk, job.plan, job.pieces[at : at + SETTLED], craft).settle)
            for at in range(0, len(job.pieces), SETTLED)
        ]
        for each in settled:
            each.result()
    return sum(piece.end - piece.start for piece in job.pieces)


def to_report(found: Converted) -> Report:
    """Return what people are told."""
    kind = "by record (batch)" if found.to == "batch" else "by message (simple)"
    count = sum(store.converted for store in found.stores)
    rows = [
        (store.store, queue.queue, queue.entries, queue.new_entries, queue.bytes, queue.new_bytes)
        for store in found.stores
        for queue in store.queues
    ]
    columns = [*left("STORE"), *right("QUEUE", "ENTRIES", "NEW ENTRIES", "BYTES", "NEW BYTES")]
    return Report(
        title=f"{found.topic} has an index {kind}",
        facts=[
            ("converted by this run", f"{count:,} entries, each compared with its record"),
            ("seconds", found.seconds),
            ("entries a second", count / found.seconds if found.seconds else 0.0),
        ],
        tables=[Table(columns, rows, empty="there was nothing to convert")],
    )
