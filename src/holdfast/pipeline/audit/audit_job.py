"""`audit`: checks the stores of some brokers for damage and inconsistencies.

    indexes   each index on its own (`index_check`)             no missing entries, rising positions and offsets
    log       each range against all indexes (`log_check`)      each record in exactly one entry; checksums
    mapping   on the driver (`mapping_check`)                   brokers agree; segments are as long as their queues

Reads only. In the folder of a live broker it checks only the settled part. It ignores files removed during the audit.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

import msgspec

from holdfast.admin.tables import Cell, Table, left, right, size_text
from holdfast.pipeline.audit.index_check import IndexResult, IndexTask, audit_queues
from holdfast.pipeline.audit.log_check import LogAuditor, RangeAudit
from holdfast.pipeline.audit.mapping_check import audit_mappings
from holdfast.pipeline.reports.report import JobReport
from holdfast.pipeline.scan.faults import FAULT_KINDS, Fault, Faults, merge_faults
from holdfast.pipeline.scan.log_ranges import LogRange, choose_size, split_log
from holdfast.pipeline.scan.store_folder import StoreFolder, inspect_store, inspect_stores
from holdfast.pipeline.scan.tasks import ShowProgress, Tasks, no_progress, run_ranges

_QUEUES_PER_TASK: Final = 256
_SHOWN_MAX: Final = 50


class StoreAudit(msgspec.Struct, kw_only=True):
    """What the audit inspected in one broker's store."""

    broker: str
    path: str
    start: int
    settled: int
    end: int
    is_closed: bool
    queues: int
    records: int = 0
    messages: int = 0
    size: int = 0
    entries: int = 0
    unqueued: int = 0
    of_the_dead: int = 0
    backwards: int = 0
    blanks: int = 0
    gaps: int = 0


class Audit(msgspec.Struct, kw_only=True):
    """The result of an audit."""

    stores: list[StoreAudit]
    faults: list[Fault]
    counts: dict[str, int]
    notes: list[str]
    seconds: float

    @property
    def is_clean(self) -> bool:
        """Whether the audit found no fault."""
        return not self.counts

    @property
    def size(self) -> int:
        """Bytes of records that were inspected."""
        return sum(store.size for store in self.stores)


def audit(
    tasks: Tasks,
    stores: Sequence[str],
    *,
    range_size: int | None = None,
    show: ShowProgress = no_progress,
) -> Audit:
    """Audit the stores of one broker, or of all brokers of a cluster.

    Args:
        tasks: Runs the tasks; its workers must see the folders under the same paths.
        stores: Folders, or `name=folder` where the broker's name is known.
        range_size: Bytes of log per task; by default chosen from the number of cores.
        show: Shows the progress.

    Raises:
        ConfigError: a folder is not a store, or two folders belong to the same broker name.
        TaskFailed: a task failed.
    """
    began_s = time.monotonic()
    folders = inspect_stores(stores)
    indexes = _audit_indexes(tasks, folders, show)
    size = range_size or choose_size(folders, tasks.cores)
    ranges = _audit_logs(tasks, folders, indexes, size, show)
    bounds = [{(each.topic, each.queue_id): each for each in store_results} for store_results in indexes]
    notes: list[str] = []
    mapping_faults = audit_mappings(folders, bounds, notes)
    filtered = [_without_deleted(folders, each) for each in ranges]
    faults = merge_faults(
        [*(each.faults for store_results in indexes for each in store_results), *filtered, mapping_faults]
    )
    store_audits = [_summarize(number, folder, indexes[number], ranges) for number, folder in enumerate(folders)]
    notes += [note for store in store_audits for note in _notes(store)]
    seconds = time.monotonic() - began_s
    return Audit(stores=store_audits, faults=faults.listed, counts=faults.counts, notes=notes, seconds=seconds)


def _audit_indexes(tasks: Tasks, folders: list[StoreFolder], show: ShowProgress) -> list[list[IndexResult]]:
    inputs = [
        IndexTask(
            folder.broker,
            number,
            folder.start,
            folder.settled,
            folder.is_closed,
            folder.queues[at : at + _QUEUES_PER_TASK],
        )
        for number, folder in enumerate(folders)
        for at in range(0, len(folder.queues), _QUEUES_PER_TASK)
    ]
    results: list[list[IndexResult]] = tasks.run(audit_queues, inputs, list[IndexResult], show("indexes", len(inputs)))
    by_store: list[list[IndexResult]] = [[] for _ in folders]
    for task in results:
        for each in task:
            by_store[each.store].append(each)
    return by_store


def _audit_logs(
    tasks: Tasks,
    folders: list[StoreFolder],
    indexes: list[list[IndexResult]],
    size: int,
    show: ShowProgress,
) -> list[RangeAudit]:
    audits = [
        LogAuditor(folder, frozenset((each.topic, each.queue_id) for each in store_results if not each.is_searchable))
        for folder, store_results in zip(folders, indexes, strict=True)
    ]

    def work(log_range: LogRange) -> RangeAudit:
        return audits[log_range.store](log_range)

    ranges = [each for number, folder in enumerate(folders) for each in split_log(folder, number, size=size)]
    return run_ranges(tasks, work, ranges, RangeAudit, size=size, show=show)


def _without_deleted(folders: list[StoreFolder], checked: RangeAudit) -> Faults:
    """Return the faults of a range, without those of records deleted or removed by retention during the audit."""
    folder = folders[checked.range.store]
    if folder.is_closed or not checked.faults.counts.get("unindexed"):
        return checked.faults
    current = inspect_store(folder.root, folder.broker)
    kept = Faults(counts={kind: count for kind, count in checked.faults.counts.items() if kind != "unindexed"})
    kept.listed += [fault for fault in checked.faults.listed if fault.kind != "unindexed"]
    for fault in checked.faults.listed:
        is_alive = (fault.position or 0) >= current.deleted_before(fault.topic or "", fault.queue or 0)
        if fault.kind == "unindexed" and is_alive and (fault.position or 0) >= current.start:
            kept.add(fault)
    return kept


def _summarize(number: int, folder: StoreFolder, indexes: list[IndexResult], ranges: list[RangeAudit]) -> StoreAudit:
    own_ranges = [each for each in ranges if each.range.store == number]
    sums = {
        name: sum(getattr(each, name) for each in own_ranges)
        for name in ("records", "messages", "size", "entries", "unqueued", "of_the_dead", "backwards")
    }
    return StoreAudit(
        broker=folder.broker,
        path=folder.root,
        start=folder.start,
        settled=folder.settled,
        end=folder.end,
        is_closed=folder.is_closed,
        queues=len(indexes),
        blanks=sum(each.blanks for each in indexes),
        gaps=sum(each.gaps for each in indexes),
        **sums,
    )


def _notes(store: StoreAudit) -> list[str]:
    notes = {
        f"the last {size_text(store.end - store.settled)} of the log are not settled yet, and were not checked": (
            store.end - store.settled
        ),
        f"{store.of_the_dead} records belong to deleted topics or queues": store.of_the_dead,
        f"{store.blanks} index entries are blank: a recovery found their records lost": store.blanks,
        f"{store.backwards} records have an earlier store time than the record before: a clock was set back": (
            store.backwards
        ),
    }
    return [f"{store.broker}: {text}" for text, count in notes.items() if count]


def to_report(result: Audit) -> JobReport:
    """Return the human-readable report of an audit."""
    faults = [
        (fault.broker, fault.kind, fault.path, fault.at, _owner(fault), fault.text)
        for fault in result.faults[:_SHOWN_MAX]
    ]
    total = sum(result.counts.values())
    stores = [
        (
            store.broker,
            store.queues,
            store.records,
            store.messages,
            store.entries,
            size_text(store.size),
        )
        for store in result.stores
    ]
    tables = [
        Table([*left("BROKER"), *right("QUEUES", "RECORDS", "MESSAGES", "ENTRIES", "LOG")], stores, title="Stores"),
        Table(
            [*left("KIND"), *right("FOUND"), *left("MEANING")],
            [(kind, result.counts[kind], FAULT_KINDS[kind]) for kind in FAULT_KINDS if kind in result.counts],
            title="Faults",
            empty="none: every record is in exactly one index entry, and every checksum is right",
        ),
    ]
    if faults:
        title = f"The first {len(faults)} of {total}" if total > len(faults) else "Each of them"
        tables.append(
            Table([*left("BROKER", "KIND", "FILE"), *right("BYTE"), *left("OF", "WHAT")], faults, title=title)
        )
    facts: list[tuple[str, Cell]] = [
        ("result", "right" if result.is_clean else f"{total} faults"),
        ("log", size_text(result.size)),
        ("seconds", round(result.seconds, 1)),
        ("speed", f"{size_text(result.size / max(result.seconds, 1e-3))}/s"),
    ]
    return JobReport("Audit", facts, tables, notes=result.notes)


def _owner(fault: Fault) -> str | None:
    if fault.topic is None:
        return None
    queue = "" if fault.queue is None else f"/{fault.queue}"
    return f"{fault.topic}{queue}" if fault.offset is None else f"{fault.topic}{queue} {fault.offset}"
