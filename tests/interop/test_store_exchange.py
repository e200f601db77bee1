"""One store folder, opened by turns by our broker and by a Java one: each serves exactly what the other wrote.

    ours writes -> Java reads all, writes -> ours reads all, writes -> Java reads all

A Java client takes the dumps that are compared: every field of every message, the bounds of every queue, the committed
offsets; and each message is found again by its id and its key.
"""

import contextlib
import hashlib
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.interop.java_shell import JavaShell
from tests.interop.servers import CLUSTER, HOLDFAST_SETTINGS, JAVA_SETTINGS
from tests.support.child import Child
from tests.support.cluster.ports import free_port
from tests.support.cluster.processes import ProcessCluster
from tests.support.java_peer import JavaPeer
from tests.support.stores import HOST, INNER_BATCH, finish

from holdfast.cli.main import main
from holdfast.runtime.posix_disk import PosixDisk
from holdfast.store.base.options import StoreOptions
from holdfast.store.message_store import MessageStore
from holdfast.wire.records.batch import encode_items, split_items

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

BROKER, TOPIC, DELAYED, GROUP = "keeper", "Exchanged", "ExchangedDelayed", "ExchangeGroup"
# Several files of the log for each turn.
LOG_FILE_SIZE = 1 << 20
COUNT = 200
DELAYED_COUNT = 5
BATCHED = "ExchangedBatches"
BATCHED_CONFIG = {
    "topicName": BATCHED,
    "perm": 6,
    "readQueueNums": 2,
    "writeQueueNums": 2,
    "topicFilterType": "SINGLE_TAG",
    "topicSysFlag": 0,
    "order": False,
    "attributes": {"queue.type": "BatchCQ"},
}

Message = dict[str, Any]


@dataclass(slots=True)
class Exchange:
    """The folder, the name server that outlives all turns, and what the last dump said."""

    store: Path
    cluster: ProcessCluster
    shell: JavaShell
    port: int = field(default_factory=free_port)
    sent: int = 0
    turns: int = 0
    last: list[str] = field(default_factory=list)

    @contextlib.contextmanager
    def opened_by(self, peer: JavaPeer | None, *, crash: bool = False) -> Iterator[None]:
        """Let a Java broker, or ours without *peer*, have the folder; at the end it stops orderly, or is killed."""
        child = self._start(peer)
        try:
            self.cluster.wait_until_registered(BROKER)
            yield
            if not crash:
                child.stop()
        finally:
            child.kill()
        self.cluster.wait_until_gone(BROKER)

    def _start(self, peer: JavaPeer | None) -> Child:
        if peer is None:
            ours = {**HOLDFAST_SETTINGS, "log_file_size": LOG_FILE_SIZE}
            return self.cluster.start(BROKER, cluster=CLUSTER, port=self.port, store=self.store, settings=ours).child
        return peer.start_broker(
            name=BROKER,
            cluster=CLUSTER,
            port=self.port,
            name_server=self.cluster.namesrv,
            store=self.store,
            settings={**JAVA_SETTINGS, "mappedFileSizeCommitLog": str(LOG_FILE_SIZE)},
        )

    def write(self) -> None:
        """Add messages, committed offsets, and messages due at somebody else's turn; remember what is there."""
        self.shell.run("fill", TOPIC, self.sent, COUNT)
        self.shell.run("commit", TOPIC, GROUP)
        self.sent += COUNT
        written = self.dump()
        assert set(messages(self.last)) <= set(messages(written)), "writing changed what was there"
        assert len(messages(written)) == self.sent
        self.last = written
        self.shell.run("delay", DELAYED, self.turns * DELAYED_COUNT, DELAYED_COUNT)
        self.turns += 1

    def check_unchanged(self) -> None:
        """Require that everything is as it was when the last turn ended."""
        assert self.dump() == self.last

    def dump(self) -> list[str]:
        """Return all that a client sees; every message must also be found by its id, and every tenth by its key."""
        lines = self.shell.run("dump", TOPIC, GROUP)[1]
        assert self.shell.run("find", TOPIC, GROUP)[0] == str(len(messages(lines)))
        return lines


def messages(lines: list[str]) -> list[str]:
    """Return those lines of a dump that are messages."""
    return [line for line in lines if line.startswith('{"message"')]


@pytest.fixture
def exchange(peer_5: JavaPeer, tmp_path: Path) -> Iterator[Exchange]:
    with ProcessCluster(tmp_path) as cluster, JavaShell(peer_5, cluster.namesrv, tmp_path / "shell") as shell:
        yield Exchange(tmp_path / "store", cluster, shell)


def begin(exchange: Exchange) -> None:
    """Make the topics and the group, on whatever broker is there."""
    exchange.shell.make_topic(TOPIC, CLUSTER, 4, 1)
    exchange.shell.make_topic(DELAYED, CLUSTER, 2, 1)
    assert "success" in exchange.shell.mqadmin("updateSubGroup", "-c", CLUSTER, "-g", GROUP)


def test_a_store_goes_back_and_forth_between_ours_and_5_5_0(exchange: Exchange, peer_5: JavaPeer) -> None:
    """Twice there and once back, with writes at every turn, nothing is lost or changed; delayed messages come once."""
    with exchange.opened_by(None):
        begin(exchange)
        exchange.write()
    with exchange.opened_by(peer_5):
        exchange.check_unchanged()
        exchange.write()
    with exchange.opened_by(None):
        exchange.check_unchanged()
        exchange.write()
    with exchange.opened_by(peer_5):
        exchange.check_unchanged()

        expected = exchange.turns * DELAYED_COUNT
        while (delivered := int(exchange.shell.run("stored", DELAYED)[0])) < expected:
            continue  # asked again at once; the test's time limit ends a wait in vain
        assert delivered == expected


def test_a_store_goes_to_4_9_7_and_back(exchange: Exchange, peer_4: JavaPeer) -> None:
    """There and back, with writes at every turn, nothing is lost or changed."""
    with exchange.opened_by(None):
        begin(exchange)
        exchange.write()
    with exchange.opened_by(peer_4):
        exchange.check_unchanged()
        exchange.write()
    with exchange.opened_by(None):
        exchange.check_unchanged()
        exchange.write()
    assert (exchange.turns, exchange.sent) == (3, 3 * COUNT)


@pytest.mark.slow
@pytest.mark.parametrize("peer_name", ["peer_4", "peer_5"])
def test_a_store_begun_by_java_survives_crashes_on_either_side(
    exchange: Exchange, request: pytest.FixtureRequest, peer_name: str
) -> None:
    """Whoever finds the folder of a killed broker recovers it: what was dumped before the crash is there after it."""
    peer: JavaPeer = request.getfixturevalue(peer_name)

    with exchange.opened_by(peer):
        begin(exchange)
        exchange.write()
    with exchange.opened_by(None, crash=True):
        exchange.check_unchanged()
        exchange.write()
    with exchange.opened_by(peer, crash=True):
        assert messages(exchange.dump()) == messages(exchange.last)
        exchange.write()
    with exchange.opened_by(None):
        assert messages(exchange.dump()) == messages(exchange.last)


def open_batched(folder: Path) -> MessageStore:
    """Open the folder ourselves: the broker takes and hands out no batches."""
    return MessageStore.open(PosixDisk(folder), StoreOptions(log_file_size=LOG_FILE_SIZE), now_ms())


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def write_batches(store: MessageStore, random: Random, count: int) -> set[tuple[int, int, str]]:
    """Store batches and single messages. Return queue, offset and checksum of each message."""
    written = set()
    for number in range(count):
        queue = store.queue(BATCHED, number % 2)
        size = random.choice((1, 2, 30))
        bodies = [random.randbytes(random.choice((1, 100, 2000))) for _ in range(size)]
        texts = [b"UNIQ_KEY\x01%032X\x02" % random.getrandbits(100) for _ in bodies]
        body, flag, properties = bodies[0], 0, texts[0]
        if size > 1:
            body = encode_items((0, inner, text) for inner, text in zip(bodies, texts, strict=True))
            flag, properties = INNER_BATCH, texts[0] + b"INNER_NUM\x01%d\x02" % size
        _, offset = store.stage(queue, body, properties, 0, flag, now_ms(), HOST, 0, now_ms())
        store.write()
        store.confirm(store.written)
        checksums = [hashlib.sha256(inner).hexdigest() for inner in bodies]
        written |= {(queue.queue_id, offset + at, checksum) for at, checksum in enumerate(checksums)}
    return written


def dumped(lines: list[str]) -> list[Message]:
    return [json.loads(line) for line in messages(lines)]


def told(found: list[Message]) -> set[tuple[int, int, str]]:
    return {(message["queueId"], message["queueOffset"], message["rest"]["sha256"]) for message in found}


def check_batched(store: MessageStore, expected: list[Message]) -> None:
    """Every message that a Java client read is found, by its offset and with its time."""
    for message in expected:
        queue, offset = store.queue(BATCHED, message["queueId"]), message["queueOffset"]
        position, size, _ = queue.get_entry(offset)
        record = store.read_record(position)
        assert record is not None
        assert (position, size, record.store_ms) == (message["position"], record.size, message["stored"])
        assert finish(store, store.store_time(queue, offset)) == message["stored"]
        assert finish(store, store.offset_at_time(queue, message["stored"])) <= offset
        if record.sys_flag & INNER_BATCH == INNER_BATCH:
            _, body, _ = split_items(record.body)[offset - record.offset]
            assert hashlib.sha256(body).hexdigest() == message["rest"]["sha256"]


@pytest.mark.slow  # That a converted index is served by Java and comes back is in every run.
def test_an_index_by_record_goes_back_and_forth(exchange: Exchange, peer_5: JavaPeer) -> None:
    """Java serves what we indexed and goes on behind it; we find what it wrote, and it what we add again."""
    random = Random(1)
    exchange.store.mkdir()
    disk = PosixDisk(exchange.store)
    disk.replace("config/topics.json", json.dumps({"topicConfigTable": {BATCHED: BATCHED_CONFIG}}).encode())
    ours = open_batched(exchange.store)
    written = write_batches(ours, random, 60)
    ours.close(now_ms())

    with exchange.opened_by(peer_5):
        assert "success" in exchange.shell.mqadmin("updateSubGroup", "-c", CLUSTER, "-g", GROUP)
        assert told(dumped(exchange.shell.run("dump", BATCHED, GROUP)[1])) == written
        exchange.shell.run("fill", BATCHED, 0, COUNT)
        lines = exchange.shell.run("dump", BATCHED, GROUP)[1]
    found = dumped(lines)
    assert len(found) == len(written) + COUNT
    ours = open_batched(exchange.store)
    assert ours.recovered.damages == []
    check_batched(ours, found)
    bounds = [(line["queue"], line["min"], line["max"]) for line in map(json.loads, lines) if "queue" in line]
    queues = [ours.queue(BATCHED, number) for number in range(2)]
    assert bounds == [(queue.queue_id, queue.offset_min, queue.offset_max) for queue in queues]
    added = write_batches(ours, random, 20)
    ours.close(now_ms())

    with exchange.opened_by(peer_5):
        assert told(dumped(exchange.shell.run("dump", BATCHED, GROUP)[1])) == told(found) | added


def convert_index(exchange: Exchange, to: str) -> None:
    words = ["index", "convert", TOPIC, "--to", to, "--store", str(exchange.store)]
    assert main(words) == 0


def index_files(exchange: Exchange) -> dict[str, bytes]:
    folder = exchange.store / "consumequeue" / TOPIC
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_converted_index_is_served_by_java_and_is_the_same_when_it_comes_back(
    exchange: Exchange, peer_5: JavaPeer
) -> None:
    """By record Java finds every message by offset, id and key; by message the bytes are what they were."""
    with exchange.opened_by(None):
        begin(exchange)
        exchange.write()
    before = index_files(exchange)

    convert_index(exchange, "batch")
    assert not (exchange.store / "consumequeue" / TOPIC).exists()
    with exchange.opened_by(peer_5):
        exchange.check_unchanged()
    convert_index(exchange, "simple")

    assert index_files(exchange) == before
    with exchange.opened_by(None):
        exchange.check_unchanged()


@pytest.mark.slow
def test_an_index_that_java_wrote_is_converted_and_java_goes_on_with_it(exchange: Exchange, peer_5: JavaPeer) -> None:
    """Behind the last message, in either kind."""
    with exchange.opened_by(peer_5):
        begin(exchange)
        exchange.write()
    before = index_files(exchange)
    convert_index(exchange, "batch")
    convert_index(exchange, "simple")
    assert index_files(exchange) == before
    with exchange.opened_by(peer_5):
        exchange.check_unchanged()
        exchange.write()
    convert_index(exchange, "batch")
    with exchange.opened_by(peer_5):
        exchange.check_unchanged()
        exchange.shell.run("fill", TOPIC, exchange.sent, COUNT)
        assert len(messages(exchange.shell.run("dump", TOPIC, GROUP)[1])) == exchange.sent + COUNT
