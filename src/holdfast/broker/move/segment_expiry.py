"""Expires segments of logical queues once all their records are gone.

    at the leader            asks the brokers of its closed segments and marks empty ones expired: clients no longer
                             read them, but they stay listed
    at the segment's broker  marks its own empty segments expired, and drops segments of other brokers from its record
                             once it holds no readable part of the queue
    leads nothing            starts a new log file, so that retention can delete the last one that holds records

An expired segment stays listed until its physical queue is reused or its broker is removed. A segment of an unreachable
broker stays unchanged: its records are not lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from holdfast.broker.flow.awaitables import Synced
from holdfast.broker.flow.component import MasterComponent
from holdfast.broker.flow.request import Timers
from holdfast.broker.mapping.mapping_table import FINISHED, Mappings
from holdfast.broker.mapping.segment_queries import SegmentQueries
from holdfast.broker.move.move_source import MoveSource
from holdfast.machine.turn import Turn
from holdfast.model.errors import DiskFailed, MappingRefused, PeerFailed, RecordRefused
from holdfast.model.mapping import LogicalQueue, Segment, TopicMapping, next_epoch
from holdfast.model.queue import LogicalQueueId
from holdfast.model.topic import FORWARD_TOPIC, MAPPING_TOPIC
from holdfast.store.message_store import MessageStore
from holdfast.store.queues.queue_index import QueueIndex

TIMER: Final = "expiry"
CHECK_MS: Final = 30_000
SOON_MS: Final = 3_000
"""Delay after log files were removed: by then the store has updated the bounds of its queues."""

QUIET_MS: Final = 20_000
"""Minimum age of the newest record before the broker starts a new log file to let the last one expire."""

ROLL_PAUSE_MS: Final = 3_600_000
"""A log file allocates its full size at once: do not start one repeatedly for a trickle of messages."""


class SegmentExpiry(MasterComponent):
    """Finds empty segments periodically and expires them."""

    def __init__(
        self,
        store: MessageStore,
        mappings: Mappings,
        segment_queries: SegmentQueries,
        move_source: MoveSource,
        turn: Turn,
    ) -> None:
        self._store = store
        self._mappings = mappings
        self._segment_queries = segment_queries
        self._move_source = move_source
        self._turn = turn
        self._is_checking = False
        self._checked_end: int | None = None  # End of the log at the last check that started no new file.
        self._rolled_ms: int | None = None

    def timers(self) -> Timers:
        """Return the timers of this component, by name."""
        return {TIMER: self.on_timer}

    def start(self) -> None:
        """Start the periodic check."""
        self._turn.set_timer(TIMER, self._turn.now_ms + CHECK_MS)

    def on_files_removed(self) -> None:
        """Schedule an early check because log files were removed here."""
        self._turn.set_timer(TIMER, self._turn.now_ms + SOON_MS)

    def on_timer(self) -> None:
        """Start a check unless one is running, and schedule the next."""
        if not self._is_checking and self._mappings.topics():
            self._is_checking = True
            self._turn.spawn(self._check())
        self._turn.set_timer(TIMER, self._turn.now_ms + CHECK_MS)

    async def _check(self) -> None:
        silent: set[str] = set()
        try:
            for topic in list(self._mappings.topics()):
                expired = await self._find_expired(topic, silent)
                await self._expire(topic, expired)
                self._expire_local_segments(topic)
            self._begin_file()
        except (DiskFailed, RecordRefused) as error:
            self._log("warning", "expired segments cannot be recorded", reason=str(error))
        finally:
            self._is_checking = False

    # At the leader.

    async def _find_expired(self, topic: str, silent: set[str]) -> list[tuple[LogicalQueueId, Segment]]:
        """Return the closed segments of queues led here that hold no more records; asks their brokers."""
        expired: list[tuple[LogicalQueueId, Segment]] = []
        mapping = self._mappings.find(topic)
        for number in [] if mapping is None else self._mappings.led_queues(topic):
            assert mapping is not None
            for segment in _closed(mapping.queues[number]):
                if segment.broker in silent:
                    continue
                try:
                    is_empty = await self._segment_queries.is_expired(topic, number, segment)
                except PeerFailed:
                    silent.add(segment.broker)
                    continue
                if is_empty:
                    expired.append((number, segment))
        return expired

    async def _expire(self, topic: str, segments: Iterable[tuple[LogicalQueueId, Segment]]) -> None:
        """Record expired segments. Skip queues that this broker stopped leading while it waited for answers."""
        mapping = self._mappings.find(topic)
        changed: dict[LogicalQueueId, LogicalQueue] = {}
        for number, segment in segments:
            if mapping is None or self._mappings.placement(topic, number).state != "open":
                continue
            queue = changed.get(number, mapping.queues[number])
            if queue.find(segment.generation) == segment:
                changed[number] = queue.expire(segment.generation, segment.queue_id)
                self._segment_queries.forget_segment(topic, number, segment)
        if mapping is None or not changed:
            return
        now_ms = self._turn.now_ms
        expired = mapping.with_queues(*changed.values(), epoch=next_epoch(mapping.epoch, now_ms))
        position = self._mappings.change(expired)
        self._log("info", "segments expired", topic=topic, queues=len(changed))
        await Synced(position)
        self._turn.spawn(self._move_source.announce_epoch(topic))

    # At the broker that held the records.

    def _expire_local_segments(self, topic: str) -> None:
        """Expire local segments in the records of queues that other brokers lead. No other broker is notified."""
        mapping = self._mappings.find(topic)
        if mapping is None:
            return
        changed = [queue for queue in self._find_locally_expired(mapping) if queue != mapping.queues[queue.queue]]
        if changed:
            try:
                self._mappings.change(mapping.with_queues(*changed))
            except MappingRefused as error:
                self._log("error", "mapping cannot be pruned", topic=topic, reason=str(error))

    def _find_locally_expired(self, mapping: TopicMapping) -> Iterator[LogicalQueue]:
        """Yield the queues that other brokers lead, with locally empty segments expired."""
        broker = self._mappings.broker
        for number, queue in mapping.queues.items():
            placement = self._mappings.placement(mapping.topic, number)
            if placement.state != "elsewhere" or queue.leader.broker == broker:
                continue
            for segment in _closed(queue):
                if segment.broker == broker and self._is_empty(mapping.topic, segment):
                    queue = queue.expire(segment.generation, segment.queue_id)  # noqa: PLW2901 - step by step
            has_segment = any(segment.broker == broker for segment in queue.readable)
            yield queue if has_segment else queue.reduce_to(broker)

    def _is_empty(self, topic: str, segment: Segment) -> bool:
        log = self._segment_queries.index_of(topic, segment)
        if log is None:
            return segment.is_empty
        return log.offset_min >= (log.offset_max if segment.end is None else segment.end)

    # The last file of the log.

    def _begin_file(self) -> None:
        """Start a new log file if this broker leads nothing and the last file holds records that should expire."""
        store, now_ms = self._store, self._turn.now_ms
        is_due = self._rolled_ms is None or now_ms - self._rolled_ms >= ROLL_PAUSE_MS
        if (
            store.written == self._checked_end
            or not is_due
            or now_ms - store.last_store_ms < QUIET_MS
            or self._is_in_use()
        ):
            return
        file_start = store.written - store.written % store.log_file_size
        has_expiring = any(log.get_entry(log.offset_max - 1)[0] >= file_start for log in self._expiring_queues())
        if has_expiring and self._mappings.begin_file():
            self._rolled_ms = now_ms
            self._log("info", "log continues in its next file", at=store.written)
        self._checked_end = store.written

    def _is_in_use(self) -> bool:
        """Return whether this broker leads a queue, or takes part in an unfinished move."""
        is_moving = any(state.move.state not in FINISHED for state in self._mappings.moves().values())
        return is_moving or any(map(self._mappings.led_queues, self._mappings.topics()))

    def _expiring_queues(self) -> Iterator[QueueIndex]:
        """Yield the physical queues that should expire: those of static topics, or all while the broker drains."""
        for log in list(self._store.list_queues()):
            if log.offset_min >= log.offset_max or log.topic in {MAPPING_TOPIC, FORWARD_TOPIC}:
                continue
            if self._mappings.is_draining or self._mappings.is_static(log.topic):
                yield log

    def _log(self, level: str, event: str, **fields: object) -> None:
        self._turn.log(level, event, **fields)


def _closed(queue: LogicalQueue) -> list[Segment]:
    """Return the segments that can expire: readable, closed, and with a known end."""
    return [
        segment
        for segment in queue.readable
        if segment.is_decided and queue.is_before_leader(segment) and (segment.is_sealed or not segment.forced)
    ]
