"""The switch for the loss of a site, as a broker carries it from one name server to the others (7051, 7052).

    operator, or the answer of a name server ─> newer? ─> kept ─> every name server is told with a registration, at once
    a name server that was away ─> hears of it with our first registration there, before it tells any route of ours

Who reads where is decided by routes. But when a unit is closed, members of its groups may be gone without a word: those
that are not heard of again are forgotten soon. Kept in `config/holdfastUnits.json`.
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
    """The newest switch that this broker heard of.

    Attributes:
        on_change: Tells name servers of it.
        on_close: Is called when something is closed: members of groups here may come no more.
    """

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._switch = load_config(disk, NAME, Switch) or CLOSED
        self.on_change: Callable[[list[Effect]], None] = lambda _: None
        self.on_close: Callable[[], None] = lambda: None

    def handlers(self) -> Handlers:
        """Return what this room answers."""
        return {RequestCode.SET_SWITCH: self._set, RequestCode.GET_SWITCH: self._tell}

    @property
    def text(self) -> str | None:
        """What a registration says of it; None where there is nothing to say."""
        return to_text(self._switch)

    def opens(self, topic: str, group: str) -> bool:
        """Return whether consumers of *group* see the queues of *topic* in other units."""
        return any(opening.serves(topic, group) for opening in self._switch.openings)

    def hear(self, text: str | None, effects: list[Effect]) -> None:
        """Take what a name server told."""
        if not text:
            return
        try:
            self._take(decode_switch(text), effects)
        except RemoteProtocolError:
            return  # It is not from one of ours.

    def _set(self, request: Request) -> Answer:
        """Answer 7051."""
        wanted = decode_switch(request.command.body)
        if wanted != self._switch and not self._take(wanted, request.effects):
            return Refusal(
                ResponseCode.ILLEGAL_OPERATION,
                f"version {wanted.version} of what is open is older than {self._switch.version}: look again",
            )
        return request.answer()

    def _tell(self, request: Request) -> Answer:
        """Answer 7052."""
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
