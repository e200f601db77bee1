"""The one name server that a client asks and is told by."""

import asyncio
import gc
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from unittest.mock import Mock

import pytest
from tests.support.address_server import an_address_server
from tests.support.deliveries import poll_until, run_ready_tasks
from tests.support.pushing_server import ROUTE, ScriptedNameServer

from holdfast.client.cluster.cluster_client import ClientCallbacks, ClusterClient
from holdfast.client.options import ClientOptions
from holdfast.client.routes import name_server_discovery, route_refresher
from holdfast.model.errors import ConfigError, ConnectionLost
from holdfast.wire.frames.codes import RequestCode
from holdfast.wire.frames.command import Command


@asynccontextmanager
async def two_servers() -> AsyncIterator[tuple[ScriptedNameServer, ScriptedNameServer]]:
    """Provide two name servers that know the topics t and u."""
    async with ScriptedNameServer() as one, ScriptedNameServer() as two, asyncio.timeout(30):
        for server in (one, two):
            for topic in ("t", "u"):
                server.serve_topic(topic)
        yield one, two


def watched(server: ScriptedNameServer) -> set[str]:
    """Return the topics that *server* was asked to watch so far."""
    return {command.fields["topic"] for command in server.requests_of(ROUTE) if command.fields.get("watch") == "true"}


async def test_a_route_query_asks_to_be_told_of_changes():
    """Of the name server in use only: surveys of all of them do not."""
    async with two_servers() as (one, two), ClusterClient(f"{one.address};{two.address}") as client:
        await client.route("t")
        await client.refresh_leaders("u")

        used, other = (one, two) if client._name_servers.current == one.address else (two, one)
        assert (watched(used), watched(other)) == ({"t"}, set())
        assert len(used.route_queries("u")) == len(other.route_queries("u")) == 1


@pytest.mark.parametrize("pushes", [True, False])
async def test_one_that_does_not_push_is_named_once_per_connection(caplog: pytest.LogCaptureFixture, *, pushes: bool):
    """At debug level: nothing is wrong."""
    caplog.set_level(logging.DEBUG, "holdfast.client")

    async with two_servers() as (one, two):
        one.pushes = pushes
        async with ClusterClient(one.address) as client:
            await client.route("t")
            await client.route("u")
            one.drop_connections()
            await client.connection(two.address)
            await client.route("t", refresh=True)

    lines = [record for record in caplog.records if "does not push routes" in record.message]
    assert [record.levelno for record in lines] == ([] if pushes else [logging.DEBUG] * 2)


async def test_another_name_server_that_tells_is_asked_to_be_quiet():
    """It remembers what we forgot; nothing is looked up."""
    async with two_servers() as (one, two), ClusterClient(one.address) as client:
        await client.route("t")
        await client.set_name_servers(f"{one.address};{two.address}")
        used, other = (one, two) if client._name_servers.current == one.address else (two, one)
        await used.wait_for_queries("t", 1)
        other.requests.clear()
        await client.ask(other.address, Command(code=30))

        other.notify("t", "u")

        assert (await other.wait_for_unwatches())[-1] == {"t", "u"}
        assert len(other.route_queries("t")) == 0


async def test_a_client_that_lost_its_name_server_watches_again():
    """At once, as soon as it is back; nothing but the connection was lost."""
    async with two_servers() as (one, _two), ClusterClient(one.address) as client:
        await client.route("t")
        await client.route("u")
        await one.stop()
        one.requests.clear()
        await one.listen(int(one.address.rpartition(":")[2]))

        await one.wait_for_queries("t", 1)
        await one.wait_for_queries("u", 1)

        assert watched(one) == {"t", "u"}
        assert client._name_servers.current == one.address


async def test_a_name_server_that_told_of_changes_is_dialled_until_it_stands(monkeypatch: pytest.MonkeyPatch):
    """Nobody waits for the next poll."""
    monkeypatch.setattr(route_refresher, "_POLL_TICK_S", 1000)

    async with two_servers() as (one, two), ClusterClient(one.address) as client:
        await client.route("t")
        await one.stop()
        await poll_until(lambda: one.address in client._pool._redials)
        one.requests.clear()
        await one.listen(int(one.address.rpartition(":")[2]))

        await one.wait_for_queries("t", 1)

        assert watched(one) == {"t"}
        assert two.requests == []
        assert client._pool._redials == {}


async def test_when_a_name_server_is_gone_the_next_one_is_asked_at_once(monkeypatch: pytest.MonkeyPatch):
    """For everything, and nobody waits for the next poll."""
    monkeypatch.setattr(route_refresher, "_POLL_TICK_S", 1000)

    async with two_servers() as (one, two), ClusterClient(f"{one.address};{two.address}") as client:
        used, other = (one, two) if client._name_servers.current == one.address else (two, one)
        await client.route("t")
        await client.route("u")
        await used.stop()

        await other.wait_for_queries("t", 1)
        await other.wait_for_queries("u", 1)

        assert watched(other) == {"t", "u"}
        await used.listen(0)


async def test_when_all_name_servers_are_gone_they_are_asked_once_per_poll(monkeypatch: pytest.MonkeyPatch):
    """Going from one to the next calls for a poll; one that finds nobody must not call for itself."""
    monkeypatch.setattr(route_refresher, "_POLL_TICK_S", 1000)
    polls: list[bool] = []
    renew = route_refresher.RouteRefresher._look_up_all

    async def counted(self: route_refresher.RouteRefresher, topics: list[str]) -> bool:
        polls.append(await renew(self, topics))
        return polls[-1]

    monkeypatch.setattr(route_refresher.RouteRefresher, "_look_up_all", counted)

    async with two_servers() as (one, two), ClusterClient(f"{one.address};{two.address}") as client:
        await client.route("t")
        await one.stop()
        await two.stop()

        await poll_until(lambda: False in polls)
        for _ in range(20):
            await poll_until(lambda: not client._pool._dialing)
            await run_ready_tasks()

        assert polls.count(False) == 1
        await one.listen(0)
        await two.listen(0)


async def test_a_name_server_that_is_polled_is_not_dialled_for_its_own_sake():
    """An old one hears nothing between two polls."""
    async with two_servers() as (one, _two):
        one.pushes = False
        async with ClusterClient(one.address) as client:
            await client.route("t")
            connection = client.find_connection(one.address)
            assert connection is not None
            one.drop_connections()
            await connection.closed

            assert client._pool._redials == {}
            assert client.routes.due(0) == []


async def test_one_that_is_given_up_is_left_in_order():
    """It hears that nothing is watched any more, and the next one is asked for everything."""
    async with two_servers() as (one, two), ClusterClient(ClientOptions(one.address, timeout_s=0.2)) as client:
        await client.route("t")
        await client.set_name_servers(f"{one.address};{two.address}")
        used, other = (one, two) if client._name_servers.current == one.address else (two, one)
        await used.wait_for_queries("t", 1)
        used.requests.clear()
        used.answers[ROUTE] = lambda command: None  # hangs

        await client.route("u")

        assert (await used.wait_for_unwatches())[-1] == {"t", "u"}
        await other.wait_for_queries("t", 1)
        assert "u" in watched(other)
        assert client._name_servers.current == other.address


async def test_another_list_means_another_watch():
    """The old one is told, then left; the new one is asked for everything. Nobody else notifies us."""
    async with two_servers() as (one, two), ClusterClient(one.address) as client:
        await client.route("t")
        await client.route("u")
        old = client.find_connection(one.address)
        assert old is not None

        await client.set_name_servers(two.address)

        assert await one.wait_for_unwatches() == [{"t", "u"}]
        await two.wait_for_queries("t", 1)
        await two.wait_for_queries("u", 1)
        assert watched(two) == {"t", "u"}
        await old.closed
        assert client.name_servers == (two.address,)
        assert client.connected_brokers() == []


async def test_the_same_list_in_another_order_changes_nothing():
    """Nor does one that cannot be used."""
    async with two_servers() as (one, two), ClusterClient(f"{one.address};{two.address}") as client:
        await client.route("t")
        used = client._name_servers.current

        await client.set_name_servers(f"{two.address};{one.address}")
        with pytest.raises(ConfigError):
            await client.set_name_servers("nonsense")
        with pytest.raises(ConnectionLost):
            await client.set_name_servers("http://127.0.0.1:1/list")

        assert client._name_servers.current == used
        assert one.unwatched() == two.unwatched() == []
        assert len(one.route_queries("t")) + len(two.route_queries("t")) == 1


async def test_who_waits_for_one_that_is_taken_off_the_list_asks_the_new_one():
    """Nobody hears of the change."""
    async with two_servers() as (one, two):
        one.answers[ROUTE] = lambda command: None
        async with ClusterClient(one.address) as client:
            asking = asyncio.ensure_future(client.route("t"))
            await one.wait_for_queries("t", 1)

            await client.set_name_servers(two.address)

            assert (await asking).topic == "t"
            assert watched(two) == {"t"}


async def test_one_that_is_taken_off_the_list_while_it_is_dialled_is_left():
    """However long that takes, and however often the list changes meanwhile: nobody would ever close the connection."""
    async with two_servers() as (one, two):
        greet = Mock(return_value=Command(code=RequestCode.HEART_BEAT))
        async with ClusterClient(one.namesrv, ClientCallbacks(heartbeat=greet)) as client:
            lookup = asyncio.ensure_future(client.route("t"))
            while one.namesrv not in client._pool._dialing:  # noqa: ASYNC110 - for a moment only, and nobody tells
                await asyncio.sleep(0)
            await client.set_name_servers(two.namesrv)
            await client.set_name_servers(f"{two.namesrv};127.0.0.1:1")
            await client.set_name_servers(two.namesrv)

            await lookup

            await poll_until(lambda: client._pool.addresses() == [two.namesrv])
            assert client.connected_brokers() == []
            greet.assert_not_called()  # It is no broker.


async def test_a_client_may_end_right_after_another_list():
    """What the old name server was told is not answered any more; that is nobody's fault."""
    faults: list[dict[str, object]] = []

    async with two_servers() as (one, two):
        asyncio.get_running_loop().set_exception_handler(lambda _, fault: faults.append(fault))
        async with ClusterClient(one.address) as client:
            await client.route("t")
            await client.set_name_servers(two.address)
        del client
        gc.collect()
        assert await one.wait_for_unwatches() == [{"t"}]
    gc.collect()

    assert faults == []


async def test_the_list_is_followed_after_any_nonsense():
    """Names that can be none and ports of thousands of digits too are answered by an address server that is ill."""
    async with two_servers() as (one, two):
        with an_address_server(one.address.encode()) as server:
            async with ClusterClient(ClientOptions(server.url, name_server_refresh_s=0.01)) as client:
                too_long = "a" * 64 + ":1"  # It is kept, as any name that cannot be resolved at the moment.
                for nonsense, kept in (
                    (b"a:" + b"9" * 5000, one.address),
                    (b"\xff", one.address),
                    (too_long.encode(), too_long),
                ):
                    server.body = nonsense
                    count = len(server.requested_paths)
                    await poll_until(lambda count=count: len(server.requested_paths) >= count + 2)
                    assert client.name_servers == (kept,)

                server.body = two.address.encode()

                await poll_until(lambda: client.name_servers == (two.address,))
                await client.route("t")
                assert (watched(one), watched(two)) == (set(), {"t"})


async def test_an_answer_that_comes_late_leaves_no_watch():
    """It was asked before the change, and dialled behind it: it is told, and the one in use is asked, too."""
    async with two_servers() as (one, two), ClusterClient(f"{one.address};{two.address}") as client:
        used, other = (one, two) if client._name_servers.current == one.address else (two, one)
        asking = asyncio.ensure_future(client.route("t"))
        while used.address not in client._pool._dialing:  # noqa: ASYNC110 - for a moment only
            await asyncio.sleep(0)
        client._name_servers._servers.fail_over(used.address)
        client._name_servers._leave(used.address)

        await asking

        assert (await used.wait_for_unwatches()) == [{"t"}]
        await other.wait_for_queries("t", 1)


async def test_an_old_name_server_is_told_nothing_it_does_not_know():
    """Leaving it needs no words."""
    async with two_servers() as (one, two):
        one.pushes = False
        async with ClusterClient(one.address) as client:
            await client.route("t")
            await client.set_name_servers(two.address)
            await two.wait_for_queries("t", 1)

            assert one.unwatched() == []


async def test_the_list_follows_dns(monkeypatch: pytest.MonkeyPatch):
    """A name has other addresses than a moment ago."""
    async with two_servers() as (one, _two):
        hosts = ["127.0.0.2"]

        async def resolve(host: str) -> list[str]:
            assert host == "shop"
            return hosts

        monkeypatch.setattr(name_server_discovery, "resolve_host", resolve)
        port = one.address.rpartition(":")[2]
        async with ClusterClient(ClientOptions(f"shop:{port}", name_server_refresh_s=0.01)) as client:
            assert client.name_servers == (f"127.0.0.2:{port}",)

            hosts[:] = ["127.0.0.1"]

            await poll_until(lambda: client.name_servers == (one.address,))
            await client.route("t")
            assert watched(one) == {"t"}


async def test_the_list_follows_an_address_server():
    """Asked at the start and again and again; while it tells nonsense the list stays."""
    async with two_servers() as (one, two):
        with an_address_server(one.address.encode()) as server:
            async with ClusterClient(ClientOptions(server.url, name_server_refresh_s=0.01)) as client:
                await client.route("t")
                server.body = b"<html>"
                count = len(server.requested_paths)
                await poll_until(lambda: len(server.requested_paths) >= count + 3)
                assert client.name_servers == (one.address,)

                server.body = two.address.encode()

                await two.wait_for_queries("t", 1)
                assert await one.wait_for_unwatches() == [{"t"}]


async def test_an_address_server_that_does_not_tell_is_an_error_of_the_start():
    """There is nobody to ask."""
    with pytest.raises(ConnectionLost, match="returned no name servers"):
        await ClusterClient("http://127.0.0.1:1/list").start()


async def test_what_the_old_place_says_too_late_does_not_count(monkeypatch: pytest.MonkeyPatch):
    """It was asked before the change, and answers behind it."""
    async with two_servers() as (_one, two):
        is_asked, may_answer = asyncio.Event(), asyncio.Event()
        answers = [["127.0.0.2"]]

        async def resolve(host: str) -> list[str]:
            if answers:
                return answers.pop()
            is_asked.set()
            await may_answer.wait()
            return ["127.0.0.3"]

        monkeypatch.setattr(name_server_discovery, "resolve_host", resolve)
        async with ClusterClient(ClientOptions("shop:1", name_server_refresh_s=0.01)) as client:
            await is_asked.wait()
            await client.set_name_servers(two.address)
            may_answer.set()
            await run_ready_tasks()

            assert client.name_servers == (two.address,)


async def test_the_place_that_tells_the_list_can_be_another_one():
    """The old one is not asked any more."""
    async with two_servers() as (one, two):
        with an_address_server(one.address.encode()) as server:
            async with ClusterClient(ClientOptions(server.url, name_server_refresh_s=0.01)) as client:
                await client.route("t")
                await client.set_name_servers(two.address)
                count = len(server.requested_paths)
                await two.wait_for_queries("t", 1)
                await asyncio.sleep(0.05)  # several times as long as it was asked before

                assert len(server.requested_paths) <= count + 1
                assert client.name_servers == (two.address,)


async def test_a_broker_is_not_taken_for_a_name_server():
    """Who does not know what a route is, is passed over like one that does not answer."""
    async with two_servers() as (one, two):
        del one.answers[ROUTE], two.answers[ROUTE]
        async with ClusterClient(f"{one.address};{two.address}") as client:
            with pytest.raises(ConnectionLost, match="is no name server but perhaps a broker"):
                await client.route("t")

            two.serve_topic("t")
            assert (await client.route("t")).topic == "t"
            assert client._name_servers.current == two.address


async def test_a_name_server_that_does_not_answer_is_logged_once(caplog: pytest.LogCaptureFixture):
    """However many requests fail on it; again once it has answered meanwhile."""

    def lines() -> list[str]:
        return [text for text in caplog.messages if "does not answer" in text]

    async with two_servers() as (one, _two), ClusterClient(one.address) as client:
        for expected in (1, 2):
            await client.route("t", refresh=True)
            port = int(one.address.rpartition(":")[2])
            await one.stop()
            for _ in range(3):
                with pytest.raises(ConnectionLost):
                    await client.route("t", refresh=True)
            assert len(lines()) == expected
            await one.listen(port)
