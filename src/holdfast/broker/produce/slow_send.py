"""Stores messages that are not plain: checks permissions, resolves the real topic and queue, and adds properties.

unknown topic            created from its template, if the broker may create topics
%RETRY% of a group       returns are counted; a message returned too often goes to the dead-letter topic
delay level              to the schedule (`writer.py`)
prepared (transaction)   to the half topic, until its producer decides (`transactions.py`)
"""

from __future__ import annotations

import random
from typing import Final

from holdfast.broker.deferred.transactions import TransactionHandler
from holdfast.broker.flow.request import Refusal
from holdfast.broker.mapping.queue_view import AppendTarget
from holdfast.broker.messages.writer import Draft, LogWriter
from holdfast.broker.options import BrokerOptions
from holdfast.broker.relay.auto_create_guard import AutoCreateGuard
from holdfast.broker.relay.relay import Relay
from holdfast.broker.tables.groups import GroupTable
from holdfast.machine.turn import Turn
from holdfast.model.queue import LogicalQueueId
from holdfast.model.topic import (
    NOT_SENDABLE_TOPICS,
    RETRY_PREFIX,
    Permission,
    TopicConfig,
    dead_letter_topic,
    find_name_fault,
)
from holdfast.model.unique_id import UniqueIds
from holdfast.wire.frames.codes import ResponseCode
from holdfast.wire.frames.host import pack_host
from holdfast.wire.records.message_id import format_message_id
from holdfast.wire.records.properties import parse_properties
from holdfast.wire.records.record import TRANSACTION_MASK, TRANSACTION_PREPARED
from holdfast.wire.requests.send import SendAnswer, SendFields, SendHeader
from holdfast.wire.requests.table import Relaying

_UNIQUE_KEY: Final = "UNIQ_KEY"
# Properties of arbitrary delivery times, which need a timer wheel.
_TIMERS: Final = ("TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS")
_MAX_RECONSUME_VERSION: Final = 121  # earlier senders use the field with another meaning


class SlowSends:
    """Stores one message at a time, with all checks.

    Attributes:
        topics: The topics of this broker.
        writer: Appends the messages.
    """

    def __init__(
        self,
        options: BrokerOptions,
        groups: GroupTable,
        writer: LogWriter,
        transactions: TransactionHandler,
        relay: Relay,
        guard: AutoCreateGuard,
        turn: Turn,
        *,
        rng: random.Random,
    ) -> None:
        self._turn = turn
        self._options = options
        self.topics = writer.queues.topics
        self.writer = writer
        self._queues = writer.queues
        self._relay = relay
        self._groups = groups
        self._transactions = transactions
        self._guard = guard
        store_host = self._store_host = pack_host(options.address)
        self._rng = rng
        self._unique_ids = UniqueIds(host=store_host[:-4], process=rng.getrandbits(16), salt=rng.getrandbits(32))

    def is_away(self, fields: SendFields) -> bool:
        """Return whether the queue that a message names is not for this broker now.

        A half message stays on the broker that its producer knows, because the producer sends its decision there; the
        committed message goes to the leader.
        """
        topic, number = fields.topic, fields.wanted_queue
        if number is None:
            return False  # `_choose_queue` chooses one that is open here.
        is_half = fields.sys_flag & TRANSACTION_MASK == TRANSACTION_PREPARED
        if is_half and self._queues.has_number(topic, number):
            return False
        return self._relay.is_away((topic, number), Relaying.SEND)

    def find_target(self, topic: str, number: LogicalQueueId) -> AppendTarget | Refusal:
        """Return where messages for a validated queue are stored, or the refusal if it is not open here."""
        return self._queues.find_target(topic, number) or self.writer.refuse_away(topic, number)

    def stage(self, header: SendHeader, body: bytes, born_host: bytes) -> SendAnswer | Refusal:
        """Store one message in its real topic and queue, or return why it is refused."""
        fields = header.fields
        config = self._find_topic(fields)
        if isinstance(config, Refusal):
            return config
        queue_id = self._choose_queue(fields, config)
        if isinstance(queue_id, Refusal):
            return queue_id
        properties = parse_properties(fields.properties)
        if any(name in properties for name in _TIMERS):
            return Refusal(
                ResponseCode.MESSAGE_ILLEGAL, "messages with a delivery time are not supported; use a delay level"
            )
        unique_key = properties.setdefault(_UNIQUE_KEY, self._unique_ids.next(self._turn.now_ms))
        properties["CLUSTER"] = self._options.cluster
        draft = Draft(
            topic=fields.topic,
            queue_id=queue_id,
            body=body,
            properties=properties,
            born_ms=fields.born_timestamp,
            born_host=born_host,
            flag=fields.flag,
            sys_flag=fields.sys_flag,
            reconsume_times=fields.reconsume_times,
        )
        if fields.topic.startswith(RETRY_PREFIX):
            self._divert_dead_letter(draft, fields, header.version)
        if draft.sys_flag & TRANSACTION_MASK == TRANSACTION_PREPARED:
            stored = self._transactions.append_half(draft)
        else:
            stored = self.writer.accept(draft)
        if isinstance(stored, Refusal):
            return stored
        return SendAnswer(
            msg_id=format_message_id(self._store_host, stored.position),
            queue_id=queue_id,
            queue_offset=stored.offset,
            transaction_id=unique_key,
        )

    def next_id(self) -> str:
        """Return a unique id for a batch that has none."""
        return self._unique_ids.next(self._turn.now_ms)

    def prepare_batch(self, fields: SendFields) -> LogicalQueueId | Refusal:
        """Return the queue that a batch goes to, or why it is refused."""
        if fields.topic.startswith(RETRY_PREFIX) or fields.sys_flag & TRANSACTION_MASK:
            return Refusal(ResponseCode.MESSAGE_ILLEGAL, "a batch can be neither a retry nor a transaction")
        config = self._find_topic(fields)
        return config if isinstance(config, Refusal) else self._choose_queue(fields, config)

    def _find_topic(self, fields: SendFields) -> TopicConfig | Refusal:
        topic = fields.topic
        config = self.topics.find(topic)
        if config is None:
            if fault := find_name_fault(topic):
                return Refusal(ResponseCode.INVALID_PARAMETER, fault)
            if not topic.startswith(RETRY_PREFIX):
                return self._guard.create_for_send(topic, fields.default_topic, fields.default_topic_queue_nums)
        if topic in NOT_SENDABLE_TOPICS:
            return Refusal(ResponseCode.NO_PERMISSION, f"topic {topic} belongs to the system; send to another topic")
        if topic.startswith(RETRY_PREFIX):
            group = self._groups.ensure(topic.removeprefix(RETRY_PREFIX))
            if isinstance(group, Refusal):
                return group
            config = self.topics.ensure(topic, max(1, group.retry_queue_nums))
        assert config is not None
        return config

    def _choose_queue(self, fields: SendFields, config: TopicConfig) -> LogicalQueueId | Refusal:
        """Return the queue of a message: the one that it names, or one that is open here if it may go to any."""
        topic, number = config.name, fields.wanted_queue
        if number is None:
            numbers = self._queues.writable(topic)
            open_here = [each for each in numbers if not self._relay.is_away((topic, each), Relaying.SEND)]
            return self._rng.choice(open_here) if open_here else self.writer.refuse_away(topic, None)
        if not self._queues.has_number(topic, number):
            return Refusal(
                ResponseCode.INVALID_PARAMETER,
                f"queue {number} of topic {topic} does not exist on broker {self._options.name}: "
                f"it has {max(config.read_queues, config.write_queues)}",
            )
        return number

    def _divert_dead_letter(self, draft: Draft, fields: SendFields, version: int) -> None:
        """Redirect a message that was returned too often to the dead-letter topic."""
        group_name = fields.topic.removeprefix(RETRY_PREFIX)
        group = self._groups.find(group_name)
        times_max = group.retry_max_times if group is not None else 16
        if version >= _MAX_RECONSUME_VERSION and fields.max_reconsume_times is not None:
            times_max = fields.max_reconsume_times
        if fields.reconsume_times <= times_max:
            return
        draft.topic = dead_letter_topic(group_name)
        draft.queue_id = LogicalQueueId(0)
        draft.properties.pop("DELAY", None)
        self.topics.ensure(draft.topic, 1, permission=int(Permission.READ | Permission.WRITE))
