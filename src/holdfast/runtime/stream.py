"""One TCP connection that speaks no frames: what comes is handed over as it comes."""

from __future__ import annotations

from typing import Protocol, cast

from holdfast.runtime.budget import MemoryBudget
from holdfast.runtime.channel import Channel, ChannelOwner, ReceiveBuffer


class StreamOwner(ChannelOwner, Protocol):
    """Who is told what happens on such a channel."""

    def stream_received(self, channel: Channel, data: memoryview) -> None:
        """Take one read. It is a view: gone when this returns."""
        ...


class StreamChannel(Channel):
    """A connection whose bytes mean something to the role alone.

    Args:
        purpose: What the port is for that the peer came to; empty when we dialed.
    """

    __slots__ = ("purpose",)

    def __init__(
        self, owner: StreamOwner, budget: MemoryBudget | None, received: ReceiveBuffer, purpose: str = ""
    ) -> None:
        super().__init__(owner, budget, received)
        self.purpose = purpose

    def buffer_updated(self, nbytes: int) -> None:
        """Hand over what was read."""
        self.quiet_ticks = 0
        cast("StreamOwner", self._owner).stream_received(self, self._buffer[:nbytes])
