"""Queries: offsets of a queue (29, 30, 31, 32), messages by key or position (12, 33), index entries (321).

In a static topic, queues and offsets are logical, and only the leader of a queue answers. Messages may be on any broker
that ever led one of its queues. From a batch, the answer contains only the messages that match.
"""

from __future__ import annotations

import contextlib
from typing import Final

import msgspec

from holdfast.access.door import Door
from holdfast.broker.flow.awaitables import Pause, PeerCall, Procedure
from holdfast.broker.flow.request import Answer, Handlers, Refusal, Request
from holdfast.broker.mapping.offset_rewrite import read_queue_id, rewrite_offsets
from holdfast.broker.mapping.queue_view import Queues, QueueView
from holdfast.broker.mapping.segment_queries import REMOTE_TIMEOUT_MS
from holdfast.broker.messages.batch_cache import BatchCache, UnpackReason
from holdfast.broker.messages.record_lookup import read_bytes, read_named_bytes
from holdfast.broker.relay.record_locator import RecordLocator
from holdfast.broker.tables.clients import ClientTable
from holdfast.machine.component import Component
from holdfast.model.access.resource import Action
from holdfast.model.errors import CorruptRecord, PeerFailed
from holdfast.model.property_names import UNIQUE_KEY
from holdfast.model.queue import LogicalQueueId, PhysicalQueueId
from holdfast.store.message_store import MessageStore
from holdfast.store.queues.queue_index import ENTRY
from holdfast.wire.cluster.route import is_mapping_aware
from holdfast.wire.frames import java_json
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.frames.command import Command
from holdfast.wire.frames.fields import to_fields
from holdfast.wire.records.inner_batch import BatchSupport, is_inner_batch
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
from holdfast.wire.requests.permissions import for_topic

FOUND_MAX: Final = 64
FOUND_SIZE_MAX: Final = 8 * 1024 * 1024
ENTRIES_MAX: Final = 1024
_OPENED_AT_ONCE: Final = 4 * 1024 * 1024
_UNIQUE_KEY: Final = UNIQUE_KEY.encode()


class QueryHandler(Component):
    """Handles queries about stored messages."""

    def __init__(
        self,
        store: MessageStore,
        clients: ClientTable,
        queues: Queues,
        opened: BatchCache,
        record_locator: RecordLocator,
        door: Door,
    ) -> None:
        self._store = store
        self._clients = clients
        self._queues = queues
        self._opened = opened
        self._record_locator = record_locator
        self._door = door

    def handlers(self) -> Handlers:
        """Return the handlers of this component, by request code."""
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

    async def query_message(self, request: Request) -> Answer:
        """Answer 12: return the newest messages with a key.

        A client without mapping support knows only one broker of a static topic, which then asks the others on its
        behalf.
        """
        fields, command = request.header_as(QueryMessageFields), request.command
        found = await self._find_by_key(fields)
        is_aware = fields.reads_mappings or is_mapping_aware(command.language, command.version)
        elsewhere = [] if is_aware else await self._find_elsewhere(fields)
        if elsewhere:
            found += elsewhere
            found.sort(key=lambda data: decode_record(data, check_body=False).store_ms, reverse=True)
        answer = to_fields(
            QueryMessageAnswer(
                indexLastUpdateTimestamp=self._store.last_store_ms,
                indexLastUpdatePhyoffset=self._store.confirmed - self._store.index_lag_bytes,
            )
        )
        if not found:
            remark = "can not find message, maybe time range not correct"
            return request.answer(ResponseCode.QUERY_NOT_FOUND, remark, fields=answer)
        return request.answer(fields=answer, body=_join(found[: _result_limit(fields)]))

    async def _find_by_key(self, fields: QueryMessageFields) -> list[bytes]:
        """Return the records on this broker, newest first, up to a size limit; the first whatever its size."""
        positions = await self._store.find_by_key(
            fields.topic, fields.key, _result_limit(fields), fields.begin_timestamp, fields.end_timestamp
        )
        found: list[bytes] = []
        size = unpacked = 0
        for position in positions:
            if unpacked > _OPENED_AT_ONCE:
                unpacked = 0
                await Pause(1)  # yield to other events: unpacking batches is the slowest work here
            data = await read_bytes(position)
            singles, unpacked_size = self._find_inside(data, fields.key) if data else ([], 0)
            for single in singles:
                size += len(single)
                if found and size > FOUND_SIZE_MAX:
                    return found
                found.append(self._to_logical(fields.topic, single))
            unpacked += unpacked_size
        return found

    def _find_inside(self, data: bytes, key: str) -> tuple[list[bytes], int]:
        """Return the messages of a record that have *key*, and how many bytes were unpacked to find them.

        A record that is no batch is returned itself. If *key* is the batch's id, all of its messages are returned.
        """
        record = decode_record(data, check_body=False)
        if not is_inner_batch(record.sys_flag):
            return [data], 0
        batch = self._opened.unpack_cached(record, UnpackReason.QUERY)
        if batch is None:
            return [], _OPENED_AT_ONCE // 2
        is_batch_id = find_property(record.properties, _UNIQUE_KEY) == key.encode(errors="replace")
        indexes = range(len(batch)) if is_batch_id else batch.find_keyed(key)
        return [batch.data(index) for index in indexes], batch.size

    async def _find_elsewhere(self, fields: QueryMessageFields) -> list[bytes]:
        """Return the records of the other brokers that answer; none for a normal topic."""
        request_fields = to_fields(msgspec.structs.replace(fields, reads_mappings=True))
        found: list[bytes] = []
        for answer in await self._queues.segments.request_others(RequestCode.QUERY_MESSAGE, request_fields):
            with contextlib.suppress(CorruptRecord):
                found += _split(answer.body)
        return found

    async def view_message(self, request: Request) -> Answer:
        """Answer 33: return the message at a position, or all messages of a batch; whole to clients that can unpack it.

        Clients connect to the address in the message id, so the position usually belongs to this broker's log. If no
        record begins there, it may belong to the log of another broker, of which this client got messages via this
        broker.
        """
        fields = request.header_as(ViewMessageFields)
        data = await read_named_bytes(fields.offset, self._store.find_queue)
        if not data:
            return await self._view_elsewhere(request, fields)
        record = decode_record(data, check_body=False)
        if refusal := self._find_refusal(request, fields, record.topic):
            return refusal
        if is_inner_batch(record.sys_flag) and fields.batch_support != BatchSupport.REQUESTED.value:
            batch = self._opened.unpack_cached(record, UnpackReason.QUERY)
            if batch is None:
                return Refusal(ResponseCode.SYSTEM_ERROR, f"the batch at {fields.offset} cannot be unpacked")
            data = batch.data(0, max(1, batch.count_fitting(0, FOUND_SIZE_MAX)))
        return request.answer(body=self._to_logical(record.topic, data))

    async def _view_elsewhere(self, request: Request, fields: ViewMessageFields) -> Answer:
        """Answer with the message of another broker at a position."""
        try:
            found = await self._record_locator.find_delivered(request.channel, fields.offset)
            if len(found) == 1 and found[0].address is not None:
                command = Command(code=RequestCode.VIEW_MESSAGE_BY_ID, fields=request.command.fields)
                answer = await PeerCall(found[0].address, command, REMOTE_TIMEOUT_MS)
                topic = decode_record(answer.body, check_body=False).topic if answer.body else fields.topic
                refusal = self._find_refusal(request, fields, topic)
                return refusal or request.answer(answer.code, answer.remark, fields=answer.fields, body=answer.body)
        except PeerFailed as error:
            return Refusal(ResponseCode.SYSTEM_ERROR, f"can not find message by the offset: {error}")
        return Refusal(ResponseCode.SYSTEM_ERROR, f"can not find message by the offset, {fields.offset}")

    def _find_refusal(self, request: Request, fields: ViewMessageFields, topic: str | None) -> Refusal | None:
        """Return why the sender may not read a message of *topic*, or None.

        The request may name the topic that the sender expects at the position: it has the permission for that one only.
        """
        if not topic or fields.topic == topic:
            return None
        needed = for_topic(topic, frozenset({Action.GET}))
        return self._door.find_refusal(request.identity, (needed,), request.command.code)

    def _to_logical(self, topic: str, data: bytes) -> bytes:
        """Return a record with logical queue id and offset if its topic is static, otherwise unchanged."""
        found = self._queues.mappings.find_by_physical(topic, PhysicalQueueId(read_queue_id(data))) if data else None
        if found is None or not found[1].is_decided:
            return data
        return bytes(rewrite_offsets([data], found[0].queue, found[1].delta)[0])

    # Queues.

    async def search_offset(self, request: Request) -> Answer:
        """Answer 29: return the offset at a store time."""
        fields = request.header_as(SearchOffsetFields)
        view = self._resolve(fields)
        if isinstance(view, Refusal):
            return view
        try:
            offset = await view.offset_at_time(fields.timestamp, upper=fields.boundary_type.upper() == "UPPER")
        except PeerFailed as error:
            return Refusal(ResponseCode.SYSTEM_ERROR, str(error))
        return request.answer(fields=to_fields(OffsetAnswer(offset)))

    def get_max_offset(self, request: Request) -> Answer:
        """Answer 30: return the end of a queue."""
        fields = request.header_as(QueueFields)
        view = self._resolve(fields)
        if isinstance(view, Refusal):
            return view
        return request.answer(fields=to_fields(OffsetAnswer(view.offset_max)))

    def get_min_offset(self, request: Request) -> Answer | Procedure[Answer]:
        """Answer 31: return the lowest offset of a queue."""
        fields = request.header_as(QueueFields)
        view = self._resolve(fields)
        if isinstance(view, Refusal):
            return view
        if view.is_local:
            return request.answer(fields=to_fields(OffsetAnswer(view.offset_min)))
        return self._fetch_min(request, view)

    async def _fetch_min(self, request: Request, view: QueueView) -> Answer:
        return request.answer(fields=to_fields(OffsetAnswer(await view.fetch_min())))

    async def get_earliest_time(self, request: Request) -> Answer:
        """Answer 32: return the store time of a queue's oldest message."""
        fields = request.header_as(QueueFields)
        view = self._resolve(fields)
        if isinstance(view, Refusal):
            return view
        return request.answer(fields=to_fields(TimestampAnswer(await view.earliest_time())))

    def _resolve(self, fields: QueueFields | SearchOffsetFields) -> QueueView | Refusal:
        """Return the queue that a request names, or the refusal if it is not led here."""
        number = LogicalQueueId(fields.queue_id)
        view = self._queues.resolve(fields.topic, number, is_logical=fields.is_logical)
        return self._queues.refuse(fields.topic, number) if view is None else view

    async def query_queue(self, request: Request) -> Answer:
        """Answer 321: return index entries of a physical queue."""
        fields = request.header_as(QueueEntriesFields)
        queue = self._store.find_queue(fields.topic, fields.queue_id)
        if queue is None:
            return Refusal(ResponseCode.SYSTEM_ERROR, f"{fields.queue_id}@{fields.topic} is not exist!")
        start = max(fields.index, queue.offset_min)
        raw, _ = await queue.fetch_range(start, max(0, min(fields.count, ENTRIES_MAX)))
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


def _result_limit(fields: QueryMessageFields) -> int:
    return FOUND_MAX if fields.unique_key else max(1, min(fields.max_num, FOUND_MAX))


def _split(body: bytes) -> list[bytes]:
    """Split consecutive records."""
    found: list[bytes] = []
    at = 0
    for record in decode_records(body):
        found.append(body[at : at + record.size])
        at += record.size
    return found


def _join(found: list[bytes]) -> bytes:
    """Join records up to the size limit of an answer; the first is always included."""
    size = 0
    for count, data in enumerate(found):
        size += len(data)
        if count and size > FOUND_SIZE_MAX:
            return b"".join(found[:count])
    return b"".join(found)
