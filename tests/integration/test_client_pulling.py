"""Reading on demand from a cluster of ours."""

import asyncio
from collections import Counter
from datetime import UTC, datetime

import pytest

import holdfast
from holdfast import (
    Producer,
    PullConsumer,
)


async def test_a_pull_consumer_goes_where_it_is_told(namesrv: str, topic: str, group: str):
    """To an offset, to either end, to a time."""
    async with Producer(namesrv) as producer, PullConsumer(namesrv, group) as consumer:
        results = [await producer.send(topic, b"%d" % n, key="k") for n in range(10)]
        queue = results[0].queue
        await consumer.assign([queue])

        async def next_body(to: int | holdfast.Start) -> bytes:
            await consumer.seek(queue, to)
            (message,) = await consumer.poll(timeout_s=20, messages_max=1)
            return message.body

        assert await next_body(7) == b"7"
        assert consumer.position(queue) == 8
        assert await next_body("earliest") == b"0"
        await consumer.seek(queue, 4)
        (fourth,) = await consumer.poll(timeout_s=20, messages_max=1)
        when = datetime.fromtimestamp(fourth.stored_ms / 1000, UTC)
        assert await next_body(when) in {b"%d" % n for n in range(5)}  # others may share its millisecond
        await consumer.seek(queue, "latest")
        assert await consumer.poll(timeout_s=0.2) == []
        await producer.send(topic, b"new", key="k")
        assert [message.body for message in await consumer.poll(timeout_s=20)] == [b"new"]


async def test_a_paused_queue_rests(namesrv: str, topic: str, group: str):
    """Until it is resumed; nothing is lost."""
    async with Producer(namesrv) as producer, PullConsumer(namesrv, group, start="earliest") as consumer:
        queue = (await producer.send(topic, b"0", key="k")).queue
        await consumer.assign([queue])
        consumer.pause(queue)
        assert await consumer.poll(timeout_s=0.2) == []
        consumer.resume(queue)
        assert [message.body for message in await consumer.poll(timeout_s=20)] == [b"0"]


async def test_members_that_pull_share_a_topic_and_commit_what_they_polled(namesrv: str, topic: str, group: str):
    """The next member of the group goes on behind it."""

    async def take(count: int) -> Counter[bytes]:
        bodies: Counter[bytes] = Counter()
        consumer = PullConsumer(namesrv, group, start="earliest")
        consumer.subscribe(topic)
        async with consumer:
            async for message in consumer:
                bodies[message.body] += 1
                if bodies.total() == count:
                    break
        return bodies

    async with Producer(namesrv) as producer:
        await asyncio.gather(*(producer.send(topic, b"%d" % n) for n in range(40)))
    assert await take(15) + await take(25) == Counter(b"%d" % n for n in range(40))


async def test_an_exception_leaves_the_last_poll_uncommitted(namesrv: str, topic: str, group: str):
    """Those messages come again; those of earlier polls do not."""
    async with Producer(namesrv) as producer:
        for number in range(4):
            queue = (await producer.send(topic, b"%d" % number, key="k")).queue

    async def fail() -> None:
        async with PullConsumer(namesrv, group, start="earliest") as consumer:
            await consumer.assign([queue])
            await consumer.poll(timeout_s=20, messages_max=2)
            await consumer.poll(timeout_s=20, messages_max=1)
            raise ValueError("oops")

    with pytest.raises(ValueError, match="oops"):
        await fail()
    async with PullConsumer(namesrv, group) as consumer:
        await consumer.assign([queue])
        assert [message.body for message in await consumer.poll(timeout_s=20)] == [b"2", b"3"]
