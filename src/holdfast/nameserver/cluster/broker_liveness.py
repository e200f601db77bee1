"""Who is alive: one lease for every broker address that registered.

    registered --heard of again--> renewed ... --silent for its timeout--> expired
                                           ... --its channel closed, or it said good-bye--> gone

A lease belongs to the channel that registered last: when a broker reconnects before its old channel is seen closing,
the old channel's end must not take the new lease along.

Does not know what the broker serves (`routes.py`).
"""

from __future__ import annotations

import msgspec

from holdfast.machine.events import ChannelId
from holdfast.wire.cluster.registration import DataVersion


class Lease(msgspec.Struct, kw_only=True):
    """One live broker process.

    Attributes:
        ha_address: Where its slaves replicate from.
        registration: A number that is equal for equal registrations; None asks for the next one to be read in full.
        is_partial: Perhaps it has more topics than it has told so far.
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
        """Return the lease of *address*, if it is alive."""
        return self._by_address.get(address)

    def grant(self, lease: Lease) -> None:
        """Take note of a registered broker, in place of what its address had before."""
        self.end(lease.address)
        self._by_address[lease.address] = lease
        self._by_channel.setdefault(lease.channel, set()).add(lease.address)

    def bind(self, lease: Lease, channel: ChannelId) -> None:
        """Let *lease* end with *channel* from now on, and with no other."""
        if lease.channel != channel:
            self.end(lease.address)
            lease.channel = channel
            self.grant(lease)

    def end(self, address: str) -> Lease | None:
        """Forget *address*; return the lease that it had."""
        lease = self._by_address.pop(address, None)
        if lease is not None:
            addresses = self._by_channel[lease.channel]
            addresses.discard(address)
            if not addresses:
                del self._by_channel[lease.channel]
        return lease

    def on_channel(self, channel: ChannelId) -> list[Lease]:
        """Return the leases that end with *channel*."""
        return [self._by_address[address] for address in sorted(self._by_channel.get(channel, ()))]

    def expired(self, now_ms: int) -> list[Lease]:
        """Return the leases of brokers that were silent for too long."""
        return [lease for lease in self._by_address.values() if lease.renewed_ms + lease.timeout_ms < now_ms]

    def distrust(self) -> None:
        """Let the next registration of every broker be read in full, though it may be equal to its last."""
        for lease in self._by_address.values():
            lease.registration = None
