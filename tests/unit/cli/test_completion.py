"""What the shell offers."""

import pytest

from holdfast.cli.completion import complete_broker, complete_group, complete_topic


def test_completion_never_complains(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]):
    """Without a cluster, or with a wrong address, there is nothing to offer and nothing to say."""
    monkeypatch.setenv("HOLDFAST_NAMESRV", "127.0.0.1:1")
    assert (complete_topic(""), complete_group(""), complete_broker("")) == ([], [], [])

    monkeypatch.setenv("HOLDFAST_NAMESRV", "no address")
    assert complete_topic("") == []

    assert capfd.readouterr().out == ""
