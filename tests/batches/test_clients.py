"""Batches through real brokers: our producer and consumers, columns, the command line, and logical queues that move."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator

import pytest
from tests.support.batch_bytes import BATCH, JAVA_4, JAVA_5, BatchMessage, a_batch, a_request
from tests.support.client_stories import new_name, read_all, wait_for_queues
from tests.support.cluster.broker_machine import a_pull
from tests.support.cluster.ports import free_port
from tests.support.cluster.processes import ProcessCluster

from holdfast import (
    Batching,
    ClusterClient,
    Codec,
    Message,
    MessageQueue,
    Producer,
    ProducerFull,
    PullConsumer,
)
from holdfast.wire.frames.command import Command
from holdfast.wire.records.record import StoredRecord, decode_records

BATCHED = "+queue.type=BatchCQ"


class Batches(ProcessCluster):
    """A name server and two brokers with metrics."""

    def count(self, name: str) -> float:
        """Return the sum of a counter over all brokers and labels."""
        texts = [self.metrics(name) for name in self.brokers]
        return sum(float(value) for value in re.findall(rf"(?m)^{name}(?:{{.*}})? (\S+)$", "\n".join(texts)))

    def new_topic(
        self, *, on: tuple[str, ...] = ("broker-a",), queues: int = 1, attributes: str | None = BATCHED
    ) -> str:
        """Make a topic and return its name."""
        name = new_name("batches")
        self.make_topic(name, on=on, queues=queues, attributes=attributes)
        return name

    async def command(self, *words: str, status: int = 0) -> str:
        """Run a command, which has an event loop of its own; return what it printed."""
        result = await asyncio.to_thread(self.attempt, *words)
        assert result.status == status, result
        return result.out

    async def call(self, address: str, *commands: Command) -> list[Command]:
        """Send requests to a broker, as they are; return the answers."""
        async with ClusterClient(self.namesrv) as client:
            return [await client.invoke(address, command) for command in commands]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Batches]:
    """Two brokers for all stories of this page."""
    with Batches(tmp_path_factory.mktemp("batches")) as cluster:
        for name in ("broker-a", "broker-b"):
            cluster.start(name, settings={"metrics_listen": f"127.0.0.1:{free_port()}"})
        yield cluster


async def raw_pull(cluster: Batches, topic: str, offset: int, *, broker: str = "broker-a", **fields: object) -> Command:
    """Pull as any client would."""
    command = a_pull(topic, offset=offset)
    for name, value in fields.items():
        setattr(command, name, value)
    (answer,) = await cluster.call(cluster.brokers[broker].address, command)
    return answer


def records(answer: Command) -> list[StoredRecord]:
    """Return what an answer brings."""
    return list(decode_records(answer.body))


def some(topic: str, count: int) -> list[Message]:
    """Return messages that say their number, in three tags."""
    return [
        Message(topic, b"%06d" % number, tags="abc"[number % 3], keys=(f"k{number}",), properties={"n": str(number)})
        for number in range(count)
    ]


@pytest.mark.parametrize("codec", [None, *Codec], ids=str)
async def test_what_a_producer_gathers_is_stored_whole_and_opened_by_its_consumer(
    cluster: Batches, codec: Codec | None
):
    """One future each with its own offset, a handful of records, and no broker that looks inside: end to end."""
    topic = cluster.new_topic()
    before = {name: cluster.count(f"holdfast_broker_{name}_total") for name in ("inflations", "batches_opened")}

    async with Producer(cluster.namesrv, batching=Batching(codec=codec)) as producer:
        futures = [producer.send_nowait(message) for message in some(topic, 3000)]
        await producer.flush()
        assert all(future.done() for future in futures)
    offsets, messages = [future.result().offset for future in futures], await read_all(cluster.namesrv, topic, 3000)

    assert sorted(offsets) == list(range(3000))
    assert [message.offset for message in messages] == list(range(3000))
    sent = dict(zip(offsets, some(topic, 3000), strict=True))
    for message in messages:
        original = sent[message.offset]
        assert (message.body, message.tags, message.keys) == (original.body, original.tags, original.keys)
        assert message.user_properties == original.properties
    stored = records(await raw_pull(cluster, topic, 0, **JAVA_5))
    assert all(record.sys_flag & BATCH == BATCH for record in stored)
    assert all(record.sys_flag >> 8 & 7 == (codec or 0) for record in stored)
    for name, value in before.items():
        assert cluster.count(f"holdfast_broker_{name}_total") == value, f"a broker did something ({name})"


async def test_who_cannot_open_is_counted(cluster: Batches):
    """The metric that must say 0 does count."""
    topic = cluster.new_topic()
    await cluster.call(
        cluster.brokers["broker-a"].address, a_batch([BatchMessage(b"x" * 99, "I")] * 9, topic=topic, codec="lz4")
    )
    before = cluster.count("holdfast_broker_inflations_total")

    assert len(records(await raw_pull(cluster, topic, 0, **JAVA_4))) == 9

    assert cluster.count("holdfast_broker_inflations_total") == before + 1


async def test_order_is_kept_per_key_however_messages_are_sent(cluster: Batches):
    """`send`, `send_many` and `send_nowait`, mixed, over several queues and both brokers."""
    topic = cluster.new_topic(on=("broker-a", "broker-b"), queues=2)

    by_key: dict[str | None, list[int]] = {}
    async with Producer(cluster.namesrv, batching=Batching(linger_s=0.001, messages_max=7)) as producer:
        numbers = iter(range(10_000))
        for turn in range(30):
            block = [
                Message(topic, b"%d" % next(numbers), key=f"customer-{number % 5}") for number in range(turn % 11 + 1)
            ]
            if turn % 3 == 0:
                await producer.send_many(block)
            elif turn % 3 == 1:
                for message in block:
                    producer.send_nowait(message)
            else:
                await asyncio.gather(*(producer.send(message) for message in block))
        await producer.flush()
    messages = await read_all(cluster.namesrv, topic, sum(turn % 11 + 1 for turn in range(30)))
    for message in messages:
        by_key.setdefault(message.key, []).append(int(message.body))

    assert len(by_key) == 5
    assert all(numbers == sorted(numbers) for numbers in by_key.values())


async def test_a_producer_pushes_back_by_bytes(cluster: Batches):
    """`send_nowait` refuses, `send_soon` waits; nothing that was taken is lost."""
    topic = cluster.new_topic()

    batching = Batching(linger_s=5, waiting_bytes_max=20_000, bytes_max=1 << 20)
    async with Producer(cluster.namesrv, batching=batching) as producer:
        taken = []
        while producer.has_room(500):
            taken.append(producer.send_nowait(Message(topic, bytes(500))))
        assert 10 < len(taken) < 40
        with pytest.raises(ProducerFull):
            producer.send_nowait(Message(topic, bytes(500)))
        waiting = asyncio.create_task(producer.send_soon(Message(topic, bytes(500))))
        await asyncio.sleep(0)
        assert not waiting.done()
        await producer.flush()
        last = await waiting
        await producer.flush()
        assert sorted(future.result().offset for future in [*taken, last]) == list(range(len(taken) + 1))


async def test_a_mixed_cluster_works(cluster: Batches):
    """One broker keeps the topic's batches whole, the other one splits them: every message arrives once."""
    topic = cluster.new_topic(on=("broker-b",), attributes=None)
    fields = {"topic": topic, "readQueueNums": "1", "writeQueueNums": "1", "perm": "6", "attributes": BATCHED}
    (made,) = await cluster.call(cluster.brokers["broker-a"].address, Command(code=17, fields=fields))
    assert made.code == 0, made.remark

    async with Producer(cluster.namesrv, batching=Batching(codec=Codec.ZSTD)) as producer:
        await wait_for_queues(producer, topic, 2)
        for queue in await producer.queues(topic):
            for message in some(topic, 200):
                producer.send_nowait(message, queue=queue)
        await producer.flush()
        await producer.send_many(some(topic, 100))
    messages = await read_all(cluster.namesrv, topic, 500)

    kinds = {message.queue.broker_name: message.sys_flag & BATCH for message in messages}
    assert kinds == {"broker-a": BATCH, "broker-b": 0}
    assert len({(message.queue, message.offset) for message in messages}) == 500


async def test_a_consumer_goes_on_inside_a_batch(cluster: Batches):
    """A commit may lie inside one; who comes next gets the rest of it, and nothing before."""
    topic = cluster.new_topic()
    group = new_name("group")
    await cluster.call(
        cluster.brokers["broker-a"].address,
        *(
            a_batch([BatchMessage(b"%d" % n, f"I{n}") for n in range(s, s + 10)], topic=topic, codec="zlib")
            for s in (0, 10)
        ),
    )

    queue = MessageQueue(topic, "broker-a", 0)
    async with PullConsumer(cluster.namesrv, group, start="earliest", auto_commit=False) as first:
        await first.assign([queue])
        assert [message.offset for message in await first.poll(5, messages_max=4)] == [0, 1, 2, 3]
        assert first.position(queue) == 4
        await first.commit()
    async with PullConsumer(cluster.namesrv, group, auto_commit=False) as second:
        await second.assign([queue])
        messages = await second.poll(5, messages_max=100)
        while len(messages) < 16:
            messages += await second.poll(5, messages_max=100)
        assert [message.offset for message in messages] == list(range(4, 20))
        await second.seek(queue, 17)
        assert [message.body for message in await second.poll(5)] == [b"17", b"18", b"19"]
    async with PullConsumer(cluster.namesrv, group, auto_commit=False) as tagged:
        await tagged.assign([queue], "nobody")
        assert await tagged.poll(0.3) == []
    said = json.loads(await cluster.command("group", "lag", group, topic, "--json"))
    assert '"lag": 16' in json.dumps(said) or '"lag":16' in json.dumps(said), said


async def test_a_topic_becomes_columns_whatever_its_records_hold(cluster: Batches):
    """Batches, compressed and not, single messages, a pull from the middle, a range that ends in one, a tag."""
    arrow = pytest.importorskip("holdfast.arrow")
    pa = pytest.importorskip("pyarrow")
    topic = cluster.new_topic()
    number = 0
    requests = []
    for size, codec in ((5, "plain"), (1, "zstd"), (40, "lz4"), (1, ""), (7, "zlib"), (3, "plain")):
        batch = [BatchMessage(b"%d" % n, f"I{n}", "ab"[n % 2], f"key{n}") for n in range(number, number + size)]
        number += size
        if codec:
            requests.append(a_batch(batch, topic=topic, codec=codec))
        else:
            properties = {"UNIQ_KEY": batch[0].id, "TAGS": batch[0].tag, "KEYS": batch[0].keys}
            requests.append(a_request(batch[0].body, properties, topic=topic))
    answers = await cluster.call(cluster.brokers["broker-a"].address, *requests)
    assert [answer.code for answer in answers] == [0] * len(requests)

    def bodies(**how: object) -> list[int]:
        table = pa.Table.from_batches(
            arrow.read(cluster.namesrv, topic, columns=["offset", "body", "tags"], **how),
            schema=arrow.schema_of(["offset", "body", "tags"]),
        )
        assert [int(body) for body in table["body"].to_pylist()] == table["offset"].to_pylist()
        return [int(body) for body in table["body"].to_pylist()]

    assert bodies() == list(range(number))
    assert bodies(start={"broker-a/0": 20}, end={"broker-a/0": 50}) == list(range(20, 50))
    assert bodies(tags="b") == list(range(1, number, 2))


async def test_the_command_line_makes_shows_and_reads_such_topics(cluster: Batches):
    """As a newcomer meets them."""
    topic = new_name("shown")
    await cluster.command("topic", "create", topic, "--batches", "--queues", "1")
    await cluster.call(
        cluster.brokers["broker-b"].address,
        a_batch([BatchMessage(b"message %d" % n, f"I{n}", keys=f"key-{n}") for n in range(5)], topic=topic, codec="lz4",
                extra_properties={"KEYS": " ".join(f"key-{n}" for n in range(5))}),
    )  # fmt: skip

    topics = await cluster.command("topic", "list")
    assert "batch" in next(line for line in topics.splitlines() if topic in line)
    assert "batch" in await cluster.command("topic", "describe", topic)
    for words in ((), ("--dry-run",)):
        await cluster.command("topic", "update", topic, "--attribute", "queue.type=SimpleCQ", *words, status=1)
    tail = await cluster.command("tail", topic, "--format", "body")
    assert tail.splitlines() == [f"message {n}" for n in range(5)]
    middle = await cluster.command("tail", topic, "--from", "3", "--format", "body")
    assert middle.splitlines() == ["message 3", "message 4"]
    found = json.loads(await cluster.command("message", "query", topic, "--key", "key-3", "--json"))
    assert [message["offset"] for message in found["messages"]] == [3]


async def test_a_kind_of_index_is_named_as_the_settled_command_line_says(cluster: Batches):
    """`--queue-type simple|batch`, for either kind of topic."""
    for words, kind in (
        (("--queues", "1", "--queue-type", "batch"), "BatchCQ"),
        (("--logical-queues", "2", "--queue-type", "batch"), "BatchCQ"),
        (("--queues", "1", "--queue-type", "simple"), "SimpleCQ"),
    ):
        topic = new_name("kind")
        await cluster.command("topic", "create", topic, *words)
        said = await cluster.command("topic", "describe", topic, "--json")
        assert kind in said or (kind == "SimpleCQ" and "BatchCQ" not in said), said
    await cluster.command("topic", "create", new_name("kind"), "--queues", "1", "--queue-type", "sparse", status=2)


async def test_batches_and_logical_queues_go_together(cluster: Batches):
    """Through moves a batch stays whole, offsets go on, and old clients read every message by way of any broker."""
    topic = new_name("static")
    await cluster.command("topic", "create", topic, "--logical-queues", "1", "--batches", "--brokers", "broker-a")
    total = 0

    def batch(size: int) -> Command:
        nonlocal total
        total += size
        said = [BatchMessage(b"%d" % n, f"I{n}", "ab"[n % 2]) for n in range(total - size, total)]
        return a_batch(said, topic=topic, codec=("plain", "lz4", "zstd")[total % 3])

    bases = []
    for leader in ("broker-b", "broker-a", "broker-b"):
        for broker in cluster.brokers.values():
            (answer,) = await cluster.call(broker.address, batch(6 + total % 5))
            assert answer.code == 0, answer.remark
            bases.append(int(answer.fields["queueOffset"]))
        await cluster.command("queue", "migrate", topic, "0", "--to", leader)
    await cluster.call(cluster.brokers["broker-a"].address, batch(4))

    assert bases == sorted(set(bases))
    for broker in cluster.brokers:
        for start in (0, 1, 8, total - 2):
            found: list[StoredRecord] = []
            at = start
            while at < total:
                answer = await raw_pull(cluster, topic, at, broker=broker, **JAVA_4)
                assert answer.code in {0, 20}, answer
                found += records(answer)
                at = int(answer.fields["nextBeginOffset"])
            assert [int(bytes(record.body)) for record in found] == list(range(start, total))
            assert [record.offset for record in found] == list(range(start, total))
            assert {record.queue_id for record in found} == {0}
    messages = await read_all(cluster.namesrv, topic, total)
    assert [(message.offset, int(message.body)) for message in messages] == [(n, n) for n in range(total)]
