from __future__ import annotations

import pytest
from tests.support.conversions import HOST_V6
from tests.support.stores import HOST, NOW_MS, SMALL, append, append_batch, batched_disk, open_store

from holdfast.model.errors import StoreError
from holdfast.sim.world.disk import SimDisk
from holdfast.store.base.log_file import LogFiles
from holdfast.store.conversion.record_headers import IndexColumns, Owner, RecordHeaders

OWNER = Owner("orders", 0)


def write(disk: SimDisk, count: int, topic: str = "orders") -> IndexColumns:
    """Store messages of several hosts, over several files of the log; return what is true of them."""
    store = open_store(disk, log_file_size=SMALL.log_file_size)
    rows = []
    for number in range(count):
        host = HOST_V6 if number % 7 == 3 else HOST
        position, offset = append(store, b"x" * number, topic=topic, host=host, now_ms=NOW_MS + number)
        rows.append((offset, position, store.queue(topic, 0).get_entry(offset)[1], NOW_MS + number))
    store.close(NOW_MS)
    return IndexColumns(*zip(*rows, strict=True))


def heads_of(disk: SimDisk) -> RecordHeaders:
    return RecordHeaders(LogFiles.load(disk, "commitlog", SMALL.log_file_size))


def lie(claims: IndexColumns, column: int, number: int, value: int) -> IndexColumns:
    columns = [list(values) for values in claims]
    columns[column][number] = value
    return IndexColumns(*columns)


def test_store_times_are_those_of_the_records():
    """Over the ends of files, and whatever the hosts are."""
    disk = SimDisk()
    claims = write(disk, 30)
    assert len(disk.list("commitlog")) > 3

    assert heads_of(disk).store_times(claims.positions) == list(claims.times)


def test_what_is_true_is_borne_out():
    """No record is a batch."""
    disk = SimDisk()

    claims = write(disk, 30)

    assert heads_of(disk).check(OWNER, claims) == []
    assert heads_of(disk).check(OWNER, IndexColumns((), (), (), ())) == []


def test_topics_with_long_names_are_borne_out():
    """Their records have another magic."""
    disk, topic = SimDisk(), "t" * 130
    claims = write(disk, 5, topic)

    assert heads_of(disk).check(Owner(topic, 0), claims) == []
    with pytest.raises(StoreError, match="orders"):
        heads_of(disk).check(OWNER, claims)


@pytest.mark.parametrize("number", [0, 3, 17, 29])
@pytest.mark.parametrize(("column", "value"), [(0, 500), (2, 91), (3, 12345)])
def test_a_wrong_claim_is_named(number: int, column: int, value: int):
    """By offset and position, with what the log says instead."""
    disk = SimDisk()
    claims = write(disk, 30)
    offset = value if column == 0 else number

    with pytest.raises(
        StoreError, match=rf"queue 0 of topic orders has message {offset} at position .* offset {number},"
    ):
        heads_of(disk).check(OWNER, lie(claims, column, number, value))


@pytest.mark.parametrize("position", [1, 1000, 1023])
def test_a_place_where_no_record_begins_is_named(position: int):
    """In the middle of one, or at the very end of a file."""
    disk = SimDisk()
    claims = write(disk, 3)

    with pytest.raises(StoreError, match=f"at position {position} "):
        heads_of(disk).check(OWNER, IndexColumns((0,), (position,), (claims.sizes[0],), (claims.times[0],)))
    heads_of(disk).store_times([position])


def test_a_place_outside_the_log_is_named():
    """No file holds it."""
    disk = SimDisk()
    write(disk, 3)

    with pytest.raises(StoreError, match="position 99999, where there is no log"):
        heads_of(disk).store_times([99999])


def test_records_of_another_queue_or_topic_are_no_proof():
    """Even where everything else is right."""
    disk = SimDisk()
    claims = write(disk, 3)

    for owner in (Owner("orders", 1), Owner("orderz", 0), Owner("orders2", 0), Owner("order", 0)):
        with pytest.raises(StoreError, match=owner.topic):
            heads_of(disk).check(owner, claims)


def test_batches_are_told():
    """By their positions."""
    disk = batched_disk()
    store = open_store(disk)
    append(store)
    position, offset = append_batch(store, 4, now_ms=NOW_MS)
    size = store.queue("orders", 0).get_entry(offset)[1]
    store.close(NOW_MS)

    assert heads_of(disk).check(OWNER, IndexColumns((offset,), (position,), (size,), (NOW_MS,))) == [position]
