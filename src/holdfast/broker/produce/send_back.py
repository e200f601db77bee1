"""Stores messages that consumers could not consume and return for a retry (36).

    returned the n-th time ─┬─ n < maximum ─> %RETRY%group, after the delay of level 3 + n (or the requested level)
                            └─ else ────────> %DLQ%group, for good

The new message has the content of the old one, the number of returns, and its origin. From a batch only the message
with the given id is returned; the others are not affected. The old message may be on another broker if its topic is
static: a client that sees one broker for the topic returns everything to that broker.

If there are static topics, a position without an id means:

    for the C++ library, which knows no ids ─> a record of this log: it connects to the host that stored the message
    for any other client ─> a record that it received through this broker; for a normal topic, a record of this log
    more than one message, or none ─> refused, with a hint at the missing id: a guess could return a wrong message
"""

from __future__ import annotations

import random
from typing import Final

from holdfast.access.door import Door
from holdfast.broker.flow.request import Answer, Handlers, Refusal, Request
from holdfast.broker.messages.record_lookup import properties_of, read_named_record, to_draft
from holdfast.broker.messages.writer import DELAY, Draft, LogWriter
from holdfast.broker.relay.record_locator import LocatedRecord, RecordLocator
from holdfast.broker.tables.clients import ClientTable
from holdfast.broker.tables.groups import GroupTable
from holdfast.broker.tables.stats import SEND_BACK_NUMS, BrokerStats
from holdfast.broker.tables.topics import TopicTable
from holdfast.machine.component import Component
from holdfast.model.access.resource import Action
from holdfast.model.errors import PeerFailed
from holdfast.model.group import GroupConfig
from holdfast.model.property_names import RETRY_TOPIC
from holdfast.model.topic import (
    FORWARD_TOPIC,
    HALF_TOPIC,
    MAPPING_TOPIC,
    OP_HALF_TOPIC,
    SCHEDULE_TOPIC,
    Permission,
    dead_letter_topic,
    retry_topic,
)
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.records.inner_batch import is_inner_batch
from holdfast.wire.records.record import TRANSACTION_MASK, StoredRecord
from holdfast.wire.requests.offsets import SendBackFields
from holdfast.wire.requests.permissions import for_topic

_MAX_RECONSUME_VERSION: Final = 121  # earlier clients use the field with another meaning
_FIRST_RETRY_LEVEL: Final = 3
_DIALS_STORE_HOST: Final = "CPP"
_INTERNAL_TOPICS: Final = frozenset({SCHEDULE_TOPIC, HALF_TOPIC, OP_HALF_TOPIC, MAPPING_TOPIC, FORWARD_TOPIC})
_ID_HINT: Final = "specify the originMsgId of the returned message"


class SendBackHandler(Component):
    """Stores returned messages in retry or dead-letter topics."""

    def __init__(
        self,
        topics: TopicTable,
        groups: GroupTable,
        clients: ClientTable,
        writer: LogWriter,
        stats: BrokerStats,
        record_locator: RecordLocator,
        door: Door,
        *,
        rng: random.Random,
    ) -> None:
        self._topics = topics
        self._groups = groups
        self._clients = clients
        self._writer = writer
        self._queues = writer.queues
        self._record_locator = record_locator
        self._stats = stats
        self._door = door
        self._rng = rng

    def handlers(self) -> Handlers:
        """Return the request handlers of this component."""
        return {RequestCode.CONSUMER_SEND_MSG_BACK: self.handle_send_back}

    async def handle_send_back(self, request: Request) -> Answer:
        """Store a returned message in the retry or dead-letter topic of its group (36)."""
        fields = request.header_as(SendBackFields)
        group = self._groups.ensure(fields.group)
        if isinstance(group, Refusal):
            return group
        if group.retry_queue_nums <= 0:
            return request.answer()  # The group uses no retries, so the message is dropped.
        retry = self._topics.ensure(retry_topic(fields.group), group.retry_queue_nums)
        if not retry.permission & Permission.WRITE:
            return Refusal(ResponseCode.NO_PERMISSION, f"the topic[{retry.name}] sending message is forbidden")
        returned = await self._find(request, fields)
        if isinstance(returned, Refusal):
            return returned
        # Its copy is for the group: a message of a topic that the sender may not read must not become readable there.
        needed = for_topic(returned.record.topic, frozenset({Action.SUB}))
        if refusal := self._door.find_refusal(request.identity, (needed,), request.command.code):
            return refusal
        draft = self._to_retry_draft(returned, fields, group, request)
        stored = self._writer.accept(draft)
        if isinstance(stored, Refusal):
            return stored
        self._stats.count(SEND_BACK_NUMS, f"{draft.properties[RETRY_TOPIC]}@{fields.group}")
        return request.answer()

    async def _find(self, request: Request, fields: SendBackFields) -> LocatedRecord | Refusal:
        """Find the message that the client returns, or return why it is not found."""
        message_id, are_shared = fields.origin_msg_id or "", self._queues.are_shared
        if are_shared and message_id:
            found = await self._record_locator.find(fields.offset, message_id)
            if found is not None:
                return found
        record = await read_named_record(fields.offset, self._writer.store.find_queue)
        if are_shared and not message_id:
            return await self._find_by_position(request, fields, record)
        if record is not None and is_inner_batch(record.sys_flag):
            item = self._record_locator.find_in_batch(record, message_id)
            return _not_inside(fields) if item is None else LocatedRecord(item, is_in_batch=True)
        if record is None or are_shared:  # The record has a different id: it is another message.
            return _not_found(fields)
        return LocatedRecord(record)

    async def _find_by_position(
        self, request: Request, fields: SendBackFields, own: StoredRecord | None
    ) -> LocatedRecord | Refusal:
        """Find the message at a position without an id; *own* is the record at that position in this log, if any."""
        found: list[LocatedRecord] = []
        if request.command.language != _DIALS_STORE_HOST:
            try:
                found = await self._record_locator.find_delivered(request.channel, fields.offset, fields.group)
            except PeerFailed as error:
                return Refusal(ResponseCode.SYSTEM_ERROR, f"look message by offset failed: {error}; {_ID_HINT}")
            if own is not None and not self._is_served(own.topic, fields.group):
                own = None
        if own is not None:
            found.append(LocatedRecord(own))
        found = [each for each in found if _matches_topic(each.record, fields)]
        if len(found) > 1:
            return Refusal(
                ResponseCode.INVALID_PARAMETER,
                f"position {fields.offset} may be one of {len(found)} messages of different brokers; {_ID_HINT}",
            )
        if not found:
            return _not_found(fields, f"; {_ID_HINT}")
        return _not_inside(fields) if is_inner_batch(found[0].record.sys_flag) else found[0]

    def _is_served(self, topic: str, group: str) -> bool:
        """Return whether *group* may have received messages of *topic* that were not remembered.

        Deliveries of a topic that other brokers share are remembered.
        """
        if self._queues.is_shared(topic):
            return False
        return not self._clients.has_group(group) or self._clients.subscription(group, topic) is not None

    def _to_retry_draft(
        self, found: LocatedRecord, fields: SendBackFields, group: GroupConfig, request: Request
    ) -> Draft:
        """Return the retry or dead-letter message that replaces the returned one."""
        record = found.record
        properties = properties_of(record)
        properties.setdefault(RETRY_TOPIC, record.topic)
        properties.setdefault("ORIGIN_MESSAGE_ID", found.message_id)
        # Do not wait until this copy is synced: after a failure the client would only return the message again.
        properties["WAIT"] = "false"
        times_max = group.retry_max_times
        if request.command.version >= _MAX_RECONSUME_VERSION and fields.max_reconsume_times is not None:
            times_max = fields.max_reconsume_times
        if record.reconsume_times >= times_max or fields.delay_level < 0:
            topic, queue_id = self._topics.ensure(dead_letter_topic(fields.group), 1).name, 0
            self._topics.save()  # If the record was cold, the event that would have saved the topic is over.
            properties[DELAY] = "0"
        else:
            topic, queue_id = retry_topic(fields.group), self._rng.randrange(group.retry_queue_nums)
            properties[DELAY] = str(fields.delay_level or _FIRST_RETRY_LEVEL + record.reconsume_times)
        draft = to_draft(record, properties, topic=topic, queue_id=queue_id)
        draft.reconsume_times += 1
        # Once it is delivered, a transactional message is an ordinary one.
        draft.sys_flag &= ~TRANSACTION_MASK
        return draft


def _matches_topic(record: StoredRecord, fields: SendBackFields) -> bool:
    """Return whether a record belongs to the topic that the request names, if any, and to one that consumers read."""
    topics = {record.topic, properties_of(record).get(RETRY_TOPIC)}
    return record.topic not in _INTERNAL_TOPICS and (not fields.origin_topic or fields.origin_topic in topics)


def _not_found(fields: SendBackFields, hint: str = "") -> Refusal:
    return Refusal(ResponseCode.SYSTEM_ERROR, f"look message by offset failed, {fields.offset}{hint}")


def _not_inside(fields: SendBackFields) -> Refusal:
    """Return the refusal for a batch in which the request identifies no message."""
    return Refusal(
        ResponseCode.INVALID_PARAMETER,
        f"at position {fields.offset} there is a batch, and no message in it has the originMsgId "
        f"{fields.origin_msg_id!r}: specify the UNIQ_KEY of the returned message",
    )
