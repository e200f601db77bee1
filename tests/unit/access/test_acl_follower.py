"""ACL 1.0 files are followed while a role runs: all of them or none, and never written or sent."""

import pytest

from holdfast.access.acl_follower import LOOK_MS, TIMER, AclFollower
from holdfast.access.directory_store import AccessStore
from holdfast.machine.effects import Log, SetTimer
from holdfast.machine.turn import Turn
from holdfast.model.errors import ConfigError
from holdfast.sim.world.disk import SimDisk

NAME = "plain_acl.yml"
FIRST = b"accounts:\n- {accessKey: first-user, secretKey: 12345678, defaultTopicPerm: PUB}\n"
SECOND = b"accounts:\n- {accessKey: second-user, secretKey: 12345678}\n"
CUT = b"accounts:\n- {accessKey: first-us"


class Follower:
    """A follower, and the clock and folder that it looks at."""

    def __init__(self, files: dict[str, bytes], name: str = NAME) -> None:
        self.turn = Turn(1_000)
        self.disk = SimDisk()
        for path, content in files.items():
            self.write(path, content)
        self.store = AccessStore(self.turn, None)
        self.follower = AclFollower(self.store, self.disk, name, self.turn)

    def write(self, path: str, content: bytes) -> None:
        self.disk.now_ms = self.turn.now_ms
        self.disk.replace(path, content)

    def look(self, times: int = 1) -> list[str]:
        """Let time pass; return the levels of the log lines."""
        self.turn.drain_effects()
        for _ in range(times):
            self.turn.now_ms += LOOK_MS
            self.follower.timers()[TIMER]()
        return [effect.level for effect in self.turn.effects if isinstance(effect, Log)]

    def users(self) -> list[str]:
        assert self.store.acl is not None
        return list(self.store.acl.accounts)


def test_the_file_and_the_folder_beside_it_are_used() -> None:
    """Of two definitions of an account that in the named file counts. The credentials of tools are no ACL."""
    files = {
        NAME: FIRST,
        "acl/b/more.yaml": SECOND,
        "acl/a.yml": FIRST.replace(b"PUB", b"SUB"),
        "acl/notes.txt": b"{",
        "other.yml": b"{",
    }
    follower = Follower(files)

    assert follower.users() == ["first-user", "second-user"]
    assert follower.store.acl is not None
    assert follower.store.acl.accounts["first-user"].default_topic.pub


def test_all_files_of_a_named_folder_are_used() -> None:
    follower = Follower({"a.yml": FIRST, "deep/b.yml": SECOND, "tools.yml": b"accessKey: x"}, name="")

    assert sorted(follower.users()) == ["first-user", "second-user"]


def test_a_change_is_used_once_the_file_has_been_the_same_for_a_second() -> None:
    follower = Follower({NAME: FIRST})
    version = follower.store.version

    follower.turn.now_ms += 1
    follower.write(NAME, SECOND)
    follower.look()
    assert follower.users() == ["first-user"]

    assert follower.look() == ["info"]
    assert follower.users() == ["second-user"]
    assert follower.store.version > version
    assert follower.look(3) == []


def test_a_file_that_cannot_be_used_changes_nothing() -> None:
    """It is reported once, without a secret, and the next right one is used."""
    follower = Follower({NAME: FIRST, "acl/more.yml": SECOND})
    follower.turn.now_ms += 1
    follower.write(NAME, SECOND)
    follower.write("acl/more.yml", CUT)

    assert follower.look(5) == ["error"]
    assert follower.users() == ["first-user", "second-user"]
    assert next(iter(follower.follower.metrics())).value == 1

    follower.turn.now_ms += 1
    follower.write("acl/more.yml", FIRST)
    assert follower.look(2) == ["info"]
    assert sorted(follower.users()) == ["first-user", "second-user"]
    assert next(iter(follower.follower.metrics())).value == 0


def test_while_the_named_file_is_missing_the_rules_from_before_stay_in_force() -> None:
    follower = Follower({NAME: FIRST})

    follower.disk.remove(NAME)
    assert follower.look(3) == ["error"]
    assert follower.users() == ["first-user"]

    follower.write(NAME, SECOND)
    follower.look(2)
    assert follower.users() == ["second-user"]


def test_rules_of_a_removed_file_end() -> None:
    follower = Follower({NAME: FIRST, "acl/more.yml": SECOND})

    follower.disk.remove("acl/more.yml")
    follower.look(2)

    assert follower.users() == ["first-user"]


@pytest.mark.parametrize("files", [{}, {NAME: CUT}, {NAME: b""}, {NAME: FIRST, "acl/x.yml": CUT}])
def test_a_role_does_not_start_without_files_that_can_be_used(files: dict[str, bytes]) -> None:
    with pytest.raises(ConfigError, match="ACL file"):
        Follower(files)


def test_nothing_of_the_files_is_saved_or_sent() -> None:
    follower = Follower({NAME: FIRST})

    assert follower.store.directory.records == []
    assert follower.store.changed_since(0) == []


def test_it_looks_every_second() -> None:
    follower = Follower({NAME: FIRST})

    follower.follower.start()
    assert SetTimer(TIMER, 1_000 + LOOK_MS) in follower.turn.effects

    follower.look()
    assert SetTimer(TIMER, 1_000 + 2 * LOOK_MS) in follower.turn.effects
