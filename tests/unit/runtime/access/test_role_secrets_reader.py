"""Secrets come from files that only their owner can read. No error shows a part of one."""

from pathlib import Path

import pytest

from holdfast.machine.security_options import SecurityOptions
from holdfast.model.errors import ConfigError
from holdfast.runtime.access.private_file import SECRET_BYTES_MAX
from holdfast.runtime.access.role_secrets_reader import read_metrics_token, read_role_secrets

SECRET = "2bQ1-a-long-random-text"


def write(folder: Path, text: str | bytes, mode: int = 0o600) -> str:
    file = folder / "secret"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    file.chmod(mode)
    return str(file)


def refusal(**options: object) -> str:
    with pytest.raises(ConfigError) as caught:
        read_role_secrets(SecurityOptions(**options))  # type: ignore[arg-type]
    assert SECRET not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "secrets"),
    [
        (SECRET, (SECRET,)),
        (f"{SECRET}\n", (SECRET,)),
        (f"{SECRET}\nthe-old-one-of-before\n\n", (SECRET, "the-old-one-of-before")),
    ],
)
def test_a_cluster_secret_is_a_line_and_two_while_it_is_replaced(
    tmp_path: Path, text: str, secrets: tuple[str, ...]
) -> None:
    """The newest first: servers prove that one, and accept both."""
    read = read_role_secrets(SecurityOptions(auth=True, cluster_secret=write(tmp_path, text)))

    assert read.cluster == secrets
    assert read.new_nonce(32) != read.new_nonce(32)


def test_a_role_needs_no_secret_without_access_control() -> None:
    """As before."""
    assert read_role_secrets(SecurityOptions()).cluster == ()


def test_access_control_needs_a_cluster_secret() -> None:
    """Otherwise no server could do anything at another one."""
    assert "--cluster-secret FILE" in refusal(auth=True)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o666, 0o601])
def test_a_file_that_others_can_read_is_refused(tmp_path: Path, mode: int) -> None:
    """The error says what to do."""
    path = write(tmp_path, SECRET, mode)

    assert f"chmod 600 {path}" in refusal(cluster_secret=path)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "0 lines"),
        (f"{SECRET}\n{SECRET}x\n{SECRET}y", "3 lines"),
        ("short", "less than 16 characters"),
        (SECRET.encode() + b"\xff", "not UTF-8"),
        (SECRET * 1000, f"more than {SECRET_BYTES_MAX} bytes"),
    ],
)
def test_a_file_with_anything_else_is_refused(tmp_path: Path, text: str | bytes, reason: str) -> None:
    """It would be taken for a secret."""
    assert reason in refusal(cluster_secret=write(tmp_path, text))


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    """With their path."""
    assert "No such file" in refusal(cluster_secret=str(tmp_path / "none"))
    assert str(tmp_path) in refusal(cluster_secret=str(tmp_path))


def test_inner_credentials_are_read_as_tools_of_rocketmq_write_them(tmp_path: Path) -> None:
    """As in tools.yml."""
    path = write(tmp_path, f"accessKey: inner\nsecretKey: {SECRET}\n")

    inner = read_role_secrets(SecurityOptions(java_peers="sign", inner_credentials=path)).inner

    assert inner is not None
    assert (inner.access_key, inner.secret_key) == ("inner", SECRET)


@pytest.mark.parametrize(
    "text", ["", "- list", f"accessKey: a\nsecret: {SECRET}", f"{{{SECRET}", f"!!python/name:os {SECRET}"]
)
def test_other_inner_credentials_are_refused(tmp_path: Path, text: str) -> None:
    """Without showing them."""
    assert "`accessKey: NAME`" in refusal(inner_credentials=write(tmp_path, text))


def test_signing_needs_inner_credentials() -> None:
    """The option alone has no effect."""
    assert "inner_credentials names no file" in refusal(java_peers="sign")


def test_the_token_of_scrapers_is_one_long_word(tmp_path: Path) -> None:
    """In a private file, too."""
    assert read_metrics_token(SecurityOptions()) is None
    assert read_metrics_token(SecurityOptions(metrics_token=write(tmp_path, f"{SECRET}\n"))) == SECRET
    for text in ("short", f"{SECRET} {SECRET}", f"{SECRET}\n{SECRET}", "", "ä" * 20):
        with pytest.raises(ConfigError, match=r"metrics_token: .* needs one word"):
            read_metrics_token(SecurityOptions(metrics_token=write(tmp_path, text)))
    path = write(tmp_path, SECRET)
    Path(path).chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        read_metrics_token(SecurityOptions(metrics_token=path))
