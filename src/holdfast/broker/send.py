"""Taking messages: 10, 310 and the batches of 320.

The unit is a run: the like frames of one turn. Plain messages, nearly all there are, go straight from the receive
buffer into the log's staging, with no object of their own but the decoded header. Whatever needs a second look (a
delay, a transaction, a retry topic, an unknown topic) is copied into a `Draft` and takes the careful path.

    run ─> decode ─> target (topic, queue) ─┬─ plain ─────> store.stage ─> answer from a template
                                            ├─ careful ──> Draft ─> writer ─> answer
                                            └─ a logical queue that is not open here ─> `away`, or refused

Nothing here writes: the core writes once, when the whole turn has been staged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Final

import msgspec

from holdfast.broker.careful_send import CarefulSends
from holdfast.broker.mappings import Mappings
from holdfast.broker.options import BrokerOptions
from holdfast.broker.request import Refusal
from holdfast.broker.sink_book import SinkBook
from holdfast.broker.stats import BrokerStats
from holdfast.broker.topics import TopicTable
from holdfast.machine.effects import Piece
from holdfast.model.errors import DiskFailed, RecordRefused, RemoteProtocolError
from holdfast.model.java_hash import java_hash
from holdfast.model.topic import NOT_SENDABLE_TOPICS, RETRY_PREFIX, TopicConfig
from holdfast.store.commit_log import RecordDraft
from holdfast.store.message_store import MessageStore, QueueLog
from holdfast.wire.batch import split_items
from holdfast.wire.codes import ResponseCode
from holdfast.wire.command import ONE_WAY, RESPONSE, Command, encode_command
from holdfast.wire.fields import to_fields
from holdfast.wire.frame import JSON
from holdfast.wire.properties import PROPERTIES_SIZE_MAX, VALUE_END, find_property
from holdfast.wire.record import TRANSACTION_MASK
from holdfast.wire.send import PREFIXES, SendAnswer, SendFields, SendHeader, answer_template
from holdfast.wire.sink import SINK, SinkStamp, find_stamp

_MULTI_TAG: Final = 0x2
_RECORD_REST_MAX: Final = 1024  # what a record is besides body and properties, at most
_RECORD_ENDS_MAX: Final = 20  # a sender's IPv6 host, and the blank behind the last record of a file
# Properties that make a message more than plain.
_DELAY: Final = "DELAY\x01"
_TIMER: Final = "TIMER_"
_UNIQUE: Final = "UNIQ_KEY\x01"
_TAGS: Final = "TAGS\x01"
_PROPERTY_END: Final = ord(VALUE_END)
_tag_hash = lru_cache(512)(java_hash)  # Topics have few tags.
# Of properties in characters, so that they are no more than a record can hold when encoded and added to.
_PROPERTIES_HOT_MAX: Final = 7 * 1024


class _Target(msgspec.Struct, frozen=True):
    """A topic that plain messages may be written to.

    Attributes:
        queues: By the number that senders use: of a static topic, logical queues that are open here.
        deltas: Of a static topic: what is added to the physical offsets of each.
        sys_flag: Bits that the topic adds to each message.
    """

    queues: dict[int, QueueLog]
    deltas: dict[int, int] | None
    sys_flag: int


_NO_TARGET: Final = _Target(queues={}, deltas=None, sys_flag=0)


class Sends:
    """The broker's entrance.

    Attributes:
        is_away: Says whether a logical queue takes no sends here and now.
        away: Where in its run each send stood that is for another broker: whoever passes them on takes them out.
            None when nobody does: then they are refused.
        sinks: What was written by those who want every row once.
    """

    def __init__(
        self,
        options: BrokerOptions,
        store: MessageStore,
        topics: TopicTable,
        mappings: Mappings,
        careful: CarefulSends,
        stats: BrokerStats,
        *,
        store_host: bytes,
    ) -> None:
        self._options = options
        self._store = store
        self._topics = topics
        self._mappings = mappings
        self.is_away: Callable[[str, int], bool] = lambda topic, queue: mappings.place(topic, queue).state != "open"
        self.away: list[int] | None = None
        self.sinks: SinkBook | None = None
        self._careful = careful
        self._stats = stats
        self._template = answer_template(store_host)
        self._store_host_hex = store_host.hex().upper()
        # Larger ones, in a store of small files, are refused by the log itself: they take the careful path.
        room = store.log_file_size - PROPERTIES_SIZE_MAX - _RECORD_REST_MAX
        self._body_size_max = min(options.message_size_max, room)
        self._cluster = f"CLUSTER\x01{options.cluster}\x02".encode()
        self._targets: dict[str, _Target] = {}
        self._targets_version: object = None
        self._mapping_version = 0

    def take_run(
        self,
        headers: Sequence[SendHeader],
        bodies: Sequence[Piece],
        born_hosts: Sequence[bytes],
        now_ms: int,
        serializer: int = JSON,
    ) -> list[Piece]:
        """Stage the messages of one run and return their answers, in order: nothing for one that wants none."""
        answers: list[Piece] = []
        plain: list[SendHeader] = []  # and what their records are made of
        drafts: list[RecordDraft] = []
        refusal = self._careful.find_refusal(now_ms)
        is_hot = refusal is None and serializer == JSON
        body_size_max, cluster = self._body_size_max, self._cluster
        topic, target, find_queue = "", _NO_TARGET, _NO_TARGET.queues.get
        for header, body, born_host in zip(headers, bodies, born_hosts, strict=True):
            fields = header.fields
            if fields.topic != topic:
                if plain:
                    self._stage_plain(topic, target, plain, drafts, now_ms, answers)
                    plain, drafts = [], []
                topic = fields.topic
                target = self._find_target(topic) if is_hot else _NO_TARGET
                find_queue = target.queues.get
            properties, queue, sys_flag = fields.properties, find_queue(fields.queue_id), fields.sys_flag
            if (
                queue is None
                or sys_flag & TRANSACTION_MASK
                or fields.batch
                or _DELAY in properties
                or _TIMER in properties
                or _UNIQUE not in properties
                or len(properties) > _PROPERTIES_HOT_MAX
                or len(body) > body_size_max
            ):
                if plain:  # Messages are stored in the order in which they came.
                    self._stage_plain(topic, target, plain, drafts, now_ms, answers)
                    plain, drafts = [], []
                answers.append(self._take_carefully(header, body, born_host, now_ms, serializer, refusal, len(answers)))
                continue
            stored_properties = properties.encode()
            stored_properties += cluster if stored_properties[-1] == _PROPERTY_END else b"\x02" + cluster
            plain.append(header)
            drafts.append((
                queue, body, stored_properties, fields.flag, sys_flag | target.sys_flag,
                fields.born_timestamp, born_host, _tags_code(properties) if _TAGS in properties else 0,
                fields.reconsume_times, 0,
            ))  # fmt: skip
        if plain:
            self._stage_plain(topic, target, plain, drafts, now_ms, answers)
        return answers

    def _stage_plain(
        self,
        topic: str,
        target: _Target,
        headers: list[SendHeader],
        drafts: list[RecordDraft],
        now_ms: int,
        answers: list[Piece],
    ) -> None:
        """Stage neighbours of a run, all of one topic, and answer them from the template."""
        template = self._template
        if target.deltas is not None:
            self._stage_logical(target.deltas, headers, drafts, now_ms, answers)
            self._stats.count_puts(topic, len(drafts), sum([len(draft[1]) for draft in drafts]))
            return
        for header, (position, offset) in zip(headers, self._store.stage_run(drafts, now_ms), strict=True):
            if header.flag & ONE_WAY:
                answers.append(b"")
            else:
                answer = template % (header.fields.queue_id, position, offset, header.opaque)
                answers.append(PREFIXES[len(answer)] + answer)
        self._stats.count_puts(topic, len(drafts), sum([len(draft[1]) for draft in drafts]))

    def _stage_logical(
        self,
        deltas: dict[int, int],
        headers: list[SendHeader],
        drafts: list[RecordDraft],
        now_ms: int,
        answers: list[Piece],
    ) -> None:
        """Do the same for logical queues."""
        template = self._template
        for header, (position, offset) in zip(headers, self._store.stage_run(drafts, now_ms), strict=True):
            if header.flag & ONE_WAY:
                answers.append(b"")
            else:
                queue_id = header.fields.queue_id
                answer = template % (queue_id, position, offset + deltas[queue_id], header.opaque)
                answers.append(PREFIXES[len(answer)] + answer)

    def _find_target(self, topic: str) -> _Target:
        """Return where plain messages of *topic* go; a target without queues when each needs a careful look."""
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
        if not self._mappings.is_static(topic):
            count = max(config.read_queues, config.write_queues)
            return _Target({number: self._store.queue(topic, number) for number in range(count)}, None, sys_flag)
        places = {number: self._mappings.place(topic, number) for number in self._mappings.led(topic)}
        queues = {
            number: place.queue_log
            for number, place in places.items()
            if place.queue_log is not None and not self.is_away(topic, number)
        }
        return _Target(queues, {number: places[number].delta for number in queues}, sys_flag)

    def _take_carefully(
        self,
        header: SendHeader,
        body: Piece,
        born_host: bytes,
        now_ms: int,
        serializer: int,
        refusal: Refusal | None,
        place_in_run: int,
    ) -> bytes:
        """Take a message that is not plain, or say why not."""
        result: SendAnswer | Refusal
        try:
            if self._mappings.is_static(header.fields.topic):
                away = self._careful.find_away(header.fields, self.is_away)
                if away is not None and away.code == ResponseCode.NOT_LEADER_FOR_QUEUE and self.away is not None:
                    self.away.append(place_in_run)
                    return b""
                refusal = refusal or away
            if refusal is not None:
                result = refusal
            elif header.fields.batch:
                result = self._take_batch(header, body, born_host, now_ms)
            else:
                result = self._careful.take(header, bytes(body), born_host, now_ms)
                if not isinstance(result, Refusal):
                    self._stats.count_puts(header.fields.topic, 1, len(body))
        except RecordRefused as error:
            result = Refusal(ResponseCode.MESSAGE_ILLEGAL, str(error))
        except DiskFailed as error:  # A topic that had to be created could not be kept.
            result = Refusal(ResponseCode.SERVICE_NOT_AVAILABLE, str(error))
        return b"" if header.flag & ONE_WAY else _encode(result, header.opaque, serializer)

    def _take_batch(self, header: SendHeader, body: Piece, born_host: bytes, now_ms: int) -> SendAnswer | Refusal:
        """Stage the messages of a batch one behind the other; all of them or none."""
        fields = header.fields
        prepared = self._careful.prepare_batch(fields, now_ms)
        if isinstance(prepared, Refusal):
            return prepared
        try:
            items = split_items(body)
        except RemoteProtocolError as error:
            return Refusal(ResponseCode.MESSAGE_ILLEGAL, str(error))
        if not items:
            return Refusal(ResponseCode.MESSAGE_ILLEGAL, "the batch is empty")
        queue, delta = self._careful.locate(fields.topic, prepared)
        room = self._store.log_file_size - queue.head_size - _RECORD_ENDS_MAX
        for _, item_body, item_properties in items:
            body_size, properties_size = len(item_body), len(item_properties)
            is_large = body_size > self._options.message_size_max or properties_size > PROPERTIES_SIZE_MAX
            if is_large or body_size + properties_size > room:
                return Refusal(ResponseCode.MESSAGE_ILLEGAL, "a message of the batch is larger than allowed")
        stamp = self._find_stamp(fields, prepared, len(items))
        if isinstance(stamp, Refusal):
            return stamp
        drafts: list[RecordDraft] = []
        for flag, item_body, item_properties in items:
            text = item_properties.decode(errors="replace")
            drafts.append((
                queue, item_body, item_properties, flag, fields.sys_flag, fields.born_timestamp, born_host,
                _tags_code(text) if _TAGS in text else 0, fields.reconsume_times, 0,
            ))  # fmt: skip
        staged = self._store.stage_run(drafts, now_ms)
        if stamp is not None and self.sinks is not None:
            self.sinks.note(fields.topic, prepared, stamp, staged[-1][0], now_ms)
        self._stats.count_puts(fields.topic, len(items), sum([len(item_body) for _, item_body, _ in items]))
        prefix = self._store_host_hex
        return SendAnswer(
            msg_id=",".join([f"{prefix}{position:016X}" for position, _ in staged]),
            queue_id=prepared,
            queue_offset=staged[0][1] + delta,
        )

    def _find_stamp(self, fields: SendFields, queue: int, count: int) -> SinkStamp | Refusal | None:
        """Return what a batch says of its rows, if each is wanted once; or why it cannot be taken so."""
        if SINK not in fields.properties or self.sinks is None:
            return None
        stamp = find_stamp(fields.properties)
        if stamp is None or stamp.count != count or not self._mappings.is_static(fields.topic):
            reason = (
                f"rows cannot be counted in {fields.topic}: the batch says something else, or it is no static topic"
            )
            return Refusal(ResponseCode.SINK_REFUSED, reason)
        return self.sinks.judge(fields.topic, queue, stamp) or stamp


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
    if before and before[-1] != VALUE_END:
        return _tag_hash(find_property(properties, "TAGS") or "")
    return _tag_hash(after.partition(VALUE_END)[0])


def _encode(result: SendAnswer | Refusal, opaque: int, serializer: int) -> bytes:
    if isinstance(result, Refusal):
        command = Command(code=result.code, opaque=opaque, flag=RESPONSE, remark=result.remark, serializer=serializer)
    else:
        command = Command(code=0, opaque=opaque, flag=RESPONSE, fields=to_fields(result), serializer=serializer)
    return encode_command(command)
