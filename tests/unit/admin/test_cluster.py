"""Clusters and brokers, against a scripted cluster."""

import pytest
from tests.support.cluster.scripted import Reply, ScriptedAccess, ScriptedRequest

from holdfast.admin.cluster import Cluster, parse_settings
from holdfast.admin.cluster_access import NotFound
from holdfast.model.errors import ConnectionLost
from holdfast.wire.frames.codes import RequestCode

RUNTIME = (
    b'{"table":{"brokerVersionDesc":"V5_5_0","putTps":"1.25 2.0 3.0","getTransferredTps":"4.0 0 0",'
    b'"msgPutTotalTodayNow":"30","msgPutTotalTodayMorning":"10","commitLogDiskRatio":"0.21","bootTimestamp":"99"}}'
)


def a_cluster() -> ScriptedAccess:
    reach = ScriptedAccess(brokers_by_name={"broker-a": "a:1", "broker-b": "b:1"})
    reach.on(RequestCode.GET_BROKER_RUNTIME_INFO, lambda _: RUNTIME)
    reach.on(RequestCode.GET_BROKER_CONFIG, lambda _: b"brokerName=broker-a\nlistenPort=1\n")
    return reach


async def test_figures_are_read_out_of_texts():
    """The first of three rates, a difference since midnight, a share of the disk."""
    status = (await Cluster(a_cluster()).statuses())[0]

    assert (status.puts_per_second, status.gets_per_second, status.puts_today) == (1.25, 4.0, 20)
    assert (status.gets_today, status.disk_used_percent, status.up_since_ms) == (None, 21.0, 99)


async def test_a_broker_tells_how_far_it_is_drained():
    """Those that know no logical queues tell nothing."""
    drained = RUNTIME.replace(b'"bootTimestamp"', b'"logicalQueuesLed":"3","draining":"true","bootTimestamp"')

    def runtime(asked: ScriptedRequest) -> Reply:
        return drained if asked.address == "b:1" else RUNTIME

    silent, told = await Cluster(a_cluster().on(RequestCode.GET_BROKER_RUNTIME_INFO, runtime)).statuses()

    assert ((silent.leads, silent.draining), (told.leads, told.draining)) == ((None, False), (3, True))


async def test_masters_and_replicas_tell_how_replication_stands():
    """A replica that is stuck says what to do; brokers without replicas say nothing."""
    told = {
        "a:1": b'"replicas":"2","replicasInSync":"1","replicasBehind":"x:1 0 bytes, y:1 9 bytes",',
        "b:1": b'"replicaState":"diverged","replicaProblem":"start anew",',
    }

    def runtime(asked: ScriptedRequest) -> Reply:
        return RUNTIME.replace(b'"bootTimestamp"', told.get(asked.address, b"") + b'"bootTimestamp"')

    master, replica = await Cluster(a_cluster().on(RequestCode.GET_BROKER_RUNTIME_INFO, runtime)).statuses()
    told.clear()
    plain, _ = await Cluster(a_cluster()).statuses()

    assert master.replication == "1 of 2 in sync; behind: x:1 0 bytes, y:1 9 bytes"
    assert (replica.replication, plain.replication) == ("diverged: start anew", None)


async def test_a_broker_that_does_not_answer_is_listed_with_the_reason():
    """One dead broker does not hide the others."""

    def runtime(asked: ScriptedRequest) -> Reply:
        return ConnectionLost("cannot connect") if asked.address == "b:1" else RUNTIME

    well, ill = await Cluster(a_cluster().on(RequestCode.GET_BROKER_RUNTIME_INFO, runtime)).statuses()

    assert (well.fault, ill.fault, ill.version) == (None, "cannot connect", None)


async def test_a_broker_is_described_by_name_or_address():
    """Figures and settings as it tells them."""
    cluster = Cluster(a_cluster())

    (by_name,) = await cluster.describe_broker("broker-a")
    (by_address,) = await cluster.describe_broker("a:1")

    assert by_name == by_address
    assert by_name.config == {"brokerName": "broker-a", "listenPort": "1"}


async def test_an_unknown_broker_is_told_with_those_that_exist():
    """The choices are short enough to name."""
    with pytest.raises(NotFound, match="there is broker-a, broker-b"):
        await Cluster(a_cluster()).describe_broker("broker-x")


async def test_the_whole_is_the_sum_of_the_brokers():
    """Rates of all brokers together."""
    found = await Cluster(a_cluster()).describe()

    assert found.clusters == {"c": ["broker-a", "broker-b"]}
    assert (found.puts_per_second, found.gets_per_second) == (2.5, 8.0)


def test_settings_are_lines_of_name_and_value():
    """Values may have an equals sign; lines without one are none."""
    assert parse_settings(b"b = 2\na=1=1\n# nothing\n") == {"a": "1=1", "b": "2"}
