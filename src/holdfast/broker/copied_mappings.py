"""The logical queues of a master, as its replica knows them.

Every change of them is a record in the master's log, which the replica copies anyway: it is applied when it is readable
here. What records say that the log no longer has, the master tells once per connection, in one piece (7033).

A replica records nothing itself. It answers for what its master leads, to readers; it takes no sends, whatever is open.
"""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.broker.mapping_records import ChangeRecord, MappingSnapshot, read_changes
from holdfast.broker.mappings import Mappings
from holdfast.model.topic import TopicConfig


class CopiedMappings(Mappings):
    """Mappings that change when the copied log says so."""

    def take_over(self, snapshot: MappingSnapshot) -> None:
        """Believe what the master said of all records before a position; those behind it that are here count too.

        Raises:
            StoreError: a record here cannot be read.
        """
        self._table.clear()
        self._moves.clear()
        self.draining = snapshot.draining
        configs: dict[str, TopicConfig] = {}
        for change in snapshot.topics.values():
            self._apply(change, configs)
        for state in snapshot.moves.values():
            self._note_move(state)
        self._follow(read_changes(self._store, snapshot.position), configs)

    def catch_up(self, start: int) -> None:
        """Apply the records from position *start* on.

        Raises:
            StoreError: one cannot be read.
        """
        self._follow(read_changes(self._store, start), {})

    def _follow(self, records: Iterable[ChangeRecord], configs: dict[str, TopicConfig]) -> None:
        try:
            for record in records:
                if record.mapping is not None:
                    self._apply(record.mapping, configs)
                self._note_move(record.move)
                self.draining = self.draining if record.draining is None else record.draining
        finally:
            self._host(configs)
            self._announced = dict(self._table)
            self._note_changed()

    def _host(self, configs: dict[str, TopicConfig]) -> None:
        for topic, config in configs.items():
            known = self._topics.find(topic)
            if topic in self._table and (known is None or known.write_queues < config.write_queues):
                self._topics.put(config, 0)
