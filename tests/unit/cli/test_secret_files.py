"""Secrets in files."""

import io
import stat
from pathlib import Path

import pytest

from holdfast.admin.cluster_access import NameServerUnreachable, PartlyDone
from holdfast.cli.secret_files import new_secret, read_new_secret, saved_secret
from holdfast.model.errors import BrokerRefused, ConfigError, RequestTimeout


def test_every_secret_is_another_one():
    """And long enough that nobody guesses it."""
    assert len({new_secret() for _ in range(100)}) == 100
    assert len(new_secret()) == 32


def test_a_file_appears_when_the_block_has_succeeded(tmp_path: Path):
    """With the rights of its owner only, whatever was there before."""
    file = tmp_path / "secret"
    (tmp_path / ".secret.new").write_text("of a run that was killed")

    with saved_secret(file, "topsecret"):
        assert not file.exists()

    assert (file.read_text(), stat.S_IMODE(file.stat().st_mode)) == ("topsecret\n", 0o600)
    assert list(tmp_path.iterdir()) == [file]


def test_a_block_that_fails_leaves_nothing(tmp_path: Path):
    """The old file, if there is one."""
    file = tmp_path / "secret"
    file.write_text("old")

    with pytest.raises(ZeroDivisionError), saved_secret(file, "topsecret", replaces=True):
        raise ZeroDivisionError

    assert (file.read_text(), list(tmp_path.iterdir())) == ("old", [file])
    with pytest.raises(ConfigError, match="exists: choose another file"), saved_secret(file, "topsecret"):
        pass
    with pytest.raises(ConfigError, match="cannot be written") as caught, saved_secret(file / "x", "topsecret"):
        pass
    assert "topsecret" not in str(caught.value)


@pytest.mark.parametrize(
    "error",
    [
        PartlyDone("changed at one, refused by another"),
        RequestTimeout("no answer"),
        NameServerUnreachable("lost"),
        BrokerRefused(1, "changed, but not saved yet"),
        KeyboardInterrupt(),
    ],
)
def test_a_secret_that_a_server_may_have_accepted_is_not_lost(
    tmp_path: Path, error: BaseException, capsys: pytest.CaptureFixture[str]
):
    """It may be the only one by which the last administrator can log in. The next attempt does not remove it either."""
    file, kept = tmp_path / "secret", tmp_path / "secret.new"
    file.write_text("old")

    with pytest.raises(type(error)), saved_secret(file, "topsecret", replaces=True):
        raise error
    with pytest.raises(BrokerRefused), saved_secret(file, "another", replaces=True):
        raise BrokerRefused(16, "check signature failed.")

    assert (file.read_text(), kept.read_text(), stat.S_IMODE(kept.stat().st_mode)) == ("old", "topsecret\n", 0o600)
    assert set(tmp_path.iterdir()) == {file, kept}
    assert f"the new secret is in {kept}" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["", "\n", "two\nlines\n", "x" * 5000])
def test_standard_input_has_one_secret(text: str, monkeypatch: pytest.MonkeyPatch):
    """No error repeats it."""
    monkeypatch.setattr("sys.stdin", io.StringIO(text))

    with pytest.raises(ConfigError, match="must contain one line"):
        read_new_secret("-")
