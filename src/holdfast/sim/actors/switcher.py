"""An operator that opens units to the consumers of other units, and closes them again, as `holdfast dr` does.

    read the switch of all name servers ─> keep the newest ─> open or close a unit ─> notify name servers, then brokers

Brokers pass the switch on to a server that was unreachable once it is back. The operator may be killed after it has
notified only some servers.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from random import Random
from typing import Any, Final

import msgspec

from holdfast.model.dr_switch import CLOSED, EVERY_UNIT, DrSwitch, SwitchRefused, UnitOpening
from holdfast.model.errors import HoldfastError
from holdfast.sim.actors.operator import Script, ScriptedClient, ScriptRequest
from holdfast.wire.cluster.units import UnitState, encode_switch
from holdfast.wire.frames import java_json
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.frames.command import Command

_CLOSE_SHARE: Final = 0.6
_RETRY_PAUSE_MS: Final = 700


class SwitchState(msgspec.Struct):
    """The state that the operator shares with the checkers.

    Attributes:
        units: All units.
        pause_ms: The average pause between two orders.
        changed_ms: The last time when a change was ordered or still in flight.
        opened_count: How many openings were ordered.
    """

    units: tuple[str, ...]
    pause_ms: int
    changed_ms: int | None = None
    opened_count: int = 0


class Switcher(ScriptedClient):
    """Opens and closes units until the run asks it to stop.

    Args:
        addresses: The address of each broker.
        is_over: Returns whether to stop.
    """

    def __init__(
        self,
        name: str,
        name_servers: str,
        rng: Random,
        *,
        addresses: Mapping[str, str],
        switch_state: SwitchState,
        is_over: Callable[[], bool],
    ) -> None:
        super().__init__(name, name_servers, rng)
        self._addresses = addresses
        self._switch_state = switch_state
        self._is_over = is_over

    def started(self) -> None:
        """Start after a pause."""
        self._pause()

    def _pause(self) -> None:
        self.after(self.rng.randrange(2 * self._switch_state.pause_ms), self._run_change)

    def _run_change(self) -> None:
        if not self._is_over():
            self.run(self._change_switch(), self._pause)

    def _change_switch(self) -> Script:
        current = yield from read_switch(self._name_servers.addresses)
        if current is None:
            return
        try:
            changed = self._choose(current)
        except SwitchRefused:
            return  # The unit is already open, alone or as a part of something larger.
        self._switch_state.changed_ms = self.now_ms
        yield from send_switch(self._name_servers.addresses, self._addresses, changed)
        self._switch_state.changed_ms = self.now_ms

    def _choose(self, current: DrSwitch) -> DrSwitch:
        if current.openings and self.rng.random() < _CLOSE_SHARE:
            return current.close(self.rng.choice(current.openings), self.now_ms)
        unit = self.rng.choice((*self._switch_state.units, *self._switch_state.units, EVERY_UNIT))
        self._switch_state.opened_count += 1
        return current.open(UnitOpening(unit), self.now_ms)


class Closer(ScriptedClient):
    """Closes all units once every server can be reached.

    Attributes:
        is_done: Whether all name servers have been notified.
    """

    def __init__(self, name_servers: str, rng: Random, *, addresses: Mapping[str, str]) -> None:
        super().__init__("closer", name_servers, rng)
        self.is_done = False
        self._addresses = addresses

    def started(self) -> None:
        """Read the switch, close every opening, and repeat until none is left."""
        self.run(self._close(), lambda: None if self.is_done else self.after(_RETRY_PAUSE_MS, self.started))

    def _close(self) -> Script:
        current = yield from read_switch(self._name_servers.addresses)
        if current is None:
            return
        if not current.openings:
            self.is_done = True
            return
        changed = current
        for opening in current.openings:
            changed = changed.close(opening, self.now_ms)
        yield from send_switch(self._name_servers.addresses, self._addresses, changed)


def read_switch(name_servers: Sequence[str]) -> Generator[ScriptRequest | int, Any, DrSwitch | None]:
    """Ask all name servers for the switch; return the newest, or None if none answers."""
    newest, is_known = CLOSED, False
    for address in name_servers:
        answer = yield address, Command(code=RequestCode.GET_DR_SWITCH)
        if not isinstance(answer, HoldfastError) and answer.code == ResponseCode.SUCCESS:
            received, is_known = java_json.decode(answer.body, UnitState).switch, True
            newest = received if received.is_newer(newest) else newest
    return newest if is_known else None


def send_switch(name_servers: Sequence[str], brokers: Mapping[str, str], switch: DrSwitch) -> Script:
    """Send the switch to every server that can be reached, name servers first."""
    for address in (*name_servers, *brokers.values()):
        yield address, Command(code=RequestCode.SET_DR_SWITCH, body=encode_switch(switch))
