"""Reaching a cluster."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from tests.support.deliveries import poll_until, run_ready_tasks
from tests.support.scripted_server import ScriptedServer
from tests.support.static_topics import a_record, logical_queue, serve_static

from holdfast.client.cluster import cluster_client
from holdfast.client.cluster.cluster_client import ClientCallbacks, ClusterClient
from holdfast.client.cluster.server_request import ServerRequest
from holdfast.client.routes import route_refresher
from holdfast.model.errors import BrokerRefused, ConnectionLost, RouteNotFound
from holdfast.wire.frames.codes import RequestCode
from holdfast.wire.frames.command import Command, response

ROUTE = RequestCode.GET_ROUTEINFO_BY_TOPIC
CLUSTERS = (
    b'{"brokerAddrTable":{"broker-a":{"brokerAddrs":{0:"a:1",1:"a:2"},"brokerName":"broker-a","cluster":"c1"},'
    b'"broker-b":{"brokerAddrs":{0:"b:1"},"brokerName":"broker-b","cluster":"c2"},'
    b'"slave":{"brokerAddrs":{1:"s:1"},"brokerName":"slave","cluster":"c1"}},'
    b'"clusterAddrTable":{"c1":["broker-a","slave"],"c2":["broker-b"]}}'
)


@asynccontextmanager
async def a_client() -> AsyncIterator[tuple[ScriptedServer, ClusterClient]]:
    async with ScriptedServer() as server, ClusterClient(server.address) as client:
        yield server, client


async def test_a_route_is_looked_up_once():
    """Everybody who wants it meanwhile waits for the same answer; then it is known."""
    async with a_client() as (server, client):
        server.serve_topic("t", queues=2)

        routes = await asyncio.gather(*(client.route("t") for _ in range(5)))
        await client.route("t")

        assert len(server.requests_of(ROUTE)) == 1
        assert len(routes[0].publishable) == 2
        assert routes[0].masters == {"broker-a": server.address}


async def test_a_refresh_asks_again():
    """And takes what is new."""
    async with a_client() as (server, client):
        server.serve_topic("t", queues=2)
        await client.route("t")
        server.serve_topic("t", queues=3)

        assert len((await client.route("t", refresh=True)).readable) == 3


async def test_an_unknown_topic_is_not_found():
    """The text says what to do."""
    async with a_client() as (server, client):
        server.refuse(ROUTE, 17)

        with pytest.raises(RouteNotFound, match="create it"):
            await client.route("t")
        with pytest.raises(RouteNotFound, match="create it first"):
            await client.publish_route("t")


async def test_a_topic_that_does_not_exist_can_be_sent_to_where_brokers_create_topics():
    """By the template's route; once the topic is there, by its own."""
    async with a_client() as (server, client):
        server.serve_topic("TBW102", queues=8)

        borrowed = await client.publish_route("new")
        assert (borrowed.is_template, len(borrowed.publishable)) == (True, 4)

        server.serve_topic("new", queues=2)
        assert len((await client.route("new")).publishable) == 2
        assert not (await client.publish_route("new")).is_template


async def test_a_name_server_that_does_not_answer_is_left():
    """The next one is asked, and stays in use."""
    async with ScriptedServer() as good, ScriptedServer() as bad:
        await bad.stop()
        good.serve_topic("t")
        async with ClusterClient(f"{bad.address};{good.address}") as client:
            for _ in range(2):
                await client.route("t", refresh=True)
            assert client._name_servers.current == good.address
        await bad.listen(0)


async def test_no_name_server_at_all_is_an_error():
    """After each was tried."""
    async with ClusterClient("127.0.0.1:1;127.0.0.1:2") as client:
        with pytest.raises(ConnectionLost):
            await client.route("t")


async def test_a_refusal_is_raised_with_who_refused():
    """`ask` returns it instead."""
    async with a_client() as (server, client):
        server.refuse(30, 2, "busy")

        with pytest.raises(BrokerRefused, match=server.address) as caught:
            await client.invoke(server.address, Command(code=30))
        assert (caught.value.code, caught.value.remark) == (2, "busy")
        assert (await client.ask(server.address, Command(code=30))).code == 2


async def test_brokers_are_found_by_cluster():
    """Masters only."""
    async with a_client() as (server, client):
        server.on(RequestCode.GET_BROKER_CLUSTER_INFO, body=CLUSTERS)

        assert await client.cluster_brokers() == {"broker-a": "a:1", "broker-b": "b:1"}
        assert await client.cluster_brokers("c2") == {"broker-b": "b:1"}


async def test_every_name_server_is_told():
    """Their state is not shared."""
    async with ScriptedServer() as one, ScriptedServer() as two:
        one.on(100)
        two.on(100)
        async with ClusterClient(f"{one.address};{two.address}") as client:
            await client.every_name_server(Command(code=100))
            assert len(one.requests_of(100)) == len(two.requests_of(100)) == 1
            assert set(client.name_servers) == {one.address, two.address}


async def test_a_name_server_that_is_down_does_not_keep_a_change_from_the_others():
    """Whichever of them it is; the caller is told."""
    async with ScriptedServer() as first, ScriptedServer() as last:
        first.on(100)
        last.on(100)
        async with ClusterClient(f"{first.address};127.0.0.1:1;{last.address}") as client:
            with pytest.raises(ConnectionLost, match=r"127\.0\.0\.1:1"):
                await client.every_name_server(Command(code=100))
        assert len(first.requests_of(100)) == len(last.requests_of(100)) == 1


async def test_the_first_thing_a_broker_hears_is_who_we_are():
    """Name servers are not told."""
    async with ScriptedServer() as name_server, ScriptedServer() as broker:
        broker.on(RequestCode.HEART_BEAT)
        broker.on(30)
        name_server.on(30)
        client = ClusterClient(
            name_server.address, ClientCallbacks(heartbeat=lambda: Command(code=RequestCode.HEART_BEAT, body=b"me"))
        )
        async with client:
            await client.invoke(broker.address, Command(code=30))
            await client.invoke(name_server.address, Command(code=30))
            assert [command.code for command in broker.requests] == [RequestCode.HEART_BEAT, 30]
            assert name_server.requests_of(RequestCode.HEART_BEAT) == []
            assert client.connected_brokers() == [broker.address]


async def test_good_byes_are_said_to_connected_brokers():
    """Before the connection closes."""
    async with ScriptedServer() as name_server, ScriptedServer() as broker:
        broker.on(30)
        broker.on(RequestCode.UNREGISTER_CLIENT)
        client = ClusterClient(
            name_server.address, ClientCallbacks(goodbyes=lambda: [Command(code=RequestCode.UNREGISTER_CLIENT)])
        )
        async with client:
            await client.invoke(broker.address, Command(code=30))
        assert len(broker.requests_of(RequestCode.UNREGISTER_CLIENT)) == 1


async def test_what_brokers_ask_is_answered_by_handlers():
    """Unknown requests get code 3; a handler that fails gets code 1; one-way requests get nothing."""
    asked: list[tuple[str, int]] = []

    async def answer(request: ServerRequest) -> Command:
        asked.append((request.address, request.command.opaque))
        return response(request.command, 0, "fine")

    async def fail(request: ServerRequest) -> Command:
        raise ValueError("broken")

    callbacks = ClientCallbacks(handlers={307: answer, 309: fail})
    async with ScriptedServer() as server, ClusterClient(server.address, callbacks) as client:
        server.on(30)
        await client.invoke(server.address, Command(code=30))

        fields = {"consumerGroup": "g"}
        for opaque, (code, flag) in enumerate([(307, 2), (307, 0), (309, 0), (999, 0)]):
            server.push(Command(code=code, opaque=opaque, flag=flag, fields=fields))

        assert (await server.wait_for_answer(1)).remark == "fine"
        failed, unknown = await server.wait_for_answer(2), await server.wait_for_answer(3)
        assert (failed.code, failed.remark, unknown.code) == (1, "broken", 3)
        assert asked == [(server.address, 0), (server.address, 1)]
        assert not [command for command in server.requests if command.is_response and command.opaque == 0]


async def test_routes_are_polled(monkeypatch: pytest.MonkeyPatch):
    """Whoever wants to know is told of a change, and of nothing else."""
    monkeypatch.setattr(route_refresher, "_POLL_TICK_S", 0.01)

    changed: asyncio.Queue[str] = asyncio.Queue()
    async with ScriptedServer() as server:
        server.serve_topic("t", queues=1)
        async with ClusterClient(server.address, ClientCallbacks(routes_changed=changed.put_nowait)) as client:
            client.routes._poll_interval_ms = 0
            client.routes.watch("t")
            assert await changed.get() == "t"
            await server.wait_for_requests(ROUTE, 3)
            assert changed.empty()
            server.serve_topic("t", queues=2)
            assert await changed.get() == "t"


async def test_routes_are_polled_though_the_clock_is_set_back(monkeypatch: pytest.MonkeyPatch):
    """An hour back is no hour without polls."""
    monkeypatch.setattr(route_refresher, "_POLL_TICK_S", 0.01)
    hours = [1]
    monkeypatch.setattr(cluster_client, "now_ms", lambda: hours[0] * 3_600_000)

    async with ScriptedServer() as server, ClusterClient(server.address) as client, asyncio.timeout(10):
        server.serve_topic("t")
        client.routes._poll_interval_ms = 0
        await client.route("t")
        before = len(server.requests_of(ROUTE))
        hours[0] = 0

        polls = await server.wait_for_requests(ROUTE, before + 2)

        assert {command.fields["topic"] for command in polls} == {"t"}


async def test_client_ids_differ():
    """Also within one process: membership goes by them."""
    ids = set()
    for _ in range(20):
        async with ClusterClient("127.0.0.1:1") as client:
            ids.add(client.client_id)
    assert len(ids) == 20
    assert all(text.startswith("127.0.0.1@") for text in ids)


class Member:
    """A client that wants its brokers, and hears of them."""

    def __init__(self, namesrv: str) -> None:
        self.up: asyncio.Queue[str] = asyncio.Queue()
        self.down: asyncio.Queue[str] = asyncio.Queue()
        self.client = ClusterClient(
            namesrv,
            ClientCallbacks(
                heartbeat=lambda: Command(code=RequestCode.HEART_BEAT, body=b"me"),
                broker_up=self.up.put,
                broker_down=self.down.put_nowait,
            ),
        )


async def test_a_broker_whose_connection_broke_is_found_again_by_itself():
    """It hears who we are before anything else, and its routes are looked at meanwhile."""
    async with ScriptedServer() as name_server, ScriptedServer() as broker, asyncio.timeout(30):
        broker.on(RequestCode.HEART_BEAT)
        name_server.serve_topic("t", other_brokers={"broker-b": broker.address})
        member = Member(name_server.namesrv)
        async with member.client as client:
            await client.route("t")
            await client.beat_one(broker.address)
            assert await member.up.get() == broker.address

            await broker.stop()
            assert await member.down.get() == broker.address
            await name_server.wait_for_requests(ROUTE, 2)
            broker.requests.clear()
            await broker.listen(int(broker.address.rpartition(":")[2]))

            assert await member.up.get() == broker.address
            assert [command.code for command in broker.requests] == [RequestCode.HEART_BEAT]


async def test_a_broker_that_does_not_hear_us_is_not_up():
    """It is dialled and told again."""
    async with ScriptedServer() as name_server, ScriptedServer() as broker, asyncio.timeout(30):
        name_server.serve_topic("t", other_brokers={"broker-b": broker.address})
        silence: list[Command] = []

        def hang_up(command: Command) -> None:
            silence.append(command)
            broker.drop_connections()

        broker.answers[RequestCode.HEART_BEAT] = hang_up
        member = Member(name_server.namesrv)
        async with member.client as client:
            await client.route("t")
            await client.connection(broker.address)
            await broker.wait_for_requests(RequestCode.HEART_BEAT, 2)
            assert member.up.empty()

            broker.on(RequestCode.HEART_BEAT)
            assert await member.up.get() == broker.address


async def test_a_broker_of_no_route_is_left_alone():
    """Once its connection is gone; nor are name servers dialled for their own sake."""
    async with ScriptedServer() as name_server, ScriptedServer() as stranger, asyncio.timeout(30):
        stranger.on(RequestCode.HEART_BEAT)
        name_server.serve_topic("t")
        member = Member(name_server.address)
        async with member.client as client:
            await client.route("t")
            await client.connection(stranger.address)
            await member.up.get()
            stranger.drop_connections()
            name_server.drop_connections()

            assert await member.down.get() == stranger.address
            assert member.down.empty()
            assert client._pool._redials.keys() <= {name_server.address}


async def test_a_route_in_doubt_is_looked_up_soon():
    """Without holding up who doubts it."""
    async with a_client() as (server, client):
        server.serve_topic("t")
        await client.route("t")

        client.mark_stale("t")

        lookups = await server.wait_for_requests(ROUTE, 2)
        await run_ready_tasks()
        assert [command.fields["topic"] for command in lookups] == ["t", "t"]
        assert len(server.requests_of(ROUTE)) == 2


async def test_a_client_says_that_it_reads_mappings():
    """Otherwise a name server would hide them behind a mock broker."""
    async with a_client() as (server, client):
        server.serve_topic("t")
        await client.route("t")
        await client.refresh_leaders("t")

        assert all(asked.fields["hf.mapping"] == "1" for asked in server.requests_of(ROUTE))
        assert len(server.requests_of(ROUTE)) == 2


async def test_leaders_are_asked_for_once_by_everybody_together():
    """A thousand sends may hear at one time that a queue has moved."""
    async with a_client() as (server, client):
        serve_static(server, a_record("a", {0: 1}), addresses={"a": server.address})

        await asyncio.gather(*(client.refresh_leaders("t") for _ in range(5)))

        assert len(server.requests_of(ROUTE)) == 1
        route = await client.route("t")
        assert route.address_of(logical_queue(0)) == server.address


async def test_what_is_known_stays_when_no_name_server_answers(monkeypatch: pytest.MonkeyPatch):
    """Silence and refusals are no news."""
    monkeypatch.setattr(route_refresher, "_SURVEY_S", 0.05)

    async with a_client() as (server, client):
        serve_static(server, a_record("a", {0: 1}), addresses={"a": server.address})
        before = await client.route("t")

        server.answers[ROUTE] = lambda _: None
        await client.refresh_leaders("t")
        server.refuse(ROUTE, 2, "busy")
        await client.refresh_leaders("t")

        assert await client.route("t") is before


async def test_whoever_wants_to_know_is_told_of_new_leaders():
    """A consumer goes where its queues are."""
    changed: list[str] = []
    async with (
        ScriptedServer() as server,
        ClusterClient(server.address, ClientCallbacks(routes_changed=changed.append)) as client,
    ):
        serve_static(server, a_record("a", {0: 1}), addresses={"a": "a:1"})
        await client.refresh_leaders("t")
        await client.refresh_leaders("t")
        assert changed == ["t"]

        serve_static(server, a_record("b", {0: 2}), addresses={"b": "b:1"})
        await client.refresh_leaders("t")
        assert changed == ["t", "t"]


async def test_what_brokers_can_is_what_they_said_last():
    """In the answer to a heartbeat, on the connection that stands."""
    async with ScriptedServer() as server:
        server.serve_topic("t")
        server.on(RequestCode.HEART_BEAT, capabilities="innerBatch,other")
        async with ClusterClient(
            server.namesrv, ClientCallbacks(heartbeat=lambda: Command(code=RequestCode.HEART_BEAT, body=b"me"))
        ) as client:
            await client.route("t")
            assert client.capabilities_of(server.address) == frozenset()
            await client.connection(server.address)
            await poll_until(lambda: client.capabilities_of(server.address) == {"innerBatch", "other"})

            server.on(RequestCode.HEART_BEAT)
            await client.beat()
            assert client.capabilities_of(server.address) == frozenset()

            server.on(RequestCode.HEART_BEAT, capabilities="other")
            await client.beat()
            assert client.capabilities_of(server.address) == {"other"}
            server.on(RequestCode.HEART_BEAT)
            server.drop_connections()
            await poll_until(lambda: not client.capabilities_of(server.address))
