"""The disaster recovery switch: which units' queues clients of other units may read after the loss of a site.

    holdfast dr open --unit east                       east
    holdfast dr open --unit east --topic orders        east, only orders and what groups retry
    holdfast dr open --all --group billing             every unit, for one group

A unit is a cluster that clients name as their own. The whole switch is one value with a version. Name servers store it,
brokers carry it from one name server to another, and the newest version counts everywhere, so a server catches up after
an outage. Pure values; `nameserver/routes/unit_visibility.py` derives which clients see which queues.
"""

from __future__ import annotations

from typing import Final

import msgspec

from holdfast.model.errors import HoldfastError
from holdfast.model.numbers import Int64
from holdfast.model.topic import DEAD_LETTER_PREFIX, RETRY_PREFIX

EVERY_UNIT: Final = "*"
OPENINGS_MAX: Final = 256
"""Limit for the openings: each is checked for every route, and all of them are sent in a header field."""


class SwitchRefused(HoldfastError):
    """The switch cannot be changed like this; the text says why."""


class UnitOpening(msgspec.Struct, frozen=True, order=True, omit_defaults=True):
    """One open unit, or all units.

    Attributes:
        unit: The unit's name, or `*`.
        topic: The only topic that is open; empty for all topics.
        group: The only group for which it is open; empty for all groups.
    """

    unit: str
    topic: str = ""
    group: str = ""

    def includes(self, other: UnitOpening) -> bool:
        """Return whether *other* opens nothing beyond this opening."""
        return (
            self.unit in {EVERY_UNIT, other.unit}
            and self.topic in {"", other.topic}
            and self.group in {"", other.group}
        )

    def opens_topic(self, topic: str) -> bool:
        """Return whether *topic* is open for any group.

        Retry and dead-letter topics of a group are open whatever the opening's topic is: a message that fails while it
        is read from another unit goes there, and would otherwise wait for the unit to be repaired.
        """
        owner = group_of_topic(topic)
        return self.topic in {"", topic} if owner is None else self.group in {"", owner}

    def opens_for(self, topic: str, group: str) -> bool:
        """Return whether *topic* is open for *group*; an empty group only gets what is open for all groups."""
        return self.opens_topic(topic) and (group_of_topic(topic) is not None or self.group in {"", group})

    def __str__(self) -> str:
        words = ["all units" if self.unit == EVERY_UNIT else f"unit {self.unit}"]
        words += [f"topic {self.topic}"] if self.topic else []
        words += [f"group {self.group}"] if self.group else []
        return ", ".join(words)


class DrSwitch(msgspec.Struct, frozen=True, omit_defaults=True):
    """The openings of all units.

    Attributes:
        version: Rises with every change; 0: never used.
    """

    version: Int64 = 0
    openings: tuple[UnitOpening, ...] = ()

    def is_newer(self, other: DrSwitch) -> bool:
        """Return whether this switch replaces *other*. All servers choose the same one of two concurrent changes."""
        return (self.version, self.openings) > (other.version, other.openings)

    def open(self, opening: UnitOpening, now_ms: int) -> DrSwitch:
        """Return the switch with *opening*.

        Raises:
            SwitchRefused: it would change nothing, or there are too many openings.
        """
        if found := next((each for each in self.openings if each.includes(opening)), None):
            raise SwitchRefused(f"nothing would change: {found} is open already")
        kept = [each for each in self.openings if not opening.includes(each)]
        if len(kept) >= OPENINGS_MAX:
            raise SwitchRefused(f"{OPENINGS_MAX} openings are the maximum: open more with one opening, or close some")
        return self._change([*kept, opening], now_ms)

    def close(self, opening: UnitOpening, now_ms: int) -> DrSwitch:
        """Return the switch without *opening* and all openings that it includes.

        Raises:
            SwitchRefused: no such opening exists, or only as part of a larger one.
        """
        kept = [each for each in self.openings if not opening.includes(each)]
        if len(kept) == len(self.openings):
            if found := next((each for each in kept if each.includes(opening)), None):
                raise SwitchRefused(f"{found} is open as a whole: close that, then open the parts that shall stay open")
            verb = "are" if opening.unit == EVERY_UNIT else "is"
            remaining = f"; open now: {'; '.join(map(str, kept))}" if kept else ""
            raise SwitchRefused(f"nothing would change: {opening} {verb} not open{remaining}")
        return self._change(kept, now_ms)

    def _change(self, openings: list[UnitOpening], now_ms: int) -> DrSwitch:
        # The version rises even if the clock goes back.
        return DrSwitch(max(self.version + 1, now_ms), tuple(sorted(openings)))


CLOSED: Final = DrSwitch()


def group_of_topic(topic: str) -> str | None:
    """Return the group to which a retry or dead-letter topic belongs; None for other topics."""
    for prefix in (RETRY_PREFIX, DEAD_LETTER_PREFIX):
        if topic.startswith(prefix):
            return topic[len(prefix) :]
    return None
