"""The user that a command acts as."""

from pathlib import Path

import pytest

from holdfast.cli.credentials import AccessFlags, find_credentials
from holdfast.cli.profiles import profiles_file
from holdfast.model.errors import ConfigError

TEXT = """
default = "local"
[profiles.local]
namesrv = "127.0.0.1:9876"
[profiles.staging]
namesrv = "10.0.0.4:9876;10.0.0.5:9876"
"""
WITH_USER = (
    TEXT
    + """
access_key = "operator"
secret_file = "/secrets/staging"
auth = "login"
"""
)
ENVIRONMENT_USER = {"HOLDFAST_ACCESS_KEY": "ann", "HOLDFAST_SECRET_KEY": "topsecret"}


@pytest.fixture
def saved(tmp_path: Path) -> dict[str, str]:
    """A folder whose profile `staging` names a user."""
    environment = {"XDG_CONFIG_HOME": str(tmp_path)}
    profiles_file(environment).parent.mkdir()
    profiles_file(environment).write_text(WITH_USER, encoding="utf-8")
    return environment


def find(
    environment: dict[str, str], namesrv: str | None = None, profile: str | None = None, **flags: str
) -> tuple[str | None, ...] | None:
    """Return user, secret, file and mode."""
    found = find_credentials(AccessFlags(**flags), namesrv, profile, environment)
    return None if found is None else (found.access_key, found.secret_key, found.secret_file, found.mode)


OPERATOR = ("operator", None, "/secrets/staging", "login")


def test_without_any_source_there_is_no_user(saved: dict[str, str]):
    """Also if a profile that is not in use has one."""
    assert find(saved) is None
    assert find(saved | {"HOLDFAST_ACCESS_KEY": ""}) is None


def test_a_profile_brings_its_user(saved: dict[str, str]):
    """However it was chosen; but not to another cluster."""
    assert find(saved, profile="staging") == OPERATOR
    assert find(saved | {"HOLDFAST_PROFILE": "staging"}) == OPERATOR
    assert find(saved | {"HOLDFAST_PROFILE": "staging"}, namesrv="h:1") is None
    assert find(saved | {"HOLDFAST_PROFILE": "staging", "HOLDFAST_NAMESRV": "v:1"}) is None


def test_a_flag_beats_the_profile_of_a_flag_beats_the_environment_beats_other_profiles(saved: dict[str, str]):
    """The nearer a source is to the command, the stronger it is."""
    flags = {"access_key": "eve", "secret_file": "f"}

    assert find(saved | ENVIRONMENT_USER, profile="staging", **flags) == ("eve", None, "f", "login")
    assert find(saved | ENVIRONMENT_USER, profile="staging") == OPERATOR
    assert find(saved | ENVIRONMENT_USER | {"HOLDFAST_PROFILE": "staging"}) == ("ann", "topsecret", None, "login")
    assert find(saved | ENVIRONMENT_USER, auth_mode="sign") == ("ann", "topsecret", None, "sign")


def test_a_secret_is_never_used_for_another_user(saved: dict[str, str]):
    """A secret without a user is for any."""
    with pytest.raises(ConfigError, match="'eve' needs either HOLDFAST_SECRET_KEY or --secret-file") as caught:
        find(saved | ENVIRONMENT_USER, profile="staging", access_key="eve")
    assert "topsecret" not in str(caught.value)

    only_secret = {"HOLDFAST_SECRET_KEY": "topsecret"}
    assert find(saved | only_secret, access_key="eve") == ("eve", "topsecret", None, "auto")
    with pytest.raises(ConfigError, match="not whose: set --access-key"):
        find(saved | only_secret)


def test_two_secrets_or_an_unknown_mode_are_refused(saved: dict[str, str]):
    """One of them would be ignored."""
    with pytest.raises(ConfigError, match="exactly one"):
        find(saved | ENVIRONMENT_USER | {"HOLDFAST_SECRET_FILE": "f"})
    with pytest.raises(ConfigError, match="auto, login, sign"):
        find(saved | ENVIRONMENT_USER | {"HOLDFAST_AUTH_MODE": "none"})


def test_a_profile_cannot_contain_a_secret(saved: dict[str, str]):
    """Profiles are shown, copied and shared."""
    profiles_file(saved).write_text(TEXT + 'secret_key = "topsecret"\n', encoding="utf-8")

    with pytest.raises(ConfigError, match="secret_file") as caught:
        find(saved)
    assert "topsecret" not in str(caught.value)
