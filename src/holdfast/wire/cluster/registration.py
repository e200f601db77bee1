"""Registrations of brokers with name servers: 103, 104, 322, 904, 901, 217.

The body of 103 comes in three forms: JSON; a packed form in zlib, with `compressed=true` in the header (4.x); and the
same packed form in zlib although the header denies compression (5.x). The first byte identifies the form.

    packed: | i32 size, data version JSON | i32 topics | each: i32 size, "name read write perm filter [attributes]" |
            | i32 size, filter server list JSON | from version 413 on: i32 mappings | each: i32 size, mapping JSON |
"""

from __future__ import annotations

import struct
import zlib
from typing import Any, Final

import msgspec

from holdfast.model.errors import RemoteProtocolError
from holdfast.model.numbers import Int64
from holdfast.model.topic import TopicConfig
from holdfast.wire.cluster.deletions import DELETIONS_FIELD
from holdfast.wire.cluster.units import SWITCH_FIELD
from holdfast.wire.frames import java_json

BODY_SIZE_MAX: Final = 32 * 1024 * 1024
ACCESS_FIELD: Final = "hf.access"
ZONE_FIELD: Final = "__ZONE_NAME"
REMOVED_FIELD: Final = "hf.removed"
_STRAY_MAPPINGS_MAX: Final = 1000
_I32 = struct.Struct(">i")
_PACKED_MEMBERS: Final = ("topicName", "readQueueNums", "writeQueueNums", "perm", "topicFilterType")


class DataVersion(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Version of a broker's metadata: equal means unchanged."""

    state_version: Int64 = 0
    timestamp: Int64 = 0
    counter: Int64 = 0


class RegisterFields(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Header of 103."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    ha_server_addr: str = ""
    broker_id: int = 0
    heartbeat_timeout_millis: int | None = None
    enable_acting_master: bool | None = None
    compressed: bool = False
    body_crc32: int = 0
    zone_name: str | None = msgspec.field(default=None, name=ZONE_FIELD)
    units: str | None = msgspec.field(default=None, name=SWITCH_FIELD)
    deletions: str | None = msgspec.field(default=None, name=DELETIONS_FIELD)


class RegisterAnswer(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Header of the answer to 103.

    Attributes:
        wants_single: Asks the broker to register a single changed topic alone. Our name server sets it if it treats a
            registration of more than one topic as the start of a broker.
        units: The DR switch, if the broker's is older.
        deletions: The deletion markers, if they differ from the broker's.
        access: The digest of users and rules, for a broker that has proven the cluster secret. A broker with another
            one exchanges its records with the name server.
    """

    ha_server_addr: str | None = None
    master_addr: str | None = None
    wants_single: bool | None = msgspec.field(default=None, name="hf.single")
    units: str | None = msgspec.field(default=None, name=SWITCH_FIELD)
    deletions: str | None = msgspec.field(default=None, name=DELETIONS_FIELD)
    access: str | None = msgspec.field(default=None, name=ACCESS_FIELD)


class BrokerFields(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Header of 104, 322 and 904: the sending broker.

    Attributes:
        is_removed: In 104: an operator removed the broker from the cluster, so it does not count as down.
    """

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: int = 0
    is_removed: bool | None = msgspec.field(default=None, name=REMOVED_FIELD)


class Topics(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The topics of a broker, as registered and as stored in `topics.json`."""

    topic_config_table: dict[str, TopicConfig] = {}
    data_version: DataVersion = DataVersion()
    mapping_data_version: DataVersion = DataVersion()
    topic_queue_mapping_info_map: dict[str, Any] = {}
    topic_queue_mapping_detail_map: dict[str, Any] = {}


class Registration(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Body of 103."""

    topic_config_serialize_wrapper: Topics = Topics()
    filter_server_list: list[str] = []


_decode_standard = msgspec.json.Decoder(Registration, strict=False).decode
_VOLATILE: Final = b'"mappingDataVersion":'


def registration_digest(body: bytes) -> int:
    """Return a number that, within this process, is equal for registrations with equal content.

    Java brokers put the time of sending into `mappingDataVersion` of every body, so that member is left out.
    """
    start = body.find(_VOLATILE)
    end = body.find(b"}", start)
    return hash(body) if start < 0 or end < 0 else hash((body[:start], body[end:]))


def encode_registration(registration: Registration) -> bytes:
    """Return the JSON body of a 103."""
    return java_json.encode(registration)


def decode_registration(body: bytes, *, version: int) -> Registration:
    """Decode the body of a 103 of any broker.

    Raises:
        RemoteProtocolError: the body has none of the three forms.
    """
    if not body:
        return Registration()
    if body[0] != 0x78:  # not a zlib stream
        return _from_json(body)
    inflater = zlib.decompressobj()
    try:
        inflated = inflater.decompress(body, BODY_SIZE_MAX)
    except zlib.error as error:
        raise RemoteProtocolError(f"compressed registration cannot be inflated: {error}") from error
    if inflater.unconsumed_tail:
        raise RemoteProtocolError(f"compressed registration is larger than {BODY_SIZE_MAX} bytes")
    if not inflater.eof:
        raise RemoteProtocolError("compressed registration is cut short")
    return _unpack(_Unpacker(inflated), with_mappings=version >= 413)


def _from_json(body: bytes) -> Registration:
    # Ten thousand topics are common: decode straight into structs, unless the body is not standard JSON.
    if b'"$ref"' not in body:
        try:
            return _decode_standard(body)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            pass  # The tolerant decoder below accepts it or reports the fault.
    return java_json.decode(body, Registration)


class _Unpacker:
    """Reads the packed form field by field."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def number(self) -> int:
        if self._at + 4 > len(self._data):
            raise RemoteProtocolError("packed registration ends too early")
        (value,) = _I32.unpack_from(self._data, self._at)
        self._at += 4
        return int(value)

    def text(self) -> bytes:
        size = self.number()
        if size < 0 or self._at + size > len(self._data):
            raise RemoteProtocolError("packed registration ends too early")
        self._at += size
        return self._data[self._at - size : self._at]


def _unpack(packed: _Unpacker, *, with_mappings: bool) -> Registration:
    data_version = java_json.decode(packed.text(), DataVersion)
    topics = [_topic(packed.text()) for _ in range(packed.number())]
    filter_servers = java_json.decode(packed.text(), list[str])
    mappings: list[dict[str, Any]] = []
    if with_mappings:
        count = packed.number()
        # Each mapping belongs to a topic. Compressed empty mappings are tiny on the wire, but take seconds to decode.
        if count > len(topics) + _STRAY_MAPPINGS_MAX:
            raise RemoteProtocolError(f"packed registration has {count} mappings for {len(topics)} topics")
        mappings = [java_json.decode(packed.text(), dict[str, Any]) for _ in range(count)]
    return Registration(
        topic_config_serialize_wrapper=Topics(
            topic_config_table={topic.name: topic for topic in topics},
            data_version=data_version,
            topic_queue_mapping_info_map={str(mapping.get("topic")): mapping for mapping in mappings},
        ),
        filter_server_list=filter_servers,
    )


def _topic(text: bytes) -> TopicConfig:
    parts = text.decode(errors="replace").split(" ", 5)
    if len(parts) < 5:
        raise RemoteProtocolError(f"packed topic {text[:80]!r} has too few parts")
    members: dict[str, Any] = dict(zip(_PACKED_MEMBERS, parts[:5], strict=True))
    if len(parts) > 5 and parts[5]:
        members["attributes"] = java_json.decode(parts[5].encode(), dict[str, str])
    try:
        return msgspec.convert(members, TopicConfig, strict=False)
    except msgspec.ValidationError as error:
        raise RemoteProtocolError(f"packed topic {text[:80]!r} cannot be read: {error}") from error


class VersionAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Header of the answer to 322."""

    changed: bool


class MemberGroupFields(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Header of 901."""

    cluster_name: str
    broker_name: str
