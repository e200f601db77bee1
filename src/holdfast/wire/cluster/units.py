"""Units on the wire: how a client says which is its own, and how the switch for the loss of a site travels.

    105  scope=NAME, hf.group=NAME          client ─> name server   my unit, and the group that I consume for
    7051 body: the switch                   operator ─> name servers and brokers; one that has a newer refuses
    7052 ─> body: `UnitState`               what is open, and which units are there, as far as this server knows?
    103  hf.units=the switch, as text       broker <─> name server, in the request and in its answer

A switch that was never used is not told at all.
"""

from __future__ import annotations

from typing import Final

import msgspec

from holdfast.model.dr_switch import CLOSED, OPENINGS_MAX, Switch
from holdfast.model.errors import RemoteProtocolError

SCOPE_FIELD: Final = "scope"
GROUP_FIELD: Final = "hf.group"
SWITCH_FIELD: Final = "hf.units"
_TEXT_MAX: Final = 1024 * 1024


class KnownUnit(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a name server knows of a unit.

    Attributes:
        brokers: Those of it that are alive.
        topics: The static topics that are fixed in it, also where all their brokers are dead.
    """

    brokers: list[str] = []
    topics: list[str] = []


class UnitState(msgspec.Struct, frozen=True, kw_only=True):
    """Body of the answer to 7052. A broker knows of no units.

    Attributes:
        age_ms: How long this server has been there: brokers come back to one that was just started within seconds.
            None where it does not tell.
    """

    switch: Switch = CLOSED
    units: dict[str, KnownUnit] = {}
    age_ms: int | None = None


def encode_switch(switch: Switch) -> bytes:
    """Return the switch as it is sent and kept."""
    return msgspec.json.encode(switch)


def decode_switch(data: bytes | str) -> Switch:
    """Return the switch that *data* is; nothing at all is one that was never used.

    Raises:
        RemoteProtocolError: it is none.
    """
    if not data:
        return CLOSED
    if len(data) > _TEXT_MAX:
        raise RemoteProtocolError(f"a switch has {len(data)} bytes, at most {_TEXT_MAX} are read")
    try:
        switch = msgspec.json.decode(data, type=Switch)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise RemoteProtocolError(f"a switch cannot be read: {error}") from error
    if len(switch.openings) > OPENINGS_MAX or switch.version < 0:
        raise RemoteProtocolError(f"a switch of version {switch.version} has {len(switch.openings)} openings")
    return switch


def to_text(switch: Switch) -> str | None:
    """Return the switch as a header field; None for one that was never used."""
    return encode_switch(switch).decode() if switch.version else None
