"""Kafka and Spark's connector for it: the baseline for our source and sink.

    ~/.cache/holdfast-bench/kafka-4.2.0/            the jars of a broker, fetched with Maven
                            connector-4.0.0/        the jars that Spark lacks to speak Kafka
                            spark-4.0.0/            a Python environment with the Spark that this connector is for

Each release of Spark's Kafka connector fits one version of Spark, and 4.0.0 is the last of which Maven Central has all
parts. So Kafka's side runs in an older Spark than ours. The run shows how much that matters: both read the same file.
One broker that is its own controller, with the heap of Kafka's start script; everything else is Kafka's default.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.programs import SOURCES, BenchmarkFailed
from tests.support.child import Child, ChildFailed
from tests.support.cluster.ports import wait_until_listening
from tests.support.java_peer import cache_home

KAFKA_VERSION: Final = "4.2.0"
SPARK_VERSION: Final = "4.0.0"  # benchmarks/requirements-kafka.lock says the same
LOCK: Final = SOURCES / "requirements-kafka.lock"
BROKER: Final = ("org.apache.kafka:kafka_2.13", "org.apache.kafka:kafka-tools")
CONNECTOR: Final = ("org.apache.spark:spark-sql-kafka-0-10_2.13",)
# The connector's other dependencies are part of Spark.
CONNECTOR_JARS: Final = "spark-sql-kafka-0-10_2.13,spark-token-provider-kafka-0-10_2.13,kafka-clients,commons-pool2"
JVM: Final = (
    "-Xms1g",
    "-Xmx1g",
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-XX:-UsePerfData",
)
TOOL_JVM: Final = ("-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-XX:-UsePerfData")
CLUSTER_ID: Final = "aG9sZGZhc3QtYmVuY2gtMQ"  # any 16 bytes will do


@dataclass(frozen=True, slots=True)
class KafkaFiles:
    """The fetched files."""

    broker: Path
    connector: Path
    python: Path


def fetch(log: Callable[[str], None]) -> KafkaFiles:
    """Return the files for Kafka's side; fetch those that are not cached.

    Raises:
        BenchmarkFailed: A file could not be fetched; the text says which program to install.
    """
    home = cache_home() / "holdfast-bench"
    home.mkdir(parents=True, exist_ok=True)
    broker, connector = home / f"kafka-{KAFKA_VERSION}", home / f"connector-{SPARK_VERSION}"
    environment = home / f"spark-{SPARK_VERSION}"
    if not broker.is_dir():
        log(f"   fetching Kafka {KAFKA_VERSION} into {broker}, once")
        _fill(broker, lambda new: _fetch_jars(new, BROKER, KAFKA_VERSION))
    if not connector.is_dir():
        log(f"   fetching the Kafka connector of Spark {SPARK_VERSION} into {connector}, once")
        _fill(
            connector, lambda new: _fetch_jars(new, CONNECTOR, SPARK_VERSION, f"-DincludeArtifactIds={CONNECTOR_JARS}")
        )
    if not environment.is_dir():
        log(f"   installing Spark {SPARK_VERSION} into {environment}, once: 400 MB, some minutes")
        _fill(environment, _install_spark)
    return KafkaFiles(broker, connector, environment / "bin" / "python")


def _fill(final: Path, work: Callable[[Path], None]) -> None:
    """Run *work* so that *final* appears complete or not at all."""
    with tempfile.TemporaryDirectory(prefix=f"{final.name}.", dir=final.parent) as temporary:
        new = Path(temporary, "new")
        new.mkdir()
        work(new)
        new.rename(final)


def _fetch_jars(folder: Path, artifacts: Sequence[str], version: str, *flags: str) -> None:
    if shutil.which("mvn") is None:
        raise BenchmarkFailed("Kafka is fetched with Maven: install it (Debian: apt install maven)")
    dependencies = "".join(
        f"<dependency><groupId>{group}</groupId><artifactId>{name}</artifactId><version>{version}</version></dependency>"
        for group, name in (artifact.split(":") for artifact in artifacts)
    )
    with tempfile.TemporaryDirectory() as temporary:
        project = Path(temporary, "pom.xml")
        project.write_text(
            '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
            "<groupId>holdfast</groupId><artifactId>bench</artifactId><version>1</version>"
            f"<dependencies>{dependencies}</dependencies></project>",
            encoding="utf-8",
        )
        goal = ["dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={folder}", *flags]
        _run(["mvn", "-q", "-B", "-f", str(project), *goal], f"Maven could not fetch version {version}")


def _install_spark(folder: Path) -> None:
    _run([sys.executable, "-m", "venv", str(folder)], "no Python environment could be made")
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    _run([*pip, "--require-hashes", "-r", str(LOCK)], f"pip could not install Spark {SPARK_VERSION}")


def _run(command: Sequence[str], problem: str) -> None:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode != 0:
        raise BenchmarkFailed(f"{problem}:\n{done.stdout[-4000:]}")


class KafkaBroker:
    """One running broker. Its store is below *folder*; it uses *port* and the next one."""

    def __init__(self, files: KafkaFiles, folder: Path, port: int) -> None:
        self.address = f"127.0.0.1:{port}"
        self._path = f"{files.broker}/*"
        folder.mkdir(parents=True)
        settings = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{port + 1}",
            "advertised.listeners": f"PLAINTEXT://{self.address}",
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.bootstrap.servers": f"127.0.0.1:{port + 1}",
            "log.dirs": str(folder / "data"),
            # One broker has no other broker to replicate these to.
            "offsets.topic.replication.factor": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
        }
        file = folder / "server.properties"
        file.write_text("".join(f"{key}={value}\n" for key, value in settings.items()), encoding="utf-8")
        self._tool("kafka.tools.StorageTool", "format", "--standalone", "--cluster-id", CLUSTER_ID, "-c", str(file))
        self._child = Child(["java", *JVM, "-cp", self._path, "kafka.Kafka", str(file)], name="Kafka broker")
        try:
            wait_until_listening(self._child, port)
        except ChildFailed as error:
            self._child.kill()
            raise BenchmarkFailed(str(error)) from error

    def create_topic(self, topic: str, partitions: int) -> None:
        """Create *topic*; the tool returns when the broker has it."""
        server = ["--bootstrap-server", self.address]
        self._tool(
            "org.apache.kafka.tools.TopicCommand",
            *server,
            "--create",
            "--topic",
            topic,
            "--partitions",
            str(partitions),
        )

    def kill(self) -> None:
        """Kill the broker; its store is not needed any more."""
        self._child.kill()

    def _tool(self, main: str, *arguments: str) -> None:
        _run(["java", *TOOL_JVM, "-cp", self._path, main, *arguments], f"Kafka's {main.rpartition('.')[2]} failed")
