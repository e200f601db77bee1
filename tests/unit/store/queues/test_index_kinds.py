"""A kind of index is one class and one entry of a table: here a third kind, which no module of the source knows."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tests.support.batch_bytes import a_single, make_topic, pull_all, send
from tests.support.batch_bytes import batch_messages as messages
from tests.support.cluster.broker_machine import BrokerHarness
from tests.support.stores import NOW_MS, SMALL, append, bodies, finish, open_store, overwrite

from holdfast.model import topic
from holdfast.model.errors import StoreError
from holdfast.model.topic import BATCH_QUEUE, QUEUE_TYPES, SIMPLE_QUEUE
from holdfast.pipeline.audit.audit_job import audit
from holdfast.pipeline.scan.queue_entries import QueueReader
from holdfast.pipeline.scan.store_folder import inspect_store
from holdfast.pipeline.scan.tasks import InProcess
from holdfast.runtime.posix_disk import PosixDisk
from holdfast.sim.world.disk import SimDisk
from holdfast.store.base.disk import Disk
from holdfast.store.base.options import StoreOptions
from holdfast.store.message_store import MessageStore
from holdfast.store.queues import index_kinds
from holdfast.store.queues.batch_consume_queue import RECORD_ENTRY, RecordIndex
from holdfast.store.queues.consume_queue import MessageIndex
from holdfast.store.queues.index_kinds import DEFAULT_KIND, KINDS, find_kind
from holdfast.store.queues.queue_files import QueueFiles
from holdfast.store.recovery.replica_log import is_any_known

STAMPED_QUEUE = "StampedCQ"
STAMP = 77


class StampedIndex(RecordIndex):
    """An index by record with a stamp in every entry, whose records hold one message."""

    __slots__ = ()

    queue_type = STAMPED_QUEUE
    kind_folder = "stampedconsumequeue"
    bounds_key = "stampedQueues"

    def __init__(self, files: QueueFiles, topic: str, queue_id: int) -> None:
        super().__init__(files, topic, queue_id)
        self.accepts_batches = False

    @staticmethod
    def choose_file_size(options: StoreOptions) -> int:
        del options
        return 46 * 4

    @staticmethod
    def pack_entry(position: int, size: int, tags_code: int, store_ms: int, first: int, count: int) -> bytes:
        return RECORD_ENTRY.pack(position, size, tags_code, store_ms, first, count, -1, STAMP)


@pytest.fixture(autouse=True)
def _third_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Add an entry to the table of the store, and a name to that of the users."""
    kinds = (*KINDS, StampedIndex)
    for name, module in list(sys.modules.items()):
        if name.startswith("holdfast.") and getattr(module, "KINDS", None) is KINDS:
            monkeypatch.setattr(module, "KINDS", kinds)
    monkeypatch.setitem(index_kinds._BY_TYPE, STAMPED_QUEUE, StampedIndex)
    monkeypatch.setitem(topic.QUEUE_TYPES, "stamped", STAMPED_QUEUE)  # type: ignore[misc]


def stamped_store(disk: Disk) -> MessageStore:
    """A store with messages 0 to 22 in a queue of the third kind, one every 10 ms."""
    disk.replace(
        "config/topics.json", b'{"topicConfigTable":{"orders":{"attributes":{"queue.type":"%s"}}}}' % b"StampedCQ"
    )
    store = MessageStore.open(disk, SMALL, NOW_MS)
    for number in range(23):
        append(store, b"m%d" % number, tags=f"t{number}", now_ms=NOW_MS + 10 * number)
    return store


def check_served(store: MessageStore) -> None:
    """Check all that a queue is asked for."""
    queue = store.queue("orders", 0)
    assert isinstance(queue, StampedIndex)
    assert store.find_queue_type("orders") == STAMPED_QUEUE
    assert bodies(store) == [b"m%d" % number for number in range(23)]
    assert (queue.offset_min, queue.offset_max, queue.next_offset) == (0, 23, 23)
    assert finish(store, store.store_time(queue, 7)) == NOW_MS + 70
    assert finish(store, store.offset_at_time(queue, NOW_MS + 65)) == 7
    assert queue.find_from(queue.get_entry(9)[0]) == 9
    assert {RECORD_ENTRY.unpack(queue.raw_entry(offset))[7] for offset in range(23)} == {STAMP}


@pytest.mark.parametrize("ending", ["none", "close", "crash", "lost index"])
def test_a_third_kind_is_served_and_survives_every_end(ending: str):
    """Noted at a clean shutdown, and rebuilt from the log after any other."""
    disk = SimDisk()
    store = stamped_store(disk)
    if ending == "close":
        store.close(NOW_MS)
        assert b'"stampedQueues":{"orders":{"0":[0,23,0,23]}}' in (disk.read_file("holdfast/queues.json") or b"")
    if ending == "lost index":
        store.close(NOW_MS)
        disk.remove("stampedconsumequeue")
    if ending != "none":
        store = open_store(disk)

    check_served(store)
    assert store.recovered.damages == []
    assert append(store, b"next")[1] == 23


def copied(master: MessageStore) -> MessageStore:
    """A replica of the store."""
    disk = SimDisk()
    disk.replace("config/topics.json", b'{"topicConfigTable":{"orders":{"attributes":{"queue.type":"StampedCQ"}}}}')
    replica = open_store(disk, is_replica=True)
    for start in range(0, int(master.written), 1024):
        view = master.view(start, min(1024, int(master.written) - start))
        assert view is not None
        replica.append_copied(start, bytes(view), is_any_known)
    replica.confirm(replica.written)
    return replica


def test_a_replica_builds_a_third_kind():
    """From the same records."""
    check_served(copied(stamped_store(SimDisk())))


def test_a_topic_with_indexes_of_two_kinds_is_refused():
    """Whichever of the kinds they are."""
    for other in ("consumequeue", "batchconsumequeue"):
        disk = SimDisk()
        stamped_store(disk).close(NOW_MS)
        disk.create(f"{other}/orders/0/{0:020d}", 92 if other.startswith("batch") else 100)

        with pytest.raises(StoreError, match=f"{other}/orders/0 exists, but the index of topic orders is stamped"):
            open_store(disk)


def test_a_third_kind_is_read_by_the_pipeline(tmp_path: Path):
    """By the fields of its entries."""
    stamped_store(PosixDisk(tmp_path)).close(NOW_MS)

    (queue,) = inspect_store(str(tmp_path)).queues
    reader = QueueReader(queue)

    assert queue.queue_type == STAMPED_QUEUE
    assert [reader.find_message(offset) is not None for offset in (0, 22, 23)] == [True, True, False]
    assert set(reader.read(0, 23)["rest"].tolist()) == {STAMP}
    reader.close()
    assert not audit(InProcess(), [str(tmp_path)]).faults


def test_a_user_chooses_a_third_kind_for_a_topic():
    """By the attribute; a batch is then refused, as its records hold one message."""
    desk = BrokerHarness()
    make_topic(desk, "T", kind=STAMPED_QUEUE)
    for message in messages(3):
        assert send(desk, a_single(message, topic="T")).code == 0

    assert isinstance(desk.store.queue("T", 0), StampedIndex)
    assert [record.offset for record in pull_all(desk, topic="T")] == [0, 1, 2]
    assert isinstance(BrokerHarness(disk=desk.disk).store.queue("T", 0), StampedIndex)


def test_every_kind_has_its_own_names():
    """Two kinds in one folder, or under one key, would destroy each other."""
    for name in ("queue_type", "kind_folder", "bounds_key"):
        assert len({getattr(kind, name) for kind in index_kinds.KINDS}) == len(index_kinds.KINDS)


def test_users_and_store_name_the_same_kinds():
    """The default first."""
    assert list(QUEUE_TYPES.values()) == [kind.queue_type for kind in index_kinds.KINDS]
    assert (find_kind(SIMPLE_QUEUE), find_kind(BATCH_QUEUE)) == (MessageIndex, RecordIndex)
    assert find_kind(None) is find_kind("unheard of") is DEFAULT_KIND is MessageIndex


def test_the_fields_of_an_entry_fill_it():
    """They are what a reader outside the store has."""
    for kind in index_kinds.KINDS:
        assert sum(int(form[-1]) for _, form in kind.entry_fields) == kind.entry_size


def test_a_lost_message_leaves_a_gap_where_the_kind_allows_one():
    """No blank entry stands for it, although its records are no batches."""
    disk = SimDisk()
    store = stamped_store(disk)
    position = store.queue("orders", 0).get_entry(5)[0]
    store.close(NOW_MS)
    disk.remove("stampedconsumequeue")
    overwrite(disk, f"commitlog/{position - position % 1024:020d}", position % 1024 + 4, b"\xff" * 8)

    store = open_store(disk)

    for queue in (store.queue("orders", 0), copied(store).queue("orders", 0)):
        _, spans = queue.read_range(0, 100)
        assert spans == [(offset, offset + 1) for offset in range(23) if offset != 5]
        assert queue.entry_end == 22
