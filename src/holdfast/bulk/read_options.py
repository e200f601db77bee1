"""Options that select what to read: topics, queues and bounds. Shared by `holdfast.arrow` and the Spark source."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

from holdfast.client.access.credentials_options import CredentialsOptions
from holdfast.model.access.client_tls import ClientTls
from holdfast.model.filter import parse_tags

QueueKey = tuple[str, str]
"""A topic and the name of one of its queues."""

QueueOffsets = dict[str, dict[str, int]]
"""An offset, or a time, for each queue of each topic. A queue is "3", or "broker-a/3" in a normal topic."""

EARLIEST: Final = -2
LATEST: Final = -1
DEFAULT_GROUP: Final = "holdfast-spark"


@dataclass(frozen=True, slots=True)
class Bound:
    """Where reading starts or ends: at an end of each queue, at offsets, or at times in milliseconds."""

    kind: Literal["earliest", "latest", "offsets", "time", "times"]
    offsets: QueueOffsets | None = None
    time_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """What to read, and how long to retry.

    Attributes:
        topics: The topics to read; empty if *pattern* or *assigned* selects them.
        pattern: Read every topic whose whole name matches this pattern.
        assigned: Read only these queues: their names, for each topic.
        is_strict_time: Whether it is an error that a queue has no message at the starting time or later. If not, the
            query starts at the end of such a queue.
        patience_s: How long a broker may be unreachable before the reader fails.
        unit: The unit (a cluster name) to read; None for all.
        tls: Use TLS on every connection; None for plain connections.
        credentials: What proves the identity of the readers; None for no access control.
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
    tls: ClientTls | None = None
    credentials: CredentialsOptions | None = None

    @property
    def tag_set(self) -> frozenset[str] | None:
        """The tags to read; None for all."""
        tags = parse_tags("", self.tags).tags_set
        return frozenset(tags) if tags and self.tags != "*" else None


@dataclass(frozen=True, slots=True, order=True)
class Range:
    """A range of offsets of one queue; *end* is exclusive."""

    topic: str
    queue: str
    start: int
    end: int

    def __len__(self) -> int:
        return self.end - self.start


def flatten_offsets(offsets: QueueOffsets) -> Iterator[tuple[QueueKey, int]]:
    """Yield each queue with its offset."""
    for topic, queues in offsets.items():
        for queue, offset in queues.items():
            yield (topic, queue), offset
