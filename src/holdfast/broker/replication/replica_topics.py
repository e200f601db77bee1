"""The topics of which a replica knows enough to index their records.

record of a topic ─┬─ known               indexed
├─ not known yet       waits for the next sync of the master's tables
└─ unknown to the master, too: deleted     not indexed
"""

from __future__ import annotations

from holdfast.broker.tables.topics import TopicTable
from holdfast.store.message_store import MessageStore


class ReplicaTopics:
    """Which topics are known. `TableSync` records what it learns from the master.

    Attributes:
        has_master: The address of the master is known, so that its topics can be copied.
    """

    def __init__(self, topics: TopicTable, store: MessageStore) -> None:
        self._topics = topics
        self._store = store
        self.has_master = False
        # Unknown topics that the master lacks, too. Valid for records before a position: the topic may be recreated.
        self._orphans: set[str] = set()
        self._orphan_end = 0

    def is_known(self, topic: str) -> bool | None:
        """Return whether records of *topic* can be indexed; None if it is deleted and they are not."""
        if not self.has_master or self._topics.find(topic) is not None or self._topics.is_system(topic):
            return True
        is_gone = topic in self._orphans and self._store.replica.complete_end < self._orphan_end
        return None if is_gone else False

    def add_orphan(self, topic: str, end: int) -> None:
        """Record that the master has no *topic*, so that records of it before *end* are not indexed."""
        self._orphans.add(topic)
        self._orphan_end = end
