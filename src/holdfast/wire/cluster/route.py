"""Queries to a name server: routes (105), clusters (106), topics (206, 224) and the KV store (100, 101, 102, 219)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from holdfast.model.errors import RemoteProtocolError
from holdfast.model.mapping import TopicMapping
from holdfast.model.numbers import Int32
from holdfast.model.route import MASTER_ID, BrokerData, QueueData, Route
from holdfast.wire.cluster.mapping import MappingInfo, encode, from_info, to_info
from holdfast.wire.cluster.registration import ZONE_FIELD
from holdfast.wire.cluster.units import GROUP_FIELD
from holdfast.wire.cluster.watch import WATCHING_FIELD
from holdfast.wire.frames import java_json
from holdfast.wire.frames.codes import OUR_LANGUAGE, VERSION
from holdfast.wire.frames.frame import JSON, frame_prefix

# From 4.9.4 on clients accept quoted integer keys; at least one older client in use accepts only bare ones.
QUOTED_KEYS_VERSION: Final = 401
QUEUES_MAX: Final = 65_536
_ROUTE_QUEUES_MAX: Final = 1_000_000  # of all brokers together
MAPPING_FIELD: Final = "hf.mapping"
"""The field in which a client that is not Java says that it supports mappings of static topics."""
REPORTS_FIELD: Final = "hf.reports"
"""The field in which a broker asks for every valid registration of a static topic, from live and dead brokers, even if
it makes no route for clients."""
DEPARTED_FIELD: Final = "hf.left"
"""The field of 106 that also asks for the brokers that left, and their queues of the topics that the body names."""
_MAPPING_VERSION: Final = 413  # 5.0.0: from here on Java clients support mappings.
_QUOTED_ID = re.compile(rb'(?<=[{,])"(\d+)":')


class RouteFields(msgspec.Struct, gc=False, kw_only=True, rename="camel"):
    """The header fields of 105 that every query needs.

    Attributes:
        scope: The client's unit; empty for none.
        zone: The client's zone, which upstream's clients send with every request.
        zone_mode: Whether the client wants only brokers of its zone: `true` in any case.
    """

    topic: str
    accept_standard_json_only: bool = False
    watch: bool = False
    scope: str = ""
    zone: str = msgspec.field(default="", name=ZONE_FIELD)
    zone_mode: str = msgspec.field(default="", name="__ZONE_MODE")

    @property
    def zone_filter(self) -> str:
        """The zone to which the client restricts the route; empty for all zones."""
        return self.zone if self.zone_mode.lower() == "true" and self.zone.strip() else ""


class RouteQueryFields(RouteFields, gc=False, kw_only=True):
    """All header fields of 105. The hot path reads the two parts separately, and the second one only if it has to."""

    reads_mappings: bool = msgspec.field(default=False, name=MAPPING_FIELD)
    wants_reports: bool = msgspec.field(default=False, name=REPORTS_FIELD)
    group: str = msgspec.field(default="", name=GROUP_FIELD)

    @property
    def caller(self) -> CallerFields:
        """The fields that describe the caller."""
        return CallerFields(reads_mappings=self.reads_mappings, wants_reports=self.wants_reports, group=self.group)


class RouteHeader(msgspec.Struct, gc=False, kw_only=True):
    """The header of one route query, decoded straight from the receive buffer."""

    code: Int32
    opaque: Int32
    flag: Int32 = 0
    version: Int32 = 0
    fields: RouteFields = msgspec.field(name="extFields")


decode_route_query = msgspec.json.Decoder(RouteHeader, strict=False).decode


class CallerFields(msgspec.Struct, gc=False, kw_only=True):
    """The header fields of 105 that describe the caller, such as a broker that wants reports."""

    reads_mappings: bool = msgspec.field(default=False, name=MAPPING_FIELD)
    wants_reports: bool = msgspec.field(default=False, name=REPORTS_FIELD)
    group: str = msgspec.field(default="", name=GROUP_FIELD)


class CallerHeader(msgspec.Struct, gc=False, kw_only=True):
    """The caller of a route query. Separate from `RouteHeader`, because only queries for static topics need it."""

    version: Int32 = 0
    language: str | Int32 | None = None
    fields: CallerFields = msgspec.field(name="extFields")


decode_route_caller = msgspec.json.Decoder(CallerHeader, strict=False).decode


def is_mapping_aware(language: str | int | None, version: int) -> bool:
    """Return whether a client supports mappings of static topics although it sends no such field.

    A version alone is no proof: clients in other languages announce high ones.
    """
    return version >= _MAPPING_VERSION and language in {"JAVA", 0}


class RouteAnswer(msgspec.Struct, frozen=True, gc=False):
    """A whole JSON frame that answers a 105, except for the opaque.

    The answer to opaque n is `heads[len(digits)] + digits + tail`, where digits is n in decimal. It is rendered once
    and sent thousands of times per second, so heads, which include the frame's sizes, exist for every count of digits.
    """

    heads: tuple[bytes, ...]
    tail: bytes

    @property
    def body(self) -> bytes:
        """The body alone, for an answer with a different header."""
        return self.tail[len(_TAIL) :]


_HEAD: Final = b'{"code":0,"flag":1,"language":"%b","opaque":' % OUR_LANGUAGE.encode()
_TAIL: Final = b',"serializeTypeCurrentRPC":"JSON","version":%d}' % VERSION
_WATCHING_HEAD: Final = b'{"code":0,"extFields":{"%b":"true"},"flag":1,"language":"%b","opaque":' % (
    WATCHING_FIELD.encode(),
    OUR_LANGUAGE.encode(),
)
_DIGITS_MAX: Final = len("-2147483648")


def render_answer(body: bytes) -> RouteAnswer:
    """Return the answer that carries *body*."""
    bare_size = len(_HEAD) + len(_TAIL)
    return RouteAnswer(
        tuple(frame_prefix(JSON, bare_size + count, len(body)) + _HEAD for count in range(_DIGITS_MAX + 1)),
        _TAIL + body,
    )


def watching_head(answer: RouteAnswer, digit_count: int) -> bytes:
    """Return the head that replaces `answer.heads[digit_count]` for a client that watches the topic.

    It is computed per answer: that is cheaper than the memory for a dozen heads per topic.
    """
    header_size = len(_WATCHING_HEAD) + digit_count + len(_TAIL)
    return frame_prefix(JSON, header_size, len(answer.tail) - len(_TAIL)) + _WATCHING_HEAD


def encode_route(route: Route) -> bytes:
    """Return the body of a route answer for clients that read standard JSON."""
    return join_route(
        map(encode_broker, route.broker_datas),
        map(java_json.encode, route.queue_datas),
        filter_servers=route.filter_server_table,
        order_topic_conf=route.order_topic_conf,
        mappings={name: encode(to_info(mapping)) for name, mapping in route.mappings.items()},
    )


def encode_broker(broker: BrokerData) -> bytes:
    """Return one broker of a route or of a cluster, with addresses in ascending order of ids."""
    addresses = {str(number): broker.broker_addrs[number] for number in sorted(broker.broker_addrs)}
    parts: dict[str, object] = {
        "brokerAddrs": addresses,
        "brokerName": broker.broker_name,
        "cluster": broker.cluster,
        "enableActingMaster": broker.enable_acting_master,
    }
    if broker.zone_name is not None:
        parts["zoneName"] = broker.zone_name
    return java_json.encode(parts)


def encode_queue(queue: QueueData) -> bytes:
    """Return one broker's queues of a topic."""
    return java_json.encode(queue)


def join_route(
    brokers: Iterable[bytes],
    queues: Iterable[bytes],
    *,
    filter_servers: Mapping[str, list[str]],
    order_topic_conf: str | None = None,
    mappings: Mapping[str, bytes] | None = None,
) -> bytes:
    """Return the body of a route answer, assembled from encoded parts.

    Absent members are left out, because null and empty mean different things to Java clients: for example, an empty
    `orderTopicConf` hides the mapping of a static topic from producers.

    Args:
        brokers: From `encode_broker`.
        queues: From `encode_queue`.
        filter_servers: Broker address to class filter servers; always sent, usually empty.
        order_topic_conf: `broker:count;...` of an ordered topic.
        mappings: Broker name to its record of a static topic, as that broker registered it.
    """
    pieces = [b'{"brokerDatas":[', b",".join(brokers), b'],"filterServerTable":', java_json.encode(filter_servers)]
    if order_topic_conf is not None:
        pieces += (b',"orderTopicConf":', java_json.encode(order_topic_conf))
    pieces += (b',"queueDatas":[', b",".join(queues), b"]")
    if mappings:
        pieces += (b',"topicQueueMappingByBroker":', _join_members(mappings))
    pieces.append(b"}")
    return b"".join(pieces)


def join_cluster_info(
    brokers: Mapping[str, bytes],
    clusters: Mapping[str, list[str]],
    departed: Mapping[str, DepartedBroker] | None = None,
) -> bytes:
    """Return the body of the answer to 106, with bare integer keys, as upstream sends them to every caller.

    Args:
        brokers: Broker name to the result of `encode_broker`.
        clusters: Cluster name to broker names.
        departed: Broker name to what a broker that left had; None for callers that did not ask for it.
    """
    # Only inside the brokers: a broker's name is always a string, even if it looks like a number.
    members = _join_members({name: bare_keys(text) for name, text in brokers.items()})
    tail = b"}" if departed is None else b',"leftBrokers":' + java_json.encode(departed) + b"}"
    return b"".join((b'{"brokerAddrTable":', members, b',"clusterAddrTable":', java_json.encode(clusters), tail))


def _join_members(members: Mapping[str, bytes]) -> bytes:
    """Return an object whose member values are already encoded."""
    return b"{" + b",".join(java_json.encode(key) + b":" + value for key, value in members.items()) + b"}"


def bare_keys(body: bytes) -> bytes:
    """Return *body* with bare integer keys in `brokerAddrs`, as old clients require."""
    return _QUOTED_ID.sub(rb"\1:", body)


class RouteBody(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Body of the answer to 105."""

    broker_datas: list[BrokerData] = []
    queue_datas: list[QueueData] = []
    filter_server_table: dict[str, list[str]] = {}
    order_topic_conf: str | None = None
    topic_queue_mapping_by_broker: dict[str, MappingInfo] | None = None


def decode_route(body: bytes) -> Route:
    """Decode the body of a route answer of any name server.

    Raises:
        RemoteProtocolError: it is not a route, or declares more queues than the limits allow.
    """
    decoded = java_json.decode(body, RouteBody)
    route = Route(
        broker_datas=decoded.broker_datas,
        queue_datas=decoded.queue_datas,
        filter_server_table=decoded.filter_server_table,
        order_topic_conf=decoded.order_topic_conf,
        mappings=_to_mappings(decoded.topic_queue_mapping_by_broker or {}),
    )
    _check_counts(route)
    return route


def _check_counts(route: Route) -> None:
    """Refuse a route with too many queues: clients build a list of all of them."""
    for data in route.queue_datas:
        if not (0 <= data.read_queues <= QUEUES_MAX and 0 <= data.write_queues <= QUEUES_MAX):
            raise RemoteProtocolError(f"broker {data.broker_name} claims {data.read_queues}/{data.write_queues} queues")
    ordered = sum(count for _, count in route.order_counts())
    total = max(sum(max(data.read_queues, data.write_queues) for data in route.queue_datas), ordered)
    if total > _ROUTE_QUEUES_MAX:
        raise RemoteProtocolError(f"a route claims {total} queues")


def _to_mappings(infos: Mapping[str, MappingInfo]) -> dict[str, TopicMapping]:
    """Return the records that brokers registered of a static topic.

    An invalid record, or one that names another broker, is kept without its queues: the topic is still static, and the
    records of other brokers are still valid.
    """
    return {name: _to_mapping(name, info) for name, info in infos.items()}


def _to_mapping(broker: str, info: MappingInfo) -> TopicMapping:
    try:
        mapping = from_info(info)
    except RemoteProtocolError:
        mapping = None
    if mapping is None or mapping.broker != broker:
        return TopicMapping(topic=info.topic, broker=broker, scope=info.scope, epoch=info.epoch)
    return mapping


class DepartedBroker(msgspec.Struct, frozen=True, rename="camel"):
    """A broker that left and may come back.

    Attributes:
        read_queues: Topic to the number of queues that it had of it, for the normal topics that were asked for.
    """

    cluster: str
    read_queues: dict[str, int] = {}


class ClusterInfo(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Body of the answer to 106; `left_brokers` is ours, and only for callers that ask for it."""

    broker_addr_table: dict[str, BrokerData] = {}
    cluster_addr_table: dict[str, list[str]] = {}
    left_brokers: dict[str, DepartedBroker] = {}

    @property
    def masters(self) -> dict[str, str]:
        """Broker to the address of its master, for those that have one."""
        data = self.broker_addr_table.items()
        return {name: each.broker_addrs[MASTER_ID] for name, each in data if MASTER_ID in each.broker_addrs}


class DepartedFields(msgspec.Struct, frozen=True, kw_only=True):
    """Header of 106: whether the caller, which is ours, also asks for the brokers that left. Any text asks for them."""

    wants_departed: str | None = msgspec.field(default=None, name=DEPARTED_FIELD)


class TopicList(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Body of the answers to 206, 224, 304, 305, 311-313."""

    topic_list: list[str]
    broker_addr: str | None = None


class KvFields(msgspec.Struct, frozen=True, kw_only=True):
    """Header of 100, 101, 102."""

    namespace: str
    key: str
    value: str | None = None


class NamespaceFields(msgspec.Struct, frozen=True, kw_only=True):
    """Header of 219."""

    namespace: str


class ClusterFields(msgspec.Struct, frozen=True, kw_only=True):
    """Header of 224."""

    cluster: str


class BrokerNameFields(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Header of 205, 327."""

    broker_name: str


class DeleteTopicFields(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Header of 216."""

    topic: str
    cluster_name: str | None = None


class RegisterTopicFields(msgspec.Struct, frozen=True, kw_only=True):
    """Header of 217: the topic whose queues are in the body, which is a route."""

    topic: str


class MemberGroup(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The brokers that share a name, in the answer to 901."""

    broker_addrs: dict[int, str]
    broker_name: str
    cluster: str


class MemberGroupAnswer(msgspec.Struct, frozen=True, rename="camel"):
    """Body of the answer to 901."""

    broker_member_group: MemberGroup


class Table(msgspec.Struct, frozen=True):
    """Body with one map of strings: answers to 219, 28, 103."""

    table: dict[str, str] = {}
