"""Taking messages: 10, 310 and the batches of 320.

The unit is a run: the like frames of one read. Plain messages, nearly all there are, go straight from the receive
buffer into the log's staging, with no object of their own but the decoded header. Whatever needs a second look (a
delay, a transaction, a retry topic, an unknown topic) is copied into a `Draft` and takes the careful path.

    run ─> decode ─> target (topic, queue) ─┬─ plain ─────> store.stage ─> answer from a template
                                            └─ careful ──> Draft ─> writer ─> answer

Nothing here writes: the core writes once, when the whole read has been staged.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from holdfast.broker.careful_send import CarefulSends
from holdfast.broker.options import BrokerOptions
from holdfast.broker.request import Refusal
from holdfast.broker.stats import BrokerStats
from holdfast.broker.topics import TopicTable
from holdfast.machine.effects import Piece
from holdfast.model.errors import DiskFailed, RecordRefused, RemoteProtocolError
from holdfast.model.java_hash import java_hash
from holdfast.model.topic import NOT_SENDABLE_TOPICS, RETRY_PREFIX, TopicConfig
from holdfast.store.message_store import MessageStore, QueueLog
from holdfast.wire.batch import split_items
from holdfast.wire.codes import ResponseCode
from holdfast.wire.command import ONE_WAY, RESPONSE, Command, encode_command
from holdfast.wire.fields import to_fields
from holdfast.wire.frame import JSON
from holdfast.wire.properties import PROPERTIES_SIZE_MAX, find_property
from holdfast.wire.record import TRANSACTION_MASK
from holdfast.wire.send import PREFIXES, SendAnswer, SendHeader, answer_template

_MULTI_TAG: Final = 0x2
_RECORD_REST_MAX: Final = 1024  # what a record is besides body and properties, at most
_RECORD_ENDS_MAX: Final = 20  # a sender's IPv6 host, and the blank behind the last record of a file
# Properties that make a message more than plain.
_DELAY: Final = "DELAY\x01"
_TIMER: Final = "TIMER_"
_UNIQUE: Final = "UNIQ_KEY\x01"
_TAGS: Final = "TAGS\x01"


class _Target(msgspec.Struct, frozen=True):
    """A topic that plain messages may be written to."""

    queues: list[QueueLog]
    sys_flag: int  # bits that the topic adds to each message


class Origin(msgspec.Struct, frozen=True):
    """Where a run came from."""

    serializer: int
    born_host: bytes
    now_ms: int
    version: int = 0


class Sends:
    """The broker's entrance."""

    def __init__(
        self,
        options: BrokerOptions,
        store: MessageStore,
        topics: TopicTable,
        careful: CarefulSends,
        stats: BrokerStats,
        *,
        store_host: bytes,
    ) -> None:
        self._options = options
        self._store = store
        self._topics = topics
        self._careful = careful
        self._stats = stats
        self._template = answer_template(store_host)
        self._store_host_hex = store_host.hex().upper()
        # Larger ones, in a store of small files, are refused by the log itself: they take the careful path.
        room = store.log_file_size - PROPERTIES_SIZE_MAX - _RECORD_REST_MAX
        self._body_size_max = min(options.message_size_max, room)
        self._cluster = f"CLUSTER\x01{options.cluster}\x02".encode()
        self._targets: dict[str, _Target | None] = {}
        self._targets_version: object = None

    def take_run(
        self, headers: Sequence[SendHeader], bodies: Sequence[Piece], origin: Origin, answers: list[Piece]
    ) -> None:
        """Stage the messages of one run and append their answers to *answers*, in order."""
        refusal = self._careful.find_refusal(origin.now_ms)
        stage, template, serializer = self._store.stage, self._template, origin.serializer
        born_host, now_ms = origin.born_host, origin.now_ms
        body_size_max, cluster = self._body_size_max, self._cluster
        topic, target = "", None
        taken, taken_size = 0, 0
        for header, body in zip(headers, bodies, strict=True):
            fields = header.fields
            if fields.topic != topic:
                if taken:
                    self._stats.count_puts(topic, taken, taken_size)
                    taken, taken_size = 0, 0
                topic = fields.topic
                target = self._find_target(topic)
            properties, queue_id, body_size = fields.properties, fields.queue_id, len(body)
            if (
                refusal is not None
                or target is None
                or not 0 <= queue_id < len(target.queues)
                or fields.sys_flag & TRANSACTION_MASK
                or fields.batch
                or _DELAY in properties
                or _TIMER in properties
                or _UNIQUE not in properties
                or body_size > body_size_max
                or serializer != JSON
            ):
                self._take_carefully(header, body, origin, refusal, answers)
                continue
            stored_properties = properties.encode()
            if not properties.endswith("\x02"):
                stored_properties += b"\x02"
            stored_properties += cluster
            if len(stored_properties) > PROPERTIES_SIZE_MAX:
                self._take_carefully(header, body, origin, refusal, answers)
                continue
            position, offset = stage(
                target.queues[queue_id],
                body,
                stored_properties,
                fields.flag,
                fields.sys_flag | target.sys_flag,
                fields.born_timestamp,
                born_host,
                _tags_code(properties) if _TAGS in properties else 0,
                now_ms,
                fields.reconsume_times,
            )
            taken += 1
            taken_size += body_size
            if not header.flag & ONE_WAY:
                answer = template % (queue_id, position, offset, header.opaque)
                answers.append(PREFIXES[len(answer)] + answer)
        if taken:
            self._stats.count_puts(topic, taken, taken_size)

    def _find_target(self, topic: str) -> _Target | None:
        """Return where plain messages of *topic* go, or None when each needs a careful look."""
        if self._targets_version is not self._topics.data_version:
            self._targets.clear()
            self._targets_version = self._topics.data_version
        if topic in self._targets:
            return self._targets[topic]
        config = self._topics.find(topic)
        target = None
        if config is not None and is_plain(config):
            target = self._targets[topic] = self._to_target(config)
        return target

    def _to_target(self, config: TopicConfig) -> _Target:
        count = max(config.read_queues, config.write_queues)
        return _Target(
            queues=[self._store.queue(config.name, queue_id) for queue_id in range(count)],
            sys_flag=_MULTI_TAG if config.filter_type == "MULTI_TAG" else 0,
        )

    def _take_carefully(
        self, header: SendHeader, body: Piece, origin: Origin, refusal: Refusal | None, answers: list[Piece]
    ) -> None:
        """Take a message that is not plain, or say why not."""
        result: SendAnswer | Refusal
        try:
            if refusal is not None:
                result = refusal
            elif header.fields.batch:
                result = self._take_batch(header, body, origin)
            else:
                result = self._careful.take(header, bytes(body), origin.born_host, origin.now_ms)
                if not isinstance(result, Refusal):
                    self._stats.count_puts(header.fields.topic, 1, len(body))
        except RecordRefused as error:
            result = Refusal(ResponseCode.MESSAGE_ILLEGAL, str(error))
        except DiskFailed as error:  # A topic that had to be created could not be kept.
            result = Refusal(ResponseCode.SERVICE_NOT_AVAILABLE, str(error))
        if not header.flag & ONE_WAY:
            answers.append(_encode(result, header.opaque, origin.serializer))

    def _take_batch(self, header: SendHeader, body: Piece, origin: Origin) -> SendAnswer | Refusal:
        """Stage the messages of a batch one behind the other; all of them or none."""
        fields = header.fields
        prepared = self._careful.prepare_batch(fields, origin.now_ms)
        if isinstance(prepared, Refusal):
            return prepared
        try:
            items = split_items(body)
        except RemoteProtocolError as error:
            return Refusal(ResponseCode.MESSAGE_ILLEGAL, str(error))
        if not items:
            return Refusal(ResponseCode.MESSAGE_ILLEGAL, "the batch is empty")
        queue = self._store.queue(fields.topic, prepared)
        room = self._store.log_file_size - queue.head_size - _RECORD_ENDS_MAX
        for _, item_body, item_properties in items:
            body_size, properties_size = len(item_body), len(item_properties)
            is_large = body_size > self._options.message_size_max or properties_size > PROPERTIES_SIZE_MAX
            if is_large or body_size + properties_size > room:
                return Refusal(ResponseCode.MESSAGE_ILLEGAL, "a message of the batch is larger than allowed")
        positions: list[int] = []
        first_offset = None
        stage = self._store.stage
        for flag, item_body, item_properties in items:
            text = item_properties.decode(errors="replace")
            position, offset = stage(
                queue,
                item_body,
                item_properties,
                flag,
                fields.sys_flag,
                fields.born_timestamp,
                origin.born_host,
                _tags_code(text) if _TAGS in text else 0,
                origin.now_ms,
                fields.reconsume_times,
            )
            positions.append(position)
            if first_offset is None:
                first_offset = offset
        assert first_offset is not None
        self._stats.count_puts(fields.topic, len(items), sum(len(item_body) for _, item_body, _ in items))
        prefix = self._store_host_hex
        return SendAnswer(
            msg_id=",".join([f"{prefix}{position:016X}" for position in positions]),
            queue_id=prepared,
            queue_offset=first_offset,
        )


def is_plain(config: TopicConfig) -> bool:
    """Return whether messages of a topic can be stored without a second look at each."""
    return (
        config.name not in NOT_SENDABLE_TOPICS
        and not config.name.startswith(RETRY_PREFIX)
        and not config.has_batch_index
    )


def _tags_code(properties: str) -> int:
    """Return the hash of the TAGS property. Only called when the name occurs somewhere in the text."""
    before, _, after = properties.rpartition(_TAGS)
    if before and before[-1] != "\x02":
        return java_hash(find_property(properties, "TAGS") or "")
    return java_hash(after.partition("\x02")[0])


def _encode(result: SendAnswer | Refusal, opaque: int, serializer: int) -> bytes:
    if isinstance(result, Refusal):
        command = Command(code=result.code, opaque=opaque, flag=RESPONSE, remark=result.remark, serializer=serializer)
    else:
        command = Command(code=0, opaque=opaque, flag=RESPONSE, fields=to_fields(result), serializer=serializer)
    return encode_command(command)
