"""Mappings of the master's logical queues on a replica.

Every mapping change is a record in the master's log. The replica copies the log anyway, and applies such a record when
it becomes readable. Changes whose records the log no longer has come in one snapshot per connection (7033). A Java
master writes no such records: it sends all its mappings with its topics (21), to replicas of either kind.

A replica writes no mapping changes itself. It serves reads for its master's queues, and accepts no sends.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from typing import Any

from holdfast.broker.mapping.mapping_journal import ChangeRecord, MappingSnapshot, read_changes
from holdfast.broker.mapping.mapping_table import Mappings
from holdfast.broker.options import BrokerOptions
from holdfast.broker.tables.topics import TopicTable
from holdfast.machine.turn import Turn
from holdfast.model.errors import MappingRefused, RemoteProtocolError
from holdfast.model.mapping import check
from holdfast.model.topic import TopicConfig
from holdfast.store.base.disk import Disk
from holdfast.store.message_store import MessageStore
from holdfast.wire.cluster.mapping import convert_detail, from_detail


class ReplicaMappings(Mappings):
    """Mappings that follow the copied log, or a Java master."""

    def __init__(self, options: BrokerOptions, disk: Disk, store: MessageStore, topics: TopicTable, turn: Turn) -> None:
        super().__init__(options, disk, store, topics, turn)
        self._java_mappings: dict[str, Any] = {}  # The last mapping of each topic from a Java master.

    def apply_snapshot(self, snapshot: MappingSnapshot) -> None:
        """Replace all mappings by the master's snapshot, then apply the local records after its position.

        Raises:
            StoreError: a record here cannot be read.
        """
        self._table.clear()
        self._moves.clear()
        self.is_draining = snapshot.draining
        configs: dict[str, TopicConfig] = {}
        for change in snapshot.topics.values():
            self._apply(change, configs)
        for state in snapshot.moves.values():
            self._store_move(state)
        self._apply_records(read_changes(self._journal, snapshot.position), configs)

    def adopt_java(self, details: Mapping[str, Any]) -> None:
        """Adopt the mappings of a Java master. Log each new faulty mapping."""
        changed = {topic: plain for topic, plain in details.items() if self._java_mappings.get(topic) != plain}
        for topic, plain in changed.items():
            self._java_mappings[topic] = plain
            try:
                mapping = from_detail(convert_detail(plain))
                check(mapping, owner=self.broker)
            except (MappingRefused, RemoteProtocolError) as error:
                self._turn.log("error", "mapping of the master not adopted", topic=topic, reason=str(error))
                continue
            self._table[topic] = mapping
            self._owners[topic] = mapping.broker
        if changed:
            self._publish()

    def keep_only(self, topics: Container[str]) -> None:
        """Forget the mappings of all other topics: the Java master no longer has them."""
        dropped = [topic for topic in self._table if topic not in topics]
        for topic in dropped:
            del self._table[topic]
            self._java_mappings.pop(topic, None)
        if dropped:
            self._publish()

    def _publish(self) -> None:
        self._announced = dict(self._table)
        self._mark_changed()

    def apply_from(self, start: int) -> None:
        """Apply the records from position *start* on.

        Raises:
            StoreError: one cannot be read.
        """
        self._apply_records(read_changes(self._journal, start), {})

    def _apply_records(self, records: Iterable[ChangeRecord], configs: dict[str, TopicConfig]) -> None:
        try:
            for record in records:
                if record.mapping is not None:
                    self._apply(record.mapping, configs)
                self._store_move(record.move)
                self.is_draining = self.is_draining if record.draining is None else record.draining
        finally:
            self._put_topics(configs)
            self._publish()

    def _put_topics(self, configs: dict[str, TopicConfig]) -> None:
        for topic, config in configs.items():
            known = self._topics.find(topic)
            if topic in self._table and (known is None or known.write_queues < config.write_queues):
                self._topics.put(config)
