"""What our producer gathers is kept whole by a broker of ours, and is no less found, moved and read for it."""

import asyncio
from collections import Counter

import pytest
from tests.support.client_stories import broker_addresses, new_name, read_all
from tests.support.cluster.operator import HoldfastCommand
from tests.support.cluster.raw_requests import make_topic

from holdfast import Batching, Codec, Message, Producer
from holdfast.admin.operations import Admin
from holdfast.client.cluster.cluster_client import ClusterClient
from holdfast.wire.frames import java_json
from holdfast.wire.frames.codes import RequestCode
from holdfast.wire.frames.command import Command
from holdfast.wire.requests.admin import QueueEntries


async def count_records(namesrv: str, address: str, topic: str) -> int:
    """Return how many entries the index of queue 0 has."""
    fields = {"topic": topic, "queueId": "0", "index": "0", "count": "1000", "consumerGroup": ""}
    async with ClusterClient(namesrv) as client:
        answer = await client.invoke(address, Command(code=RequestCode.QUERY_CONSUME_QUEUE, fields=fields))
    return len(java_json.decode(answer.body, QueueEntries).queue_data or [])


@pytest.mark.parametrize("codec", [None, Codec.ZSTD])
async def test_gathered_messages_are_few_records_and_each_is_found(namesrv: str, codec: Codec | None):
    """By its id, by its key, and by whoever reads; whole batches of send_many too."""
    topic = new_name("batches")

    make_topic(namesrv, (await broker_addresses(namesrv))[:1], topic, queues=1, attributes="+queue.type=BatchCQ")
    address = (await broker_addresses(namesrv))[0]
    async with Producer(namesrv, batching=Batching(linger_s=0.02, codec=codec)) as producer:
        await producer.send(topic, b"hello")
        futures = [producer.send_nowait(Message(topic, b"%d" % at * 50, keys=(f"k{at}",))) for at in range(200)]
        await producer.flush()
        many = await producer.send_many([Message(topic, b"many %d" % at, keys=(f"m{at}",)) for at in range(100)])
    results = [future.result() for future in futures] + many

    assert {result.offset for result in results} == set(range(1, 301))
    assert await count_records(namesrv, address, topic) < 20
    async with Admin(namesrv) as admin:
        for at in (0, 77, 199, 200, 299):
            (by_id,) = await admin.messages.by_id(topic, results[at].message_id)
            (by_key,) = await admin.messages.by_key(topic, f"k{at}" if at < 200 else f"m{at - 200}")
            assert by_id.message.offset == by_key.message.offset == results[at].offset
            assert by_id.message.message_id == by_key.message.message_id == results[at].message_id
    assert len(await read_all(namesrv, topic, 301)) == 301


async def test_batches_of_a_static_topic_survive_moves_under_load(namesrv: str):
    """Nothing is lost or twice, and every message is where its future said."""
    topic = new_name("static")
    operator = HoldfastCommand(namesrv)

    await operator.run("topic", "create", topic, "--logical-queues", "2", "--batches")
    async with Producer(namesrv, batching=Batching(linger_s=0.005)) as producer:
        await producer.send(topic, b"hello")
        futures = []

        async def load() -> None:
            for at in range(2000):
                futures.append(await producer.send_soon(Message(topic, b"%d" % at, key=f"key{at % 7}")))
                if at % 20 == 0:
                    await asyncio.sleep(0.01)

        loading = asyncio.create_task(load())
        for target in ("broker-b", "broker-a"):
            await operator.run("queue", "migrate", topic, "0", "--to", target)
        await loading
        await producer.flush()
        results = [future.result() for future in futures]

    places = {(result.queue.queue_id, result.offset): b"%d" % at for at, result in enumerate(results)}
    assert len(places) == 2000
    got = await read_all(namesrv, topic, 2001)
    assert Counter(message.body for message in got) == Counter([b"hello", *(b"%d" % at for at in range(2000))])
    assert all(places.get((m.queue.queue_id, m.offset), b"hello") == m.body for m in got)
