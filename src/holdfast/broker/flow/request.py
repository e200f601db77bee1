"""The types of a request handler and of a timer of the broker.

A component offers handlers by request code. A handler gets one `Request` and returns the answer, a `Refusal`, or None
if it answers later or never. A handler that has to wait (for log bytes, for another server) is a procedure: a coroutine
that awaits conditions and returns its answer (`scheduler.py`).
"""

from __future__ import annotations

from collections.abc import Callable

from holdfast.broker.flow.awaitables import Procedure
from holdfast.machine.events import ChannelId
from holdfast.machine.request import Answer, Refusal, Request, not_supported
from holdfast.store.base.cold_reads import FileRange, LogRange, Steps

__all__ = [
    "Answer",
    "FileRange",
    "Handler",
    "Handlers",
    "LogRange",
    "Refusal",
    "Request",
    "Steps",
    "Timers",
    "is_guest",
    "not_supported",
]

Handler = Callable[[Request], Answer | Procedure[Answer]]
Handlers = dict[int, Handler]
Timers = dict[str, Callable[[], None]]


def is_guest(channel: ChannelId) -> bool:
    """Return whether *channel* stands for the client of a relayed request, which another broker serves."""
    return channel < 0
