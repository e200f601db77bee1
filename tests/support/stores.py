"""Small stores for tests, and the few moves that most of them need."""

from __future__ import annotations

import msgspec

from holdfast.model.java_hash import java_hash
from holdfast.sim.disk import SimDisk
from holdfast.store.disk import Disk
from holdfast.store.message_store import MessageStore
from holdfast.store.options import StoreOptions

NOW_MS = 1_700_000_000_000
HOST = bytes((127, 0, 0, 1, 0, 0, 48, 57))
SMALL = StoreOptions(
    log_file_size=1024, queue_file_size=20 * 5, index_slots=10, index_items=20, checkpoint_interval_ms=10_000
)


def open_store(disk: Disk | None = None, **changes: object) -> MessageStore:
    """Open a store of small files, on a fresh disk unless one is given."""
    options = msgspec.structs.replace(SMALL, **changes)
    return MessageStore.open(disk if disk is not None else SimDisk(), options, NOW_MS)


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
    placed = stage(store, body, **fields)  # type: ignore[arg-type]
    store.write()
    store.confirm(store.written)
    return placed


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


def keep_house(store: MessageStore, now_ms: int = NOW_MS) -> None:
    """Do all that is due, syncs included."""
    while True:
        work = store.housekeep(now_ms)
        for file in work.files:
            file.sync()
        if work.files:
            store.checkpoint(now_ms)
        if not work.behind and not work.files:
            return
