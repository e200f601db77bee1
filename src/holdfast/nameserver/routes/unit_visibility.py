"""Which queues a client sees: its unit is the cluster that it names as its own.

    client            as a rule                      while a unit is open for it
    without a unit    everything                     everything; what a unit has that is open by name, it only reads
    of unit west      the queues of cluster west     every unit's: those of west as ever, the others only to read

A static topic that is fixed globally belongs to every unit. While a unit is open, the consumers of all units see the
same queues: a group's members then share them out alike, of whatever kind they are and wherever they run. A queue that
is only to be read is told as one that takes no writes, so that no producer chooses it.

A zone is RocketMQ's: a name that a broker registers with. A client in zone mode sees, of the normal topics, the brokers
of its zone, and every broker whose master is down. A static topic has a fixed set of queues: zones hide none of them.
"""

from __future__ import annotations

from typing import Final

import msgspec

from holdfast.model.dr_switch import EVERY_UNIT, Switch
from holdfast.model.scope import GLOBAL, SHOWN_GLOBAL, covers
from holdfast.model.topic import AUTO_CREATE_TOPIC, NOT_SENDABLE_TOPICS, SYSTEM_PREFIX


class Viewer(msgspec.Struct, frozen=True):
    """Who asks for a route.

    Attributes:
        unit: Its unit; empty for none.
        group: The group for which it consumes, if it tells; empty for none.
        zone: Its zone in lower case if it is in zone mode; empty otherwise.
    """

    unit: str = ""
    group: str = ""
    zone: str = ""


ANYBODY: Final = Viewer()


def to_viewer(unit: str, group: str, zone: str = "") -> Viewer:
    """Return who asks, as far as that matters: a group matters only within a unit."""
    has_unit = bool(unit) and unit not in {GLOBAL, SHOWN_GLOBAL}
    if not has_unit and not zone:
        return ANYBODY
    # Upstream compares zones without regard to case.
    return Viewer(unit if has_unit else "", group if has_unit else "", zone.lower())


class Vision(msgspec.Struct, frozen=True):
    """What somebody sees of a topic.

    Attributes:
        unit: Whose queues it may write to; empty for everybody's.
        is_wide: Whether it reads what other units have, too.
        lost: Units in which it writes nothing though it has no unit.
        zone: Whose brokers alone it sees of normal topics, in lower case; empty for those of all zones.
    """

    unit: str = ""
    is_wide: bool = True
    lost: frozenset[str] = frozenset()
    zone: str = ""

    def shows(self, cluster: str) -> bool:
        """Return whether queues in *cluster* are seen."""
        return self.is_wide or cluster == self.unit

    def writes(self, cluster: str) -> bool:
        """Return whether queues in *cluster* may be written to."""
        return cluster == self.unit if self.unit else cluster not in self.lost

    def shows_zone(self, zone: str | None) -> bool:
        """Return whether a broker that registered with *zone* is seen while its master is up."""
        return not self.zone or (zone is not None and zone.lower() == self.zone)

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

    @property
    def is_common(self) -> bool:
        """Whether every client sees this that names neither a unit nor a zone."""
        return not self.unit and not self.zone

    def in_all_zones(self) -> Vision:
        """Return this vision without its zone."""
        return msgspec.structs.replace(self, zone="") if self.zone else self


EVERYTHING: Final = Vision()


def see(switch: Switch, topic: str, viewer: Viewer) -> Vision:
    """Return what *viewer* sees of *topic*."""
    if viewer.zone:
        return msgspec.structs.replace(_see_units(switch, topic, viewer), zone=viewer.zone)
    return _see_units(switch, topic, viewer)


def _see_units(switch: Switch, topic: str, viewer: Viewer) -> Vision:
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
