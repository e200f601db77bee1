"""An operator who opens units to the consumers of others, and closes them again, as `holdfast dr` does.

    what do name servers say? ─> the newest of it ─> open something, or close it ─> tell name servers, then brokers

Whoever cannot be reached is told by brokers when it is back. The operator may be killed after it has told some.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from random import Random
from typing import Any, Final

import msgspec

from holdfast.model.dr_switch import CLOSED, EVERY_UNIT, Opening, Switch, SwitchRefused
from holdfast.model.errors import HoldfastError
from holdfast.sim.actors.operator import Asking, Script, ScriptedClient
from holdfast.wire.cluster.units import UnitState, encode_switch
from holdfast.wire.frames import java_json
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.frames.command import Command

_CLOSE_SHARE: Final = 0.6
_TRY_PAUSE_MS: Final = 700


class Switching(msgspec.Struct):
    """What is known of it.

    Attributes:
        units: All there are.
        pause_ms: How long the operator rests between two orders, on average.
        changed_ms: When it last ordered a change, or one was last on its way.
        opened: How often something was opened.
    """

    units: tuple[str, ...]
    pause_ms: int
    changed_ms: int | None = None
    opened: int = 0


class Switcher(ScriptedClient):
    """Opens and closes until it is told that it is enough.

    Args:
        addresses: Broker to where it listens.
        is_over: Says whether it is enough.
    """

    def __init__(
        self,
        name: str,
        name_servers: str,
        chance: Random,
        *,
        addresses: Mapping[str, str],
        switching: Switching,
        is_over: Callable[[], bool],
    ) -> None:
        super().__init__(name, name_servers, chance)
        self._addresses = addresses
        self._switching = switching
        self._is_over = is_over

    def started(self) -> None:
        """Begin in a while."""
        self._rest()

    def _rest(self) -> None:
        self.after(self.chance.randrange(2 * self._switching.pause_ms), self._work)

    def _work(self) -> None:
        if not self._is_over():
            self.run(self._order(), self._rest)

    def _order(self) -> Script:
        known = yield from read_switch(self._name_servers.addresses)
        if known is None:
            return
        try:
            wanted = self._choose(known)
        except SwitchRefused:
            return  # It is open as a part of something larger, or already.
        self._switching.changed_ms = self.now_ms
        yield from tell_switch(self._name_servers.addresses, self._addresses, wanted)
        self._switching.changed_ms = self.now_ms

    def _choose(self, known: Switch) -> Switch:
        if known.openings and self.chance.random() < _CLOSE_SHARE:
            return known.close(self.chance.choice(known.openings), self.now_ms)
        unit = self.chance.choice((*self._switching.units, *self._switching.units, EVERY_UNIT))
        self._switching.opened += 1
        return known.open(Opening(unit), self.now_ms)


class Closer(ScriptedClient):
    """Closes everything, when all can be reached.

    Attributes:
        is_done: Whether all name servers were told.
    """

    def __init__(self, name_servers: str, chance: Random, *, addresses: Mapping[str, str]) -> None:
        super().__init__("closer", name_servers, chance)
        self.is_done = False
        self._addresses = addresses

    def started(self) -> None:
        """Look, close, and look again."""
        self.run(self._close(), lambda: None if self.is_done else self.after(_TRY_PAUSE_MS, self.started))

    def _close(self) -> Script:
        known = yield from read_switch(self._name_servers.addresses)
        if known is None:
            return
        if not known.openings:
            self.is_done = True
            return
        wanted = known
        for opening in known.openings:
            wanted = wanted.close(opening, self.now_ms)
        yield from tell_switch(self._name_servers.addresses, self._addresses, wanted)


def read_switch(name_servers: Sequence[str]) -> Generator[Asking | int, Any, Switch | None]:
    """Ask all name servers what is open; return the newest, or None when none of them answers."""
    newest, is_known = CLOSED, False
    for address in name_servers:
        answer = yield address, Command(code=RequestCode.GET_SWITCH)
        if not isinstance(answer, HoldfastError) and answer.code == ResponseCode.SUCCESS:
            told, is_known = java_json.decode(answer.body, UnitState).switch, True
            newest = told if told.is_newer(newest) else newest
    return newest if is_known else None


def tell_switch(name_servers: Sequence[str], brokers: Mapping[str, str], switch: Switch) -> Script:
    """Tell whoever can be reached: name servers first."""
    for address in (*name_servers, *brokers.values()):
        yield address, Command(code=RequestCode.SET_SWITCH, body=encode_switch(switch))
