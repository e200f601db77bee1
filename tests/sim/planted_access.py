"""Bugs that we plant into the door, to see that runs with access control find them."""

from typing import Any

import pytest
from tests.sim.planted import Plant

from holdfast.access.door import Door
from holdfast.machine.request import Refusal
from holdfast.model.access.identity import ANONYMOUS
from holdfast.wire.frames.codes import RequestCode

ACCESS_BUGS: dict[str, Plant] = {}


def bug(plant: Plant) -> Plant:
    """Add a bug to the list, under the name of its function."""
    ACCESS_BUGS[plant.__name__] = plant
    return plant


@bug
def door_admits_programs_without_a_user(patch: pytest.MonkeyPatch) -> None:
    """A refusal is counted and logged, and the request is executed."""
    admit = Door.admit

    def lax(self: Any, *request: Any) -> Any:
        answer = admit(self, *request)
        return ANONYMOUS if isinstance(answer, Refusal) else answer

    patch.setattr(Door, "admit", lax)


@bug
def door_admits_unknown_brokers(patch: pytest.MonkeyPatch) -> None:
    """A registration needs no proof of the cluster secret."""
    admit = Door.admit

    def lax(self: Any, command: Any, *rest: Any) -> Any:
        answer = admit(self, command, *rest)
        is_registration = command.code == RequestCode.REGISTER_BROKER
        return ANONYMOUS if isinstance(answer, Refusal) and is_registration else answer

    patch.setattr(Door, "admit", lax)


@bug
def relayed_identity_dropped(patch: pytest.MonkeyPatch) -> None:
    """The leader regards a relayed request as that of no user."""
    patch.setattr(Door, "vouch", lambda self, _user, address: self._sessions.vouch("", address))
