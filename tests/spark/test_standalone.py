"""A real Spark cluster on loopback: a master and two workers as processes of their own, from the same package."""

import os
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest
from tests.spark.conftest import Read, SparkCluster, numbers_of
from tests.support.child import Child
from tests.support.cluster.ports import free_port, wait_until_listening

from holdfast.spark.spark_session import find_java

READY_TIMEOUT_S = 200.0


class Standalone:
    """A master and workers."""

    def __init__(self, folder: Path) -> None:
        find_java()
        self.folder = folder
        self._environment = {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
        port = free_port()
        self.url = f"spark://127.0.0.1:{port}"
        self._master = self._start("master", "master.Master", "--port", str(port), "--webui-port", "0")
        wait_until_listening(self._master, port, timeout_s=READY_TIMEOUT_S)
        self.workers: list[Child] = []
        self._count = 0
        for _ in range(2):
            self.start_worker()

    def start_worker(self) -> None:
        """Start one more; returns when the master knows it."""
        self._count += 1
        words = ["-c", "1", "-m", "512m", "--webui-port", "0", self.url]
        worker = self._start(f"worker {self._count}", "worker.Worker", *words)
        self.workers.append(worker)
        worker.wait_for_line("Successfully registered with master", timeout_s=READY_TIMEOUT_S)

    def _start(self, name: str, main: str, *arguments: str) -> Child:
        script = Path(pyspark.__file__).parent / "bin" / "spark-class"
        command = ["bash", str(script), f"org.apache.spark.deploy.{main}", "--host", "127.0.0.1", *arguments]
        folder = self.folder / name.replace(" ", "-")
        folder.mkdir()
        return Child(command, name=name, environment={**self._environment, "SPARK_WORKER_DIR": str(folder)})

    def stop(self) -> None:
        """End everything."""
        for child in (*self.workers, self._master):
            child.kill()


@pytest.fixture
def standalone(tmp_path: Path) -> Iterator[Standalone]:
    found = Standalone(tmp_path)
    yield found
    found.stop()


DRIVER = """
    import sys
    from holdfast.spark import session

    master, namesrv, source, target, folder = sys.argv[1:]
    config = {"spark.executor.memory": "512m", "spark.executor.cores": "1", "spark.ui.enabled": "false"}
    spark = session("loopback", master=master, config=config)
    spark.sparkContext.setLogLevel("OFF")
    stream = spark.readStream.format("holdfast").option("namesrv", namesrv).option("subscribe", source)
    stream = stream.option("startingOffsets", "earliest").option("minPartitions", "2").load()
    sink = stream.select("key", "body").writeStream.format("holdfast").option("namesrv", namesrv)
    sink = sink.option("topic", target).option("exactlyOnce", "true").option("checkpointLocation", folder)
    query = sink.start()
    rows = 0
    print("started", flush=True)
    for line in sys.stdin:
        if line.strip() == "end":
            break
        query.processAllAvailable()
        print("read to the end", query.runId, flush=True)
    query.stop()
    spark.stop()
    print("stopped", flush=True)
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_query_on_a_cluster_survives_the_loss_of_a_worker(
    cluster: SparkCluster, standalone: Standalone, read: Read, tmp_path: Path
):
    """Workers find the package and connect by themselves; each row is written once, in one run."""
    source, target = cluster.new_topic(), cluster.new_topic()
    cluster.send(source, range(500))
    program = tmp_path / "driver.py"
    program.write_text(textwrap.dedent(DRIVER))
    arguments = [standalone.url, cluster.namesrv, source, target, str(tmp_path / "checkpoint")]
    driver = Child([sys.executable, str(program), *arguments], name="driver", environment=dict(os.environ))
    try:
        driver.wait_for_line("^started", timeout_s=300)
        driver.write_line("go")
        first = driver.wait_for_line("read to the end", timeout_s=200)

        standalone.workers[0].kill()
        heard = len(driver.lines())
        cluster.send(source, range(500, 1000))
        driver.write_line("go")
        second = driver.wait_for_line("read to the end", timeout_s=300, after=heard)
        driver.write_line("end")
        driver.wait_for_line("stopped", timeout_s=100)
    finally:
        driver.kill()

    assert first == second
    assert numbers_of(read(target)) == list(range(1000))
