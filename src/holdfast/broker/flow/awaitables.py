"""The conditions that a procedure can wait for. `scheduler.py` runs procedures."""

from __future__ import annotations

from collections.abc import Coroutine, Generator, Iterable
from typing import Any, Final, Self, TypeVar

import msgspec

from holdfast.machine.events import ChannelId
from holdfast.model.errors import PeerFailed
from holdfast.store.base.cold_reads import FileRange, LogRange
from holdfast.wire.frames.command import Command

CALLS: Final = "calls"
"""The purpose of nearly all connections to other servers."""
_CALL_TIMEOUT_MS: Final = 3_000
CLIENT_TIMEOUT_MS: Final = 10_000


class PeerCall(msgspec.Struct, frozen=True):
    """Send a request to another server and wait for the response.

    Attributes:
        purpose: Requests of different purposes use separate connections, and do not wait for each other.
    """

    address: str
    command: Command
    timeout_ms: int = _CALL_TIMEOUT_MS
    purpose: str = CALLS

    def __await__(self) -> Generator[Self, Command, Command]:
        """Raise `PeerFailed` if there is no response."""
        return (yield self)


class ClientCall(msgspec.Struct, frozen=True):
    """Send a request to a client, on the connection that it opened, and wait for the response."""

    channel: ChannelId
    command: Command
    timeout_ms: int = CLIENT_TIMEOUT_MS

    def __await__(self) -> Generator[Self, Command, Command]:
        """Raise `PeerFailed` if there is no response."""
        return (yield self)


Call = PeerCall | ClientCall


class ParallelCalls(msgspec.Struct, frozen=True):
    """Send several requests at once and wait for all outcomes; used by `call_all`."""

    calls: tuple[Call, ...]

    def __await__(self) -> Generator[Self, list[Command | PeerFailed], list[Command | PeerFailed]]:
        return (yield self)


class Synced(msgspec.Struct, frozen=True):
    """Wait until the log before *position* is on disk."""

    position: int

    def __await__(self) -> Generator[Self, object, None]:
        yield self


class Pause(msgspec.Struct, frozen=True):
    """Wait for *ms* milliseconds."""

    ms: int

    def __await__(self) -> Generator[Self, object, None]:
        yield self


Wait = LogRange | FileRange | PeerCall | ClientCall | ParallelCalls | Synced | Pause

_Result = TypeVar("_Result")
Procedure = Coroutine[Any, Any, _Result]
"""A coroutine that awaits conditions and returns its result. The scheduler drives it, not asyncio."""


async def call_all(calls: Iterable[Call]) -> list[Command | PeerFailed]:
    """Make all *calls* at once and return their responses or failures, in order.

    The calls run in parallel: several that time out take no longer than one.
    """
    batch = tuple(calls)
    if not batch:
        return []
    return await ParallelCalls(batch)
