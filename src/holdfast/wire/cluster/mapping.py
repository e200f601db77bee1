"""Static topics in upstream's encoding: in registrations, in admin answers (351), in updates (513) and on disk.

    Item    one segment of a logical queue     {"bname","endOffset","gen","logicOffset","queueId","startOffset",...}
    Info    what a broker registers            {"bname","currIdMap","dirty","epoch","scope","topic","totalQueues"}
    Detail  a broker's whole record            Info + "hostedQueues": {0:[item, ...]}

Upstream's encoding has no fields for exact ends, store times, expired and forced segments. We add them under
`holdfast`, which Java ignores on reading and drops on writing: every decoder here works without it. An exact end is
never written as `endOffset`: upstream's tools refuse a segment that begins exactly where the previous one ends.

Keys are sorted, as fastjson sorts them. Integer keys are quoted, or bare where Java's exact bytes are required.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, TypeVar

import msgspec

from holdfast.model.errors import RemoteProtocolError
from holdfast.model.floor import Floor
from holdfast.model.mapping import QUEUES_MAX, LogicalQueue, Segment, TopicMapping
from holdfast.model.numbers import INT32, INT64, Int32, Int64
from holdfast.model.queue import LogicalOffset, LogicalQueueId, PhysicalOffset, PhysicalQueueId
from holdfast.model.segment import generation_order, is_newer, newest_generation
from holdfast.model.topic import TopicConfig
from holdfast.wire.cluster.registration import DataVersion
from holdfast.wire.frames import java_json

BODY_SIZE_MAX: Final = 64 * 1024 * 1024
SEGMENTS_MAX: Final = 4096
"""Limit for the segments of one logical queue. Old ones are cleaned up, so real queues have far fewer."""
GLOBAL_SCOPE: Final = "__global__"
RECORD_VERSION: Final = "1"
"""The version of the form in which our files store a broker's record of a static topic."""

QueueNumber = Annotated[LogicalQueueId, INT32]
PhysicalQueueNumber = Annotated[PhysicalQueueId, INT32]
"""Queue ids as they are sent and stored: the decoder validates their width."""

_UNKNOWN: Final = -1
"""An offset or a time that is not decided or not recorded, on the wire and on disk; None in the model."""

_T = TypeVar("_T")
_Start = Annotated[PhysicalOffset, INT64]


class MappingItem(msgspec.Struct, frozen=True, kw_only=True):
    """One segment of a logical queue, in upstream's encoding."""

    broker: str = msgspec.field(name="bname", default="")
    end: Int64 = msgspec.field(name="endOffset", default=_UNKNOWN)
    generation: Int32 = msgspec.field(name="gen", default=0)
    first: Int64 = msgspec.field(name="logicOffset", default=0)
    queue_id: PhysicalQueueNumber = msgspec.field(name="queueId", default=PhysicalQueueId(0))
    start: _Start = msgspec.field(name="startOffset", default=PhysicalOffset(0))
    last_ms: Int64 = msgspec.field(name="timeOfEnd", default=_UNKNOWN)
    first_ms: Int64 = msgspec.field(name="timeOfStart", default=_UNKNOWN)


class WireSegment(msgspec.Struct, frozen=True, array_like=True):
    """One segment of a logical queue, with all of our fields."""

    generation: Int32
    broker: str
    queue_id: PhysicalQueueNumber
    first: Int64
    start: _Start
    end: Int64
    first_ms: Int64
    last_ms: Int64
    expired: bool = False
    forced: bool = False
    is_detached: bool = False


class KnownFloor(msgspec.Struct, frozen=True, array_like=True):
    """The offset at or above which a forgotten logical queue must begin again. See `model.floor`."""

    offset: Annotated[LogicalOffset, INT64]
    generation: Int32 = _UNKNOWN
    brokers: list[str] = []


class MappingExtras(msgspec.Struct, frozen=True, kw_only=True):
    """The fields that upstream's encoding lacks.

    Attributes:
        floors: The floors of forgotten logical queues; left out if there are none.
        queues: All segments of each logical queue, expired ones too, oldest first.
    """

    floors: dict[QueueNumber, KnownFloor] | None = None
    queues: dict[QueueNumber, list[WireSegment]] = {}


class MappingInfo(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=False):
    """The part of a static topic that a broker registers."""

    broker: str = msgspec.field(name="bname", default="")
    led_queues: dict[QueueNumber, PhysicalQueueNumber] = msgspec.field(name="currIdMap", default_factory=dict)
    dirty: bool = False
    epoch: Int64 = 0
    extras: MappingExtras | None = msgspec.field(name="holdfast", default=None)
    scope: str = GLOBAL_SCOPE
    topic: str = ""
    total: Int32 = msgspec.field(name="totalQueues", default=0)


class MappingDetail(msgspec.Struct, frozen=True, kw_only=True):
    """A broker's whole record of a static topic.

    Attributes:
        version: The version of this form in our files; upstream has none.
    """

    broker: str = msgspec.field(name="bname", default="")
    led_queues: dict[QueueNumber, PhysicalQueueNumber] = msgspec.field(name="currIdMap", default_factory=dict)
    dirty: bool = False
    epoch: Int64 = 0
    extras: MappingExtras | None = msgspec.field(name="holdfast", default=None)
    hosted: dict[QueueNumber, list[MappingItem]] = msgspec.field(name="hostedQueues", default_factory=dict)
    scope: str = GLOBAL_SCOPE
    topic: str = ""
    total: Int32 = msgspec.field(name="totalQueues", default=0)
    version: str | None = None


class MappedTopic(TopicConfig, frozen=True, kw_only=True):
    """Body of the answer to 351: a broker's configuration of a topic, and its mapping record if the topic is static."""

    mapping: MappingDetail | None = msgspec.field(name="mappingDetail", default=None)


class MappingFile(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """`config/topicQueueMapping.json`."""

    data_version: DataVersion = DataVersion()
    topic_queue_mapping_info_map: dict[str, MappingDetail] = {}


# Conversion between model values and upstream's encoding.


def to_item(segment: Segment) -> MappingItem:
    """Return *segment* in upstream's encoding, without its end and times."""
    return MappingItem(
        broker=segment.broker,
        generation=to_number(segment.generation),
        queue_id=segment.queue_id,
        first=to_number(segment.first),
        start=segment.start,
    )


def to_segment(item: MappingItem) -> Segment:
    """Return the segment that *item* describes."""
    return Segment(
        generation=from_number(item.generation),
        broker=item.broker,
        queue_id=item.queue_id,
        first=None if item.first < 0 else LogicalOffset(item.first),
        start=item.start,
        end=None if item.end < 0 else PhysicalOffset(item.end),
        first_ms=from_number(item.first_ms),
        last_ms=from_number(item.last_ms),
    )


def to_info(mapping: TopicMapping) -> MappingInfo:
    """Return the registration of a broker's mapping record."""
    return MappingInfo(
        broker=mapping.broker,
        led_queues=mapping.led_queues,
        epoch=mapping.epoch,
        extras=to_extras(mapping),
        scope=mapping.scope,
        topic=mapping.topic,
        total=mapping.total,
    )


def to_detail(mapping: TopicMapping, *, with_extras: bool = True, version: str | None = None) -> MappingDetail:
    """Return the record in upstream's encoding. Only the extras have expired segments. `currIdMap` stays empty."""
    return MappingDetail(
        broker=mapping.broker,
        epoch=mapping.epoch,
        extras=to_extras(mapping) if with_extras else None,
        hosted={
            number: [to_item(segment) for segment in mapping.queues[number].readable]
            for number in sorted(mapping.queues)
        },
        scope=mapping.scope,
        topic=mapping.topic,
        total=mapping.total,
        version=version,
    )


def to_extras(mapping: TopicMapping) -> MappingExtras:
    """Return the fields of a mapping record that upstream's encoding lacks."""
    return MappingExtras(
        floors=to_floors(mapping.floors) or None,
        queues={
            number: [to_wire_segment(segment) for segment in mapping.queues[number].segments]
            for number in sorted(mapping.queues)
        },
    )


def to_floors(floors: Mapping[LogicalQueueId, Floor]) -> dict[LogicalQueueId, KnownFloor]:
    """Return floors in the form in which they are sent and stored."""
    return {number: to_floor(floor) for number, floor in sorted(floors.items())}


def to_floor(floor: Floor) -> KnownFloor:
    """Return one floor in the form in which it is sent and stored."""
    return KnownFloor(floor.offset, to_number(floor.generation), list(floor.brokers))


def from_floors(floors: Mapping[LogicalQueueId, KnownFloor]) -> dict[LogicalQueueId, Floor]:
    """Decode floors that were received or stored, without validating them."""
    return {number: from_floor(known) for number, known in sorted(floors.items())}


def from_floor(known: KnownFloor) -> Floor:
    """Decode one floor, without validating it."""
    return Floor(offset=known.offset, generation=from_number(known.generation), brokers=tuple(known.brokers))


def from_detail(detail: MappingDetail) -> TopicMapping:
    """Return the record that a detail describes, not yet validated: the model's `check` does that.

    If a tool changed the segments and left our extras unchanged, the segments count, and the extras apply only to those
    segments that are still the same.

    Raises:
        RemoteProtocolError: it is marked dirty, or exceeds the limits for mappings.
    """
    _check_limits(detail)
    known = {} if detail.extras is None else detail.extras.queues
    queues = {
        number: LogicalQueue(number, _enrich([to_segment(item) for item in items], known.get(number, [])))
        for number, items in detail.hosted.items()
    }
    return _to_mapping(detail, queues)


def from_info(info: MappingInfo) -> TopicMapping:
    """Return the record that a registration describes, not yet validated: the model's `check` does that.

    Without our extras, only the current segment of each led queue is known, and not its start.

    Raises:
        RemoteProtocolError: it is marked dirty, or exceeds the limits for mappings.
    """
    _check_limits(info)
    known = {} if info.extras is None else info.extras.queues
    queues = {
        number: LogicalQueue(number, tuple(map(from_wire_segment, segments))) for number, segments in known.items()
    }
    for number, queue_id in info.led_queues.items():
        queue = queues.get(number)
        if queue is None or queue.leader.physical_queue != (info.broker, queue_id):
            leader_segment = Segment(generation=None, broker=info.broker, queue_id=queue_id)
            queues[number] = LogicalQueue(number, (leader_segment,))
    return _to_mapping(info, queues)


def to_wire_segment(segment: Segment) -> WireSegment:
    """Return *segment* with all of our fields."""
    return WireSegment(
        to_number(segment.generation),
        segment.broker,
        segment.queue_id,
        to_number(segment.first),
        segment.start,
        to_number(segment.end),
        to_number(segment.first_ms),
        to_number(segment.last_ms),
        segment.expired,
        segment.forced,
        segment.is_detached,
    )


def from_wire_segment(segment: WireSegment) -> Segment:
    """Return *segment* as a value of the model, not validated."""
    return Segment(
        generation=from_number(segment.generation),
        broker=segment.broker,
        queue_id=segment.queue_id,
        first=None if segment.first < 0 else LogicalOffset(segment.first),
        start=segment.start,
        end=None if segment.end < 0 else PhysicalOffset(segment.end),
        first_ms=from_number(segment.first_ms),
        last_ms=from_number(segment.last_ms),
        expired=segment.expired,
        forced=segment.forced,
        is_detached=segment.is_detached,
    )


def to_number(value: int | None) -> int:
    """Return the number that stands for *value* on the wire and on disk."""
    return _UNKNOWN if value is None else value


def from_number(number: int) -> int | None:
    """Return the value for which a received *number* stands; None if it is not known."""
    return None if number < 0 else number


def _enrich(reported: list[Segment], known: list[WireSegment]) -> tuple[Segment, ...]:
    """Return the segments from upstream's encoding, completed from our own fields."""
    if not known:
        return tuple(reported)
    known_by_generation = {segment.generation: segment for segment in map(from_wire_segment, known)}
    filled = [_fill(segment, known_by_generation.get(segment.generation)) for segment in reported]
    generations = {segment.generation for segment in reported}
    # Upstream's encoding never has expired segments. Drop ours if its physical queue is in use again, or if
    # its generation is not older than the newest.
    live = {segment.physical_queue for segment in reported if segment.is_decided}
    expired = [
        segment
        for generation, segment in known_by_generation.items()
        if segment.expired
        and is_newer(newest_generation(generations), generation)
        and not (generation in generations or segment.physical_queue in live)
    ]
    if not expired:
        return tuple(filled)  # Unsorted, so that `check` can detect a wrong order.
    return tuple(sorted((*expired, *filled), key=lambda segment: generation_order(segment.generation)))


def _fill(item: Segment, known: Segment | None) -> Segment:
    """Return our version of the segment that upstream's *item* describes; *item* if they differ."""
    if (
        known is None
        or known.expired
        or (known.physical_queue, known.start, known.first) != (item.physical_queue, item.start, item.first)
    ):
        return item
    return known


def _to_mapping(record: MappingInfo | MappingDetail, queues: dict[LogicalQueueId, LogicalQueue]) -> TopicMapping:
    return TopicMapping(
        topic=record.topic,
        broker=record.broker,
        scope=record.scope,
        epoch=record.epoch,
        total=record.total,
        queues=dict(sorted(queues.items())),
        floors=from_floors((record.extras.floors if record.extras is not None else None) or {}),
    )


def _check_limits(record: MappingInfo | MappingDetail) -> None:
    """Refuse impossible records before iterating over them."""
    extras = {} if record.extras is None else record.extras.queues
    hosted: Mapping[LogicalQueueId, list[MappingItem]] = record.hosted if isinstance(record, MappingDetail) else {}
    if record.dirty:
        raise RemoteProtocolError(f"the mapping of {record.topic} on {record.broker} is marked dirty")
    floors = (record.extras.floors if record.extras is not None else None) or {}
    if (
        not 0 <= record.total <= QUEUES_MAX
        or max(len(record.led_queues), len(hosted), len(extras), len(floors)) > QUEUES_MAX
    ):
        raise RemoteProtocolError(f"the mapping of {record.topic} on {record.broker} claims {record.total} queues")
    counts = [*(len(items) for items in hosted.values()), *(len(segments) for segments in extras.values())]
    if counts and not 1 <= min(counts) <= max(counts) <= SEGMENTS_MAX:
        raise RemoteProtocolError(
            f"the mapping of {record.topic} on {record.broker} has a queue of no segment, or too many"
        )


# Conversion to and from bytes.


def decode(data: bytes | memoryview, kind: type[_T]) -> _T:
    """Decode a registration (`MappingInfo`), a request 513 (`MappingDetail`) or an answer to 351 (`MappedTopic`).

    Raises:
        RemoteProtocolError: *data* is too large or is not a *kind*.
    """
    if len(data) > BODY_SIZE_MAX:
        raise RemoteProtocolError(f"{kind.__name__} has {len(data)} bytes, at most {BODY_SIZE_MAX} are read")
    return java_json.decode(data, kind)


def convert_info(plain: Any) -> MappingInfo:
    """Convert an already decoded *plain* object to a registration.

    Raises:
        RemoteProtocolError: it is not a registration.
    """
    return _convert(plain, MappingInfo)


def convert_detail(plain: Any) -> MappingDetail:
    """Convert an already decoded *plain* object to a detail.

    Raises:
        RemoteProtocolError: it is not a detail.
    """
    return _convert(plain, MappingDetail)


def _convert(plain: Any, kind: type[_T]) -> _T:
    try:
        return msgspec.convert(plain, kind, strict=False)
    except (msgspec.ValidationError, RecursionError) as error:
        raise RemoteProtocolError(f"a mapping cannot be read: {error}") from error


def encode(value: MappingItem | MappingInfo | MappingDetail | MappedTopic, *, bare_keys: bool = False) -> bytes:
    """Return *value* as upstream's JSON; with *bare_keys* exactly as Java writes it."""
    plain = to_plain(value)
    return _java_text(plain).encode() if bare_keys else java_json.encode(plain)


def encode_file(file: MappingFile) -> bytes:
    """Return `topicQueueMapping.json` as Java writes it."""
    return _java_text(to_plain(file), "\n").encode()


def to_plain(value: msgspec.Struct) -> dict[str, Any]:
    """Return *value* as plain objects with sorted keys, without absent members."""
    plain = _without_absent(msgspec.to_builtins(value))
    assert isinstance(plain, dict), "a struct becomes an object"
    return plain


def _without_absent(plain: Any) -> Any:
    if isinstance(plain, dict):
        return {key: _without_absent(plain[key]) for key in sorted(plain) if plain[key] is not None}
    return [_without_absent(item) for item in plain] if isinstance(plain, list) else plain


def _java_text(plain: Any, line: str = "") -> str:
    """Return *plain* as fastjson writes it: integer keys bare; pretty-printed if *line* is a line end."""
    inner = line and line + "\t"
    if isinstance(plain, dict) and plain:
        members = (f"{_java_key(key)}:{_java_text(value, inner)}" for key, value in plain.items())
        return f"{{{inner}{f',{inner}'.join(members)}{line}}}"
    if isinstance(plain, list) and plain:
        return f"[{inner}{f',{inner}'.join(_java_text(item, inner) for item in plain)}{line}]"
    return java_json.encode(plain).decode()


def _java_key(key: int | str) -> str:
    return str(key) if isinstance(key, int) else java_json.encode(key).decode()
