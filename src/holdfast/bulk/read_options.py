"""What to read: topics, and the bounds in them. Values only, shared by `holdfast.arrow` and the Spark source."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

from holdfast.model.filter import parse_tags

QueueKey = tuple[str, str]
"""Topic, and the name of the queue in it."""

QueueOffsets = dict[str, dict[str, int]]
"""Topic to queue to offset, or time. A queue is "3"; of a normal topic "broker-a/3"."""

EARLIEST: Final = -2
LATEST: Final = -1
DEFAULT_GROUP: Final = "holdfast-spark"


@dataclass(frozen=True, slots=True)
class Bound:
    """Where reading begins or ends: at an end, at offsets, or at times (milliseconds)."""

    kind: Literal["earliest", "latest", "offsets", "time", "times"]
    offsets: QueueOffsets | None = None
    time_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """What to read, and how patiently.

    Attributes:
        topics: Read exactly these; empty where *pattern* or *assigned* says what to read.
        pattern: Read every topic whose whole name matches.
        assigned: Read only these queues: topic to their names.
        is_strict_time: A queue that has nothing at the starting time or later is an error, not read from its end.
        patience_s: How long a broker may be away before the reader fails.
        unit: The unit, a cluster, that is read; None for all.
    """

    namesrv: str
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    assigned: dict[str, tuple[str, ...]] | None = None
    start: Bound
    end: Bound
    is_strict_time: bool = True
    fails_on_data_loss: bool = True
    tags: str = "*"
    group: str | None = None
    patience_s: float = 600.0
    unit: str | None = None

    @property
    def tag_set(self) -> frozenset[str] | None:
        """The tags that are wanted; None for all."""
        tags = parse_tags("", self.tags).tags_set
        return frozenset(tags) if tags and self.tags != "*" else None


@dataclass(frozen=True, slots=True, order=True)
class Range:
    """A run of offsets of one queue, *end* exclusive."""

    topic: str
    queue: str
    start: int
    end: int

    def __len__(self) -> int:
        return self.end - self.start


def flatten_offsets(offsets: QueueOffsets) -> Iterator[tuple[QueueKey, int]]:
    """Yield topic, queue and offset."""
    for topic, queues in offsets.items():
        for queue, offset in queues.items():
            yield (topic, queue), offset
