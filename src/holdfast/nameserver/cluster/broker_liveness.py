"""The broker addresses that are alive.

    registered --registered again, or sent a heartbeat--> renewed ... --silent for its timeout--> expired
                                                                  ... --its channel closed, or it unregistered--> gone

A live broker is bound to the channel of its last registration. It may reconnect before the end of its old channel is
noticed: that end must not affect the new channel.

Does not know what the broker serves (`route_table.py`).
"""

from __future__ import annotations

import msgspec

from holdfast.machine.events import ChannelId
from holdfast.wire.cluster.registration import DataVersion


class LiveBroker(msgspec.Struct, kw_only=True):
    """One broker address that is alive.

    Attributes:
        ha_address: The address from which its slaves replicate.
        digest: A digest of the last registration; None: decode the next one even if it is equal.
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
    digest: int | None = None
    is_partial: bool = False


class BrokerLiveness:
    """The live brokers, by address and by channel."""

    def __init__(self) -> None:
        self._by_address: dict[str, LiveBroker] = {}
        # Invariant: address in _by_channel[c] if and only if _by_address[address].channel == c.
        self._by_channel: dict[ChannelId, set[str]] = {}

    def __len__(self) -> int:
        return len(self._by_address)

    @property
    def channels(self) -> list[ChannelId]:
        """The channels to which live brokers are bound."""
        return list(self._by_channel)

    def find(self, address: str) -> LiveBroker | None:
        """Return the broker at *address*; None if it is not alive."""
        return self._by_address.get(address)

    def add(self, live: LiveBroker) -> None:
        """Record a registered broker; replace the one known at its address."""
        self.remove(live.address)
        self._by_address[live.address] = live
        self._by_channel.setdefault(live.channel, set()).add(live.address)

    def bind(self, live: LiveBroker, channel: ChannelId) -> None:
        """Bind *live* to *channel*: it counts as alive no longer than that channel is open."""
        if live.channel != channel:
            self.remove(live.address)
            live.channel = channel
            self.add(live)

    def remove(self, address: str) -> LiveBroker | None:
        """Remove and return the broker at *address*; None if it is not alive."""
        live = self._by_address.pop(address, None)
        if live is not None:
            addresses = self._by_channel[live.channel]
            addresses.discard(address)
            if not addresses:
                del self._by_channel[live.channel]
        return live

    def on_channel(self, channel: ChannelId) -> list[LiveBroker]:
        """Return the brokers that are bound to *channel*."""
        return [self._by_address[address] for address in sorted(self._by_channel.get(channel, ()))]

    def expired(self, now_ms: int) -> list[LiveBroker]:
        """Return the brokers that were silent for longer than their timeout."""
        return [live for live in self._by_address.values() if live.renewed_ms + live.timeout_ms < now_ms]

    def invalidate_digests(self) -> None:
        """Make the next registration of every broker be decoded, even if it is equal to the last."""
        for live in self._by_address.values():
            live.digest = None
