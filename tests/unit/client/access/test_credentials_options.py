"""What applications pass to prove their identity."""

import pickle

import pytest

from holdfast.client.access.credentials_options import (
    CredentialsOptions,
    credentials_options,
    read_environment,
)
from holdfast.model.access.credentials import Credentials
from holdfast.model.errors import ConfigError


def test_without_arguments_there_is_no_user():
    """There is no access control, or no access."""
    assert credentials_options() is None
    assert credentials_options(access_key=None, secret_key=None, auth="sign") is None


def test_a_user_has_a_secret_or_a_file_with_it():
    """And may have a token."""
    given = credentials_options(access_key="ann", secret_key="secret", security_token="token", auth="sign")
    of_file = credentials_options(access_key="ann", secret_file="/run/secret")

    assert given is not None
    assert of_file is not None
    assert given.credentials == Credentials("ann", "secret", "token")
    assert (given.mode, of_file.mode) == ("sign", "auto")
    assert of_file.secret_file == "/run/secret"
    assert credentials_options(**given.to_arguments()) == given
    assert credentials_options(**of_file.to_arguments()) == of_file


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"access_key": "ann"}, "needs either secret_key or secret_file"),
        ({"access_key": "ann", "secret_key": "topsecret", "secret_file": "f"}, "exactly one of them"),
        ({"secret_key": "topsecret"}, "not whose: set access_key"),
        ({"secret_file": "f"}, "not whose"),
        ({"access_key": "", "secret_key": "topsecret"}, "access_key is empty"),
        ({"access_key": "ann", "secret_key": ""}, "secret_key is empty"),
        ({"access_key": "ann", "secret_key": "topsecret", "auth": "none"}, "auto, login, sign"),
    ],
)
def test_what_cannot_work_is_refused_without_repeating_the_secret(arguments: dict[str, str], reason: str):
    """The text says which argument to change."""
    with pytest.raises(ConfigError, match=reason) as caught:
        credentials_options(**arguments)  # type: ignore[arg-type]
    assert "topsecret" not in str(caught.value)


@pytest.mark.parametrize("secrets", [{}, {"secret_key": "topsecret", "secret_file": "f"}])
def test_options_made_without_arguments_are_checked_too(secrets: dict[str, str]):
    """A `ClusterClient` gets them directly."""
    with pytest.raises(ConfigError, match="either a secret or a secret file") as caught:
        CredentialsOptions(access_key="ann", **secrets)
    assert "topsecret" not in str(caught.value)
    with pytest.raises(ConfigError, match="auto, login, sign"):
        CredentialsOptions(access_key="ann", secret_key="topsecret", mode="never")  # type: ignore[arg-type]


def test_a_secret_of_a_wrong_type_is_not_repeated():
    """Bytes are a likely mistake."""
    with pytest.raises(TypeError, match="must be str, not bytes") as caught:
        credentials_options(access_key="ann", secret_key=b"topsecret")  # type: ignore[arg-type]
    assert "topsecret" not in str(caught.value)


def test_the_text_form_hides_the_secret_and_a_pickle_has_it():
    """Errors and plans show the one; tasks of Spark get the other."""
    options = CredentialsOptions(access_key="ann", secret_key="topsecret", security_token="token")

    assert "topsecret" not in f"{options} {options!r}"
    assert "token" not in repr(options)
    assert pickle.loads(pickle.dumps(options)) == options


def test_the_environment_names_a_user():
    """An empty variable is as good as none."""
    environment = {"HOLDFAST_ACCESS_KEY": "ann", "HOLDFAST_SECRET_KEY": "", "HOLDFAST_SECRET_FILE": "f"}

    assert read_environment(environment) == {"access_key": "ann", "secret_key": None, "secret_file": "f"}
