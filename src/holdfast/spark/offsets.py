"""How far a stream has come, as Spark keeps it in its checkpoint. Logical queues only: no broker is named.

    {"v": 1, "q": {"orders": {"0": 17, "1": 42}}, "from": {"orders": {"1": 40}}, "parts": 2}

    q       where the batch that ends here ends, exclusive, for every queue
    from    where the batch that ends here begins in queues that the position before did not have
    parts   into how many partitions the batch is divided, so that it is divided alike when it is run again
    initial only in what a new query starts from

Spark asks a new query for its first position twice, and once more when it is restarted before batch 0 was committed; by
then "latest" or a time may mean something else. So that position is believed only once: the batch that begins there
says so itself, under "from", and whoever runs it again reads from there.

A queue of a normal topic is called `broker-a/3`, after the broker that has it; a logical queue of another unit, which
is or was open, `east/3`. Knows neither Spark nor brokers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from holdfast.bulk.read_options import Queue, QueueOffsets, flat
from holdfast.model.errors import ConfigError

VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class Position:
    """One position of a stream.

    Attributes:
        ends: Where each queue was read to, exclusive.
        begins: Where this batch begins in queues that are new in it.
        parts: Into how many partitions the batch is divided; 0 when nobody said.
        is_initial: Nothing was read yet.
    """

    ends: dict[Queue, int]
    begins: dict[Queue, int] = field(default_factory=dict)
    parts: int = 0
    is_initial: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return it as Spark keeps it."""
        written: dict[str, Any] = {"v": VERSION, "q": nest(self.ends)}
        if self.begins:
            written["from"] = nest(self.begins)
        if self.parts:
            written["parts"] = self.parts
        if self.is_initial:
            written["initial"] = True
        return written


def read_position(written: Mapping[str, Any]) -> Position:
    """Return a position that Spark kept.

    Raises:
        ConfigError: it is not one of ours, or of a version that is not known here.
    """
    if written.get("v") != VERSION or not isinstance(written.get("q"), dict):
        raise ConfigError(
            f"the checkpoint holds {written!r}, which is no position of a holdfast stream of version {VERSION}: "
            "use the checkpoint of this query, or a new folder"
        )
    return Position(
        dict(flat(written["q"])),
        dict(flat(written.get("from", {}))),
        int(written.get("parts", 0)),
        bool(written.get("initial", False)),
    )


def begins_of(start: Position, end: Position) -> dict[Queue, int]:
    """Return where the batch from *start* to *end* begins in each of its queues."""
    return {queue: end.begins.get(queue, start.ends.get(queue, 0)) for queue in end.ends}


def nest(offsets: Mapping[Queue, int]) -> QueueOffsets:
    """Return the same by topic, in an order that does not depend on chance: Spark compares texts."""
    nested: QueueOffsets = {}
    for (topic, queue), offset in sorted(offsets.items()):
        nested.setdefault(topic, {})[queue] = offset
    return nested
