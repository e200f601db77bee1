"""Liveness of brokers: one lease for every registered broker address.

    registered --heard from again--> renewed ... --silent for its timeout--> expired
                                             ... --its channel closed, or it unregistered--> gone

A lease belongs to the channel of the last registration. A broker may reconnect before the end of its old channel is
noticed: that end must not end the new lease.

Does not know what the broker serves (`route_table.py`).
"""

from __future__ import annotations

import msgspec

from holdfast.machine.events import ChannelId
from holdfast.wire.cluster.registration import DataVersion


class Lease(msgspec.Struct, kw_only=True):
    """One live broker process.

    Attributes:
        ha_address: The address from which its slaves replicate.
        registration: A digest of the last registration; None: decode the next one even if it is equal.
        is_partial: The broker may have more topics than it has registered so far.
    """

    broker_name: str
    broker_id: int
    cluster: str
    address: str
    ha_address: str
    channel: ChannelId
    data_version: DataVersion
    timeout_ms: int
    renewed_ms: int
    registration: int | None = None
    is_partial: bool = False


class Leases:
    """The live brokers, by address and by channel."""

    def __init__(self) -> None:
        self._by_address: dict[str, Lease] = {}
        # Invariant: address in _by_channel[c] if and only if _by_address[address].channel == c.
        self._by_channel: dict[ChannelId, set[str]] = {}

    def __len__(self) -> int:
        return len(self._by_address)

    def find(self, address: str) -> Lease | None:
        """Return the lease of *address*; None if it is not alive."""
        return self._by_address.get(address)

    def grant(self, lease: Lease) -> None:
        """Record a registered broker; replace an earlier lease of its address."""
        self.end(lease.address)
        self._by_address[lease.address] = lease
        self._by_channel.setdefault(lease.channel, set()).add(lease.address)

    def bind(self, lease: Lease, channel: ChannelId) -> None:
        """Move *lease* to *channel*, so that it ends with that channel."""
        if lease.channel != channel:
            self.end(lease.address)
            lease.channel = channel
            self.grant(lease)

    def end(self, address: str) -> Lease | None:
        """Remove and return the lease of *address*; None if it has none."""
        lease = self._by_address.pop(address, None)
        if lease is not None:
            addresses = self._by_channel[lease.channel]
            addresses.discard(address)
            if not addresses:
                del self._by_channel[lease.channel]
        return lease

    def on_channel(self, channel: ChannelId) -> list[Lease]:
        """Return the leases that belong to *channel*."""
        return [self._by_address[address] for address in sorted(self._by_channel.get(channel, ()))]

    def expired(self, now_ms: int) -> list[Lease]:
        """Return the leases of brokers that were silent for longer than their timeout."""
        return [lease for lease in self._by_address.values() if lease.renewed_ms + lease.timeout_ms < now_ms]

    def distrust(self) -> None:
        """Make the next registration of every broker be decoded, even if it is equal to the last."""
        for lease in self._by_address.values():
            lease.registration = None
