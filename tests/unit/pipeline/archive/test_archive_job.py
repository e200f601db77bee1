"""Every message is in the archive once: over runs, crashes, brokers and moves. Nothing goes before it is there."""

import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.dataset as ds
import pytest
from tests.support.store_folders import FILES, PREPARED, StoreFolderBuilder, flip, overwrite
from tests.support.stores import NOW_MS
from tests.unit.pipeline.reports.test_report_page import ORIGIN

from holdfast.model.errors import ConfigError
from holdfast.model.topic import HALF_TOPIC
from holdfast.pipeline.archive import parquet_files
from holdfast.pipeline.archive.archive_job import ArchiveResult, Gap, archive, to_report
from holdfast.pipeline.archive.manifest import Archive, ArchiveBroken
from holdfast.pipeline.reports.report_page import to_page
from holdfast.pipeline.scan.read_only import replace_file
from holdfast.pipeline.scan.tasks import InProcess, Progress
from holdfast.runtime.posix_disk import PosixDisk
from holdfast.store.log.retention import find_retention_hold
from holdfast.wire.cluster.mapping import WireSegment
from holdfast.wire.records.compression import Codec, compress, flag_of

DAY_MS = 86_400_000
Row = dict[str, Any]


@pytest.fixture
def folder(tmp_path: Path) -> StoreFolderBuilder:
    return StoreFolderBuilder(tmp_path / "broker-a", topics=("orders", "clicks", HALF_TOPIC))


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "archive"


def run(target: Path, *folders: StoreFolderBuilder, range_size: int = 1 << 20, **options: Any) -> ArchiveResult:
    return archive(InProcess(), [str(folder) for folder in folders], str(target), range_size=range_size, **options)


def rows(target: Path) -> list[Row]:
    """Return what anybody reads who knows nothing of manifests."""
    found: list[Row] = ds.dataset(target, format="parquet", partitioning="hive").to_table().to_pylist()
    return sorted(found, key=lambda row: (row["topic"], row["queue"], row["offset"]))


def orders(target: Path) -> list[tuple[int, int, bytes]]:
    return [(row["queue"], row["offset"], row["body"]) for row in rows(target) if row["topic"] == "orders"]


def test_a_row_is_what_was_sent(folder: StoreFolderBuilder, target: Path):
    """Key, tag, times, properties; its topic and the day when it was stored are in the path."""
    folder.append(b"one", tags="paid", extra_properties="KEYS\x01k1\x02colour\x01red\x02", born_ms=NOW_MS - 5)
    folder.append(b"later", now_ms=NOW_MS + DAY_MS, born_ms=NOW_MS)
    folder.append(compress(b"squeezed" * 50, Codec.ZSTD), flag=flag_of(Codec.ZSTD), now_ms=NOW_MS + DAY_MS)
    folder.close()

    done = run(target, folder)

    first, second, third = rows(target)
    assert done.is_complete
    assert (first["topic"], first["queue"], first["offset"], first["body"]) == ("orders", 0, 0, b"one")
    assert (first["key"], first["tags"], first["broker"], first["generation"]) == ("k1", "paid", "broker-a", None)
    assert dict(first["properties"]) == {"TAGS": "paid", "KEYS": "k1", "colour": "red"}
    assert first["storeTimestamp"].timestamp() * 1000 == NOW_MS
    assert first["bornTimestamp"].timestamp() * 1000 == NOW_MS - 5
    assert (str(first["day"]), str(second["day"])) == ("2023-11-14", "2023-11-15")
    assert third["body"] == b"squeezed" * 50
    assert done.days == {"2023-11-14": 1, "2023-11-15": 2}


@pytest.mark.parametrize("range_size", [1 << 20, 900, 91])
def test_everything_is_there_once_whatever_the_ranges(folder: StoreFolderBuilder, target: Path, range_size: int):
    """Of messages in batches each is a row; what is prepared, and the system's own, is left out."""
    folder.fill()
    folder.append(b"half", topic=HALF_TOPIC)
    folder.close()

    done = run(target, folder, range_size=range_size)

    assert done.rows == {"batched": 18, "clicks": 12, "orders": 60}
    found = rows(target)
    assert Counter(row["topic"] for row in found) == done.rows
    assert [row["offset"] for row in found if row["topic"] == "batched"] == list(range(18))
    assert [row["body"] for row in found if row["topic"] == "batched"] == [b"one", b"two", b"three"] * 6
    assert [row[1] for row in orders(target)] == [*range(30), *range(30)]


def test_a_run_adds_what_is_new(folder: StoreFolderBuilder, target: Path):
    """Of a live broker what its mark covers; the next run goes on there, over files that went meanwhile."""
    folder.fill(20)
    folder.advance_checkpoint()
    folder.append(b"not settled")

    first = run(target, folder)

    assert first.rows["orders"] == 20
    assert run(target, folder).rows == {}

    folder.advance_checkpoint()
    folder.fill(30)
    folder.advance_checkpoint()
    third = run(target, folder)

    assert third.rows["orders"] == 31
    assert third.is_complete
    assert [row[:2] for row in orders(target)] == [(0, number) for number in range(26)] + [
        (1, number) for number in range(25)
    ]


class Dying:
    """Runs some tasks and dies."""

    cores = 1

    def __init__(self, count: int) -> None:
        self._left = count

    def run(
        self, function: Callable[[Any], Any], inputs: Sequence[Any], result_type: Any, progress: Progress
    ) -> list[Any]:
        def dying(each: Any) -> Any:
            if not self._left:
                raise KeyboardInterrupt
            self._left -= 1
            return function(each)

        return InProcess().run(dying, inputs, result_type, progress)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_run_that_dies_among_its_tasks_adds_nothing(folder: StoreFolderBuilder, target: Path, count: int):
    """What it wrote is not seen, and the next run does all of it."""
    folder.fill()
    folder.close()
    with pytest.raises(KeyboardInterrupt):
        archive(Dying(count), [str(folder)], str(target), range_size=1500)
    assert not [path for path in target.rglob("*.parquet") if "_staging" not in path.parts]

    run(target, folder, range_size=1500)

    assert len(orders(target)) == 60
    assert not list(target.rglob("_staging/**/*.parquet"))


@pytest.mark.parametrize("when", range(12))
def test_a_run_that_dies_at_any_step_of_its_commit_is_whole_in_the_end(
    folder: StoreFolderBuilder, target: Path, when: int, monkeypatch: pytest.MonkeyPatch
):
    """Before the manifest nothing counts; behind it the next run moves what was not moved."""
    folder.fill(30)
    folder.advance_checkpoint()
    run(target, folder)
    folder.fill(30)
    folder.advance_checkpoint()
    left = when

    def step(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            nonlocal left
            if not left:
                raise KeyboardInterrupt
            left -= 1
            return real(*arguments)

        return call

    with monkeypatch.context() as patch:
        for module in ("archive.manifest", "archive.retention_hold"):
            patch.setattr(f"holdfast.pipeline.{module}.replace_file", step(replace_file))
        patch.setattr(Path, "rename", step(Path.rename))
        try:
            run(target, folder, range_size=3000)
        except KeyboardInterrupt:
            seen = orders(target)
            assert len(seen) == len(set(seen))
            held = find_retention_hold(PosixDisk(folder.root))
            assert held is not None
            assert held <= Archive(target)._load().logs["broker-a"].position

    run(target, folder, range_size=3000)

    seen = orders(target)
    assert len(seen) == 60
    assert [row[:2] for row in seen] == [(queue, offset) for queue in (0, 1) for offset in range(30)]


class Twice:
    """Runs every task twice, as if nobody had heard of the end of the first."""

    cores = 1

    def run(
        self, function: Callable[[Any], Any], inputs: Sequence[Any], result_type: Any, progress: Progress
    ) -> list[Any]:
        InProcess().run(function, inputs, result_type, progress)
        return InProcess().run(function, inputs, result_type, progress)


def test_of_a_task_that_is_run_twice_one_counts(folder: StoreFolderBuilder, target: Path):
    """Whichever is heard of."""
    folder.fill()
    folder.close()

    done = archive(Twice(), [str(folder)], str(target), range_size=1500)

    assert done.rows["orders"] == len(orders(target)) == 60


def test_what_counts_is_on_disk_before_it_counts(
    folder: StoreFolderBuilder, target: Path, monkeypatch: pytest.MonkeyPatch
):
    """Files, then their names, then the manifest that speaks of them."""
    folder.fill()
    folder.close()
    synced: set[str] = set()
    seen: list[bool] = []

    def sync(descriptor: int) -> None:
        synced.add(str(Path(f"/proc/self/fd/{descriptor}").readlink()))

    def replace(path: Path, data: bytes) -> None:
        if path.name == "manifest.json":
            staged = list(target.glob("_staging/*/*.parquet"))
            seen.append(bool(staged) and all({str(file), str(file.parent)} <= synced for file in staged))
        replace_file(path, data)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr("holdfast.pipeline.archive.manifest.replace_file", replace)

    run(target, folder, range_size=3000)

    assert seen[0]


def test_a_run_that_is_killed_is_whole_in_the_end(folder: StoreFolderBuilder, target: Path):
    """By the system, among its tasks: what it wrote is thrown away, and each message is there once."""
    folder.fill(400)
    folder.close()
    script = (
        "import sys; from holdfast.pipeline.archive.archive_job import archive; "
        "from holdfast.pipeline.scan.tasks import InProcess; "
        "archive(InProcess(), [sys.argv[1]], sys.argv[2], range_size=500)"
    )
    with subprocess.Popen([sys.executable, "-c", script, str(folder), str(target)]) as child:
        while len(list(target.glob("_staging/*/*.parquet"))) < 3:
            assert child.poll() is None
            time.sleep(0.01)
        child.kill()

    done = run(target, folder)

    assert done.rows == {"batched": 120, "clicks": 80, "orders": 400}
    assert len(rows(target)) == 600


def home(broker: str, generation: int = 0, **fields: int) -> WireSegment:
    found = {"queue_id": 0, "first": 0, "start": 0, "end": -1} | fields
    return WireSegment(generation, broker, found["queue_id"], found["first"], found["start"], found["end"], -1, -1)


def test_logical_offsets_go_on_over_brokers_and_moves(tmp_path: Path, target: Path):
    """A queue that moved from one broker to another and back has one row of offsets."""
    old, new = (StoreFolderBuilder(tmp_path / name) for name in ("broker-a", "broker-b"))
    homes = {
        3: [
            home("broker-a", end=5),
            home("broker-b", 1, queue_id=2, first=5, end=4),
            home("broker-a", 2, queue_id=1, first=9),
        ]
    }
    homes |= {number: [home("broker-a", queue_id=4 + number)] for number in range(3)}
    for folder in (old, new):
        folder.write_mapping("orders", homes, owner=folder.root.name)
    for number in range(5):
        old.append(b"%d" % number)
    for number in range(5, 9):
        new.append(b"%d" % number, queue=2)
    for number in range(9, 12):
        old.append(b"%d" % number, queue=1)
    old.close()
    new.close()

    done = run(target, old, new)

    assert done.is_complete
    assert orders(target) == [(3, number, b"%d" % number) for number in range(12)]
    assert [row["generation"] for row in rows(target)] == [0] * 5 + [1] * 4 + [2] * 3
    assert Archive(target)._load().offsets == {"orders": {"3": [(0, 12)]}}


def test_what_goes_on_elsewhere_waits_for_what_is_before_it(tmp_path: Path, target: Path):
    """The source's mark is older than its last messages; the target's is not: no run has the end without the middle."""
    old, new = (StoreFolderBuilder(tmp_path / name) for name in ("broker-a", "broker-b"))
    homes = {0: [home("broker-a", end=5), home("broker-b", 1, first=5)]}
    for folder in (old, new):
        folder.write_mapping("orders", homes, owner=folder.root.name)
    for number in range(3):
        old.append(b"%d" % number)
    old.advance_checkpoint()
    for number in range(3, 5):
        old.append(b"%d" % number)
    new.append(b"click", topic="clicks")
    new.append(b"5")
    new.advance_checkpoint()

    first = run(target, old, new)

    assert first.is_complete
    assert [row[1] for row in orders(target)] == [0, 1, 2]
    assert first.rows == {"clicks": 1, "orders": 3}

    old.advance_checkpoint()
    second = run(target, old, new)

    assert second.is_complete
    assert [row[1] for row in orders(target)] == [0, 1, 2, 3, 4, 5]


def test_messages_behind_a_sealed_end_are_no_part_of_the_queue(folder: StoreFolderBuilder, target: Path):
    """Nobody was told that they are stored; the offsets are another broker's."""
    for number in range(5):
        folder.append(b"%d" % number)
    folder.write_mapping("orders", {0: [home("broker-a", end=3), home("broker-b", 1, first=3)]})
    folder.close()

    done = run(target, folder)

    assert done.outside == 2
    assert [row[1] for row in orders(target)] == [0, 1, 2]


def test_retention_is_told_what_is_archived(folder: StoreFolderBuilder, target: Path):
    """Files that are older than their time stay until they are in the archive, and go then."""
    folder.fill(60)
    folder.advance_checkpoint()
    run(target, folder)
    archived = folder.store.written
    folder.fill(60)
    folder.advance_checkpoint()

    folder.store.clean(NOW_MS + 1000 * DAY_MS)

    assert folder.store.start == archived // FILES.log_file_size * FILES.log_file_size > 0
    assert run(target, folder).is_complete
    folder.store.clean(NOW_MS + 1000 * DAY_MS)
    assert folder.store.start > archived


def test_what_was_removed_too_early_is_told(folder: StoreFolderBuilder, target: Path):
    """Without a hold retention may be quicker: the run says how much is lost, and which offsets are missing."""
    folder.fill(30)
    folder.advance_checkpoint()
    run(target, folder, holds=False)
    folder.fill(90)
    folder.advance_checkpoint()
    folder.store.clean(NOW_MS + 1000 * DAY_MS)

    done = run(target, folder)

    assert not done.is_complete
    assert done.logs[0].lost > 0
    (gap,) = [gap for gap in done.gaps if (gap.topic, gap.queue) == ("orders", "broker-a/0")]
    assert gap.first == 15
    assert not gap.is_known
    assert run(target, folder).gaps == []


def test_a_damaged_message_is_told_and_those_beside_it_are_archived(folder: StoreFolderBuilder, target: Path):
    """By file and byte; its offset is missing."""
    folder.append(b"one")
    position, _ = folder.append(b"two")
    folder.append(b"three")
    batch, _ = folder.append(b"no items", topic="batched", extra_properties="INNER_NUM\x013\x02", flag=0xC0)
    folder.append_batch([b"four"])
    folder.close()
    place = folder.log_path(position)
    flip(place, skip=89)

    done = run(target, folder)

    assert not done.is_complete
    assert {(fault.kind, fault.position) for fault in done.faults} == {("checksum", position), ("batch", batch)}
    assert (str(place[0]), place[1]) in {(fault.path, fault.at) for fault in done.faults}
    assert done.gaps == [Gap("orders", "broker-a/0", 1, 1, is_known=False)]
    assert [row["body"] for row in rows(target)] == [b"four", b"one", b"three"]


def test_another_log_is_not_taken_for_the_one_that_was_archived(
    folder: StoreFolderBuilder, target: Path, tmp_path: Path
):
    """An older copy, or another broker of the same name: going on would mix them up."""
    folder.fill(10)
    folder.advance_checkpoint()
    copy = tmp_path / "copy"
    shutil.copytree(folder.root, copy)
    position, _ = folder.append(b"known")
    folder.advance_checkpoint()
    run(target, folder)

    with pytest.raises(ConfigError, match="older copy"):
        archive(InProcess(), [f"broker-a={copy}"], str(target))

    overwrite(folder.log_path(position), b"other", skip=88)
    with pytest.raises(ConfigError, match="not the one that was archived"):
        run(target, folder)


def test_the_choice_of_topics_stays(folder: StoreFolderBuilder, target: Path):
    """What was left out is behind us."""
    folder.fill(10)
    folder.close()

    done = run(target, folder, topics=["order*"])

    assert set(done.rows) == {"orders"}
    with pytest.raises(ConfigError, match="begun with topics"):
        run(target, folder)


def test_one_run_at_a_time(folder: StoreFolderBuilder, target: Path):
    """Two would do the same."""
    folder.close()
    with Archive(target).lock(), pytest.raises(ConfigError, match="another run"):
        run(target, folder)


def test_a_file_that_is_nowhere_is_missed(folder: StoreFolderBuilder, target: Path, monkeypatch: pytest.MonkeyPatch):
    """A run was committed and not moved, and somebody tidied up."""
    folder.fill(10)
    folder.close()
    with monkeypatch.context() as patch:
        patch.setattr(Archive, "finish_moves", lambda _self: None)
        run(target, folder)
    (target / "_staging" / "000001").rename(target / "elsewhere")

    with pytest.raises(ArchiveBroken, match="nowhere"):
        run(target, folder)


def test_topics_of_an_earlier_life_are_left_out(folder: StoreFolderBuilder, target: Path):
    """Offsets begin again with the new one."""
    folder.append(b"old")
    folder.store.delete_topic("orders")
    folder.append(b"new")
    folder.append(b"prepared", flag=PREPARED)
    folder.close()

    run(target, folder)

    assert orders(target) == [(0, 0, b"new")]


def test_many_topics_do_not_need_as_many_open_files(tmp_path: Path, target: Path, monkeypatch: pytest.MonkeyPatch):
    """Some are finished, and go on in a second file."""
    monkeypatch.setattr(parquet_files, "_FILES_MAX", 3)
    monkeypatch.setattr(parquet_files, "BUFFERED_BYTES_MAX", 200)
    names = tuple(f"topic-{number}" for number in range(9))
    folder = StoreFolderBuilder(tmp_path / "broker-a", topics=names)
    for number in range(60):
        folder.append(b"%d" % number, topic=names[number % 9])
    folder.close()

    done = run(target, folder, range_size=2000)

    assert sum(done.rows.values()) == 60
    assert sorted(int(row["body"]) for row in rows(target)) == list(range(60))
    assert done.files > 9


def test_the_report_says_what_is_missing(folder: StoreFolderBuilder, target: Path):
    """And the page has the days."""
    folder.fill(10)
    folder.close()
    flip(folder.log_path(0), skip=5)

    page = to_page(to_report(run(target, folder)), ORIGIN)

    assert "something is missing" in page
    assert "2023-11-14" in page


def test_no_message_waits_for_a_segment_that_has_expired(tmp_path: Path, target: Path):
    """Its broker removed the index with the messages, so nothing of it can be settled any more."""
    old, new = (StoreFolderBuilder(tmp_path / name) for name in ("broker-a", "broker-b"))
    expired = msgspec.structs.replace(home("broker-a", end=5), expired=True)
    for folder in (old, new):
        folder.write_mapping("orders", {0: [expired, home("broker-b", 1, first=5)]}, owner=folder.root.name)
    new.append(b"5")
    old.close()
    new.close()

    assert run(target, old, new).rows == {"orders": 1}
    assert orders(target) == [(0, 5, b"5")]
