"""A producer forgets topics that it does not use, at its 30 s poll. These tests wait for that poll."""

import asyncio

import pytest
from tests.support.client_stories import queue_count, wait_for_queues
from tests.support.fake_name_server import FakeNameServer

from holdfast import Producer, PullConsumer
from holdfast.model.topic import AUTO_CREATE_TOPIC
from holdfast.wire.cluster.watch import UNWATCH

pytestmark = pytest.mark.slow


async def test_unused_topics_are_forgotten_together_and_the_others_polled():
    """One 329 names all of them, also those that do not exist; a topic in use is polled, a reader forgets nothing."""

    async def use(producer: Producer, topic: str) -> None:
        while True:
            await producer.queues(topic)
            await asyncio.sleep(0.1)

    async with FakeNameServer() as server, FakeNameServer() as readers:
        for each in (server, readers):
            each.serve("idle", "idle-too", "used")
        async with (
            Producer(server.address, topic_expiry_s=5) as producer,
            PullConsumer(readers.address, "g") as reader,
        ):
            for topic in ("idle", "idle-too", "used", "missing"):
                await queue_count(producer, topic)
            await reader.queues("idle")
            using = asyncio.ensure_future(use(producer, "used"))

            await server.wait_until(lambda: server.unwatched_topics() != [])
            using.cancel()

            assert set(server.unwatched_topics()) - {AUTO_CREATE_TOPIC} == {"idle", "idle-too", "missing"}
            assert len(server.requests_of(UNWATCH)) == 1
            assert any("used" in watched for watched in server.watched())
            await server.wait_until(lambda: server.lookups("used") == 2)
            await readers.wait_until(lambda: readers.lookups("idle") == 2)
            assert readers.requests_of(UNWATCH) == []
            assert (server.lookups("idle"), server.lookups("missing")) == (1, 1)

            assert await queue_count(producer, "idle") == 1
            assert server.lookups("idle") == 2
            assert any("idle" in watched for watched in server.watched())
            await queue_count(producer, "missing")
            assert server.lookups("missing") == 2


async def test_a_missing_topic_is_looked_up_once_in_a_poll_interval():
    """Asked for all the time, from one poll to the next; with a name server that pushes nothing it is found there."""
    async with FakeNameServer(pushes=False) as server, Producer(server.address, topic_expiry_s=5) as producer:
        server.serve("idle")
        await producer.queues("idle")
        asking = asyncio.ensure_future(wait_for_queues(producer, "orders", 2))
        await server.wait_until(lambda: server.lookups("orders") == 1)
        assert await queue_count(producer, "orders") is None
        server.serve("orders", queues=2)

        await asking

        assert server.lookups("orders") == 2
        assert server.lookups("idle") == 1
        assert server.requests_of(UNWATCH) == []  # it would not know what that is
