"""A value in one small file: saved off the loop or at once, loaded again, and what happens when the disk fails."""

from pathlib import Path

import msgspec
import pytest

from holdfast.machine.effects import Effect, Log, SetTimer, WriteFile
from holdfast.machine.kept_file import RETRY_MS, UNREADABLE, KeptFile, UnreadableFile
from holdfast.machine.turn import Turn
from holdfast.model.errors import DiskFailed, DiskFull
from holdfast.runtime.posix_disk import PosixDisk
from holdfast.sim.world.disk import SimDisk
from holdfast.store.base.disk import Disk

PATH = "config/thing.json"
BACKUP = "config/thing.json.bak"


class Thing(msgspec.Struct, frozen=True):
    """What is in the file."""

    count: int


class Owner:
    """A component with one kept file, and the shell that performs its writes."""

    def __init__(
        self,
        disk: Disk | None,
        *,
        retry_timer: str | None = None,
        bytes_per_ms: int | None = None,
        has_backup: bool = True,
        log_end: int | None = None,
        saves_at_once: bool = False,
    ) -> None:
        self.disk = disk
        self.log_end = log_end
        self.turn = Turn(1_000)
        self.count = 0
        self.file = KeptFile(
            self.turn,
            disk,
            PATH,
            lambda: Thing(self.count),
            encode=msgspec.json.encode,
            decode=lambda content: msgspec.json.decode(content, type=Thing),
            retry_timer=retry_timer,
            bytes_per_ms=bytes_per_ms,
            has_backup=has_backup,
            log_end=None if log_end is None else lambda: self.log_end or 0,
            saves_at_once=saves_at_once,
        )
        self.ended: list[tuple[int, str | None]] = []
        self.kept: list[Effect] = []

    def change(self, count: int) -> None:
        self.count = count
        self.file.mark_changed()

    def save_soon(self, count: int) -> None:
        """Change the value and save it; note when that has ended."""
        self.change(count)
        self.file.save_soon(lambda failure: self.ended.append((count, failure)))

    def pop_writes(self) -> list[WriteFile]:
        """Take the writes that were caused; keep the other effects."""
        effects = self.turn.drain_effects()
        self.kept += [effect for effect in effects if not isinstance(effect, WriteFile)]
        return [effect for effect in effects if isinstance(effect, WriteFile)]

    def perform(self) -> int:
        """Perform the writes, as a shell does; return how many there were."""
        assert self.disk is not None
        writes = self.pop_writes()
        for write in writes:
            try:
                self.disk.replace(write.path, write.data)
            except DiskFailed as error:
                self.file.on_failed(write.path, str(error))
            else:
                self.file.on_written(write.path)
        return len(writes)


class Full:
    """A disk that has no space while `is_full`."""

    def __init__(self) -> None:
        self.is_full = True
        self.disk = SimDisk(before=self._check)

    def _check(self, call: str, _path: str) -> None:
        if self.is_full and call == "replace":
            raise DiskFull("no space left")


@pytest.fixture(params=["simulated", "real"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Disk:
    return SimDisk() if request.param == "simulated" else PosixDisk(str(tmp_path))


# Saving off the loop.


def test_a_value_is_saved_off_the_loop_and_loaded_again(disk: Disk) -> None:
    """And the version before it is the backup."""
    owner = Owner(disk)
    assert owner.file.load() is None

    owner.save_soon(1)
    assert owner.ended == []
    assert owner.file.is_being_written
    owner.perform()
    owner.save_soon(2)
    owner.perform()

    assert owner.ended == [(1, None), (2, None)]
    assert not owner.file.is_changed
    assert not owner.file.is_being_written
    again = Owner(disk)
    assert again.file.load() == Thing(2)
    assert again.turn.drain_effects() == []
    assert disk.read_file(BACKUP) == b'{"count":1}'


def test_changes_during_a_save_share_the_next_one() -> None:
    """One save at a time: the file never gets older, whatever the order in which the disk is done."""
    owner = Owner(SimDisk(), has_backup=False)
    for count in (1, 2, 3):
        owner.save_soon(count)
    assert [write.data for write in owner.pop_writes()] == [b'{"count":1}']

    owner.file.on_written(PATH)

    assert owner.ended == [(1, None)]
    assert owner.pop_writes() == [WriteFile(PATH, b'{"count":3}')]
    owner.file.on_written(PATH)
    assert owner.ended == [(1, None), (2, None), (3, None)]
    assert owner.pop_writes() == []


def test_a_change_during_a_save_that_nobody_saves_stays_a_change() -> None:
    """An owner that saves now and then sees that it has to."""
    owner = Owner(SimDisk())
    owner.save_soon(1)
    owner.change(2)
    owner.perform()

    assert owner.file.is_changed
    assert owner.pop_writes() == []
    owner.file.save_if_changed()
    assert owner.perform() == 2
    owner.file.save_if_changed()
    assert owner.perform() == 0


def test_an_equal_version_is_not_written_again() -> None:
    """The backup stays the version before it."""
    owner = Owner(SimDisk())
    for count in (1, 2):
        owner.save_soon(count)
        owner.perform()

    owner.save_soon(2)

    assert owner.perform() == 0
    assert owner.ended[-1] == (2, None)
    assert owner.disk is not None
    assert owner.disk.read_file(BACKUP) == b'{"count":1}'


def test_without_a_disk_every_save_succeeds_at_once() -> None:
    """The value is only in memory."""
    owner = Owner(None)

    owner.save_soon(1)
    owner.file.save_now()

    assert owner.ended == [(1, None)]
    assert not owner.file.is_durable
    assert owner.file.load() is None
    assert owner.turn.drain_effects() == []


# Saving at once.


def test_a_value_is_saved_before_the_next_line(disk: Disk) -> None:
    """The two ways write the same files."""
    owner = Owner(disk)
    for count in (1, 2):
        owner.change(count)
        owner.file.save_now()

    assert not owner.file.is_changed
    assert Owner(disk).file.load() == Thing(2)
    assert disk.read_file(BACKUP) == b'{"count":1}'
    assert owner.pop_writes() == []


def test_a_save_in_progress_does_not_undo_one_at_once() -> None:
    """Its older value may reach the disk later; then the newer one is written again."""
    owner = Owner(SimDisk(), has_backup=False)
    owner.save_soon(1)
    owner.change(2)
    owner.file.save_now()

    owner.perform()
    owner.perform()

    assert Owner(owner.disk).file.load() == Thing(2)


def test_a_save_at_once_that_fails_is_an_error_and_the_value_stays_changed() -> None:
    """The caller decides; the next save tries again."""
    full = Full()
    owner = Owner(full.disk)
    owner.change(1)

    with pytest.raises(DiskFull):
        owner.file.save_now()

    assert (owner.file.is_changed, owner.file.fault) == (True, "no space left")
    full.is_full = False
    owner.file.save_now()
    assert (owner.file.is_changed, owner.file.fault) == (False, None)


# Values that depend on the log.


def test_a_snapshot_is_written_when_the_log_is_on_disk() -> None:
    """It has the value of that moment; what changes meanwhile is for the next snapshot."""
    owner = Owner(SimDisk(), has_backup=False, log_end=400)
    owner.log_end = 500
    owner.change(1)
    owner.file.save_if_changed()
    owner.change(2)
    owner.log_end = 600
    owner.file.save_if_changed()
    owner.file.on_synced(499)
    assert owner.pop_writes() == []

    owner.file.on_synced(500)

    assert owner.pop_writes() == [WriteFile(PATH, b'{"count":1}')]
    owner.file.on_written(PATH)
    assert owner.file.is_changed
    owner.log_end = 500
    owner.file.save_if_changed()
    assert owner.pop_writes() == [WriteFile(PATH, b'{"count":2}')], "the log is there already"


def test_the_log_that_a_role_starts_with_is_on_disk() -> None:
    """Otherwise the first change after a start would wait for a sync that may not come before the next send."""
    owner = Owner(SimDisk(), has_backup=False, log_end=500)

    owner.file.mark_changed()
    owner.file.save_if_changed()

    assert owner.pop_writes() == [WriteFile(PATH, b'{"count":0}')]


def test_a_change_is_saved_in_one_step() -> None:
    """In the way of the file: at once here."""
    disk = SimDisk()
    owner = Owner(disk, saves_at_once=True)
    owner.count = 7

    owner.file.save_change()

    assert Owner(disk).file.load() == Thing(7)


def test_a_snapshot_waits_for_the_save_before_it() -> None:
    """Also when its position is on disk."""
    owner = Owner(SimDisk(), has_backup=False, log_end=400)
    owner.log_end = 500
    owner.save_soon(1)
    owner.change(2)
    owner.file.save_if_changed()
    owner.file.on_synced(500)
    assert [write.data for write in owner.pop_writes()] == [b'{"count":1}']

    owner.file.on_written(PATH)

    assert [write.data for write in owner.pop_writes()] == [b'{"count":2}']


def test_nothing_changed_is_no_snapshot() -> None:
    """Its position would hold up a later one."""
    owner = Owner(SimDisk(), log_end=10**9)
    owner.file.save_if_changed()
    owner.change(1)
    owner.log_end = 5
    owner.file.save_if_changed()
    owner.file.on_synced(5)

    assert owner.perform() == 1


def test_the_last_snapshot_replaces_one_that_waits() -> None:
    """The role stops, so no later save will have what changed meanwhile."""
    owner = Owner(SimDisk(), has_backup=False, log_end=400)
    owner.log_end = 500
    owner.change(1)
    owner.file.save_if_changed()
    owner.file.save_last()
    owner.file.on_synced(500)
    assert owner.perform() == 1, "nothing changed, so the snapshot that waited stays"
    owner.change(2)
    owner.log_end = 600
    owner.file.save_if_changed()
    owner.change(3)
    owner.log_end = 700

    owner.file.save_last()

    owner.file.on_synced(600)
    assert owner.pop_writes() == []
    owner.file.on_synced(700)
    assert owner.pop_writes() == [WriteFile(PATH, b'{"count":3}')]


def test_a_save_at_once_replaces_a_snapshot_that_waits() -> None:
    """The snapshot is older."""
    owner = Owner(SimDisk(), has_backup=False, log_end=400)
    owner.log_end = 500
    owner.change(1)
    owner.file.save_if_changed()
    owner.change(2)
    owner.file.save_now()

    owner.file.on_synced(500)

    assert owner.pop_writes() == []
    assert Owner(owner.disk).file.load() == Thing(2)


# Values that are large, or that the role can learn again.


def test_after_a_save_the_next_one_waits_in_proportion_to_the_size() -> None:
    """Changes meanwhile are saved together; a failed save is repeated after the usual time."""
    owner = Owner(SimDisk(), retry_timer="retry", bytes_per_ms=2, has_backup=False)
    owner.save_soon(1)
    assert [write.data for write in owner.pop_writes()] == [b'{"count":1}']

    owner.file.on_written(PATH)
    owner.save_soon(2)
    owner.save_soon(3)
    assert owner.pop_writes() == []
    assert owner.kept[-1] == SetTimer("retry", 1_000 + len(b'{"count":1}') // 2)

    owner.file.on_timer()
    assert [write.data for write in owner.pop_writes()] == [b'{"count":3}']
    owner.file.on_failed(PATH, "full")
    assert owner.pop_writes() == []
    assert owner.kept[-1] == SetTimer("retry", 1_000 + RETRY_MS)
    owner.file.on_timer()
    assert [write.data for write in owner.pop_writes()] == [b'{"count":3}']


def test_a_value_that_can_be_learned_again_is_forgotten_with_a_copy_of_its_file() -> None:
    """The next save replaces the file."""
    disk = SimDisk()
    disk.replace(PATH, b"nonsense")
    owner = Owner(disk, has_backup=False)

    assert owner.file.load_or_forget("forgotten") is None

    assert owner.pop_writes() == [WriteFile(PATH + UNREADABLE, b"nonsense")]
    assert [effect.event for effect in owner.kept if isinstance(effect, Log)] == ["forgotten"]


# Values that are always saved at once.


def test_a_value_that_is_saved_at_once_causes_no_write() -> None:
    """A write off the loop could bring back an older version after a later save."""
    full = Full()
    owner = Owner(full.disk, saves_at_once=True)
    owner.change(1)

    for save in (owner.file.save_if_changed, owner.file.save_last):
        with pytest.raises(DiskFull):
            save()
    full.is_full = False
    owner.file.save_if_changed()

    assert owner.pop_writes() == []
    assert Owner(full.disk).file.load() == Thing(1)
    assert (owner.file.is_changed, owner.file.fault) == (False, None)


# Loading.


@pytest.mark.parametrize("content", [None, b"", b'{"count":'])
def test_the_backup_is_used_for_a_file_that_is_missing_or_damaged(content: bytes | None) -> None:
    """The operator learns that the last change is lost; the damaged file never becomes the backup."""
    disk = SimDisk()
    disk.replace(BACKUP, b'{"count":1}')
    if content is not None:
        disk.replace(PATH, content)
    owner = Owner(disk)

    assert owner.file.load() == Thing(1)

    (log,) = owner.turn.drain_effects()
    assert isinstance(log, Log)
    assert (log.level, log.fields) == ("warning", {"file": PATH, "used": BACKUP})
    owner.save_soon(2)
    owner.perform()
    assert disk.read_file(BACKUP) == b'{"count":1}'
    assert disk.read_file(PATH) == b'{"count":2}'


@pytest.mark.parametrize("backup", [None, b'{"count":'])
def test_a_damaged_file_without_a_backup_is_an_error(backup: bytes | None) -> None:
    """Silence would lose what was in it."""
    disk = SimDisk()
    disk.replace(PATH, b"{")
    if backup is not None:
        disk.replace(BACKUP, backup)

    with pytest.raises(UnreadableFile, match=r"config/thing\.json cannot be read and its \.bak is missing") as caught:
        Owner(disk).file.load()

    assert caught.value.content == b"{"
    with pytest.raises(UnreadableFile, match=r"config/thing\.json cannot be read: "):
        Owner(disk, has_backup=False).file.load()


def test_a_file_that_is_whole_and_means_something_else_is_an_error() -> None:
    """An older version does not replace what another program wrote on purpose."""
    disk = SimDisk()
    disk.replace(PATH, b'{"count":"many"}')
    disk.replace(BACKUP, b'{"count":1}')

    with pytest.raises(UnreadableFile, match="unexpected content") as caught:
        Owner(disk).file.load()

    assert "Expected `int`" in caught.value.reason


# A disk that fails.


def test_a_full_disk_is_retried_until_there_is_space() -> None:
    """The fault is there as long as it lasts, and who waits learns of it once."""
    full = Full()
    owner = Owner(full.disk, retry_timer="thing", has_backup=False)
    owner.save_soon(1)

    for _ in range(2):
        assert owner.perform() == 1
        assert owner.file.fault == "no space left"
        assert owner.pop_writes() == [], "not at once"
        assert owner.kept[-1] == SetTimer("thing", 1_000 + RETRY_MS)
        owner.file.save_if_changed()  # The role calls it when the timer fires.
    full.is_full = False
    owner.perform()

    assert owner.ended == [(1, "no space left")]
    assert (owner.file.fault, owner.file.is_changed) == (None, False)
    assert Owner(full.disk).file.load() == Thing(1)


def test_after_a_failure_the_next_save_begins_at_once() -> None:
    """With the changes that came meanwhile, and those that the disk refused."""
    owner = Owner(SimDisk(), has_backup=False)
    owner.save_soon(1)
    owner.save_soon(2)
    owner.pop_writes()

    owner.file.on_failed(PATH, "broken")

    assert owner.ended == [(1, "broken")]
    assert owner.pop_writes() == [WriteFile(PATH, b'{"count":2}')]
    assert not any(isinstance(effect, SetTimer) for effect in owner.kept), "no timer was asked for"


def test_a_backup_that_cannot_be_written_is_a_failure() -> None:
    """The next save writes what is missing."""
    owner = Owner(SimDisk())
    owner.save_soon(1)
    owner.perform()
    owner.save_soon(2)
    owner.pop_writes()

    owner.file.on_failed(BACKUP, "broken")
    assert owner.ended == [(1, None)], "the other write is still in progress"
    owner.file.on_written(PATH)

    assert owner.ended[-1] == (2, "broken")
    assert owner.file.is_changed


def test_results_of_other_writes_are_ignored() -> None:
    """A role may write the path in another way, too."""
    owner = Owner(SimDisk())

    owner.file.on_written(PATH)
    owner.file.on_failed(PATH, "broken")

    assert owner.file.fault is None
    assert owner.file.paths == (PATH, BACKUP)


def test_a_crash_at_any_write_leaves_a_version_that_can_be_loaded() -> None:
    """The backup first, then the file: one of them is always whole."""
    for crash_at in range(6):
        disk = SimDisk()
        owner = Owner(disk)
        left = crash_at
        for count in (1, 2, 3):
            owner.save_soon(count)
            for write in owner.pop_writes():
                if left:
                    disk.replace(write.path, write.data)
                    left -= 1
                owner.file.on_written(write.path)
        loaded = Owner(disk).file.load()
        assert loaded == (None if crash_at == 0 else Thing((1, 1, 2, 2, 3)[crash_at - 1]))
