"""A Java client reads, from our broker, the folders that Java brokers wrote: every message of the manifest, exactly.

The manifest is what a Java client read from the Java broker itself. One of the folders is of a broker that was killed.
"""

import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.interop.java_shell import JavaShell
from tests.support.cluster.processes import ProcessCluster
from tests.support.java_peer import JavaPeer

pytestmark = [pytest.mark.interop, pytest.mark.timeout(180)]

GOLDEN = Path(__file__).parents[1] / "data" / "golden"
GROUP = "golden-group"
# Their index and their logical offsets are another feature's.
NOT_HERE = {"GoldenInner", "GoldenStatic"}
_COMPRESSED = 1  # bit of sysFlag that the client clears when it has inflated the body

Line = dict[str, Any]


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The archives, unpacked."""
    folder = tmp_path_factory.mktemp("golden")
    for archive in GOLDEN.glob("*.tar.gz"):
        with tarfile.open(archive) as tar:
            tar.extractall(folder, filter="data")
    return folder


@pytest.fixture(scope="module")
def name_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with ProcessCluster(tmp_path_factory.mktemp("namesrv")) as cluster:
        yield cluster.namesrv


@pytest.fixture(scope="module")
def shell(peer_5: JavaPeer, name_server: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaShell]:
    with JavaShell(peer_5, name_server, tmp_path_factory.mktemp("shell")) as java:
        yield java


def as_dumped(line: Line) -> Line:
    """Return a message of the manifest in the words of our dump."""
    return {
        "message": line["msgId"],
        "queueId": line["queueId"],
        "queueOffset": line["queueOffset"],
        "position": line["commitLogOffset"],
        "stored": line["storeTimestamp"],
        "born": line["bornTimestamp"],
        "properties": line["properties"],
        "rest": {
            "flag": line["flag"],
            "sysFlag": line["sysFlag"] & ~_COMPRESSED,
            "bodyCRC": line["bodyCRC"],
            "storeSize": line["storeSize"],
            "bornHost": line["bornHost"],
            "storeHost": line["storeHost"],
            "reconsumeTimes": line["reconsumeTimes"],
            "prepared": line["preparedTransactionOffset"],
            "sha256": line["sha256"],
        },
    }


def read_manifest(folder: Path, broker: str) -> list[Line]:
    """Return what the manifest says of *broker*, in order."""
    text = (folder / "manifest.jsonl").read_text(encoding="utf-8")
    lines: list[Line] = [json.loads(line) for line in text.split("\n") if line]
    return [line for line in lines if line["brokerName"] == broker and line["topic"] not in NOT_HERE]


def messages(dump: list[Line]) -> list[Line]:
    """Return the messages of a dump; whether the client saw them compressed depends on its version."""
    found = [line for line in dump if "message" in line]
    for line in found:
        line["rest"]["sysFlag"] &= ~_COMPRESSED
    return found


def bounds(dump: list[Line]) -> dict[int, tuple[int, int]]:
    """Return min and max offset of every queue that ever had a message."""
    return {line["queue"]: (line["min"], line["max"]) for line in dump if line.get("max")}


@pytest.mark.parametrize(
    ("folder", "broker"),
    [("rocketmq-4.9.7-killed", "broker-a"), ("rocketmq-5.5.0-clean", "broker-a"), ("rocketmq-5.5.0-clean", "broker-b")],
)
def test_a_java_client_reads_a_java_folder_from_us(
    golden: Path, name_server: str, shell: JavaShell, tmp_path: Path, folder: str, broker: str
) -> None:
    """Bounds, messages and committed offsets are those of the manifest, for every topic in it."""
    manifest = read_manifest(golden / folder, broker)
    topics = sorted({line["topic"] for line in manifest if line["kind"] == "message"})
    assert len(topics) >= 7

    with ProcessCluster(tmp_path, name_servers=0) as cluster:
        settings = {"retention_hours": 1_000_000}
        cluster.start(broker, namesrv=name_server, cluster="golden", store=golden / folder / broker, settings=settings)
        dumps = {topic: [json.loads(line) for line in shell.run("dump", topic, GROUP)[1]] for topic in topics}

    for topic, dump in dumps.items():
        wanted = [line for line in manifest if line["topic"] == topic]
        queues = [line for line in wanted if line["kind"] == "queue"]
        committed = {line["queueId"]: line["offset"] for line in wanted if line["kind"] == "offset"}
        told = {line["queue"]: line["committed"] for line in dump if line.get("queue") in committed}
        assert messages(dump) == [as_dumped(line) for line in wanted if line["kind"] == "message"]
        assert bounds(dump) == {line["queueId"]: (line["minOffset"], line["maxOffset"]) for line in queues}
        assert told == committed
