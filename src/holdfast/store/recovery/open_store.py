"""Turn a folder into an open store: load its files, detect how it was closed, and recover.

abort present            the last process did not shut down cleanly
checkpoint, snapshot     where recovery begins
commitlog, and a folder for each kind of index    file sizes are taken from the files
rocksdbstore, timerwheel, ...                owned by other programs: left untouched
"""

from __future__ import annotations

import msgspec

from holdfast.model.topic import QUEUE_TYPE
from holdfast.store.base.config_files import load_config
from holdfast.store.base.disk import Disk
from holdfast.store.base.file_cache import FileCache
from holdfast.store.base.log_file import LogFiles, file_name, parse_names
from holdfast.store.base.options import StoreOptions
from holdfast.store.keys.key_index import KeyIndex
from holdfast.store.log.commit_log import FOLDER as LOG_FOLDER
from holdfast.store.log.commit_log import CommitLog
from holdfast.store.queues.index_kinds import DEFAULT_KIND, KINDS, IndexKind, find_kind
from holdfast.store.queues.queue_files import QueueFiles
from holdfast.store.queues.queue_table import QueueTable, find_queues
from holdfast.store.recovery.checkpoint import CheckpointFile
from holdfast.store.recovery.conversion_plan import refuse_half_switched
from holdfast.store.recovery.queue_snapshot import (
    QueueSnapshot,
    TopicBounds,
    erased_key,
    load_deleted,
    load_snapshot,
    save_deleted,
)
from holdfast.store.recovery.recovery import Recovery, RecoveryResult
from holdfast.store.recovery.replica_log import ReplicaLog, ensure_role

ABORT_PATH = "abort"
OFFSET_UNKNOWN = 1 << 62
"""The expected end of a queue if none was noted: larger than any real one."""


class OpenedStore(msgspec.Struct):
    """The parts of a store, ready for use."""

    disk: Disk
    options: StoreOptions
    log: CommitLog
    table: QueueTable
    key_index: KeyIndex
    checkpoint: CheckpointFile
    recovered: RecoveryResult
    deleted: dict[str, int]
    indexed: int


def open_store(disk: Disk, options: StoreOptions) -> OpenedStore:
    """Load and recover the store in the folder of *disk*.

    Raises:
        StoreError: the folder cannot be a store; the text says what to do.
    """
    refuse_half_switched(disk)
    ensure_role(disk, is_replica=options.is_replica)
    is_clean = disk.find_size(ABORT_PATH) is None
    files = LogFiles.load(disk, LOG_FOLDER, options.log_file_size)
    cache = FileCache(disk, options.open_files_max)
    table = QueueTable(disk, _find_queue_files(disk, cache, options), _find_kinds(disk))
    checkpoint = CheckpointFile(disk)
    deleted = load_deleted(disk, files.start)
    expected = _load_queues(disk, table, checkpoint, files, deleted, is_clean=is_clean)
    # From here on the folder changes: the next process must know if this one does not finish.
    disk.replace(ABORT_PATH, b"")
    recovered = Recovery(files, table, checkpoint, options, deleted, is_clean=is_clean, expected=expected).run()
    if any(position > recovered.log_end for position in deleted.values()):
        # The log lost its end: the records written there from now on are valid.
        deleted = {name: min(position, recovered.log_end) for name, position in deleted.items()}
        save_deleted(disk, deleted)
    if not is_clean:
        # Data that a killed process left in the page cache becomes readable now: a power cut must not lose it again.
        for number, file in files.files.items():
            if (number + 1) * files.size > recovered.start:
                file.sync()
    # Without any checkpoint, not even Java's, nothing is known to be synced.
    synced = checkpoint.value.indexed if checkpoint.value.physic_ms else 0
    key_index = KeyIndex(disk, options, is_clean=is_clean, synced=synced)
    end, store_ms = recovered.log_end, recovered.store_ms
    log = (
        ReplicaLog(files, options, table, written=end, store_ms=store_ms)
        if options.is_replica
        else CommitLog(files, options, written=end, store_ms=store_ms)
    )
    files.ensure(recovered.log_end // files.size)
    files.reserve(recovered.log_end)
    return OpenedStore(
        disk=disk,
        options=options,
        log=log,
        table=table,
        key_index=key_index,
        checkpoint=checkpoint,
        recovered=recovered,
        deleted=deleted,
        indexed=_find_indexed(key_index, files, checkpoint, recovered),
    )


def _find_queue_files(disk: Disk, cache: FileCache, options: StoreOptions) -> dict[IndexKind, QueueFiles]:
    """Return the files of each kind of index."""
    unsynced: dict[str, None] = {}
    return {
        kind: QueueFiles(
            cache,
            find_queue_file_size(disk, kind) or kind.choose_file_size(options),
            len(options.store_host),
            folder=kind.kind_folder,
            entry_size=kind.entry_size,
            unsynced=unsynced,
        )
        for kind in KINDS
    }


def find_queue_file_size(disk: Disk, kind: IndexKind) -> int | None:
    """Return the size of the first non-empty queue file of one kind, or None if there is none."""
    for topic, queue_id in find_queues(disk, kind.kind_folder):
        folder = f"{kind.kind_folder}/{topic}/{queue_id}"
        for start in parse_names(disk.list(folder)):
            size = disk.find_size(f"{folder}/{file_name(start)}")
            if size:
                return size
    return None


def _find_kinds(disk: Disk) -> dict[str, IndexKind]:
    """Return the topics that do not have the default kind of index, by their folder or by their configuration."""
    others = [kind for kind in KINDS if kind is not DEFAULT_KIND]
    kinds = {topic: kind for kind in others for topic, _ in find_queues(disk, kind.kind_folder)}
    config = load_config(disk.read_file, "topics.json")
    table = config.get("topicConfigTable") if isinstance(config, dict) else None
    for name, topic in table.items() if isinstance(table, dict) else ():
        attributes = topic.get("attributes") if isinstance(topic, dict) else None
        kind = find_kind(attributes.get(QUEUE_TYPE)) if isinstance(attributes, dict) else DEFAULT_KIND
        if kind is not DEFAULT_KIND:
            kinds[name] = kind
    return kinds


def _load_queues(
    disk: Disk,
    table: QueueTable,
    checkpoint: CheckpointFile,
    files: LogFiles,
    deleted: dict[str, int],
    *,
    is_clean: bool,
) -> QueueSnapshot | None:
    """Load the queues. Return the bounds they should have, if these are known and may differ."""
    snapshot = load_snapshot(disk)
    if snapshot is None:
        table.load()
        return None
    if not is_clean:
        # Since the snapshot, queues only grew unless they were deleted: a shorter one is damaged.
        table.load()
        if snapshot.log_end > files.end:
            return None
        bounds = {kind: _drop_deleted(topics, deleted) for kind, topics in snapshot.bounds.items()}
        return msgspec.structs.replace(snapshot, bounds=bounds)
    if (snapshot.log_start, snapshot.log_end) != (files.start, checkpoint.value.position):
        table.load()
        return None
    table.refuse_two_kinds()
    if not _restore(table, snapshot) or table.newest_position >= snapshot.log_end:
        table.queues.clear()
        table.newest_position = 0
        table.load()
        return snapshot
    return _load_unnoted(table, snapshot)


def _load_unnoted(table: QueueTable, snapshot: QueueSnapshot) -> QueueSnapshot | None:
    """Load queues that existed but were not served at shutdown: they may have entries past the log.

    A broker of a version without some kind of index does not serve its queues, and does not note their bounds.
    """
    found = table.load_unnoted()
    if not found:
        return None
    bounds: dict[IndexKind, TopicBounds] = {}
    for queue in found:
        topics = bounds.setdefault(type(queue), {})
        topics.setdefault(queue.topic, {})[queue.queue_id] = (0, OFFSET_UNKNOWN)
    return msgspec.structs.replace(snapshot, bounds=bounds)


def _drop_deleted(queues: TopicBounds, deleted: dict[str, int]) -> TopicBounds:
    """Return *queues* without those that were deleted, alone or with their topic."""
    return {
        topic: {number: span for number, span in bounds.items() if erased_key(topic, number) not in deleted}
        for topic, bounds in queues.items()
        if topic not in deleted
    }


def _restore(table: QueueTable, snapshot: QueueSnapshot) -> bool:
    """Load the queues as noted; return False if the files of one do not match."""
    return all(
        table.restore(kind, topic, queue_id, bounds)
        for kind, topics in snapshot.bounds.items()
        for topic, queues in topics.items()
        for queue_id, bounds in queues.items()
    )


def _find_indexed(index: KeyIndex, files: LogFiles, checkpoint: CheckpointFile, recovered: RecoveryResult) -> int:
    """Return the position from which the key index continues."""
    last = index.end_position
    if last is None or not files.start <= last < recovered.log_end:
        return files.start
    if recovered.is_clean and checkpoint.value.indexed is not None:
        return min(max(last, checkpoint.value.indexed), recovered.log_end)
    # The next index file is gone, and with it perhaps some keys of this record: index it again.
    return last
