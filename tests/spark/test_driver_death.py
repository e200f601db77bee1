"""A driver that is killed with its Java, before and after its first batch is in the checkpoint, and started again.

It begins at "latest", which means something else whenever it is asked: Spark asks a new process for the first position
again as long as no batch is committed. What counts is what the first process was told.
"""

import json
import os
import sys
import textwrap
from pathlib import Path

import pytest
from tests.spark.conftest import Read, SparkCluster, numbers_of
from tests.support.child import Child

from holdfast.bulk.read_options import flatten_offsets

DRIVER = """
    import sys
    from holdfast.spark import session

    namesrv, source, target, folder, stop_at, stop_when = sys.argv[1:]
    spark = session("killed", master="local[2]", config={"spark.driver.memory": "1g"})
    spark.sparkContext.setLogLevel("OFF")
    stream = spark.readStream.format("holdfast").option("namesrv", namesrv).option("subscribe", source)
    stream = stream.option("startingOffsets", "latest").option("maxOffsetsPerTrigger", "40").load()

    def stop(batch, when):
        if (str(batch), when) == (stop_at, stop_when):
            print("here", flush=True)
            sys.stdin.readline()

    def take(rows, batch):
        stop(batch, "planned")
        sink = rows.select("key", "body").write.format("holdfast").mode("append").option("namesrv", namesrv)
        sink = sink.option("topic", target).option("exactlyOnce", "true")
        sink.option("txnAppId", "killed").option("txnVersion", str(batch)).save()
        stop(batch, "written")

    query = stream.writeStream.foreachBatch(take).option("checkpointLocation", folder).start()
    print("java", spark.sparkContext._gateway.proc.pid, flush=True)
    if stop_at == "never":
        query.processAllAvailable()
        query.stop()
        print("done", flush=True)
    else:
        query.awaitTermination()
"""


class Driver:
    """Starts the same query again and again on one checkpoint."""

    def __init__(self, cluster: SparkCluster, source: str, target: str, folder: Path) -> None:
        self._program = folder / "driver.py"
        self._program.write_text(textwrap.dedent(DRIVER))
        self._arguments = [cluster.namesrv, source, target, str(folder / "checkpoint")]
        self.checkpoint = folder / "checkpoint"

    def die(self, batch: int, when: str) -> None:
        """Run until *batch* is planned, or written, but not committed; then kill driver and Java."""
        child = self._start(str(batch), when)
        try:
            java = int(child.wait_for_line("^java", timeout_s=120).split()[1])
            child.wait_for_line("^here", timeout_s=120)
            assert self.batches("offsets") == list(range(batch + 1))
            assert self.batches("commits") == list(range(batch))
        finally:
            child.kill()
        assert not Path(f"/proc/{java}/fd").is_dir() or not list(Path(f"/proc/{java}/fd").iterdir()), "Java lives on"

    def finish(self) -> None:
        """Run to the end."""
        child = self._start("never", "")
        try:
            child.wait_for_line("^done", timeout_s=240)
        finally:
            child.kill()

    def batches(self, kind: str) -> list[int]:
        """Return which batches Spark wrote down as planned (offsets), or as done (commits)."""
        return sorted(int(path.name) for path in (self.checkpoint / kind).glob("[0-9]*"))

    def _start(self, batch: str, when: str) -> Child:
        command = [sys.executable, str(self._program), *self._arguments, batch, when]
        return Child(command, name="driver", environment=dict(os.environ))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_query_goes_on_where_it_was_whenever_its_driver_is_killed(cluster: SparkCluster, read: Read, tmp_path: Path):
    """Before its first batch was written, before that was committed, and in the batch behind it."""
    source, target = cluster.new_topic(), cluster.new_topic()
    driver = Driver(cluster, source, target, tmp_path)
    cluster.send(source, range(1000, 1100))  # before the query: not asked for

    driver.die(0, "planned")
    cluster.send(source, range(30))
    driver.die(0, "written")
    cluster.send(source, range(30, 60))
    driver.die(1, "written")
    cluster.send(source, range(60, 200))
    driver.finish()

    first = json.loads((driver.checkpoint / "offsets" / "0").read_text().splitlines()[-1])
    assert sum(offset for _, offset in flatten_offsets(first["from"])) == 100
    assert numbers_of(read(target)) == list(range(200))
