"""Leases by address and by channel."""

from holdfast.machine.events import ChannelId
from holdfast.nameserver.cluster.broker_liveness import BrokerLiveness, LiveBroker
from holdfast.wire.cluster.registration import DataVersion


def a_lease(
    address: str = "10.0.0.1:10911", *, channel: int = 1, renewed_ms: int = 0, timeout_ms: int = 100
) -> LiveBroker:
    return LiveBroker(
        broker_name="a",
        broker_id=0,
        cluster="C1",
        address=address,
        ha_address="",
        channel=ChannelId(channel),
        data_version=DataVersion(),
        timeout_ms=timeout_ms,
        renewed_ms=renewed_ms,
        digest=7,
    )


def test_a_lease_expires_after_its_timeout_has_passed():
    """At the very millisecond it is still good."""
    leases = BrokerLiveness()
    lease = a_lease(renewed_ms=1000, timeout_ms=100)
    leases.add(lease)

    assert leases.expired(1100) == []
    assert leases.expired(1101) == [lease]


def test_several_brokers_may_share_a_channel():
    """All of them end with it."""
    leases = BrokerLiveness()
    for port in (1, 2):
        leases.add(a_lease(f"10.0.0.1:{port}", channel=5))
    leases.add(a_lease("10.0.0.1:3", channel=6))

    assert [lease.address for lease in leases.on_channel(ChannelId(5))] == ["10.0.0.1:1", "10.0.0.1:2"]


def test_a_lease_that_is_granted_again_leaves_its_old_channel():
    """The old channel's end means nothing to it."""
    leases = BrokerLiveness()
    leases.add(a_lease(channel=1))
    leases.add(a_lease(channel=2))

    assert leases.on_channel(ChannelId(1)) == []
    assert len(leases.on_channel(ChannelId(2))) == 1
    assert len(leases) == 1


def test_a_lease_can_be_bound_to_another_channel():
    """It stays the same lease."""
    leases = BrokerLiveness()
    lease = a_lease(channel=1)
    leases.add(lease)

    leases.bind(lease, ChannelId(2))

    assert leases.on_channel(ChannelId(1)) == []
    assert leases.on_channel(ChannelId(2)) == [lease]
    assert leases.find(lease.address) is lease


def test_an_ended_lease_is_gone_everywhere():
    """Ending it twice returns nothing the second time."""
    leases = BrokerLiveness()
    lease = a_lease()
    leases.add(lease)

    assert leases.remove(lease.address) is lease
    assert leases.remove(lease.address) is None
    assert leases.on_channel(lease.channel) == []
    assert leases.find(lease.address) is None


def test_distrust_forgets_what_registrations_looked_like():
    """So that the next one is read even if it is equal."""
    leases = BrokerLiveness()
    lease = a_lease()
    leases.add(lease)

    leases.invalidate_digests()

    assert lease.digest is None
