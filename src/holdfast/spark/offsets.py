"""The position of a stream, as stored in Spark's checkpoint. A position of a static topic names no broker.

    {"v": 1, "q": {"orders": {"0": 17, "1": 42}}, "from": {"orders": {"1": 40}}, "parts": 2}

    q       the end of this batch, exclusive, in every queue
    from    the start of this batch in queues that the previous position lacks
    parts   the number of partitions of the batch, so that a repeated batch is divided in the same way
    initial set only in the first position of a new query

Spark asks a new query for its first position twice, and again if the query restarts before batch 0 was committed. By
then "latest" or a time may resolve to other offsets. So the first position is used only once: the batch that begins
there stores it under "from", and a repetition of the batch reads from there.

A queue of a normal topic is named `broker-a/3`, after its broker. A logical queue of another unit, which is or was
open, is named `east/3`. Depends on neither Spark nor brokers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from holdfast.bulk.read_options import QueueKey, QueueOffsets, flatten_offsets
from holdfast.model.errors import ConfigError

VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class StreamPosition:
    """One position of a stream.

    Attributes:
        ends: The end of the batch in each queue, exclusive.
        begins: The start of the batch in queues that are new in it.
        parts: The number of partitions of the batch; 0 if not recorded.
        is_initial: Nothing was read yet.
    """

    ends: dict[QueueKey, int]
    begins: dict[QueueKey, int] = field(default_factory=dict)
    parts: int = 0
    is_initial: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return the position as JSON values for Spark's checkpoint."""
        written: dict[str, Any] = {"v": VERSION, "q": nest(self.ends)}
        if self.begins:
            written["from"] = nest(self.begins)
        if self.parts:
            written["parts"] = self.parts
        if self.is_initial:
            written["initial"] = True
        return written


def read_position(written: Mapping[str, Any]) -> StreamPosition:
    """Decode a position from Spark's checkpoint.

    Raises:
        ConfigError: it is not a position of this source, or has an unknown version.
    """
    if written.get("v") != VERSION or not isinstance(written.get("q"), dict):
        raise ConfigError(
            f"the checkpoint contains {written!r}, which is not a position of a holdfast stream of version {VERSION}: "
            "use the checkpoint of this query, or a new folder"
        )
    return StreamPosition(
        dict(flatten_offsets(written["q"])),
        dict(flatten_offsets(written.get("from", {}))),
        int(written.get("parts", 0)),
        bool(written.get("initial", False)),
    )


def begins_of(start: StreamPosition, end: StreamPosition) -> dict[QueueKey, int]:
    """Return the start of the batch from *start* to *end* in each of its queues."""
    return {queue: end.begins.get(queue, start.ends.get(queue, 0)) for queue in end.ends}


def nest(offsets: Mapping[QueueKey, int]) -> QueueOffsets:
    """Return *offsets* grouped by topic, in sorted order: Spark compares positions as text."""
    nested: QueueOffsets = {}
    for (topic, queue), offset in sorted(offsets.items()):
        nested.setdefault(topic, {})[queue] = offset
    return nested
