"""Our producer's batches at real Java brokers, which never say that they keep them whole: they get a form they know.

Every form is read back by a Java consumer and by ours: each message once, at the place that its result says. The same
where a broker of each kind has the topic, and where a Java broker takes the place of one of ours.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.interop.java_shell import JavaShell
from tests.interop.servers import CLUSTER, JAVA_SETTINGS
from tests.interop.test_java_batches import messages as messages_of
from tests.support.child import Child
from tests.support.cluster.ports import free_port
from tests.support.cluster.processes import ProcessCluster
from tests.support.cluster.raw_requests import make_topic, wait_until_gone, wait_until_registered
from tests.support.java_peer import JavaPeer
from tests.support.whole_batches import ATTRIBUTES

from holdfast import Batching, Codec, Message, Producer, PullConsumer, ReceivedMessage, SendResult

pytestmark = [pytest.mark.interop, pytest.mark.timeout(240)]

COUNT = 60
MIB = 1 << 20
Way = Callable[[Producer, Sequence[Message]], Any]


@dataclass(frozen=True, slots=True)
class JavaBroker:
    """A Java broker under our name server, and a client of the same version."""

    version: str
    name_server: str
    address: str
    shell: JavaShell


def start_java(peer: JavaPeer, name_server: str, folder: Path, port: int, name: str = "java") -> Child:
    return peer.start_broker(
        name=name, cluster=CLUSTER, port=port, name_server=name_server, store=folder / name, settings=JAVA_SETTINGS
    )


@pytest.fixture(scope="module", params=["peer_4", "peer_5"])
def java(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaBroker]:
    peer: JavaPeer = request.getfixturevalue(request.param)
    folder, port = tmp_path_factory.mktemp("java"), free_port()
    with ProcessCluster(folder) as cluster, contextlib.ExitStack() as running:
        name_server = cluster.namesrv
        running.callback(start_java(peer, name_server, folder, port).kill)
        wait_until_registered(name_server, ["java"])
        shell = running.enter_context(JavaShell(peer, name_server, folder / "shell"))
        yield JavaBroker(peer.version, name_server, f"127.0.0.1:{port}", shell)


def some(topic: str, *, size: int = 20) -> list[Message]:
    """Return messages that differ in everything that a batch may hold."""
    return [
        Message(
            topic,
            (b"body %d " % number).ljust(size, b"."),
            tags=(None, "red", "green")[number % 3],
            keys=(f"k{number}", f"l{number}"),
            flag=number,
        )
        for number in range(COUNT)
    ]


def ordered(topic: str) -> list[Message]:
    """Return messages of a few ordering keys."""
    return [Message(topic, b"%d" % number, key=f"customer {number % 5}") for number in range(COUNT)]


def mixed_sizes(topic: str) -> list[Message]:
    """Return more than fits into one request, and single messages that are larger than any batch."""
    sizes = {5: 3 * MIB, 20: 2 * MIB}
    return [Message(topic, b"%d" % number + bytes(sizes.get(number, 100_000))) for number in range(30)]


async def send_many(producer: Producer, messages: Sequence[Message]) -> list[SendResult]:
    return await producer.send_many(messages)


async def send_nowait(producer: Producer, messages: Sequence[Message]) -> list[SendResult]:
    futures = [producer.send_nowait(message) for message in messages]
    await producer.flush()
    return [future.result() for future in futures]


async def read(name_server: str, topic: str, count: int) -> list[ReceivedMessage]:
    """Return all messages of a topic, as our consumer reads them."""
    found: list[ReceivedMessage] = []
    async with PullConsumer(name_server, "ours", start="earliest", auto_commit=False) as consumer:
        await consumer.assign(queues := await consumer.queues(topic))
        await consumer.seek_all("earliest")
        async with asyncio.timeout(60):
            while len(found) < count:
                found += await consumer.poll(5)
        ends = [await consumer.offset_of(queue, "latest") for queue in queues]
        begins = [await consumer.offset_of(queue, "earliest") for queue in queues]
    assert sum(ends) - sum(begins) == count, "nothing else is in the topic"
    return found


async def check_read(
    java: JavaShell, name_server: str, topic: str, sent: Sequence[Message], results: list[SendResult]
) -> None:
    """Both consumers see every message once, with everything it has, where its result says."""
    placed = {
        (result.message_id, result.queue.queue_id, result.offset): message
        for message, result in zip(sent, results, strict=True)
    }
    assert len(placed) == len(sent)
    found = await read(name_server, topic, len(sent))
    assert {(each.message_id, each.queue.queue_id, each.offset) for each in found} == placed.keys()
    for each in found:
        message = placed[each.message_id, each.queue.queue_id, each.offset]
        assert (each.body, each.tags, each.key, each.flag) == (message.body, message.tags, message.key, message.flag)

    lines = messages_of(java.run("pull", topic, 0, "*", 32)[1])
    assert Counter((line["message"], line["queue"], line["offset"]) for line in lines) == Counter(placed.keys())
    for line in lines:
        message = placed[line["message"], line["queue"], line["offset"]]
        assert (line["body"].encode(), line["tags"], line["flag"]) == (message.body, message.tags, message.flag)


FORMS: dict[str, tuple[Callable[[str], list[Message]], int]] = {
    "tags and keys": (some, 1),
    "ordering keys": (ordered, 4),
    "several requests": (mixed_sizes, 2),
    "larger than compressed from": (lambda topic: some(topic, size=8000), 1),
}


@pytest.mark.parametrize("way", [send_many, send_nowait])
@pytest.mark.parametrize("form", FORMS)
async def test_every_batch_is_split_by_its_broker(java: JavaBroker, form: str, way: Way) -> None:
    """Whatever the producer would do at a broker of ours; nothing is compressed or kept in a way it cannot read."""
    make, queues = FORMS[form]
    topic = f"fallback-{list(FORMS).index(form)}-{way.__name__}"
    make_topic(java.name_server, [java.address], topic, queues=queues)
    sent = make(topic)

    async def send() -> list[SendResult]:
        async with Producer(java.name_server, batching=Batching(codec=Codec.LZ4)) as producer:
            return await way(producer, sent)

    await check_read(java.shell, java.name_server, topic, sent, await send())


async def test_an_index_by_record_keeps_what_a_java_broker_can_keep(java: JavaBroker) -> None:
    """5.5.0 makes one record of a batch, as of one of Java's own producers; 4.9.7 knows no such topics, and splits."""
    topic = "fallback-batch-index"
    make_topic(java.name_server, [java.address], topic, queues=1, attributes=ATTRIBUTES)
    sent = some(topic)

    async with Producer(java.name_server, batching=Batching(codec=Codec.LZ4)) as producer:
        results = await producer.send_many(sent)

    await check_read(java.shell, java.name_server, topic, sent, results)
    assert len({result.offset_id for result in results}) == (1 if java.version == "5.5.0" else COUNT)


async def test_what_no_batch_may_hold_travels_alone(java: JavaBroker) -> None:
    """Delayed messages come when they are due, all others at once; a retry topic takes single messages."""
    topic, group = "fallback-delayed", "fallback-readers"
    make_topic(java.name_server, [java.address], topic, queues=1)
    make_topic(java.name_server, [java.address], f"%RETRY%{group}", queues=1)
    sent = [Message(topic, b"%d" % number, delay_level=1 if number % 10 == 3 else 0) for number in range(30)]
    again = [Message(f"%RETRY%{group}", b"again %d" % number) for number in range(5)]

    async with Producer(java.name_server) as producer:
        await producer.send_many(sent)
        await producer.send_many(again)
    found, retried = await read(java.name_server, topic, 30), await read(java.name_server, f"%RETRY%{group}", 5)

    bodies = [message.body for message in found]
    assert Counter(bodies[:27]) == Counter(message.body for message in sent if not message.delay_level)
    assert Counter(bodies[27:]) == Counter(message.body for message in sent if message.delay_level)
    assert Counter(message.body for message in retried) == Counter(message.body for message in again)


@pytest.fixture(params=["peer_4", "peer_5"])
def peer(request: pytest.FixtureRequest) -> JavaPeer:
    found: JavaPeer = request.getfixturevalue(request.param)
    return found


async def test_each_broker_of_a_topic_gets_the_form_that_it_takes(peer: JavaPeer, tmp_path: Path) -> None:
    """One of ours keeps batches whole and compressed, the Java one beside it splits them; each message comes once."""
    topic, port = "both", free_port()
    with ProcessCluster(tmp_path) as cluster, contextlib.ExitStack() as running:
        name_server = cluster.namesrv
        ours = cluster.start("ours", cluster=CLUSTER, settings={"log_file_size": 16 * MIB})
        running.callback(start_java(peer, name_server, tmp_path, port).kill)
        wait_until_registered(name_server, ["ours", "java"])
        make_topic(name_server, [ours.address, f"127.0.0.1:{port}"], topic, queues=1, attributes=ATTRIBUTES)
        sent = [Message(topic, b"%d " % number + bytes(500), flag=number) for number in range(400)]

        async with Producer(name_server, batch_bytes_max=10_000, batching=Batching(codec=Codec.LZ4)) as producer:
            results = [*await producer.send_many(sent[:200]), *await send_nowait(producer, sent[200:])]
        found = await read(name_server, topic, len(sent))
        shell = running.enter_context(JavaShell(peer, name_server, tmp_path / "shell"))
        lines = messages_of(shell.run("pull", topic, 0, "*", 32)[1])

    placed = Counter((result.message_id, result.queue.broker_name, result.offset) for result in results)
    assert Counter((each.message_id, each.queue.broker_name, each.offset) for each in found) == placed
    assert Counter(line["message"] for line in lines) == Counter(result.message_id for result in results)
    records = {
        name: {result.offset_id for result in results if result.queue.broker_name == name} for name in ("ours", "java")
    }
    messages = Counter(result.queue.broker_name for result in results)
    assert 0 < len(records["ours"]) < messages["ours"], "kept whole"
    if peer.version == "4.9.7":
        assert len(records["java"]) == messages["java"] > 0, "split"


async def test_a_java_broker_in_the_place_of_ours_gets_no_batch_that_it_cannot_read(
    peer: JavaPeer, tmp_path: Path
) -> None:
    """The producer runs on: what it learned of the broker at this address went with the connection."""
    topic, port = "replaced", free_port()
    with ProcessCluster(tmp_path) as cluster, contextlib.ExitStack() as running:
        name_server = cluster.namesrv
        settings = {"log_file_size": 16 * MIB}
        ours = cluster.start("b", cluster=CLUSTER, port=port, settings=settings)
        make_topic(name_server, [ours.address], topic, queues=1, attributes=ATTRIBUTES)
        sent = [Message(topic, b"%d" % number, flag=number) for number in range(200)]

        def replace() -> None:
            ours.child.stop()
            wait_until_gone(name_server, ["b"])
            java = start_java(peer, name_server, tmp_path / "java", port, name="b")
            running.callback(java.kill)
            wait_until_registered(name_server, ["b"])
            make_topic(name_server, [ours.address], topic, queues=1, attributes=ATTRIBUTES)

        async with Producer(name_server, timeout_s=60, retries=1000, batching=Batching(codec=Codec.LZ4)) as producer:
            before = await producer.send_many(sent[:100])
            await asyncio.to_thread(replace)
            # As soon as a connection stands: the broker may not have answered a heartbeat yet.
            after = [*await producer.send_many(sent[100:150]), *await send_nowait(producer, sent[150:])]

        assert len({result.offset_id for result in before}) < len(before), "ours keeps them whole"
        shell = running.enter_context(JavaShell(peer, name_server, tmp_path / "shell"))
        await check_read(shell, name_server, topic, sent[100:], after)
