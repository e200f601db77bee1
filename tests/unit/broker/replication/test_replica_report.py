"""What operators are told of replication."""

from __future__ import annotations

import msgspec
from tests.support.broker_clients import a_request
from tests.support.cluster.broker_machine import BrokerHarness, a_send
from tests.support.cluster.replica_machines import ReplicaPair

from holdfast.broker.metrics import broker_samples
from holdfast.broker.replication.ha_master import PURPOSE
from holdfast.machine.events import ChannelId, ChannelOpened, StreamReceived
from holdfast.wire.cluster.ha import encode_report
from holdfast.wire.frames.codes import RequestCode


def figures(desk: BrokerHarness) -> dict[str, str]:
    """Return what a broker answers to 28."""
    (answer,) = desk.call(a_request(RequestCode.GET_BROKER_RUNTIME_INFO))
    table: dict[str, str] = msgspec.json.decode(answer.body)["table"]
    return table


def samples(desk: BrokerHarness) -> dict[str, float]:
    """Return the metrics of a broker that are about replication."""
    found = broker_samples(desk.options, desk.store, desk.components)
    return {sample.name: sample.value for sample in found if "repl" in sample.name}


def a_pair(**options: object) -> ReplicaPair:
    pair = ReplicaPair(BrokerHarness(**options))  # type: ignore[arg-type]
    pair.master.make_topic("T")
    pair.replica.make_topic("T")
    return pair


def test_of_many_the_farthest_are_named() -> None:
    """A line that people can read, whoever connects to the port."""
    desk = BrokerHarness()
    desk.make_topic("T")
    desk.call(a_send())
    for number in range(8):
        channel = ChannelId(60 + number)
        desk.streams[channel] = bytearray()
        desk.feed(ChannelOpened(channel, f"10.0.0.8:{number}", desk.now_ms, None, PURPOSE))
        desk.feed(StreamReceived(channel, encode_report(1 + number), desk.now_ms))

    told = figures(desk)["replicasBehind"]

    assert told.startswith(f"10.0.0.8:0 {int(desk.store.written) - 1} bytes, 10.0.0.8:1 ")
    assert told.endswith(" and 3 more")


def test_a_master_tells_who_copies_it_and_what_each_lacks() -> None:
    """By 28, by 907 and in its metrics."""
    pair = a_pair()
    pair.connect_and_catch_up()
    pair.master.call(a_send())
    behind = int(pair.master.store.written)

    told = figures(pair.master)
    assert (told["replicas"], told["replicasInSync"]) == ("1", "1")
    assert told["replicasBehind"] == f"10.0.0.8:4711 {behind} bytes"
    assert samples(pair.master)["broker_replica_behind_bytes"] == behind
    (answer,) = pair.master.call(a_request(RequestCode.GET_BROKER_HA_STATUS))
    status = msgspec.json.decode(answer.body)
    assert (status["master"], status["inSyncSlaveNums"]) == (True, 1)
    assert (status["haConnectionInfo"][0]["slaveAckOffset"], status["haConnectionInfo"][0]["diff"]) == (0, behind)
    pair.exchange()
    assert figures(pair.master)["replicasBehind"] == "10.0.0.8:4711 0 bytes"


def test_a_master_without_replicas_says_nothing_of_them() -> None:
    """Most brokers have none; one that should have says that it has none."""
    assert "replicas" not in figures(a_pair().master)

    alone = a_pair(replication="sync").master
    alone.call(a_send())
    assert (figures(alone)["replicas"], samples(alone)["broker_unreplicated_sends"]) == ("0", 1)


def test_a_replica_tells_how_it_stands_and_what_to_do() -> None:
    """The words of its log line, for whoever looks later."""
    pair = a_pair()
    pair.send(3)
    pair.connect_and_catch_up()
    assert figures(pair.replica)["replicaState"] == "following"
    assert samples(pair.replica) == {"broker_replica_following": 1}
    pair.disconnect()
    other = a_pair()
    other.send(5, queue=1)
    pair.replica.disk.sync()

    foreign = ReplicaPair(other.master, replica_disk=pair.replica.disk)
    foreign.connect_and_catch_up()

    told = figures(foreign.replica)
    assert told["replicaState"] == "diverged"
    assert "start it with an empty one" in told["replicaProblem"]
    assert samples(foreign.replica) == {"broker_replica_following": 0}


def test_settings_say_what_a_broker_is() -> None:
    """In upstream's words, for its tools."""
    pair = a_pair(replication="sync")
    (master,) = pair.master.call(a_request(RequestCode.GET_BROKER_CONFIG))
    (replica,) = pair.replica.call(a_request(RequestCode.GET_BROKER_CONFIG))

    assert b"brokerRole=SYNC_MASTER\n" in master.body
    assert b"haListenPort=10912\n" in master.body
    assert b"brokerRole=SLAVE\n" in replica.body
    assert b"brokerId=1\n" in replica.body
