"""What is sent, before it is sent."""

import io
import sys
from pathlib import Path

import pytest

from holdfast.cli.commands.send import _messages
from holdfast.model.errors import ConfigError
from holdfast.model.message import Message

BASE = Message("t", b"", tags="x")


def made(
    body: str | None = None,
    file: Path | None = None,
    *,
    lines: bool = False,
    separator: str | None = None,
    count: int = 1,
) -> list[Message]:
    return list(_messages(BASE, body, file, lines=lines, separator=separator, count=count)[0])


def test_a_body_is_sent_as_often_as_wanted():
    """Every copy is the same value."""
    assert made("hello", count=3) == [Message("t", b"hello", tags="x")] * 3


def test_a_dash_reads_standard_input(monkeypatch: pytest.MonkeyPatch):
    """As in other tools."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"one\ntwo")))

    assert [message.body for message in made("-")] == [b"one", b"two"]


def test_keys_stand_before_the_separator(tmp_path: Path):
    """The first separator counts; the message may have more of them."""
    file = tmp_path / "lines"
    file.write_bytes(b"k1:a:b\nk2:\n")

    messages = made(file=file, lines=True, separator=":")

    assert [(message.key, message.body) for message in messages] == [("k1", b"a:b"), ("k2", b"")]


def test_a_line_without_its_separator_is_refused(tmp_path: Path):
    """Not sent without a key: its order would be lost."""
    file = tmp_path / "lines"
    file.write_bytes(b"no key\n")

    with pytest.raises(ConfigError, match="has no ':' between key and message"):
        made(file=file, lines=True, separator=":")


def test_an_empty_message_is_refused():
    """Brokers refuse it too, in other words."""
    with pytest.raises(ConfigError, match="empty"):
        made("")


def test_two_sources_are_refused(tmp_path: Path):
    """Which one is meant?"""
    with pytest.raises(ConfigError, match="not both"):
        made("hello", tmp_path / "file")


def test_lines_are_not_repeated(tmp_path: Path):
    """--count is for one message."""
    with pytest.raises(ConfigError, match="--count"):
        made(file=tmp_path / "file", lines=True, count=2)
