"""A client that names its unit: what it says of itself, and what it leaves."""

import pytest
from tests.support.deliveries import poll_until
from tests.support.scripted_server import ScriptedServer

from holdfast.client.cluster import cluster_client
from holdfast.client.cluster.cluster_client import ClientCallbacks, ClusterClient
from holdfast.client.options import ClientOptions
from holdfast.client.routes import route_table
from holdfast.wire.frames.codes import RequestCode
from holdfast.wire.frames.command import Command

ROUTE = RequestCode.GET_ROUTEINFO_BY_TOPIC


async def test_a_client_with_a_unit_says_so_in_every_question_for_a_route():
    """Whatever it asks for, and with its group if it reads for one. One without says nothing new."""
    async with ScriptedServer() as server:
        server.serve_topic("t", queues=2)
        for options in ({}, {"unit": "west"}, {"unit": "west", "reader_group": "billing"}, {"reader_group": "billing"}):
            async with ClusterClient(ClientOptions(server.address, **options)) as client:  # type: ignore[arg-type]
                await client.route("t")
                await client.refresh_leaders("t")
                assert client.client_id.endswith("@west") is ("unit" in options)
        told = [{name: heard.fields.get(name) for name in ("scope", "hf.group")} for heard in server.requests_of(ROUTE)]
    nothing = {"scope": None, "hf.group": None}
    unit, group = {"scope": "west", "hf.group": None}, {"scope": "west", "hf.group": "billing"}
    assert told == [nothing, nothing, unit, unit, group, group, nothing, nothing]


async def test_brokers_of_a_unit_that_is_closed_are_left_with_a_good_bye(monkeypatch: pytest.MonkeyPatch):
    """To them we would be a member that owns queues and reads none of them."""
    monkeypatch.setattr(cluster_client, "_UNIT_CLOSE_PAUSE_S", 0.0)
    monkeypatch.setattr(route_table, "_CLOSING_MS", 1)

    def goodbyes() -> list[Command]:
        return [Command(code=RequestCode.UNREGISTER_CLIENT)]

    def beat() -> Command:
        return Command(code=RequestCode.HEART_BEAT)

    async with ScriptedServer() as server, ScriptedServer() as broker:
        for code in (RequestCode.HEART_BEAT, RequestCode.UNREGISTER_CLIENT):
            broker.on(code)
        server.serve_topic("t", queues=2, other_brokers={"broker-x": broker.address}, other_cluster="east")
        async with ClusterClient(
            ClientOptions(server.address, unit="c"), ClientCallbacks(heartbeat=beat, goodbyes=goodbyes)
        ) as client:
            await client.route("t")
            await client.beat()
            assert client.connected_brokers() == [broker.address]
            server.serve_topic("t", queues=2)

            await client.route("t", refresh=True)
            assert client.connected_brokers() == [broker.address]
            await client.route("t", refresh=True)

            await poll_until(lambda: client.connected_brokers() == [])
            assert len(broker.requests_of(RequestCode.UNREGISTER_CLIENT)) == 1
