"""Progress is for people."""

import pytest

from holdfast.cli.progress import show_progress


def test_without_a_terminal_nothing_is_shown(capfd: pytest.CaptureFixture[str]):
    """A pipe or a log file gets no bars."""
    with show_progress("working", 3) as advance:
        advance(1)
        advance(2)

    assert capfd.readouterr() == ("", "")
