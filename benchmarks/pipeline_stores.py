"""Store folders for jobs, made by the log engine itself; and the cost of plain reading and plain conversion."""

from __future__ import annotations

import os
import statistics
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from random import Random
from typing import Final

import msgspec
import numpy as np

from holdfast.model.java_hash import java_hash
from holdfast.pipeline.scan.queue_entries import MESSAGE_ENTRY, RECORD_ENTRY
from holdfast.runtime.posix_disk import PosixDisk
from holdfast.store.base.options import StoreOptions
from holdfast.store.message_store import MessageStore

TOPIC: Final = "stored"
QUEUES: Final = 8
_HOST: Final = bytes((127, 0, 0, 1, 0, 0, 48, 57))
_BEGAN_MS: Final = 1_790_000_000_000
_PER_WRITE: Final = 200
_CHUNK: Final = 8 << 20
_ENTRIES: Final = 1 << 18


def make_store(root: Path, size: int, body_size: int, *, file_size: int = 1 << 30) -> int:
    """Fill a new store with *size* bytes of log; return its number of messages."""
    disk = PosixDisk(root)
    table = {"topicConfigTable": {TOPIC: {"topicName": TOPIC, "readQueueNums": QUEUES, "writeQueueNums": QUEUES}}}
    disk.replace("config/topics.json", msgspec.json.encode(table))
    store = MessageStore.open(disk, StoreOptions(log_file_size=file_size, key_index=False), _BEGAN_MS)
    random = Random(1)
    bodies = [random.randbytes(body_size) for _ in range(64)]
    queues = [store.queue(TOPIC, number) for number in range(QUEUES)]
    tags = [(f"tag-{number}", java_hash(f"tag-{number}")) for number in range(5)]
    count = 0
    while store.written < size:
        for _ in range(_PER_WRITE):
            tag, code = tags[count % 5]
            now_ms = _BEGAN_MS + count // 20
            text = f"KEYS\x01customer-{count % 997}\x02UNIQ_KEY\x01{count:032X}\x02TAGS\x01{tag}\x02WAIT\x01true\x02"
            queue = queues[count % QUEUES]
            store.stage(queue, bodies[count % 64], text.encode(), 0, 0, now_ms - 3, _HOST, code, now_ms)
            count += 1
        store.write()
        store.confirm(store.written)
    store.close(_BEGAN_MS + count)
    return count


def measure_reading(root: Path, size: int, *, cold: bool) -> float:
    """Return the MB/s at which one core reads *size* bytes of a log without processing them."""
    files = sorted((root / "commitlog").iterdir())
    if cold:
        for path in files:
            _drop_cache(path)
    began_s = time.monotonic()
    remaining = size
    for path in files:
        with path.open("rb", buffering=0) as file:
            while remaining > 0 and (data := file.read(min(_CHUNK, remaining))):
                remaining -= len(data)
    return size / (time.monotonic() - began_s) / 1e6


def _drop_cache(path: Path) -> None:
    """Drop the page cache of a file."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def measure_parallel_conversion(cores: int, count: int, rounds: int, *, is_complete: bool = True) -> float:
    """Return the entries that each of *cores* converts per second while all of them do so, as in a job."""
    with ProcessPoolExecutor(cores) as pool:
        return statistics.median(
            pool.map(partial(measure_conversion, is_complete=is_complete), [count] * rounds * cores)
        )


def measure_conversion(count: int, *, is_complete: bool = True) -> float:
    """Return the entries that numpy converts per second from one kind to the other, in memory.

    With *is_kept* the new index is complete at the end. Otherwise each part overwrites the previous one, and never
    leaves the processor's cache.
    """
    entries = np.zeros(count, dtype=MESSAGE_ENTRY)
    entries["position"] = np.arange(count) * 1200
    entries["size"] = 1200
    began_s = time.monotonic()
    result = np.zeros(count if is_complete else _ENTRIES, dtype=RECORD_ENTRY)
    for at in range(0, count, _ENTRIES):
        old = entries[at : at + _ENTRIES]
        new = result[at : at + len(old)] if is_complete else result[: len(old)]
        for name in ("position", "size", "tags"):
            new[name] = old[name]
        new["first"] = np.arange(at, at + len(old))
        new["count"] = 1
        new["compacted"] = -1
    return count / (time.monotonic() - began_s)
