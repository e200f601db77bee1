"""Answers or parks pulls: 11 and 361.

    request ─> may this group read this queue? ─> read messages ─┬─ found ─> answered, at once or after some steps
               (`physical_pull.py`, `logical_pull.py`)           └─ nothing new ─> parked (`long_poll.py`) or answered

The queue of a static topic is logical, unless another broker pulls. A broker names physical queues, neither commits nor
waits, and gets no resets.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import lru_cache
from typing import Final

from holdfast.broker.consume.consumer_offsets import OffsetTable
from holdfast.broker.consume.delivered_ranges import DeliveredRanges
from holdfast.broker.consume.index_scan import Scan
from holdfast.broker.consume.logical_pull import EmptyScan, LogicalPullReader
from holdfast.broker.consume.long_poll import ParkedPull, ParkedPulls
from holdfast.broker.consume.physical_pull import PhysicalPullReader, PullContext, Puller, refuse
from holdfast.broker.flow.awaitables import Procedure
from holdfast.broker.flow.request import Refusal
from holdfast.broker.mapping.segment_queries import SegmentQueries
from holdfast.broker.messages.batch_cache import BatchCache
from holdfast.broker.options import BrokerOptions
from holdfast.broker.tables.clients import ClientTable
from holdfast.broker.tables.groups import GroupTable
from holdfast.broker.tables.stats import BrokerStats
from holdfast.broker.tables.topics import TopicTable
from holdfast.machine.effects import Piece
from holdfast.machine.pressure import MemoryPressure
from holdfast.model.filter import accepted_tag_codes, is_tag_type, parse_tags
from holdfast.model.topic import Permission
from holdfast.store.message_store import MessageStore
from holdfast.store.queues.queue_log import QueueIndex
from holdfast.wire.frames.codes import ResponseCode
from holdfast.wire.requests.pull import COMMIT_OFFSET, SUBSCRIPTION, SUSPEND, PullFields, PullHeader, pull_answer_head

SUSPEND_MAX_MS: Final = 5 * 60 * 1000  # A client that wants to wait longer pulls again.
_EXPRESSION_CACHED_MAX: Final = 1024
_READ: Final = int(Permission.READ)  # Enum flags are slow to compute with.
_EMPTY_CODES: Final = frozenset({ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY})

PullResult = list[Piece] | Procedure[list[Piece]] | None
"""The answer; steps that end in it; or None if the pull was parked."""


class PullHandler:
    """Admits, answers and parks pulls.

    Attributes:
        parked_pulls: Parked pulls, by physical queue.
        batch_cache: Batches opened here, for readers that cannot open them and for other components.
        delivered_ranges: The log ranges that clients without mapping support received records from.
        led_queues: Some of the logical queues led here: a fast check that a pull is not for another broker.
        to_wake: Physical queues whose parked pulls must be retried although no message was added.
    """

    def __init__(
        self,
        options: BrokerOptions,
        store: MessageStore,
        topics: TopicTable,
        groups: GroupTable,
        clients: ClientTable,
        offsets: OffsetTable,
        stats: BrokerStats,
        segment_queries: SegmentQueries,
    ) -> None:
        self._options = options
        self._store = store
        self._topics = topics
        self._groups = groups
        self._clients = clients
        self._offsets = offsets
        self._mappings = segment_queries.mappings
        self._static_topics = segment_queries.mappings.topics()
        self.batch_cache = BatchCache()
        self.delivered_ranges = DeliveredRanges()
        self._physical_reader = PhysicalPullReader(
            options, store, stats, self.batch_cache, self.delivered_ranges, self._record_next
        )
        self._logical_reader = LogicalPullReader(store, segment_queries, self._physical_reader, clients, stats)
        self.led_queues: Collection[tuple[str, int]] = self._logical_reader.led_queues
        self.parked_pulls: ParkedPulls[QueueIndex] = ParkedPulls()
        self.to_wake: list[QueueIndex] = []

    def watch_pressure(self, pressure: MemoryPressure) -> None:
        """Keep answers small while *pressure* is high: large ones that wait for their readers would stop senders."""
        self._physical_reader.pressure = pressure

    def handle_pull(self, header: PullHeader, puller: Puller) -> PullResult:
        """Answer a pull, or park it until there is a message or its deadline passes."""
        fields = header.fields
        codes = self._admit(fields, puller.now_ms)
        if isinstance(codes, Refusal):
            return [refuse(codes, header.opaque, puller.serializer)]
        if fields.topic in self._static_topics:
            return self._pull_static(header, puller, codes)
        if fields.sys_flag & COMMIT_OFFSET and fields.commit_offset >= 0:
            self._offsets.commit(fields.consumer_group, fields.topic, fields.queue_id, fields.commit_offset)
        queue = self._store.queue(fields.topic, fields.queue_id)
        pull = PullContext(header, puller.serializer)
        reset = self._offsets.pop_reset(fields.consumer_group, fields.topic, fields.queue_id, fields.queue_offset)
        if reset is not None:
            moved = Scan(ResponseCode.PULL_OFFSET_MOVED, "OFFSET_RESET", reset)
            return [self._physical_reader.head(pull, queue, moved)]
        if self._physical_reader.is_cold(pull, queue, fields.queue_offset, codes):
            return self._physical_reader.read_cold(pull, queue, fields.queue_offset, codes)
        scan = self._physical_reader.scan(pull, queue, fields.queue_offset, codes)
        if scan.code == ResponseCode.PULL_NOT_FOUND and self._may_park(fields):
            self._park(queue, header, puller)
            return None
        return self._physical_reader.respond(pull, queue, scan)

    def answer_too_many(self, header: PullHeader, serializer: int) -> bytes:
        """Return the answer to one of too many pulls at once: pull again at the same offset."""
        return retry_answer(header, serializer, "TOO_MANY_PULLS_AT_ONCE")

    def answer_queue_moved(self, parked: ParkedPull) -> bytes:
        """Return the answer to a parked pull whose queue another broker leads now: pull again at the same offset."""
        return retry_answer(parked.header, parked.serializer, "QUEUE_MOVED")

    def retry(self, queue: QueueIndex, parked: ParkedPull, now_ms: int, *, final: bool) -> PullResult:
        """Retry a parked pull; park it again if there is still nothing for it, unless *final*."""
        fields = parked.header.fields
        codes = self._admit(fields, now_ms)
        if isinstance(codes, Refusal):
            return [refuse(codes, parked.header.opaque, parked.serializer)]
        if fields.topic in self._static_topics:
            return self._retry_static(parked, codes, final=final)
        pull = PullContext(parked.header, parked.serializer)
        reset = self._offsets.pop_reset(fields.consumer_group, fields.topic, fields.queue_id, fields.queue_offset)
        if reset is not None:
            moved = Scan(ResponseCode.PULL_OFFSET_MOVED, "OFFSET_RESET", reset)
            return [self._physical_reader.head(pull, queue, moved)]
        scan = self._physical_reader.scan(pull, queue, parked.scan_from, codes)
        return self._answer_or_park(EmptyScan(queue, pull, scan, is_open_end=True), parked, 0, final=final)

    def wake_queue(self, topic: str, queue_id: int) -> None:
        """Retry the parked pulls of a queue that moved, or whose reader has a pending reset."""
        if self._mappings.is_static(topic):
            self.to_wake += self._mappings.own_indexes(topic, queue_id)
        else:
            self.to_wake.append(self._store.queue(topic, queue_id))

    # Static topics.

    def _pull_static(self, header: PullHeader, puller: Puller, codes: frozenset[int] | None) -> PullResult:
        fields = header.fields
        group, topic, number = fields.consumer_group, fields.topic, fields.queue_id
        if fields.is_logical is False:
            pull, queue = PullContext(header, puller.serializer), self._store.queue(topic, number)
            if self._physical_reader.is_cold(pull, queue, fields.queue_offset, codes):
                return self._physical_reader.read_cold(pull, queue, fields.queue_offset, codes)
            return self._physical_reader.respond(
                pull, queue, self._physical_reader.scan(pull, queue, fields.queue_offset, codes)
            )
        led = self._logical_reader.led_queues.get((topic, number)) or self._logical_reader.find_led(topic, number)
        if led is None:
            return self._logical_reader.refuse(header, puller.serializer)
        # A relayed pull may arrive twice, much later, so its commit may only move the offset forward. A leader that
        # sealed the queue may have sent the committed offsets and the pending resets to the next leader already.
        commits = fields.sys_flag & COMMIT_OFFSET and not led.is_sealed
        if commits and fields.commit_offset > (self._offsets.find(group, topic, number) or -1):
            self._offsets.commit(group, topic, number, fields.commit_offset)
        reset = None if led.is_sealed else self._offsets.pop_reset(group, topic, number, fields.queue_offset)
        if reset is not None:
            return self._logical_reader.redirect(led, header, puller, reset)
        result = self._logical_reader.read(led, header, puller, fields.queue_offset, codes)
        if type(result) is not EmptyScan:  # Costs a fifth of `isinstance` with a struct.
            return result
        if result.scan.code == ResponseCode.PULL_NOT_FOUND and result.is_open_end and self._may_park(fields):
            self._park(result.index, header, puller)
            return None
        return self._physical_reader.respond(result.pull, result.index, result.scan)

    def _retry_static(self, parked: ParkedPull, codes: frozenset[int] | None, *, final: bool) -> PullResult:
        """Retry a parked pull of a logical queue; its `scan_from` is a logical offset."""
        fields = parked.header.fields
        group, topic, number = fields.consumer_group, fields.topic, fields.queue_id
        led = self._logical_reader.find_led(topic, number)
        if led is None:
            return [self.answer_queue_moved(parked)]
        puller = Puller(parked.channel, parked.serializer)
        reset = None if led.is_sealed else self._offsets.pop_reset(group, topic, number, fields.queue_offset)
        if reset is not None:
            return self._logical_reader.redirect(led, parked.header, puller, reset)
        result = self._logical_reader.read(led, parked.header, puller, parked.scan_from, codes)
        if not isinstance(result, EmptyScan):
            return result
        lens = result.pull.lens
        assert lens is not None
        return self._answer_or_park(result, parked, lens.delta, final=final)

    # Parking.

    def _park(self, queue: QueueIndex, header: PullHeader, puller: Puller) -> None:
        fields = header.fields
        deadline_ms = puller.now_ms + min(fields.suspend_timeout_millis, SUSPEND_MAX_MS)
        self.parked_pulls.park(
            queue, ParkedPull(puller.channel, puller.serializer, header, deadline_ms, scan_from=fields.queue_offset)
        )

    def _answer_or_park(self, empty: EmptyScan, parked: ParkedPull, delta: int, *, final: bool) -> PullResult:
        """Answer a parked pull with the result of a scan, or park it again after the scanned messages."""
        scan = empty.scan
        is_nothing = scan.code in _EMPTY_CODES
        if is_nothing and empty.is_open_end and not final:
            parked.scan_from = scan.next_offset + delta
            parked.is_gone = False
            self.parked_pulls.park(empty.index, parked)
            return None
        if is_nothing and scan.next_offset + delta > parked.header.fields.queue_offset:
            # Nothing up to the next offset matched: the client need not pull these messages again.
            scan.code, scan.remark = ResponseCode.PULL_RETRY_IMMEDIATELY, "NO_MATCHED_MESSAGE"
        return self._physical_reader.respond(empty.pull, empty.index, scan)

    def _record_next(self, pull: PullContext, next_offset: int) -> None:
        """Record the next offset of a group, unless another broker pulled: that broker leads, and records it itself."""
        fields = pull.header.fields
        if pull.lens is not None or fields.topic not in self._static_topics:
            self._offsets.record_pull(fields.consumer_group, fields.topic, fields.queue_id, next_offset)

    def _may_park(self, fields: PullFields) -> bool:
        return (
            bool(fields.sys_flag & SUSPEND)
            and fields.suspend_timeout_millis > 0
            and len(self.parked_pulls) < self._options.parked_pulls_max
        )

    # Admission.

    def _is_logical(self, fields: PullFields) -> bool:
        return fields.is_logical is not False and self._mappings.is_static(fields.topic)

    def _admit(self, fields: PullFields, now_ms: int) -> frozenset[int] | Refusal | None:
        """Return the tag hashes that the reader wants (None: all of them), or why it may not pull."""
        group = self._groups.ensure(fields.consumer_group, now_ms)
        if isinstance(group, Refusal):
            return group
        if not group.consume_enable:
            return Refusal(ResponseCode.NO_PERMISSION, f"consumer group {fields.consumer_group} may not consume")
        topic = self._topics.find(fields.topic)
        if topic is None:
            return Refusal(ResponseCode.TOPIC_NOT_EXIST, f"topic[{fields.topic}] not exist, apply first please!")
        if not topic.permission & _READ:
            return Refusal(ResponseCode.NO_PERMISSION, f"topic {fields.topic} may not be read")
        if not (0 <= fields.queue_id < topic.read_queues or self._is_logical(fields)):
            return Refusal(
                ResponseCode.INVALID_PARAMETER,
                f"queueId[{fields.queue_id}] is illegal, topic:[{fields.topic}] topicConfig.readQueueNums:"
                f"[{topic.read_queues}] consumer:[{fields.consumer_group}]",
            )
        if fields.sys_flag & SUBSCRIPTION:
            if not is_tag_type(fields.expression_type):
                return Refusal(ResponseCode.SYSTEM_ERROR, "only TAG subscriptions are supported, not SQL92")
            expression = fields.subscription or ""
            # Only cache short expressions, which many pulls may share: an unknown client could send megabytes.
            read = _codes_of_text if len(expression) <= _EXPRESSION_CACHED_MAX else _codes_of_text.__wrapped__
            return read(fields.topic, expression)
        subscription = self._clients.subscription(fields.consumer_group, fields.topic)
        if subscription is None:
            return Refusal(
                ResponseCode.SUBSCRIPTION_NOT_EXIST,
                f"consumer group {fields.consumer_group} has not subscribed to {fields.topic}",
            )
        return accepted_tag_codes(subscription)


@lru_cache(maxsize=1024)
def _codes_of_text(topic: str, expression: str) -> frozenset[int] | None:
    return accepted_tag_codes(parse_tags(topic, expression))


def retry_answer(header: PullHeader, serializer: int, remark: str) -> bytes:
    """Return an answer without messages that makes the reader pull again at the same offset, from the master."""
    offset = header.fields.queue_offset
    offsets = (offset, 0, offset)
    return pull_answer_head(serializer, header.opaque, ResponseCode.PULL_RETRY_IMMEDIATELY, remark, offsets, 0)
