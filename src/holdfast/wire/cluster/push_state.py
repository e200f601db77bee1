"""How a name server tells clients of changed routes, as an operator asks for it (7050).

319                      operator ─> name server
     its settings                 <─              with the key `brokerEvents` where routes are pushed
7050                              ─>
     a `PushState`                <─

The first question is one that every name server knows: Java's before 5.0 do not even refuse what they do not know, and
whoever asks waits until the time is up.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from holdfast.wire.frames import java_json

UNKNOWN: Final = "unknown"
PUSH_KEY: Final = "brokerEvents"
"""What only the settings of a name server that pushes routes have."""
Percent = float | Literal["unknown"]


class ReadingsTold(msgspec.Struct, frozen=True, kw_only=True):
    """How busy the machine is, in percent of what there is."""

    memory: Percent = UNKNOWN
    load: Percent = UNKNOWN
    network: Percent = UNKNOWN


class LinkCapacityTold(msgspec.Struct, frozen=True, kw_only=True):
    """What the network is measured by, in megabits a second, and how the name server knows it."""

    mbit: int | Literal["unknown"] = UNKNOWN
    source: Literal["stated", "detected", "unknown"] = UNKNOWN


class PushState(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Who watches, who waits to be told, and how often they are.

    Attributes:
        broker_events: `spread` or `off`.
        watching_clients: Connections that watch at least one topic.
        pending_clients: Those of them that are owed a notice.
        notices_sent: Frames, since the name server was started.
        pace: `every second`, `every 10 s` or `paused`.
        reason: The readings that are to blame for the pace; empty at full pace.
    """

    broker_events: str = ""
    watching_clients: int = 0
    watched_topics: int = 0
    watches: int = 0
    pending_clients: int = 0
    notices_sent: int = 0
    pace: str = ""
    reason: str = ""
    readings: ReadingsTold = ReadingsTold()
    link_capacity: LinkCapacityTold = LinkCapacityTold()


def to_percent(reading: float | None) -> Percent:
    """Return a reading as it is told."""
    return UNKNOWN if reading is None else round(reading, 1)


def encode_push_state(state: PushState) -> bytes:
    """Return the body of the answer to 7050."""
    return msgspec.json.encode(state)


def decode_push_state(body: bytes) -> PushState:
    """Decode the body of the answer to 7050.

    Raises:
        RemoteProtocolError: it is none.
    """
    return java_json.decode(body, PushState)
