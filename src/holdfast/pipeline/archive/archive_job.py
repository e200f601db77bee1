"""`archive`: exports logs to Parquet, by topic and day; each run adds the new records exactly once.

    inspect folders and mappings ─ find the end of the last run ─ tasks write files (`parquet_files`)
    ─ find gaps in offsets ─ commit (`manifest`) ─ update the retention holds (`retention_hold`)

Run it repeatedly. A run that stops or crashes at any point leaves nothing visible to readers, and the next run repeats
its work.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import msgspec

from holdfast.admin.tables import Cell, Table, left, right, size_text
from holdfast.model.errors import ConfigError
from holdfast.model.mapping import MergedTopic, TopicMapping
from holdfast.pipeline.archive.cut import cut_together
from holdfast.pipeline.archive.manifest import Archive, ArchivedFile, ArchivedLog, Interval, Manifest, join_intervals
from holdfast.pipeline.archive.parquet_files import ArchiveRange, RangeArchived, tail_of
from holdfast.pipeline.archive.retention_hold import hold_log
from holdfast.pipeline.reports.report import Plot, Report
from holdfast.pipeline.scan.faults import Fault, join
from holdfast.pipeline.scan.log_ranges import LogRange, choose_size, cut_log
from holdfast.pipeline.scan.mappings import Home, homes_of, load_mapping, merge_topics
from holdfast.pipeline.scan.store_folder import StoreFolder, open_stores
from holdfast.pipeline.scan.tasks import ShowProgress, Tasks, run_ranges, show_nothing
from holdfast.store.log.retention import HOLD_PATH


class LogProgress(msgspec.Struct, frozen=True):
    """The part of a broker's log that a run archived.

    Attributes:
        lost: Bytes that retention removed before they were archived.
    """

    broker: str
    start: int
    end: int
    lost: int


class Gap(msgspec.Struct, frozen=True):
    """Offsets missing from the archive between archived ones.

    Attributes:
        is_known: A forced move, or a move by Java, left the gap: no message is missing.
    """

    topic: str
    queue: str
    first: int
    last: int
    is_known: bool


class Archived(msgspec.Struct, kw_only=True):
    """The result of a run.

    Attributes:
        read: Bytes of records that were read.
        rows: Archived rows by topic.
        gaps: The gaps that this run found.
        outside: Messages of static topics that are outside all segments.
        stuck: Folders with an unreadable retention hold: retention removes nothing there.
    """

    run: int
    logs: list[LogProgress]
    read: int
    rows: dict[str, int]
    days: dict[str, int]
    files: int
    size: int
    gaps: list[Gap]
    faults: list[Fault]
    counts: dict[str, int]
    outside: int
    stuck: list[str]
    seconds: float

    @property
    def is_whole(self) -> bool:
        """Whether the archive contains every message that was stored."""
        return not self.counts and all(gap.is_known for gap in self.gaps) and not any(log.lost for log in self.logs)


def archive(
    tasks: Tasks,
    stores: Sequence[str],
    target: str,
    *,
    topics: Sequence[str] = (),
    holds: bool = True,
    range_size: int | None = None,
    show: ShowProgress = show_nothing,
) -> Archived:
    """Add to an archive the messages that some brokers have stored since the last run.

    Args:
        tasks: Runs the tasks; its workers must see the folders and the archive under the same paths.
        stores: Folders, or `name=folder`: of one broker, or better of all brokers of a cluster.
        target: The folder of the archive; created if missing.
        topics: Topic patterns; empty for all topics except system topics. Must be the same in every run.
        holds: Keep the brokers' retention from deleting records that are not archived.
        range_size: Bytes of log per task; by default chosen from the number of cores.
        show: Shows the progress.

    Raises:
        ConfigError: a folder is not a store, or not the one that was archived before; or another run is in progress.
        ArchiveBroken: the archive is damaged.
        MappingUnreadable: a queue mapping cannot be read, so logical offsets are unknown.
        TaskFailed: a task failed. Nothing was added.
    """
    began_s = time.monotonic()
    place = Archive(Path(target))
    with place.hold():
        before = place.manifest
        if before.run and sorted(before.topics) != sorted(topics):
            raise ConfigError(
                f"the archive {target} was begun with topics {before.topics or 'all'}: use the same topics in every run"
            )
        folders, merged, homes = _inspect(stores, before)
        starts = [_find_start(folder, before.logs.get(folder.broker)) for folder in folders]
        staging = place.begin_run()
        workers = [
            ArchiveRange(folder, str(staging), before.run + 1, tuple(topics), mine)
            for folder, mine in zip(folders, homes, strict=True)
        ]

        def work(mine: LogRange) -> RangeArchived:
            return workers[mine.store](mine)

        size = range_size or choose_size(folders, tasks.cores)
        ranges = [
            each
            for number, (folder, start) in enumerate(zip(folders, starts, strict=True))
            for each in cut_log(folder, number, start, size=size)
        ]
        done = run_ranges(tasks, work, ranges, RangeArchived, size=size, show=show)
        manifest = _add(before, folders, done, topics)
        files = [file for each in done for file in each.files]
        place.commit(manifest, files, time.time_ns() // 1_000_000)
    stuck = [
        folder.root
        for folder in folders
        if holds and not hold_log(folder.root, str(place.root.resolve()), manifest.logs[folder.broker].position)
    ]
    gaps = _new_gaps(before, manifest, merged)
    logs = [_progress(folder, start, before) for folder, start in zip(folders, starts, strict=True)]
    found = _sum_up(manifest, files, done, gaps, logs, time.monotonic() - began_s)
    return msgspec.structs.replace(found, stuck=stuck)


def _inspect(
    stores: Sequence[str], before: Manifest
) -> tuple[list[StoreFolder], dict[str, MergedTopic], list[dict[str, dict[int, list[Home]]]]]:
    """Return the folders, `settled` where this run ends; the merged static topics; and the segments of each folder."""
    folders = open_stores(stores)
    # Read the mappings after the ends of the logs: so they contain the segment of every message.
    records: dict[str, Mapping[str, TopicMapping]] = {folder.broker: load_mapping(folder).topics for folder in folders}
    merged = merge_topics(records)
    folders = [
        msgspec.structs.replace(folder, settled=max(folder.settled, _known_end(folder, before)))
        for folder in cut_together(folders, merged)
    ]
    homes = [
        {
            topic: homes_of(folder.broker, records[folder.broker].get(topic), everywhere)
            for topic, everywhere in merged.items()
        }
        for folder in folders
    ]
    return folders, merged, homes


def _known_end(folder: StoreFolder, before: Manifest) -> int:
    """Return the position up to which a log is archived; 0 if it is not archived, or ends before that position."""
    log = before.logs.get(folder.broker)
    return log.position if log is not None and log.position <= folder.end else 0


def _find_start(folder: StoreFolder, log: ArchivedLog | None) -> int:
    """Return the log position at which the last run ended.

    Raises:
        ConfigError: this is not the log that was archived.
    """
    if log is None:
        return folder.start
    if log.position > folder.end:
        raise ConfigError(
            f"{folder.root}: the log of {folder.broker} ends at {folder.end}, but is archived up to {log.position}: "
            "the folder is an older copy, or belongs to another broker of this name"
        )
    if log.tail_size and log.position > folder.start:
        tail, size = tail_of(folder, log.position, log.tail_size)
        if size == log.tail_size and tail != log.tail:
            raise ConfigError(
                f"{folder.root}: the log of {folder.broker} is not the one that was archived up to {log.position}: "
                "it belongs to another broker of this name, or was damaged there"
            )
    return max(log.position, folder.start)


def _add(before: Manifest, folders: list[StoreFolder], done: list[RangeArchived], topics: Sequence[str]) -> Manifest:
    """Return the manifest with the results of this run added."""
    offsets: dict[str, dict[str, list[Interval]]] = {
        topic: {queue: list(parts) for queue, parts in queues.items()} for topic, queues in before.offsets.items()
    }
    for each in done:
        for topic, queues in each.offsets.items():
            for queue, parts in queues.items():
                offsets.setdefault(topic, {}).setdefault(queue, []).extend(parts)
    logs = dict(before.logs)
    for folder in folders:
        logs[folder.broker] = ArchivedLog(folder.settled, *tail_of(folder, folder.settled))
    return Manifest(
        run=before.run + 1,
        topics=list(topics),
        logs=logs,
        offsets={
            topic: {queue: join_intervals(parts) for queue, parts in sorted(queues.items())}
            for topic, queues in sorted(offsets.items())
        },
    )


def _new_gaps(before: Manifest, after: Manifest, merged: Mapping[str, MergedTopic]) -> list[Gap]:
    """Return the gaps between archived offsets that are new in this run."""
    found: list[Gap] = []
    for topic, queues in after.offsets.items():
        for queue, parts in queues.items():
            old = {end for _, end in before.offsets.get(topic, {}).get(queue, [])[:-1]}
            for (_, end), (first, _) in pairwise(parts):
                if end not in old:
                    found.append(Gap(topic, queue, end, first - 1, _is_forced(merged.get(topic), queue, first)))
    return found


def _is_forced(merged: MergedTopic | None, queue: str, first: int) -> bool:
    """Return whether a forced move, or a move by Java, left the gap that ends before *first*."""
    known = merged.queues.get(int(queue)) if merged is not None and queue.isdigit() else None
    decided = [segment for segment in known.segments if segment.is_decided] if known is not None else []
    # Java brokers begin a segment at a round offset past the previous segment, and do not record the end of that one.
    return any(
        newer.first == first and (newer.cut or older.forced or not older.is_sealed)
        for older, newer in pairwise(decided)
    )


def _progress(folder: StoreFolder, start: int, before: Manifest) -> LogProgress:
    log = before.logs.get(folder.broker)
    lost = max(0, folder.start - log.position) if log is not None else 0
    return LogProgress(folder.broker, start, max(start, folder.settled), lost)


def _sum_up(
    manifest: Manifest,
    files: list[ArchivedFile],
    done: list[RangeArchived],
    gaps: list[Gap],
    logs: list[LogProgress],
    seconds: float,
) -> Archived:
    rows: dict[str, int] = {}
    days: dict[str, int] = {}
    for file in files:
        rows[file.topic] = rows.get(file.topic, 0) + file.rows
        days[file.day] = days.get(file.day, 0) + file.rows
    faults = join(each.faults for each in done)
    return Archived(
        run=manifest.run,
        logs=logs,
        read=sum(each.size for each in done),
        rows=dict(sorted(rows.items())),
        days=dict(sorted(days.items())),
        files=len(files),
        size=sum(file.size for file in files),
        gaps=gaps,
        faults=faults.listed,
        counts=faults.counts,
        outside=sum(each.outside for each in done),
        stuck=[],
        seconds=seconds,
    )


def to_report(found: Archived) -> Report:
    """Return the human-readable report of a run."""
    facts: list[tuple[str, Cell]] = [
        ("result", "all messages are archived" if found.is_whole else "something is missing, see below"),
        ("run", found.run),
        ("messages", sum(found.rows.values())),
        ("files", found.files),
        ("log read", size_text(found.read)),
        ("written", size_text(found.size)),
        ("seconds", round(found.seconds, 1)),
        ("speed", f"{size_text(found.read / max(found.seconds, 1e-3))}/s"),
    ]
    tables = [
        Table(
            [*left("BROKER"), *right("FROM", "TO", "LOST BYTES")],
            [(log.broker, log.start, log.end, log.lost or None) for log in found.logs],
            title="Logs",
        ),
        Table([*left("TOPIC"), *right("MESSAGES")], list(found.rows.items()), title="Topics", empty="nothing new"),
    ]
    if found.gaps:
        rows = [
            (gap.topic, gap.queue, gap.first, gap.last, "left by a move" if gap.is_known else "missing")
            for gap in found.gaps
        ]
        columns = [*left("TOPIC", "QUEUE"), *right("FIRST", "LAST"), *left("WHY")]
        tables.append(Table(columns, rows, title="Gaps in offsets"))
    if found.faults:
        faults = [(fault.broker, fault.kind, fault.path, fault.at, fault.text) for fault in found.faults[:50]]
        columns = [*left("BROKER", "KIND", "FILE"), *right("BYTE"), *left("WHAT")]
        tables.append(Table(columns, faults, title="Unreadable records"))
    notes = [
        f"{folder}/{HOLD_PATH} cannot be read, so the broker removes nothing from its log: run `holdfast pipeline "
        f"release {folder}`, then run every archive of this folder once"
        for folder in found.stuck
    ]
    if found.outside:
        notes.append(f"{found.outside} messages are in no logical queue: they were stored past the end of a segment")
    plot = Plot("Messages by day", list(found.days), {"messages": list(found.days.values())}, kind="histogram")
    return Report("Archive", facts, tables, [plot] if found.days else [], notes)
