"""Keeping the routes of a client up to date."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.support.deliveries import poll_until, run_ready_tasks
from tests.support.pushing_server import ROUTE, ScriptedNameServer

from holdfast.client.cluster.cluster_client import ClientCallbacks, ClusterClient
from holdfast.client.options import ClientOptions
from holdfast.client.routes import route_refresher
from holdfast.model.errors import ConnectionLost, RouteNotFound
from holdfast.model.topic import AUTO_CREATE_TOPIC
from holdfast.wire.frames.command import Command


@asynccontextmanager
async def a_client(
    callbacks: ClientCallbacks | None = None, **options: Any
) -> AsyncIterator[tuple[ScriptedNameServer, ClusterClient]]:
    """Provide a name server that pushes and a client that sends."""
    async with (
        ScriptedNameServer() as server,
        asyncio.timeout(30),
        ClusterClient(ClientOptions(server.address, **{"remembers_missing": True, **options}), callbacks) as client,
    ):
        yield server, client


def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let polls and sweeps follow each other quickly."""
    monkeypatch.setattr(route_refresher, "_POLL_TICK_S", 0.01)
    monkeypatch.setattr(route_refresher, "_SWEEP_S", 0.02)


def queue_count(client: ClusterClient) -> int:
    """Return how many queues t has, as far as is known."""
    route = client.routes.find("t")
    return 0 if route is None else len(route.publishable)


async def find_missing(client: ClusterClient, topic: str = "t") -> None:
    """Be told that *topic* does not exist."""
    with pytest.raises(RouteNotFound, match=re.escape(f"the topic {topic!r} does not exist and no broker creates")):
        await client.publish_route(topic)


# Notices.


async def test_a_notice_is_followed_by_a_lookup():
    """At once, whoever wants to know is told; what nobody here knows is nobody's business."""
    changed: asyncio.Queue[str] = asyncio.Queue()

    async with a_client(ClientCallbacks(routes_changed=changed.put_nowait)) as (server, client):
        server.serve_topic("t", queues=1)
        await client.route("t")
        assert await changed.get() == "t"
        server.serve_topic("t", queues=2)

        server.notify("stranger", "t")

        assert await changed.get() == "t"
        assert len((await client.route("t")).publishable) == 2
        assert server.route_queries("stranger") == []


async def test_a_topic_that_a_notice_names_often_is_looked_up_once():
    """Whoever tells may be wrong, or mean harm."""
    async with a_client() as (server, client):
        server.serve_topic("t")
        server.serve_topic("u")
        await client.route("t")
        await client.route("u")

        server.notify(*["t"] * 1000, "u")

        await server.wait_for_queries("u", 2)
        await run_ready_tasks()
        assert len(server.route_queries("t")) == 2


async def test_many_topics_of_one_notice_are_looked_up_together():
    """Nobody waits for the answer to another."""
    async with a_client() as (server, client):
        topics = [f"t{number}" for number in range(50)]
        for topic in topics:
            server.serve_topic(topic)
            await client.route(topic)
        answers = server.answers[ROUTE]
        server.answers[ROUTE] = lambda command: None

        server.notify(*topics)

        await server.wait_for_requests(ROUTE, 100)
        assert [len(server.route_queries(topic)) for topic in topics] == [2] * 50
        server.answers[ROUTE] = answers


async def test_a_change_during_a_lookup_is_not_missed():
    """The answer may be older than the change; it may even have come with the notice."""
    async with a_client() as (server, client):
        server.serve_topic("t", queues=1)
        await client.route("t")
        old = server.answers[ROUTE]

        def answer_and_change(command: Any) -> Any:
            answer = old(command)
            server.answers.pop(ROUTE)
            server.serve_topic("t", queues=2)
            asyncio.get_running_loop().call_soon(server.notify, "t")
            return answer

        server.answers[ROUTE] = answer_and_change
        lookup = asyncio.ensure_future(client.route("t", refresh=True))
        await server.wait_for_queries("t", 2)
        assert client.routes.find("t") is not None
        await lookup

        await server.wait_for_queries("t", 3)
        await poll_until(lambda: queue_count(client) == 2)


async def test_a_notice_that_comes_before_the_answer_is_followed_by_another_lookup():
    """One at a time: the second when the first has ended."""
    async with a_client() as (server, client):
        server.serve_topic("t", queues=1)
        await client.route("t")
        answer = server.answers[ROUTE]
        held: list[Any] = []
        server.answers[ROUTE] = held.append
        lookup = asyncio.ensure_future(client.route("t", refresh=True))
        await server.wait_for_queries("t", 2)

        server.notify("t")
        server.notify("t")
        server.on(30)
        await client.ask(server.address, Command(code=30))
        assert len(server.route_queries("t")) == 2
        server.answers[ROUTE] = answer
        server.push(answer(held[0]))

        await lookup
        await server.wait_for_queries("t", 3)
        assert len(server.route_queries("t")) == 3


async def test_a_notice_that_cannot_be_followed_is_followed_later(monkeypatch: pytest.MonkeyPatch):
    """The name server died behind it."""
    quick(monkeypatch)

    async with a_client() as (server, client):
        server.serve_topic("t", queues=1)
        await client.route("t")
        server.serve_topic("t", queues=2)
        answer = server.answers[ROUTE]

        def die(command: Any) -> None:
            server.answers[ROUTE] = answer
            server.drop_connections()

        server.answers[ROUTE] = die
        server.notify("t")

        await poll_until(lambda: queue_count(client) == 2)
        assert server.answers[ROUTE] is answer, "the lookup that followed the notice was lost"
        assert len(server.route_queries("t")) >= 3


async def test_a_notice_whose_lookup_gets_no_answer_is_followed_later(monkeypatch: pytest.MonkeyPatch):
    """The connection stands, so nothing else reminds of it."""
    quick(monkeypatch)

    async with a_client(timeout_s=0.1) as (server, client):
        server.serve_topic("t", queues=1)
        await client.route("t")
        server.serve_topic("t", queues=2)
        answer = server.answers[ROUTE]

        def be_silent_once(command: Any) -> None:
            server.answers[ROUTE] = answer

        connection = client.find_connection(server.address)
        server.answers[ROUTE] = be_silent_once
        server.notify("t")

        await poll_until(lambda: queue_count(client) == 2)
        assert len(server.route_queries("t")) >= 3, "the lookup that followed the notice was lost"
        assert client.find_connection(server.address) is connection


async def test_when_no_name_server_answers_one_topic_is_enough_to_know(monkeypatch: pytest.MonkeyPatch, caplog: Any):
    """A thousand topics are not a thousand lines in the log."""
    quick(monkeypatch)
    monkeypatch.setattr(route_refresher, "_LOOKUPS_MAX", 1)

    async with a_client(timeout_s=0.5) as (server, client):
        for topic in ("t", "u", "v"):
            server.serve_topic(topic)
            await client.route(topic)
        caplog.clear()
        await server.stop()
        await poll_until(lambda: bool(caplog.records))
        assert not [record for record in caplog.records if "of t" in record.message]
        assert len([record for record in caplog.records if "does not answer" in record.message]) <= 1
        assert set(client.routes.due(0)) == {"t", "u", "v"}
        await server.listen(0)


async def test_an_outage_is_told_when_it_begins_and_when_it_ends(monkeypatch: pytest.MonkeyPatch, caplog: Any):
    """A second of it is a poll that fails: an hour would be thousands of the same line."""
    quick(monkeypatch)

    polls: list[bool] = []
    renew = route_refresher.RouteRefresher._look_up_all

    async def counted(self: route_refresher.RouteRefresher, topics: list[str]) -> bool:
        polls.append(await renew(self, topics))
        return polls[-1]

    monkeypatch.setattr(route_refresher.RouteRefresher, "_look_up_all", counted)
    async with a_client(timeout_s=5) as (server, client):
        server.serve_topic("t")
        await client.route("t")
        client.mark_stale("t")
        await server.wait_for_queries("t", 2)

        def lines() -> list[str]:
            return [record.message for record in caplog.records if "polled" in record.message]

        assert lines() == [], "what works need not be told"
        for outage in (1, 2):
            await server.stop()
            asked = polls.count(False)
            await poll_until(lambda asked=asked: polls.count(False) > asked + 3)
            assert [line.split(":")[0] for line in lines()[outage * 2 - 2 :]] == ["routes could not be polled"]

            await server.listen(int(server.address.rpartition(":")[2]))
            await poll_until(lambda outage=outage: len(lines()) == outage * 2)
            assert lines()[-1] == "routes are polled again"


# Topics that nobody uses.


async def test_a_topic_that_nobody_sends_to_is_forgotten(monkeypatch: pytest.MonkeyPatch):
    """The name server hears of all of them in one request, and nobody asks for them again."""
    quick(monkeypatch)
    forgotten: asyncio.Queue[list[str]] = asyncio.Queue()

    async with a_client(ClientCallbacks(topics_forgotten=forgotten.put_nowait), topic_expiry_s=0.2) as (server, client):
        for topic in ("idle", "other", "busy"):
            server.serve_topic(topic)
            await client.publish_route(topic)
        client.routes.use("busy", float("inf"))

        assert set(await forgotten.get()) == {"idle", "other"}

        assert await server.wait_for_unwatches() == [{"idle", "other"}]
        assert [client.routes.find(topic) is None for topic in ("idle", "other", "busy")] == [True, True, False]
        assert (await client.publish_route("idle")).topic == "idle"


async def test_a_topic_in_use_is_kept(monkeypatch: pytest.MonkeyPatch):
    """Every question for its route counts."""
    quick(monkeypatch)

    async with a_client(topic_expiry_s=0.3) as (server, client):
        server.serve_topic("idle")
        server.serve_topic("busy")
        await client.publish_route("idle")
        while not server.unwatched():
            await client.publish_route("busy")
            await asyncio.sleep(0.01)

        assert server.unwatched() == [{"idle"}]
        assert len(server.route_queries("busy")) == 1


async def test_consumers_forget_nothing(monkeypatch: pytest.MonkeyPatch):
    """They say which topics they want."""
    quick(monkeypatch)

    async with a_client(remembers_missing=False) as (server, client):
        server.serve_topic("t")
        await client.route("t")
        client.routes._poll_interval_ms = 0
        await server.wait_for_queries("t", 10)

        assert server.unwatched() == []


# Topics that do not exist.


async def test_a_missing_topic_is_asked_for_once():
    """In a tight loop, by a hundred tasks, and also by who wants to be sure. The text is always the same."""
    async with a_client() as (server, client):
        await asyncio.gather(*(find_missing(client) for _ in range(100)))
        for _ in range(100):
            await find_missing(client)
            with pytest.raises(RouteNotFound):
                await client.publish_route("t", refresh=True)

        assert len(server.route_queries("t")) == len(server.route_queries(AUTO_CREATE_TOPIC)) == 1


async def test_a_missing_topic_is_polled(monkeypatch: pytest.MonkeyPatch):
    """Once per interval, however often it is asked for; so is the template of automatic creation."""
    quick(monkeypatch)

    async with a_client() as (server, client):
        await find_missing(client)
        for polls in range(2, 5):
            for entry in client.routes._entries.values():
                assert entry.checked_ms is not None
                entry.checked_ms -= 30_000
            await server.wait_for_queries("t", polls)
            await server.wait_for_queries(AUTO_CREATE_TOPIC, polls)
            for _ in range(100):
                await find_missing(client)
            assert len(server.route_queries("t")) == len(server.route_queries(AUTO_CREATE_TOPIC)) == polls


async def test_a_missing_topic_is_watched():
    """It is there as soon as the name server tells."""
    async with a_client() as (server, client):
        await find_missing(client)
        assert server.route_queries("t")[0].fields["watch"] == "true"
        server.serve_topic("t")

        server.notify("t")

        await server.wait_for_queries("t", 2)
        assert (await client.publish_route("t")).topic == "t"
        assert len(server.route_queries("t")) == 2


async def test_a_broker_that_begins_to_create_topics_ends_it():
    """Without another question for the topic."""
    async with a_client() as (server, client):
        await find_missing(client)
        server.serve_topic(AUTO_CREATE_TOPIC, queues=8)

        server.notify(AUTO_CREATE_TOPIC)

        await server.wait_for_queries(AUTO_CREATE_TOPIC, 2)
        assert (await client.publish_route("t")).is_template
        assert len(server.route_queries("t")) == 1


async def test_where_brokers_create_topics_nothing_is_missing():
    """The route of the template is used, and the topic asked for again soon."""
    async with a_client() as (server, client):
        server.serve_topic(AUTO_CREATE_TOPIC)

        assert (await client.publish_route("t")).is_template

        assert not client.routes.is_missing("t")
        assert client.routes.due(2**60) != []


async def test_a_template_that_is_gone_serves_nobody():
    """No broker creates topics any more: what was borrowed ends with the next doubt, and is missing."""
    async with a_client() as (server, client):
        server.serve_topic(AUTO_CREATE_TOPIC)
        await client.publish_route("t")
        server.forget_topics()
        server.notify(AUTO_CREATE_TOPIC)
        await server.wait_for_queries(AUTO_CREATE_TOPIC, 2)

        for _ in range(3):
            with pytest.raises(RouteNotFound):
                await client.publish_route("t", refresh=True)

        assert client.routes.find("t") is None
        assert len(server.route_queries("t")) == 2


async def test_a_topic_created_while_it_is_looked_for_elsewhere_is_found():
    """The template is asked for, and meanwhile the topic appears: it must not be taken for missing."""
    async with a_client() as (server, client):
        unknown = server.answers[ROUTE]

        def create(command: Any) -> Any:
            if command.fields["topic"] != AUTO_CREATE_TOPIC:
                return unknown(command)
            server.answers.pop(ROUTE)
            server.serve_topic("t")
            server.notify("t")
            held.append(command)
            return None

        held: list[Any] = []
        server.answers[ROUTE] = create
        asking = asyncio.ensure_future(client.publish_route("t"))
        await server.wait_for_queries("t", 2)
        await poll_until(lambda: client.routes.find("t") is not None)
        server.push(unknown(held[0]))

        assert not (await asking).is_template
        assert client.routes.find("t") is not None


async def test_what_is_missing_stays_so_while_no_name_server_answers():
    """Nobody can have created it for us to know."""
    async with a_client() as (server, client):
        await find_missing(client)
        connection = client.find_connection(server.address)
        assert connection is not None
        await server.stop()
        await connection.closed
        with pytest.raises(ConnectionLost):
            await client.publish_route("other")

        await poll_until(lambda: not client._refresher._lookups)
        await find_missing(client)
        await server.listen(0)


async def test_missing_topics_have_their_limit(monkeypatch: pytest.MonkeyPatch):
    """The oldest is forgotten, and the name server hears of it."""
    monkeypatch.setattr(route_refresher, "MISSING_MAX", 3)

    async with a_client() as (server, client):
        for topic in ("a", "b", "c"):
            await find_missing(client, topic)

        assert await server.wait_for_unwatches() == [{"a"}]
        assert not client.routes.has_topic("a")


async def test_a_missing_topic_that_nobody_asks_for_is_forgotten(monkeypatch: pytest.MonkeyPatch):
    """As any other is, together with the template of automatic creation."""
    quick(monkeypatch)

    async with a_client(topic_expiry_s=0.1) as (server, client):
        await find_missing(client)

        await server.wait_for_unwatches()

        assert set.union(*server.unwatched()) <= {"t", AUTO_CREATE_TOPIC}
        await poll_until(lambda: not client.routes.due(2**60))


async def test_consumers_ask_every_time():
    """They send rarely, and to topics that brokers make for them."""
    async with a_client(remembers_missing=False) as (server, client):
        for _ in range(3):
            await find_missing(client)

        assert len(server.route_queries("t")) == 3
