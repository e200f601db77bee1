"""What work may wait for in the middle. See `stepping.py`, which drives it."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import Any, Final, TypeVar

import msgspec

from holdfast.model.errors import PeerFailed
from holdfast.store.base.cold_reads import FileRange, LogRange
from holdfast.wire.frames.command import Command

_CALL_TIMEOUT_MS: Final = 3_000


class PeerCall(msgspec.Struct, frozen=True):
    """Ask another server."""

    address: str
    command: Command
    timeout_ms: int = _CALL_TIMEOUT_MS


class PeerCalls(msgspec.Struct, frozen=True):
    """Ask several servers at once. See `ask_all`."""

    calls: tuple[PeerCall, ...]


class Synced(msgspec.Struct, frozen=True):
    """Wait until everything in the log before this position is on disk."""

    position: int


class Pause(msgspec.Struct, frozen=True):
    """Wait for some time."""

    ms: int


Wait = LogRange | FileRange | PeerCall | PeerCalls | Synced | Pause

_Result = TypeVar("_Result")
Procedure = Generator[Wait, Any, _Result]
"""Yields what it waits for, is sent what came of it, returns its result."""


def ask_all(calls: Iterable[PeerCall]) -> Procedure[list[Command | PeerFailed]]:
    """Return what came of each of *calls*, made at once: those that fail take no longer together than one."""
    asked = tuple(calls)
    if not asked:
        return []
    return (yield PeerCalls(asked))  # type: ignore[no-any-return]
