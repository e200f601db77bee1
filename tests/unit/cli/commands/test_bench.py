"""The figures of a load."""

from unittest.mock import AsyncMock, MagicMock

import pytest

from holdfast.cli.commands import bench
from holdfast.cli.commands.bench import Load, percentile
from holdfast.cli.profiles import ChosenCluster
from holdfast.cli.session import Session


def test_a_percentile_is_a_value_that_was_measured():
    """Nothing is interpolated; the ends are the ends."""
    values = [float(number) for number in range(1, 101)]

    assert (percentile(values, 0.50), percentile(values, 0.99), percentile(values, 1.0)) == (51.0, 100.0, 100.0)
    assert percentile([7.0], 0.99) == 7.0


@pytest.mark.parametrize(("own_queues", "start"), [(8, "earliest"), (None, "latest")])
async def test_a_topic_of_others_is_read_from_its_end(
    own_queues: int | None, start: str, monkeypatch: pytest.MonkeyPatch
):
    """Their old messages are no part of the load. A new topic is read from its beginning."""
    starts: list[str] = []

    async def note_start(_session: Session, _load: Load, *, start: str) -> None:
        starts.append(start)

    monkeypatch.setattr(bench, "_measure", note_start)
    monkeypatch.setattr(bench, "Admin", MagicMock(return_value=AsyncMock()))

    session = Session(cluster=ChosenCluster("127.0.0.1:1", "--namesrv", None), timeout_s=1, as_json=False)
    await bench._run(session, Load("t", 1, 1, 1, 1, 1, 0.1), own_queues=own_queues)

    assert starts == [start]
