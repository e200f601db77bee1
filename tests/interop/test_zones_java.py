"""Zone mode with the real thing: a Java 5.5.0 broker and ours in two zones, Java 5.5.0 clients in each of them.

The same story runs under a Java 5.5.0 name server, to prove the story itself.
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.interop.foreign_members import Member, java_member
from tests.interop.servers import CLUSTER, HOLDFAST_SETTINGS, JAVA_SETTINGS
from tests.interop.test_mixed_cluster import start_name_server
from tests.support.child import Child
from tests.support.cluster.ports import free_port
from tests.support.cluster.processes import ProcessCluster
from tests.support.cluster.raw_requests import JAVA_4, make_topic, raw_request, wait_until_gone, wait_until_registered
from tests.support.java_peer import JavaPeer

from holdfast import PullConsumer
from holdfast.wire.cluster.route import decode_route

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

TOPIC = "TopicTest"
QUEUES = 4
COUNT = 2 * QUEUES
_GET_ROUTE = 105
_PATIENCE_S = 90.0


@dataclass(frozen=True, slots=True)
class Zones:
    """A running cluster: broker `ours` in zone Harbour, broker `theirs` in zone Hill."""

    name_server: str
    peer: JavaPeer
    folder: Path
    ours: Child

    def brokers_in_route(self, **fields: str) -> set[str]:
        """Return the brokers of the route of the topic that a client with these fields gets."""
        answer = raw_request(self.name_server, _GET_ROUTE, {"topic": TOPIC, **fields}, **JAVA_4)
        assert answer.code == 0, answer
        route = decode_route(answer.body)
        names = {data.broker_name for data in route.broker_datas}
        assert {data.broker_name for data in route.queue_datas} == names
        return names

    def member(self, zone: str) -> Member:
        """Start a Java client in zone mode."""
        options = [f"-Drocketmq.zone={zone}", "-Drocketmq.zone.mode=true"]
        home = self.folder / f"client-{zone}"
        return java_member(self.peer, zone, self.name_server, TOPIC, "zoned", home, options)


@pytest.fixture(
    scope="module", params=[pytest.param("holdfast", id="our-name-server"), pytest.param("java", id="java-name-server")]
)
def zones(
    request: pytest.FixtureRequest, peer_5: JavaPeer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Zones]:
    folder = tmp_path_factory.mktemp("zones")
    children: list[Child] = []
    with ProcessCluster(folder, name_servers=0) as cluster:
        try:
            name_server = start_name_server(request.param, peer_5, cluster, children, folder)
            settings = {**HOLDFAST_SETTINGS, "zone": "Harbour"}
            ours = cluster.start("ours", namesrv=name_server, cluster=CLUSTER, settings=settings)
            port = free_port()
            children.append(
                peer_5.start_broker(
                    name="theirs",
                    cluster=CLUSTER,
                    port=port,
                    name_server=name_server,
                    store=folder / "theirs",
                    settings=JAVA_SETTINGS,
                    options=["-Drocketmq.zone=Hill"],
                )
            )
            wait_until_registered(name_server, ["ours", "theirs"])
            make_topic(name_server, [ours.address, f"127.0.0.1:{port}"], TOPIC, queues=QUEUES)
            yield Zones(name_server, peer_5, folder, ours.child)
        finally:
            for child in reversed(children):
                child.kill()


def test_a_route_has_the_brokers_of_the_zone(zones: Zones) -> None:
    """Both kinds of broker register their zone, and both kinds of name server go by it."""
    on = {"__ZONE_MODE": "true"}

    assert zones.brokers_in_route(__ZONE_NAME="harbour", **on) == {"ours"}
    assert zones.brokers_in_route(__ZONE_NAME="HILL", **on) == {"theirs"}
    assert zones.brokers_in_route(__ZONE_NAME="nowhere", **on) == set()
    assert zones.brokers_in_route(__ZONE_NAME=CLUSTER, **on) == set()
    assert zones.brokers_in_route(__ZONE_NAME="Hill") == {"ours", "theirs"}
    assert zones.brokers_in_route(__ZONE_NAME="", **on) == {"ours", "theirs"}
    assert zones.brokers_in_route() == {"ours", "theirs"}


async def read_everything(name_server: str) -> dict[str, set[str]]:
    """Return the senders of the messages that each broker has."""
    found: dict[str, set[str]] = defaultdict(set)
    async with PullConsumer(name_server, "auditor", auto_commit=False) as consumer:
        await consumer.assign(await consumer.queues(TOPIC))
        await consumer.seek_all("earliest")
        while messages := await consumer.poll(timeout_s=2, messages_max=1000):
            for message in messages:
                found[message.queue.broker_name].add(message.body.decode().partition(" ")[0])
    return found


async def test_java_clients_send_and_consume_in_their_zone(zones: Zones) -> None:
    """A producer reaches only the broker of its zone, and a consumer reads only that."""
    members = [zones.member("Harbour"), zones.member("Hill")]
    try:
        for member in members:
            member.ready()
        for member in members:
            member.send(COUNT)
        deadline = time.monotonic() + _PATIENCE_S
        while not all(member.is_idle and len(member.said().got) >= COUNT for member in members):
            assert time.monotonic() < deadline, [member.said() for member in members]
            await asyncio.sleep(0.05)  # foreign programs send no event

        for member in members:
            assert not member.said().failed
            assert {body.partition(" ")[0] for _, _, body in member.said().got} == {member.name}
    finally:
        for member in members:
            member.child.kill()

    assert await read_everything(zones.name_server) == {"ours": {"Harbour"}, "theirs": {"Hill"}}


def test_a_broker_that_leaves_its_zone_leaves_an_empty_route(zones: Zones) -> None:
    """The topic still exists: the answer is a success without brokers. Runs last."""
    zones.ours.stop()
    wait_until_gone(zones.name_server, ["ours"])

    assert zones.brokers_in_route(__ZONE_NAME="Harbour", __ZONE_MODE="true") == set()
