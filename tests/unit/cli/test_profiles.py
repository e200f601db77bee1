"""Where the name server is looked for."""

from pathlib import Path

import pytest

from holdfast.cli.profiles import find_namesrv, load_profiles
from holdfast.model.errors import ConfigError

TEXT = """
default = "local"
[profiles.local]
namesrv = "127.0.0.1:9876"
[profiles.staging]
namesrv = "10.0.0.4:9876;10.0.0.5:9876"
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """A home with two profiles."""
    file = tmp_path / "holdfast" / "config.toml"
    file.parent.mkdir()
    file.write_text(TEXT, encoding="utf-8")
    return {"XDG_CONFIG_HOME": str(tmp_path)}


def test_the_flag_wins_over_every_profile(environment: dict[str, str]):
    """Whoever names the address means it."""
    assert find_namesrv("h:1", "staging", environment) == ("h:1", "--namesrv")


def test_the_variable_is_told_apart_from_the_flag(environment: dict[str, str]):
    """The message for a cluster that is not there must name the right culprit."""
    assert find_namesrv("h:1", None, environment | {"HOLDFAST_NAMESRV": "h:1"}) == ("h:1", "HOLDFAST_NAMESRV")


def test_a_profile_is_used_by_name_and_the_default_without(environment: dict[str, str]):
    """`default` names the profile that holds when nothing is said."""
    assert find_namesrv(None, "staging", environment) == ("10.0.0.4:9876;10.0.0.5:9876", "profile staging")
    assert find_namesrv(None, None, environment) == ("127.0.0.1:9876", "profile local")


def test_without_a_file_the_local_cluster_is_meant(tmp_path: Path):
    """A newcomer needs no configuration."""
    assert find_namesrv(None, None, {"HOME": str(tmp_path)}) == ("127.0.0.1:9876", "the default")


def test_an_unknown_profile_is_refused_with_the_nearest(environment: dict[str, str]):
    """A misspelt profile does not fall back to another cluster."""
    with pytest.raises(ConfigError, match="no profile 'stagng'; did you mean 'staging'"):
        find_namesrv(None, "stagng", environment)


def test_commas_and_blanks_between_name_servers_are_accepted():
    """Both separators are in use elsewhere."""
    assert find_namesrv(" a:1, b:2 ;", None, {})[0] == "a:1;b:2"


def test_an_address_server_may_tell_the_name_servers():
    """It is named by its URL, as it is."""
    assert find_namesrv(" http://shop:8080/a;b ", None, {})[0] == "http://shop:8080/a;b"


@pytest.mark.parametrize("text", ["127.0.0.1", "host:port", "", ":9876"])
def test_what_is_no_address_is_refused(text: str):
    """Before anybody is dialled."""
    with pytest.raises(ConfigError):
        find_namesrv(text, None, {})


def test_an_unknown_key_in_the_file_is_refused(tmp_path: Path):
    """A misspelt key would otherwise be an empty profile."""
    file = tmp_path / "holdfast" / "config.toml"
    file.parent.mkdir()
    file.write_text('[profiles.local]\nnameserver = "a:1"\n', encoding="utf-8")

    with pytest.raises(ConfigError, match="a profile is"):
        load_profiles({"XDG_CONFIG_HOME": str(tmp_path)})
