"""A component that declares a kept file needs nothing else: the broker saves, retries, reports and restores it."""

from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.broker.flow.component import SAVE_TIMER
from holdfast.broker.tables.config_file import config_file
from holdfast.broker.tables.kept_files import KeptFiles
from holdfast.machine.component import Component
from holdfast.machine.effects import Log, SetTimer, WriteFile
from holdfast.machine.kept_file import KeptFile
from holdfast.machine.turn import Turn
from holdfast.model.errors import DiskFailed, DiskFull
from holdfast.sim.world.disk import SimDisk

INTERVAL_MS = 5_000
PATH = "config/counts.json"


class Counts(msgspec.Struct, frozen=True):
    """The content of the file."""

    count: int = 0


class Counter(Component):
    """All that a component does to keep a value."""

    def __init__(self, disk: SimDisk, turn: Turn, name: str = "counts.json", *, saves_at_once: bool = False) -> None:
        self._file = config_file(turn, disk, name, Counts, lambda: Counts(self.count), saves_at_once=saves_at_once)
        self.count = (self._file.load() or Counts()).count

    def files(self) -> Sequence[KeptFile[Any]]:
        """Return the files of this component."""
        return (self._file,)

    def add(self) -> None:
        """Change the value."""
        self.count += 1
        self._file.mark_changed()


class Role:
    """The part of a broker that keeps files, and a shell with a disk that may be full."""

    def __init__(self, disk: SimDisk, *names: str, saves_at_once: bool = False) -> None:
        self.disk = disk
        self.turn = Turn()
        self.counters = [
            Counter(disk, self.turn, name, saves_at_once=saves_at_once) for name in names or ("counts.json",)
        ]
        self.files = KeptFiles(self.counters, INTERVAL_MS, self.turn)
        self.is_full = False
        disk.before = self._check

    def _check(self, call: str, _path: str) -> None:
        if self.is_full and call == "replace":
            raise DiskFull("no space left")

    def perform(self) -> list[str]:
        """Perform the effects until there are none; return the events that were logged."""
        logged: list[str] = []
        while effects := self.turn.drain_effects():
            for effect in effects:
                if isinstance(effect, Log):
                    logged.append(effect.event)
                elif isinstance(effect, WriteFile):
                    self._write(effect)
        return logged

    def _write(self, write: WriteFile) -> None:
        try:
            self.disk.replace(write.path, write.data)
        except DiskFailed as error:
            self.files.failed(write.path, str(error), is_full=isinstance(error, DiskFull))
        else:
            self.files.written(write.path)


def test_a_changed_value_is_saved_periodically_and_at_the_stop() -> None:
    """Without a line of code outside its component; and not again if it did not change."""
    disk = SimDisk()
    role = Role(disk)
    role.files.start()
    assert role.turn.drain_effects() == [SetTimer(SAVE_TIMER, INTERVAL_MS)]

    role.counters[0].add()
    role.files.on_timer()
    assert [effect.path for effect in role.turn.effects if isinstance(effect, WriteFile)] == [PATH]
    role.perform()
    assert Role(disk).counters[0].count == 1
    role.files.on_timer()
    assert role.turn.drain_effects() == [SetTimer(SAVE_TIMER, INTERVAL_MS)]

    role.counters[0].add()
    role.files.stop()
    role.perform()
    assert Role(disk).counters[0].count == 2


def test_a_damaged_file_is_replaced_by_its_backup_and_reported() -> None:
    """The operator learns that the last change is lost."""
    disk = SimDisk()
    role = Role(disk)
    for _ in range(2):
        role.counters[0].add()
        role.files.stop()
        role.perform()
    disk.replace(PATH, b'{"count":')

    again = Role(disk)

    assert again.counters[0].count == 1
    assert again.perform() == ["configuration missing or damaged, the version before it is used"]


def test_a_full_disk_is_logged_when_it_begins_and_when_the_last_file_is_written() -> None:
    """Not with every retry, and not with every file; nothing is lost, also if the value does not change again."""
    begun, over = ["no space for configuration files"], ["configuration files are written again"]
    for saves_at_once in (False, True):
        disk = SimDisk()
        role = Role(disk, "a.json", "b.json", saves_at_once=saves_at_once)
        for counter in role.counters:
            counter.add()

        role.is_full = True
        role.files.on_timer()
        assert role.perform() == begun
        assert role.files.unwritten == 2
        role.files.on_timer()
        assert role.perform() == []

        role.is_full = False
        role.files.on_timer()
        assert role.perform() == over
        assert role.files.unwritten == 0
        assert [counter.count for counter in Role(disk, "a.json", "b.json").counters] == [1, 1]


def test_a_disk_that_is_broken_is_not_reported_as_full() -> None:
    """The role reports it in its own way. The value counts as changed, so that a later save repeats the write."""
    role = Role(SimDisk())
    role.counters[0].add()
    role.files.on_timer()
    role.turn.drain_effects()

    role.files.failed(PATH, "broken", is_full=False)

    assert role.perform() == []
    assert role.files.unwritten == 1
    role.files.on_timer()
    assert [effect.path for effect in role.turn.drain_effects() if isinstance(effect, WriteFile)] == [PATH]


def test_one_file_that_cannot_be_saved_does_not_keep_others_from_it() -> None:
    """A broken disk is reported for the file that is saved at once, and the next one is tried."""
    disk = SimDisk()
    role = Role(disk, "a.json", "b.json", saves_at_once=True)

    def refuse(call: str, path: str) -> None:
        if call == "replace" and "a.json" in path:
            raise DiskFailed("broken")

    for counter in role.counters:
        counter.add()
    disk.before = refuse
    role.files.stop()

    assert role.perform() == ["disk failed"]
    assert disk.read_file("config/b.json") == b'{"count":1}'


def test_results_of_unknown_files_are_ignored() -> None:
    role = Role(SimDisk())

    role.files.written("other")
    role.files.failed("other", "broken", is_full=False)

    assert (role.perform(), role.files.unwritten) == ([], 0)
