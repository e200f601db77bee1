"""Folders whose indexes are to be converted, and what must be the same afterwards."""

from __future__ import annotations

import msgspec
from tests.support.stores import HOST, NOW_MS, SMALL, append, overwrite

from holdfast.sim.world.disk import SimDisk
from holdfast.store.base.disk import Disk
from holdfast.store.base.options import StoreOptions
from holdfast.store.conversion.index_conversion import IndexConversion
from holdfast.store.message_store import MessageStore
from holdfast.store.queues.queue_index import BLANK_ENTRY_SIZE
from holdfast.store.recovery.conversion_plan import IndexKind

HOST_V6 = bytes(15) + b"\x01" + HOST[4:]
TOPICS = {
    "topicConfigTable": {
        "orders": {"topicName": "orders", "readQueueNums": 4, "writeQueueNums": 4, "perm": 6},
        "others": {"topicName": "others", "attributes": {"+cleanup": "x"}},
    },
    "dataVersion": {"counter": 7, "timestamp": 5, "stateVersion": 0},
}

Message = tuple[int, int, int, int]
"""(offset, position, size, tags code)."""


def plain_disk(disk: SimDisk | None = None) -> SimDisk:
    """Return a disk with two topics that have an index by message."""
    disk = disk or SimDisk()
    disk.replace("config/topics.json", msgspec.json.encode(TOPICS))
    return disk


def fill_store(disk: Disk, count: int, *, queues: int = 2, options: StoreOptions = SMALL) -> None:
    """Store messages of all sorts in "orders", some in "others", and end in order."""
    store = MessageStore.open(disk, options, NOW_MS)
    for number in range(count):
        host = HOST_V6 if number % 5 == 3 else HOST
        tags = "paid" if number % 2 else ""
        append(store, b"%d" % number, queue_id=number % queues, tags=tags, host=host, now_ms=NOW_MS + number * 3)
        if number % 4 == 0:
            append(store, b"other", topic="others", now_ms=NOW_MS + number * 3)
    store.close(NOW_MS + count * 3)


def damaged_disk(count: int = 12) -> SimDisk:
    """Return a disk whose queue 0 of "orders" has an offset that no message has: its record was damaged."""
    disk = plain_disk()
    store = MessageStore.open(disk, SMALL, NOW_MS)
    stored = [append(store, b"%d" % number, now_ms=NOW_MS + number) for number in range(count)]
    store.close(NOW_MS)
    for position, _ in stored[3:5]:
        path, at = f"commitlog/{position // 1024 * 1024:020d}", position % 1024
        overwrite(disk, path, at + 4, b"torn")
    disk.remove("consumequeue")
    disk.replace("abort", b"")
    MessageStore.open(disk, SMALL, NOW_MS).close(NOW_MS)
    return disk


def convert(disk: Disk, to: IndexKind, *, piece_size: int = 3, options: StoreOptions = SMALL) -> IndexConversion:
    """Convert the index of "orders", in small pieces, to the end."""
    conversion = IndexConversion(disk, "orders", to, options=options, piece_size=piece_size)
    finish(conversion)
    return conversion


def finish(conversion: IndexConversion) -> None:
    """Do what is left of a conversion."""
    for piece in conversion.remaining_pieces():
        conversion.convert(piece)
    if conversion.plan is not None:
        conversion.switch(NOW_MS)


def read_served(
    disk: Disk, topic: str = "orders", options: StoreOptions = SMALL
) -> dict[int, tuple[int, int, list[Message]]]:
    """Return what a broker would serve: of each queue its bounds and its messages, each checked with its record."""
    store = MessageStore.open(disk, options, NOW_MS)
    assert store.recovered.damages == []
    queues: dict[int, tuple[int, int, list[Message]]] = {}
    for queue in [queue for queue in store.list_queues() if queue.topic == topic]:
        messages = []
        for offset in range(queue.offset_min, queue.offset_max):
            position, size, code = queue.get_entry(offset)
            if size == BLANK_ENTRY_SIZE:
                continue
            record = store.read_record(position)
            assert record is not None
            assert (record.topic, record.queue_id, record.offset) == (topic, queue.queue_id, offset)
            messages.append((offset, position, size, code))
        queues[queue.queue_id] = queue.offset_min, queue.offset_max, messages
    store.close(NOW_MS)
    return queues


def index_files(disk: Disk, folder: str) -> dict[str, bytes | None]:
    """Return every file below *folder*."""
    found: dict[str, bytes | None] = {}
    for name in disk.list(folder):
        path = f"{folder}/{name}"
        found |= index_files(disk, path[:-1]) if name.endswith("/") else {path: disk.read_file(path)}
    return found
