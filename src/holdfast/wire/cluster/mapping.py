"""Static topics as upstream writes them: in registrations, in admin answers (351), in updates (513) and on disk.

    Item    one home of a logical queue        {"bname","endOffset","gen","logicOffset","queueId","startOffset",...}
    Info    what a broker registers            {"bname","currIdMap","dirty","epoch","scope","topic","totalQueues"}
    Detail  what a broker knows                Info + "hostedQueues": {0:[item, ...]}

Upstream has no place for exact ends, store times, expired and forced homes. Those go beside, under `holdfast`, which
Java ignores when it reads and drops when it writes: every decoder here works without it. An exact end is never written
as `endOffset`: upstream's tools refuse a home that begins exactly where the one before it ends.

Keys are sorted, as fastjson sorts them. Integer keys are quoted, or bare where Java's own bytes are wanted.
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
"""How many homes of one logical queue are read: they are cleaned one after the other, nobody comes near."""
GLOBAL_SCOPE: Final = "__global__"
RECORD_VERSION: Final = "1"
"""Of the form in which our files keep a broker's record of a static topic."""

_T = TypeVar("_T")


class Item(msgspec.Struct, frozen=True, kw_only=True):
    """One home of a logical queue, in upstream's words."""

    broker: str = msgspec.field(name="bname", default="")
    end: Int64 = msgspec.field(name="endOffset", default=UNKNOWN)
    generation: Int32 = msgspec.field(name="gen", default=0)
    first: Int64 = msgspec.field(name="logicOffset", default=0)
    queue_id: Int32 = msgspec.field(name="queueId", default=0)
    start: Int64 = msgspec.field(name="startOffset", default=0)
    last_ms: Int64 = msgspec.field(name="timeOfEnd", default=UNKNOWN)
    first_ms: Int64 = msgspec.field(name="timeOfStart", default=UNKNOWN)


class Home(msgspec.Struct, frozen=True, array_like=True):
    """One home of a logical queue, with everything we know of it."""

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
    """Below which a forgotten logical queue may not begin again. See `model.floor`."""

    offset: Int64
    generation: Int32 = UNKNOWN_GENERATION
    brokers: list[str] = []


class Extras(msgspec.Struct, frozen=True, kw_only=True):
    """What upstream has no place for.

    Attributes:
        floors: Of logical queues that were forgotten; left out if there are none.
        queues: All homes of each logical queue, expired ones too, oldest first.
    """

    floors: dict[Int32, KnownFloor] | None = None
    queues: dict[Int32, list[Home]] = {}


class Info(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=False):
    """What a broker registers of a static topic."""

    broker: str = msgspec.field(name="bname", default="")
    led: dict[Int32, Int32] = msgspec.field(name="currIdMap", default_factory=dict)
    dirty: bool = False
    epoch: Int64 = 0
    extras: Extras | None = msgspec.field(name="holdfast", default=None)
    scope: str = GLOBAL_SCOPE
    topic: str = ""
    total: Int32 = msgspec.field(name="totalQueues", default=0)


class Detail(msgspec.Struct, frozen=True, kw_only=True):
    """What a broker knows of a static topic.

    Attributes:
        version: Of its form, in our files; upstream has none.
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
    """Body of the answer to 351: how a broker hosts a topic, and its part of the mapping if the topic is static."""

    mapping: Detail | None = msgspec.field(name="mappingDetail", default=None)


class MappingFile(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """`config/topicQueueMapping.json`."""

    data_version: DataVersion = DataVersion()
    topic_queue_mapping_info_map: dict[str, Detail] = {}


# Values and upstream's words.


def to_item(segment: Segment) -> Item:
    """Return a home in upstream's words, which leave out its end and times."""
    return Item(
        broker=segment.broker,
        generation=segment.generation,
        queue_id=segment.queue_id,
        first=segment.first,
        start=segment.start,
    )


def to_segment(item: Item) -> Segment:
    """Return a home that upstream's words describe."""
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
    """Return what the record's broker registers."""
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
    """Return the record in upstream's words; the expired are only among the extras. `currIdMap` stays empty there."""
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
    """Return what upstream has no place for."""
    return Extras(
        floors=to_floors(mapping.floors) or None,
        queues={
            number: [to_home(segment) for segment in mapping.queues[number].segments]
            for number in sorted(mapping.queues)
        },
    )


def to_floors(floors: Mapping[int, Floor]) -> dict[int, KnownFloor]:
    """Return floors as they are told and kept."""
    return {
        number: KnownFloor(floor.offset, floor.generation, list(floor.brokers))
        for number, floor in sorted(floors.items())
    }


def from_floors(floors: Mapping[int, KnownFloor]) -> dict[int, Floor]:
    """Return the floors that were told or kept. Not judged."""
    return {
        number: Floor(offset=told.offset, generation=told.generation, brokers=tuple(told.brokers))
        for number, told in sorted(floors.items())
    }


def from_detail(detail: Detail) -> TopicMapping:
    """Return the record that a detail describes. Not judged: `check` of the model does that.

    Where somebody changed the homes and left our extras as they were, the homes count, and extras only of those that
    are still the same.

    Raises:
        RemoteProtocolError: it is marked dirty, or larger than any mapping is.
    """
    _require_sane(detail)
    known = {} if detail.extras is None else detail.extras.queues
    queues = {
        number: LogicalQueue(number, _enrich([to_segment(item) for item in items], known.get(number, [])))
        for number, items in detail.hosted.items()
    }
    return _to_mapping(detail, queues)


def from_info(info: Info) -> TopicMapping:
    """Return the record that a registration describes. Not judged: `check` of the model does that.

    Without our extras only the present home of each led queue is known, and not since when.

    Raises:
        RemoteProtocolError: it is marked dirty, or larger than any mapping is.
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
    """Return a home with everything we know of it."""
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
    """Return the segment that a home describes. Not judged."""
    return Segment(**{name: getattr(home, name) for name in home.__struct_fields__})


def _enrich(told: list[Segment], homes: list[Home]) -> tuple[Segment, ...]:
    """Return homes as upstream told them, with what we know beside."""
    if not homes:
        return tuple(told)
    ours = {segment.generation: segment for segment in map(from_home, homes)}
    filled = [_fill(segment, ours.get(segment.generation)) for segment in told]
    generations = {segment.generation for segment in told}
    # Expired homes are never told. One that was opened again, or is as new as the newest, is no longer what we knew.
    live = {segment.place for segment in told if segment.is_decided}
    expired = [
        segment
        for generation, segment in ours.items()
        if segment.expired
        and generation < max(generations)
        and not (generation in generations or segment.place in live)
    ]
    if not expired:
        return tuple(filled)  # In the order they came, were it wrong: that is for `check` to find.
    return tuple(sorted((*expired, *filled), key=lambda segment: segment.generation))


def _fill(told: Segment, ours: Segment | None) -> Segment:
    """Return what we know of a home, if it is still the same home."""
    if ours is None or ours.expired or (ours.place, ours.start, ours.first) != (told.place, told.start, told.first):
        return told
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
    """Refuse what nobody can have, before any of it is walked through."""
    extras = {} if stamp.extras is None else stamp.extras.queues
    hosted: Mapping[int, list[Item]] = stamp.hosted if isinstance(stamp, Detail) else {}
    if stamp.dirty:
        raise RemoteProtocolError(f"the mapping of {stamp.topic} on {stamp.broker} is marked dirty")
    floors = (stamp.extras.floors if stamp.extras is not None else None) or {}
    if not 0 <= stamp.total <= QUEUES_MAX or max(map(len, (stamp.led, hosted, extras, floors))) > QUEUES_MAX:
        raise RemoteProtocolError(f"the mapping of {stamp.topic} on {stamp.broker} claims {stamp.total} queues")
    counts = [*(len(items) for items in hosted.values()), *(len(homes) for homes in extras.values())]
    if counts and not 1 <= min(counts) <= max(counts) <= HOMES_MAX:
        raise RemoteProtocolError(f"the mapping of {stamp.topic} on {stamp.broker} has a queue of no home, or too many")


# Bytes.


def decode(data: bytes | memoryview, kind: type[_T]) -> _T:
    """Decode what a broker registered (`Info`), the body of a 513 (`Detail`) or of the answer to a 351 (`MappedTopic`).

    Raises:
        RemoteProtocolError: it is none.
    """
    if len(data) > BODY_SIZE_MAX:
        raise RemoteProtocolError(f"{kind.__name__} has {len(data)} bytes, at most {BODY_SIZE_MAX} are read")
    return java_json.decode(data, kind)


def convert_info(plain: Any) -> Info:
    """Return the registration that an already decoded *plain* object is.

    Raises:
        RemoteProtocolError: it is none.
    """
    return _convert(plain, Info)


def convert_detail(plain: Any) -> Detail:
    """Return the detail that an already decoded *plain* object is.

    Raises:
        RemoteProtocolError: it is none.
    """
    return _convert(plain, Detail)


def _convert(plain: Any, kind: type[_T]) -> _T:
    try:
        return msgspec.convert(plain, kind, strict=False)
    except (msgspec.ValidationError, RecursionError) as error:
        raise RemoteProtocolError(f"a mapping cannot be read: {error}") from error


def encode(value: Item | Info | Detail | MappedTopic, *, bare_keys: bool = False) -> bytes:
    """Return upstream's JSON of *value*; with *bare_keys* exactly as Java writes it."""
    plain = to_plain(value)
    return _java_text(plain).encode() if bare_keys else java_json.encode(plain)


def encode_file(file: MappingFile) -> bytes:
    """Return `topicQueueMapping.json` as Java writes it."""
    return _java_text(to_plain(file), "\n").encode()


def to_plain(value: msgspec.Struct) -> dict[str, Any]:
    """Return *value* as plain objects, keys sorted, what is absent left out."""
    plain = _without_absent(msgspec.to_builtins(value))
    assert isinstance(plain, dict), "a struct becomes an object"
    return plain


def _without_absent(plain: Any) -> Any:
    if isinstance(plain, dict):
        return {key: _without_absent(plain[key]) for key in sorted(plain) if plain[key] is not None}
    return [_without_absent(item) for item in plain] if isinstance(plain, list) else plain


def _java_text(plain: Any, line: str = "") -> str:
    """Return *plain* as fastjson writes it: integer keys bare; in lines and tabs when *line* is a line end."""
    inner = line and line + "\t"
    if isinstance(plain, dict) and plain:
        members = (f"{_java_key(key)}:{_java_text(value, inner)}" for key, value in plain.items())
        return f"{{{inner}{f',{inner}'.join(members)}{line}}}"
    if isinstance(plain, list) and plain:
        return f"[{inner}{f',{inner}'.join(_java_text(item, inner) for item in plain)}{line}]"
    return java_json.encode(plain).decode()


def _java_key(key: int | str) -> str:
    return str(key) if isinstance(key, int) else java_json.encode(key).decode()
