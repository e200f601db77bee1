"""Who sees which queues: a unit is a cluster that a client names as its own.

    client            as a rule                      while a unit is open for it
    without a unit    everything                     everything; what a unit has that is open by name, it only reads
    of unit west      the queues of cluster west     every unit's: those of west as ever, the others only to read

A static topic that is fixed globally belongs to every unit. While a unit is open, the consumers of all units see the
same queues: a group's members then share them out alike, of whatever kind they are and wherever they run. A queue that
is only to be read is told as one that takes no writes, so that no producer chooses it.
"""

from __future__ import annotations

from typing import Final

import msgspec

from holdfast.model.opening import EVERY_UNIT, Switch
from holdfast.model.scope import GLOBAL, SHOWN_GLOBAL, covers
from holdfast.model.topic import AUTO_CREATE_TOPIC, NOT_SENDABLE_TOPICS, SYSTEM_PREFIX


class Viewer(msgspec.Struct, frozen=True):
    """Who asks for a route.

    Attributes:
        unit: Its unit; empty for none.
        group: The group for which it consumes, if it tells; empty for none.
    """

    unit: str = ""
    group: str = ""


ANYBODY: Final = Viewer()


def to_viewer(unit: str, group: str) -> Viewer:
    """Return who asks, as far as that matters: without a unit there is nothing to tell apart."""
    return Viewer(unit, group) if unit and unit not in {GLOBAL, SHOWN_GLOBAL} else ANYBODY


class Vision(msgspec.Struct, frozen=True):
    """What somebody sees of a topic.

    Attributes:
        unit: Whose queues it may write to; empty for everybody's.
        is_wide: Whether it reads what other units have, too.
        lost: Units in which it writes nothing though it has no unit.
    """

    unit: str = ""
    is_wide: bool = True
    lost: frozenset[str] = frozenset()

    def shows(self, cluster: str) -> bool:
        """Return whether queues in *cluster* are seen."""
        return self.is_wide or cluster == self.unit

    def writes(self, cluster: str) -> bool:
        """Return whether queues in *cluster* may be written to."""
        return cluster == self.unit if self.unit else cluster not in self.lost

    def shows_scope(self, scope: str) -> bool:
        """Return whether a static topic of *scope* is seen."""
        return self.is_wide or covers(scope, self.unit)

    def writes_scope(self, scope: str) -> bool:
        """Return whether a static topic of *scope* may be written to."""
        if self.unit:
            return covers(scope, self.unit)
        return scope == GLOBAL or scope not in self.lost

    @property
    def is_plain(self) -> bool:
        """Whether everything is seen, and may be written to."""
        return not self.unit and not self.lost


EVERYTHING: Final = Vision()


def see(switch: Switch, topic: str, viewer: Viewer) -> Vision:
    """Return what *viewer* sees of *topic*."""
    if not switch.openings:
        return Vision(viewer.unit, is_wide=False) if viewer.unit else EVERYTHING
    if not viewer.unit:
        # Whoever loses a site opens it by name. Opened all together, none of them is lost.
        lost = {each.unit for each in switch.openings if each.unit != EVERY_UNIT and each.names(topic)}
        return Vision(lost=frozenset(lost)) if lost else EVERYTHING
    is_wide = not _is_system(topic) and any(each.serves(topic, viewer.group) for each in switch.openings)
    return Vision(viewer.unit, is_wide)


def _is_system(topic: str) -> bool:
    """Return whether a topic is each broker's own: read elsewhere it would mean nothing, or create topics there."""
    return topic == AUTO_CREATE_TOPIC or topic in NOT_SENDABLE_TOPICS or topic.startswith(SYSTEM_PREFIX)
