"""The state of a backfill, and the columns of its rows."""

from pathlib import Path
from unittest.mock import MagicMock, call

import msgspec
import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: make install-spark")

from holdfast.model.errors import ConfigError
from holdfast.pipeline.archive import backfill
from holdfast.pipeline.archive.backfill_plan import BackfillPlan


@pytest.mark.parametrize(("where", "shown"), [("", "where all to"), ("queue = 1", "where queue = 1 to")])
def test_the_folder_of_another_backfill_is_refused(tmp_path: Path, where: str, shown: str):
    """The text says what that one reads, and where it writes to."""
    plan = BackfillPlan(
        name="n", source="archive", where=where, topic="orders", rows=0, step_s=1, partitions=1, empty=0, pieces=[]
    )
    (tmp_path / "plan.json").write_bytes(msgspec.json.encode(plan))

    with pytest.raises(ConfigError, match=f"backfill from archive {shown} orders: use another folder"):
        backfill._load_plan(MagicMock(), tmp_path, "archive", where, "others", 1000)


@pytest.mark.parametrize(
    ("columns", "is_asked"),
    [(["broker", "generation"], True), (["broker"], False), (["generation"], False), ([], False)],
)
def test_rows_need_not_say_whose_queues_they_are_of(
    columns: list[str], monkeypatch: pytest.MonkeyPatch, *, is_asked: bool
):
    """Only if they have both columns, a queue without a generation is one of its broker."""
    functions = MagicMock()
    monkeypatch.setattr(backfill, "F", functions)

    backfill._queue_name(["queue", *columns])

    assert (call("generation") in functions.col.mock_calls) is is_asked
