"""A static topic that Java brokers wrote, and that mqadmin moved: both folders opened by us, and read as one queue.

The manifest has what a Java client read from the running brokers, in logical offsets. Java records no ends.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.support.cluster.broker_machine import a_send
from tests.support.cluster.broker_machines import StaticBroker, StaticBrokers, records

from holdfast.runtime.posix_disk import PosixDisk
from holdfast.sim.world.disk import SimDisk
from holdfast.wire.frames.command import Command
from holdfast.wire.requests.send import send_header

ARCHIVE = Path(__file__).parents[1] / "data" / "golden" / "rocketmq-5.5.0-clean.tar.gz"
TOPIC = "GoldenStatic"
BROKERS = ("broker-a", "broker-b")


class GoldenDesks(StaticBrokers):
    """Both brokers, on Java's folders."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        super().__init__(*BROKERS)

    def start(self, name: str, disk: SimDisk | None = None) -> StaticBroker:
        """Start a broker, always in the folder that Java left for it."""
        folder = disk or PosixDisk(self.folder / name)
        return StaticBroker(self, name, folder, retention_hours=1_000_000)  # type: ignore[arg-type]


@pytest.fixture
def golden(tmp_path: Path) -> Iterator[tuple[GoldenDesks, list[dict[str, Any]]]]:
    with tarfile.open(ARCHIVE) as tar:
        tar.extractall(tmp_path, filter="data")
    folder = tmp_path / "rocketmq-5.5.0-clean"
    lines = [msgspec.json.decode(line) for line in (folder / "manifest.jsonl").read_bytes().splitlines()]
    desks = GoldenDesks(folder)
    yield desks, [line for line in lines if line["topic"] == TOPIC]
    desks.brokers.clear()  # Files are closed when nobody has them any more.


def a_question(code: int, queue: int) -> Command:
    return Command(code=code, fields={"topic": TOPIC, "queueId": str(queue)})


def read_all(desk: StaticBroker, queue: int) -> dict[int, tuple[int, int, int]]:
    """Return what a Java 5 client sees: logical offset to position, size and checksum."""
    found: dict[int, tuple[int, int, int]] = {}
    offset = 0
    for _ in range(200):
        fields = {
            "consumerGroup": "golden-reader",
            "topic": TOPIC,
            "queueId": str(queue),
            "queueOffset": str(offset),
            "maxMsgNums": "32",
            "sysFlag": "4",
            "commitOffset": "0",
            "suspendTimeoutMillis": "0",
            "subscription": "*",
            "subVersion": "0",
        }
        (answer,) = desk.call(Command(code=11, fields=fields, language="JAVA", version=477))
        delta = int(answer.fields["offsetDelta"])
        for record in records(answer):
            found[record.offset + delta] = (record.position, record.size, record.body_crc)
        offset = int(answer.fields["nextBeginOffset"])
        if answer.code == 19:
            return found
    raise AssertionError("the end was never reached")


def test_every_message_of_the_manifest_is_read_over_the_border(golden: tuple[GoldenDesks, list[dict[str, Any]]]):
    """The leader serves its own segment, and the other broker's, with the offsets that the Java client saw."""
    desks, lines = golden
    expected: dict[int, dict[int, tuple[int, int, int]]] = {}
    for line in lines:
        if line["kind"] == "message":
            of_queue = expected.setdefault(line["queueId"], {})
            of_queue[line["queueOffset"]] = (line["commitLogOffset"], line["storeSize"], line["bodyCRC"])

    found = {queue: read_all(desks["broker-b"], queue) for queue in expected}

    assert found == expected
    assert sum(map(len, expected.values())) > 100


def test_bounds_are_those_that_java_told(golden: tuple[GoldenDesks, list[dict[str, Any]]]):
    """Min and max are logical."""
    desks, lines = golden

    for line in (line for line in lines if line["kind"] == "queue"):
        (highest,) = desks["broker-b"].call(a_question(30, line["queueId"]))
        (lowest,) = desks["broker-b"].call(a_question(31, line["queueId"]))
        assert (int(lowest.fields["offset"]), int(highest.fields["offset"])) == (line["minOffset"], line["maxOffset"])


def test_the_broker_that_was_left_takes_no_more_sends(golden: tuple[GoldenDesks, list[dict[str, Any]]]):
    """Java's record leaves the next home undecided there: it must not look like a queue that may be written."""
    desks, _ = golden
    sends = desks["broker-a"].components.fast_sends

    sends.handle_run([send_header(a_send(TOPIC, queue=0))], [b"hello"], [bytes(8)])
    (new,) = desks["broker-b"].call(a_send(TOPIC, queue=0))

    assert sends.drain_away() == [0]
    assert (new.code, new.fields["queueOffset"]) == (0, "10041")


def test_the_end_that_java_does_not_record_is_recorded(golden: tuple[GoldenDesks, list[dict[str, Any]]]):
    """Only the broker that was left knows where its segment ends: it keeps that, over restarts too."""
    desks, _ = golden
    desks["broker-a"].pass_time(5_000, "kept files")
    mapping = desks["broker-a"].components.mappings.find(TOPIC)

    again = desks.restart("broker-a").components.mappings

    assert mapping is not None
    assert all(queue.leader.is_sealed and queue.leader.end > 0 for queue in mapping.queues.values())
    assert again.find(TOPIC) == mapping
    assert again.adopted == []
