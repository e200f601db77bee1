"""The state of a name server's route pushes, as operators query it (7050).

319                      operator ─> name server
     its settings                 <─              with the key `brokerEvents` if it pushes routes
7050                              ─>
     a `PushState`                <─

The first request is one that every name server supports. Java name servers before 5.0 do not even refuse an unknown
code: the caller would wait until its timeout.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from holdfast.wire.frames import java_json

UNKNOWN: Final = "unknown"
PUSH_KEY: Final = "brokerEvents"
"""A key that only the settings of a name server that pushes routes contain."""
Percent = float | Literal["unknown"]


class ReportedReadings(msgspec.Struct, frozen=True, kw_only=True):
    """How busy the machine is, in percent of its capacity."""

    memory: Percent = UNKNOWN
    load: Percent = UNKNOWN
    network: Percent = UNKNOWN


class ReportedLinkCapacity(msgspec.Struct, frozen=True, kw_only=True):
    """The network capacity in megabits per second, and how the name server knows it."""

    mbit: int | Literal["unknown"] = UNKNOWN
    source: Literal["stated", "detected", "unknown"] = UNKNOWN


class PushState(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """How many clients watch routes, how many wait for a notice, and how often notices are sent.

    Attributes:
        broker_events: `spread` or `off`.
        watching_clients: Connections that watch at least one topic.
        pending_clients: Those that wait for a notice.
        notices_sent: Frames sent since the name server started.
        pace: `every second`, `every 10 s` or `paused`.
        reason: The readings that cause the pace; empty at full pace.
    """

    broker_events: str = ""
    watching_clients: int = 0
    watched_topics: int = 0
    watches: int = 0
    pending_clients: int = 0
    notices_sent: int = 0
    pace: str = ""
    reason: str = ""
    readings: ReportedReadings = ReportedReadings()
    link_capacity: ReportedLinkCapacity = ReportedLinkCapacity()


def to_percent(reading: float | None) -> Percent:
    """Return a reading in the form in which it is sent."""
    return UNKNOWN if reading is None else round(reading, 1)


def encode_push_state(state: PushState) -> bytes:
    """Return the body of the answer to 7050."""
    return msgspec.json.encode(state)


def decode_push_state(body: bytes) -> PushState:
    """Decode the body of the answer to 7050.

    Raises:
        RemoteProtocolError: the body is not a push state.
    """
    return java_json.decode(body, PushState)
