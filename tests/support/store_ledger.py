"""A small store under a script, and the list of what it promised to keep.

The ledger is the twin: a plain list per queue of what was confirmed after a sync. Whatever the disk does, every line of
it must be found again, at its offset.
"""

from __future__ import annotations

import re
from random import Random

from tests.support.stores import finish

from holdfast.sim.world.disk import SimDisk
from holdfast.store.base.index_fields import index_keys
from holdfast.store.base.options import StoreOptions
from holdfast.store.message_store import MessageStore
from holdfast.store.queues.queue_index import BLANK_ENTRY_SIZE

SMALL = StoreOptions(
    log_file_size=4096 * 2,
    queue_file_size=20 * 16,
    batch_file_size=46 * 7,
    index_slots=16,
    index_items=40,
    checkpoint_interval_ms=3000,
    body_size_max=4096,
)
HOST = bytes((127, 0, 0, 1, 0, 0, 48, 57))
BATCH_TOPIC = "batched"
QUEUES = [("orders", 0), ("orders", 1), ("a" * 130, 0), (BATCH_TOPIC, 0)]
TOPICS = b'{"topicConfigTable":{"batched":{"attributes":{"queue.type":"BatchCQ"}}}}'
INNER_BATCH = 0x40 | 0x80
START_MS = 1_700_000_000_000

QueueName = tuple[str, int]

_PROPERTIES = re.compile(rb"UNIQ_KEY\x01\d+\x02KEYS\x01k\d j\x02(INNER_NUM\x01\d+\x02INNER_BASE\x01\d+\x02)?")


class StoreLedger:
    """What was confirmed: (queue, offset) -> body; and of batches, how many messages."""

    def __init__(self) -> None:
        self.bodies: dict[tuple[QueueName, int], bytes] = {}
        self.counts: dict[tuple[QueueName, int], int] = {}
        self.ends: dict[QueueName, int] = {}

    def record(self, name: QueueName, offset: int, body: bytes, count: int = 1) -> None:
        """Write down a promise."""
        self.bodies[name, offset] = body
        self.counts[name, offset] = count
        self.ends[name] = max(self.ends.get(name, 0), offset + count)


def fresh_disk() -> SimDisk:
    """Return a disk on which one topic is configured to have an index by record."""
    disk = SimDisk()
    disk.replace("config/topics.json", TOPICS)
    return disk


def append_some(
    store: MessageStore, ledger: StoreLedger, random: Random, now_ms: int, *, is_synced: bool = True
) -> None:
    """One event under sync flush: stage a few records, write, sync, confirm; only then are they promised."""
    promised = []
    for _ in range(random.randint(1, 4)):
        name = random.choice(QUEUES)
        body = random.randbytes(random.choice((0, 10, 200, 900)))
        properties = b"UNIQ_KEY\x01%d\x02KEYS\x01k%d j\x02" % (random.getrandbits(60), random.randrange(9))
        count, flag = 1, 0
        if name[0] == BATCH_TOPIC and random.random() < 0.8:
            count, flag = random.choice((1, 2, 50)), INNER_BATCH
            properties += b"INNER_NUM\x01%d\x02" % count
        _, offset = store.stage(store.queue(*name), body, properties, 0, flag, now_ms, HOST, 7, now_ms)
        promised.append((name, offset, body, count))
    store.write()
    for file in store.files_to_sync() if is_synced else ():
        file.sync()
    store.confirm(store.written)
    for name, offset, body, count in promised:
        ledger.record(name, offset, body, count)


def housekeep(store: MessageStore, now_ms: int) -> None:
    """Let the store do what is due, as the broker's timers would."""
    for _ in range(50):
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


def run_script(disk: SimDisk, ledger: StoreLedger, random: Random, *, steps: int = 14) -> None:
    """Open, append, keep house, now and then end in order and open again; then end in order."""
    now_ms = START_MS + 1000 * len(ledger.bodies)
    store = MessageStore.open(disk, SMALL, now_ms)
    for step in range(steps):
        now_ms += 1000
        append_some(store, ledger, random, now_ms)
        housekeep(store, now_ms)
        if step == steps // 2:
            store.close(now_ms)
            store = MessageStore.open(disk, SMALL, now_ms)
    store.close(now_ms)


def check(store: MessageStore, ledger: StoreLedger) -> None:
    """Everything promised is there, every entry leads to its message, and positions rise along every queue."""
    for (name, offset), body in ledger.bodies.items():
        queue = store.find_queue(*name)
        assert queue is not None, f"queue {name} is gone"
        assert queue.offset_min <= offset < queue.offset_max, f"{name} has no offset {offset}: {queue}"
        for inside in {offset, offset + ledger.counts[name, offset] - 1}:
            record = store.read_record(queue.get_entry(inside)[0])
            assert record is not None
            assert (record.topic, record.queue_id, record.offset, record.body) == (*name, offset, body)
    for queue in store.list_queues():
        assert queue.accepts_batches == (queue.topic == BATCH_TOPIC)
        last = -1
        count = queue.offset_max - queue.offset_min
        _, spans = queue.read_range(queue.offset_min, count)
        firsts = range(queue.offset_min, queue.offset_max) if spans is None else [first for first, _ in spans]
        for offset, (position, size, _) in zip(firsts, queue.entries(queue.offset_min, count), strict=True):
            if size == BLANK_ENTRY_SIZE:
                continue
            assert position > last
            last = position
            record = store.read_record(position)
            assert record is not None
            assert (record.topic, record.queue_id, record.offset) == (queue.topic, queue.queue_id, offset)


def check_keys(store: MessageStore) -> None:
    """Every message that is there is found by each of its keys, once."""
    assert not store.index_lag_bytes
    expected: dict[tuple[str, str], set[int]] = {}
    for queue in store.list_queues():
        for position, size, _ in queue.entries(queue.offset_min, queue.offset_max - queue.offset_min):
            record = store.read_record(position) if size != BLANK_ENTRY_SIZE else None
            # Only bodies have a checksum: what was never synced may have anything for properties.
            if record is not None and _PROPERTIES.fullmatch(record.properties):
                for key in index_keys(record.properties):
                    expected.setdefault((queue.topic, key.decode()), set()).add(position)
    for (topic, key), positions in expected.items():
        found = finish(store, store.find_by_key(topic, key, 1000, 0, 1 << 62))
        assert positions <= set(found)
        assert len(found) == len(set(found))
