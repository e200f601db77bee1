"""The switch for the loss of a site: which units' queues may be read from the other units.

    holdfast dr open --unit east                       east
    holdfast dr open --unit east --topic orders        east, only orders and what groups retry
    holdfast dr open --all --group billing             every unit, for one group

A unit is a cluster that clients name as theirs. The whole switch is one value with a version. Name servers keep it,
brokers carry it from one to the other, and everywhere the newest counts: whoever was away is told what was missed.
Pure values; who sees which queues follows in `nameserver/routes/unit_visibility.py`.
"""

from __future__ import annotations

from typing import Final

import msgspec

from holdfast.model.errors import HoldfastError
from holdfast.model.numbers import Int64
from holdfast.model.topic import DEAD_LETTER_PREFIX, RETRY_PREFIX

EVERY_UNIT: Final = "*"
OPENINGS_MAX: Final = 256
"""How many openings there may be: each is looked at for every route, and all of them travel in a header field."""


class SwitchRefused(HoldfastError):
    """The switch stays as it is; the text says why."""


class Opening(msgspec.Struct, frozen=True, order=True, omit_defaults=True):
    """One unit that is open, or all of them.

    Attributes:
        unit: Its name, or `*`.
        topic: The only topic that is opened; empty for all.
        group: The only group for which it is; empty for all.
    """

    unit: str
    topic: str = ""
    group: str = ""

    def includes(self, other: Opening) -> bool:
        """Return whether *other* opens nothing beyond this."""
        return (
            self.unit in {EVERY_UNIT, other.unit}
            and self.topic in {"", other.topic}
            and self.group in {"", other.group}
        )

    def names(self, topic: str) -> bool:
        """Return whether *topic* is opened for anybody.

        What a group retries, and its dead letters, are opened with any topic: a message that fails while it is read
        from another unit goes there, and would wait for the unit to be repaired.
        """
        owner = owner_of(topic)
        return self.topic in {"", topic} if owner is None else self.group in {"", owner}

    def serves(self, topic: str, group: str) -> bool:
        """Return whether *topic* is opened for *group*; whoever tells no group gets only what is for all."""
        return self.names(topic) and (owner_of(topic) is not None or self.group in {"", group})

    def __str__(self) -> str:
        words = ["all units" if self.unit == EVERY_UNIT else f"unit {self.unit}"]
        words += [f"topic {self.topic}"] if self.topic else []
        words += [f"group {self.group}"] if self.group else []
        return ", ".join(words)


class Switch(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is open.

    Attributes:
        version: Rises with every change; 0: it never was used.
    """

    version: Int64 = 0
    openings: tuple[Opening, ...] = ()

    def is_newer(self, other: Switch) -> bool:
        """Return whether this counts and *other* does not. Of two changes at once all choose the same one."""
        return (self.version, self.openings) > (other.version, other.openings)

    def open(self, opening: Opening, now_ms: int) -> Switch:
        """Return the switch with *opening*.

        Raises:
            SwitchRefused: it would change nothing, or there are too many.
        """
        if found := next((each for each in self.openings if each.includes(opening)), None):
            raise SwitchRefused(f"nothing would change: {found} is open already")
        kept = [each for each in self.openings if not opening.includes(each)]
        if len(kept) >= OPENINGS_MAX:
            raise SwitchRefused(f"{OPENINGS_MAX} openings are all that is kept: open more at once, or close some")
        return self._change([*kept, opening], now_ms)

    def close(self, opening: Opening, now_ms: int) -> Switch:
        """Return the switch without *opening* and all that it includes.

        Raises:
            SwitchRefused: nothing of it is open, or only as a part of something larger.
        """
        kept = [each for each in self.openings if not opening.includes(each)]
        if len(kept) == len(self.openings):
            if found := next((each for each in kept if each.includes(opening)), None):
                raise SwitchRefused(f"{found} is open as a whole: close that, and open again what shall stay open")
            verb = "are" if opening.unit == EVERY_UNIT else "is"
            rest = f"; what is open: {'; '.join(map(str, kept))}" if kept else ""
            raise SwitchRefused(f"nothing would change: {opening} {verb} not open{rest}")
        return self._change(kept, now_ms)

    def _change(self, openings: list[Opening], now_ms: int) -> Switch:
        # Never lower, also when clocks go back.
        return Switch(max(self.version + 1, now_ms), tuple(sorted(openings)))


CLOSED: Final = Switch()


def owner_of(topic: str) -> str | None:
    """Return the group to which a retry or dead-letter topic belongs; None for any other."""
    for prefix in (RETRY_PREFIX, DEAD_LETTER_PREFIX):
        if topic.startswith(prefix):
            return topic[len(prefix) :]
    return None
