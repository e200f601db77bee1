"""Units on the wire: how a client names its unit, and how the DR switch is distributed.

    105  scope=NAME, hf.group=NAME          client ─> name server   the client's unit, and its consumer group
    7051 body: the switch                   operator ─> name servers and brokers; a server with a newer switch refuses
    7052 ─> body: `UnitState`               which units are open, and which exist, as far as this server knows?
    103  hf.units=the switch, as text       broker <─> name server, in the request and in its answer

A switch that was never used is not sent.
"""

from __future__ import annotations

from typing import Final

import msgspec

from holdfast.model.dr_switch import CLOSED, OPENINGS_MAX, DrSwitch
from holdfast.model.errors import RemoteProtocolError

SCOPE_FIELD: Final = "scope"
GROUP_FIELD: Final = "hf.group"
SWITCH_FIELD: Final = "hf.units"
_TEXT_MAX: Final = 1024 * 1024


class KnownUnit(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a name server knows about a unit.

    Attributes:
        brokers: Its live brokers.
        topics: The static topics that are fixed in this unit, even if all their brokers are dead.
    """

    brokers: list[str] = []
    topics: list[str] = []


class UnitState(msgspec.Struct, frozen=True, kw_only=True):
    """Body of the answer to 7052. A broker reports no units.

    Attributes:
        age_ms: How long this server has been running: brokers register again with a restarted one within seconds.
            None if it does not report it.
    """

    switch: DrSwitch = CLOSED
    units: dict[str, KnownUnit] = {}
    age_ms: int | None = None


def encode_switch(switch: DrSwitch) -> bytes:
    """Return the switch in the form in which it is sent and stored."""
    return msgspec.json.encode(switch)


def decode_switch(data: bytes | str) -> DrSwitch:
    """Decode a switch; empty *data* is a switch that was never used.

    Raises:
        RemoteProtocolError: *data* is not a valid switch.
    """
    if not data:
        return CLOSED
    if len(data) > _TEXT_MAX:
        raise RemoteProtocolError(f"a switch has {len(data)} bytes, at most {_TEXT_MAX} are read")
    try:
        switch = msgspec.json.decode(data, type=DrSwitch)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise RemoteProtocolError(f"a switch cannot be read: {error}") from error
    if len(switch.openings) > OPENINGS_MAX or switch.version < 0:
        raise RemoteProtocolError(f"a switch of version {switch.version} has {len(switch.openings)} openings")
    return switch


def switch_text(switch: DrSwitch) -> str | None:
    """Return the switch as a header field; None for one that was never used."""
    return encode_switch(switch).decode() if switch.version else None
