"""The mappings of static topics on this broker, and where they place each logical queue.

    change ─> a record in the log, written at once ─> the table ─┬─ placements: where a send or a pull of a queue goes
                                        └─ synced ─> announced ──┴─ registered at name servers

    open        this broker is the leader              prepared    this broker will be the leader, but is not yet
    sealed      this broker was the leader until now   elsewhere   another broker is, as far as is known here
    unknown     the topic has no such queue

Invariant: the table contains only changes that are in the log, and name servers only learn of changes that are synced.
Invariant: a queue is sealed and its end is read in one event, so the end counts every send that was ever accepted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal

import msgspec

from holdfast.broker.mapping.mapping_journal import (
    ChangeRecord,
    MappingChange,
    MappingSnapshot,
    MoveState,
    apply_change,
    describe,
    find_owner_faults,
    read_changes,
    split_change,
)
from holdfast.broker.mapping.segment_ends import SealedEnd, complete_end, fill_ends, find_torn
from holdfast.broker.options import BrokerOptions
from holdfast.broker.tables.config_file import config_file
from holdfast.broker.tables.journal import Journal
from holdfast.broker.tables.topics import TopicTable
from holdfast.machine.component import Component
from holdfast.machine.kept_file import KeptFile, UnreadableFile
from holdfast.machine.turn import Turn
from holdfast.model.errors import MappingRefused, RemoteProtocolError
from holdfast.model.mapping import LogicalQueue, Segment, TopicMapping, accept_update, check
from holdfast.model.queue import LogicalQueueId, PhysicalOffset, PhysicalQueueId, QueueKey
from holdfast.model.topic import MAPPING_TOPIC, TopicConfig
from holdfast.store.base.disk import Disk
from holdfast.store.message_store import MessageStore
from holdfast.store.queues.queue_index import QueueIndex
from holdfast.wire.cluster.mapping import (
    RECORD_VERSION,
    MappingDetail,
    MappingFile,
    encode_file,
    from_detail,
    to_detail,
)
from holdfast.wire.cluster.registration import DataVersion

NAME: Final = "holdfastMapping.json"
JAVA_NAME: Final = "topicQueueMapping.json"
FINISHED: Final = frozenset({"done", "failed", "cancelled"})
"""States in which a move no longer holds its queues."""
_FINISHED_MAX: Final = 256

State = Literal["open", "sealed", "prepared", "elsewhere", "unknown"]


class Placement(msgspec.Struct, frozen=True):
    """Where a logical queue is, from the view of this broker.

    Attributes:
        queue_index: The physical queue, if the logical queue is open or sealed here.
        delta: Added to a physical offset, gives the logical offset.
        leader: The leading broker, as recorded here; empty if there is no record.
    """

    state: State
    queue_index: QueueIndex | None = None
    delta: int = 0
    leader: str = ""
    generation: int | None = None

    @property
    def is_led(self) -> bool:
        """Whether the queue is open here, or sealed here and not yet opened elsewhere."""
        return self.queue_index is not None


_UNKNOWN: Final = Placement("unknown")


class Mappings(Component):
    """The mappings of all static topics recorded on this broker.

    Attributes:
        version: Rises whenever a placement may have changed.
        is_draining: This broker gets no more queues unless an operator names it.
        adopted: Topics that were new at the start, because a Java broker had recorded them in this folder.
    """

    def __init__(self, options: BrokerOptions, disk: Disk, store: MessageStore, topics: TopicTable, turn: Turn) -> None:
        self._turn = turn
        self.broker, self.cluster = options.name, options.cluster
        self._store = store
        self._journal = Journal(store, MAPPING_TOPIC, ChangeRecord)
        self._topics = topics
        self.version = 0
        self.is_draining = False
        self.adopted: list[str] = []
        self._table: dict[str, TopicMapping] = {}
        self._moves: dict[str, MoveState] = {}
        self._sealed: dict[str, set[LogicalQueueId]] = {}  # sealed in memory only: not recorded yet
        self._owners: dict[str, str] = {}  # the broker named in each record
        # Topics with a record of another broker or cluster, and the reason; not led here.
        self._foreign: dict[str, str] = {}
        # A replica does not check the cluster: its mappings belong to its master.
        self._expected_cluster = None if options.is_replica else options.cluster
        self._placements: dict[str, dict[LogicalQueueId, Placement]] = {}
        self._caches: list[dict[QueueKey, Any]] = []
        self._unannounced: deque[tuple[int, str, TopicMapping | None]] = deque()
        self._java_version = DataVersion()
        self._file = config_file(turn, disk, NAME, MappingSnapshot, self._take_snapshot, log_end=lambda: self.log_end)
        self._java_file = config_file(
            turn, disk, JAVA_NAME, MappingFile, self._to_java, encode=encode_file, log_end=lambda: self.log_end
        )
        self._open()
        self._announced = dict(self._table)

    # Queries.

    def find(self, topic: str) -> TopicMapping | None:
        """Return the mapping of *topic*, or None if it is not static."""
        return self._table.get(topic)

    def topics(self) -> dict[str, TopicMapping]:
        """Return every mapping by topic; not to be changed by the caller."""
        return self._table

    def announced(self) -> dict[str, TopicMapping]:
        """Return the mappings that are synced, and so may be sent to other servers: a crash cannot undo them."""
        return self._announced

    def is_static(self, topic: str) -> bool:
        """Return whether *topic* has logical queues here."""
        return topic in self._table

    def placement(self, topic: str, queue: LogicalQueueId) -> Placement:
        """Return the placement of a logical queue."""
        if topic not in self._table:
            return _UNKNOWN
        placements = self._placements.get(topic)
        if placements is None:
            placements = self._placements[topic] = {}
        found = placements.get(queue)
        if found is None:
            found = self._find_placement(topic, queue)
            if found is not _UNKNOWN:
                placements[queue] = found
        return found

    def led_queues(self, topic: str) -> list[LogicalQueueId]:
        """Return the queues of *topic* that are open here, or sealed here and not yet opened elsewhere."""
        mapping = self._table.get(topic)
        queues = () if mapping is None else mapping.queues.values()
        return [queue.queue for queue in queues if self.placement(topic, queue.queue).is_led]

    def find_by_physical(self, topic: str, queue_id: PhysicalQueueId) -> tuple[LogicalQueue, Segment] | None:
        """Return the logical queue that a physical queue of this broker belongs to, and its newest segment there."""
        mapping = self._table.get(topic)
        for queue in () if mapping is None else mapping.queues.values():
            for segment in reversed(queue.segments):
                if segment.physical_queue == (self.broker, queue_id):
                    return queue, segment
        return None

    def own_indexes(self, topic: str, queue: LogicalQueueId) -> list[QueueIndex]:
        """Return the physical queues here that are or were a segment of a logical queue and have stored something."""
        mapping = self._table.get(topic)
        segments = () if mapping is None or queue not in mapping.queues else mapping.queues[queue].segments
        found = [
            self._store.find_queue(topic, segment.queue_id) for segment in segments if segment.broker == self.broker
        ]
        return [index for index in found if index is not None]

    def _find_placement(self, topic: str, number: LogicalQueueId) -> Placement:
        mapping = self._table.get(topic)
        if mapping is None or not 0 <= number < mapping.total:
            return _UNKNOWN
        queue = mapping.queues.get(number)
        if queue is None or topic in self._foreign:
            return Placement("elsewhere")
        leader, newest = queue.leader, queue.segments[-1]
        if leader.broker == self.broker and leader.is_decided:
            index = self._store.queue(topic, leader.queue_id)
            if leader.is_open and number not in self._sealed.get(topic, ()):
                return Placement("open", index, leader.delta, self.broker, leader.generation)
            if leader.is_open or self.find_move(topic, number) is not None:
                return Placement("sealed", index, leader.delta, newest.broker, leader.generation)
            # A foreign tool moved it away without a recorded move: refuse sends instead of holding them.
            return Placement(
                "elsewhere", leader=newest.broker if newest != leader else "", generation=leader.generation
            )
        if not newest.is_decided and newest.broker == self.broker:
            return Placement("prepared", leader=leader.broker if leader != newest else "", generation=leader.generation)
        return Placement("elsewhere", leader=leader.broker, generation=leader.generation)

    # Changes.

    def change(
        self,
        mapping: TopicMapping,
        *,
        move: MoveState | None = None,
        config: TopicConfig | None = None,
    ) -> int:
        """Record *mapping* and the state of a move in one write. Return the position to wait for with `Synced`.

        Raises:
            MappingRefused: The mapping breaks a rule, or is older than the recorded one.
            DiskFailed, RecordRefused: The record could not be written; nothing has changed.
        """
        mapping = fill_ends(mapping, self._store)
        check(mapping, owner=self.broker)
        old = self._table.get(mapping.topic)
        if old is not None and mapping.epoch < old.epoch:
            raise MappingRefused(
                "rising epochs",
                f"{mapping.topic} is at epoch {old.epoch} on {self.broker}, {mapping.epoch} is older: read it again",
            )
        parts = split_change(old, mapping, config or self._topics.find(mapping.topic))
        records = [ChangeRecord(mapping=part, move=move if part is parts[-1] else None) for part in parts]
        position = self._append(*records)
        self._table[mapping.topic] = mapping
        self._unannounced.append((position, mapping.topic, mapping))
        self._sealed[mapping.topic] = {
            number
            for number in self._sealed.get(mapping.topic, ())
            if number in mapping.queues and self._is_open(mapping.queues[number])
        }
        self._store_move(move)
        self._mark_changed()
        return position

    def set_draining(self, is_draining: bool) -> int:  # noqa: FBT001 - the new value
        """Record whether this broker gets no more queues. Return the position to wait for with `Synced`."""
        position = self._append(ChangeRecord(draining=is_draining))
        self.is_draining = is_draining
        self._file.mark_changed()
        return position

    def begin_file(self) -> bool:
        """Continue the log in a new file; return False if there is no disk space for it."""
        if not self._store.roll():
            return False
        self._append(ChangeRecord())
        return True

    def delete(self, topic: str) -> int:
        """Record that *topic* is no longer static. Return the position to wait for with `Synced`."""
        position = self._append(ChangeRecord(mapping=MappingChange(topic=topic, is_deleted=True)))
        self._table.pop(topic, None)
        self._sealed.pop(topic, None)
        self._foreign.pop(topic, None)
        self._forget_moves(topic)
        self._unannounced.append((position, topic, None))
        self._mark_changed()
        return position

    def seal(self, topic: str, queues: Iterable[LogicalQueueId]) -> dict[LogicalQueueId, SealedEnd]:
        """Stop accepting sends to *queues* and return their ends, which count everything staged.

        The seal is in memory only: until `change` records the ends, `unseal` or a restart undoes it.

        Raises:
            MappingRefused: A queue is not open here.
        """
        numbers = list(queues)
        ends: dict[LogicalQueueId, SealedEnd] = {}
        for number in numbers:
            placement = self.placement(topic, number)
            if placement.state != "open" or placement.queue_index is None:
                raise MappingRefused(
                    "open leader",
                    f"logical queue {number} of {topic} is {placement.state} on {self.broker}: read the mapping again",
                )
            end = placement.queue_index.next_offset
            # Not the clock, which may have been set back since the newest record was stored.
            ends[number] = SealedEnd(PhysicalOffset(end), self._store.last_store_ms if end else None)
        self._sealed.setdefault(topic, set()).update(numbers)
        self.invalidate_placements()
        return ends

    def unseal(self, topic: str, queues: Iterable[LogicalQueueId]) -> None:
        """Accept sends to *queues* again, which were sealed in memory."""
        self._sealed.get(topic, set()).difference_update(queues)
        self.invalidate_placements()

    def allocate(
        self, mapping: TopicMapping, queues: Iterable[LogicalQueueId]
    ) -> dict[LogicalQueueId, PhysicalQueueId]:
        """Allocate physical queues for *queues* of a future mapping: expired ones if possible, otherwise new ones.

        A reused queue is emptied. New ones raise the topic's number of queues.

        Raises:
            MappingRefused: This broker does not have the topic.
        """
        config = self._topics.find(mapping.topic)
        if config is None:
            raise MappingRefused("hosted topics", f"{self.broker} does not have {mapping.topic}: create it there first")
        free = mapping.next_physical_queue(self.broker, max(config.read_queues, config.write_queues))
        found: dict[LogicalQueueId, PhysicalQueueId] = {}
        for number in queues:
            expired = mapping.queues[number].reusable_queue_id(self.broker) if number in mapping.queues else None
            if expired is not None:
                self._store.erase_queue(mapping.topic, expired)
                found[number] = expired
            else:
                found[number] = free
                free = PhysicalQueueId(free + 1)
        if free > min(config.read_queues, config.write_queues):
            self._topics.put(msgspec.structs.replace(config, read_queues=free, write_queues=free))
        return found

    def find_index(self, topic: str, queue_id: PhysicalQueueId) -> QueueIndex | None:
        """Return a physical queue of this broker, or None if nothing was ever stored in it."""
        return self._store.find_queue(topic, queue_id)

    def find_ends(self, topic: str, queues: Iterable[LogicalQueue]) -> dict[PhysicalQueueId, PhysicalOffset]:
        """Return the ends of the leader segments of *queues* on this broker, by physical queue id."""
        indexes = {queue.leader.queue_id: self._store.find_queue(topic, queue.leader.queue_id) for queue in queues}
        return {number: PhysicalOffset(index.next_offset) for number, index in indexes.items() if index is not None}

    def count_bytes(self, topic: str, ends: Mapping[PhysicalQueueId, PhysicalOffset]) -> int:
        """Return the size in bytes of the records before *ends* in physical queues; all of them must be readable."""
        records: dict[int, int] = {}  # by position: a batch in one record has an entry per message
        for queue_id, end in ends.items():
            index = self._store.find_queue(topic, queue_id)
            start = end if index is None else index.offset_min
            entries = [] if index is None else index.entries(start, max(end - start, 0))
            records |= {position: size for position, size, _ in entries}
        return sum(records.values())

    @property
    def log_end(self) -> int:
        """The log end: once it is synced, everything recorded so far is on disk."""
        return self._store.written

    # Moves.

    def moves(self) -> dict[str, MoveState]:
        """Return every running or finished move of this broker, by id; not to be changed by the caller."""
        return self._moves

    def find_move(self, topic: str, queue: LogicalQueueId) -> MoveState | None:
        """Return the unfinished move of a queue, or None."""
        for state in self._moves.values():
            move = state.move
            if move.topic == topic and move.state not in FINISHED and queue in move.queues:
                return state
        return None

    def put_move(self, state: MoveState) -> int:
        """Record the state of a move. Return the position to wait for with `Synced`."""
        position = self._append(ChangeRecord(move=state))
        self._store_move(state)
        self._mark_changed()
        return position

    def _store_move(self, state: MoveState | None) -> None:
        if state is None:
            return
        self._moves.pop(state.move.id, None)
        self._moves[state.move.id] = state
        finished = [key for key, known in self._moves.items() if known.move.state in FINISHED]
        for key in finished[:-_FINISHED_MAX]:
            del self._moves[key]

    def _forget_moves(self, topic: str) -> None:
        """Drop the finished moves of a deleted topic: a later topic of that name must not get their offsets."""
        for state in list(self._moves.values()):
            if state.move.topic == topic and state.move.state in FINISHED:
                del self._moves[state.move.id]

    # Persistence.

    def on_synced(self, position: int) -> None:
        """Announce the changes that are now synced."""
        while self._unannounced and self._unannounced[0][0] <= position:
            _, topic, mapping = self._unannounced.popleft()
            if mapping is None:
                self._announced.pop(topic, None)
            else:
                self._announced[topic] = mapping
            self._topics.mark_changed(topic)

    def files(self) -> Sequence[KeptFile[Any]]:
        """Return the files of this component."""
        return (self._file, self._java_file)

    def _take_snapshot(self) -> MappingSnapshot:
        version = self._java_version
        self._java_version = DataVersion(
            state_version=version.state_version, timestamp=self._turn.now_ms, counter=version.counter + 1
        )
        self._java_file.mark_changed()  # Otherwise a version that a Java broker writes later may not be the newer one.
        return MappingSnapshot(
            position=self._store.written,
            java=self._java_version,
            topics={topic: describe(mapping, self._topics.find(topic)) for topic, mapping in self._table.items()},
            moves=self._moves,
            draining=self.is_draining,
        )

    def _to_java(self) -> MappingFile:
        details = {topic: to_detail(mapping, version=RECORD_VERSION) for topic, mapping in self._table.items()}
        return MappingFile(data_version=self._java_version, topic_queue_mapping_info_map=details)

    def _append(self, *records: ChangeRecord) -> int:
        """Write records at once: their consequences cannot be undone if the event fails later."""
        return self._journal.append(records, self._turn.now_ms)

    def _is_open(self, queue: LogicalQueue) -> bool:
        return queue.leader.broker == self.broker and queue.leader.is_open

    def _mark_changed(self) -> None:
        self._file.mark_changed()
        self.invalidate_placements()

    def invalidate_placements(self) -> None:
        """Invalidate all cached placements."""
        self.version += 1
        self._placements.clear()
        for cache in self._caches:
            cache.clear()

    def register_cache(self, cache: dict[QueueKey, Any]) -> None:
        """Register a cache by logical queue; it is cleared whenever a placement may have changed."""
        self._caches.append(cache)

    # Opening.

    def _open(self) -> None:
        snapshot = self._file.load() or MappingSnapshot()
        configs: dict[str, TopicConfig] = {}
        self.is_draining = snapshot.draining
        for change in snapshot.topics.values():
            self._apply(change, configs)
        for state in snapshot.moves.values():
            self._store_move(state)
        for record in read_changes(self._journal, snapshot.position):
            if record.mapping is not None:
                self._apply(record.mapping, configs)
            self._store_move(record.move)
            self.is_draining = self.is_draining if record.draining is None else record.draining
            self._file.mark_changed()
        for mapping in list(self._table.values()):
            for queue, torn in find_torn(mapping, self._store):
                self._table[mapping.topic] = self._table[mapping.topic].with_queues(queue)
                event = "end of a segment was torn and is corrected"
                self._turn.log("warning", event, topic=mapping.topic, queue=queue.queue, end=torn.end)
        for topic, config in configs.items():
            known = self._topics.find(topic)
            if topic in self._table and (known is None or known.write_queues < config.write_queues):
                # The log contains the topic's configuration, but a crash prevented the later write of the topics file.
                self._topics.put(config)
        self._foreign = find_owner_faults(self._table, self._owners, self._expected_cluster)
        for reason in self._foreign.values():
            self._turn.log("error", "mapping in the folder is not this broker's", reason=reason)
        self._adopt_java(snapshot.java)

    def _apply(self, change: MappingChange, configs: dict[str, TopicConfig]) -> None:
        mapping = apply_change(self._table.get(change.topic), change, self.broker)
        if mapping is None:
            self._table.pop(change.topic, None)
            self._forget_moves(change.topic)
            return
        self._table[change.topic] = fill_ends(mapping, self._store)
        self._owners[change.topic] = change.broker
        if change.config is not None:
            configs[change.topic] = change.config

    def _adopt_java(self, saved_version: DataVersion | None) -> None:
        """Adopt mappings that a Java broker recorded in this folder after the last snapshot."""
        try:
            file = self._java_file.load()
        except UnreadableFile as error:
            self._refuse_file(JAVA_NAME, error.reason)
            return
        if file is None:
            return
        if saved_version is not None and file.data_version.counter <= saved_version.counter:
            self._java_version = saved_version
            return
        self._java_version = file.data_version
        for topic, detail in file.topic_queue_mapping_info_map.items():
            known = self._table.get(topic)
            if known is None or detail.epoch > known.epoch:
                self._adopt_topic(topic, detail, known)

    def _adopt_topic(self, topic: str, detail: MappingDetail, known: TopicMapping | None) -> None:
        try:
            received = from_detail(detail)
            check(received, owner=self.broker, cluster=self.cluster)
            accepted = received if known is None else accept_update(known, received)
        except (MappingRefused, RemoteProtocolError) as error:
            self._refuse_file(topic, str(error))
            return
        completed = (complete_end(topic, queue, self.broker, self._store) for queue in accepted.queues.values())
        self._table[topic] = accepted.with_queues(*completed)
        self._file.mark_changed()
        if known is None:
            self.adopted.append(topic)

    def _refuse_file(self, subject: str, reason: str) -> None:
        self._turn.log("error", "mapping in the folder not adopted", of=subject, reason=reason)
