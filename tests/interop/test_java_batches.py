"""Java consumers, unmodified, read batches that our producer closed and our broker keeps whole.

5.5.0 opens them, also compressed ones, which its own producer never makes; 4.9.7 cannot, and gets single messages. Both
see the same: each message at its offset, with its own tag and key, from wherever they begin. So do clients in other
languages, and our consumer at a Java broker.
"""

import asyncio
import contextlib
import json
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.interop.foreign_members import ali_ons_member, py_rocketmq_member
from tests.interop.java_shell import JavaShell, fields, rows
from tests.interop.servers import CLUSTER, JAVA_SETTINGS
from tests.support.client_stories import Inbox
from tests.support.cluster.ports import free_port
from tests.support.cluster.processes import ProcessCluster
from tests.support.cluster.raw_requests import make_topic, wait_until_registered
from tests.support.inner_batches import Item
from tests.support.java_peer import JavaPeer
from tests.support.whole_batches import ATTRIBUTES, an_inner_batch, send_commands

from holdfast import Message, Producer, PushConsumer, RetryLater
from holdfast.wire.records.compression import Codec
from holdfast.wire.records.inner_batch import is_inner_batch

pytestmark = [pytest.mark.interop, pytest.mark.timeout(180)]

CODECS: list[Codec | None] = [None, *Codec]
COUNT = 40
"""Messages of each batch; there is one for every way to compress it."""
TOTAL = COUNT * len(CODECS)


def item(number: int) -> Item:
    """Return a message: three of four have a tag, each has a key."""
    unique_key = (
        f"7F0000010000000000000000{number + number // COUNT + 1:08X}"  # Each batch has an id before its messages.
    )
    return Item(
        f"body {number} ".encode() * 20, unique_key, (None, "red", "green", "red")[number % 4], f"k{number}", number
    )


class Filled:
    """A name server and a broker of ours, with a topic of one queue that is full of batches."""

    def __init__(self, processes: ProcessCluster) -> None:
        self._processes = processes
        self.name_server = processes.namesrv
        settings = {"metrics_listen": f"127.0.0.1:{free_port()}"}
        self.broker = processes.start("broker-a", settings=settings).address
        self._other = processes.start("broker-b").address

    def fill(self, topic: str) -> None:
        """Make *topic* and put a batch of every kind into it."""
        make_topic(self.name_server, [self.broker], topic, queues=1, attributes=ATTRIBUTES)
        self._put(topic, range(len(CODECS)), self.broker)

    def fill_static(self, topic: str) -> None:
        """Make *topic* with one logical queue, put two batches into it, move it, and put in two more."""
        self._processes.run("topic", "create", topic, "--logical-queues", "1", "--batches", "--brokers", "broker-a")
        self._put(topic, range(2), self.broker)
        self._processes.run("queue", "migrate", topic, "0", "--to", "broker-b")
        self._put(topic, range(2, 4), self._other)

    def _put(self, topic: str, numbers: Iterable[int], address: str) -> None:
        """Send the batches of these numbers."""
        batches = {number: [item(number * COUNT + at) for at in range(COUNT)] for number in numbers}
        commands = [an_inner_batch(topic, batch, codec=CODECS[number]) for number, batch in batches.items()]
        answers = send_commands(self.name_server, address, commands)
        assert [answer.fields["queueOffset"] for answer in answers] == [str(COUNT * number) for number in batches]

    def measure(self, metric: str, *labels: str) -> int:
        """Return what the broker tells of a metric."""
        lines = self._processes.metrics("broker-a").splitlines()
        found = [
            line for line in lines if line.startswith(f"{metric}{{") and all(f'"{label}"' in line for label in labels)
        ]
        return int(float(found[0].rpartition(" ")[2]))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Filled]:
    with ProcessCluster(tmp_path_factory.mktemp("batches"), settings={"log_file_size": 64 << 20}) as processes:
        yield Filled(processes)


@pytest.fixture(scope="module")
def shells(
    cluster: Filled, peer_4: JavaPeer, peer_5: JavaPeer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, JavaShell]]:
    """A JVM of each version, with a topic of its own."""
    with contextlib.ExitStack() as running:
        shells = {}
        for peer in (peer_4, peer_5):
            shell = JavaShell(peer, cluster.name_server, tmp_path_factory.mktemp("shell"))
            shells[peer.version] = running.enter_context(shell)
            cluster.fill(topic_of(shell))
        yield shells


@pytest.fixture(scope="module", params=["4.9.7", "5.5.0"])
def java(request: pytest.FixtureRequest, shells: dict[str, JavaShell]) -> JavaShell:
    return shells[request.param]


def topic_of(java: JavaShell) -> str:
    return f"batches-{java.version}".replace(".", "_")


def messages(lines: list[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in lines if line.startswith('{"message"')]


def expected(*numbers: int) -> list[dict[str, Any]]:
    """Return what a Java client tells of messages, but for the topic."""
    return [
        {
            "message": (each := item(number)).unique_key,
            "queue": 0,
            "offset": number,
            "body": each.body.decode(),
            "tags": each.tags,
            "keys": each.keys,
            "flag": number,
        }
        for number in numbers
    ]


def without(found: list[dict[str, Any]], *names: str) -> list[dict[str, Any]]:
    return [{name: value for name, value in each.items() if name not in names} for each in found]


@pytest.mark.parametrize("start", [0, 7, COUNT, 3 * COUNT - 1])
def test_every_message_is_pulled_once_from_where_a_reader_begins(java: JavaShell, cluster: Filled, start: int) -> None:
    """Uncompressed, lz4, zstd and zlib; nothing from before, though the batch in which it begins holds more."""
    _, lines = java.run("pull", topic_of(java), start, "*", 32)

    assert without(messages(lines), "topic", "times") == expected(*range(start, TOTAL))


def test_who_opens_batches_costs_the_broker_nothing(java: JavaShell, cluster: Filled) -> None:
    """And who does not, each batch once."""
    metric = "holdfast_broker_batches_opened_total"
    before = cluster.measure(metric, "split")
    topic = f"{topic_of(java)}-counted"
    cluster.fill(topic)

    java.run("pull", topic, 0, "*", 10)

    assert cluster.measure(metric, "split") - before == (0 if java.version.startswith("5") else len(CODECS))


def test_tags_are_found_within_batches(java: JavaShell) -> None:
    """Each message has its own, from the middle of a batch on."""
    _, lines = java.run("pull", topic_of(java), 10, "green || blue", 32)

    assert without(messages(lines), "topic", "times") == expected(*range(10, TOTAL, 4))


def test_a_group_consumes_every_message_and_gets_failed_ones_again_alone(java: JavaShell, cluster: Filled) -> None:
    """One in each batch fails once; the others of its batch do not come again, and nothing is left over."""
    topic, group = topic_of(java), f"group-{java.version}".replace(".", "_")
    failing = [number * COUNT + 5 for number in range(len(CODECS))]

    _, lines = java.run("consume", topic, group, "*", TOTAL, ",".join(f"k{number}" for number in failing))

    found = messages(lines)
    assert sorted(each["keys"] for each in found) == sorted(f"k{number}" for number in range(TOTAL))
    again = {each["keys"]: each for each in found if each["times"] > 0}
    assert again.keys() == {f"k{number}" for number in failing}
    assert {(each["topic"], each["body"], each["message"]) for each in again.values()} == {
        (topic, (sent := item(number)).body.decode(), sent.unique_key) for number in failing
    }
    assert cluster.measure("holdfast_broker_group_send_backs_total", topic, group) == len(CODECS)


def test_mqadmin_finds_single_messages_by_key_and_id(java: JavaShell) -> None:
    """Also in a batch that nobody but its producer and its consumers has looked into."""
    topic, last = topic_of(java), item(TOTAL - 2)

    by_key = [rows(java.mqadmin("queryMsgByKey", "-t", topic, "-k", f"k{number}")) for number in (3, TOTAL - 2)]
    by_id = java.mqadmin("queryMsgByUniqueKey", "-t", topic, "-i", last.unique_key)  # It works once in a JVM.

    assert [row[:3] for found in by_key for row in found] == [
        [item(number).unique_key, "0", str(number)] for number in (3, TOTAL - 2)
    ]
    assert "Queue Offset" in by_id, by_id
    assert (fields(by_id)["Queue Offset"], fields(by_id)["Keys"]) == (str(TOTAL - 2), f"[{last.keys}]")


@pytest.fixture(scope="module")
def static_topic(cluster: Filled) -> str:
    """A logical queue of two segments on two brokers, two batches in each."""
    cluster.fill_static("batches-static")
    return "batches-static"


@pytest.mark.parametrize("start", [0, 7, COUNT, 3 * COUNT - 1])
def test_a_logical_queue_is_read_over_its_moves(java: JavaShell, static_topic: str, start: int) -> None:
    """From the middle of a batch of either segment: offsets go on, and nothing comes twice."""
    _, lines = java.run("pull", static_topic, start, "*", 32)

    assert without(messages(lines), "topic", "times") == expected(*range(start, TOTAL))


@pytest.mark.slow  # 5.5.0 lets them wait for ten seconds.
def test_a_group_consumes_a_logical_queue_and_gets_failed_messages_again_alone(
    java: JavaShell, static_topic: str
) -> None:
    """4.9.7 returns them to whichever broker it knows; 5.5.0 sends them again by itself."""
    group = f"static-group-{java.version}".replace(".", "_")
    failing = [number * COUNT + 9 for number in range(len(CODECS))]

    _, lines = java.run("consume", static_topic, group, "*", TOTAL, ",".join(f"k{number}" for number in failing))

    found = messages(lines)
    assert sorted(each["keys"] for each in found) == sorted(f"k{number}" for number in range(TOTAL))
    assert {each["keys"] for each in found if each["times"] > 0} == {f"k{number}" for number in failing}


async def test_what_our_producer_sends_many_of_is_read_as_it_was_told(java: JavaShell, cluster: Filled) -> None:
    """Of `send_many` and of `send_nowait`: every message with the id and at the place that its result says."""
    topic = f"{topic_of(java)}-sent"
    make_topic(cluster.name_server, [cluster.broker], topic, queues=1, attributes=ATTRIBUTES)
    sent = [
        Message(topic, b"body %d" % number, (None, "red")[number % 2], (None, "k")[number // 2 % 2], flag=number)
        for number in range(60)
    ]

    async with Producer(cluster.name_server, "ours") as producer:
        results = await producer.send_many(sent[:30])
        futures = [producer.send_nowait(message) for message in sent[30:]]
        await producer.flush()
        results += [future.result() for future in futures]
    _, lines = java.run("pull", topic, 0, "*", 32)

    assert sorted(without(messages(lines), "topic", "times", "queue"), key=lambda each: each["flag"]) == [
        {
            "message": result.message_id,
            "offset": result.offset,
            "body": message.body.decode(),
            "tags": message.tags,
            "keys": message.key,
            "flag": message.flag,
        }
        for message, result in zip(sent, results, strict=True)
    ]
    assert len({result.offset_id for result in results}) < 10  # They were kept whole.


def test_batches_of_java_s_producer_are_read_by_both(cluster: Filled, shells: dict[str, JavaShell]) -> None:
    """5.5.0 opens what it sent, and 4.9.7 is shown the same messages at the same places."""
    topic = "batches-by-java"
    make_topic(cluster.name_server, [cluster.broker], topic, queues=2, attributes=ATTRIBUTES)
    shells["5.5.0"].run("fill", topic, 0, 200)

    new, old = (messages(shells[version].run("dump", topic, "dump-group")[1]) for version in ("5.5.0", "4.9.7"))

    assert (len(new), [place_and_content(each) for each in old]) == (200, [place_and_content(each) for each in new])
    assert any(is_inner_batch(each["rest"]["sysFlag"]) for each in new)
    assert not any(is_inner_batch(each["rest"]["sysFlag"]) for each in old)


def place_and_content(dumped: dict[str, Any]) -> list[Any]:
    """Return what every client must tell alike of a message."""
    names = ("message", "queueId", "queueOffset", "position", "stored", "born", "properties")
    return [*(dumped[name] for name in names), dumped["rest"]["flag"], dumped["rest"]["sha256"]]


@pytest.mark.slow
async def test_our_consumer_reads_batches_of_a_java_broker(peer_5: JavaPeer, tmp_path: Path) -> None:
    """And has a failed message of one come again alone, which that broker could not do."""
    topic, port = "batches-at-java", free_port()
    with ProcessCluster(tmp_path) as cluster, contextlib.ExitStack() as running:
        name_server = cluster.namesrv
        broker = peer_5.start_broker(
            name="java",
            cluster=CLUSTER,
            port=port,
            name_server=name_server,
            store=tmp_path / "java",
            settings=JAVA_SETTINGS,
        )
        running.callback(broker.kill)
        wait_until_registered(name_server, ["java"])
        make_topic(name_server, [f"127.0.0.1:{port}"], topic, queues=1, attributes=ATTRIBUTES)
        shell = running.enter_context(JavaShell(peer_5, name_server, tmp_path / "shell"))
        shell.run("fill", topic, 0, 60)
        dumped = messages(shell.run("dump", topic, "dump-group")[1])
        batched = [each["message"] for each in dumped if is_inner_batch(each["rest"]["sysFlag"])]
        failing = {batched[1], batched[-2]}

        inbox = Inbox(
            lambda message: RetryLater(1) if message.message_id in failing and not message.reconsume_times else None
        )
        consumer = PushConsumer(name_server, "ours", listener=inbox, start="earliest")
        consumer.subscribe(topic)
        async with consumer, asyncio.timeout(60):
            got = await inbox.wait_for(60)

    assert Counter(message.message_id for message in got) == Counter(each["message"] for each in dumped)
    assert [message.message_id for message in got if message.reconsume_times] in (
        sorted(failing),
        sorted(failing)[::-1],
    )


@pytest.mark.slow
@pytest.mark.parametrize("client", ["ali-ons", "rocketmq of PyPI"])
def test_clients_in_other_languages_get_single_messages(cluster: Filled, client: str, tmp_path: Path) -> None:
    """None of them says that it opens batches, whatever version it claims."""
    topic = f"batches-{client[:3]}"
    cluster.fill(topic)
    if client == "ali-ons":
        member = ali_ons_member("node", cluster.name_server, topic, "node-group")
    else:
        member = py_rocketmq_member("cpp", cluster.name_server, topic, "cpp-group", tmp_path)
    with contextlib.ExitStack() as running:
        running.callback(member.child.kill)
        member.ready()
        deadline = time.monotonic() + 60
        while len(member.said().got) < TOTAL and time.monotonic() < deadline:
            time.sleep(0.05)  # It writes what comes, and tells nobody.

    got = member.said().got
    assert Counter(body for _, _, body in got) == Counter(item(number).body.decode() for number in range(TOTAL))
