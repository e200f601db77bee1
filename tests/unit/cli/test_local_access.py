"""The users of `holdfast up --auth`."""

import json
import stat
from pathlib import Path

import pytest

from holdfast.cli.local_access import prepare_access, write_profile
from holdfast.cli.profiles import find_cluster, load_profiles, profiles_file
from holdfast.model.access.client_tls import ClientTls
from holdfast.model.errors import ConfigError


def secrets_of_namesrv(folder: Path) -> list[str]:
    content = json.loads((folder / "namesrv" / "config" / "holdfastAccess.json").read_text())
    return [secret for record in content["records"] for secret in record["user"]["secrets"]]


def test_the_first_start_creates_an_administrator_and_later_ones_keep_it(tmp_path: Path):
    """All secrets are in files of their owner."""
    access = prepare_access(tmp_path, 1000)

    assert access.access_key == "admin"
    assert secrets_of_namesrv(tmp_path) == [access.secret_file.read_text().strip()]
    files = (access.secret_file, access.cluster_secret)
    assert [stat.S_IMODE(file.stat().st_mode) for file in files] == [0o600, 0o600]
    before = [file.read_text() for file in files]

    assert prepare_access(tmp_path, 2000) == access
    assert [file.read_text() for file in files] == before
    assert secrets_of_namesrv(tmp_path) == [before[0].strip()]


def test_an_administrator_who_was_changed_stays(tmp_path: Path):
    """The file is no longer right, but the users are the operator's."""
    access = prepare_access(tmp_path, 1000)
    access.secret_file.write_text("another-secret\n")

    prepare_access(tmp_path, 2000)

    assert secrets_of_namesrv(tmp_path) != ["another-secret"]


def test_a_lost_secret_is_not_replaced_by_a_wrong_one(tmp_path: Path):
    """The text says how to get in again."""
    access = prepare_access(tmp_path, 1000)
    access.secret_file.unlink()

    with pytest.raises(ConfigError, match=r"admin\.secret.*is missing.*--access-key holdfast\.cluster"):
        prepare_access(tmp_path, 2000)
    assert not access.secret_file.exists()


def test_the_profile_is_the_default_unless_there_is_another(tmp_path: Path):
    """What the user wrote stays."""
    environment = {"XDG_CONFIG_HOME": str(tmp_path / "config")}
    access = prepare_access(tmp_path, 1000)
    tls = ClientTls(ca="ca.pem", verify="chain")

    assert write_profile(environment, access, "127.0.0.1:9876", tls) is True
    assert load_profiles(environment).default == "up"
    found = find_cluster({}, environment)
    assert (found.namesrv, found.tls) == (
        "127.0.0.1:9876",
        ClientTls(ca=str(Path("ca.pem").resolve()), verify="chain"),
    )

    file = profiles_file(environment)
    own = '# mine\ndefault = "prod"\n\n[profiles.prod]\nnamesrv = "h:1"\n'
    file.write_text(own)
    assert write_profile(environment, access, "127.0.0.1:1", None) is False
    assert write_profile(environment, access, "127.0.0.1:2", None) is False
    text = file.read_text()
    assert text.startswith(own)
    assert text.count("[profiles.up]") == 1
    assert load_profiles(environment).profiles["up"].namesrv == "127.0.0.1:2"
    assert load_profiles(environment).profiles["up"].secret_file == str(access.secret_file)


def test_a_profile_of_the_user_is_never_replaced(tmp_path: Path):
    """Not even one with the same name."""
    environment = {"XDG_CONFIG_HOME": str(tmp_path)}
    file = profiles_file(environment)
    file.parent.mkdir()
    file.write_text('[profiles.up]\nnamesrv = "h:1"\n')
    (tmp_path / "data").mkdir()

    with pytest.raises(ConfigError, match="a profile up that you wrote"):
        write_profile(environment, prepare_access(tmp_path / "data", 1000), "127.0.0.1:1", None)
    assert file.read_text() == '[profiles.up]\nnamesrv = "h:1"\n'
