"""The DR switch for the loss of a site, passed on from one name server to the others (7051, 7052).

    operator, or response of a name server ─> newer? ─> persisted ─> sent to every name server at once, by registering
    a name server that was down ─> receives it with this broker's first registration, before it serves its routes

Routes decide which broker a consumer reads from. But when a unit is closed, group members may have left without
unregistering: those without heartbeats are then removed sooner. The file is `config/holdfastUnits.json`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from holdfast.broker.flow.component import NEWS_TIMER
from holdfast.broker.flow.request import Answer, Handlers, Refusal, Request
from holdfast.broker.tables.config_file import config_file
from holdfast.machine.component import Component
from holdfast.machine.kept_file import KeptFile
from holdfast.machine.turn import Turn
from holdfast.model.dr_switch import CLOSED, DrSwitch
from holdfast.model.errors import RemoteProtocolError
from holdfast.store.base.disk import Disk
from holdfast.wire.cluster.units import UnitState, decode_switch, switch_text
from holdfast.wire.frames import java_json
from holdfast.wire.frames.codes import RequestCode, ResponseCode

NAME: Final = "holdfastUnits.json"


class DrSwitchSync(Component):
    """The newest switch known to this broker.

    Args:
        disk: The disk with the file.
        on_close: Called when a unit is closed: members of groups here may have left.
        turn: The turn of the broker.
    """

    def __init__(self, disk: Disk, on_close: Callable[[], None], turn: Turn) -> None:
        self._turn = turn
        self._file = config_file(turn, disk, NAME, DrSwitch, lambda: self._switch)
        self._switch = self._file.load() or CLOSED
        self._on_close = on_close

    def handlers(self) -> Handlers:
        """Return the handlers of this component, by request code."""
        return {RequestCode.SET_DR_SWITCH: self._set, RequestCode.GET_DR_SWITCH: self._get}

    def files(self) -> Sequence[KeptFile[Any]]:
        """Return the files of this component."""
        return (self._file,)

    @property
    def text(self) -> str | None:
        """The switch in the format of a registration; None if it is closed."""
        return switch_text(self._switch)

    def is_open_for(self, topic: str, group: str) -> bool:
        """Return whether consumers of *group* see the queues of *topic* in other units."""
        return any(unit_opening.opens_for(topic, group) for unit_opening in self._switch.openings)

    def adopt(self, text: str | None) -> None:
        """Adopt the switch in a name server's response, if it is newer."""
        if not text:
            return
        try:
            self._adopt_newer(decode_switch(text))
        except RemoteProtocolError:
            return  # Not from a Holdfast name server.

    def _set(self, request: Request) -> Answer:
        """Answer 7051: set the switch."""
        new_switch = decode_switch(request.command.body)
        if new_switch != self._switch and not self._adopt_newer(new_switch):
            return Refusal(
                ResponseCode.ILLEGAL_OPERATION,
                f"version {new_switch.version} of the switch is older than {self._switch.version}: read it again",
            )
        return request.answer()

    def _get(self, request: Request) -> Answer:
        """Answer 7052: return the switch."""
        return request.answer(body=java_json.encode(UnitState(switch=self._switch)))

    def _adopt_newer(self, switch: DrSwitch) -> bool:
        if not switch.is_newer(self._switch):
            return False
        if not set(self._switch.openings) <= set(switch.openings):
            self._on_close()
        self._switch = switch
        self._file.save_change()
        self._turn.fire(NEWS_TIMER)
        return True
