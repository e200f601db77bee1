"""The log of a replica: another broker's bytes, at another broker's places."""

from __future__ import annotations

import random

import pytest
from tests.support.batch_bytes import batch_messages, encode_messages
from tests.support.stores import append, append_batch, batched_disk, bodies, finish, open_store, run_housekeeping, stage

from holdfast.model.errors import CorruptRecord, DiskFailed, RecordRefused, StoreError
from holdfast.model.topic import BATCH_QUEUE
from holdfast.sim.world.disk import SimDisk
from holdfast.store.message_store import MessageStore
from holdfast.store.recovery.replica_log import IsTopicKnown, is_any_known
from holdfast.wire.records.record import TRANSACTION_PREPARED


def _log(store: MessageStore) -> bytes:
    """Return the whole log."""
    parts, at = [], int(store.start)
    while at < store.written:
        size = min(store.log_file_size - at % store.log_file_size, store.written - at)
        parts.append(
            bytes(
                store.log.files.files[at // store.log_file_size].view(
                    at % store.log_file_size, at % store.log_file_size + size
                )
            )
        )
        at += size
    return b"".join(parts)


def _copy(
    master: MessageStore, replica: MessageStore, sizes: int = 10**9, is_topic_known: IsTopicKnown = is_any_known
) -> None:
    """Send what the replica does not have, in parts of up to *sizes* bytes."""
    data = _log(master)[int(replica.written) - int(master.start) :]
    for at in range(0, len(data), sizes):
        replica.append_copied(int(replica.written), data[at : at + sizes], is_topic_known)
        assert replica.replica.complete_end <= replica.written
    replica.confirm(replica.written)


@pytest.fixture
def master() -> MessageStore:
    """A store of several files, with gaps at their ends."""
    store = open_store()
    for number in range(30):
        append(
            store, b"x" * (number * 13 % 200), queue_id=number % 3, tags="A" if number % 2 else "", keys=f"k{number}"
        )
    stage(store, b"half", sys_flag=TRANSACTION_PREPARED)
    append(store, b"last")
    return store


@pytest.mark.parametrize("sizes", [1, 7, 100, 1000, 10**9])
def test_a_copy_has_every_byte_and_every_entry_however_it_came(master: MessageStore, sizes: int) -> None:
    """Records are entered when they are whole, and blanks at the ends of files are passed."""
    replica = open_store(is_replica=True)

    _copy(master, replica, sizes)

    assert _log(replica) == _log(master)
    for number in range(3):
        assert bodies(replica, queue_id=number) == bodies(master, queue_id=number) != []
        ours, theirs = replica.queue("orders", number), master.queue("orders", number)
        assert ours.entries(0, 99) == theirs.entries(0, 99)
    assert (replica.last_store_ms, replica.confirmed) == (master.last_store_ms, master.confirmed)


def test_half_a_record_is_not_readable(master: MessageStore) -> None:
    """What is confirmed ends behind a whole record; the rest of the next one joins its beginning."""
    replica = open_store(is_replica=True)
    second = master.queue("orders", 1).get_entry(0)[0]
    data = _log(master)

    replica.append_copied(0, data[: second + 50])
    replica.confirm(replica.written)

    assert (replica.written, replica.confirmed) == (second + 50, second)
    assert bodies(replica, queue_id=1) == []
    replica.append_copied(second + 50, data[second + 50 :])
    replica.confirm(replica.written)
    assert bodies(replica, queue_id=1) == bodies(master, queue_id=1)


def test_a_replica_takes_no_messages_of_its_own(master: MessageStore) -> None:
    """They would lie where the master's next ones go."""
    replica = open_store(is_replica=True)
    _copy(master, replica)

    with pytest.raises(RecordRefused, match="replica"):
        append(replica, b"mine")

    assert _log(replica) == _log(master)


def test_only_the_end_of_the_log_can_be_added_to(master: MessageStore) -> None:
    """Neither a gap nor a second copy of what is there."""
    replica = open_store(is_replica=True)
    _copy(master, replica)
    end = int(replica.written)

    for position in (0, end - 1, end + 1):
        with pytest.raises(StoreError, match=f"ends at {end}"):
            replica.append_copied(position, b"x" * 100)


@pytest.mark.parametrize("is_orderly", [True, False])
def test_a_restart_in_the_middle_of_a_record_goes_on_behind_the_last_whole_one(
    master: MessageStore, *, is_orderly: bool
) -> None:
    """An orderly end and a crash alike."""
    disk = SimDisk()
    replica = open_store(disk, is_replica=True)
    data = _log(master)
    third = master.queue("orders", 2).get_entry(0)[0]
    replica.append_copied(0, data[: third + 30])
    replica.confirm(replica.written)
    if is_orderly:
        replica.close(0)

    again = open_store(disk, is_replica=True)

    assert again.written == again.confirmed == third
    _copy(master, again)
    assert _log(again) == data
    assert bodies(again, queue_id=2) == bodies(master, queue_id=2)


def test_bytes_that_are_no_record_are_taken_back(master: MessageStore) -> None:
    """The log ends behind the last whole record, and goes on there once the master is right again."""
    replica = open_store(is_replica=True)
    data = bytearray(_log(master))
    third = master.queue("orders", 2).get_entry(0)[0]
    good = bytes(data)
    data[third + 95] ^= 1

    with pytest.raises(CorruptRecord, match=str(third)):
        replica.append_copied(0, data)
    replica.confirm(replica.written)

    assert replica.written == replica.confirmed == third
    replica.append_copied(third, good[third:])
    replica.confirm(replica.written)
    assert _log(replica) == good
    assert bodies(replica, queue_id=2) == bodies(master, queue_id=2)


def test_files_of_another_size_are_noticed(master: MessageStore) -> None:
    """No record crosses the end of a file: one that does comes from a log of other files."""
    replica = open_store(is_replica=True, log_file_size=700)

    with pytest.raises(CorruptRecord):
        _copy(master, replica)


def test_a_new_replica_begins_where_its_master_does(master: MessageStore) -> None:
    """A master forgets its oldest files. What is behind them has its offsets all the same, also after a restart."""
    master.log.files.remove_first()
    disk = SimDisk()
    replica = open_store(disk, is_replica=True)

    replica.begin_at(int(master.start))
    _copy(master, replica)

    assert _log(replica) == _log(master)
    queue = replica.queue("orders", 0)
    first, _, _ = queue.get_entry(queue.offset_min)
    assert first >= master.start
    assert queue.offset_min > 0
    assert queue.offset_max == master.queue("orders", 0).offset_max
    replica.close(0)
    again = open_store(disk, is_replica=True)
    assert (again.start, again.written) == (master.start, master.written)
    assert bodies(again) == bodies(replica)


def test_a_log_that_has_something_does_not_begin_elsewhere(master: MessageStore) -> None:
    """Nor at a place where none of its files could."""
    replica = open_store(is_replica=True)
    with pytest.raises(StoreError, match="log_file_size"):
        replica.begin_at(1500)
    _copy(master, replica)

    with pytest.raises(StoreError, match="has messages"):
        replica.begin_at(1024)


def test_a_queue_that_began_anew_at_the_master_does_so_at_the_replica() -> None:
    """A topic that was deleted and made again counts from 0; what was before stays gone after a crash."""
    master, disk = open_store(log_file_size=1 << 16), SimDisk()
    replica = open_store(disk, is_replica=True, log_file_size=1 << 16)
    append(master, b"old 0")
    append(master, b"old 1")
    _copy(master, replica)
    master.delete_topic("orders")
    append(master, b"new 0")

    _copy(master, replica)

    assert bodies(replica) == [b"new 0"]
    assert bodies(open_store(disk, is_replica=True, log_file_size=1 << 16)) == [b"new 0"]


def test_batches_are_entered_by_record() -> None:
    """Where the topic is known to keep them whole."""
    master, replica = open_store(batched_disk()), open_store(batched_disk(), is_replica=True)
    append_batch(master, 5)
    append_batch(master, 3)

    _copy(master, replica, 10)

    queue = replica.queue("orders", 0)
    assert (queue.accepts_batches, queue.offset_max) == (True, 8)
    assert queue.entries(0, 8) == master.queue("orders", 0).entries(0, 8)


def test_records_of_a_topic_that_is_not_known_yet_wait_and_those_behind_them() -> None:
    """How its index is to be made is not known either."""
    master, replica = open_store(batched_disk(), log_file_size=4096), open_store(is_replica=True, log_file_size=4096)
    append(master, b"first", topic="plain")
    append_batch(master, 5)
    append(master, b"second", topic="plain")
    known = {"plain"}

    _copy(master, replica, is_topic_known=known.__contains__)

    assert replica.replica.awaited_topic == "orders"
    assert bodies(replica, "plain") == [b"first"]
    known.add("orders")
    replica.set_queue_type("orders", BATCH_QUEUE)
    replica.index_copied(known.__contains__)
    replica.confirm(replica.written)
    assert replica.replica.awaited_topic is None
    assert bodies(replica, "plain") == [b"first", b"second"]
    assert replica.queue("orders", 0).offset_max == 5


def test_a_disk_that_fails_ends_it() -> None:
    """Nothing more is taken: what the disk holds is not known."""
    disk = SimDisk()
    master, replica = open_store(), open_store(disk, is_replica=True)
    append(master, b"x")

    def fail(call: str, path: str) -> None:
        if call == "write" and path.startswith("commitlog"):
            raise DiskFailed("broken")

    disk.before = fail
    with pytest.raises(DiskFailed):
        _copy(master, replica)
    disk.before = None

    with pytest.raises(StoreError, match="broken"):
        _copy(master, replica)


def test_a_log_can_be_cut_in_the_middle_of_a_record_and_goes_on_there(master: MessageStore) -> None:
    """No queue knows of the record until it is whole again."""
    replica = open_store(is_replica=True)
    _copy(master, replica)
    position, _, _ = master.queue("orders", 1).get_entry(3)

    replica.truncate(position + 20)

    assert (replica.written, replica.confirmed) == (position + 20, position)
    assert bodies(replica, queue_id=1) == bodies(master, queue_id=1)[:3]
    _copy(master, replica, 50)
    assert _log(replica) == _log(master)
    for number in range(3):
        assert bodies(replica, queue_id=number) == bodies(master, queue_id=number)


def test_random_logs_in_random_parts_are_copied_whole() -> None:
    """Any records, any parts, restarts in between."""
    rng = random.Random(5)
    for _ in range(10):
        master, disk = open_store(), SimDisk()
        for _ in range(60):
            append(master, rng.randbytes(rng.randrange(300)), topic=rng.choice("ab"), queue_id=rng.randrange(2))
        replica, data = open_store(disk, is_replica=True), _log(master)
        while replica.written < len(data):
            part = data[int(replica.written) :][: rng.randrange(1, 400)]
            replica.append_copied(int(replica.written), part)
            if rng.random() < 0.7:
                replica.confirm(replica.written)
            if rng.random() < 0.1:
                disk.sync()
                replica = open_store(disk, is_replica=True)
                ours = _log(replica)
                if ours != data[: len(ours)]:  # a record whose last bytes are missing may look whole
                    replica.truncate(next(at for at in range(len(ours)) if ours[at] != data[at]))
        replica.confirm(replica.written)
        for topic in "ab":
            for number in range(2):
                assert bodies(replica, topic, number) == bodies(master, topic, number)


def test_the_folder_of_a_replica_is_not_opened_as_a_masters(master: MessageStore) -> None:
    """Offsets that the master gave last might be given again; what to do instead is said."""
    disk = SimDisk()
    replica = open_store(disk, is_replica=True)
    _copy(master, replica)
    replica.close(0)

    with pytest.raises(StoreError, match="--replica-of"):
        open_store(disk)

    assert bodies(open_store(disk, is_replica=True)) == bodies(master)
    disk.remove("holdfast/replica")
    assert bodies(open_store(disk)) == bodies(master)


def test_the_folder_of_a_master_is_not_opened_as_a_replicas() -> None:
    """A mistyped folder: its topics and offsets would be another broker's in a moment, and it no master's any more."""
    disk = SimDisk()
    store = open_store(disk)
    append(store, b"mine")
    store.close(0)

    with pytest.raises(StoreError, match=r"not a replica's.*empty folder"):
        open_store(disk, is_replica=True)

    assert bodies(open_store(disk)) == [b"mine"]
    disk.replace("holdfast/replica", b"")
    assert bodies(open_store(disk, is_replica=True)) == [b"mine"]


def test_messages_of_a_copy_are_found_by_their_keys(master: MessageStore) -> None:
    """Also in one that began in the middle of the master's log, and was cut."""
    master.log.files.remove_first()
    replica = open_store(is_replica=True)
    replica.begin_at(int(master.start))
    _copy(master, replica)
    run_housekeeping(replica)
    position, _, _ = master.queue("orders", 0).get_entry(9)
    replica.truncate(position)
    assert finish(replica, replica.find_by_key("orders", "k27", 9, 0, 1 << 60)) == []

    _copy(master, replica)
    run_housekeeping(replica)

    assert finish(replica, replica.find_by_key("orders", "k27", 9, 0, 1 << 60)) == [position]


def test_records_that_wait_for_their_topic_stay_when_the_store_is_closed() -> None:
    """The master was told that they are here."""
    master, disk = open_store(log_file_size=4096), SimDisk()
    replica = open_store(disk, is_replica=True, log_file_size=4096)
    append(master, b"first")
    append(master, b"second", topic="new")
    _copy(master, replica, is_topic_known={"orders"}.__contains__)
    assert replica.replica.awaited_topic == "new"
    replica.close(0)

    again = open_store(disk, is_replica=True, log_file_size=4096)

    assert _log(again) == _log(master)
    assert (bodies(again), bodies(again, "new")) == ([b"first"], [b"second"])


@pytest.mark.parametrize("sizes", [10**9, 100])
def test_a_batch_that_says_too_many_messages_hides_no_later_record(sizes: int) -> None:
    """Whether it waits to be confirmed, is in memory, or in a file already."""
    master = open_store(batched_disk())
    places = [append_batch(master, 3, body=encode_messages(batch_messages(3))) for _ in range(3)]
    data = bytearray(_log(master))
    at = data.index(b"INNER_NUM\x01", places[1][0]) + len(b"INNER_NUM\x01")
    assert data[at : at + 2] == b"3\x02"
    data[at : at + 1] = b"9"
    replica = open_store(batched_disk(), is_replica=True)

    for start in range(0, len(data), sizes):
        replica.append_copied(start, data[start : start + sizes])
        if sizes == 100:
            replica.confirm(replica.replica.complete_end)
            replica.queue("orders", 0).flush()
    replica.confirm(replica.written)

    queue = replica.queue("orders", 0)
    assert queue.read_range(0, 100)[1] == [(0, 3), (3, 6), (6, 9)]
    assert queue.next_offset == 9
    (damage,) = replica.replica.damages
    assert damage.position == places[1][0]
