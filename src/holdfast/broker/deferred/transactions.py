"""Transactional messages: hidden until their producer decides (37), and checked if it does not (39).

    RMQ_SYS_TRANS_HALF_TOPIC / 0     half messages, with their real topic and queue as properties
    RMQ_SYS_TRANS_OP_HALF_TOPIC / 0  op records: tag `d`, body = offsets of decided half messages, "12" or "12,13,"

    sent ─> half ─┬─ commit ────> a copy in its real topic + op
                  ├─ roll back ─> op
                  └─ silence ───> checked: a new half with the count of checks + op for the old one, then 39
                                  checked too often: a copy in TRANS_CHECK_MAX_TIME_TOPIC + op

The log is the truth: a half message is undecided when no op names it. Undecided half messages are kept in memory. After
a restart they are read again from both queues, from the offsets of the group CID_RMQ_SYS_TRANS on, where Java brokers
keep their progress, too. The copy and its op are written together, so a transaction is delivered once, unless a crash
tears the write exactly between them.

Improved over RocketMQ: a repeated decision delivers only once, and a check counts only if a producer was connected.
"""

from __future__ import annotations

from collections import deque
from typing import Final

import msgspec

from holdfast.broker.consume.consumer_offsets import OffsetTable
from holdfast.broker.deferred.half_messages import (
    FIRST_POSITION,
    REMOVE,
    SUCCESSOR,
    check_delay_ms,
    first_position,
    has_successor,
    named_offsets,
    pop_real_queue,
    to_message,
)
from holdfast.broker.deferred.remote_transactions import RemoteTransactions
from holdfast.broker.flow.awaitables import Pause
from holdfast.broker.flow.component import MasterComponent
from holdfast.broker.flow.request import Answer, Handlers, Refusal, Request, Timers
from holdfast.broker.messages.record_lookup import (
    properties_of,
    read_entries,
    read_named_record,
    to_draft,
    try_read_record,
)
from holdfast.broker.messages.writer import DELAY, REAL_QUEUE, REAL_TOPIC, TAGS, Draft, LogWriter, Stored
from holdfast.broker.options import BrokerOptions
from holdfast.broker.relay.record_locator import has_message_id
from holdfast.broker.tables.clients import Client
from holdfast.broker.tables.groups import TRANSACTION_GROUP
from holdfast.broker.tables.topics import TopicTable
from holdfast.machine.turn import Turn
from holdfast.model.numbers import parse_count
from holdfast.model.property_names import PRODUCER_GROUP
from holdfast.model.queue import LogicalOffset, LogicalQueueId
from holdfast.model.topic import CHECK_MAX_TOPIC, HALF_TOPIC, OP_HALF_TOPIC
from holdfast.store.queues.queue_index import BLANK_ENTRY_SIZE
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.frames.command import Command
from holdfast.wire.frames.fields import to_fields
from holdfast.wire.records.message_id import format_message_id
from holdfast.wire.records.properties import format_properties
from holdfast.wire.records.record import (
    TRANSACTION_COMMIT,
    TRANSACTION_MASK,
    TRANSACTION_ROLLBACK,
    StoredRecord,
    encode_record,
)
from holdfast.wire.requests.offsets import CheckTransactionFields, EndTransactionFields

TIMER: Final = "transactions"
_ONLY_QUEUE: Final = LogicalQueueId(0)
TICK_MS: Final = 1_000
_SOON_MS: Final = 50
RUN_MAX: Final = 256  # half messages read before other events get their turn
_BATCH: Final = 64
# Between attempts to forward a committed message to its leader. An attempt lasts seconds if the leader is silent.
_FORWARD_PAUSES_MS: Final = (20, 100, 500, 1_000, 2_000, 5_000, 5_000, 5_000)

_UNIQUE_KEY: Final = "UNIQ_KEY"
_CHECK_TIMES: Final = "TRANSACTION_CHECK_TIMES"


class HalfMessage(msgspec.Struct):
    """An undecided half message.

    Attributes:
        due_ms: When it is checked with its producer.
    """

    position: int
    size: int
    due_ms: int


class _Decision(msgspec.Struct, frozen=True):
    """An op record and the half message it names."""

    op_offset: int
    half_offset: int


class TransactionHandler(MasterComponent):
    """Stores, decides and checks half messages.

    Attributes:
        remote: Reaches leaders, half messages and producers at other brokers.
    """

    def __init__(
        self,
        options: BrokerOptions,
        topics: TopicTable,
        offsets: OffsetTable,
        writer: LogWriter,
        remote: RemoteTransactions,
        turn: Turn,
        *,
        store_host: bytes,
    ) -> None:
        self._turn = turn
        self._options = options
        self._store = writer.store
        self._remote = remote
        self._topics = topics
        self._offsets = offsets
        self._writer = writer
        self._store_host = store_host
        # Invariant: a half message in [0, _read_end) is undecided exactly if it is in here. Ordered by offset.
        self._undecided: dict[int, HalfMessage] = {}
        self._read_end = offsets.find(TRANSACTION_GROUP, HALF_TOPIC, _ONLY_QUEUE) or 0
        self._op_read_end = offsets.find(TRANSACTION_GROUP, OP_HALF_TOPIC, _ONLY_QUEUE) or 0
        # Half messages at or after `_read_end` that are decided already.
        self._decided_ahead: set[int] = set()
        # Decisions whose half messages the saved offset has not passed yet, oldest first.
        self._decisions: deque[_Decision] = deque()
        # New copies of half messages, with the producer or broker to check them with as soon as they can be read.
        self._to_check: dict[int, Client | str] = {}
        self._is_ready = False
        self._is_busy = False
        self._forwarding: set[int] = set()

    def handlers(self) -> Handlers:
        """Return the request handlers of this component."""
        return {RequestCode.END_TRANSACTION: self.end_transaction}

    def timers(self) -> Timers:
        """Return the timers of this component, by name."""
        return {TIMER: self.on_timer}

    @property
    def undecided_count(self) -> int:
        """Number of half messages that wait for a decision."""
        return len(self._undecided)

    # Half messages and decisions.

    def append_half(self, draft: Draft) -> Stored | Refusal:
        """Store a prepared message in the half topic, where no consumer sees it."""
        half = msgspec.structs.replace(
            draft,
            topic=HALF_TOPIC,
            queue_id=0,
            properties=draft.properties | {REAL_TOPIC: draft.topic, REAL_QUEUE: str(draft.queue_id)},
            sys_flag=draft.sys_flag & ~TRANSACTION_MASK,
        )
        half.properties.pop(DELAY, None)
        if _UNIQUE_KEY in half.properties:
            half.properties["__transactionId__"] = half.properties[_UNIQUE_KEY]
        return self._writer.append(half)

    async def end_transaction(self, request: Request) -> Answer:
        """Commit or roll back a half message (37). This request is nearly always one-way."""
        fields = request.header_as(EndTransactionFields)
        if fields.commit_or_rollback not in {TRANSACTION_COMMIT, TRANSACTION_ROLLBACK}:
            return None  # "Unknown": the broker will check the transaction.
        half_offset = fields.tran_state_table_offset
        # Another broker may have the half message: producers of static topics cannot always know which one.
        remote = self._remote if self._writer.queues.are_shared else None
        if (
            remote is not None and not fields.has_id
        ):  # The record at that position here may be a different half message.
            relayed = await remote.relay_decision(request, fields)
            if relayed is not None:
                return relayed
        record = await self._find_half(fields)
        if isinstance(record, Refusal):
            relayed = await remote.relay_decision(request, fields) if remote is not None and fields.has_id else None
            return relayed or record
        properties = properties_of(record)
        refusal = self._remote.find_refusal(request, fields, properties.get(REAL_TOPIC, ""))
        refusal = refusal or self._find_refusal(half_offset)
        if refusal is not None:
            return refusal
        successor: Stored | None = None
        if fields.commit_or_rollback == TRANSACTION_COMMIT:
            delivered = await self._deliver(half_offset, record, properties)
            if isinstance(delivered, Refusal):
                return delivered  # The half message stays undecided, and will be checked.
            successor = delivered
        self._decide(half_offset, successor)
        return request.answer()

    async def _find_half(self, fields: EndTransactionFields) -> StoredRecord | Refusal:
        """Return the half message of a decision, or the reason why it is not in this log."""
        record = await read_named_record(fields.commit_log_offset, self._store.find_queue)
        if record is None or record.topic != HALF_TOPIC:
            return Refusal(ResponseCode.SYSTEM_ERROR, "Find prepared transaction message failed")
        if properties_of(record).get(PRODUCER_GROUP) != fields.producer_group:
            return Refusal(ResponseCode.SYSTEM_ERROR, "The producer group wrong")
        if record.offset != fields.tran_state_table_offset:
            return Refusal(ResponseCode.SYSTEM_ERROR, "The transaction state table offset wrong")
        has_id = fields.has_id and self._writer.queues.are_shared
        if has_id and not has_message_id(record, fields.transaction_id, fields.msg_id):
            return Refusal(ResponseCode.SYSTEM_ERROR, "another transaction is at this position here")
        return record

    def _find_refusal(self, half_offset: int) -> Refusal | None:
        if not self._is_ready:
            return Refusal(
                ResponseCode.SYSTEM_BUSY,
                "the broker is reading its transactions after a restart; it will check this one",
            )
        if half_offset in self._forwarding:
            return Refusal(ResponseCode.SYSTEM_BUSY, "the transaction is committed; its message is being forwarded")
        is_decided = half_offset in self._decided_ahead or (
            half_offset < self._read_end and half_offset not in self._undecided
        )
        return Refusal(ResponseCode.SYSTEM_ERROR, "the transaction was decided before") if is_decided else None

    async def _deliver(
        self, half_offset: int, record: StoredRecord, properties: dict[str, str]
    ) -> Stored | Refusal | None:
        """Store a committed message in its real queue; return None if another broker stored it."""
        first = first_position(record, properties)
        draft = to_message(record, properties)
        if isinstance(draft, Refusal):
            return draft
        if self._remote.is_forwarded(first):
            return None
        stored = self._writer.append(draft)
        if not _is_elsewhere(stored):
            return stored
        self._forwarding.add(half_offset)
        try:
            return await self._forward(draft, first)
        finally:
            self._forwarding.discard(half_offset)

    async def _forward(self, draft: Draft, first: int) -> Stored | Refusal | None:
        """Forward a committed message to the leader of its queue, or store it here if the queue moves here.

        The producer does not repeat its decision, so retry while the queue moves or its leader restarts.
        """
        for pause_ms in _FORWARD_PAUSES_MS:
            if await self._remote.forward(draft, first):
                return None
            await Pause(pause_ms)
            if self._remote.is_forwarded(first):
                return None
            stored = self._writer.append(draft)
            if not _is_elsewhere(stored):
                break
        return stored

    def _decide(self, half_offset: int, successor: Stored | None) -> None:
        """Write an op record that marks a half message as decided. One op for each: 4.x brokers read no other form.

        The op names the record that replaces the half message, if any. A power failure may lose that record and keep
        the op; the half message is then undecided.
        """
        op = Draft(
            topic=OP_HALF_TOPIC,
            queue_id=_ONLY_QUEUE,
            body=str(half_offset).encode(),
            properties={TAGS: REMOVE} | ({SUCCESSOR: str(successor.position)} if successor is not None else {}),
            born_ms=self._turn.now_ms,
            born_host=self._store_host,
        )
        stored = self._writer.append(op)
        assert not isinstance(stored, Refusal), "an op is small enough for any log"
        self._decisions.append(_Decision(stored.offset, half_offset))
        self._mark_decided(half_offset)

    def _mark_decided(self, half_offset: int) -> None:
        if half_offset >= self._read_end:
            self._decided_ahead.add(half_offset)
        else:
            self._undecided.pop(half_offset, None)

    # Timer and recovery.

    def start(self) -> None:
        """Start to read the transactions in the log, and then to check the undecided ones."""
        self._turn.set_timer(TIMER, self._turn.now_ms)

    def on_timer(self) -> None:
        """Start to handle new and due half messages, unless a run still waits or there are none."""
        if self._is_busy:
            return  # A run waits for the disk, and sets the timer when it ends.
        if self._is_ready and not self._undecided and not self._has_unread():
            self._commit_progress()
            self._turn.set_timer(TIMER, self._turn.now_ms + TICK_MS)
            return
        self._turn.spawn(self._run())

    def _has_unread(self) -> bool:
        halves = self._store.find_queue(HALF_TOPIC, 0)
        return halves is not None and halves.offset_max > self._read_end

    async def _run(self) -> None:
        now_ms = self._turn.now_ms
        self._is_busy = True
        try:
            has_all = self._is_ready or await self._read_decisions()
            remaining = await self._note_halves() if has_all else 0
            if remaining and not self._is_ready:
                self._is_ready = True
                self._turn.log("info", "transactions read", undecided=len(self._undecided))
            if self._is_ready and self._store.reserve_space() and self._store.is_writable:
                await self._check_due(remaining)
        finally:
            self._is_busy = False
        self._commit_progress()
        wait_ms = 0 if not remaining else _SOON_MS if self._to_check else TICK_MS
        self._turn.set_timer(TIMER, now_ms + wait_ms)

    async def _read_decisions(self) -> bool:
        """Read the next op records after a restart; return whether these were the last."""
        queue = self._store.find_queue(OP_HALF_TOPIC, 0)
        if queue is None:
            return True
        self._op_read_end = min(max(self._op_read_end, queue.offset_min), queue.offset_max)
        end = min(queue.offset_max, self._op_read_end + RUN_MAX)
        while self._op_read_end < end:
            entries = await read_entries(queue, self._op_read_end, min(_BATCH, end - self._op_read_end))
            if not entries:
                return False  # Retention deleted them; the next run begins at the start of the queue.
            for position, size, _ in entries:
                record = None
                if size != BLANK_ENTRY_SIZE:
                    record = await try_read_record(position, size)
                if record is not None and not await has_successor(record):
                    record = None
                for half_offset in named_offsets(record):
                    if half_offset >= self._read_end:
                        self._decisions.append(_Decision(self._op_read_end, half_offset))
                        self._decided_ahead.add(half_offset)
                self._op_read_end += 1
        return end == queue.offset_max

    async def _note_halves(self) -> int:
        """Note half messages that have become readable; return how many more this run may read."""
        queue = self._store.find_queue(HALF_TOPIC, 0)
        remaining = RUN_MAX
        if queue is None:
            return remaining
        self._read_end = min(max(self._read_end, queue.offset_min), queue.offset_max)
        while remaining and self._read_end < queue.offset_max:
            entries = await read_entries(queue, self._read_end, min(remaining, _BATCH))
            if not entries:
                return 0  # Retention deleted them; the next run begins at the start of the queue.
            for position, size, _ in entries:
                offset = self._read_end
                if offset in self._decided_ahead:
                    self._decided_ahead.discard(offset)
                elif size != BLANK_ENTRY_SIZE:
                    await self._note_half(offset, position, size)
                    remaining -= 1
                self._read_end = offset + 1
        return remaining

    async def _note_half(self, offset: int, position: int, size: int) -> None:
        """Note one undecided half message, and check it if it is a copy made for a check."""
        now_ms = self._turn.now_ms
        record = await try_read_record(position, size)
        if record is None:
            return  # Retention deleted it: there is nothing left to decide.
        if offset in self._decided_ahead:
            self._decided_ahead.discard(offset)
            return
        properties = properties_of(record)
        receiver = self._to_check.pop(offset, None)
        if receiver is None:
            due_ms = record.store_ms + check_delay_ms(properties, self._options.transaction_timeout_ms)
        else:
            due_ms = now_ms + self._options.transaction_check_interval_ms
            self._send_check(receiver, record, properties)
        self._undecided[offset] = HalfMessage(position, size, due_ms)

    # Checks.

    async def _check_due(self, remaining: int) -> None:
        """Prepare the check of every half message that is due."""
        now_ms = self._turn.now_ms
        due = [(offset, half) for offset, half in self._undecided.items() if half.due_ms <= now_ms]
        for offset, half in due[:remaining]:
            record = await try_read_record(half.position, half.size)
            if offset not in self._undecided or offset in self._forwarding:
                continue  # Decided while the bytes were fetched, or being forwarded to its leader.
            if record is None:
                self._undecided.pop(offset, None)
                continue
            self._check(offset, half, record)

    def _check(self, offset: int, half: HalfMessage, record: StoredRecord) -> None:
        properties = properties_of(record)
        times = parse_count(properties.get(_CHECK_TIMES), 0)
        if times >= self._options.transaction_check_max:
            self._discard_half(offset, record, properties)
            return
        receiver = self._find_receiver(properties, offset)
        if receiver is None:
            half.due_ms = self._turn.now_ms + self._options.transaction_check_interval_ms
            return
        first = str(first_position(record, properties))
        properties |= {_CHECK_TIMES: str(times + 1), FIRST_POSITION: first, "WAIT": "false"}
        draft = to_draft(record, properties, topic=HALF_TOPIC, queue_id=0)
        stored = self._writer.append(draft)
        if isinstance(stored, Refusal):
            self._discard_half(offset, record, properties)
            return
        self._decide(offset, stored)
        self._to_check[stored.offset] = receiver

    def _find_receiver(self, properties: dict[str, str], offset: int) -> Client | str | None:
        """Return the receiver of a check: a producer connected here, or a broker that has producers of the group."""
        group = properties.get(PRODUCER_GROUP, "")
        producers = self._remote.find_producers(group, properties.get(REAL_TOPIC, ""))
        if producers:
            return producers[offset % len(producers)]
        return self._remote.find_broker(group)

    def _send_check(self, receiver: Client | str, record: StoredRecord, properties: dict[str, str]) -> None:
        """Send a check (39): the half message in its committed form, and its position."""
        unique_key = properties.get(_UNIQUE_KEY)
        fields = CheckTransactionFields(
            tran_state_table_offset=record.offset,
            commit_log_offset=record.position,
            msg_id=unique_key,
            transaction_id=unique_key,
            offset_msg_id=format_message_id(record.store_host, record.position),
            topic=HALF_TOPIC,
            broker_name=self._options.name,
        )
        real_queue = pop_real_queue(dict(properties)) or (record.topic, record.queue_id)
        # Hide the property that only this broker uses.
        shown = format_properties({name: text for name, text in properties.items() if name != FIRST_POSITION})
        half = msgspec.structs.replace(record, topic=real_queue[0], queue_id=real_queue[1], properties=shown.encode())
        command = Command(
            code=RequestCode.CHECK_TRANSACTION_STATE,
            fields=to_fields(fields),
            body=encode_record(half),
        )
        if isinstance(receiver, Client):
            receiver.notify(self._turn, command)
        else:
            self._remote.send_check(receiver, command)

    def _discard_half(self, offset: int, record: StoredRecord, properties: dict[str, str]) -> None:
        """Move a half message that was never decided to a topic where an operator can find it."""
        self._topics.ensure(CHECK_MAX_TOPIC, 1)
        self._topics.save()
        draft = to_draft(record, properties, topic=CHECK_MAX_TOPIC, queue_id=0)
        stored = self._writer.append(draft)
        if not isinstance(stored, Refusal):
            self._decide(offset, stored)
        else:
            self._undecided.pop(offset, None)
        group = properties.get(PRODUCER_GROUP, "")
        self._turn.log("warning", "transaction never decided", offset=offset, group=group)

    def _commit_progress(self) -> None:
        """Commit the group's offsets past everything that is decided, as far as the log confirms it."""
        ops = self._store.find_queue(OP_HALF_TOPIC, 0)
        op_end = ops.offset_max if ops is not None else 0
        half_commit = next(iter(self._undecided), self._read_end)
        for decision in reversed(self._decisions):
            if decision.op_offset < op_end:
                break
            half_commit = min(half_commit, decision.half_offset)
        while (
            self._decisions and self._decisions[0].half_offset < half_commit and self._decisions[0].op_offset < op_end
        ):
            self._decisions.popleft()
        op_commit = self._decisions[0].op_offset if self._decisions else op_end
        for topic, offset in ((HALF_TOPIC, half_commit), (OP_HALF_TOPIC, op_commit)):
            if offset != (self._offsets.find(TRANSACTION_GROUP, topic, _ONLY_QUEUE) or 0):
                self._offsets.commit(TRANSACTION_GROUP, topic, _ONLY_QUEUE, LogicalOffset(offset))


def _is_elsewhere(stored: Stored | Refusal) -> bool:
    return isinstance(stored, Refusal) and stored.code == ResponseCode.NOT_LEADER_FOR_QUEUE
