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
from typing import Any, Final, TypeVar

import msgspec

from holdfast.model.errors import RemoteProtocolError
from holdfast.model.floor import Floor
from holdfast.model.mapping import QUEUES_MAX, UNKNOWN, UNKNOWN_GENERATION, LogicalQueue, Segment, TopicMapping
from holdfast.model.numbers import Int32, Int64
from holdfast.model.topic import TopicConfig
from holdfast.wire.cluster.registration import DataVersion
from holdfast.wire.frames import java_json

BODY_SIZE_MAX: Final = 64 * 1024 * 1024
HOMES_MAX: Final = 4096
"""Limit for the segments of one logical queue. Old ones are cleaned up, so real queues have far fewer."""
GLOBAL_SCOPE: Final = "__global__"
RECORD_VERSION: Final = "1"
"""The version of the form in which our files store a broker's record of a static topic."""

_T = TypeVar("_T")


class Item(msgspec.Struct, frozen=True, kw_only=True):
    """One segment of a logical queue, in upstream's encoding."""

    broker: str = msgspec.field(name="bname", default="")
    end: Int64 = msgspec.field(name="endOffset", default=UNKNOWN)
    generation: Int32 = msgspec.field(name="gen", default=0)
    first: Int64 = msgspec.field(name="logicOffset", default=0)
    queue_id: Int32 = msgspec.field(name="queueId", default=0)
    start: Int64 = msgspec.field(name="startOffset", default=0)
    last_ms: Int64 = msgspec.field(name="timeOfEnd", default=UNKNOWN)
    first_ms: Int64 = msgspec.field(name="timeOfStart", default=UNKNOWN)


class Home(msgspec.Struct, frozen=True, array_like=True):
    """One segment of a logical queue, with all of our fields."""

    generation: Int32
    broker: str
    queue_id: Int32
    first: Int64
    start: Int64
    end: Int64
    first_ms: Int64
    last_ms: Int64
    expired: bool = False
    forced: bool = False
    cut: bool = False


class KnownFloor(msgspec.Struct, frozen=True, array_like=True):
    """The offset at or above which a forgotten logical queue must begin again. See `model.floor`."""

    offset: Int64
    generation: Int32 = UNKNOWN_GENERATION
    brokers: list[str] = []


class Extras(msgspec.Struct, frozen=True, kw_only=True):
    """The fields that upstream's encoding lacks.

    Attributes:
        floors: The floors of forgotten logical queues; left out if there are none.
        queues: All segments of each logical queue, expired ones too, oldest first.
    """

    floors: dict[Int32, KnownFloor] | None = None
    queues: dict[Int32, list[Home]] = {}


class Info(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=False):
    """The part of a static topic that a broker registers."""

    broker: str = msgspec.field(name="bname", default="")
    led: dict[Int32, Int32] = msgspec.field(name="currIdMap", default_factory=dict)
    dirty: bool = False
    epoch: Int64 = 0
    extras: Extras | None = msgspec.field(name="holdfast", default=None)
    scope: str = GLOBAL_SCOPE
    topic: str = ""
    total: Int32 = msgspec.field(name="totalQueues", default=0)


class Detail(msgspec.Struct, frozen=True, kw_only=True):
    """A broker's whole record of a static topic.

    Attributes:
        version: The version of this form in our files; upstream has none.
    """

    broker: str = msgspec.field(name="bname", default="")
    led: dict[Int32, Int32] = msgspec.field(name="currIdMap", default_factory=dict)
    dirty: bool = False
    epoch: Int64 = 0
    extras: Extras | None = msgspec.field(name="holdfast", default=None)
    hosted: dict[Int32, list[Item]] = msgspec.field(name="hostedQueues", default_factory=dict)
    scope: str = GLOBAL_SCOPE
    topic: str = ""
    total: Int32 = msgspec.field(name="totalQueues", default=0)
    version: str | None = None


class MappedTopic(TopicConfig, frozen=True, kw_only=True):
    """Body of the answer to 351: a broker's configuration of a topic, and its mapping record if the topic is static."""

    mapping: Detail | None = msgspec.field(name="mappingDetail", default=None)


class MappingFile(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """`config/topicQueueMapping.json`."""

    data_version: DataVersion = DataVersion()
    topic_queue_mapping_info_map: dict[str, Detail] = {}


# Conversion between model values and upstream's encoding.


def to_item(segment: Segment) -> Item:
    """Return *segment* in upstream's encoding, without its end and times."""
    return Item(
        broker=segment.broker,
        generation=segment.generation,
        queue_id=segment.queue_id,
        first=segment.first,
        start=segment.start,
    )


def to_segment(item: Item) -> Segment:
    """Return the segment that *item* describes."""
    return Segment(
        generation=item.generation,
        broker=item.broker,
        queue_id=item.queue_id,
        first=max(item.first, UNKNOWN),
        start=item.start,
        end=max(item.end, UNKNOWN),
        first_ms=max(item.first_ms, UNKNOWN),
        last_ms=max(item.last_ms, UNKNOWN),
    )


def to_info(mapping: TopicMapping) -> Info:
    """Return the registration of a broker's mapping record."""
    return Info(
        broker=mapping.broker,
        led=mapping.led,
        epoch=mapping.epoch,
        extras=to_extras(mapping),
        scope=mapping.scope,
        topic=mapping.topic,
        total=mapping.total,
    )


def to_detail(mapping: TopicMapping, *, with_extras: bool = True, version: str | None = None) -> Detail:
    """Return the record in upstream's encoding. Only the extras have expired segments. `currIdMap` stays empty."""
    return Detail(
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


def to_extras(mapping: TopicMapping) -> Extras:
    """Return the fields of a mapping record that upstream's encoding lacks."""
    return Extras(
        floors=to_floors(mapping.floors) or None,
        queues={
            number: [to_home(segment) for segment in mapping.queues[number].segments]
            for number in sorted(mapping.queues)
        },
    )


def to_floors(floors: Mapping[int, Floor]) -> dict[int, KnownFloor]:
    """Return floors in the form in which they are sent and stored."""
    return {
        number: KnownFloor(floor.offset, floor.generation, list(floor.brokers))
        for number, floor in sorted(floors.items())
    }


def from_floors(floors: Mapping[int, KnownFloor]) -> dict[int, Floor]:
    """Decode floors that were received or stored, without validating them."""
    return {
        number: Floor(offset=known.offset, generation=known.generation, brokers=tuple(known.brokers))
        for number, known in sorted(floors.items())
    }


def from_detail(detail: Detail) -> TopicMapping:
    """Return the record that a detail describes, not yet validated: the model's `check` does that.

    If a tool changed the segments and left our extras unchanged, the segments count, and the extras apply only to those
    segments that are still the same.

    Raises:
        RemoteProtocolError: it is marked dirty, or exceeds the limits for mappings.
    """
    _require_sane(detail)
    known = {} if detail.extras is None else detail.extras.queues
    queues = {
        number: LogicalQueue(number, _enrich([to_segment(item) for item in items], known.get(number, [])))
        for number, items in detail.hosted.items()
    }
    return _to_mapping(detail, queues)


def from_info(info: Info) -> TopicMapping:
    """Return the record that a registration describes, not yet validated: the model's `check` does that.

    Without our extras, only the current segment of each led queue is known, and not its start.

    Raises:
        RemoteProtocolError: it is marked dirty, or exceeds the limits for mappings.
    """
    _require_sane(info)
    known = {} if info.extras is None else info.extras.queues
    queues = {number: LogicalQueue(number, tuple(map(from_home, homes))) for number, homes in known.items()}
    for number, queue_id in info.led.items():
        queue = queues.get(number)
        if queue is None or queue.leader.place != (info.broker, queue_id):
            home = Segment(generation=UNKNOWN_GENERATION, broker=info.broker, queue_id=queue_id)
            queues[number] = LogicalQueue(number, (home,))
    return _to_mapping(info, queues)


def to_home(segment: Segment) -> Home:
    """Return *segment* with all of our fields."""
    return Home(
        segment.generation,
        segment.broker,
        segment.queue_id,
        segment.first,
        segment.start,
        segment.end,
        segment.first_ms,
        segment.last_ms,
        segment.expired,
        segment.forced,
        segment.cut,
    )


def from_home(home: Home) -> Segment:
    """Return the segment that *home* describes, not validated."""
    return Segment(**{name: getattr(home, name) for name in home.__struct_fields__})


def _enrich(reported: list[Segment], homes: list[Home]) -> tuple[Segment, ...]:
    """Return the segments from upstream's encoding, completed from our own fields."""
    if not homes:
        return tuple(reported)
    ours = {segment.generation: segment for segment in map(from_home, homes)}
    filled = [_fill(segment, ours.get(segment.generation)) for segment in reported]
    generations = {segment.generation for segment in reported}
    # Upstream's encoding never has expired segments. Drop ours if its physical queue is in use again, or if
    # its generation is not older than the newest.
    live = {segment.place for segment in reported if segment.is_decided}
    expired = [
        segment
        for generation, segment in ours.items()
        if segment.expired
        and generation < max(generations)
        and not (generation in generations or segment.place in live)
    ]
    if not expired:
        return tuple(filled)  # Unsorted, so that `check` can detect a wrong order.
    return tuple(sorted((*expired, *filled), key=lambda segment: segment.generation))


def _fill(item: Segment, ours: Segment | None) -> Segment:
    """Return our version of the segment that upstream's *item* describes; *item* if they differ."""
    if ours is None or ours.expired or (ours.place, ours.start, ours.first) != (item.place, item.start, item.first):
        return item
    return ours


def _to_mapping(stamp: Info | Detail, queues: dict[int, LogicalQueue]) -> TopicMapping:
    return TopicMapping(
        topic=stamp.topic,
        broker=stamp.broker,
        scope=stamp.scope,
        epoch=stamp.epoch,
        total=stamp.total,
        queues=dict(sorted(queues.items())),
        floors=from_floors((stamp.extras.floors if stamp.extras is not None else None) or {}),
    )


def _require_sane(stamp: Info | Detail) -> None:
    """Refuse impossible records before iterating over them."""
    extras = {} if stamp.extras is None else stamp.extras.queues
    hosted: Mapping[int, list[Item]] = stamp.hosted if isinstance(stamp, Detail) else {}
    if stamp.dirty:
        raise RemoteProtocolError(f"the mapping of {stamp.topic} on {stamp.broker} is marked dirty")
    floors = (stamp.extras.floors if stamp.extras is not None else None) or {}
    if not 0 <= stamp.total <= QUEUES_MAX or max(map(len, (stamp.led, hosted, extras, floors))) > QUEUES_MAX:
        raise RemoteProtocolError(f"the mapping of {stamp.topic} on {stamp.broker} claims {stamp.total} queues")
    counts = [*(len(items) for items in hosted.values()), *(len(homes) for homes in extras.values())]
    if counts and not 1 <= min(counts) <= max(counts) <= HOMES_MAX:
        raise RemoteProtocolError(
            f"the mapping of {stamp.topic} on {stamp.broker} has a queue of no segment, or too many"
        )


# Conversion to and from bytes.


def decode(data: bytes | memoryview, kind: type[_T]) -> _T:
    """Decode a registration (`Info`), the body of a 513 (`Detail`) or of the answer to a 351 (`MappedTopic`).

    Raises:
        RemoteProtocolError: *data* is too large or is not a *kind*.
    """
    if len(data) > BODY_SIZE_MAX:
        raise RemoteProtocolError(f"{kind.__name__} has {len(data)} bytes, at most {BODY_SIZE_MAX} are read")
    return java_json.decode(data, kind)


def convert_info(plain: Any) -> Info:
    """Convert an already decoded *plain* object to a registration.

    Raises:
        RemoteProtocolError: it is not a registration.
    """
    return _convert(plain, Info)


def convert_detail(plain: Any) -> Detail:
    """Convert an already decoded *plain* object to a detail.

    Raises:
        RemoteProtocolError: it is not a detail.
    """
    return _convert(plain, Detail)


def _convert(plain: Any, kind: type[_T]) -> _T:
    try:
        return msgspec.convert(plain, kind, strict=False)
    except (msgspec.ValidationError, RecursionError) as error:
        raise RemoteProtocolError(f"a mapping cannot be read: {error}") from error


def encode(value: Item | Info | Detail | MappedTopic, *, bare_keys: bool = False) -> bytes:
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
