"""Queries on a cluster with access control and TLS: in this process, and on executors in processes of their own."""

import json
import os
import sys
import textwrap
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.spark.test_standalone import Standalone, standalone  # noqa: F401 - a fixture
from tests.support.certificates import Certificates
from tests.support.child import Child
from tests.support.cluster.operator import run_in_process
from tests.support.cluster.up import Up

from holdfast.spark import register
from holdfast.spark.spark_session import _wrap_python

WRONG = "a-secret-that-is-wrong"
SEEN_TIMEOUT_S = 200.0


class GuardedCluster:
    """A cluster that enforces TLS and access control, and the user `spark`."""

    def __init__(self, running: Up, folder: Path, ca: str) -> None:
        self.namesrv = running.namesrv
        self.ca = ca
        self.secret_file = folder / "spark.secret"
        auth = running.announced["auth"]
        self._admin = ("--access-key", auth["access_key"], "--secret-file", auth["secret_file"], "--tls-ca", ca)
        self.run("user", "create", "spark", "--save-to", str(self.secret_file))
        self.run("acl", "grant", "spark", "Topic:numbers*", "Pub,Sub,Get")
        self.run("acl", "grant", "spark", "Group:*", "Sub,Get")

    def run(self, *words: str) -> str:
        """Run a command as the administrator; return what it prints."""
        result = run_in_process(*words, *self._admin, namesrv=self.namesrv)
        assert result.status == 0, result.err
        return result.out

    def new_topic(self, name: str) -> str:
        self.run("topic", "create", name, "--logical-queues", "4")
        return name

    def send(self, topic: str, numbers: range) -> None:
        for number in numbers:
            self.run("send", topic, str(number))

    def bodies(self, topic: str) -> list[int]:
        """Return the numbers in a topic, sorted."""
        out = self.run("tail", topic, "--from", "earliest", "--json", "--max", "10000")
        return sorted(int(message["body"]) for message in json.loads(out)["messages"])

    @property
    def secret(self) -> str:
        return self.secret_file.read_text().strip()


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedCluster]:
    folder = tmp_path_factory.mktemp("guarded")
    files = Certificates(folder / "certificates")
    options = [f"--{name.replace('_', '-')}={value}" for name, value in files.options.items()]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(folder / "config"))
        with Up(folder / "data", "--brokers", "2", "--auth", "--tls", "enforcing", *options) as running:
            yield GuardedCluster(running, folder, files.ca)


def test_a_query_passes_the_door_over_tls_with_its_secret_only(spark: SparkSession, guarded: GuardedCluster):
    """Rows are written once and read; a wrong secret, and none, fail without saying any."""
    register(spark)
    topic = guarded.new_topic("numbers-local")
    server = {"namesrv": guarded.namesrv, "tls.ca": guarded.ca}
    access = {**server, "accessKey": "spark", "secretKey": guarded.secret}
    rows = spark.range(60).selectExpr("cast(id as string) as body")
    rows.write.format("holdfast").options(topic=topic, exactlyOnce="true", **access).mode("append").save()

    frame = spark.read.format("holdfast").options(subscribe=topic, **access).load()
    assert sorted(int(row.body) for row in frame.select("body").collect()) == list(range(60))
    for wrong in ({**access, "secretKey": WRONG}, server):
        with pytest.raises(Exception) as caught:  # noqa: PT011 - whatever Spark makes of it
            spark.read.format("holdfast").options(subscribe=topic, brokerTimeout="5s", **wrong).load().collect()
        text = str(caught.value)
        assert "access" in text or "denied" in text or "user" in text.lower()
        assert WRONG not in text
        assert guarded.secret not in text


DRIVER = """
    import json, sys
    from holdfast.spark import session

    master, events, folder, server, fixed, filed = sys.argv[1:4] + [json.loads(word) for word in sys.argv[4:7]]
    fixed["secretKey"] = sys.stdin.readline().strip()
    wrong = {**fixed, "secretKey": sys.stdin.readline().strip()}
    config = {
        "spark.executor.memory": "512m", "spark.executor.cores": "1", "spark.ui.enabled": "true", "spark.ui.port": "0",
        "spark.eventLog.enabled": "true", "spark.eventLog.dir": events, "spark.eventLog.compress": "false",
    }
    spark = session("guarded", master=master, config=config)

    def reader(of, access, topic):
        return of.format("holdfast").options(**server, **access, subscribe=topic, startingOffsets="earliest")

    def sink(writer, access, topic, **options):
        return writer.format("holdfast").options(**server, **access, topic=topic, **options)

    numbers = spark.range(100).selectExpr("cast(id as string) as body").repartition(4)
    sink(numbers.write, fixed, "numbers-a").mode("append").save()
    sink(numbers.write, filed, "numbers-b", exactlyOnce="true").mode("append").save()
    for access in (fixed, filed):
        frame = reader(spark.read, access, "numbers-a").load()
        frame.explain(True)
        print("read", sorted(int(row.body) for row in frame.select("body").collect()) == list(range(100)), flush=True)
    frame.createOrReplaceTempView("numbers")
    spark.sql("EXPLAIN EXTENDED SELECT body FROM numbers").show(truncate=False)
    for access in (wrong,):
        try:
            reader(spark.read, access, "numbers-a").option("brokerTimeout", "5s").load().collect()
        except Exception as error:
            print("refused", " ".join(str(error).split()), flush=True)

    stream = reader(spark.readStream, fixed, "numbers-a").load().select("body").writeStream
    query = sink(stream, fixed, "numbers-c", checkpointLocation=folder + "/c").trigger(availableNow=True).start()
    query.awaitTermination()
    query.explain(True)
    print("streamed", query.exception() is None, flush=True)

    stream = reader(spark.readStream, filed, "numbers-a").load().select("body").writeStream
    query = sink(stream, filed, "numbers-d", exactlyOnce="true", checkpointLocation=folder + "/d").start()
    query.processAllAvailable()
    query.explain(True)
    print("ready", spark.sparkContext.uiWebUrl, spark.sparkContext.applicationId, flush=True)
    for line in sys.stdin:
        if line.strip() == "end":
            break
        query.processAllAvailable()
        print("read to the end", query.runId, query.exception() is None, flush=True)
    query.stop()
    spark.stop()
    print("stopped", flush=True)
"""


def command_lines() -> str:
    """Return the arguments of all processes, as `ps` shows them."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            found.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        except OSError:
            continue  # It has ended.
    return "\n".join(found)


def pages(url: str, application: str) -> dict[str, str]:
    """Return what the web page and the REST API of a running query show about it, by path."""
    rest = f"/api/v1/applications/{application}"
    paths = [f"{rest}/environment", f"{rest}/jobs", f"{rest}/stages?details=true", f"{rest}/executors"]
    paths += [
        f"{rest}/sql?details=true&planDescription=true&length=1000",
        "/environment/",
        "/SQL/",
        "/jobs/",
        "/StreamingQuery/",
    ]
    paths += [f"/SQL/execution/?id={number}" for number in range(4)]
    found = {}
    for path in paths:
        with urllib.request.urlopen(url + path, timeout=60) as answer:
            found[path] = answer.read().decode()
    return found


def files_below(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_executors_get_secrets_that_nothing_shows_and_follow_a_rotation(
    guarded: GuardedCluster,
    standalone: Standalone,  # noqa: F811 - the fixture
    tmp_path: Path,
):
    """Batch reads, streams and both sinks, by option and by file. One run of a query goes through a rotation."""
    for letter in "abcd":
        guarded.new_topic(f"numbers-{letter}")
    program, events, checkpoints = tmp_path / "driver.py", tmp_path / "events", tmp_path / "checkpoints"
    program.write_text(textwrap.dedent(DRIVER))
    events.mkdir()
    server = {"namesrv": guarded.namesrv, "tls.ca": guarded.ca}
    filed = {"accessKey": "spark", "secretFile": str(guarded.secret_file)}
    words = [json.dumps(each) for each in (server, {"accessKey": "spark"}, filed)]
    command = [sys.executable, str(program), standalone.url, str(events), str(checkpoints), *words]
    secrets = [guarded.secret, WRONG]
    # Spark gives a Python worker ten seconds to start; this wrapper makes that shorter.
    environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": str(_wrap_python())}
    driver = Child(command, name="driver", environment=environment)
    try:
        driver.write_line(guarded.secret)
        driver.write_line(WRONG)
        _, url, application = driver.wait_for_line("^ready", timeout_s=SEEN_TIMEOUT_S).split()
        lines = driver.lines()
        assert [line for line in lines if line.startswith(("read ", "streamed "))] == ["read True"] * 2 + [
            "streamed True"
        ]
        refused = next(line for line in lines if line.startswith("refused"))
        assert "spark" in refused
        shown = pages(url, application)

        first = go_on(driver)
        guarded.run("user", "update", "spark", "--save-to", str(guarded.secret_file), "--keep-old-secret")
        secrets.append(guarded.secret)
        guarded.send("numbers-a", range(100, 110))
        assert go_on(driver) == first
        guarded.run("user", "update", "spark", "--drop-old-secret")
        guarded.send("numbers-a", range(110, 120))
        assert go_on(driver) == first
        arguments = command_lines()
        shown |= {f"{path} later": text for path, text in pages(url, application).items()}
        driver.write_line("end")
        driver.wait_for_line("stopped", timeout_s=SEEN_TIMEOUT_S)
    finally:
        driver.kill()

    assert guarded.bodies("numbers-b") == list(range(100))
    assert guarded.bodies("numbers-c") == list(range(100))
    assert guarded.bodies("numbers-d") == list(range(120))
    assert "holdfast" in shown[f"/api/v1/applications/{application}/sql?details=true&planDescription=true&length=1000"]
    log, kept = files_below(events), files_below(checkpoints) + files_below(standalone.folder)
    assert b"SparkListenerSQLExecutionStart" in log
    assert "org.apache.spark" in arguments
    assert b"CoarseGrainedExecutorBackend" in kept
    for secret in secrets:
        assert secret not in "\n".join(driver.lines())
        assert [path for path, text in shown.items() if secret in text] == []
        assert secret not in arguments
        assert secret.encode() not in log + kept


def go_on(driver: Child) -> str:
    """Let the query read to the end; return what says which run it is, and that it has not failed."""
    heard = len(driver.lines())
    driver.write_line("go")
    line = driver.wait_for_line("^read to the end", timeout_s=SEEN_TIMEOUT_S, after=heard)
    assert line.endswith("True")
    return line
