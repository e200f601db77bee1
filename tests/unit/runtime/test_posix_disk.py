"""A real folder as a disk."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.model.errors import DiskFailed, DiskFull
from holdfast.runtime import posix_disk
from holdfast.runtime.posix_disk import PosixDisk
from holdfast.store.base.log_file import LogFiles


@pytest.fixture
def disk(tmp_path: Path) -> PosixDisk:
    return PosixDisk(tmp_path / "store")


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_files_are_made_with_their_folders_and_full_of_zeros(disk: PosixDisk, tmp_path: Path):
    """At the size asked for."""
    file = disk.create("a/b/c", 10_000)

    assert (file.path, file.size) == ("a/b/c", 10_000)
    assert (tmp_path / "store/a/b/c").stat().st_size == 10_000
    assert file.read(0, 10_000) == bytes(10_000)


def test_reserving_takes_the_space_at_once(disk: PosixDisk, tmp_path: Path):
    """Where a sparse file takes none."""
    disk.create("sparse", 1 << 20)
    disk.create("reserved", 1 << 20, reserve=True)

    blocks = {path.name: path.stat().st_blocks for path in (tmp_path / "store").iterdir()}
    assert blocks["reserved"] * 512 >= 1 << 20
    assert blocks["sparse"] * 512 < 1 << 18


@pytest.mark.parametrize("count", [1, 2, 1023, 1024, 1025, 5000])
def test_any_number_of_pieces_is_one_write(disk: PosixDisk, count: int):
    """Of any kind, more than the kernel takes at once too."""
    file = disk.create("f", 100_000)
    kinds = (bytes, bytearray, memoryview)
    pieces = [kinds[number % 3](b"%05d" % number) for number in range(count)]

    file.write(7, pieces)

    assert file.read(7, 7 + count * 5) == b"".join(pieces)


def test_short_writes_are_finished(disk: PosixDisk, monkeypatch: pytest.MonkeyPatch):
    """A signal, or a disk that is nearly full, may cut a write short."""
    file = disk.create("f", 1000)
    real_pwrite = os.pwrite
    monkeypatch.setattr(os, "pwritev", lambda fd, pieces, at: real_pwrite(fd, b"".join(pieces)[:3], at))
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: real_pwrite(fd, data[:4], at))

    file.write(0, [b"hello", b" ", b"world"])
    file.write(20, [b"one ", b"piece"], 9)

    assert file.read(0, 29) == b"hello world" + bytes(9) + b"one piece"


def test_views_see_what_is_written_later(disk: PosixDisk):
    """One page cache for both."""
    file = disk.create("f", 100)
    view = file.view(10, 20)

    file.write(10, [b"0123456789"])

    assert bytes(view) == b"0123456789"
    assert view.readonly


def test_views_outlive_their_file(disk: PosixDisk):
    """Also one that was removed and closed: a slow reader is still sending it."""
    file = disk.create("f", 100)
    file.write(0, [b"kept"])
    view = file.view(0, 4)

    disk.remove("f")
    file.close()
    del file
    gc.collect()

    assert bytes(view) == b"kept"


def test_files_that_nobody_holds_are_closed(disk: PosixDisk):
    """Without being asked."""
    disk.create("f", 100)
    before = open_descriptors()

    for _ in range(50):
        disk.open("f").view(0, 10)

    assert open_descriptors() == before


def test_erased_bytes_are_zeros_and_the_size_stays(disk: PosixDisk, monkeypatch: pytest.MonkeyPatch):
    """With holes and, where there are none, without."""
    for fallocate in (posix_disk._fallocate, None):
        monkeypatch.setattr(posix_disk, "_fallocate", fallocate)
        file = disk.create("f", 20_000)
        file.write(0, [b"x" * 20_000])

        file.erase(5_001, 19_999)
        file.erase(7, 7)

        assert file.read(0, 20_000) == b"x" * 5_001 + bytes(14_998) + b"x"
        assert disk.find_size("f") == 20_000


@pytest.mark.parametrize("is_cut", [True, False])
def test_a_log_file_has_its_space(disk: PosixDisk, tmp_path: Path, *, is_cut: bool):
    """After a recovery that cut it, and where it is a sparse one, as Java makes them: a full disk stops no write."""
    size = 1 << 20
    file = disk.create("log/" + "0" * 20, size, reserve=is_cut)
    file.write(0, [b"x" * 5_000])
    files = LogFiles.load(disk, "log", size)

    if is_cut:
        files.truncate(4_000)
    else:
        files.reserve(5_000)

    assert file.read(0, 5_000) == b"x" * 4_000 + (bytes(1_000) if is_cut else b"x" * 1_000)
    assert (tmp_path / "store" / file.path).stat().st_blocks * 512 >= size


def test_a_log_file_is_cut_on_a_full_disk_all_the_same(disk: PosixDisk, monkeypatch: pytest.MonkeyPatch):
    """Recovery must not fail for want of space that may be there when it is needed."""

    def fail(*_arguments: int) -> None:
        raise OSError(28, "No space left on device")

    file = disk.create("log/" + "0" * 20, 10_000)
    file.write(0, [b"x" * 10_000])
    monkeypatch.setattr(os, "posix_fallocate", fail)

    LogFiles.load(disk, "log", 10_000).truncate(4_000)

    assert file.read(0, 10_000) == b"x" * 4_000 + bytes(6_000)


def test_replacing_is_all_or_nothing(disk: PosixDisk, monkeypatch: pytest.MonkeyPatch):
    """A failure on the way leaves the old content."""
    disk.replace("config/topics.json", b"old")

    def fail(_fd: int) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        with pytest.raises(DiskFailed, match="Input/output error"):
            disk.replace("config/topics.json", b"new")

    assert disk.read_file("config/topics.json") == b"old"
    disk.replace("config/topics.json", b"newer")
    assert disk.read_file("config/topics.json") == b"newer"


def test_folders_are_listed_with_a_slash(disk: PosixDisk):
    """Sorted; what is not there is empty."""
    disk.create("b", 1)
    disk.create("a/c", 1)

    assert disk.list("") == ["a/", "b"]
    assert disk.list("b") == []
    assert disk.list("nowhere") == []


def test_removing_takes_files_and_folders_and_does_not_mind_if_they_are_gone(disk: PosixDisk):
    """Whatever is in them."""
    disk.create("a/b/c", 1)
    disk.create("f", 1)

    for path in ("a", "f", "a", "f"):
        disk.remove(path)

    assert disk.list("") == []
    assert disk.find_size("f") is None
    assert disk.read_file("f") is None


def test_files_can_be_renamed(disk: PosixDisk):
    """Over an existing one."""
    disk.replace("a", b"1")
    disk.replace("b", b"2")

    disk.rename("a", "b")

    assert (disk.list(""), disk.read_file("b")) == (["b"], b"1")
    assert disk.modified_ms("b") > 0


def test_failures_name_the_file(disk: PosixDisk):
    """And are of one kind, whatever the system said."""
    with pytest.raises(DiskFailed, match="nowhere"):
        disk.open("nowhere")
    file = disk.create("short", 10)
    os.truncate(str(disk).removeprefix("<PosixDisk ").removesuffix(">") + "/short", 5)
    with pytest.raises(DiskFailed, match="short ends at 5"):
        file.read(0, 10)


def test_a_reserve_that_fails_leaves_no_file(disk: PosixDisk, monkeypatch: pytest.MonkeyPatch):
    """A log file of the wrong size would stop the next start."""

    def fail(*_arguments: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", fail)

    with pytest.raises(DiskFull, match=r"no space for commitlog/0, which takes 100 bytes: .*No space left"):
        disk.create("commitlog/0", 100, reserve=True)

    assert disk.list("commitlog") == []


def test_a_reserve_that_fails_for_another_reason_is_no_want_of_room(disk: PosixDisk, monkeypatch: pytest.MonkeyPatch):
    """Trying again would help nobody."""

    def fail(*_arguments: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "posix_fallocate", fail)

    with pytest.raises(DiskFailed, match="Input/output error") as caught:
        disk.create("commitlog/0", 100, reserve=True)

    assert not isinstance(caught.value, DiskFull)
    assert disk.list("commitlog") == []


def test_a_write_without_space_may_be_made_again_but_no_sync(disk: PosixDisk, monkeypatch: pytest.MonkeyPatch):
    """After a sync that failed it is unknown which pages the kernel has dropped."""
    file = disk.create("index", 100)
    disk.replace("config/a.json", b"old")

    def fail(*_arguments: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "pwritev", fail)
        patched.setattr(os, "fsync", fail)
        patched.setattr(os, "fdatasync", fail)
        with pytest.raises(DiskFull, match=r"No space left on device \(index\)"):
            file.write(0, [b"entry"])
        with pytest.raises(DiskFull, match="No space left"):
            disk.replace("config/a.json", b"new")
        with pytest.raises(DiskFailed, match="sync failed") as caught:
            file.sync()

    assert not isinstance(caught.value, DiskFull)
    assert disk.list("config") == ["a.json"], "half a draft would take space"
    assert disk.read_file("config/a.json") == b"old"


def test_space_is_used_and_total(disk: PosixDisk):
    """Of the file system below."""
    used, total = disk.space()

    assert 0 < used < total


def test_a_second_process_is_kept_out(disk: PosixDisk, tmp_path: Path):
    """It is told who is in its way, and what to do; afterwards it gets in."""
    script = (
        "import sys; from holdfast.runtime.posix_disk import PosixDisk; from holdfast.model.errors import StoreError\n"
        "try: PosixDisk(sys.argv[1]).lock()\n"
        "except StoreError as error: print(error)\n"
        "else: print('free')"
    )

    def ask() -> str:
        command = [sys.executable, "-c", script, str(tmp_path / "store")]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    disk.lock()
    assert "in use by another broker" in ask()
    disk.unlock()
    assert disk.read_file("lock") == b"lock"
    assert ask() == "free\n"


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path):
    """A file is in its place."""
    (tmp_path / "file").write_bytes(b"")

    with pytest.raises(DiskFailed, match="cannot create the folder"):
        PosixDisk(tmp_path / "file")


@pytest.mark.parametrize("path", ["../x", "a/../../x", ".", "a/./b"])
def test_no_path_leads_out_of_the_folder(disk: PosixDisk, path: str):
    """Whoever made it up, and whatever is to be done there."""
    for attempt in (disk.remove, disk.read_file, disk.list, lambda name: disk.create(name, 10)):
        with pytest.raises(DiskFailed, match="is outside"):
            attempt(path)


def synced_folders(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    synced: list[str] = []
    monkeypatch.setattr(posix_disk._Folders, "_sync", lambda _self, folder: synced.append(folder))
    return synced


def test_a_new_name_is_synced_with_the_first_sync_of_its_file(disk: PosixDisk, monkeypatch: pytest.MonkeyPatch):
    """By whoever has the file open then; later syncs need not."""
    synced = synced_folders(monkeypatch)
    disk.create("a/b/c", 10)

    disk.open("a/b/c").sync()
    disk.open("a/b/c").sync()

    assert synced == ["a/b", "a", ""]


def test_a_sync_does_not_mind_that_its_folder_was_removed_meanwhile(disk: PosixDisk):
    """Topics are deleted, and queues emptied, while a thread syncs their files: that must not stop the store."""
    file = disk.create("queues/t/0/00", 4096)
    file.write(0, [b"x"])
    disk.remove("queues/t")

    file.sync()

    assert disk.list("queues") == []


@pytest.mark.skipif(not posix_disk._syncfs, reason="this system has no syncfs, or one that hides failures")
def test_everything_can_be_synced_at_once(disk: PosixDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The file system of the folder, and every other one that a folder in it leads to, once each."""
    assert disk.can_sync
    synced = synced_folders(monkeypatch)
    devices: list[int] = []

    def syncfs(descriptor: int) -> int:
        devices.append(os.fstat(descriptor).st_dev)
        return 0

    monkeypatch.setattr(posix_disk, "_syncfs", syncfs)
    for number in range(5):
        disk.create(f"a/{number}/f", 10)
    (tmp_path / "store/b").symlink_to("/dev/shm")

    disk.sync()
    disk.open("a/3/f").sync()

    here, elsewhere = (tmp_path / "store").stat().st_dev, Path("/dev/shm").stat().st_dev
    assert devices == [here, elsewhere]
    assert synced == []


@pytest.mark.skipif(not posix_disk._syncfs, reason="this system has no syncfs, or one that hides failures")
def test_a_name_that_comes_while_everything_is_synced_is_not_forgotten(
    disk: PosixDisk, monkeypatch: pytest.MonkeyPatch
):
    """That sync may have been too early for it."""
    synced = synced_folders(monkeypatch)
    disk.create("a/f", 10)

    def syncfs(descriptor: int) -> int:
        disk.create("b/f", 10)
        return 0

    monkeypatch.setattr(posix_disk, "_syncfs", syncfs)
    disk.sync()
    disk.open("a/f").sync()
    disk.open("b/f").sync()

    assert synced == ["b", ""]


@pytest.mark.skipif(not posix_disk._syncfs, reason="this system has no syncfs, or one that hides failures")
def test_a_failing_sync_of_everything_is_told(disk: PosixDisk, monkeypatch: pytest.MonkeyPatch):
    """After it nothing is known to be on disk."""
    disk.sync()
    monkeypatch.setattr(posix_disk, "_syncfs", lambda _descriptor: -1)

    with pytest.raises(DiskFailed, match="store"):
        disk.sync()


@pytest.mark.parametrize(
    ("release", "tells"),
    [
        ("5.8.0-generic", True),
        ("6.1", True),
        ("5.7.19", False),
        ("4.18.0-553.el8", False),
        ("10.0", True),
        ("x", False),
    ],
)
def test_old_kernels_do_not_tell_of_failed_syncs(release: str, *, tells: bool):
    """Then files are synced one by one."""
    assert posix_disk._reports_sync_errors(release) is tells


def test_a_private_file_is_for_its_owner_only(disk: PosixDisk, tmp_path: Path):
    """Also where an earlier draft was left for all to read."""
    (tmp_path / "store/config").mkdir()
    draft = tmp_path / "store/config/secrets.json.tmp"
    draft.write_bytes(b"left by a crash")
    draft.chmod(0o666)

    disk.replace("config/secrets.json", b"1", is_private=True)
    disk.replace("config/open.json", b"1")

    assert (tmp_path / "store/config/secrets.json").stat().st_mode & 0o777 == 0o600
    assert (disk.is_private("config/secrets.json"), disk.is_private("config/open.json")) == (True, False)
    assert disk.read_file("config/secrets.json") == b"1"


@pytest.mark.parametrize(("mode", "is_private"), [(0o600, True), (0o400, True), (0o640, False), (0o602, False)])
def test_any_permission_of_others_is_noticed(disk: PosixDisk, tmp_path: Path, mode: int, *, is_private: bool):
    """Of the group, too."""
    disk.replace("secrets.json", b"1", is_private=True)
    (tmp_path / "store/secrets.json").chmod(mode)

    assert disk.is_private("secrets.json") is is_private
