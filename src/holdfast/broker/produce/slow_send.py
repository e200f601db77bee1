"""Stores messages that are not plain: checks permissions, resolves the real topic and queue, and adds properties.

unknown topic            created from its template, if the broker may create topics
%RETRY% of a group       returns are counted; a message returned too often goes to the dead-letter topic
delay level              to the schedule (`writer.py`)
prepared (transaction)   to the half topic, until its producer decides (`transactions.py`)
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

from holdfast.broker.deferred.transactions import TransactionHandler
from holdfast.broker.flow.request import Refusal
from holdfast.broker.messages.writer import Draft, LogWriter, not_leader_to_send
from holdfast.broker.options import BrokerOptions
from holdfast.broker.tables.groups import GroupTable
from holdfast.broker.tables.topics import TopicTable
from holdfast.machine.pressure import MemoryPressure
from holdfast.model.topic import (
    NOT_SENDABLE_TOPICS,
    RETRY_PREFIX,
    Permission,
    TopicConfig,
    dead_letter_topic,
    find_name_fault,
)
from holdfast.model.unique_id import UniqueIds
from holdfast.store.message_store import MessageStore, QueueIndex
from holdfast.store.recovery.replica_log import REPLICA_REFUSAL
from holdfast.wire.frames.codes import ResponseCode
from holdfast.wire.frames.host import pack_host
from holdfast.wire.records.message_id import format_message_id
from holdfast.wire.records.properties import parse_properties
from holdfast.wire.records.record import TRANSACTION_MASK, TRANSACTION_PREPARED
from holdfast.wire.requests.send import SendAnswer, SendFields, SendHeader

_UNIQUE_KEY: Final = "UNIQ_KEY"
# Properties of arbitrary delivery times, which need a timer wheel.
_TIMERS: Final = ("TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS")
_MAX_RECONSUME_VERSION: Final = 121  # earlier senders use the field with another meaning


class SlowSends:
    """Stores one message at a time, with all checks."""

    def __init__(
        self,
        options: BrokerOptions,
        store: MessageStore,
        topics: TopicTable,
        groups: GroupTable,
        writer: LogWriter,
        transactions: TransactionHandler,
        *,
        chance: random.Random,
        pressure: MemoryPressure,
    ) -> None:
        self._options = options
        self._is_replica = options.is_replica
        self._store = store
        self._topics = topics
        self._mappings = writer.mappings
        self._groups = groups
        self._writer = writer
        self._transactions = transactions
        store_host = self._store_host = pack_host(options.address)
        self._chance = chance
        self._pressure = pressure
        self._unique_ids = UniqueIds(host=store_host[:-4], process=chance.getrandbits(16), salt=chance.getrandbits(32))

    def find_refusal(self, now_ms: int) -> Refusal | None:  # noqa: ARG002 - later refusals depend on the time
        """Return why the broker accepts no messages now, or None."""
        store = self._store
        if not store.reserve_space():
            if store.shortage is not None:
                return Refusal(
                    ResponseCode.SERVICE_NOT_AVAILABLE,
                    f"the disk of broker {self._options.name} has no space for the index of its messages; free space "
                    "or shorten the retention: sends are accepted again within a second, and reading continues",
                )
            return Refusal(
                ResponseCode.SERVICE_NOT_AVAILABLE,
                f"the disk of broker {self._options.name} is more than {self._options.disk_full_percent} % full, or "
                "has no space for another log file; free space or shorten the retention; reading continues",
            )
        if self._is_replica:
            return Refusal(ResponseCode.SERVICE_NOT_AVAILABLE, REPLICA_REFUSAL)
        if store.log.fault is not None:
            return Refusal(
                ResponseCode.SERVICE_NOT_AVAILABLE,
                f"broker {self._options.name} accepts no messages after a disk error; see its log, then restart it",
            )
        if store.log.written - store.confirmed > self._options.unsynced_size_max:
            return Refusal(
                ResponseCode.SYSTEM_BUSY,
                f"[PCBUSY_CLEAN_QUEUE]broker {self._options.name} waits for its disk; try again in a moment",
            )
        if self._pressure.is_high:
            return Refusal(
                ResponseCode.SYSTEM_BUSY,
                f"[PCBUSY_CLEAN_QUEUE]broker {self._options.name} holds too much for slow connections; "
                "try again in a moment, or let its operator raise memory_limit",
            )
        return None

    def find_leader_refusal(self, fields: SendFields, is_away: Callable[[str, int], bool]) -> Refusal | None:
        """Return why a message to a static topic is not for this broker, or None if it is.

        A message that may go to any queue gets one that is open here. A half message stays on the broker that its
        producer knows, because the producer sends its decision there; the committed message goes to the leader.
        """
        topic = fields.topic
        if fields.queue_id < 0:
            open_queues = [number for number in self._mappings.led_queues(topic) if not is_away(topic, number)]
            fields.queue_id = self._chance.choice(open_queues) if open_queues else -1
        is_half = fields.sys_flag & TRANSACTION_MASK == TRANSACTION_PREPARED
        if is_half and self._mappings.placement(topic, fields.queue_id).state != "unknown":
            return None
        return (
            not_leader_to_send(topic, fields.queue_id, self._options.name) if is_away(topic, fields.queue_id) else None
        )

    def locate(self, topic: str, queue_id: int) -> tuple[QueueIndex, int]:
        """Return the physical queue of a validated queue, and the delta to its offsets in answers to the sender."""
        placement = self._mappings.placement(topic, queue_id)
        return (
            (self._store.queue(topic, queue_id), 0)
            if placement.queue_index is None
            else (placement.queue_index, placement.delta)
        )

    def stage(self, header: SendHeader, body: bytes, born_host: bytes, now_ms: int) -> SendAnswer | Refusal:
        """Store one message in its real topic and queue, or return why it is refused."""
        fields = header.fields
        config = self._find_topic(fields, now_ms)
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
        unique_key = properties.setdefault(_UNIQUE_KEY, self._unique_ids.next(now_ms))
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
            self._divert_dead_letter(draft, fields, header.version, now_ms)
        if draft.sys_flag & TRANSACTION_MASK == TRANSACTION_PREPARED:
            stored = self._transactions.append_half(draft, now_ms)
        else:
            stored = self._writer.accept(draft, now_ms)
        if isinstance(stored, Refusal):
            return stored
        return SendAnswer(
            msg_id=format_message_id(self._store_host, stored.position),
            queue_id=queue_id,
            queue_offset=stored.offset,
            transaction_id=unique_key,
        )

    def next_id(self, now_ms: int) -> str:
        """Return a unique id for a batch that has none."""
        return self._unique_ids.next(now_ms)

    def prepare_batch(self, fields: SendFields, now_ms: int) -> int | Refusal:
        """Return the queue that a batch goes to, or why it is refused."""
        if fields.topic.startswith(RETRY_PREFIX) or fields.sys_flag & TRANSACTION_MASK:
            return Refusal(ResponseCode.MESSAGE_ILLEGAL, "a batch can be neither a retry nor a transaction")
        config = self._find_topic(fields, now_ms)
        return config if isinstance(config, Refusal) else self._choose_queue(fields, config)

    def _find_topic(self, fields: SendFields, now_ms: int) -> TopicConfig | Refusal:
        topic = fields.topic
        config = self._topics.find(topic)
        if config is None:
            if fault := find_name_fault(topic):
                return Refusal(ResponseCode.INVALID_PARAMETER, fault)
            if not topic.startswith(RETRY_PREFIX):
                return self._topics.create_for_send(
                    topic, fields.default_topic, fields.default_topic_queue_nums, now_ms
                )
        if topic in NOT_SENDABLE_TOPICS:
            return Refusal(ResponseCode.NO_PERMISSION, f"topic {topic} belongs to the system; send to another topic")
        if topic.startswith(RETRY_PREFIX):
            group = self._groups.ensure(topic.removeprefix(RETRY_PREFIX), now_ms)
            if isinstance(group, Refusal):
                return group
            config = self._topics.ensure(topic, max(1, group.retry_queue_nums), now_ms)
        assert config is not None
        return config

    def _choose_queue(self, fields: SendFields, config: TopicConfig) -> int | Refusal:
        if self._mappings.is_static(config.name):
            return fields.queue_id  # Validated by `find_leader_refusal`.
        if fields.queue_id < 0:
            return self._chance.randrange(max(1, config.write_queues))
        count = max(config.read_queues, config.write_queues)
        if fields.queue_id >= count:
            return Refusal(
                ResponseCode.INVALID_PARAMETER,
                f"queue {fields.queue_id} of topic {config.name} does not exist on broker {self._options.name}: "
                f"it has {count}",
            )
        return fields.queue_id

    def _divert_dead_letter(self, draft: Draft, fields: SendFields, version: int, now_ms: int) -> None:
        """Redirect a message that was returned too often to the dead-letter topic."""
        group_name = fields.topic.removeprefix(RETRY_PREFIX)
        group = self._groups.find(group_name)
        times_max = group.retry_max_times if group is not None else 16
        if version >= _MAX_RECONSUME_VERSION and fields.max_reconsume_times is not None:
            times_max = fields.max_reconsume_times
        if fields.reconsume_times <= times_max:
            return
        draft.topic = dead_letter_topic(group_name)
        draft.queue_id = 0
        draft.properties.pop("DELAY", None)
        self._topics.ensure(draft.topic, 1, now_ms, permission=int(Permission.READ | Permission.WRITE))
