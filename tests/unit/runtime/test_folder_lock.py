"""One process at a time on a folder."""

from pathlib import Path

import pytest

from holdfast.model.errors import ConfigError
from holdfast.runtime.folder_lock import lock_folder


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
