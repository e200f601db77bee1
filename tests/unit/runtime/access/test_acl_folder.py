"""Where the ACL 1.0 files are that a role follows."""

from pathlib import Path

import pytest

from holdfast.model.errors import ConfigError
from holdfast.runtime.access.acl_folder import open_acl_folder


def test_a_file_is_named_in_its_folder(tmp_path: Path) -> None:
    file = tmp_path / "plain_acl.yml"
    file.write_text("accounts: []")

    opened = open_acl_folder(str(file))

    assert opened is not None
    disk, name = opened
    assert name == "plain_acl.yml"
    assert disk.read_file(name) == b"accounts: []"


def test_a_folder_has_no_named_file(tmp_path: Path) -> None:
    opened = open_acl_folder(str(tmp_path))

    assert opened is not None
    assert opened[1] == ""


def test_without_the_option_nothing_is_followed() -> None:
    assert open_acl_folder(None) is None


def test_what_does_not_exist_is_refused_and_not_created(tmp_path: Path) -> None:
    missing = tmp_path / "conf" / "plain_acl.yml"

    with pytest.raises(ConfigError, match="does not exist"):
        open_acl_folder(str(missing))

    assert not missing.parent.exists()
