"""What the commands of brokers say beside their results."""

import pytest

from holdfast.admin.draining import DrainedSegment
from holdfast.cli.commands.broker import _note_kept
from holdfast.cli.profiles import ChosenCluster
from holdfast.cli.session import Session


def test_of_many_kept_segments_the_first_are_named_and_the_rest_counted(capsys: pytest.CaptureFixture[str]):
    """A broker may have thousands."""
    kept = [
        DrainedSegment(topic="orders", queue=number, generation=0, first=0, last=9, last_ms=1, kept_for="g reads it")
        for number in range(8)
    ]

    _note_kept(Session(cluster=ChosenCluster("127.0.0.1:1", "--namesrv", None), timeout_s=1, as_json=False), kept)

    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "kept: queue 0 of orders up to 9, g reads it"
    assert (len(lines), lines[-1]) == (6, "and 3 more")
