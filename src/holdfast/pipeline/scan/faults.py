"""What an audit can find, and how it is told: by file and byte."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

import msgspec

LISTED_MAX: Final = 1000
"""Faults of one kind that a task lists; all are counted."""

KINDS: Final = {
    "bytes": "bytes of the log that are no record",
    "checksum": "the body of a record is not what its checksum says",
    "unindexed": "a record that no index entry leads to",
    "lost entry": "an index has a hole",
    "no record": "an index entry that leads to no record",
    "doubled": "a record that more than one index entry leads to",
    "differs": "a record and its index entry do not say the same",
    "order": "positions or offsets of an index do not rise",
    "batch": "a batch that does not hold what it says",
    "mapping": "what is recorded of logical queues cannot be true",
    "unreferenced": "files that nothing refers to",
}


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """One place that is not as it should be.

    Attributes:
        kind: One of `KINDS`.
        path: The file.
        at: Which byte of it; None where it is the file as such.
        position: In the log, where that says more than the byte.
        text: What is wrong.
    """

    kind: str
    broker: str
    path: str
    at: int | None = None
    position: int | None = None
    topic: str | None = None
    queue: int | None = None
    offset: int | None = None
    text: str


class Faults(msgspec.Struct):
    """Faults, and how many of each kind there are: only so many are listed."""

    listed: list[Fault] = []
    counts: dict[str, int] = {}

    def add(self, fault: Fault) -> None:
        """Take note of one."""
        self.counts[fault.kind] = self.counts.get(fault.kind, 0) + 1
        if self.counts[fault.kind] <= LISTED_MAX:
            self.listed.append(fault)


def join(parts: Iterable[Faults]) -> Faults:
    """Return all of them together, in the order of files and bytes."""
    counts: Counter[str] = Counter()
    listed: list[Fault] = []
    for part in parts:
        counts.update(part.counts)
        listed += part.listed
    listed.sort(key=lambda fault: (fault.broker, fault.path, fault.at or 0, fault.kind))
    return Faults(listed, dict(counts))
