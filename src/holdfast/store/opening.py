"""Turn a folder into an open store: what is there, what kind of end it had, and recovery.

abort present            the last process did not end in order
checkpoint, snapshot     where to begin looking
commitlog, consumequeue  sizes of files are taken from the files
batchconsumequeue, rocksdbstore, timerwheel, ...   others' business: left untouched
"""

from __future__ import annotations

import msgspec

from holdfast.store.checkpoint import CheckpointFile
from holdfast.store.commit_log import FOLDER as LOG_FOLDER
from holdfast.store.commit_log import CommitLog
from holdfast.store.config_files import load_config
from holdfast.store.consume_queue import FOLDER as QUEUE_FOLDER
from holdfast.store.consume_queue import QueueFiles, QueueLog
from holdfast.store.disk import Disk
from holdfast.store.file_cache import FileCache
from holdfast.store.key_index import KeyIndex
from holdfast.store.log_file import LogFiles, file_name, parse_names
from holdfast.store.log_walk import WalkedRecord, judge_at
from holdfast.store.options import StoreOptions
from holdfast.store.queue_table import BATCH_FOLDER, QueueTable
from holdfast.store.recovery import Recovered, Recovery
from holdfast.store.snapshot import QueueSnapshot, erased_key, load_deleted, load_snapshot, save_deleted

ABORT_PATH = "abort"


class OpenedStore(msgspec.Struct):
    """The parts of a store, ready to work."""

    disk: Disk
    options: StoreOptions
    log: CommitLog
    table: QueueTable
    key_index: KeyIndex
    checkpoint: CheckpointFile
    recovered: Recovered
    deleted: dict[str, int]
    indexed: int


def open_store(disk: Disk, options: StoreOptions) -> OpenedStore:
    """Load and recover.

    Raises:
        StoreError: the folder cannot be a store; the text says what to do.
    """
    is_clean = disk.find_size(ABORT_PATH) is None
    files = LogFiles.load(disk, LOG_FOLDER, options.log_file_size)
    cache = FileCache(disk, options.open_files_max)
    queue_files = QueueFiles(cache, _find_queue_file_size(disk, options), len(options.store_host))
    table = QueueTable(disk, queue_files, _find_batch_topics(disk))
    checkpoint = CheckpointFile(disk)
    deleted = load_deleted(disk, files.start)
    expected = _load_queues(disk, table, checkpoint, files, deleted, is_clean=is_clean)
    # From here on the folder changes: whoever finds it half changed must know.
    disk.replace(ABORT_PATH, b"")
    recovered = Recovery(files, table, checkpoint, options, deleted, is_clean=is_clean, expected=expected).run()
    if any(position > recovered.log_end for position in deleted.values()):
        # The log lost its end: what is written there from now on is of the life that begins now.
        deleted = {name: min(position, recovered.log_end) for name, position in deleted.items()}
        save_deleted(disk, deleted)
    if not is_clean:
        # What a killed process left in the page cache is readable from now on: a power cut must not take it back.
        for number, file in files.files.items():
            if (number + 1) * files.size > recovered.start:
                file.sync()
    key_index = KeyIndex(disk, options, is_clean=is_clean, synced=checkpoint.value.indexed)
    log = CommitLog(files, options, written=recovered.log_end, store_ms=recovered.store_ms)
    files.ensure(recovered.log_end // files.size)
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


def _find_queue_file_size(disk: Disk, options: StoreOptions) -> int:
    """Return the size of the first queue file that is found."""
    for topic in disk.list(QUEUE_FOLDER):
        for queue_id in disk.list(f"{QUEUE_FOLDER}/{topic.rstrip('/')}"):
            folder = f"{QUEUE_FOLDER}/{topic}{queue_id}".rstrip("/")
            for start in parse_names(disk.list(folder)):
                size = disk.find_size(f"{folder}/{file_name(start)}")
                if size:
                    return size
    return options.queue_file_size


def _find_batch_topics(disk: Disk) -> frozenset[str]:
    """Return the topics whose index is of the other kind, by their folder or by their configuration."""
    topics = {name.rstrip("/") for name in disk.list(BATCH_FOLDER)}
    config = load_config(disk, "topics.json")
    table = config.get("topicConfigTable") if isinstance(config, dict) else None
    for name, topic in table.items() if isinstance(table, dict) else ():
        attributes = topic.get("attributes") if isinstance(topic, dict) else None
        if isinstance(attributes, dict) and attributes.get("queue.type") == "BatchCQ":
            topics.add(name)
    return frozenset(topics)


def _load_queues(
    disk: Disk,
    table: QueueTable,
    checkpoint: CheckpointFile,
    files: LogFiles,
    deleted: dict[str, int],
    *,
    is_clean: bool,
) -> QueueSnapshot | None:
    """Find the queues. Return the bounds they should have, if they are known and do not have them."""
    snapshot = load_snapshot(disk)
    if snapshot is None:
        table.load()
        return None
    if not is_clean:
        # Since then queues have grown, unless their topic was deleted: none is shorter now but one that was damaged.
        table.load()
        queues = {
            topic: {number: span for number, span in bounds.items() if erased_key(topic, number) not in deleted}
            for topic, bounds in snapshot.queues.items()
            if topic not in deleted
        }
        return msgspec.structs.replace(snapshot, queues=queues) if snapshot.log_end <= files.end else None
    if (snapshot.log_start, snapshot.log_end) != (files.start, checkpoint.value.position):
        table.load()
        return None
    for topic, bounds in snapshot.queues.items():
        for queue_id, (offset_min, offset_max) in bounds.items():
            if not table.restore(QueueLog(table.files, topic, queue_id), offset_min, offset_max):
                table.queues.clear()
                table.newest = 0
                table.load()
                return snapshot
    return None


def _find_indexed(index: KeyIndex, files: LogFiles, checkpoint: CheckpointFile, recovered: Recovered) -> int:
    """Return from where the key index goes on: behind the last record that it knows."""
    last = index.end_position
    if last is None or not files.start <= last < recovered.log_end:
        return files.start
    if recovered.is_clean and checkpoint.value.indexed is not None:
        return min(max(last, checkpoint.value.indexed), recovered.log_end)
    record = judge_at(files, last, check_body=False)
    return last + record.size if isinstance(record, WalkedRecord) else last
