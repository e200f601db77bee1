"""The DR switch for the loss of a site, passed on from one name server to the others (7051, 7052).

    operator, or response of a name server ─> newer? ─> persisted ─> sent to every name server at once, by registering
    a name server that was down ─> receives it with this broker's first registration, before it serves its routes

Routes decide which broker a consumer reads from. But when a unit is closed, group members may have left without
unregistering: those without heartbeats are then removed sooner. The file is `config/holdfastUnits.json`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from holdfast.broker.flow.request import Answer, Handlers, Refusal, Request
from holdfast.broker.tables.config_store import load_config, write_config
from holdfast.machine.effects import Effect
from holdfast.model.dr_switch import CLOSED, Switch
from holdfast.model.errors import RemoteProtocolError
from holdfast.store.base.disk import Disk
from holdfast.wire.cluster.units import UnitState, decode_switch, to_text
from holdfast.wire.frames import java_json
from holdfast.wire.frames.codes import RequestCode, ResponseCode

NAME: Final = "holdfastUnits.json"


class UnitSwitch:
    """The newest switch known to this broker.

    Attributes:
        on_change: Called when the switch changed; registers at every name server.
        on_close: Called when a unit is closed: members of groups here may have left.
    """

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._switch = load_config(disk, NAME, Switch) or CLOSED
        self.on_change: Callable[[list[Effect]], None] = lambda _: None
        self.on_close: Callable[[], None] = lambda: None

    def handlers(self) -> Handlers:
        """Return the handlers of this component, by request code."""
        return {RequestCode.SET_SWITCH: self._set, RequestCode.GET_SWITCH: self._tell}

    @property
    def text(self) -> str | None:
        """The switch in the format of a registration; None if it is closed."""
        return to_text(self._switch)

    def opens(self, topic: str, group: str) -> bool:
        """Return whether consumers of *group* see the queues of *topic* in other units."""
        return any(opening.serves(topic, group) for opening in self._switch.openings)

    def hear(self, text: str | None, effects: list[Effect]) -> None:
        """Adopt the switch in a name server's response, if it is newer."""
        if not text:
            return
        try:
            self._take(decode_switch(text), effects)
        except RemoteProtocolError:
            return  # Not from a Holdfast name server.

    def _set(self, request: Request) -> Answer:
        """Answer 7051: set the switch."""
        wanted = decode_switch(request.command.body)
        if wanted != self._switch and not self._take(wanted, request.effects):
            return Refusal(
                ResponseCode.ILLEGAL_OPERATION,
                f"version {wanted.version} of the switch is older than {self._switch.version}: read it again",
            )
        return request.answer()

    def _tell(self, request: Request) -> Answer:
        """Answer 7052: return the switch."""
        return request.answer(body=java_json.encode(UnitState(switch=self._switch)))

    def _take(self, switch: Switch, effects: list[Effect]) -> bool:
        if not switch.is_newer(self._switch):
            return False
        if not set(self._switch.openings) <= set(switch.openings):
            self.on_close()
        self._switch = switch
        effects += write_config(self._disk, NAME, switch)
        self.on_change(effects)
        return True
