"""Topics that do not exist cost one lookup in a poll interval, however often a producer asks for them."""

import asyncio

import pytest
from tests.support.client_stories import poll_until, queue_count, wait_for_queues
from tests.support.cluster.name_server_machine import a_topic
from tests.support.fake_name_server import FakeNameServer
from tests.support.scripted_server import ScriptedServer
from tests.support.watchers import running_name_server

from holdfast import Message, Producer, PullConsumer, RouteNotFound, SendFailed
from holdfast.model.topic import AUTO_CREATE_TOPIC
from holdfast.wire.frames.codes import RequestCode, ResponseCode


async def refusal(producer: Producer, topic: str) -> str:
    """Return why *topic* cannot be written to."""
    with pytest.raises(RouteNotFound) as refused:
        await producer.queues(topic)
    return str(refused.value)


async def test_a_tight_loop_over_a_missing_topic_makes_one_lookup():
    """The refusal comes from memory, in the same words as the first."""
    async with FakeNameServer() as server, Producer(server.address) as producer:
        first = await refusal(producer, "missing")

        texts = {await refusal(producer, "missing") for _ in range(1000)}

        assert texts == {first}
        assert "'missing'" in first
        assert server.lookups("missing") == 1
        assert server.lookups(AUTO_CREATE_TOPIC) == 1


async def test_sends_to_a_missing_topic_make_one_lookup():
    """One by one, one-way and in bulk: nothing of it was stored, and the reason is the missing route."""
    async with FakeNameServer() as server, Producer(server.address) as producer:
        for _ in range(20):
            with pytest.raises(SendFailed) as refused:
                await producer.send("missing", b"x")
            assert not refused.value.maybe_stored
            with pytest.raises(SendFailed):
                await producer.send_oneway(Message("missing", b"x"))

        assert server.lookups("missing") == 1
        assert server.lookups(AUTO_CREATE_TOPIC) == 1


@pytest.mark.parametrize("exists", [True, False])
async def test_any_number_of_tasks_make_one_lookup(*, exists: bool):
    """Everybody waits for the same answer, whatever it is."""
    async with FakeNameServer() as server, Producer(server.address) as producer:
        if exists:
            server.serve("orders")
        server.is_delaying = True
        asking = [asyncio.ensure_future(queue_count(producer, "orders")) for _ in range(500)]
        await server.wait_until(lambda: server.lookups("orders") > 0)
        server.is_delaying = False
        server.answer_delayed()

        assert set(await asyncio.gather(*asking)) == ({1} if exists else {None})
        assert server.lookups("orders") == 1
        assert server.lookups(AUTO_CREATE_TOPIC) == (0 if exists else 1)


async def test_many_missing_topics_share_one_lookup_of_what_creates_them():
    """Whether brokers create topics is one fact, not one for each topic."""
    async with FakeNameServer() as server, Producer(server.address) as producer:
        for number in range(50):
            await refusal(producer, f"missing-{number}")

        assert server.lookups(AUTO_CREATE_TOPIC) == 1


async def test_a_topic_that_is_created_is_known_when_that_is_told():
    """The watch works for what does not exist."""
    async with FakeNameServer() as server, Producer(server.address) as producer:
        await refusal(producer, "orders")
        assert [{"orders", AUTO_CREATE_TOPIC} <= watched for watched in server.watched()] == [True]

        server.serve("orders", queues=3)
        await refusal(producer, "orders")
        server.notify("orders")

        await wait_for_queues(producer, "orders", 3)
        assert server.lookups("orders") == 2


async def test_a_broker_that_begins_to_create_topics_is_noticed():
    """Then nothing is missing any more: the first send creates what was refused a moment ago."""
    async with FakeNameServer() as server, Producer(server.address) as producer:
        await refusal(producer, "orders")
        await refusal(producer, "bills")

        server.serve(AUTO_CREATE_TOPIC, queues=4)
        server.notify(AUTO_CREATE_TOPIC)

        await wait_for_queues(producer, "orders", 4)
        await wait_for_queues(producer, "bills", 4)
        assert server.lookups(AUTO_CREATE_TOPIC) == 2
        assert (server.lookups("orders"), server.lookups("bills")) == (1, 1)


async def test_where_brokers_create_topics_nothing_is_remembered_as_missing():
    """A topic that does not exist can be sent to, from the first try on."""
    async with FakeNameServer() as server, Producer(server.address) as producer:
        server.serve(AUTO_CREATE_TOPIC, queues=4)

        assert await queue_count(producer, "orders") == 4
        assert await queue_count(producer, "orders") == 4


async def test_a_reader_remembers_nothing_as_missing():
    """Consumers are as they were: they ask each time."""
    async with FakeNameServer() as server, PullConsumer(server.address, "g") as reader:
        for _ in range(5):
            with pytest.raises(RouteNotFound):
                await reader.queues("orders")

        assert server.lookups("orders") == 5
        server.serve("orders")
        assert len(await reader.queues("orders")) == 1


async def test_a_name_server_that_does_not_answer_is_not_remembered_as_a_missing_topic():
    """That nobody could be asked says nothing about the topic."""
    async with FakeNameServer() as server, Producer(server.address) as producer:
        server.serve("orders")
        port = server.port
        await server.stop()
        with pytest.raises(Exception, match=str(port)):
            await producer.queues("orders")

        await server.listen(port)

        assert await queue_count(producer, "orders") == 1


@pytest.mark.parametrize("is_busy", [True, False])
async def test_an_answer_that_is_no_answer_is_not_remembered(*, is_busy: bool):
    """Busy, or any other refusal: the topic may well exist, so it is asked for again."""
    async with FakeNameServer() as server, Producer(server.address) as producer:
        script = server.answers.copy()
        server.refuse(105, 2 if is_busy else 1, "not now")
        with pytest.raises(Exception, match="not now"):
            await producer.queues("orders")
        server.answers.update(script)
        server.serve("orders")

        assert await queue_count(producer, "orders") == 1


async def test_so_many_missing_topics_are_remembered_and_no_more():
    """Ten thousand; of more the oldest are forgotten, and asked for again."""
    async with FakeNameServer() as server, Producer(server.address) as producer:
        for number in range(10_001):
            await queue_count(producer, f"missing-{number}")

        await queue_count(producer, "missing-10000")
        assert server.lookups("missing-10000") == 1
        await queue_count(producer, "missing-5000")
        assert server.lookups("missing-5000") == 1
        await queue_count(producer, "missing-0")
        assert server.lookups("missing-0") == 2


async def test_a_real_name_server_tells_a_producer_of_a_topic_that_it_asked_for_in_vain():
    """From the refusal to the queues, without a poll: one lookup for each of the two."""
    async with running_name_server() as server, server.connect() as broker, Producer(server.address) as producer:
        await broker.register("bills", "rest")
        await refusal(producer, "orders")
        assert producer._client.routes.is_missing("orders")

        await broker.register(a_topic("orders", 6))

        await wait_for_queues(producer, "orders", 6)
        assert not producer._client.routes.is_missing("orders")
        assert (await broker.push_state()).notices_sent == 1


# Topics that were deleted.


async def fail(producer: Producer, topic: str) -> SendFailed:
    """Send, which does not work, and return how it failed."""
    with pytest.raises(SendFailed) as failed:
        await producer.send(topic, b"x")
    return failed.value


@pytest.mark.parametrize("creates", [True, False])
@pytest.mark.parametrize("is_pushed", [True, False])
async def test_a_deleted_topic_is_missing_from_then_on(*, creates: bool, is_pushed: bool):
    """It costs the one lookup that finds it out, pushed or polled, and a create brings it back."""
    async with FakeNameServer(pushes=is_pushed) as server, Producer(server.address) as producer:
        server.serve("orders", queues=2)
        if creates:
            server.serve(AUTO_CREATE_TOPIC, queues=4)
        assert await queue_count(producer, "orders") == 2
        del server.routes["orders"]
        server.deleted.add("orders")

        if is_pushed:
            server.notify("orders")
        else:
            producer._client.mark_stale("orders")
        await poll_until(lambda: producer._client.routes.is_missing("orders"))
        failures = [await fail(producer, "orders") for _ in range(20)]

        (text,) = {str(failure) for failure in failures}
        assert text.startswith("send failed (tried once): the topic 'orders' was deleted; create it again")
        assert server.lookups("orders") == 2
        assert server.lookups(AUTO_CREATE_TOPIC) == 0

        server.serve("orders", queues=3)
        if is_pushed:
            server.notify("orders")
        else:
            producer._client.mark_stale("orders")
        await wait_for_queues(producer, "orders", 3)


@pytest.mark.parametrize("is_concurrent", [True, False])
async def test_a_topic_that_brokers_and_name_servers_do_not_have_is_missing(*, is_concurrent: bool):
    """Java name servers do not say that it was deleted: the first refusal of a broker asks, and the others do not."""
    async with (
        FakeNameServer(pushes=False) as server,
        ScriptedServer() as broker,
        Producer(server.address) as producer,
    ):
        broker.refuse(RequestCode.SEND_MESSAGE_V2, ResponseCode.TOPIC_NOT_EXIST)
        server.serve("orders", queues=2, broker=broker.address)
        assert await queue_count(producer, "orders") == 2
        del server.routes["orders"]

        if is_concurrent:
            failures = await asyncio.gather(*(fail(producer, "orders") for _ in range(20)))
        else:
            failures = [await fail(producer, "orders") for _ in range(20)]

        assert all("'orders' does not exist" in str(failure) for failure in failures)
        assert server.lookups("orders") == 2
        assert server.lookups(AUTO_CREATE_TOPIC) == 1
        assert len(broker.requests_of(RequestCode.SEND_MESSAGE_V2)) == (20 if is_concurrent else 1)


async def test_what_a_broker_says_alone_makes_no_topic_missing():
    """The name server knows it: the broker may have been emptied, and another one has the queues now."""
    async with FakeNameServer() as server, ScriptedServer() as broker, Producer(server.address) as producer:
        broker.refuse(RequestCode.SEND_MESSAGE_V2, ResponseCode.TOPIC_NOT_EXIST)
        server.serve("orders", queues=2, broker=broker.address)

        failure = await fail(producer, "orders")

        assert "tried 3 times" in str(failure)
        assert await queue_count(producer, "orders") == 2
