"""Jobs over stored logs on a real Spark cluster, which loses a worker in the middle of one."""

import json
import os
import sys
import textwrap
from pathlib import Path

import pyarrow.dataset as ds
import pytest
from tests.spark.test_standalone import Standalone, standalone  # noqa: F401 - a fixture
from tests.support.child import Child
from tests.support.store_folders import Folder

DRIVER = """
    import sys
    from holdfast.pipeline.archive import archive
    from holdfast.pipeline.audit import audit
    from holdfast.pipeline.spark_tasks import SparkTasks
    from holdfast.spark import session

    master, store, target = sys.argv[1:]
    config = {"spark.executor.memory": "512m", "spark.executor.cores": "1", "spark.ui.enabled": "false"}
    spark = session("loopback", master=master, config=config)
    spark.sparkContext.setLogLevel("OFF")
    tasks = SparkTasks(spark)

    def show(what, count):
        print("begun", what, count, flush=True)
        return lambda done: print("done", what, done, flush=True)

    found = audit(tasks, [store], range_size=1000, show=show)
    print("audited", found.is_right, found.stores[0].records, flush=True)
    done = archive(tasks, [store], target, range_size=300, show=show)
    print("archived", sum(done.rows.values()), done.is_whole, flush=True)
    again = archive(tasks, [store], target, range_size=300)
    print("again", sum(again.rows.values()), flush=True)
    spark.stop()
    print("stopped", flush=True)
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_an_archive_survives_the_loss_of_a_worker(standalone: Standalone, tmp_path: Path):  # noqa: F811
    """Tasks that were lost are run again; of those that wrote before, nothing is seen twice."""
    folder = Folder(tmp_path / "broker-a")
    folder.fill(400)
    folder.close()
    program = tmp_path / "driver.py"
    program.write_text(textwrap.dedent(DRIVER))
    target = tmp_path / "archive"
    command = [sys.executable, str(program), standalone.url, str(folder), str(target)]
    driver = Child(command, name="driver", environment=dict(os.environ))
    try:
        audited = driver.wait_for_line("^audited", timeout_s=300)
        heard = len(driver.lines())
        driver.wait_for_line("^done log", timeout_s=200, after=heard)
        standalone.workers[0].kill()
        archived = driver.wait_for_line("^archived", timeout_s=300)
        again = driver.wait_for_line("^again", timeout_s=200)
        driver.wait_for_line("stopped", timeout_s=100)
    finally:
        driver.kill()

    assert "audited True 565" in audited
    assert "archived 600 True" in archived
    assert "again 0" in again
    rows = ds.dataset(target, format="parquet", partitioning="hive").to_table(columns=["topic", "queue", "offset"])
    assert rows.num_rows == 600
    assert len({tuple(row.values()) for row in rows.to_pylist()}) == 600
    assert json.loads((target / "_holdfast" / "manifest.json").read_bytes())["run"] == 2
