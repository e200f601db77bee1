"""Whatever is wrong in a store folder is found, and named by file and byte; what is right is not."""

import shutil
from pathlib import Path

import pytest
from tests.support.batch_bytes import batch_messages, encode_messages
from tests.support.store_folders import FILES, StoreFolderBuilder, flip, overwrite
from tests.support.stores import HOST, NOW_MS, run_housekeeping
from tests.unit.pipeline.reports.test_report_page import ORIGIN

from holdfast.model.errors import ConfigError
from holdfast.pipeline.audit.audit_job import Audit, audit, to_report
from holdfast.pipeline.reports.report_page import to_page
from holdfast.pipeline.scan import log_scan
from holdfast.pipeline.scan.read_only import ReadOnlyFile
from holdfast.pipeline.scan.tasks import InProcess
from holdfast.store.queues.queue_index import ENTRY
from holdfast.wire.cluster.mapping import WireSegment
from holdfast.wire.records.record import StoredRecord, encode_record


@pytest.fixture
def folder(tmp_path: Path) -> StoreFolderBuilder:
    """A store of several log and index files, of both kinds of index, that was closed in order."""
    found = StoreFolderBuilder(tmp_path / "broker-a")
    found.fill()
    found.close()
    return found


def look(*folders: StoreFolderBuilder | str, range_size: int = 1 << 20) -> Audit:
    return audit(InProcess(), [str(folder) for folder in folders], range_size=range_size)


def kinds(found: Audit) -> set[str]:
    return set(found.counts)


def position_of(folder: StoreFolderBuilder, offset: int) -> int:
    """Return where the message of an offset of orders/0 lies, as its index says."""
    path, at = folder.entry_path(offset)
    return int(ENTRY.unpack_from(path.read_bytes(), at)[0])


@pytest.mark.parametrize("range_size", [1 << 20, 4000, 500, 91])
def test_a_store_that_is_right_is_found_right(folder: StoreFolderBuilder, range_size: int):
    """However its log is cut into ranges, each record is seen once."""
    found = look(folder, range_size=range_size)

    assert found.faults == []
    assert found.is_clean
    (store,) = found.stores
    assert store.records == 60 + 12 + 7 + 6
    assert store.unqueued == 7
    assert store.entries == 60 + 12 + 6
    assert store.messages == 60 + 12 + 18
    assert store.settled == folder.store.written


@pytest.mark.parametrize("range_size", [1 << 20, 700])
def test_a_flipped_bit_of_a_body_is_named(folder: StoreFolderBuilder, range_size: int):
    """By log file and byte, and by the message that it was."""
    position = position_of(folder, 11)
    place = folder.log_path(position)
    flip(place, skip=90)

    found = look(folder, range_size=range_size)

    (fault,) = found.faults
    assert (fault.kind, fault.path, fault.at) == ("checksum", str(place[0]), place[1])
    assert (fault.topic, fault.queue, fault.offset, fault.position) == ("orders", 0, 11, position)


@pytest.mark.parametrize("range_size", [1 << 20, 700])
@pytest.mark.parametrize("skip", [0, 4, 14, 20, 31, 85])
def test_a_flipped_bit_of_a_head_is_found(folder: StoreFolderBuilder, skip: int, range_size: int):
    """Of the size, the magic, the queue, the offset, the position, the body's size: what leads astray is noticed."""
    place = folder.log_path(position_of(folder, 11))
    flip(place, skip=skip)

    found = look(folder, range_size=range_size)

    assert not found.is_clean
    named = {(fault.path, fault.at) for fault in found.faults}
    assert {(str(place[0]), place[1]), (str(folder.entry_path(11)[0]), folder.entry_path(11)[1])} & named


def test_a_flipped_bit_of_a_tag_is_found(folder: StoreFolderBuilder):
    """Properties have no checksum, but the index knows the hash of the tag."""
    place = folder.log_path(position_of(folder, 11))
    record = place[0].read_bytes()[place[1] :]
    flip(place, skip=record.index(b"TAGS\x01t") + 6)

    (fault,) = look(folder).faults

    assert (fault.kind, fault.path, fault.at) == ("differs", str(folder.entry_path(11)[0]), folder.entry_path(11)[1])
    assert "tag" in fault.text


@pytest.mark.parametrize("range_size", [1 << 20, 700])
def test_a_lost_index_entry_is_named(folder: StoreFolderBuilder, range_size: int):
    """Twice: where the index has a hole, and which record no entry leads to any more."""
    place = folder.entry_path(11)
    position = position_of(folder, 11)
    overwrite(place, bytes(20))

    found = look(folder, range_size=range_size)

    lost, unindexed = sorted(found.faults, key=lambda fault: fault.kind)
    assert (lost.kind, lost.path, lost.at, lost.offset) == ("lost entry", str(place[0]), place[1], 11)
    assert (unindexed.kind, unindexed.position, unindexed.offset) == ("unindexed", position, 11)


def test_an_entry_that_leads_elsewhere_is_named(folder: StoreFolderBuilder):
    """Into the middle of a record: no record begins there, and the one that should be led to is left alone."""
    place = folder.entry_path(11)
    overwrite(place, (position_of(folder, 11) + 8).to_bytes(8, "big"))

    found = look(folder)

    assert kinds(found) == {"no record", "unindexed"}
    assert (str(place[0]), place[1]) in {(fault.path, fault.at) for fault in found.faults if fault.kind == "no record"}


def test_an_entry_behind_the_log_is_named(folder: StoreFolderBuilder):
    """There is nothing that it could lead to."""
    place = folder.entry_path(11)
    overwrite(place, (1 << 40).to_bytes(8, "big"))

    found = look(folder)

    assert kinds(found) == {"no record", "unindexed", "order"}


def test_two_entries_of_one_record_are_named(folder: StoreFolderBuilder):
    """The second of them, and the record that lost its own."""
    entry = folder.entry_path(11)[0].read_bytes()[folder.entry_path(11)[1] :][:20]
    place = folder.entry_path(12)
    overwrite(place, entry)

    found = look(folder)

    assert {"doubled", "differs", "unindexed", "order"} == kinds(found)
    (doubled,) = [fault for fault in found.faults if fault.kind == "doubled"]
    assert (doubled.path, doubled.at, doubled.offset) == (str(place[0]), place[1], 12)


def test_a_doubled_record_is_named(tmp_path: Path):
    """A record that was written a second time is whole and in its place, but its offset is another one's."""
    folder = StoreFolderBuilder(tmp_path / "broker-a")
    folder.fill(10)
    folder.close()
    position = folder.store.written
    again = StoredRecord(
        0, position, "orders", 0, 3, 0, 0, NOW_MS, HOST, NOW_MS + 99, HOST, 0, 0, 0, b"order again", b""
    )
    overwrite(folder.log_path(position), encode_record(again))

    found = look(folder)

    (fault,) = found.faults
    place = folder.log_path(position)
    assert (fault.kind, fault.path, fault.at, fault.offset) == ("unindexed", str(place[0]), place[1], 3)
    assert f"says position {position_of(folder, 3)}" in fault.text


def test_an_index_that_is_gone_is_missed(folder: StoreFolderBuilder):
    """The topic is there, and its records are in no index at all."""
    shutil.rmtree(folder.root / "consumequeue" / "clicks")

    found = look(folder)

    assert found.counts == {"unindexed": 12}


def test_an_index_by_record_is_judged_too(folder: StoreFolderBuilder):
    """Its entries say offsets and counts themselves."""
    path = folder.root / "batchconsumequeue" / "batched" / "0" / f"{0:020d}"
    overwrite((path, 46), (9999).to_bytes(8, "big"), skip=28)

    found = look(folder)

    assert kinds(found) == {"order", "differs"}
    assert {(fault.path, fault.at) for fault in found.faults} >= {(str(path), 46)}


def test_a_batch_that_cannot_be_opened_is_named(folder: StoreFolderBuilder):
    """Its checksum is right: it was stored like that."""
    whole = StoreFolderBuilder(folder.root.parent / "broker-b")
    position, _ = whole.append(b"no items", topic="batched", extra_properties="INNER_NUM\x013\x02", flag=0xC0)
    whole.close()

    (fault,) = look(whole).faults

    assert (fault.kind, fault.position) == ("batch", position)


def test_a_batch_that_says_more_messages_than_it_holds_is_named(folder: StoreFolderBuilder):
    """No checksum covers what it says; the index, made again from the log, would hide the next record."""
    whole = StoreFolderBuilder(folder.root.parent / "broker-b")
    position, _ = whole.append(
        encode_messages(batch_messages(3)), topic="batched", extra_properties="INNER_NUM\x013\x02", flag=0xC0
    )
    whole.append(encode_messages(batch_messages(3)), topic="batched", extra_properties="INNER_NUM\x013\x02", flag=0xC0)
    whole.close()
    path = next((whole.root / "commitlog").iterdir())
    log = path.read_bytes()
    at = log.index(b"INNER_NUM\x013", position) + len("INNER_NUM\x01")
    path.write_bytes(log[:at] + b"9" + log[at + 1 :])

    (fault,) = look(whole).faults

    assert (fault.kind, fault.position) == ("batch", position)
    assert "messages as it says" in fault.text


def test_topics_that_were_deleted_are_not_missed(folder: StoreFolderBuilder):
    """Their records stay in the log until their file goes."""
    whole = StoreFolderBuilder(folder.root.parent / "broker-b")
    whole.fill(20)
    whole.store.delete_topic("clicks")
    whole.fill(5)
    whole.close()

    found = look(whole)

    assert found.is_clean
    assert found.stores[0].of_the_dead == 4


def test_what_a_live_broker_has_not_settled_is_not_judged(tmp_path: Path):
    """Entries wait in memory; a mark says up to where everything is on disk."""
    folder = StoreFolderBuilder(tmp_path / "broker-a")
    folder.fill(20)
    run_housekeeping(folder.store, NOW_MS + 20_000)
    settled = folder.store.written
    folder.fill(20)

    found = look(folder)

    assert found.is_clean
    (store,) = found.stores
    assert (store.settled, store.end, store.is_closed) == (settled, folder.store.written, False)
    assert any("not settled" in note for note in found.notes)


def make_deceptive(tmp_path: Path) -> tuple[StoreFolderBuilder, range, int]:
    """A store with a body in which a record seems to lie; sizes of ranges that begin before it; where it seems to."""
    folder = StoreFolderBuilder(tmp_path / "broker-a")
    folder.append(b"first")
    start, position = folder.store.written + 88, folder.store.written + 100
    fake = StoredRecord(0, position, "orders", 0, 0, 0, 0, NOW_MS, HOST, NOW_MS, HOST, 0, 0, 0, b"fake" * 9, b"")
    folder.append(bytes(position - start) + encode_record(fake) + bytes(2000))
    folder.fill(10)
    folder.close()
    return folder, range(start - 5, position + 3, 7), position


def test_bytes_that_look_like_a_record_in_a_body_are_none(tmp_path: Path):
    """A range that begins inside of such a body finds them first; the way through the range before shows that."""
    folder, sizes, _ = make_deceptive(tmp_path)

    for size in sizes:
        assert look(folder, range_size=size).faults == []


def test_an_entry_that_leads_to_bytes_that_look_like_a_record_is_named(tmp_path: Path):
    """No entry lies between two ranges, also where one was done again."""
    folder, sizes, position = make_deceptive(tmp_path)
    place = folder.entry_path(1)
    overwrite(place, position.to_bytes(8, "big"))

    for size in sizes:
        found = look(folder, range_size=size)

        assert kinds(found) == {"no record", "unindexed"}
        assert (str(place[0]), place[1]) in {(fault.path, fault.at) for fault in found.faults}


def test_sizes_that_are_lies_cost_no_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A body full of heads of records of a gigabyte, each in its place: none is read to its end."""
    folder = StoreFolderBuilder(tmp_path / "broker-a")
    folder.append(b"first")
    start = folder.store.written + 88
    lies = bytearray(3000)
    for at in range(0, 2900, 100):
        fake = StoredRecord(0, start + at, "orders", 0, 0, 0, 0, NOW_MS, HOST, NOW_MS, HOST, 0, 0, 0, b"x" * 9, b"")
        lies[at : at + 90] = (7000).to_bytes(4, "big") + encode_record(fake)[4:90]
    folder.append(bytes(lies))
    folder.fill(10)
    folder.close()
    sizes: list[int] = []
    real = ReadOnlyFile.read

    def watched(self: ReadOnlyFile, begin: int, end: int) -> bytes:
        sizes.append(end - begin)
        return real(self, begin, end)

    monkeypatch.setattr("holdfast.pipeline.scan.read_only.VIEW_SIZE_MAX", 4000)
    monkeypatch.setattr(log_scan, "_SEARCH_SIZE", 4000)
    monkeypatch.setattr(log_scan, "CHUNK_SIZE", 4000)
    monkeypatch.setattr(ReadOnlyFile, "read", watched)

    for size in range(start, start + 3000, 313):
        assert look(folder, range_size=size).faults == []

    assert max(sizes) <= 4096 + 4000


def test_damage_over_the_end_of_a_range_is_told_once(folder: StoreFolderBuilder):
    """Ranges meet in it: neither leaves it out, and no record behind it is lost."""
    position = position_of(folder, 11)
    overwrite(folder.log_path(position), b"\xff" * 60)

    for size in range(position % FILES.log_file_size - 3, position % FILES.log_file_size + 70, 9):
        found = look(folder, range_size=size)

        damages = [fault for fault in found.faults if fault.kind == "bytes"]
        assert [fault.position for fault in damages] == [position]
        assert found.stores[0].records == 84


def home(
    broker: str, generation: int = 0, *, first: int = 0, start: int = 0, end: int = -1, queue: int = 0
) -> WireSegment:
    return WireSegment(generation, broker, queue, first, start, end, -1, -1)


def make_moved(tmp_path: Path) -> tuple[StoreFolderBuilder, StoreFolderBuilder]:
    """A logical queue that moved from one broker to another, 5 messages here and 4 there."""
    old, new = (StoreFolderBuilder(tmp_path / name) for name in ("broker-a", "broker-b"))
    homes = {0: [home("broker-a", end=5), home("broker-b", 1, first=5)]}
    for folder, count in ((old, 5), (new, 4)):
        for number in range(count):
            folder.append(b"%d" % number)
        folder.write_mapping("orders", homes, owner=folder.root.name)
        folder.close()
    return old, new


def test_a_queue_that_moved_is_right_over_both_brokers(tmp_path: Path):
    """It ends here where it goes on there."""
    found = look(*make_moved(tmp_path))

    assert found.faults == []
    assert found.notes == []


def test_a_copied_mapping_is_named(tmp_path: Path):
    """A broker with the mapping of another one would serve what is not its own."""
    old, new = make_moved(tmp_path)
    for name in ("holdfastMapping.json", "topicQueueMapping.json"):
        shutil.copy(old.root / "config" / name, new.root / "config" / name)

    found = look(f"broker-a={old}", f"broker-b={new}")

    assert kinds(found) == {"mapping"}
    assert found.faults[0].path == str(new.root / "config" / "holdfastMapping.json")
    assert "mapping of broker-a" in found.faults[0].text
    with pytest.raises(ConfigError, match="both belong to broker-a"):
        look(old, new)


def test_a_home_that_is_longer_or_shorter_than_its_queue_is_named(tmp_path: Path):
    """What is behind a sealed end was never granted; what is missing before it is lost."""
    for end in (4, 6):
        folder = StoreFolderBuilder(tmp_path / str(end) / "broker-a")
        for number in range(5):
            folder.append(b"%d" % number)
        folder.write_mapping("orders", {0: [home("broker-a", end=end), home("broker-b", 1, first=end)]})
        folder.close()

        (fault,) = look(folder).faults

        assert (fault.kind, fault.path) == ("mapping", str(folder.root / "config" / "holdfastMapping.json"))
        assert f"it ends at {end} of orders/0, whose index ends at 5" in fault.text


def test_what_nothing_refers_to_is_named(tmp_path: Path):
    """A physical queue of a static topic that is nobody's home, and a log file that no chain reaches."""
    folder = StoreFolderBuilder(tmp_path / "broker-a")
    folder.append(b"one")
    folder.append(b"two", queue=7)
    folder.write_mapping("orders", {0: [home("broker-a")]})
    folder.close()
    stray = folder.root / "commitlog" / f"{FILES.log_file_size * 7:020d}"
    stray.write_bytes(bytes(10))

    found = look(folder)

    assert found.counts == {"unreferenced": 2}
    assert {fault.path for fault in found.faults} == {str(stray), str(folder.root / "consumequeue" / "orders" / "7")}


def test_what_is_no_store_is_refused(tmp_path: Path):
    """Before anything is begun."""
    with pytest.raises(ConfigError, match="not a store folder"):
        look(str(tmp_path))


def test_the_page_says_what_the_report_says(folder: StoreFolderBuilder):
    """Whatever stands in a topic's name, it is text."""
    flip(folder.log_path(position_of(folder, 11)), skip=90)

    page = to_page(to_report(look(folder)), ORIGIN)

    assert "checksum" in page
    assert str(folder.log_path(position_of(folder, 11))[0]) in page
    assert "http" not in page
