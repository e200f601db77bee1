"""Indexes are converted on Spark: by tasks of a session, by a cluster that loses a worker, and again after a stop."""

import os
import shutil
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.spark.test_standalone import Standalone
from tests.support.child import Child
from tests.support.conversions import convert, fill_store, plain_disk, read_served

from holdfast.model.errors import StoreError
from holdfast.pipeline.convert.convert_job import convert_index
from holdfast.pipeline.scan.spark_tasks import SparkTasks
from holdfast.pipeline.scan.tasks import TaskFailed
from holdfast.runtime.posix_disk import PosixDisk
from holdfast.store.base.options import StoreOptions

pytestmark = pytest.mark.timeout(400)

OPTIONS = StoreOptions(log_file_size=1 << 16, queue_file_size=20 * 200, batch_file_size=46 * 200)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    disk: Any = PosixDisk(tmp_path / "broker-a")
    plain_disk(disk)
    fill_store(disk, 2000, queues=3, options=OPTIONS)
    return tmp_path / "broker-a"


def files_below(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(autouse=True)
def several_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a small index be more than one task for each core."""
    monkeypatch.setattr("holdfast.pipeline.convert.convert_job.PIECES_PER_TASK", 4)


def test_tasks_of_spark_make_what_the_command_makes(spark: SparkSession, folder: Path, tmp_path: Path):
    """Byte for byte; and back again what there was."""
    shutil.copytree(folder, tmp_path / "other")
    convert(PosixDisk(tmp_path / "other"), "batch", options=OPTIONS, piece_size=1000)
    before = files_below(folder / "consumequeue")
    tasks, told = SparkTasks(spark), []

    def show(what: str, count: int) -> Any:
        told.append((what, count))
        return told.append

    found = convert_index(tasks, [str(folder)], "orders", "batch", show=show, options=OPTIONS, piece_size=150, wave=3)

    assert found.stores[0].converted == 2000
    assert told[0] == ("converting, tasks", 4)
    assert files_below(folder / "batchconsumequeue") == files_below(tmp_path / "other" / "batchconsumequeue")
    convert_index(tasks, [str(folder)], "orders", "simple", options=OPTIONS)
    assert files_below(folder / "consumequeue") == before


def test_what_a_task_finds_wrong_is_told_by_name(spark: SparkSession, folder: Path):
    """The old index is as it was, and what was done by earlier waves is not done again."""
    path = folder / "consumequeue" / "orders" / "1" / f"{2 * 4000:020d}"
    good = path.read_bytes()
    data = bytearray(good)
    data[40:60] = data[60:80]
    path.write_bytes(data)
    before = files_below(folder / "consumequeue")

    with pytest.raises((TaskFailed, StoreError), match="queue 1 of topic orders has message 402"):
        convert_index(SparkTasks(spark), [str(folder)], "orders", "batch", options=OPTIONS, piece_size=150, wave=1)

    assert files_below(folder / "consumequeue") == before
    assert not (folder / "batchconsumequeue").exists()
    path.write_bytes(good)
    found = convert_index(SparkTasks(spark), [str(folder)], "orders", "batch", options=OPTIONS, piece_size=150, wave=1)
    assert found.stores[0].resumed
    assert 0 < found.stores[0].converted < 2000


DRIVER = """
    import sys
    from holdfast.pipeline.convert import convert_job
    from holdfast.pipeline.scan.spark_tasks import SparkTasks
    from holdfast.spark import session
    from holdfast.store.base.options import StoreOptions

    convert_job.PIECES_PER_TASK = 8

    class Waves(SparkTasks):
        def run(self, *arguments):
            print("wave", flush=True)
            sys.stdin.readline()
            return super().run(*arguments)

    master, folder = sys.argv[1:]
    config = {"spark.executor.memory": "512m", "spark.executor.cores": "1", "spark.ui.enabled": "false"}
    spark = session("loopback", master=master, config=config)
    spark.sparkContext.setLogLevel("OFF")
    options = StoreOptions(log_file_size=1 << 16, queue_file_size=20 * 200, batch_file_size=46 * 200)
    found = convert_job.convert_index(Waves(spark), [folder], "orders", "batch", options=options, piece_size=40, wave=2)
    spark.stop()
    print("converted", found.stores[0].converted, flush=True)
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_conversion_survives_the_loss_of_a_worker_and_of_its_driver(folder: Path, tmp_path: Path):
    """The driver dies after a wave, the next one goes on; of its two workers one dies, and the other does the rest."""
    before = read_served(PosixDisk(folder), options=OPTIONS)
    (tmp_path / "cluster").mkdir()
    standalone = Standalone(tmp_path / "cluster")
    program = tmp_path / "driver.py"
    program.write_text(textwrap.dedent(DRIVER))
    command = [sys.executable, str(program), standalone.url, str(folder)]
    drivers: list[Child] = []
    try:
        drivers.append(first := Child(command, name="driver", environment=dict(os.environ)))
        first.wait_for_line("^wave", timeout_s=300)
        heard = len(first.lines())
        first.write_line("go")
        first.wait_for_line("^wave", timeout_s=300, after=heard)
        first.kill()
        assert read_served(PosixDisk(folder), options=OPTIONS) == before

        drivers.append(second := Child(command, name="driver", environment=dict(os.environ)))
        second.wait_for_line("^wave", timeout_s=300)
        heard = len(second.lines())
        second.write_line("go")
        standalone.workers[0].kill()
        second.wait_for_line("^wave", timeout_s=300, after=heard)
        for _ in range(20):
            second.write_line("go")
        line = second.wait_for_line("^converted", timeout_s=300)
    finally:
        for driver in drivers:
            driver.kill()
        standalone.stop()

    assert int(line.split()[1]) < 2000
    assert read_served(PosixDisk(folder), options=OPTIONS) == before
