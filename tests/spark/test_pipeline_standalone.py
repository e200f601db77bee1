"""Jobs over stored logs on a real Spark cluster, which loses a worker in the middle of each of them."""

import json
import os
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow.dataset as ds
import pytest
from tests.spark.conftest import Read, SparkCluster
from tests.spark.test_standalone import Standalone, standalone  # noqa: F401 - a fixture
from tests.support.child import Child
from tests.support.store_folders import StoreFolderBuilder

from holdfast.pipeline.audit.audit_job import audit
from holdfast.pipeline.scan.tasks import InProcess
from holdfast.pipeline.stats.stats_job import stats

JOBS = ("audit", "stats", "archive", "backfill", "convert")
HELD_TIMEOUT_S = 200.0

DRIVER = """
    import os, sys, time
    from pathlib import Path
    from holdfast.pipeline.archive import backfill as backfill_job
    from holdfast.pipeline.archive.archive_job import archive
    from holdfast.pipeline.audit.audit_job import audit
    from holdfast.pipeline.convert.convert_job import convert_index
    from holdfast.pipeline.scan.spark_tasks import SparkTasks
    from holdfast.pipeline.stats.stats_job import stats
    from holdfast.spark import session

    master, gates, store, target, namesrv, topic = sys.argv[1:]

    def hold(job):
        Path(gates, f"{job}-{os.getpid()}").touch()
        while not Path(gates, f"{job}-open").exists():
            time.sleep(0.05)

    class Held(SparkTasks):
        job = ""

        def run(self, function, inputs, kind, progress):
            job = self.job

            def held(each):
                done = function(each)
                hold(job)
                return done

            return super().run(function if len(inputs) == 1 else held, inputs, kind, progress)

    write_partition = backfill_job._write_partition

    def held_write(batches, **options):
        done = list(write_partition(batches, **options))
        hold("backfill")
        yield from done

    backfill_job._write_partition = held_write
    config = {"spark.executor.memory": "512m", "spark.executor.cores": "1", "spark.ui.enabled": "false"}
    spark = session("loopback", master=master, config=config)
    spark.sparkContext.setLogLevel("OFF")
    tasks = Held(spark)
    tasks.job = "audit"
    found = audit(tasks, [store], range_size=3000)
    print("audit", found.is_clean, found.stores[0].records, flush=True)
    tasks.job = "stats"
    counted = stats(tasks, [store], range_size=3000)
    print("stats", sum(queue.messages for queue in counted.queues), flush=True)
    tasks.job = "archive"
    done = archive(tasks, [store], target, range_size=3000)
    print("archive", sum(done.rows.values()), done.is_complete, flush=True)
    again = archive(tasks, [store], target, range_size=3000)
    print("again", sum(again.rows.values()), flush=True)
    rows = backfill_job.read_archive(spark, target)
    back = backfill_job.backfill(
        rows, namesrv, topic, target + "-state", where="topic = 'orders'", rows_per_piece=150
    )
    print("backfill", back.rows, back.pieces, flush=True)
    tasks.job = "convert"
    converted = convert_index(tasks, [store], "orders", "batch", piece_size=20)
    print("convert", converted.stores[0].converted, flush=True)
    spark.stop()
    print("stopped", flush=True)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    found = StoreFolderBuilder(tmp_path / "broker-a")
    found.fill(400)
    found.close()
    return found.root


@pytest.fixture
def driver(
    standalone: Standalone,  # noqa: F811
    cluster: SparkCluster,
    folder: Path,
    tmp_path: Path,
) -> Iterator[tuple[Child, str]]:
    """A program that runs every job; what its tasks have done is held back until a gate is opened."""
    program, topic = tmp_path / "driver.py", cluster.new_topic()
    program.write_text(textwrap.dedent(DRIVER))
    (tmp_path / "gates").mkdir()
    paths = [str(tmp_path / "gates"), str(folder), str(tmp_path / "archive")]
    command = [sys.executable, str(program), standalone.url, *paths, cluster.namesrv, topic]
    with Child(command, name="driver", environment=dict(os.environ)) as child:
        yield child, topic


def lose_a_worker(cluster: Standalone, gates: Path, job: str) -> None:
    """End a worker when tasks on both have done their work and told nobody; then let the other one go on."""
    deadline_s = time.monotonic() + HELD_TIMEOUT_S
    while len(list(gates.glob(f"{job}-*"))) < 2:
        assert time.monotonic() < deadline_s, f"{job} has no tasks on both workers"
        time.sleep(0.05)
    cluster.workers.pop(0).kill()
    (gates / f"{job}-open").touch()
    cluster.start_worker()


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_every_job_survives_the_loss_of_a_worker(
    standalone: Standalone,  # noqa: F811
    driver: tuple[Child, str],
    folder: Path,
    read: Read,
    tmp_path: Path,
):
    """Tasks that were lost after their work are run again, and nothing is there twice."""
    program, topic = driver
    counted = stats(InProcess(), [str(folder)])
    said: dict[str, str] = {}

    for job in JOBS:
        lose_a_worker(standalone, tmp_path / "gates", job)
        said[job] = program.wait_for_line(f"^{job} ", timeout_s=200)
    program.wait_for_line("stopped", timeout_s=100)

    assert said["audit"] == "audit True 565"
    assert said["stats"] == f"stats {sum(queue.messages for queue in counted.queues)}"
    assert said["archive"] == "archive 600 True"
    assert program.wait_for_line("^again", timeout_s=1) == "again 0"
    target = tmp_path / "archive"
    rows = ds.dataset(target, format="parquet", partitioning="hive").to_table(columns=["topic", "queue", "offset"])
    assert rows.num_rows == len({tuple(row.values()) for row in rows.to_pylist()}) == 600
    assert json.loads((target / "_holdfast" / "manifest.json").read_bytes())["run"] == 2
    back = sorted(read(topic).collect(), key=lambda row: (row.queue, row.offset))
    found = [(row.queue, row.properties["originQueue"], int(row.properties["originOffset"])) for row in back]
    assert said["backfill"] == "backfill 342 1"
    assert len(found) == len({place[1:] for place in found}) == 342
    assert sorted(found) == sorted(found, key=lambda place: place[:2])  # Each queue is in its order still.
    assert said["convert"] == "convert 400"
    assert audit(InProcess(), [str(folder)]).is_clean
