"""The client against name servers of which every request is seen: what it watches, and what it does when it is told."""

import asyncio
import logging

import pytest
from tests.support.client_stories import poll_until, queue_count, wait_for_queues
from tests.support.fake_name_server import FakeNameServer
from tests.support.scripted_group import ScriptedGroup
from tests.support.scripted_server import ScriptedServer

from holdfast import ClusterClient, Producer, PullConsumer, PushConsumer
from holdfast.client.cluster.cluster_client import ClientCallbacks
from holdfast.client.options import ClientOptions
from holdfast.model.message import ReceivedMessage
from holdfast.model.topic import AUTO_CREATE_TOPIC
from holdfast.wire.cluster.watch import ROUTES_CHANGED, UNWATCH, WATCH_FIELD
from holdfast.wire.frames.codes import RequestCode
from holdfast.wire.frames.command import Command


class Changes(asyncio.Queue[str]):
    """The topics whose routes changed, as a client tells of them."""

    def __call__(self, topic: str) -> None:
        self.put_nowait(topic)


async def test_a_lookup_asks_to_be_told_of_changes():
    """Of a producer, a reader and a consumer alike."""

    async def ignore(message: ReceivedMessage) -> None:
        raise AssertionError("there are no messages here")

    async with FakeNameServer() as server:
        server.serve("orders")
        consumer = PushConsumer(server.address, "g", listener=ignore)
        consumer.subscribe("orders")
        async with Producer(server.address) as producer, PullConsumer(server.address, "g") as reader, consumer:
            await producer.queues("orders")
            await reader.queues("orders")
            await server.wait_until(lambda: sum("orders" in topics for topics in server.watched()) == 3)
        assert {command.fields.get(WATCH_FIELD) for command in server.queries()} == {"true"}


async def test_a_told_change_is_looked_up_at_once():
    """And what the lookup finds is what the next send goes by."""
    async with FakeNameServer() as server:
        server.serve("orders")
        changes = Changes()
        async with ClusterClient(server.address, ClientCallbacks(routes_changed=changes)) as client:
            assert len((await client.publish_route("orders")).publishable) == 1
            assert await changes.get() == "orders"

            server.serve("orders", queues=3)
            server.notify("orders")

            assert await changes.get() == "orders"
            assert len((await client.publish_route("orders")).publishable) == 3
            assert server.lookups("orders") == 2


async def test_told_topics_are_looked_up_together_and_each_once():
    """All queries are out before the first answer; being told again meanwhile asks for nothing more."""
    topics = [f"topic-{number}" for number in range(50)]
    async with FakeNameServer() as server:
        server.serve(*topics)
        async with ClusterClient(server.address) as client:
            await asyncio.gather(*(client.route(topic) for topic in topics))
            server.is_delaying = True

            server.notify(*topics)
            await server.wait_until(lambda: len(server.queries()) >= 100)
            server.notify(*topics)
            server.notify(*topics)
            await client.ask_name_server(Command(code=RequestCode.GET_KV_CONFIG))

            assert all(server.lookups(topic) == 2 for topic in topics)
            server.is_delaying = False
            server.answer_delayed()


async def test_topics_that_nobody_here_knows_are_not_looked_up():
    """A notice may be late, or wrong."""
    async with FakeNameServer() as server:
        server.serve("orders", "stranger")
        async with Producer(server.address) as producer:
            await producer.queues("orders")

            server.notify("stranger", "")
            server.notify("orders")
            await server.wait_until(lambda: server.lookups("orders") == 2)
            server.notify("stranger", "orders")
            await server.wait_until(lambda: server.lookups("orders") == 3)

            assert server.lookups("stranger") == 0


@pytest.mark.parametrize("fields", [{}, {"topics": ""}, {"topics": ";;;"}, {"other": "x"}])
async def test_a_notice_that_says_nothing_does_no_harm(fields: dict[str, str], caplog: pytest.LogCaptureFixture):
    """The client goes on, and the next one counts."""
    async with FakeNameServer() as server:
        server.serve("orders")
        async with Producer(server.address) as producer:
            await producer.queues("orders")
            server.push(Command(code=ROUTES_CHANGED, flag=2, fields=fields))
            server.notify("orders")
            await server.wait_until(lambda: server.lookups("orders") == 2)
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


async def test_another_name_server_that_tells_is_asked_to_stop():
    """It gets a 329 of what it told, and nothing is looked up for it."""
    async with FakeNameServer() as first, FakeNameServer() as second:
        both = {first.address: first, second.address: second}
        for server in both.values():
            server.serve("orders")
            server.on(RequestCode.GET_BROKER_CLUSTER_INFO)
        async with ClusterClient(";".join(both)) as client:
            await client.route("orders")
            used, other = (first, second) if first.queries() else (second, first)
            await client.every_name_server(Command(code=RequestCode.GET_BROKER_CLUSTER_INFO))

            other.notify("orders")

            await other.wait_until(lambda: other.unwatched_topics() == ["orders"])
            used.notify("orders")
            await used.wait_until(lambda: used.lookups("orders") == 2)
            assert other.queries() == []
            assert used.requests_of(UNWATCH) == []


async def test_a_survey_of_all_name_servers_watches_at_none_of_them():
    """Who is asked in passing need not tell later."""
    async with FakeNameServer() as first, FakeNameServer() as second:
        for server in (first, second):
            server.serve("orders")
        async with ClusterClient(f"{first.address};{second.address}") as client:
            await client.refresh_leaders("orders")

            assert len(first.queries()) == len(second.queries()) == 1
            assert [WATCH_FIELD in command.fields for command in first.queries() + second.queries()] == [False] * 2


async def test_a_lost_connection_is_made_again_and_everything_is_asked_for_again():
    """At once, not at the next poll: the name server has forgotten who watched, and something may have changed."""
    topics = {f"topic-{number}" for number in range(10)}
    async with FakeNameServer() as server:
        server.serve(*topics)
        async with Producer(server.address) as producer:
            await asyncio.gather(*(producer.queues(topic) for topic in topics))
            for topic in topics:
                server.serve(topic, queues=5)

            server.drop_connections()

            await server.wait_until(lambda: any(watched >= topics for watched in server.watched()))
            for topic in topics:
                await wait_for_queues(producer, topic, 5)
            assert all(server.lookups(topic) == 2 for topic in topics)
            server.serve("topic-3", queues=7)
            server.notify("topic-3")
            await wait_for_queues(producer, "topic-3", 7)
            assert [server.lookups(topic) for topic in sorted(topics)] == [2, 2, 2, 3, 2, 2, 2, 2, 2, 2]


async def test_a_restarted_name_server_is_watched_again():
    """However long it was away: it is dialled until it is there."""
    async with FakeNameServer() as server:
        server.serve("orders")
        async with Producer(server.address) as producer:
            await producer.queues("orders")
            port = server.port
            await server.stop()
            assert server.watched() == []

            await server.listen(port)

            await server.wait_until(lambda: any("orders" in watched for watched in server.watched()))


async def test_a_dead_name_server_is_left_for_the_next_one_and_watched_there():
    """With every topic."""
    async with FakeNameServer() as first, FakeNameServer() as second:
        for server in (first, second):
            server.serve("orders", "bills")
        async with Producer(f"{first.address};{second.address}") as producer:
            await producer.queues("orders")
            await producer.queues("bills")
            used, other = (first, second) if first.queries() else (second, first)

            await used.stop()

            await other.wait_until(lambda: any(watched >= {"orders", "bills"} for watched in other.watched()))
            assert other.watched() == [{"orders", "bills"}]
            assert used.watched() == []


async def test_a_name_server_that_hangs_is_left_and_told_so():
    """Its connection is open: it could wake up and tell as well, so it is asked not to."""
    async with FakeNameServer() as first, FakeNameServer() as second:
        for server in (first, second):
            server.serve("orders", "bills", "rest")
        async with ClusterClient(ClientOptions(f"{first.address};{second.address}", timeout_s=0.5)) as client:
            await client.publish_route("orders")
            await client.publish_route("bills")
            used, other = (first, second) if first.queries() else (second, first)

            used.is_silent = True
            await client.publish_route("rest")

            await other.wait_until(lambda: any(watched >= {"orders", "bills", "rest"} for watched in other.watched()))
            await used.wait_until(lambda: set(used.unwatched_topics()) >= {"orders", "bills"})
            assert used.watched() == []


async def test_a_name_server_that_does_not_push_is_polled_and_that_is_said_once(caplog: pytest.LogCaptureFixture):
    """At debug level, once for a connection, with its address and the interval."""
    caplog.set_level(logging.DEBUG)

    async with FakeNameServer(pushes=False) as server:
        server.serve("orders", "bills")
        async with Producer(server.address) as producer:
            for _ in range(3):
                await producer.queues("orders")
                await producer.queues("bills")
            assert server.requests_of(UNWATCH) == []
        address = server.address

    said = [record for record in caplog.records if "does not push" in record.getMessage()]
    assert [(record.levelname, record.name.split(".")[0]) for record in said] == [("DEBUG", "holdfast")]
    assert address in said[0].getMessage()
    assert "30 s" in said[0].getMessage()


async def test_a_name_server_that_pushes_is_not_said_to_poll(caplog: pytest.LogCaptureFixture):
    """The line is about others."""
    caplog.set_level(logging.DEBUG)

    async with FakeNameServer() as server:
        server.serve("orders")
        async with Producer(server.address) as producer:
            await producer.queues("orders")
            await asyncio.gather(producer.queues("missing"), return_exceptions=True)

    assert [record.getMessage() for record in caplog.records if "does not push" in record.getMessage()] == []


async def test_a_template_of_automatic_creation_is_watched_too():
    """A topic that a broker will create is asked for again when it is told that it was created."""
    async with FakeNameServer() as server:
        server.serve(AUTO_CREATE_TOPIC, queues=4)
        async with Producer(server.address) as producer:
            assert await queue_count(producer, "new") == 4
            assert any({"new", AUTO_CREATE_TOPIC} <= watched for watched in server.watched())

            server.serve("new", queues=2)
            server.notify("new")

            await wait_for_queues(producer, "new", 2)


async def test_a_told_deletion_costs_nothing_that_works():
    """The topic's route stays: brokers know best whether they still take messages."""
    async with FakeNameServer() as server:
        server.serve("orders", queues=2)
        async with Producer(server.address) as producer:
            await producer.queues("orders")
            del server.routes["orders"]
            server.notify("orders")
            await server.wait_until(lambda: server.lookups("orders") == 2)

            assert await queue_count(producer, "orders") == 2
            assert [watched for watched in server.watched() if "orders" in watched] != []


async def test_a_producer_in_a_namespace_watches_the_topics_names_on_the_wire():
    """And knows them again when it is told."""
    async with FakeNameServer() as server:
        server.serve("ns%orders")
        async with Producer(server.address, namespace="ns") as producer:
            assert await queue_count(producer, "orders") == 1
            assert [watched & {"orders", "ns%orders"} for watched in server.watched()] == [{"ns%orders"}]

            server.serve("ns%orders", queues=4)
            server.notify("ns%orders")

            await wait_for_queues(producer, "orders", 4)


async def test_a_missing_topic_is_asked_for_again_after_a_lost_connection():
    """It may have been created while nobody could tell."""
    async with FakeNameServer() as server, Producer(server.address) as producer:
        assert await queue_count(producer, "orders") is None
        assert await queue_count(producer, "missing") is None
        server.serve("orders", queues=2)

        server.drop_connections()

        await wait_for_queues(producer, "orders", 2)
        wanted = {"orders", "missing", AUTO_CREATE_TOPIC}
        await server.wait_until(lambda: any(watched >= wanted for watched in server.watched()))


async def test_a_consumer_hears_of_new_queues_when_it_is_told():
    """It looks the route up once, and its share of the topic follows the route."""

    async def ignore(message: ReceivedMessage) -> None:
        raise AssertionError("there are no messages here")

    async with FakeNameServer() as server, ScriptedServer() as broker:
        ScriptedGroup(broker, queues=3)
        server.serve("t", broker=broker.address)
        consumer = PushConsumer(server.address, "g", listener=ignore)
        consumer.subscribe("t")
        async with consumer:
            await poll_until(lambda: len(consumer.assignment) == 1)
            before = server.lookups("t")
            server.serve("t", queues=3, broker=broker.address)
            server.notify("t")
            await poll_until(lambda: len(consumer.assignment) == 3)
            assert server.lookups("t") == before + 1


async def test_a_name_server_that_does_not_push_is_asked_nothing_that_it_does_not_know():
    """Old ones do not even answer it: whoever waited for them would take them for dead."""
    async with FakeNameServer(pushes=False) as old, FakeNameServer(pushes=False) as new:
        for server in (old, new):
            server.serve("orders")
        async with Producer(old.address) as producer:
            await producer.queues("orders")
            await queue_count(producer, "missing")

            await producer.set_name_servers(new.address)

            await new.wait_until(lambda: new.lookups("orders") == 1 and new.lookups("missing") == 1)
        asked = {command.code for server in (old, new) for command in server.requests}
        assert asked == {RequestCode.GET_ROUTEINFO_BY_TOPIC}
