"""Stores batches, with all checks: as one record if the queue is indexed by record, else split.

    one record    if `inner_batches.py` accepts it; it has one position, one id, and as many offsets as messages
    split         every item becomes a separate record, in order

All messages of a batch are stored, or none. Either form may carry the stamp of an exactly-once sink.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from holdfast.broker.flow.request import Refusal
from holdfast.broker.mapping.queue_view import AppendTarget
from holdfast.broker.messages.inner_batches import InnerBatch, validate_inner_batch
from holdfast.broker.options import BrokerOptions
from holdfast.broker.produce.exactly_once import SinkProgress
from holdfast.broker.produce.slow_send import SlowSends
from holdfast.broker.tables.stats import BrokerStats
from holdfast.machine.effects import Piece
from holdfast.machine.turn import Turn
from holdfast.model import property_names as names
from holdfast.model.errors import RemoteProtocolError
from holdfast.model.java_hash import java_hash
from holdfast.model.queue import LogicalQueueId, PhysicalOffset
from holdfast.store.log.commit_log import RecordDraft
from holdfast.wire.frames.codes import ResponseCode
from holdfast.wire.records.batch import split_items
from holdfast.wire.records.properties import PROPERTIES_SIZE_MAX, VALUE_END, find_property
from holdfast.wire.requests.send import SendAnswer, SendFields
from holdfast.wire.requests.sink import SINK, SinkStamp, find_stamp

TAGS: Final = f"{names.TAGS}\x01"
_COUNT: Final = f"{names.INNER_COUNT}\x01".encode()
_RECORD_ENDS_MAX: Final = 20  # a sender's IPv6 host, and the blank after the last record of a file
_tag_hash = lru_cache(512)(java_hash)  # Topics have few tags.


class BatchSends:
    """Stores one batch at a time."""

    def __init__(
        self,
        options: BrokerOptions,
        slow_sends: SlowSends,
        stats: BrokerStats,
        sinks: SinkProgress,
        turn: Turn,
        *,
        store_host: bytes,
    ) -> None:
        self._turn = turn
        self._size_max = options.message_size_max
        self._cluster = f"{names.CLUSTER}\x01{options.cluster}{VALUE_END}".encode()
        self._store = slow_sends.writer.store
        self._queues = slow_sends.writer.queues
        self._slow_sends = slow_sends
        self._stats = stats
        self._id_prefix = store_host.hex().upper()
        self._sinks = sinks

    def stage(self, fields: SendFields, body: Piece, born_host: bytes) -> SendAnswer | Refusal:
        """Stage the messages of a batch, or return why it is refused."""
        queue_id = self._slow_sends.prepare_batch(fields)
        if isinstance(queue_id, Refusal):
            return queue_id
        target = self._slow_sends.find_target(fields.topic, queue_id)
        if isinstance(target, Refusal):
            return target
        inner = validate_inner_batch(fields, body, accepts_batches=target.index.accepts_batches)
        if isinstance(inner, Refusal):
            return inner
        if inner is not None:
            return self._stage_inner(fields, inner, body, born_host, queue_id, target)
        return self._stage_split(fields, body, born_host, queue_id, target)

    def _stage_inner(
        self,
        fields: SendFields,
        inner: InnerBatch,
        body: Piece,
        born_host: bytes,
        queue_id: LogicalQueueId,
        target: AppendTarget,
    ) -> SendAnswer | Refusal:
        """Stage a batch as one record."""
        size = len(body)
        if size > self._size_max:
            text = f"the batch has {size} bytes, at most {self._size_max} are allowed: send smaller ones"
            return Refusal(ResponseCode.MESSAGE_ILLEGAL, text)
        stamp = self._find_stamp(fields, queue_id, inner.count)
        if isinstance(stamp, Refusal):
            return stamp
        unique_key, properties = inner.unique_key, inner.properties
        if not unique_key:
            unique_key = self._slow_sends.next_id()
            properties = f"{properties}{names.UNIQUE_KEY}\x01{unique_key}{VALUE_END}"
        position, offset = self._store.stage(
            target.index, body, properties.encode() + self._cluster, fields.flag, inner.sys_flag, fields.born_timestamp,
            born_host, tags_code(properties), self._turn.now_ms, fields.reconsume_times,
        )  # fmt: skip
        if stamp is not None:
            self._sinks.note_staged(fields.topic, queue_id, stamp, position)
        self._stats.count_puts(fields.topic, inner.count, size)
        return SendAnswer(
            msg_id=f"{self._id_prefix}{position:016X}",
            queue_id=queue_id,
            queue_offset=target.to_logical(PhysicalOffset(offset)),
            transaction_id=unique_key,
            batch_uniq_id=unique_key,
        )

    def _stage_split(
        self, fields: SendFields, body: Piece, born_host: bytes, queue_id: LogicalQueueId, target: AppendTarget
    ) -> SendAnswer | Refusal:
        """Stage the messages of a batch as contiguous records."""
        packed = self._store.pack_batch(
            target.index, body, fields.sys_flag, fields.born_timestamp, born_host, self._turn.now_ms,
            fields.reconsume_times,
        )  # fmt: skip
        if packed is None:
            return self._stage_items(fields, body, born_host, queue_id, target)
        _, entries, positions, size = packed
        stamp = self._find_stamp(fields, queue_id, len(entries))
        if isinstance(stamp, Refusal):
            return stamp
        offset = self._store.stage_packed(target.index, packed)
        return self._note_split(fields, queue_id, target, stamp, positions, offset, size)

    def _stage_items(
        self, fields: SendFields, body: Piece, born_host: bytes, queue_id: LogicalQueueId, target: AppendTarget
    ) -> SendAnswer | Refusal:
        """Stage the messages of a batch that is not plain one by one, or return why it is refused."""
        try:
            items = split_items(body)
        except RemoteProtocolError as error:
            return Refusal(ResponseCode.MESSAGE_ILLEGAL, str(error))
        if not items:
            return Refusal(ResponseCode.MESSAGE_ILLEGAL, "the batch is empty")
        queue = target.index
        space = self._store.log_file_size - queue.header_size - _RECORD_ENDS_MAX
        for _, item_body, item_properties in items:
            body_size, properties_size = len(item_body), len(item_properties)
            is_large = body_size > self._size_max or properties_size > PROPERTIES_SIZE_MAX
            if is_large or body_size + properties_size > space:
                return Refusal(ResponseCode.MESSAGE_ILLEGAL, "a message of the batch is larger than allowed")
            if _COUNT in item_properties and find_property(item_properties, _COUNT[:-1]) is not None:
                # A Java broker that opens this folder later would read the record as a batch, whatever its flags.
                return Refusal(
                    ResponseCode.MESSAGE_ILLEGAL, "a message of the batch has the property INNER_NUM of inner batches"
                )
        stamp = self._find_stamp(fields, queue_id, len(items))
        if isinstance(stamp, Refusal):
            return stamp
        drafts: list[RecordDraft] = []
        for flag, item_body, item_properties in items:
            text = item_properties.decode(errors="replace")
            drafts.append((
                queue, item_body, item_properties, flag, fields.sys_flag, fields.born_timestamp, born_host,
                tags_code(text) if TAGS in text else 0, fields.reconsume_times, 0,
            ))  # fmt: skip
        staged = self._store.stage_run(drafts, self._turn.now_ms)
        size = sum([len(item_body) for _, item_body, _ in items])
        positions = [position for position, _ in staged]
        return self._note_split(fields, queue_id, target, stamp, positions, staged[0][1], size)

    def _note_split(
        self,
        fields: SendFields,
        queue_id: LogicalQueueId,
        target: AppendTarget,
        stamp: SinkStamp | None,
        positions: list[int],
        offset: int,
        size: int,
    ) -> SendAnswer:
        """Record that the messages of a batch are staged. Return the answer to its sender."""
        if stamp is not None:
            self._sinks.note_staged(fields.topic, queue_id, stamp, positions[-1])
        self._stats.count_puts(fields.topic, len(positions), size)
        return SendAnswer(
            msg_id=",".join([f"{self._id_prefix}{position:016X}" for position in positions]),
            queue_id=queue_id,
            queue_offset=target.to_logical(PhysicalOffset(offset)),
        )

    def _find_stamp(self, fields: SendFields, queue: LogicalQueueId, count: int) -> SinkStamp | Refusal | None:
        """Return the sink stamp of a batch, None if it has none, or why its rows cannot be stored exactly once."""
        if SINK not in fields.properties:
            return None
        stamp = find_stamp(fields.properties)
        if stamp is None or stamp.count != count or not self._queues.is_shared(fields.topic):
            reason = f"rows cannot be counted in {fields.topic}: the topic is not static, or the stamp does not match"
            return Refusal(ResponseCode.SINK_REFUSED, reason)
        return self._sinks.validate(fields.topic, queue, stamp) or stamp


def find_tags(properties: str) -> tuple[str, int]:
    """Return the end of *properties* from TAGS on, and the hash of that property.

    Properties with the same end have the same tags. Java writes TAGS last, so most messages of a producer end alike.
    The end is empty if it does not identify the tags: then the next properties must be parsed, too.
    """
    at = properties.rfind(TAGS) - 1
    return properties[at:] if at >= 0 and properties[at] == VALUE_END else "", tags_code(properties)


def tags_code(properties: str) -> int:
    """Return the hash of the TAGS property, or 0 if there is none."""
    before, found, after = properties.rpartition(TAGS)
    if not found:
        return 0
    if before and before[-1] != VALUE_END:
        return _tag_hash(find_property(properties, names.TAGS) or "")
    return _tag_hash(after.partition(VALUE_END)[0])
