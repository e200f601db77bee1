"""Decides which queues a client sees. Its unit is the cluster that it names as its own.

    client            normally                       while a unit is open for it
    without a unit    everything                     everything; queues of a unit that is open by name are read-only
    of unit west      the queues of cluster west     the queues of all units; those of other units are read-only

A global static topic belongs to every unit. While a unit is open, the consumers of all units see the same queues: so
all members of a group compute the same assignment, whatever their kind and place. A read-only queue is announced
without write queues, so that no producer chooses it.

A zone is RocketMQ's: a name that a broker registers with. For normal topics, a client in zone mode sees the brokers of
its zone, and every broker whose master is down. A static topic has a fixed set of queues, and zones hide none of them.
"""

from __future__ import annotations

from typing import Final

import msgspec

from holdfast.model.dr_switch import EVERY_UNIT, DrSwitch
from holdfast.model.scope import GLOBAL, SHOWN_GLOBAL, covers
from holdfast.model.topic import AUTO_CREATE_TOPIC, NOT_SENDABLE_TOPICS, SYSTEM_PREFIX


class Viewer(msgspec.Struct, frozen=True):
    """The part of a client's identity that decides what it sees.

    Attributes:
        unit: Its unit; empty for none.
        group: Its consumer group, if it names one; empty for none.
        zone: Its zone in lower case if it is in zone mode; empty otherwise.
    """

    unit: str = ""
    group: str = ""
    zone: str = ""


DEFAULT_VIEWER: Final = Viewer()


def to_viewer(unit: str, group: str, zone: str = "") -> Viewer:
    """Return a viewer, reduced to the parts that matter: a group matters only within a unit."""
    has_unit = bool(unit) and unit not in {GLOBAL, SHOWN_GLOBAL}
    if not has_unit and not zone:
        return DEFAULT_VIEWER
    # Upstream compares zones without regard to case.
    return Viewer(unit if has_unit else "", group if has_unit else "", zone.lower())


class Visibility(msgspec.Struct, frozen=True):
    """Which part of a topic a viewer sees.

    Attributes:
        unit: The unit whose queues it may write to; empty for all units.
        sees_other_units: Whether it also reads queues of other units.
        lost_units: Units to whose queues a viewer without a unit may not write.
        zone: The zone, in lower case, whose brokers it sees for normal topics; empty for all zones.
    """

    unit: str = ""
    sees_other_units: bool = True
    lost_units: frozenset[str] = frozenset()
    zone: str = ""

    def shows(self, cluster: str) -> bool:
        """Return whether queues in *cluster* are visible."""
        return self.sees_other_units or cluster == self.unit

    def can_write(self, cluster: str) -> bool:
        """Return whether queues in *cluster* are writable."""
        return cluster == self.unit if self.unit else cluster not in self.lost_units

    def shows_zone(self, zone: str | None) -> bool:
        """Return whether a broker that registered with *zone* is visible while its master is up."""
        return not self.zone or (zone is not None and zone.lower() == self.zone)

    def shows_scope(self, scope: str) -> bool:
        """Return whether a static topic of *scope* is visible."""
        return self.sees_other_units or covers(scope, self.unit)

    def can_write_scope(self, scope: str) -> bool:
        """Return whether a static topic of *scope* is writable."""
        if self.unit:
            return covers(scope, self.unit)
        return scope == GLOBAL or scope not in self.lost_units

    @property
    def is_plain(self) -> bool:
        """Whether everything is visible and writable."""
        return not self.unit and not self.lost_units

    @property
    def is_common(self) -> bool:
        """Whether all clients that name neither a unit nor a zone share this visibility."""
        return not self.unit and not self.zone

    def without_zone(self) -> Visibility:
        """Return this visibility without its zone."""
        return msgspec.structs.replace(self, zone="") if self.zone else self


FULL_VISIBILITY: Final = Visibility()


def find_visibility(switch: DrSwitch, topic: str, viewer: Viewer) -> Visibility:
    """Return which part of *topic* *viewer* sees."""
    if viewer.zone:
        return msgspec.structs.replace(_find_unit_visibility(switch, topic, viewer), zone=viewer.zone)
    return _find_unit_visibility(switch, topic, viewer)


def _find_unit_visibility(switch: DrSwitch, topic: str, viewer: Viewer) -> Visibility:
    if not switch.openings:
        return Visibility(viewer.unit, sees_other_units=False) if viewer.unit else FULL_VISIBILITY
    if not viewer.unit:
        # Operators open a lost site by name. Opening all units together implies no loss.
        lost_units = {each.unit for each in switch.openings if each.unit != EVERY_UNIT and each.opens_topic(topic)}
        return Visibility(lost_units=frozenset(lost_units)) if lost_units else FULL_VISIBILITY
    sees_other_units = not _is_system(topic) and any(each.opens_for(topic, viewer.group) for each in switch.openings)
    return Visibility(viewer.unit, sees_other_units)


def _is_system(topic: str) -> bool:
    """Return whether every broker has its own topic of this name: reading it elsewhere is useless or creates topics."""
    return topic == AUTO_CREATE_TOPIC or topic in NOT_SENDABLE_TOPICS or topic.startswith(SYSTEM_PREFIX)
