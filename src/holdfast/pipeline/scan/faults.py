"""The faults that an audit reports, located by file and byte."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

import msgspec

LISTED_MAX: Final = 1000
"""A task lists at most this many faults of each kind; it counts all of them."""

FAULT_KINDS: Final = {
    "bytes": "bytes of the log that are not a record",
    "checksum": "the body of a record does not match its checksum",
    "unindexed": "no index entry points to the record",
    "lost entry": "an entry is missing from the middle of an index",
    "no record": "an index entry points to no record",
    "doubled": "more than one index entry points to the record",
    "differs": "a record and its index entry disagree",
    "order": "positions or offsets in an index do not rise",
    "batch": "the contents of a batch differ from its header",
    "mapping": "the queue mapping is inconsistent or does not match the files",
    "unreferenced": "files that nothing refers to",
}


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """One fault in a store folder.

    Attributes:
        kind: One of `FAULT_KINDS`.
        path: The file.
        at: Byte in the file; None if the fault concerns the whole file.
        position: The log position, where it adds to the byte.
        text: Describes the fault.
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
    """Counts all faults by kind, and lists the first `LISTED_MAX` of each kind."""

    listed: list[Fault] = []
    counts: dict[str, int] = {}

    def add(self, fault: Fault) -> None:
        """Count a fault, and list it unless its kind already has `LISTED_MAX`."""
        self.counts[fault.kind] = self.counts.get(fault.kind, 0) + 1
        if self.counts[fault.kind] <= LISTED_MAX:
            self.listed.append(fault)


def merge_faults(parts: Iterable[Faults]) -> Faults:
    """Return the combined faults, ordered by broker, file and byte."""
    counts: Counter[str] = Counter()
    listed: list[Fault] = []
    for part in parts:
        counts.update(part.counts)
        listed += part.listed
    listed.sort(key=lambda fault: (fault.broker, fault.path, fault.at or 0, fault.kind))
    return Faults(listed, dict(counts))
