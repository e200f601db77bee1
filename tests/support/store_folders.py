"""Store folders on a real disk for those who read them from outside, and the damage that is done to them."""

from __future__ import annotations

from pathlib import Path

import msgspec
from tests.support.stores import HOST, NOW_MS, SMALL, run_housekeeping

from holdfast.broker.mapping.mapping_journal import MappingChange, MappingSnapshot
from holdfast.model.java_hash import java_hash
from holdfast.runtime.posix_disk import PosixDisk
from holdfast.store.base.options import StoreOptions
from holdfast.store.message_store import MessageStore
from holdfast.wire.cluster.mapping import WireSegment
from holdfast.wire.records.batch import encode_items
from holdfast.wire.records.inner_batch import wrap_items

FILES: StoreOptions = msgspec.structs.replace(
    SMALL, log_file_size=8192, queue_file_size=20 * 16, batch_file_size=46 * 8, key_index=False
)
PREPARED = 0x4


class StoreFolderBuilder:
    """A store that is written to, and then looked at."""

    def __init__(self, root: Path, *, topics: tuple[str, ...] = ("orders", "clicks"), batched: str = "batched") -> None:
        self.root = root
        root.mkdir(parents=True, exist_ok=True)
        self.disk = PosixDisk(root)
        table: dict[str, object] = {topic: {"topicName": topic} for topic in topics}
        table[batched] = {"topicName": batched, "attributes": {"queue.type": "BatchCQ"}}
        self.disk.replace("config/topics.json", msgspec.json.encode({"topicConfigTable": table}))
        self.store = MessageStore.open(self.disk, FILES, NOW_MS)
        self._now_ms = NOW_MS

    def __str__(self) -> str:
        return str(self.root)

    def append(
        self,
        body: bytes = b"body",
        *,
        topic: str = "orders",
        queue: int = 0,
        tags: str = "",
        extra_properties: str = "",
        flag: int = 0,
        now_ms: int = NOW_MS,
        born_ms: int | None = None,
    ) -> tuple[int, int]:
        """Store one message; return its position and offset."""
        properties = ((f"TAGS\x01{tags}\x02" if tags else "") + extra_properties).encode()
        code = java_hash(tags) if tags else 0
        log = self.store.queue(topic, queue)
        born = now_ms if born_ms is None else born_ms
        stored = self.store.stage(log, body, properties, 0, flag, born, HOST, code, now_ms)
        self.store.write()
        self.store.confirm(self.store.written)
        return stored

    def append_batch(self, bodies: list[bytes], *, topic: str = "batched", now_ms: int = NOW_MS) -> tuple[int, int]:
        """Store one record with many messages; return its position and the first offset."""
        items = encode_items([(0, body, f"KEYS\x01k{number}\x02".encode()) for number, body in enumerate(bodies)])
        batch = wrap_items(items, len(bodies), "id")
        log = self.store.queue(topic, 0)
        stored = self.store.stage(
            log, batch.body, batch.properties.encode(), 0, batch.sys_flag, now_ms, HOST, 0, now_ms
        )
        self.store.write()
        self.store.confirm(self.store.written)
        return stored

    def fill(self, count: int = 60) -> None:
        """Store messages of every kind."""
        for number in range(count):
            self.append(
                b"order %d" % number * (number % 7), queue=number % 2, tags=f"t{number % 3}", now_ms=NOW_MS + number
            )
            if number % 5 == 0:
                self.append(b"click", topic="clicks", now_ms=NOW_MS + number)
            if number % 9 == 0:
                self.append(b"half", topic="clicks", flag=PREPARED, now_ms=NOW_MS + number)
            if number % 10 == 0:
                self.append_batch([b"one", b"two", b"three"], now_ms=NOW_MS + number)

    def advance_checkpoint(self) -> None:
        """Let the mark of a live broker move to the end of its log."""
        self._now_ms += 60_000
        run_housekeeping(self.store, self._now_ms)

    def close(self) -> None:
        """End in order."""
        self.store.close(NOW_MS + 1000)

    def write_mapping(
        self, topic: str, segments: dict[int, list[WireSegment]], *, epoch: int = 1, owner: str | None = None
    ) -> None:
        """Record logical queues, in our file; and, if somebody is said to own them, in Java's."""
        change = MappingChange(topic=topic, epoch=epoch, total=len(segments), queues=segments, is_whole=True)
        snapshot = MappingSnapshot(position=self.store.written, topics={topic: change})
        self.disk.replace("config/holdfastMapping.json", msgspec.json.encode(snapshot))
        if owner is not None:
            detail = {"bname": owner, "topic": topic, "totalQueues": len(segments), "hostedQueues": {}}
            java = {"topicQueueMappingInfoMap": {topic: detail}}
            self.disk.replace("config/topicQueueMapping.json", msgspec.json.encode(java))

    def log_path(self, position: int) -> tuple[Path, int]:
        """Return the file of a position, and which byte of it that is."""
        at = position % FILES.log_file_size
        return self.root / "commitlog" / f"{position - at:020d}", at

    def entry_path(self, offset: int, *, topic: str = "orders", queue: int = 0) -> tuple[Path, int]:
        """Return the file of an index entry, and which byte of it that is."""
        at = offset * 20
        start = at - at % FILES.queue_file_size
        return self.root / "consumequeue" / topic / str(queue) / f"{start:020d}", at - start


def overwrite(file_and_byte: tuple[Path, int], data: bytes, *, skip: int = 0) -> bytes:
    """Change some bytes of a file; return what was there."""
    path, at = file_and_byte
    with path.open("r+b") as file:
        file.seek(at + skip)
        before = file.read(len(data))
        file.seek(at + skip)
        file.write(data)
    return before


def flip(file_and_byte: tuple[Path, int], *, skip: int = 0) -> None:
    """Flip one bit of a file."""
    path, at = file_and_byte
    byte = path.read_bytes()[at + skip]
    overwrite(file_and_byte, bytes([byte ^ 0x10]), skip=skip)
