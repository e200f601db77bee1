"""Brokers stay as long as they are heard of, and leave."""

import json

import pytest
from tests.support.cluster.machine import START_MS, MachineHarness
from tests.support.cluster.name_server_machine import (
    a_name_server,
    addresses,
    find_route,
    heartbeat_fields,
    register,
)

from holdfast.machine.effects import CloseChannel
from holdfast.machine.events import TimerFired
from holdfast.nameserver.scan import TIMER as SCAN_TIMER
from holdfast.wire.cluster.registration import REMOVED_FIELD
from holdfast.wire.cluster.route import DEPARTED_FIELD, ClusterInfo
from holdfast.wire.frames import java_json
from holdfast.wire.frames.codes import RequestCode

A, B = "10.0.0.1:10911", "10.0.0.2:10911"


def pass_time(server: MachineHarness, duration_ms: int) -> None:
    """Let the scans of *duration_ms* happen."""
    for _ in range(0, duration_ms, 5_000):
        server.now_ms += 5_000
        server.feed(TimerFired(SCAN_TIMER, server.now_ms))


def test_a_closed_channel_takes_its_broker_along():
    """A dead process is noticed at once, not after two minutes."""
    server = a_name_server()
    channel = server.connect()
    register(server, "a", A, channel=channel)
    register(server, "b", B)
    find_route(server, "orders")

    server.disconnect(channel)

    assert addresses(server) == {"b": {0: B}}
    assert "broker left" in server.logged()


def test_a_topic_whose_last_broker_left_does_not_exist():
    """Nobody serves it."""
    server = a_name_server()
    channel = server.connect()
    register(server, channel=channel)

    server.disconnect(channel)

    assert find_route(server, "orders") is None
    assert json.loads(server.request(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER).body) == {"topicList": []}


def test_the_end_of_an_earlier_channel_does_not_end_a_broker_that_reconnected():
    """A lease belongs to the channel that registered last, equal registration or not."""
    server = a_name_server()
    old, new = server.connect(), server.connect()
    register(server, channel=old)
    register(server, channel=new)

    server.disconnect(old)
    assert addresses(server) == {"a": {0: A}}

    server.disconnect(new)
    assert addresses(server) == {}


def test_a_broker_that_says_good_bye_is_gone():
    """104 takes effect at once; saying it twice is fine."""
    server = a_name_server()
    register(server)

    for _ in range(2):
        assert server.request(RequestCode.UNREGISTER_BROKER, heartbeat_fields()).code == 0

        assert addresses(server) == {}


def test_good_bye_of_a_stranger_does_no_harm():
    """Name and address must fit together."""
    server = a_name_server()
    register(server, "a", A)

    server.request(RequestCode.UNREGISTER_BROKER, heartbeat_fields("b", A))
    server.request(RequestCode.UNREGISTER_BROKER, heartbeat_fields("a", B))

    assert addresses(server) == {"a": {0: A}}


def test_a_silent_broker_expires_after_its_timeout_and_not_before():
    """120 s by default; its channel is closed, because nothing can be on it."""
    server = a_name_server()
    channel = server.connect()
    register(server, channel=channel)

    pass_time(server, 120_000)
    assert addresses(server) == {"a": {0: A}}

    pass_time(server, 5_000)
    assert addresses(server) == {}
    assert CloseChannel(channel) in server.effects


def test_a_broker_may_ask_for_a_shorter_timeout():
    """It counts for this broker alone, and a default does for the others."""
    server = a_name_server()
    register(server, "a", A, heartbeatTimeoutMillis="10000")
    register(server, "b", B)

    pass_time(server, 15_000)

    assert addresses(server) == {"b": {0: B}}


@pytest.mark.parametrize("how", ["registration", "heartbeat", "version query"])
def test_a_broker_that_is_heard_of_stays(how: str):
    """Registering, 904 and 322 all renew."""
    server = a_name_server()
    channel = server.connect()
    register(server, channel=channel)

    for _ in range(5):
        pass_time(server, 60_000)
        if how == "registration":
            register(server, channel=channel)
        elif how == "heartbeat":
            assert server.request(RequestCode.BROKER_HEARTBEAT, heartbeat_fields()).code == 0
        else:
            server.request(RequestCode.QUERY_DATA_VERSION, heartbeat_fields(), body=b"{}")

    assert server.now_ms == START_MS + 300_000
    assert addresses(server) == {"a": {0: A}}


def test_a_heartbeat_of_a_stranger_is_answered_and_means_nothing():
    """It has to register first."""
    server = a_name_server()

    assert server.request(RequestCode.BROKER_HEARTBEAT, heartbeat_fields()).code == 0
    assert addresses(server) == {}


# Removed by an operator.


def down(server: MachineHarness) -> set[str]:
    """Return the brokers that count as down."""
    info = java_json.decode(server.request(RequestCode.GET_BROKER_CLUSTER_INFO, {DEPARTED_FIELD: ""}).body, ClusterInfo)
    return set(info.left_brokers)


def remove(server: MachineHarness, name: str = "a", address: str = A) -> None:
    """Remove a broker as `holdfast broker remove` does."""
    fields = heartbeat_fields(name, address, **{REMOVED_FIELD: "true"})
    assert server.request(RequestCode.UNREGISTER_BROKER, fields).code == 0


def test_a_removed_broker_does_not_count_as_down_even_if_it_registers_until_it_is_stopped():
    """Its process registers every 30 seconds. Nor do its replicas, which stop later."""
    server = a_name_server()
    process, replica = server.connect(), server.connect()
    register(server, channel=process)
    register(server, address=B, channel=replica, brokerId="1")

    remove(server)
    register(server, address=B, channel=replica, brokerId="1")
    register(server, channel=process)
    server.disconnect(process)
    server.disconnect(replica)

    assert addresses(server) == {}
    assert down(server) == set()


@pytest.mark.parametrize("is_stopped", [False, True])
def test_a_removed_broker_that_is_added_again_counts_as_down_like_any_other(*, is_stopped: bool):
    """Whether or not the name server saw its first process stop."""
    server = a_name_server()
    old, new = server.connect(), server.connect()
    register(server, channel=old)
    remove(server)
    if is_stopped:
        server.disconnect(old)

    register(server, channel=new)
    server.disconnect(new)

    assert down(server) == {"a"}


def test_the_last_of_many_removed_brokers_does_not_count_as_down():
    """Also after more removals than are remembered; the first ones are long gone."""
    server = a_name_server()
    process = server.connect()
    for number in range(300):
        name, address = f"broker-{number}", f"10.1.{number // 250}.{number % 250}:10911"
        register(server, name, address, channel=process)
        remove(server, name, address)

    assert down(server) == set()
