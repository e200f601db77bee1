from __future__ import annotations

from random import Random

import msgspec
import pytest
from tests.support.conversions import convert, damaged_disk, fill_store, finish, index_files, plain_disk, read_served
from tests.support.stores import NOW_MS, SMALL, append, append_batch, batched_disk, run_housekeeping
from tests.support.stores import finish as finish_steps

from holdfast.model.errors import StoreError
from holdfast.sim.world.disk import SimDisk
from holdfast.store.base.config_files import load_config
from holdfast.store.conversion.index_conversion import IndexConversion
from holdfast.store.message_store import MessageStore
from holdfast.store.recovery.conversion_plan import IndexKind, load_progress

OLD, NEW = "consumequeue/orders", "batchconsumequeue/orders"


def begin(disk: SimDisk, to: IndexKind = "batch", piece_size: int = 3) -> IndexConversion:
    return IndexConversion(disk, "orders", to, options=SMALL, piece_size=piece_size)


@pytest.fixture
def disk() -> SimDisk:
    disk = plain_disk()
    fill_store(disk, 31)
    return disk


def test_a_converted_index_serves_the_same_messages(disk: SimDisk):
    """At the same offsets, by an index of the other kind, and with the times that the log has."""
    before = read_served(disk)

    convert(disk, "batch")

    assert read_served(disk) == before
    assert not disk.list(OLD)
    store = MessageStore.open(disk, SMALL, NOW_MS)
    queue = store.queue("orders", 1)
    assert queue.accepts_batches
    for offset in range(queue.offset_max):
        record = store.read_record(queue.get_entry(offset)[0])
        assert record is not None
        assert finish_steps(store, store.store_time(queue, offset)) == record.store_ms


def test_there_and_back_is_the_same_bytes(disk: SimDisk):
    """The files of the index, and the topic's attributes."""
    files, config = index_files(disk, "consumequeue"), load_config(disk.read_file, "topics.json")

    convert(disk, "batch")
    orders = load_config(disk.read_file, "topics.json")["topicConfigTable"]["orders"]
    assert orders["attributes"] == {"queue.type": "BatchCQ"}
    assert disk.read_file("config/topics.json.bak") == disk.read_file("config/topics.json")
    convert(disk, "simple")

    assert index_files(disk, "consumequeue") == files
    config["topicConfigTable"]["orders"]["attributes"] = {}
    config["dataVersion"] = {"counter": 9, "timestamp": NOW_MS, "stateVersion": 0}
    assert load_config(disk.read_file, "topics.json") == config
    assert not disk.list("holdfast/conversion")


def test_the_index_is_what_recovery_would_have_made(disk: SimDisk):
    """A broker that finds no index makes it from the log: byte for byte this one."""
    convert(disk, "batch")
    files = index_files(disk, NEW)

    disk.remove("batchconsumequeue")
    disk.replace("abort", b"")
    MessageStore.open(disk, SMALL, NOW_MS).close(NOW_MS)

    assert index_files(disk, NEW) == files


def test_a_broker_goes_on_behind_the_last_message(disk: SimDisk):
    """Sends get the offsets that they would have got, and the way back is open as long as all are single messages."""
    convert(disk, "batch")
    store = MessageStore.open(disk, SMALL, NOW_MS)
    end = store.queue("orders", 0).offset_max
    assert append(store, b"more")[1] == end == 16
    store.close(NOW_MS)
    before = read_served(disk)

    convert(disk, "simple")

    assert read_served(disk) == before


def test_offsets_without_a_message_are_gaps_and_blanks_again():
    """Both kinds say in their own way that a message was lost."""
    disk = damaged_disk()
    files, before = index_files(disk, "consumequeue"), read_served(disk)
    offsets = [offset for offset, *_ in before[0][2]]
    assert offsets == [0, 1, 2, 5, 6, 7, 8, 9, 10, 11]

    convert(disk, "batch")
    assert read_served(disk) == before
    assert sum(len(data or b"") for data in index_files(disk, NEW).values()) == 2 * 230

    convert(disk, "simple", piece_size=2)
    assert index_files(disk, "consumequeue") == files


def test_messages_that_the_log_has_no_more_are_left_behind(disk: SimDisk):
    """The queue begins at its first message."""
    for name in disk.list("commitlog")[:2]:
        disk.remove(f"commitlog/{name}")
    before = read_served(disk)
    assert 0 < before[0][0] < before[0][1]

    convert(disk, "batch")
    assert read_served(disk) == before
    convert(disk, "simple")
    assert read_served(disk) == before


def test_a_queue_of_which_no_message_is_left_goes_on_where_it_would_have(disk: SimDisk):
    """Its last entry stays, though it points to nothing."""
    store = MessageStore.open(disk, SMALL, NOW_MS)
    for _ in range(3):
        append(store, bytes(600), topic="others")
    assert store.clean(NOW_MS * 2)
    run_housekeeping(store)
    store.close(NOW_MS)
    before = read_served(disk)
    assert before[0] == (16, 16, [])

    convert(disk, "batch")
    assert read_served(disk) == before
    convert(disk, "simple")
    assert read_served(disk) == before
    store = MessageStore.open(disk, SMALL, NOW_MS)
    assert append(store)[1] == 16


def test_records_of_many_messages_keep_their_index():
    """An index by message cannot say them; the text says which. Nothing has changed."""
    disk = batched_disk()
    store = MessageStore.open(disk, SMALL, NOW_MS)
    append(store, b"single")
    append_batch(store, 5)
    store.close(NOW_MS)
    files = index_files(disk, NEW)

    with pytest.raises(StoreError, match="queue 0: the record of offset 1 holds 5 messages"):
        convert(disk, "simple")

    assert index_files(disk, NEW) == files
    assert MessageStore.open(disk, SMALL, NOW_MS).queue("orders", 0).offset_max == 6


def test_a_batch_of_one_message_keeps_its_index_too():
    """Whoever reads an index by message opens no batches."""
    disk = batched_disk()
    store = MessageStore.open(disk, SMALL, NOW_MS)
    append_batch(store, 1)
    store.close(NOW_MS)

    with pytest.raises(StoreError, match="is a batch, though of one message"):
        convert(disk, "simple")


def test_an_index_that_the_log_does_not_bear_out_is_not_converted(disk: SimDisk):
    """The first entry that is wrong is named, and the old index stays."""
    file = disk.open(f"{OLD}/1/{0:020d}")
    file.write(40, [file.read(60, 80)])

    with pytest.raises(StoreError, match=r"queue 1 of topic orders has message 2 at position \d+ .* offset 3"):
        convert(disk, "batch")

    assert disk.list(OLD)
    assert not disk.list(NEW)


def test_a_topic_that_has_the_kind_already_is_left_alone(disk: SimDisk):
    """Running it once more is harmless, also when leftovers are there."""
    disk.create("holdfast/conversion/orders/old/0/x", 1)
    files = index_files(disk, OLD)

    assert convert(disk, "simple").plan is None

    assert index_files(disk, OLD) == files
    assert not disk.list("holdfast/conversion")


@pytest.mark.parametrize("topic", ["nobody", "SCHEDULE_TOPIC_XXXX", "%RETRY%billing", "rmq_sys_x"])
def test_topics_that_are_not_there_or_not_the_users_are_refused(topic: str):
    """By name."""
    disk = plain_disk()
    if topic != "nobody":
        disk.replace("config/topics.json", msgspec.json.encode({"topicConfigTable": {topic: {}}}))
    fill_store(disk, 3)

    with pytest.raises(StoreError, match=topic):
        IndexConversion(disk, topic, "batch", options=SMALL)


def test_a_folder_that_was_not_left_in_order_is_refused(disk: SimDisk):
    """Its index may lack what the log has."""
    disk.replace("abort", b"")

    with pytest.raises(StoreError, match="not stopped cleanly"):
        begin(disk)
    with pytest.raises(StoreError, match="not the folder of a broker"):
        begin(plain_disk())


def test_a_queue_whose_end_no_message_tells_is_refused(disk: SimDisk):
    """By record only a message says where a queue goes on."""
    file = disk.open(f"{OLD}/0/{15 * 20 // 100 * 100:020d}")
    file.write(15 * 20 % 100, [b"\0" * 8 + b"\x7f\xff\xff\xff" + b"\0" * 8])

    with pytest.raises(StoreError, match=r"queue 0 of topic orders continues at offset 16"):
        begin(disk)


def test_a_file_that_is_missing_in_the_middle_is_refused(disk: SimDisk):
    """A broker would mend it; we change nothing."""
    disk.remove(f"{OLD}/0/{100:020d}")

    with pytest.raises(StoreError, match=f"{200:020d} is not where it should be"):
        begin(disk)


def test_an_index_of_the_other_kind_that_nobody_asked_for_is_refused(disk: SimDisk):
    """It would be overwritten."""
    disk.create(f"{NEW}/0/{0:020d}", 230)

    with pytest.raises(StoreError, match="move it away"):
        begin(disk)


def test_a_topic_without_messages_changes_its_attribute_only():
    """There is nothing to convert."""
    disk = plain_disk()
    fill_store(disk, 2)
    disk.remove(OLD)

    convert(disk, "batch")

    store = MessageStore.open(disk, SMALL, NOW_MS)
    assert store.queue("orders", 0).accepts_batches


def test_a_queue_may_be_prepared_alone(disk: SimDisk):
    """And what it needed is not done again."""
    conversion = begin(disk)
    assert {piece.queue_id for piece in conversion.remaining_pieces(1)} == {1}
    for piece in conversion.remaining_pieces(1):
        conversion.convert(piece)

    again = begin(disk)

    assert again.is_resumed
    assert {piece.queue_id for piece in again.remaining_pieces()} == {0}
    assert again.remaining_pieces(1) == []
    finish(again)
    assert read_served(disk)[1][1] == 15


def test_pieces_may_be_converted_in_any_order_and_twice(disk: SimDisk):
    """The same entries become the same bytes."""
    before = read_served(disk)
    conversion = begin(disk)

    for piece in reversed(conversion.remaining_pieces()):
        conversion.convert(piece)
        conversion.convert(piece)
    conversion.switch(NOW_MS)

    assert read_served(disk) == before


def test_a_broker_in_the_middle_of_building_serves_the_old_index_and_the_conversion_notices(disk: SimDisk):
    """What it has added is converted too: everything is planned anew."""
    conversion = begin(disk)
    conversion.convert(conversion.remaining_pieces()[0])
    store = MessageStore.open(disk, SMALL, NOW_MS)
    append(store, b"more", queue_id=1)
    store.close(NOW_MS)
    before = read_served(disk)

    again = begin(disk)

    assert not again.is_resumed
    finish(again)
    assert read_served(disk) == before


def test_a_record_of_the_same_size_in_the_same_place_is_noticed(disk: SimDisk):
    """A log that lost its end was written to again: only the store time tells."""
    conversion = begin(disk)
    for piece in conversion.remaining_pieces():
        conversion.convert(piece)
    position = max(entry[1] for entry in read_served(disk)[0][2])
    log = disk.open(f"commitlog/{position // 1024 * 1024:020d}")
    log.write(position % 1024 + 56, [(NOW_MS + 7).to_bytes(8, "big")])

    assert not begin(disk).is_resumed


class Stopped(BaseException):
    pass


def stop_at(disk: SimDisk, call: str, path: str) -> None:
    """Let the next *call* of *path* be the last."""

    def look(name: str, at: str) -> None:
        if (name, at) == (call, path):
            disk.after = None
            raise Stopped

    disk.after = look


@pytest.mark.parametrize(
    ("call", "path"),
    [
        ("rename", "holdfast/conversion/orders/new"),
        ("replace", "config/topics.json.bak"),
        ("replace", "config/topics.json"),
        ("rename", OLD),
    ],
)
def test_a_broker_in_the_middle_of_a_switch_says_what_to_run(disk: SimDisk, call: str, path: str):
    """And running it ends the switch."""
    before = read_served(disk)
    conversion = begin(disk)
    stop_at(disk, call, path)
    with pytest.raises(Stopped):
        finish(conversion)

    with pytest.raises(StoreError, match="holdfast index convert orders --to batch"):
        MessageStore.open(disk, SMALL, NOW_MS)
    with pytest.raises(StoreError, match="finish that first"):
        begin(disk, "simple")
    again = begin(disk)

    assert again.is_resumed
    assert again.remaining_pieces() == []
    finish(again)
    assert read_served(disk) == before


@pytest.mark.parametrize("call", [("rename", "holdfast/conversion/orders/new"), ("replace", "config/topics.json")])
def test_a_switch_is_taken_back_when_somebody_used_the_old_index_meanwhile(disk: SimDisk, call: tuple[str, str]):
    """A Java broker 4.x knows neither the other kind nor our files: it serves the old index, and adds to it."""
    conversion = begin(disk)
    stop_at(disk, *call)
    with pytest.raises(Stopped):
        finish(conversion)
    add_behind_our_back(disk)

    again = begin(disk)

    assert not again.is_resumed
    assert not disk.list(NEW)
    finish(again)
    assert [(low, high) for low, high, _ in read_served(disk).values()] == [(0, 17), (0, 15)]


def add_behind_our_back(disk: SimDisk) -> None:
    """Store one more message in queue 0, without anything that would tell us of the conversion."""
    kept = {
        path: data
        for path, data in index_files(disk, "").items()
        if path.startswith(("/holdfast", f"/{NEW}", "/config"))
    }
    for folder in ("holdfast", "batchconsumequeue"):
        disk.remove(folder)
    plain_disk(disk)
    store = MessageStore.open(disk, SMALL, NOW_MS)
    append(store, b"more")
    store.close(NOW_MS)
    for path, data in kept.items():
        assert data is not None
        disk.replace(path[1:], data)


def test_what_an_earlier_plan_left_is_not_served(disk: SimDisk):
    """A power cut may bring removed files back."""
    conversion = begin(disk)
    disk.create("holdfast/conversion/orders/new/7/00000000000000000000", 230)

    finish(conversion)

    assert disk.list(NEW) == ["0/", "1/"]


def test_what_an_earlier_conversion_left_is_not_in_the_way(disk: SimDisk):
    """It was stopped when everything was done but for that."""
    before = read_served(disk)
    for name in ("new", "old", "stale"):
        disk.create(f"holdfast/conversion/orders/{name}/0/00000000000000000000", 100)

    convert(disk, "batch")

    assert read_served(disk) == before


def test_a_power_cut_does_not_bring_the_mark_of_a_running_broker_back(disk: SimDisk):
    """In the middle of a switch no broker would start to take it away."""
    begin(disk)

    disk.crash(Random(3))

    assert disk.find_size("abort") is None


def test_nothing_is_noted_before_it_is_on_disk(disk: SimDisk):
    """The files are there and empty when building begins, and a piece is synced and proven before it counts."""
    conversion = begin(disk)
    calls: list[tuple[str, str]] = []
    disk.before = lambda name, path: calls.append((name, path.rpartition("/")[2]))

    conversion.convert(conversion.remaining_pieces()[0])

    names = [name for name, _ in calls]
    assert calls[-1] == ("replace", "progress.json")
    assert names.index("write") < names.index("sync") < len(names) - 1 - names[::-1].index("read")
    progress = load_progress(disk, "orders")
    assert progress is not None
    assert progress.done == [(0, 1)]
