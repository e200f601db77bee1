"""Credentials that are fixed, or whose secret is in a file."""

import os
from pathlib import Path

import pytest

from holdfast.model.access.credentials import Credentials
from holdfast.model.errors import ConfigError
from holdfast.runtime.access.credentials_source import CredentialsSource, read_secret
from holdfast.runtime.access.private_file import SECRET_BYTES_MAX

ANN = Credentials("ann", "", "token")


def write(file: Path, text: str, mode: int = 0o600) -> Path:
    """Put a secret in place as an operator should: whole, by renaming."""
    fresh = file.with_suffix(".new")
    fresh.write_text(text, encoding="utf-8")
    fresh.chmod(mode)
    fresh.rename(file)
    return file


def test_fixed_credentials_stay():
    """There is nothing to read again."""
    source = CredentialsSource(Credentials("ann", "secret"))

    assert source.is_fixed
    assert not source.refresh()
    assert source.current == Credentials("ann", "secret")


@pytest.mark.parametrize("text", ["secret", "secret\n", "secret\r\n"])
def test_the_secret_is_the_line_in_the_file(tmp_path: Path, text: str):
    """With or without the line break that editors add."""
    source = CredentialsSource(ANN, write(tmp_path / "secret", text))

    assert source.current == Credentials("ann", "secret", "token")
    assert not source.is_fixed


def test_blanks_belong_to_the_secret(tmp_path: Path):
    """Only a line break is not part of it."""
    assert read_secret(write(tmp_path / "secret", " a b \n")) == " a b "


def test_a_replaced_file_is_read_again(tmp_path: Path):
    """And an untouched one is not."""
    file = write(tmp_path / "secret", "old")
    source = CredentialsSource(ANN, file)
    assert not source.refresh()

    write(file, "new")

    assert source.refresh()
    assert source.current.secret_key == "new"
    assert not source.refresh()


def test_a_file_with_the_same_secret_changes_nothing(tmp_path: Path):
    """A tool that renders the file again must not cause logins."""
    file = write(tmp_path / "secret", "same")
    source = CredentialsSource(ANN, file)

    write(file, "same")

    assert not source.refresh()


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o660])
def test_a_file_that_others_have_access_to_is_refused(tmp_path: Path, mode: int):
    """The text says how to put it right, and does not repeat the secret."""
    file = write(tmp_path / "secret", "topsecret", mode)

    with pytest.raises(ConfigError, match=r"other users may .*chmod 600") as caught:
        CredentialsSource(ANN, file)
    assert "topsecret" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "reason"),
    [("", "one line"), ("\n", "one line"), ("user\nsecret", "one line"), ("x" * (SECRET_BYTES_MAX + 1), "bytes")],
)
def test_a_file_without_exactly_a_secret_is_refused(tmp_path: Path, text: str, reason: str):
    """An empty secret would be known to everybody."""
    with pytest.raises(ConfigError, match=reason):
        read_secret(write(tmp_path / "secret", text))


def test_bytes_that_are_no_text_are_refused_without_repeating_them(tmp_path: Path):
    """A key in binary form cannot be typed anywhere else."""
    file = tmp_path / "secret"
    file.touch(0o600)
    file.write_bytes(b"\xff\xfetopsecret")

    with pytest.raises(ConfigError, match="not UTF-8") as caught:
        read_secret(file)
    assert "topsecret" not in repr(caught.value)


def test_what_is_no_file_is_refused(tmp_path: Path):
    """A pipe without a writer does not block."""
    os.mkfifo(tmp_path / "pipe", 0o600)

    with pytest.raises(ConfigError, match="not a regular file"):
        read_secret(tmp_path / "pipe")
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        CredentialsSource(ANN, tmp_path / "missing")


def test_a_file_that_goes_bad_leaves_the_secret_in_use(tmp_path: Path):
    """Each refresh says so until it is good again."""
    file = write(tmp_path / "secret", "old")
    source = CredentialsSource(ANN, file)
    file.unlink()

    for _ in range(2):
        with pytest.raises(ConfigError, match="cannot be read"):
            source.refresh()
    assert source.current.secret_key == "old"
    write(file, "new")
    assert source.refresh()
