"""A name server with brokers that register as real ones do."""

import random
import zlib
from collections.abc import Mapping
from typing import Any

from tests.support.cluster.machine import MachineHarness

from holdfast.machine.events import ChannelId
from holdfast.model.route import Route
from holdfast.model.topic import TopicConfig
from holdfast.nameserver.cluster.queue_leases import FILE as LEASES_FILE
from holdfast.nameserver.config.kv_config import FILE as KV_FILE
from holdfast.nameserver.core import NameServer
from holdfast.nameserver.options import NameServerOptions
from holdfast.nameserver.route_changes import RouteChanges
from holdfast.nameserver.routes.static_topic_store import FILE as STATIC_FILE
from holdfast.sim.world.disk import SimDisk
from holdfast.wire.cluster.registration import DataVersion, Registration, Topics, encode_registration
from holdfast.wire.cluster.route import decode_route
from holdfast.wire.frames.codes import RequestCode
from holdfast.wire.frames.command import Command, encode_command


def a_name_server(
    kv_content: bytes | None = None,
    static_content: bytes | None = None,
    lease_content: bytes | None = None,
    **options: Any,
) -> MachineHarness:
    """Return a name server that has just started, with a disk if it has a data folder or files are given."""
    files = {KV_FILE: kv_content, STATIC_FILE: static_content, LEASES_FILE: lease_content}
    disk = SimDisk() if "data" in options or any(content is not None for content in files.values()) else None
    for path, content in files.items():
        if disk is not None and content is not None:
            disk.replace(path, content)
    return MachineHarness(NameServer(NameServerOptions(**options), random.Random(7), disk=disk))


def pop_changes(changes: RouteChanges) -> set[str]:
    """Return the topics whose routes changed since the last call."""
    topics = changes.topics
    changes.clear()
    return topics


def a_topic(name: str, queues: int = 4, **parts: Any) -> TopicConfig:
    """Return a topic of *queues* queues."""
    return TopicConfig(name=name, read_queues=queues, write_queues=queues, **parts)


def a_registration(*topics: TopicConfig | str, counter: int = 1, state_version: int = 0, **parts: Any) -> bytes:
    """Return the body of a 103."""
    configs = [topic if isinstance(topic, TopicConfig) else a_topic(topic) for topic in topics]
    return encode_registration(
        Registration(
            topic_config_serialize_wrapper=Topics(
                topic_config_table={config.name: config for config in configs},
                data_version=DataVersion(counter=counter, state_version=state_version, timestamp=1),
                topic_queue_mapping_info_map=parts.get("mappings", {}),
            ),
            filter_server_list=parts.get("filter_servers", []),
        )
    )


def registration_fields(name: str, address: str, body: bytes, **extra_fields: str) -> dict[str, str]:
    """Return the header of a 103."""
    return {
        "brokerName": name,
        "brokerAddr": address,
        "clusterName": "C1",
        "haServerAddr": f"{address}0",
        "brokerId": "0",
        "compressed": "false",
        "bodyCrc32": str(zlib.crc32(body) & 0x7FFFFFFF),
        **extra_fields,
    }


def register(
    server: MachineHarness,
    name: str = "a",
    address: str = "10.0.0.1:10911",
    *,
    body: bytes | None = None,
    channel: ChannelId | None = None,
    version: int = 479,
    **extra_fields: str,
) -> Command:
    """Let a broker register and return the answer."""
    body = a_registration("orders") if body is None else body
    fields = registration_fields(name, address, body, **extra_fields)
    return server.request(RequestCode.REGISTER_BROKER, fields, body=body, channel=channel, version=version)


def request_route(server: MachineHarness, topic: str, **how: Any) -> Command:
    """Ask for a route and return the answer."""
    return server.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic}, **how)


def find_route(server: MachineHarness, topic: str) -> Route | None:
    """Return what clients are told about *topic*; None when they are told that it does not exist."""
    answer = request_route(server, topic)
    assert answer.code in {0, 17}
    return decode_route(answer.body) if answer.code == 0 else None


def addresses(server: MachineHarness, topic: str = "orders") -> Mapping[str, Mapping[int, str]]:
    """Return broker name -> id -> address of a topic's route; empty when there is none."""
    route = find_route(server, topic)
    return {broker.broker_name: broker.broker_addrs for broker in route.broker_datas} if route is not None else {}


def route_frame(topic: str, opaque: int, *, version: int = 479, language: str = "JAVA") -> bytes:
    """Return the frame of one route query."""
    command = Command(
        code=RequestCode.GET_ROUTEINFO_BY_TOPIC,
        opaque=opaque,
        fields={"topic": topic},
        version=version,
        language=language,
    )
    return encode_command(command)


def heartbeat_fields(name: str = "a", address: str = "10.0.0.1:10911", **extra_fields: str) -> dict[str, str]:
    """Return the header by which a broker says that it is there, or that it goes."""
    return {"brokerName": name, "brokerAddr": address, "clusterName": "C1", "brokerId": "0", **extra_fields}
