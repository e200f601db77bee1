"""Texts of peers in the log."""

from __future__ import annotations

import io

import pytest

from holdfast.machine.effects import Log
from holdfast.runtime.logs import start_logging


@pytest.mark.parametrize(
    "user", ["x\n2026-11-19 [info] user root created", "\x1b]0;title\x07", "a\rb", "\u2028", "\u202e"]
)
def test_a_name_does_not_forge_log_lines(user: str) -> None:
    stream = io.StringIO()
    emit = start_logging(stream=stream)

    emit(
        Log("warning", "request refused", {"user": user, "peer": "192.0.2.1:5", "reason": f"User:{user} is not found."})
    )

    text = stream.getvalue()
    assert text.count("\n") == 1
    assert all(each.isprintable() for each in text.rstrip("\n"))
