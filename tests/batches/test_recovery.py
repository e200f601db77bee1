"""What is left of batches and of their index when a broker is killed, loses power, or finds a damaged index."""

from __future__ import annotations

import struct
from random import Random

import pytest
from tests.support.batch_bytes import (
    ENTRY_FORMAT,
    BatchMessage,
    RecordEntry,
    a_batch,
    a_single,
    batch_messages,
    java_batch,
    make_topic,
    pull,
    pull_all,
    read_entries,
    send,
    stop,
)
from tests.support.cluster.broker_machine import BrokerHarness
from tests.support.stores import overwrite

from holdfast.model.errors import StoreError
from holdfast.sim.world.disk import SimDisk
from holdfast.wire.frames.codes import ResponseCode
from holdfast.wire.records.properties import parse_properties
from holdfast.wire.records.record import StoredRecord

OURS = {"opensBatches": "true"}
SIZES = (3, 1, 10, 2, 1, 7, 4, 1, 1, 20)


def a_desk(disk: SimDisk | None = None, **options: object) -> BrokerHarness:
    """Return a broker whose index files have four entries."""
    return BrokerHarness(disk=disk, queue_file_entries=4, **options)  # type: ignore[arg-type]


def filled(**options: object) -> BrokerHarness:
    """Return one with batches of all kinds and single messages between them."""
    desk = a_desk(**options)
    make_topic(desk)
    number = 0
    for turn, size in enumerate(SIZES):
        batch = batch_messages(size, start=number)
        number += size
        if size == 1 and turn % 2:
            send(desk, a_single(batch[0]))
        elif turn % 3 == 0:
            send(desk, java_batch(batch))
        else:
            send(desk, a_batch(batch, codec=("plain", "lz4", "zstd", "zlib")[turn % 4]))
        desk.now_ms += turn
    return desk


def said(found: list[StoredRecord]) -> list[tuple[int, bytes]]:
    """Return offsets and bodies."""
    return [(record.offset, bytes(record.body)) for record in found]


EVERYTHING = [(number, b"%d" % number) for number in range(sum(SIZES))]


@pytest.mark.parametrize("end", ["stopped", "killed", "killed, and the index lost"])
def test_everything_is_there_after_a_restart_and_the_index_is_the_same(end: str):
    """Recovery makes the index again from the log: byte for byte, in the same files."""
    model = filled()
    stop(model)
    before = {
        name: model.disk.read_file(f"batchconsumequeue/T/0/{name}") for name in model.disk.list("batchconsumequeue/T/0")
    }
    desk = filled()
    if end == "stopped":
        stop(desk)
    if end == "killed, and the index lost":
        desk.disk.remove("batchconsumequeue")

    again = a_desk(desk.disk)

    assert said(pull_all(again)) == EVERYTHING
    assert send(again, a_batch(batch_messages(2))).fields["queueOffset"] == str(len(EVERYTHING))
    stop(again)
    count = len(SIZES) * 46
    after = b"".join(
        again.disk.read_file(f"batchconsumequeue/T/0/{name}") or b""
        for name in again.disk.list("batchconsumequeue/T/0")
    )
    assert after[:count] == b"".join(data or b"" for data in before.values())[:count]


@pytest.mark.parametrize("seed", range(20))
def test_a_batch_that_was_acknowledged_survives_a_power_cut_as_a_whole(seed: int):
    """All of its messages or, if nobody was told of it, none: a record is never half there."""
    random = Random(seed)
    desk = a_desk(flush="sync")
    make_topic(desk)
    told: dict[int, list[BatchMessage]] = {}
    waiting: list[list[BatchMessage]] = []
    number = 0
    for _ in range(random.randrange(1, 12)):
        batch = batch_messages(random.randrange(1, 40), start=number, size=random.randrange(200))
        number += len(batch)
        waiting.append(batch)
        desk.call(a_batch(batch, codec=random.choice(("plain", "lz4"))))
        if random.random() < 0.7:
            desk.answers[1].clear()
            desk.sync()
            told |= {
                int(answer.fields["queueOffset"]): batch for answer, batch in zip(desk.answers[1], waiting, strict=True)
            }
            waiting.clear()
    desk.disk.crash(random)

    again = a_desk(desk.disk, flush="sync")

    found = dict(said(pull_all(again)))
    for base, batch in told.items():
        assert [found.get(base + index) for index in range(len(batch))] == [each.body for each in batch]
    whole = pull_all(again, **OURS)
    held = [(record.offset, int(parse_properties(record.properties.decode())["INNER_NUM"])) for record in whole]
    assert sorted(found) == [offset for base, count in held for offset in range(base, base + count)]
    again.answers[1].clear()
    again.call(a_batch(batch_messages(3)))
    again.sync()
    assert int(again.answers[1][-1].fields["queueOffset"]) >= max(found, default=-1) + 1


FAR = (1 << 62, -1, -(1 << 63), 7)
DAMAGES = {
    **{f"position {value}": (0, struct.pack(">q", value)) for value in FAR},
    **{f"size {value}": (8, struct.pack(">i", value)) for value in (0, -1, 1, 0x7FFFFFFF)},
    **{f"first offset {value}": (28, struct.pack(">q", value)) for value in FAR},
    **{f"count {value}": (36, struct.pack(">h", value)) for value in (0, -1, -32768, 32767)},
    "zeros": (0, bytes(46)),
    "ones": (0, b"\xff" * 46),
}


@pytest.mark.parametrize("place", ["first", "middle", "last"])
@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("is_killed", [False, True])
def test_a_damaged_entry_of_the_index_never_shows_a_wrong_message(damage: str, place: str, *, is_killed: bool):
    """The log is the truth. A broker that finds the damage mends it or says so; else it serves what is right."""
    desk = filled()
    stop(desk)
    number = {"first": 0, "middle": 5, "last": len(SIZES) - 1}[place]
    skip, data = DAMAGES[damage]
    name = f"batchconsumequeue/T/0/{number // 4 * 4 * 46:020d}"
    overwrite(desk.disk, name, number % 4 * 46 + skip, data)
    if is_killed:
        desk.disk.replace("abort", b"")
    try:
        again = a_desk(desk.disk)
    except StoreError:
        return  # It says so, and serves nothing.

    found: dict[int, bytes] = {}
    for offset in range(len(EVERYTHING)):
        pulled = pull(again, offset, count=1)
        found |= dict(said(pulled.records))
        assert is_killed or pulled.max == len(EVERYTHING)

    assert found.items() <= dict(EVERYTHING).items()
    is_plausible = damage == "first offset 7"
    if not is_killed and not is_plausible:
        assert len(found) >= len(EVERYTHING) - SIZES[number], "damage of one entry costs its messages and no more"
        assert said(pull_all(again)) == sorted(found.items())


@pytest.mark.parametrize("is_stopped", [True, False])
def test_a_folder_with_indexes_of_both_kinds_is_refused_by_name(*, is_stopped: bool):
    """As upstream: nobody knows which one is right. Also where its broker ended in order."""
    desk = filled()
    if is_stopped:
        stop(desk)
    desk.disk.create("consumequeue/T/0/00000000000000000000", 80).write(0, [struct.pack(">qiq", 0, 100, 0)])

    with pytest.raises(StoreError, match="consumequeue/T"):
        a_desk(desk.disk)


def test_entries_of_a_queue_are_found_in_whichever_file_they_are():
    """Upstream reads up to the end of one file: here a pull goes on in the next one."""
    desk = filled()
    stop(desk)
    assert len(desk.disk.list("batchconsumequeue/T/0")) == 3
    again = a_desk(desk.disk)

    pulled = pull(again, 0, count=4096, **OURS)

    assert len(pulled.records) == len(SIZES)
    assert pulled.next == len(EVERYTHING)


def test_what_retention_takes_is_gone_from_the_beginning_and_offsets_stay():
    """The lowest offset is that of the first batch whose record is still there; a pull before it is sent there."""
    desk = a_desk(retention_hours=1)
    make_topic(desk)
    bases = []
    for number in range(40):
        bases.append(int(send(desk, a_batch(batch_messages(10, start=number * 10, size=6000))).fields["queueOffset"]))
        desk.now_ms += 60_000
    desk.pass_time(3_000_000, "housekeep", "clean")
    desk.pass_time(1000, "housekeep")

    pulled = pull(desk, 3)

    assert pulled.code == ResponseCode.PULL_OFFSET_MOVED
    assert 0 < pulled.min < 400
    assert pulled.min in bases
    assert (pulled.next, pulled.max) == (pulled.min, 400)
    assert [offset for offset, _ in said(pull_all(desk, pulled.min))] == list(range(pulled.min, 400))
    kept = read_entries(desk.disk)
    assert kept[0].base <= pulled.min
    assert ENTRY_FORMAT.size == 46
    stop(desk)
    again = a_desk(desk.disk, retention_hours=1)
    assert pull(again, 3)[:4] == pulled[:4]


def damage_count(desk: BrokerHarness, unit: int, said: int) -> None:
    """Let the record of an index entry say another number of messages; no checksum covers that."""
    place = read_entries(desk.disk)[unit]
    log = desk.disk.read_file("commitlog/" + "0" * 20) or b""
    name = b"INNER_NUM\x01"
    at = log.index(name, place.position, place.position + place.size) + len(name)
    end = log.index(b"\x02", at)
    overwrite(desk.disk, "commitlog/" + "0" * 20, at, b"%0*d" % (end - at, said))


@pytest.mark.parametrize("codec", ["plain", "lz4"])
@pytest.mark.parametrize("said_now", [4, 9])
def test_a_damaged_count_hides_no_later_record(codec: str, said_now: int):
    """Though the index is made again from the log: the next record's offset says where the batch ends."""
    desk = a_desk()
    make_topic(desk)
    for start in (0, 3, 6):
        send(desk, a_batch(batch_messages(3, start=start), codec=codec))
    send(desk, a_single(batch_messages(1, start=9)[0]))
    stop(desk)
    position = read_entries(desk.disk)[1].position
    damage_count(desk, 1, said_now)
    desk.disk.remove("batchconsumequeue")

    again = a_desk(desk.disk)

    assert [(unit.base, unit.count) for unit in units_after(again)] == [(0, 3), (3, 3), (6, 3), (9, 1)]
    assert [offset for offset, _ in said(pull_all(again))] == [0, 1, 2, 6, 7, 8, 9]
    (damage,) = again.store.recovered.damages
    assert damage.position == position
    assert f"offset 3 states {said_now} messages" in damage.reason
    assert send(again, a_single(batch_messages(1)[0])).fields["queueOffset"] == "10"


def units_after(desk: BrokerHarness) -> list[RecordEntry]:
    """Return the entries of the index, all of them on disk."""
    for queue in desk.store.list_queues():
        queue.flush()
    return read_entries(desk.disk)


def test_a_wrong_offset_does_not_shorten_a_batch_that_holds_what_it_says():
    """The later record is the damaged one then, and is reported."""
    desk = a_desk()
    make_topic(desk)
    send(desk, a_batch(batch_messages(3)))
    send(desk, a_single(batch_messages(1, start=3)[0]))
    stop(desk)
    last = read_entries(desk.disk)[1]
    overwrite(desk.disk, "commitlog/" + "0" * 20, last.position + 20, struct.pack(">q", 2))
    desk.disk.remove("batchconsumequeue")

    again = a_desk(desk.disk)

    assert [(unit.base, unit.count) for unit in units_after(again)] == [(0, 3)]
    assert [damage.position for damage in again.store.recovered.damages] == [last.position]


def test_an_index_entry_that_covers_the_next_ones_hides_none_of_them():
    """Its file was damaged: each offset is read in the record that has it."""
    desk = filled()
    stop(desk)
    name = desk.disk.list("batchconsumequeue/T/0")[0]
    overwrite(desk.disk, f"batchconsumequeue/T/0/{name}", 36, struct.pack(">h", 14))

    again = a_desk(desk.disk)

    assert [offset for offset, _ in said(pull_all(again))] == [number for number, _ in EVERYTHING]
