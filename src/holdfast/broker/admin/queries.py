"""Looking things up: offsets of a queue (29, 30, 31, 32), messages by key or position (12, 33), index entries (321).

Of a static topic the queue is a logical one, and so are its offsets; only its leader answers. Messages may be on any
broker that ever led one of its queues. Of a batch the single messages are shown that were asked for.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Final

import msgspec

from holdfast.broker.consume.logical_pull import not_leader_to_read
from holdfast.broker.flow.awaitables import Pause, PeerCall, Procedure
from holdfast.broker.flow.request import Answer, Handlers, Refusal, Request, Steps
from holdfast.broker.mapping.offset_rewrite import read_queue_id, restamp
from holdfast.broker.mapping.segment_queries import REMOTE_TIMEOUT_MS, StaticReads
from holdfast.broker.messages.batch_cache import OpenedBatches, Reason
from holdfast.broker.messages.record_lookup import read_bytes
from holdfast.broker.relay.record_locator import Whereabouts
from holdfast.broker.tables.clients import ClientTable
from holdfast.model.errors import CorruptRecord, PeerFailed
from holdfast.model.mapping import LogicalQueue
from holdfast.model.property_names import UNIQUE_KEY
from holdfast.store.message_store import MessageStore
from holdfast.store.queues.queue_log import ENTRY
from holdfast.wire.cluster.route import is_mapping_aware
from holdfast.wire.frames import java_json
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.frames.command import Command
from holdfast.wire.frames.fields import from_fields, to_fields
from holdfast.wire.records.inner_batch import Opening, is_inner_batch
from holdfast.wire.records.properties import find_property
from holdfast.wire.records.record import decode_record, decode_records
from holdfast.wire.requests.admin import QueueEntries, QueueEntriesFields, QueueEntry
from holdfast.wire.requests.offsets import (
    OffsetAnswer,
    QueryMessageAnswer,
    QueryMessageFields,
    QueueFields,
    SearchOffsetFields,
    TimestampAnswer,
    ViewMessageFields,
)

FOUND_MAX: Final = 64
FOUND_SIZE_MAX: Final = 8 * 1024 * 1024
ENTRIES_MAX: Final = 1024
_OPENED_AT_ONCE: Final = 4 * 1024 * 1024
_UNIQUE_KEY: Final = UNIQUE_KEY.encode()


class Queries:
    """Answers questions about what is stored."""

    def __init__(
        self,
        store: MessageStore,
        clients: ClientTable,
        reads: StaticReads,
        opened: OpenedBatches,
        whereabouts: Whereabouts,
    ) -> None:
        self._store = store
        self._clients = clients
        self._reads = reads
        self._opened = opened
        self._whereabouts = whereabouts

    def handlers(self) -> Handlers:
        """Return what this room answers."""
        return {
            RequestCode.QUERY_MESSAGE: self.query_message,
            RequestCode.VIEW_MESSAGE_BY_ID: self.view_message,
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: self.search_offset,
            RequestCode.GET_MAX_OFFSET: self.get_max_offset,
            RequestCode.GET_MIN_OFFSET: self.get_min_offset,
            RequestCode.GET_EARLIEST_MSG_STORETIME: self.get_earliest_time,
            RequestCode.QUERY_CONSUME_QUEUE: self.query_queue,
        }

    # Messages.

    def query_message(self, request: Request) -> Procedure[Answer]:
        """Answer 12: the newest messages with a key.

        Who cannot read mappings knows one broker of a static topic, which then asks the others for him.
        """
        fields, command = from_fields(QueryMessageFields, request.command.fields), request.command
        found = yield from self._find_by_key(fields)
        is_aware = fields.reads_mappings or is_mapping_aware(command.language, command.version)
        if not is_aware and self._reads.mappings.is_static(fields.topic):
            found += yield from self._find_elsewhere(fields)
            found.sort(key=lambda data: decode_record(data, check_body=False).store_ms, reverse=True)
        answer = to_fields(
            QueryMessageAnswer(
                indexLastUpdateTimestamp=self._store.last_store_ms,
                indexLastUpdatePhyoffset=self._store.confirmed - self._store.index_behind,
            )
        )
        if not found:
            remark = "can not find message, maybe time range not correct"
            return request.answer(ResponseCode.QUERY_NOT_FOUND, remark, fields=answer)
        return request.answer(fields=answer, body=_join(found[: _count_wanted(fields)]))

    def _find_by_key(self, fields: QueryMessageFields) -> Procedure[list[bytes]]:
        """Return the records here, newest first; the first whatever its size."""
        positions = yield from self._store.find_by_key(
            fields.topic, fields.key, _count_wanted(fields), fields.begin_timestamp, fields.end_timestamp
        )
        found: list[bytes] = []
        size = opened = 0
        for position in positions:
            if opened > _OPENED_AT_ONCE:
                opened = 0
                yield Pause(1)  # Others have a turn: to open batches takes longer than anything else here.
            data = yield from read_bytes(position)
            singles, opened_size = self._find_inside(data, fields.key) if data else ([], 0)
            for single in singles:
                size += len(single)
                if found and size > FOUND_SIZE_MAX:
                    return found
                found.append(self._to_logical(fields.topic, single))
            opened += opened_size
        return found

    def _find_inside(self, data: bytes, key: str) -> tuple[list[bytes], int]:
        """Return what a record holds that has *key*, and how much was opened to see it.

        If it is no batch, that is the record itself; everything, if *key* is the batch's id.
        """
        record = decode_record(data, check_body=False)
        if not is_inner_batch(record.sys_flag):
            return [data], 0
        batch = self._opened.open_own(record, Reason.QUERY)
        if batch is None:
            return [], _OPENED_AT_ONCE // 2
        is_of_batch = find_property(record.properties, _UNIQUE_KEY) == key.encode(errors="replace")
        indexes = range(len(batch)) if is_of_batch else batch.find_keyed(key)
        return [batch.data(index) for index in indexes], batch.size

    def _find_elsewhere(self, fields: QueryMessageFields) -> Procedure[list[bytes]]:
        """Return the records of other brokers, of those that answer."""
        asked = to_fields(msgspec.structs.replace(fields, reads_mappings=True))
        found: list[bytes] = []
        for answer in (yield from self._reads.ask_others(RequestCode.QUERY_MESSAGE, asked)):
            with contextlib.suppress(CorruptRecord):
                found += _split(answer.body)
        return found

    def view_message(self, request: Request) -> Procedure[Answer]:
        """Answer 33: the message at a position, or all messages of a batch, whole to those who open it.

        Clients dial the address in the message's id, so that the position is one of this log. Where nothing begins
        there, it may be one of another log, out of which that client was handed something by way of this broker.
        """
        fields = from_fields(ViewMessageFields, request.command.fields)
        data = yield from read_bytes(fields.offset)
        if not data:
            return (yield from self._view_elsewhere(request, fields))
        record = decode_record(data, check_body=False)
        if is_inner_batch(record.sys_flag) and fields.opens_batches != Opening.WANTED.value:
            batch = self._opened.open_own(record, Reason.QUERY)
            if batch is None:
                return Refusal(ResponseCode.SYSTEM_ERROR, f"the batch at {fields.offset} cannot be opened")
            data = batch.data(0, max(1, batch.count_fitting(0, FOUND_SIZE_MAX)))
        return request.answer(body=self._to_logical(record.topic, data))

    def _view_elsewhere(self, request: Request, fields: ViewMessageFields) -> Procedure[Answer]:
        """Answer with what another broker shows at a position."""
        try:
            found = yield from self._whereabouts.find_handed(request.channel, fields.offset)
            if len(found) == 1 and found[0].address is not None:
                asked = Command(code=RequestCode.VIEW_MESSAGE_BY_ID, fields=request.command.fields)
                answer: Command = yield PeerCall(found[0].address, asked, REMOTE_TIMEOUT_MS)
                return request.answer(answer.code, answer.remark, fields=answer.fields, body=answer.body)
        except PeerFailed as error:
            return Refusal(ResponseCode.SYSTEM_ERROR, f"can not find message by the offset: {error}")
        return Refusal(ResponseCode.SYSTEM_ERROR, f"can not find message by the offset, {fields.offset}")

    def _to_logical(self, topic: str, data: bytes) -> bytes:
        """Return a record as readers of its topic know it: in a static one with logical queue and offset."""
        if not data or not self._reads.mappings.is_static(topic):
            return data
        own = self._reads.mappings.find_own(topic, read_queue_id(data))
        return data if own is None or not own[1].is_decided else bytes(restamp([data], own[0].queue, own[1].delta)[0])

    # Queues.

    def search_offset(self, request: Request) -> Procedure[Answer]:
        """Answer 29."""
        fields = from_fields(SearchOffsetFields, request.command.fields)
        is_upper = fields.boundary_type.upper() == "UPPER"
        if self._is_logical(fields):
            return self._answer_logical(
                request,
                fields,
                lambda queue: self._reads.search(fields.topic, queue, fields.timestamp, upper=is_upper),
            )
        return self._search(request, fields, upper=is_upper)

    def _search(self, request: Request, fields: SearchOffsetFields, *, upper: bool) -> Steps[Answer]:
        queue = self._store.find_queue(fields.topic, fields.queue_id)
        offset = 0
        if queue is not None:
            offset = yield from self._store.offset_at_time(queue, fields.timestamp, upper=upper)
        return request.answer(fields=to_fields(OffsetAnswer(offset)))

    def get_max_offset(self, request: Request) -> Answer:
        """Answer 30. What is not committed yet is never told: a crash could give the offset out again."""
        fields = from_fields(QueueFields, request.command.fields)
        if self._is_logical(fields):
            found = self._reads.find_led(fields.topic, fields.queue_id)
            if found is None:
                return self._not_leader(fields)
            return request.answer(fields=to_fields(OffsetAnswer(self._reads.maximum(fields.topic, found))))
        queue = self._store.find_queue(fields.topic, fields.queue_id)
        return request.answer(fields=to_fields(OffsetAnswer(queue.offset_max if queue is not None else 0)))

    def get_min_offset(self, request: Request) -> Answer | Procedure[Answer]:
        """Answer 31."""
        fields = from_fields(QueueFields, request.command.fields)
        if self._is_logical(fields):
            return self._answer_logical(request, fields, lambda queue: self._reads.ask_minimum(fields.topic, queue))
        queue = self._store.find_queue(fields.topic, fields.queue_id)
        return request.answer(fields=to_fields(OffsetAnswer(queue.offset_min if queue is not None else 0)))

    def get_earliest_time(self, request: Request) -> Procedure[Answer]:
        """Answer 32."""
        fields = from_fields(QueueFields, request.command.fields)
        if self._is_logical(fields):
            found = self._reads.find_led(fields.topic, fields.queue_id)
            if found is None:
                return self._not_leader(fields)
            time_ms: int | None = yield from self._reads.earliest_time(fields.topic, found)
        else:
            queue = self._store.find_queue(fields.topic, fields.queue_id)
            time_ms = None if queue is None else (yield from self._store.store_time(queue, queue.offset_min))
        return request.answer(fields=to_fields(TimestampAnswer(-1 if time_ms is None else time_ms)))

    def _is_logical(self, fields: QueueFields | SearchOffsetFields) -> bool:
        return fields.is_logical is not False and self._reads.mappings.is_static(fields.topic)

    def _not_leader(self, fields: QueueFields | SearchOffsetFields) -> Refusal:
        return not_leader_to_read(fields.topic, fields.queue_id, self._reads.mappings.broker)

    def _answer_logical(
        self,
        request: Request,
        fields: QueueFields | SearchOffsetFields,
        find: Callable[[LogicalQueue], Procedure[int]],
    ) -> Procedure[Answer]:
        """Answer with an offset of a logical queue, which may take other brokers to find."""
        queue = self._reads.find_led(fields.topic, fields.queue_id)
        if queue is None:
            return self._not_leader(fields)
        try:
            offset = yield from find(queue)
        except PeerFailed as error:
            return Refusal(ResponseCode.SYSTEM_ERROR, str(error))
        return request.answer(fields=to_fields(OffsetAnswer(offset)))

    def query_queue(self, request: Request) -> Steps[Answer]:
        """Answer 321."""
        fields = from_fields(QueueEntriesFields, request.command.fields)
        queue = self._store.find_queue(fields.topic, fields.queue_id)
        if queue is None:
            return Refusal(ResponseCode.SYSTEM_ERROR, f"{fields.queue_id}@{fields.topic} is not exist!")
        start = max(fields.index, queue.offset_min)
        raw, _ = yield from queue.fetch_stretch(start, max(0, min(fields.count, ENTRIES_MAX)))
        body = QueueEntries(
            queue_data=[
                QueueEntry(physic_offset=position, physic_size=size, tags_code=code)
                for position, size, code in ENTRY.iter_unpack(raw)
            ],
            min_queue_index=queue.offset_min,
            max_queue_index=queue.offset_max,
            subscription_data=self._clients.subscription(fields.consumer_group, fields.topic),
        )
        return request.answer(body=java_json.encode(body))


def _count_wanted(fields: QueryMessageFields) -> int:
    return FOUND_MAX if fields.unique_key else max(1, min(fields.max_num, FOUND_MAX))


def _split(body: bytes) -> list[bytes]:
    """Return the records of an answer, each by itself."""
    found: list[bytes] = []
    at = 0
    for record in decode_records(body):
        found.append(body[at : at + record.size])
        at += record.size
    return found


def _join(found: list[bytes]) -> bytes:
    """Return as many of the first records as go into one answer; the first one always does."""
    size = 0
    for count, data in enumerate(found):
        size += len(data)
        if count and size > FOUND_SIZE_MAX:
            return b"".join(found[:count])
    return b"".join(found)
