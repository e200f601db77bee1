"""One process at a time on a folder."""

import os
from pathlib import Path

import pytest

from holdfast.model.errors import ConfigError, StoreError
from holdfast.runtime.folder_lock import lock_folder, lock_store


def test_a_folder_is_made_and_held(tmp_path: Path):
    """The second one is refused with the folder's name; afterwards it is free again."""
    folder = tmp_path / "new" / "data"

    with lock_folder(folder), pytest.raises(ConfigError, match="in use by another"), lock_folder(folder):
        pytest.fail("two held one folder")

    with lock_folder(folder):
        assert folder.is_dir()


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path):
    """A file in the way is named."""
    (tmp_path / "data").write_text("a file", encoding="utf-8")

    with pytest.raises(ConfigError, match="cannot use"), lock_folder(tmp_path / "data"):
        pytest.fail("a file was held as a folder")


def test_a_store_is_held_against_other_processes(tmp_path: Path):
    """The second one is told what to do; afterwards it is free again."""
    (tmp_path / "commitlog").mkdir()
    ours, theirs = os.pipe(), os.pipe()
    if os.fork() == 0:
        with lock_store(tmp_path):
            os.write(ours[1], b"held")
            os.read(theirs[0], 1)
        os._exit(0)
    assert os.read(ours[0], 4) == b"held"

    with pytest.raises(StoreError, match="is in use: stop its broker first"), lock_store(tmp_path):
        pytest.fail("two held one folder")

    os.write(theirs[1], b"!")
    os.wait()
    with lock_store(tmp_path) as disk:
        assert disk.list("commitlog") == []
    for end in (*ours, *theirs):
        os.close(end)


def test_a_folder_without_a_log_is_no_store(tmp_path: Path):
    """And nothing is made there."""
    with pytest.raises(ConfigError, match="is not a store folder of a broker"), lock_store(tmp_path / "new"):
        pytest.fail("nothing was held")

    assert not (tmp_path / "new").exists()
