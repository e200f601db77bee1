"""The first administrator is written to the folder of a role that does not run."""

import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.access.directory_store import PATH, AccessStore
from holdfast.machine.turn import Turn
from holdfast.model.access.user import User, UserKind
from holdfast.model.errors import StoreError
from holdfast.runtime.access.first_administrator import create_first_administrator
from holdfast.runtime.posix_disk import PosixDisk

ADMIN = User("admin", ("secret-of-admin",), UserKind.SUPER)
HOLD = """
import sys
from holdfast.runtime.posix_disk import PosixDisk
disk = PosixDisk(sys.argv[1])
disk.lock()
print("locked", flush=True)
sys.stdin.read()
"""


def test_the_role_knows_the_administrator_when_it_starts(tmp_path: Path) -> None:
    create_first_administrator(tmp_path / "store", ADMIN, 1_000)

    assert AccessStore(Turn(), PosixDisk(tmp_path / "store")).directory.users == [ADMIN]
    assert (tmp_path / "store" / PATH).stat().st_mode & 0o777 == 0o600


def test_a_role_that_runs_is_left_alone(tmp_path: Path) -> None:
    """Its next save would undo the change."""
    PosixDisk(tmp_path)
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "locked\n"

        with pytest.raises(StoreError, match="in use"):
            create_first_administrator(tmp_path, ADMIN, 1_000)

        running.communicate("")

    assert not (tmp_path / PATH).exists()
    create_first_administrator(tmp_path, ADMIN, 1_000)
