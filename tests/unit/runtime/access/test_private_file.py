"""Reading files that only their owner may have access to."""

import os
from pathlib import Path

import pytest

from holdfast.model.errors import ConfigError
from holdfast.runtime.access.private_file import SECRET_BYTES_MAX, read_private_file, stamp_of

SECRET = "topsecret"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return a file that only its owner may read."""
    path = tmp_path / "secret"
    path.touch(mode=0o600)
    return path


def test_the_whole_text_is_read(path: Path):
    """Up to the largest size, with the stamp by which a change is seen."""
    path.write_text("\u00e4" * (SECRET_BYTES_MAX // 2))

    file = read_private_file(path)

    assert file.text == "\u00e4" * (SECRET_BYTES_MAX // 2)
    assert file.stamp == stamp_of(path.stat())


def test_a_replaced_file_has_another_stamp(path: Path, tmp_path: Path):
    """Even with the same size and time."""
    before = read_private_file(path).stamp
    other = tmp_path / "other"
    other.touch(mode=0o600)
    os.utime(other, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns))
    other.replace(path)

    assert read_private_file(path).stamp != before


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o601])
def test_a_file_of_others_is_refused(path: Path, mode: int):
    """Whatever they may do with it; the error says what to do."""
    path.write_text(SECRET)
    path.chmod(mode)

    with pytest.raises(ConfigError, match=f"mode is {mode:o}.*chmod 600") as caught:
        read_private_file(path)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "reason"),
    [(SECRET.encode() * 1000, "more than 4096 bytes"), (SECRET.encode() + b"\xff", "not UTF-8")],
)
def test_a_file_that_is_no_secret_is_refused(path: Path, content: bytes, reason: str):
    """No error repeats its content."""
    path.write_bytes(content)

    with pytest.raises(ConfigError, match=reason) as caught:
        read_private_file(path)
    assert SECRET not in str(caught.value)


def test_only_a_regular_file_is_read(tmp_path: Path):
    """A pipe would block for ever."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe, 0o600)

    with pytest.raises(ConfigError, match="not a regular file"):
        read_private_file(pipe)
    with pytest.raises(ConfigError, match="No such file"):
        read_private_file(tmp_path / "missing")
