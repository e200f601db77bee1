"""Small stores for tests, and the few moves that most of them need."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import msgspec

from holdfast.model.java_hash import java_hash
from holdfast.sim.world.disk import SimDisk
from holdfast.store.base.cold_reads import FileRange, LogRange, Steps
from holdfast.store.base.disk import Disk
from holdfast.store.base.options import StoreOptions
from holdfast.store.message_store import MessageStore

_Result = TypeVar("_Result")

NOW_MS = 1_700_000_000_000
HOST = bytes((127, 0, 0, 1, 0, 0, 48, 57))
SMALL = StoreOptions(
    log_file_size=1024,
    queue_file_size=20 * 5,
    batch_file_size=46 * 5,
    index_slots=10,
    index_items=20,
    checkpoint_interval_ms=10_000,
)
INNER_BATCH = 0x40 | 0x80


def open_store(disk: Disk | None = None, **changes: object) -> MessageStore:
    """Open a store of small files, on a fresh disk unless one is given."""
    options = msgspec.structs.replace(SMALL, **changes)
    return MessageStore.open(disk if disk is not None else SimDisk(), options, NOW_MS)


def batched_disk(*topics: str) -> SimDisk:
    """Return a disk on which topics, "orders" unless others are named, are configured to have an index by record."""
    disk = SimDisk()
    table = {topic: {"topicName": topic, "attributes": {"queue.type": "BatchCQ"}} for topic in topics or ("orders",)}
    disk.replace("config/topics.json", msgspec.json.encode({"topicConfigTable": table}))
    return disk


def append_batch(store: MessageStore, count: int, *, now_ms: int = NOW_MS, body: bytes = b"items") -> tuple[int, int]:
    """Stage, write and confirm one record that says to hold *count* messages; return its position and offset."""
    properties = b"UNIQ_KEY\x01u\x02INNER_NUM\x01%d" % count
    stored = store.stage(store.queue("orders", 0), body, properties, 0, INNER_BATCH, now_ms, HOST, 0, now_ms)
    store.write()
    store.confirm(store.written)
    return stored


def stage(
    store: MessageStore,
    body: bytes = b"body",
    *,
    topic: str = "orders",
    queue_id: int = 0,
    tags: str = "",
    keys: str = "",
    sys_flag: int = 0,
    host: bytes = HOST,
    now_ms: int = NOW_MS,
) -> tuple[int, int]:
    """Stage one record; return its position and offset."""
    properties = (f"TAGS\x01{tags}\x02" if tags else "") + (f"KEYS\x01{keys}\x02" if keys else "")
    code = java_hash(tags) if tags else 0
    return store.stage(store.queue(topic, queue_id), body, properties.encode(), 0, sys_flag, now_ms, host, code, now_ms)


def append(store: MessageStore, body: bytes = b"body", **fields: object) -> tuple[int, int]:
    """Stage, write and confirm one record; return its position and offset."""
    stored = stage(store, body, **fields)  # type: ignore[arg-type]
    store.write()
    store.confirm(store.written)
    return stored


def bodies(store: MessageStore, topic: str = "orders", queue_id: int = 0) -> list[bytes | None]:
    """Return what a reader of the queue gets, oldest first; None where a message is gone or blank."""
    queue = store.find_queue(topic, queue_id)
    if queue is None:
        return []
    found: list[bytes | None] = []
    for offset, (position, size, _) in enumerate(
        queue.entries(queue.offset_min, queue.offset_max - queue.offset_min), queue.offset_min
    ):
        record = store.read_record(position) if store.view(position, size) is not None else None
        assert record is None or (record.topic, record.queue_id, record.offset) == (topic, queue_id, offset)
        found.append(bytes(record.body) if record is not None else None)
    return found


def overwrite(disk: Disk, path: str, at: int, data: bytes) -> None:
    """Change bytes of a file behind the store's back, for good."""
    file = disk.open(path)
    file.write(at, [data])
    file.sync()


def run_housekeeping(store: MessageStore, now_ms: int = NOW_MS) -> None:
    """Do all that is due, syncs included."""
    while True:
        work = store.housekeep(now_ms)
        for file in work.files:
            file.sync()
        if work.files:
            store.checkpoint(now_ms)
        if work.read is not None:
            work.read.file.read(work.read.start, work.read.end)
            store.note_warmed()
        if not work.has_more_work and not work.files and work.read is None:
            return


def finish(
    store: MessageStore, steps: Steps[_Result], read: Callable[[LogRange | FileRange], bytes] | None = None
) -> _Result:
    """Give *steps* every byte that they ask for, by *read* if given, and return their result."""
    try:
        needed = steps.send(None)
        while True:
            needed = steps.send(read(needed) if read is not None else _read(store, needed))
    except StopIteration as stop:
        result: _Result = stop.value
        return result


def finish_without_reads(store: MessageStore, disk: SimDisk, steps: Steps[_Result]) -> tuple[_Result, int]:
    """Do the same on a disk that may be read between the steps only; return how often that was done, too."""

    def forbid(call: str, path: str) -> None:
        assert call != "read", f"{path} is read where others wait"

    read_count = 0
    data: bytes | None = None
    try:
        while True:
            disk.before = forbid
            read = steps.send(data)
            disk.before = None
            data = _read(store, read)
            read_count += 1
    except StopIteration as stop:
        return stop.value, read_count
    finally:
        disk.before = None


def _read(store: MessageStore, read: LogRange | FileRange) -> bytes:
    if isinstance(read, FileRange):
        return read.file.read(read.start, read.end)
    view = store.view(read.position, read.size)
    return bytes(view) if view is not None else b""
