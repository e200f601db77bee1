"""Deletion markers: topics that were deleted and must not be created again automatically.

    delete orders           mark(orders, version 7)             no broker creates it for a send
    create orders again     mark(orders, version 8, lifted)     automatic creation would work again
    delete it in unit east  mark(orders, east, version 9)       the other units keep theirs

Name servers store the markers, and brokers carry them from one name server to another. Of two markers for the same
topic and cluster, the higher version counts, so servers with the same markers, received in any order, have the same
table. A lifted marker stays: it overrules the older deletion that a server brings back after an outage.

The table is bounded: beyond `MARKERS_MAX`, lifted markers are dropped first, then the oldest.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from holdfast.model.numbers import Int64
from holdfast.model.topic import AUTO_CREATE_TOPIC, DEAD_LETTER_PREFIX, NOT_SENDABLE_TOPICS, RETRY_PREFIX, SYSTEM_PREFIX

MARKERS_MAX: Final = 1_000
"""Limit for the markers: all of them are sent in a header field of every registration."""

EVERYWHERE: Final = ""


class DeletionMarker(msgspec.Struct, frozen=True, order=True, omit_defaults=True):
    """The deletion of a topic, or its creation after a deletion.

    Attributes:
        version: The highest one counts. A time in milliseconds, or one more than the version it overrules.
        cluster: The cluster where the topic was deleted; empty for all clusters.
        is_lifted: Whether the topic was created again.
    """

    topic: str
    version: Int64
    cluster: str = EVERYWHERE
    is_lifted: bool = False


class Deletions:
    """All markers, by topic and cluster."""

    def __init__(self, markers: Iterable[DeletionMarker] = ()) -> None:
        self._topics: dict[str, dict[str, DeletionMarker]] = {}
        self.merge(markers)

    def all(self) -> list[DeletionMarker]:
        """Return every marker, in an order that is the same on every server."""
        return sorted(marker for by_cluster in self._topics.values() for marker in by_cluster.values())

    def of(self, topic: str) -> list[DeletionMarker]:
        """Return the markers of one topic."""
        return sorted(self._topics.get(topic, {}).values())

    def is_deleted(self, topic: str, cluster: str = EVERYWHERE) -> bool:
        """Return whether *topic* was deleted in *cluster*; without one, whether its newest marker is a deletion."""
        by_cluster = self._topics.get(topic)
        if not by_cluster:
            return False
        relevant = [marker for name, marker in by_cluster.items() if not cluster or name in {EVERYWHERE, cluster}]
        return bool(relevant) and not max(relevant, key=_rank).is_lifted

    def delete(self, topic: str, cluster: str, now_ms: int) -> None:
        """Mark *topic* as deleted in *cluster*."""
        self.merge([DeletionMarker(topic, self._next_version(topic, now_ms), cluster)])

    def lift(self, topic: str, cluster: str, now_ms: int) -> bool:
        """Lift the deletion of *topic*, which was created again in *cluster*; return whether it was deleted there."""
        if not self.is_deleted(topic, cluster):
            return False
        self.merge([DeletionMarker(topic, self._next_version(topic, now_ms), cluster, is_lifted=True)])
        return True

    def merge(self, markers: Iterable[DeletionMarker]) -> bool:
        """Add another server's markers; return whether that changed anything."""
        before = self.all()
        for marker in markers:
            by_cluster = self._topics.setdefault(marker.topic, {})
            known = by_cluster.get(marker.cluster)
            if known is None or _rank(marker) > _rank(known):
                by_cluster[marker.cluster] = marker
            self._drop_overruled(by_cluster)
        self._shrink()
        return self.all() != before

    def _next_version(self, topic: str, now_ms: int) -> int:
        return max(now_ms, *(marker.version + 1 for marker in self.of(topic)), 0)

    def _drop_overruled(self, by_cluster: dict[str, DeletionMarker]) -> None:
        """Drop markers of single clusters that are older than the marker for all clusters."""
        everywhere = by_cluster.get(EVERYWHERE)
        if everywhere is not None:
            for cluster in [name for name, marker in by_cluster.items() if _rank(marker) < _rank(everywhere)]:
                del by_cluster[cluster]

    def _shrink(self) -> None:
        markers = self.all()
        if len(markers) > MARKERS_MAX:
            markers.sort(key=lambda marker: (not marker.is_lifted, *_rank(marker), marker.topic, marker.cluster))
            for marker in markers[:-MARKERS_MAX]:
                by_cluster = self._topics[marker.topic]
                del by_cluster[marker.cluster]
                if not by_cluster:
                    del self._topics[marker.topic]


def is_marked_when_deleted(topic: str) -> bool:
    """Return whether the deletion of *topic* leaves a marker.

    Brokers create their own topics, and the retry topics of groups, whenever they need them.
    """
    own = topic in NOT_SENDABLE_TOPICS or topic == AUTO_CREATE_TOPIC or topic.startswith(SYSTEM_PREFIX)
    return not (own or topic.startswith((RETRY_PREFIX, DEAD_LETTER_PREFIX)))


def _rank(marker: DeletionMarker) -> tuple[int, bool]:
    # Of two markers with the same version the deletion counts: an explicit create can be repeated.
    return marker.version, not marker.is_lifted
