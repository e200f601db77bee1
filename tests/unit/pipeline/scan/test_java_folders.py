"""Folders that Java brokers wrote: jobs find in them what a Java client read from those brokers."""

import hashlib
import json
import tarfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest

from holdfast.pipeline.archive.archive_job import archive
from holdfast.pipeline.archive.parquet_files import is_archived
from holdfast.pipeline.audit.audit_job import audit
from holdfast.pipeline.scan.tasks import InProcess
from holdfast.pipeline.stats.stats_job import stats

GOLDEN = Path(__file__).parents[3] / "data" / "golden"
FOLDERS = {"rocketmq-4.9.7-killed": ("broker-a",), "rocketmq-5.5.0-clean": ("broker-a", "broker-b")}
# Smaller than a log file, so that ranges begin in the middle of records.
RANGE_SIZE = 50_000

Line = dict[str, Any]


@pytest.fixture(scope="module", params=FOLDERS)
def golden(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("golden")
    with tarfile.open(GOLDEN / f"{request.param}.tar.gz") as tar:
        tar.extractall(folder, filter="data")
    return folder / request.param


def stores(golden: Path) -> list[str]:
    return [str(golden / broker) for broker in FOLDERS[golden.name]]


def manifest(golden: Path) -> list[Line]:
    """Return every message that the Java client read."""
    text = (golden / "manifest.jsonl").read_text(encoding="utf-8")
    return [line for line in map(json.loads, filter(None, text.split("\n"))) if line["kind"] == "message"]


def test_nothing_is_wrong_with_them(golden: Path):
    """Also of a broker that was killed; every message that the client read is in an index."""
    found = audit(InProcess(), stores(golden), range_size=RANGE_SIZE)

    assert found.faults == []
    assert sum(store.messages for store in found.stores) >= len(manifest(golden))
    assert all(store.records == store.entries for store in found.stores)


def test_their_messages_are_counted(golden: Path):
    """By topic and queue, as many as the client read."""
    found = stats(InProcess(), stores(golden), range_size=RANGE_SIZE)

    counts: dict[str, int] = {}
    for line in manifest(golden):
        counts[line["topic"]] = counts.get(line["topic"], 0) + 1
    ours = {topic: sum(each.messages for each in found.queues if each.topic == topic) for topic in counts}
    assert ours == counts


def as_time(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, UTC)


def test_their_messages_are_archived(golden: Path, tmp_path: Path):
    """Every one, with its body inflated, out of batches too, and with everything that the client saw of it."""
    done = archive(InProcess(), stores(golden), str(tmp_path), range_size=RANGE_SIZE, holds=False)

    assert done.is_complete
    table = ds.dataset(tmp_path, format="parquet", partitioning="hive").to_table()
    ours = {
        (
            row["topic"],
            row["broker"] if row["generation"] is None else None,
            hashlib.sha256(row["body"]).hexdigest(),
            row["bornTimestamp"],
        ): (row["storeTimestamp"], row["tags"], dict(row["properties"]).get("KEYS"))
        for row in table.to_pylist()
    }
    theirs = {
        (line["topic"], broker_of(golden, line), line["sha256"], as_time(line["bornTimestamp"])): (
            as_time(line["storeTimestamp"]),
            line["tags"],
            line["keys"],
        )
        for line in manifest(golden)
        if is_archived(line["topic"], ())
    }
    assert ours == theirs
    assert table.num_rows == sum(is_archived(line["topic"], ()) for line in manifest(golden))


def broker_of(golden: Path, line: Line) -> str | None:
    """Return whose queue a message was read from; None for a logical one, which is nobody's."""
    return line["brokerName"] if line["brokerName"] in FOLDERS[golden.name] else None


def test_offsets_in_the_archive_are_those_that_clients_see(golden: Path, tmp_path: Path):
    """Of static topics the logical ones, over both brokers; of all others the queue's own."""
    archive(InProcess(), stores(golden), str(tmp_path), holds=False)

    table = ds.dataset(tmp_path, format="parquet", partitioning="hive").to_table()
    ours = {
        (row["topic"], row["broker"] if row["generation"] is None else None, row["queue"], row["offset"])
        for row in table.to_pylist()
    }
    theirs = {
        (line["topic"], broker_of(golden, line), line["queueId"], line["queueOffset"])
        for line in manifest(golden)
        if is_archived(line["topic"], ())
    }
    assert ours == theirs
    assert len(ours) == table.num_rows
