"""One TCP connection that carries raw bytes, which are passed on as they arrive."""

from __future__ import annotations

from typing import Protocol, cast

from holdfast.runtime.budget import MemoryBudget
from holdfast.runtime.channel import Channel, ChannelOwner, ReceiveBuffer


class StreamOwner(ChannelOwner, Protocol):
    """Receives the events of a stream channel."""

    def stream_received(self, channel: Channel, data: memoryview) -> None:
        """Handle one read. It is a view that becomes invalid when this returns."""
        ...


class StreamChannel(Channel):
    """A connection whose bytes only the role interprets.

    Args:
        purpose: The purpose of the port that accepted the connection; empty if we dialled.
    """

    __slots__ = ("purpose",)

    def __init__(
        self, owner: StreamOwner, budget: MemoryBudget | None, receive_buffer: ReceiveBuffer, purpose: str = ""
    ) -> None:
        super().__init__(owner, budget, receive_buffer)
        self.purpose = purpose

    def buffer_updated(self, nbytes: int) -> None:
        """Pass on the received bytes."""
        self.idle_ticks = 0
        cast("StreamOwner", self._owner).stream_received(self, self._buffer[:nbytes])
