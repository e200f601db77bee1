"""Handles sends: 10, 310 and the batches of 320.

The unit of work is a run: the like frames of one turn. Nearly all messages are plain. They go straight from the receive
buffer into the log's staging area, without any object per message except the decoded header. A message that needs more
checks (a delay, a transaction, a retry topic, an unknown topic) is copied into a `Draft` and handled by the slow path.

    run ─> decode ─> target (topic, queue) ─┬─ plain ─────> store.stage ─> answer from a template
                                            ├─ a batch that stays one record ─> staged alone, answer from a template
                                            ├─ slow path ─> Draft ─> writer ─> answer
                                            └─ a logical queue that is not open here ─> `away_indexes`, or refused

Nothing here writes to disk: the core writes once, after the whole turn has been staged.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from holdfast.broker.flow.request import Refusal
from holdfast.broker.messages.inner_batches import InnerBatch, claims_inner_batch, validate_inner_batch
from holdfast.broker.messages.send_gate import SendGate
from holdfast.broker.options import BrokerOptions
from holdfast.broker.produce.batch_send import BatchSends, find_tags, tags_code
from holdfast.broker.produce.slow_send import SlowSends
from holdfast.broker.relay.auto_create_guard import AutoCreateGuard
from holdfast.broker.relay.relay import Relay
from holdfast.broker.tables.stats import BrokerStats
from holdfast.machine.effects import Piece
from holdfast.machine.turn import Turn
from holdfast.model.errors import DiskFailed, RecordRefused
from holdfast.model.queue import LogicalQueueId
from holdfast.model.topic import NOT_SENDABLE_TOPICS, RETRY_PREFIX, TopicConfig
from holdfast.store.log.commit_log import RecordDraft
from holdfast.store.message_store import QueueIndex
from holdfast.wire.frames.codes import ResponseCode
from holdfast.wire.frames.command import ONE_WAY, RESPONSE, Command, encode_command
from holdfast.wire.frames.fields import to_fields
from holdfast.wire.frames.frame import JSON
from holdfast.wire.frames.host import pack_host
from holdfast.wire.records.properties import PROPERTIES_SIZE_MAX, VALUE_END
from holdfast.wire.records.record import INNER_BATCH, TRANSACTION_MASK
from holdfast.wire.requests.send import (
    PREFIXES,
    SendAnswer,
    SendHeader,
    answer_template,
    inner_answer_template,
)
from holdfast.wire.requests.sink import SINK
from holdfast.wire.requests.table import Relaying

_MULTI_TAG: Final = 0x2
_RECORD_REST_MAX: Final = 1024  # maximum size of a record without body and properties
_NOT_PLAIN: Final = TRANSACTION_MASK | INNER_BATCH
# Properties of messages that are not plain.
_DELAY: Final = "DELAY\x01"
_TIMER: Final = "TIMER_"
_INNER: Final = "INNER_NUM\x01"
_UNIQUE: Final = "UNIQ_KEY\x01"
_PROPERTY_END: Final = ord(VALUE_END)
_ID: Final = re.compile(r"[0-9A-Za-z]{1,64}")  # ids that an answer can hold without escaping
# In characters, so that the properties still fit into a record after encoding and additions.
_PROPERTIES_HOT_MAX: Final = 7 * 1024


class _Target(msgspec.Struct, frozen=True):
    """A topic that plain messages may be written to.

    Attributes:
        queues: Physical queues by the number that senders use; only of queues that are open here.
        deltas: The number to add to the physical offsets of each queue; None if all of them are 0.
        sys_flag: Bits that the topic adds to each message.
    """

    queues: Mapping[LogicalQueueId, QueueIndex]
    deltas: Mapping[LogicalQueueId, int] | None
    sys_flag: int


_NO_TARGET: Final = _Target(queues={}, deltas=None, sys_flag=0)


class FastSends:
    """Stages the messages of runs.

    Attributes:
        away_indexes: Indexes in the run of sends for other brokers; the caller drains and diverts them.
    """

    def __init__(
        self,
        options: BrokerOptions,
        gate: SendGate,
        slow_sends: SlowSends,
        batches: BatchSends,
        stats: BrokerStats,
        relay: Relay,
        guard: AutoCreateGuard,
        turn: Turn,
    ) -> None:
        self._turn = turn
        self._options = options
        self._gate = gate
        self._store = store = slow_sends.writer.store
        self._topics = slow_sends.topics
        self._queues = slow_sends.writer.queues
        self._mappings = self._queues.mappings
        self._relay = relay
        self._guard = guard
        self.away_indexes: list[int] = []
        self._slow_sends = slow_sends
        self._stats = stats
        store_host = pack_host(options.address)
        self._template = answer_template(store_host)
        self._inner_template = inner_answer_template(store_host)
        self._batches = batches
        # In a store of small files the log refuses larger messages: the slow path returns that refusal.
        space = store.log_file_size - PROPERTIES_SIZE_MAX - _RECORD_REST_MAX
        self._body_size_max = min(options.message_size_max, space)
        self._cluster = f"CLUSTER\x01{options.cluster}\x02".encode()
        self._tags = ("", 0)  # the end of the last message's properties, and the hash of its tags
        self._targets: dict[str, _Target] = {}
        self._targets_version: object = None
        self._mapping_version = 0

    def handle_run(
        self,
        headers: Sequence[SendHeader],
        bodies: Sequence[Piece],
        born_hosts: Sequence[bytes],
        serializer: int = JSON,
    ) -> list[Piece]:
        """Stage the messages of one run and return their answers in order; empty for a one-way send."""
        answers: list[Piece] = []
        plain: list[SendHeader] = []  # the plain messages to stage next, and below their records
        drafts: list[RecordDraft] = []
        refusal = self._gate.find_refusal()
        is_hot = refusal is None and serializer == JSON
        body_size_max, cluster = self._body_size_max, self._cluster
        topic, target, find_queue = "", _NO_TARGET, _NO_TARGET.queues.get
        tags, code = self._tags
        for header, body, born_host in zip(headers, bodies, born_hosts, strict=True):
            fields = header.fields
            if fields.topic != topic:
                if plain:
                    self._stage_plain(topic, target, plain, drafts, answers)
                    plain, drafts = [], []
                topic = fields.topic
                target = self._find_target(topic) if is_hot else _NO_TARGET
                find_queue = target.queues.get
            properties, queue, sys_flag = fields.properties, find_queue(fields.queue_id), fields.sys_flag
            if (
                queue is None
                or sys_flag & _NOT_PLAIN
                or fields.batch
                or _DELAY in properties
                or _UNIQUE not in properties
                # The search for one letter is the cheapest.
                or ("M" in properties and (_TIMER in properties or _INNER in properties))
                or len(properties) > _PROPERTIES_HOT_MAX
                or len(body) > body_size_max
            ):
                if plain:  # Messages are stored in the order in which they came.
                    self._stage_plain(topic, target, plain, drafts, answers)
                    plain, drafts = [], []
                answer = None
                if queue is not None and queue.accepts_batches:
                    answer = self._stage_inner(header, body, born_host, queue, target)
                if answer is None:
                    index = len(answers)
                    answer = self._handle_slow(header, body, born_host, serializer, refusal, index, queue)
                answers.append(answer)
                continue
            stored_properties = properties.encode()
            stored_properties += cluster if stored_properties[-1] == _PROPERTY_END else b"\x02" + cluster
            if not tags or not properties.endswith(tags):
                tags, code = self._tags = find_tags(properties)
            plain.append(header)
            drafts.append((
                queue, body, stored_properties, fields.flag, sys_flag | target.sys_flag,
                fields.born_timestamp, born_host, code, fields.reconsume_times, 0,
            ))  # fmt: skip
        if plain:
            self._stage_plain(topic, target, plain, drafts, answers)
        return answers

    def drain_away(self) -> list[int]:
        """Return the indexes of the sends for other brokers, and clear them."""
        drained, self.away_indexes = self.away_indexes, []
        return drained

    def _stage_plain(
        self,
        topic: str,
        target: _Target,
        headers: list[SendHeader],
        drafts: list[RecordDraft],
        answers: list[Piece],
    ) -> None:
        """Stage consecutive plain messages of one topic, and answer them from the template."""
        template = self._template
        if target.deltas is not None:
            self._stage_logical(target.deltas, headers, drafts, answers)
        else:
            staged = self._store.stage_run(drafts, self._turn.now_ms)
            answers += [
                b""
                if header.flag & ONE_WAY
                else PREFIXES[len(answer := template % (header.fields.queue_id, position, offset, header.opaque))]
                + answer
                for header, (position, offset) in zip(headers, staged, strict=True)
            ]
        self._stats.count_puts(topic, len(drafts), sum([len(draft[1]) for draft in drafts]))

    def _stage_logical(
        self,
        deltas: Mapping[LogicalQueueId, int],
        headers: list[SendHeader],
        drafts: list[RecordDraft],
        answers: list[Piece],
    ) -> None:
        """Stage consecutive plain messages for logical queues, and answer them from the template."""
        template = self._template
        for header, (position, offset) in zip(headers, self._store.stage_run(drafts, self._turn.now_ms), strict=True):
            if header.flag & ONE_WAY:
                answers.append(b"")
            else:
                queue_id = header.fields.queue_id
                answer = template % (queue_id, position, offset + deltas[queue_id], header.opaque)
                answers.append(PREFIXES[len(answer)] + answer)

    def _stage_inner(
        self, header: SendHeader, body: Piece, born_host: bytes, queue: QueueIndex, target: _Target
    ) -> Piece | None:
        """Stage a batch as one record, and answer it from the template; return None if it needs the slow path."""
        fields = header.fields
        size = len(body)
        if size > self._body_size_max or len(fields.properties) > _PROPERTIES_HOT_MAX or SINK in fields.properties:
            return None
        inner = validate_inner_batch(fields, body, accepts_batches=True)
        if not isinstance(inner, InnerBatch) or not _ID.fullmatch(inner.unique_key):
            return None
        properties = inner.properties
        draft: RecordDraft = (
            queue, body, properties.encode() + self._cluster, fields.flag, inner.sys_flag | target.sys_flag,
            fields.born_timestamp, born_host, tags_code(properties), fields.reconsume_times, 0,
        )  # fmt: skip
        ((position, offset),) = self._store.stage_run((draft,), self._turn.now_ms)
        self._stats.count_puts(fields.topic, inner.count, size)
        if header.flag & ONE_WAY:
            return b""
        queue_id = fields.queue_id
        if target.deltas is not None:
            offset += target.deltas[queue_id]
        answer = self._inner_template % (queue_id, position, offset, inner.unique_key.encode(), header.opaque)
        return PREFIXES[len(answer)] + answer

    def _find_target(self, topic: str) -> _Target:
        """Return the target of plain messages of *topic*; it has no queues if all messages need the slow path."""
        if self._targets_version is not self._topics.data_version or self._mapping_version != self._mappings.version:
            self._targets.clear()
            self._targets_version = self._topics.data_version
            self._mapping_version = self._mappings.version
        if topic in self._targets:
            return self._targets[topic]
        config = self._topics.find(topic)
        if config is None or not is_plain(config):
            return _NO_TARGET
        target = self._targets[topic] = self._to_target(config)
        return target

    def _to_target(self, config: TopicConfig) -> _Target:
        topic = config.name
        sys_flag = _MULTI_TAG if config.filter_type == "MULTI_TAG" else 0
        targets = {
            number: target
            for number, target in self._queues.targets(topic).items()
            if not self._relay.is_away((topic, number), Relaying.SEND)
        }
        deltas = {number: target.delta for number, target in targets.items()}
        return _Target(
            {number: target.index for number, target in targets.items()},
            deltas if any(deltas.values()) else None,
            sys_flag,
        )

    def _handle_slow(
        self,
        header: SendHeader,
        body: Piece,
        born_host: bytes,
        serializer: int,
        refusal: Refusal | None,
        run_index: int,
        queue: QueueIndex | None,
    ) -> bytes:
        """Store a message that is not plain, or refuse it; return its answer. *queue* is its queue if open here."""
        result: SendAnswer | Refusal
        try:
            if queue is None and (
                self._slow_sends.is_away(header.fields) or self._guard.is_create_unsafe(header.fields)
            ):
                self.away_indexes.append(run_index)
                return b""
            if refusal is not None:
                result = refusal
            elif header.fields.batch or claims_inner_batch(header.fields):
                result = self._batches.stage(header.fields, body, born_host)
            else:
                result = self._slow_sends.stage(header, bytes(body), born_host)
                if not isinstance(result, Refusal):
                    self._stats.count_puts(header.fields.topic, 1, len(body))
        except RecordRefused as error:
            result = Refusal(ResponseCode.MESSAGE_ILLEGAL, str(error))
        except DiskFailed as error:  # The new topic could not be saved.
            result = Refusal(ResponseCode.SERVICE_NOT_AVAILABLE, str(error))
        return b"" if header.flag & ONE_WAY else _encode(result, header.opaque, serializer)


def is_plain(config: TopicConfig) -> bool:
    """Return whether messages of a topic can be stored without further checks of each."""
    return config.name not in NOT_SENDABLE_TOPICS and not config.name.startswith(RETRY_PREFIX)


def _encode(result: SendAnswer | Refusal, opaque: int, serializer: int) -> bytes:
    if isinstance(result, Refusal):
        command = Command(code=result.code, opaque=opaque, flag=RESPONSE, remark=result.remark, serializer=serializer)
    else:
        command = Command(code=0, opaque=opaque, flag=RESPONSE, fields=to_fields(result), serializer=serializer)
    return encode_command(command)
