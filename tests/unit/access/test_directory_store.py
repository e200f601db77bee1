"""The users and rules of a role: in effect at once, answered when saved, never read from a file that is not right."""

import re
from pathlib import Path

import pytest

from holdfast.access.directory_store import ACCESS_TIMER, PATH, AccessStore, add_first_user
from holdfast.machine.effects import Log, SendBytes, WriteFile
from holdfast.machine.events import ChannelId
from holdfast.machine.kept_file import ExposedFile, UnreadableFile
from holdfast.machine.request import Request
from holdfast.machine.turn import Turn
from holdfast.model.access.directory import Directory, Record
from holdfast.model.access.refusal import DirectoryRefused
from holdfast.model.access.user import User, UserKind
from holdfast.runtime.posix_disk import PosixDisk
from holdfast.sim.world.disk import SimDisk
from holdfast.wire.frames.command import Command, decode_command
from holdfast.wire.frames.frame import split_frames

ALICE = User("alice", ("secret-of-alice",))
BOB = User("bob", ("secret-of-bob",))
ADMIN = User("admin", ("secret-of-admin",), UserKind.SUPER)
REQUEST = Request(command=Command(code=3001, opaque=5), channel=ChannelId(3), peer="192.0.2.1:4711")


def records_of(*users: User, now_ms: int = 1_000) -> list[Record]:
    directory = Directory()
    return [record for user in users for record in directory.create_user(user, now_ms)]


class Role:
    """A store, and the shell that performs its writes."""

    def __init__(self, disk: SimDisk | None) -> None:
        self.disk = disk
        self.turn = Turn(1_000)
        self.store = AccessStore(self.turn, disk)

    def write(self, *, failure: str | None = None) -> None:
        """Perform the writes that are due."""
        (file,) = self.store.files()
        for effect in self.turn.drain_effects():
            if isinstance(effect, WriteFile) and failure is None:
                assert self.disk is not None
                self.disk.replace(effect.path, effect.data, is_private=effect.is_private)
                file.on_written(effect.path)
            elif isinstance(effect, WriteFile):
                file.on_failed(effect.path, failure or "")

    def answers(self) -> list[Command]:
        data = b"".join(
            bytes(piece) for effect in self.turn.effects if isinstance(effect, SendBytes) for piece in effect.pieces
        )
        return [decode_command(frame) for frame in split_frames(memoryview(data))[0]]


@pytest.fixture
def role() -> Role:
    return Role(SimDisk())


def test_a_change_is_in_effect_at_once_and_answered_when_it_is_saved(role: Role) -> None:
    changed = role.store.directory.create_user(ALICE, 1_000)

    assert role.store.apply(REQUEST, changed) is None
    assert role.store.directory.find_user("alice") == ALICE
    assert role.answers() == []

    role.write()
    assert [answer.code for answer in role.answers()] == [0]
    assert Role(role.disk).store.directory.find_user("alice") == ALICE


def test_a_change_that_cannot_be_saved_is_answered_with_the_reason(role: Role) -> None:
    role.store.apply(REQUEST, role.store.directory.create_user(ALICE, 1_000))

    role.write(failure="no space left")

    (answer,) = role.answers()
    assert answer.code == 1
    assert "no space left" in (answer.remark or "")


def test_every_change_raises_the_version_and_is_announced(role: Role) -> None:
    before = role.store.version

    assert role.store.merge(records_of(ALICE)) != []
    assert role.store.version > before
    assert ACCESS_TIMER in role.turn.fired

    role.turn.drain_fired()
    unchanged = role.store.version
    assert role.store.merge(records_of(ALICE)) == []
    assert role.store.version == unchanged
    assert not role.turn.fired


def test_the_changes_since_a_version_are_known(role: Role) -> None:
    role.store.merge(records_of(ALICE))
    version = role.store.version
    role.store.merge(records_of(BOB))

    assert [record.key for record in role.store.changed_since(version)] == ["user/bob"]
    assert [record.key for record in role.store.changed_since(0)] == ["user/alice", "user/bob"]
    assert role.store.changed_since(role.store.version) == []


def test_without_a_disk_changes_are_answered_at_once_with_one_warning() -> None:
    role = Role(None)

    first = role.store.apply(REQUEST, role.store.directory.create_user(ALICE, 1_000))
    role.store.merge(records_of(BOB))

    assert isinstance(first, Command)
    assert [effect.level for effect in role.turn.effects if isinstance(effect, Log)] == ["warning"]


def test_only_the_owner_may_read_the_files(tmp_path: Path) -> None:
    """Of the backup and of the draft, too."""
    disk = PosixDisk(tmp_path)
    add_first_user(disk, ADMIN, 1_000)
    directory = AccessStore(Turn(), disk).directory
    directory.create_user(ALICE, 2_000)
    store = AccessStore(Turn(), disk)
    store.merge(directory.records)
    store.files()[0].save_now()

    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "config").iterdir()}
    assert modes == {"holdfastAccess.json": 0o600, "holdfastAccess.json.bak": 0o600}


@pytest.mark.parametrize("path", [PATH, PATH + ".bak"])
def test_a_file_that_others_may_read_is_refused(tmp_path: Path, path: str) -> None:
    """The backup has secrets, too: a copy of the folder may have made both readable."""
    add_first_user(PosixDisk(tmp_path), ADMIN, 1_000)
    PosixDisk(tmp_path).replace(PATH + ".bak", (tmp_path / PATH).read_bytes(), is_private=True)
    (tmp_path / path).chmod(0o640)

    with pytest.raises(ExposedFile, match=f"^{re.escape(path)} contains secrets.*chmod 600") as refused:
        AccessStore(Turn(), PosixDisk(tmp_path))

    assert "secret-of" not in str(refused.value)


@pytest.mark.parametrize("content", [b"", b"{", b'{"records": [{"key": "user/x"}]}', b'{"records": 7}', b"\xff\x00"])
def test_a_damaged_file_stops_the_start(content: bytes) -> None:
    """Whatever its backup contains: it may be from before a user's rights were revoked."""
    disk = SimDisk()
    add_first_user(disk, ADMIN, 1_000)
    good = disk.read_file(PATH)
    assert good is not None
    disk.replace(PATH + ".bak", good, is_private=True)
    disk.replace(PATH, content, is_private=True)

    with pytest.raises(UnreadableFile, match=r"\.bak"):
        AccessStore(Turn(), disk)


def test_a_missing_file_with_a_backup_stops_the_start() -> None:
    disk = SimDisk()
    disk.replace(PATH + ".bak", b'{"records": []}', is_private=True)

    with pytest.raises(UnreadableFile, match=r"\.bak exists"):
        AccessStore(Turn(), disk)


def test_the_first_administrator_is_written_once() -> None:
    disk = SimDisk()

    add_first_user(disk, ADMIN, 1_000)
    add_first_user(disk, ADMIN, 2_000)

    assert AccessStore(Turn(), disk).directory.users == [ADMIN]
    with pytest.raises(DirectoryRefused, match="administrator already: admin"):
        add_first_user(disk, User("mallory", ("secret-of-mallory",), UserKind.SUPER), 3_000)
