"""Reaching servers."""

import asyncio

import msgspec
import pytest
from tests.support.cluster.scripted import ScriptedAccess

from holdfast.admin.cluster_access import IN_FLIGHT_MAX, ClusterAccess, NameServerUnreachable, NotFound, gather
from holdfast.admin.operations import Admin
from holdfast.wire.frames.codes import RequestCode


async def test_nobody_at_the_name_servers_address_is_told_as_that():
    """A caller can tell a missing cluster from a missing topic."""
    async with ClusterAccess("127.0.0.1:1;127.0.0.1:2", timeout_s=1) as reach:
        with pytest.raises(NameServerUnreachable):
            await reach.invoke_name_server(RequestCode.GET_BROKER_CLUSTER_INFO)


async def test_an_address_server_that_tells_nothing_is_told_as_that():
    """For the caller nobody answers, either way."""
    with pytest.raises(NameServerUnreachable, match="http://127"):
        async with ClusterAccess("http://127.0.0.1:1/list", timeout_s=1):
            pytest.fail("there is nobody to ask")


async def test_name_servers_can_be_others():
    """Without another start."""
    async with Admin("127.0.0.1:1") as admin:
        await admin.set_name_servers("127.0.0.1:2;127.0.0.1:3")
        assert admin.access.name_servers == ("127.0.0.1:2", "127.0.0.1:3")


async def test_masters_are_chosen_by_cluster_and_by_name():
    """What does not exist is told with what does."""
    reach = ScriptedAccess(brokers_by_name={"broker-a": "a:1", "broker-b": "b:1"})

    assert [broker.name for broker in await reach.masters()] == ["broker-a", "broker-b"]
    assert [broker.name for broker in await reach.masters(names=["broker-b"])] == ["broker-b"]
    with pytest.raises(NotFound, match="no broker 'x'; known are broker-a, broker-b"):
        await reach.masters(names=["x"])
    with pytest.raises(NotFound, match="did you mean 'broker-b'"):
        await reach.masters(names=["broker-bb"])
    with pytest.raises(NotFound, match="no cluster 'x'; there is c"):
        await reach.masters(cluster="x")


async def test_a_replica_answers_for_its_master_while_that_is_down():
    """Whoever only reads asks the master, or else the replica with the lowest number."""
    table = {
        "a": {"cluster": "c", "brokerName": "a", "brokerAddrs": {"2": "a:2", "1": "a:1"}},
        "b": {"cluster": "c", "brokerName": "b", "brokerAddrs": {"1": "b:1", "0": "b:0"}},
    }
    info = msgspec.json.encode({"brokerAddrTable": table, "clusterAddrTable": {"c": ["a", "b"]}})
    reach = ScriptedAccess().on(RequestCode.GET_BROKER_CLUSTER_INFO, lambda _: info)

    assert [broker.address for broker in await reach.readable_brokers()] == ["a:1", "b:0"]
    assert [broker.address for broker in await reach.masters()] == ["b:0"]
    with pytest.raises(NotFound):
        await ScriptedAccess(brokers_by_name={}).readable_brokers()


async def test_a_cluster_without_brokers_is_told():
    """A name server alone serves nothing."""
    with pytest.raises(NotFound, match="knows no broker"):
        await ScriptedAccess(brokers_by_name={}).masters()


async def test_a_bounded_number_is_asked_at_once():
    """A thousand topics do not become a thousand requests in flight; answers keep the order of the questions."""
    running = peak = 0

    async def work(item: int) -> int:
        nonlocal running, peak
        running += 1
        peak = max(peak, running)
        await asyncio.sleep(0)
        running -= 1
        return 2 * item

    results = await gather(range(3 * IN_FLIGHT_MAX), work)

    assert results == [2 * item for item in range(3 * IN_FLIGHT_MAX)]
    assert peak == IN_FLIGHT_MAX
