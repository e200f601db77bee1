"""The switch that opens units for the loss of a site: the newest known version, kept in the KV store.

So it survives the loss of all brokers. A name server that was away learns the switch from the first broker that
registers, before it serves any route.
"""

from __future__ import annotations

from typing import Final

from holdfast.machine.turn import Turn
from holdfast.model.dr_switch import CLOSED, DrSwitch
from holdfast.model.errors import RemoteProtocolError
from holdfast.nameserver.config.kv_config import FILE, UNITS, KvStore
from holdfast.nameserver.route_changes import RouteChanges
from holdfast.wire.cluster.units import decode_switch, encode_switch, switch_text

_KEY: Final = "switch"


class OpenUnits:
    """Holds the switch.

    Attributes:
        switch: The newest known version.
    """

    def __init__(self, turn: Turn, kv: KvStore, changes: RouteChanges) -> None:
        self._turn = turn
        self._kv = kv
        self._changes = changes
        self.switch: DrSwitch = CLOSED
        try:
            self.switch = decode_switch(kv.find(UNITS, _KEY) or "")
        except RemoteProtocolError as error:
            turn.log("warning", "open units forgotten: they cannot be read", file=FILE, reason=str(error))

    def adopt(self, switch: DrSwitch) -> None:
        """Put a newer version into effect. Save the KV store afterwards."""
        self.switch = switch
        self._changes.add_all(is_urgent=True)
        self._kv.put(UNITS, _KEY, encode_switch(switch).decode())
        opened = "; ".join(map(str, switch.openings)) or "nothing"
        self._turn.log("warning", "units opened or closed", open=opened, version=switch.version)

    def merge_from_broker(self, text: str | None, peer: str) -> str | None:
        """Apply the version of a broker at *peer*; return ours if it is newer."""
        try:
            broker_switch = decode_switch(text or "")
        except RemoteProtocolError as error:
            self._turn.log("warning", "DR switch of a broker cannot be read", reason=str(error), peer=peer)
            return switch_text(self.switch)
        if broker_switch.is_newer(self.switch):
            self.adopt(broker_switch)
            self._kv.save_soon()
        return switch_text(self.switch) if self.switch.is_newer(broker_switch) else None
