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
from holdfast.model.queue import LogicalQueueId
from holdfast.pipeline.archive.cut import limit_logs
from holdfast.pipeline.archive.manifest import Archive, ArchivedFile, ArchivedLog, Interval, Manifest, join_intervals
from holdfast.pipeline.archive.parquet_files import RangeArchiveResult, StoreArchiver, tail_checksum
from holdfast.pipeline.archive.retention_hold import hold_retention
from holdfast.pipeline.reports.report import JobReport, Plot
from holdfast.pipeline.scan.faults import Fault, merge_faults
from holdfast.pipeline.scan.log_ranges import LogRange, choose_size, split_log
from holdfast.pipeline.scan.mappings import SegmentRange, load_mapping, merge_topics, segment_ranges
from holdfast.pipeline.scan.store_folder import StoreFolder, inspect_stores
from holdfast.pipeline.scan.tasks import ShowProgress, Tasks, no_progress, run_ranges
from holdfast.store.log.retention import RETENTION_HOLD_PATH


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


class ArchiveResult(msgspec.Struct, kw_only=True):
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
    def is_complete(self) -> bool:
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
    show: ShowProgress = no_progress,
) -> ArchiveResult:
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
    archive_folder = Archive(Path(target))
    with archive_folder.lock():
        previous = archive_folder.manifest
        if previous.run and sorted(previous.topics) != sorted(topics):
            raise ConfigError(
                f"the archive {target} was begun with topics {previous.topics or 'all'}: use the same topics in "
                "every run"
            )
        folders, merged, segments = _inspect(stores, previous)
        starts = [_find_start(folder, previous.logs.get(folder.broker)) for folder in folders]
        staging = archive_folder.begin_run()
        workers = [
            StoreArchiver(folder, str(staging), previous.run + 1, tuple(topics), folder_segments)
            for folder, folder_segments in zip(folders, segments, strict=True)
        ]

        def work(log_range: LogRange) -> RangeArchiveResult:
            return workers[log_range.store](log_range)

        size = range_size or choose_size(folders, tasks.cores)
        ranges = [
            each
            for number, (folder, start) in enumerate(zip(folders, starts, strict=True))
            for each in split_log(folder, number, start, size=size)
        ]
        results = run_ranges(tasks, work, ranges, RangeArchiveResult, size=size, show=show)
        manifest = _next_manifest(previous, folders, results, topics)
        files = [file for each in results for file in each.files]
        archive_folder.commit(manifest, files, time.time_ns() // 1_000_000)
    stuck = [
        folder.root
        for folder in folders
        if holds
        and not hold_retention(folder.root, str(archive_folder.root.resolve()), manifest.logs[folder.broker].position)
    ]
    gaps = _new_gaps(previous, manifest, merged)
    logs = [_log_progress(folder, start, previous) for folder, start in zip(folders, starts, strict=True)]
    result = _summarize(manifest, files, results, gaps, logs, time.monotonic() - began_s)
    return msgspec.structs.replace(result, stuck=stuck)


def _inspect(
    stores: Sequence[str], previous: Manifest
) -> tuple[list[StoreFolder], dict[str, MergedTopic], list[dict[str, dict[int, list[SegmentRange]]]]]:
    """Return the folders, `settled` where this run ends; the merged static topics; and the segments of each folder."""
    folders = inspect_stores(stores)
    # Read the mappings after the ends of the logs: so they contain the segment of every message.
    records: dict[str, Mapping[str, TopicMapping]] = {folder.broker: load_mapping(folder).topics for folder in folders}
    merged = merge_topics(records)
    folders = [
        msgspec.structs.replace(folder, settled=max(folder.settled, _archived_end(folder, previous)))
        for folder in limit_logs(folders, merged)
    ]
    segments = [
        {
            topic: segment_ranges(folder.broker, records[folder.broker].get(topic), merged_topic)
            for topic, merged_topic in merged.items()
        }
        for folder in folders
    ]
    return folders, merged, segments


def _archived_end(folder: StoreFolder, previous: Manifest) -> int:
    """Return the position up to which a log is archived; 0 if it is not archived, or ends before that position."""
    log = previous.logs.get(folder.broker)
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
        tail, size = tail_checksum(folder, log.position, log.tail_size)
        if size == log.tail_size and tail != log.tail:
            raise ConfigError(
                f"{folder.root}: the log of {folder.broker} is not the one that was archived up to {log.position}: "
                "it belongs to another broker of this name, or was damaged there"
            )
    return max(log.position, folder.start)


def _next_manifest(
    previous: Manifest, folders: list[StoreFolder], results: list[RangeArchiveResult], topics: Sequence[str]
) -> Manifest:
    """Return the manifest with the results of this run added."""
    offsets: dict[str, dict[str, list[Interval]]] = {
        topic: {queue: list(parts) for queue, parts in queues.items()} for topic, queues in previous.offsets.items()
    }
    for each in results:
        for topic, queues in each.offsets.items():
            for queue, parts in queues.items():
                offsets.setdefault(topic, {}).setdefault(queue, []).extend(parts)
    logs = dict(previous.logs)
    for folder in folders:
        logs[folder.broker] = ArchivedLog(folder.settled, *tail_checksum(folder, folder.settled))
    return Manifest(
        run=previous.run + 1,
        topics=list(topics),
        logs=logs,
        offsets={
            topic: {queue: join_intervals(parts) for queue, parts in sorted(queues.items())}
            for topic, queues in sorted(offsets.items())
        },
    )


def _new_gaps(previous: Manifest, after: Manifest, merged: Mapping[str, MergedTopic]) -> list[Gap]:
    """Return the gaps between archived offsets that are new in this run."""
    found: list[Gap] = []
    for topic, queues in after.offsets.items():
        for queue, parts in queues.items():
            old = {end for _, end in previous.offsets.get(topic, {}).get(queue, [])[:-1]}
            for (_, end), (first, _) in pairwise(parts):
                if end not in old:
                    found.append(Gap(topic, queue, end, first - 1, _is_forced(merged.get(topic), queue, first)))
    return found


def _is_forced(merged: MergedTopic | None, queue: str, first: int) -> bool:
    """Return whether a forced move, or a move by Java, left the gap that ends before *first*."""
    known = merged.queues.get(LogicalQueueId(int(queue))) if merged is not None and queue.isdigit() else None
    decided = [segment for segment in known.segments if segment.is_decided] if known is not None else []
    # Java brokers begin a segment at a round offset past the previous segment, and do not record the end of that one.
    return any(
        newer.first == first and (newer.is_detached or older.forced or not older.is_sealed)
        for older, newer in pairwise(decided)
    )


def _log_progress(folder: StoreFolder, start: int, previous: Manifest) -> LogProgress:
    log = previous.logs.get(folder.broker)
    lost = max(0, folder.start - log.position) if log is not None else 0
    return LogProgress(folder.broker, start, max(start, folder.settled), lost)


def _summarize(
    manifest: Manifest,
    files: list[ArchivedFile],
    results: list[RangeArchiveResult],
    gaps: list[Gap],
    logs: list[LogProgress],
    seconds: float,
) -> ArchiveResult:
    rows: dict[str, int] = {}
    days: dict[str, int] = {}
    for file in files:
        rows[file.topic] = rows.get(file.topic, 0) + file.rows
        days[file.day] = days.get(file.day, 0) + file.rows
    faults = merge_faults(each.faults for each in results)
    return ArchiveResult(
        run=manifest.run,
        logs=logs,
        read=sum(each.size for each in results),
        rows=dict(sorted(rows.items())),
        days=dict(sorted(days.items())),
        files=len(files),
        size=sum(file.size for file in files),
        gaps=gaps,
        faults=faults.listed,
        counts=faults.counts,
        outside=sum(each.outside for each in results),
        stuck=[],
        seconds=seconds,
    )


def to_report(result: ArchiveResult) -> JobReport:
    """Return the human-readable report of a run."""
    facts: list[tuple[str, Cell]] = [
        ("result", "all messages are archived" if result.is_complete else "something is missing, see below"),
        ("run", result.run),
        ("messages", sum(result.rows.values())),
        ("files", result.files),
        ("log read", size_text(result.read)),
        ("written", size_text(result.size)),
        ("seconds", round(result.seconds, 1)),
        ("speed", f"{size_text(result.read / max(result.seconds, 1e-3))}/s"),
    ]
    tables = [
        Table(
            [*left("BROKER"), *right("FROM", "TO", "LOST BYTES")],
            [(log.broker, log.start, log.end, log.lost or None) for log in result.logs],
            title="Logs",
        ),
        Table([*left("TOPIC"), *right("MESSAGES")], list(result.rows.items()), title="Topics", empty="nothing new"),
    ]
    if result.gaps:
        rows = [
            (gap.topic, gap.queue, gap.first, gap.last, "left by a move" if gap.is_known else "missing")
            for gap in result.gaps
        ]
        columns = [*left("TOPIC", "QUEUE"), *right("FIRST", "LAST"), *left("WHY")]
        tables.append(Table(columns, rows, title="Gaps in offsets"))
    if result.faults:
        faults = [(fault.broker, fault.kind, fault.path, fault.at, fault.text) for fault in result.faults[:50]]
        columns = [*left("BROKER", "KIND", "FILE"), *right("BYTE"), *left("WHAT")]
        tables.append(Table(columns, faults, title="Unreadable records"))
    notes = [
        f"{folder}/{RETENTION_HOLD_PATH} cannot be read, so the broker removes nothing from its log: run `holdfast "
        "pipeline "
        f"release {folder}`, then run every archive of this folder once"
        for folder in result.stuck
    ]
    if result.outside:
        notes.append(f"{result.outside} messages are in no logical queue: they were stored past the end of a segment")
    plot = Plot("Messages by day", list(result.days), {"messages": list(result.days.values())}, kind="histogram")
    return JobReport("Archive", facts, tables, [plot] if result.days else [], notes)
