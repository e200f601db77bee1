"""Pushed routes among strangers: Java clients hear of none, Java name servers send none, Java brokers cause some."""

import asyncio
import logging
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from tests.interop.client_matrix import Run, finish, start_matrix
from tests.interop.java_shell import JavaShell
from tests.interop.servers import CLUSTER, HOLDFAST_SETTINGS, JAVA_SETTINGS
from tests.support.child import Child
from tests.support.client_stories import queue_count, wait_for_queues
from tests.support.cluster.ports import free_port
from tests.support.cluster.processes import BrokerProcess, ProcessCluster
from tests.support.cluster.raw_requests import make_topic, wait_until_registered
from tests.support.java_peer import JavaPeer
from tests.support.tap import Tap
from tests.support.watchers import Peer

from holdfast import Producer
from holdfast.cli.main import main
from holdfast.client.routes import route_refresher
from holdfast.client.routes.route_table import RouteTable
from holdfast.wire.cluster.watch import WATCH_FIELD
from holdfast.wire.frames.codes import RequestCode, ResponseCode

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

# Topics are created and looked up, groups come and go: all that makes a client ask a name server. The last one takes
# more than ten seconds, in which routes change.
CHECKS = ("sync", "auto_created_topic", "ordered", "group_shares_queues", "transaction_decided", "retry_default_delay")
QUEUES_MAX = 40


@pytest.fixture(autouse=True)
def calm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let name servers push though the machine is busy with tests."""
    monkeypatch.setenv("HOLDFAST_NAMESRV_NOTIFY_BACK_OFF", "false")


@pytest.fixture
def children() -> Iterator[list[Child]]:
    """Programs that are killed at the end, the last one first."""
    started: list[Child] = []
    yield started
    for child in reversed(started):
        child.kill()


async def grow_meanwhile(name_server: str, broker: BrokerProcess, topic: str, program: Child) -> tuple[Run, int]:
    """Add queues to *topic* while *program* runs; return what it reported, and how often a watching client was told."""
    host, port = name_server.rsplit(":", 1)
    client = Peer(*await asyncio.open_connection(host, int(port)))
    await client.watch(topic)
    ended = asyncio.ensure_future(asyncio.to_thread(finish, program))
    queues = 4
    while not ended.done():
        told = asyncio.ensure_future(client.next_notice())
        await asyncio.wait({told, ended}, return_when=asyncio.FIRST_COMPLETED)
        if told.done() and queues < QUEUES_MAX:
            queues += 1
            await asyncio.to_thread(make_topic, name_server, [broker.address], topic, queues=queues)
        told.cancel()
    await client.close()
    return ended.result(), len(client.notices)


@pytest.mark.parametrize("peer_name", ["peer_4", "peer_5"])
@pytest.mark.parametrize("serializer", ["JSON", pytest.param("ROCKETMQ", marks=pytest.mark.slow)])
async def test_a_java_client_is_never_sent_a_notice_and_goes_on_working(
    request: pytest.FixtureRequest, tmp_path: Path, peer_name: str, serializer: str
) -> None:
    """Its topic grows under it, and a client that watches is told so; Java's gets answers and nothing else."""
    peer: JavaPeer = request.getfixturevalue(peer_name)
    with ProcessCluster(tmp_path) as cluster:
        name_server = cluster.namesrv
        broker = cluster.start("broker-a", cluster=CLUSTER, settings=HOLDFAST_SETTINGS)
        with Tap(name_server) as tap:
            home = tmp_path / "client"
            program = start_matrix(peer, tap.address, "Push-", home, serializer=serializer, checks=CHECKS)
            report, notices = await grow_meanwhile(name_server, broker, "Push-sync", program)

    for check in CHECKS:
        report.check_passed(check)
    assert notices > 2
    assert [answer for answer in tap.answers if answer.body] != []
    assert tap.pushed == []


@pytest.mark.parametrize("peer_name", ["peer_5", pytest.param("peer_4", marks=pytest.mark.slow)])
async def test_a_java_name_server_is_polled_and_that_is_said(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    children: list[Child],
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    peer_name: str,
) -> None:
    """Sends work, a change is known after a poll, and one line at debug level says why it takes so long."""
    caplog.set_level(logging.DEBUG, "holdfast")
    monkeypatch.setattr(route_refresher, "RouteTable", partial(RouteTable, 5_000))  # nobody here waits 30 s for a poll
    peer: JavaPeer = request.getfixturevalue(peer_name)
    port = free_port()
    name_server = f"127.0.0.1:{port}"

    with ProcessCluster(tmp_path, name_servers=0) as cluster:
        children.append(peer.start_name_server(port=port, home=tmp_path / "namesrv"))
        broker = cluster.start("ours", namesrv=name_server, cluster=CLUSTER)
        make_topic(name_server, [broker.address], "t", queues=2)
        with Tap(name_server) as tap:
            async with Producer(tap.address) as producer:
                assert (await producer.send("t", b"before")).queue.topic == "t"
                assert await queue_count(producer, "missing") in {None, 4}
                await asyncio.to_thread(make_topic, name_server, [broker.address], "t", queues=5)
                await wait_for_queues(producer, "t", 5)
                assert (await producer.send("t", b"after")).queue.topic == "t"
        assert await asyncio.to_thread(main, ["cluster", "describe", "--namesrv", name_server]) == 0
        (described,) = [line for line in capsys.readouterr().out.splitlines() if "does not push" in line]
        children.pop().kill()

    assert name_server in described
    said = [record for record in caplog.records if "does not push" in record.getMessage()]
    assert [record.levelno for record in said] == [logging.DEBUG]
    assert tap.address in said[0].getMessage()
    queries = [command for command in tap.requests if command.code == RequestCode.GET_ROUTEINFO_BY_TOPIC]
    assert {command.fields.get(WATCH_FIELD) for command in queries} == {"true"}
    assert tap.pushed == []
    # Nothing was asked that a Java name server does not know.
    assert {answer.code for answer in tap.answers} <= {ResponseCode.SUCCESS, ResponseCode.TOPIC_NOT_EXIST}


@pytest.mark.parametrize(
    ("peer_name", "broker_events"),
    [
        ("peer_5", "spread"),
        pytest.param("peer_5", "off", marks=pytest.mark.slow),
        ("peer_4", "off"),
        pytest.param("peer_4", "spread", marks=pytest.mark.slow),
    ],
)
async def test_a_topic_that_is_made_on_a_java_broker_is_told_at_once(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    children: list[Child],
    monkeypatch: pytest.MonkeyPatch,
    peer_name: str,
    broker_events: str,
) -> None:
    """A client of ours that asked for it in vain knows it long before a poll; a change of it likewise."""
    monkeypatch.setenv("HOLDFAST_NAMESRV_BROKER_EVENTS", broker_events)
    peer: JavaPeer = request.getfixturevalue(peer_name)

    with ProcessCluster(tmp_path) as cluster:
        name_server = cluster.namesrv
        settings = {**JAVA_SETTINGS, "autoCreateTopicEnable": "false"}
        children.append(
            peer.start_broker(
                name="theirs",
                cluster=CLUSTER,
                port=free_port(),
                name_server=name_server,
                store=tmp_path / "theirs",
                settings=settings,
            )
        )
        wait_until_registered(name_server, ["theirs"])
        with JavaShell(peer, name_server, tmp_path / "shell") as shell:
            async with Producer(name_server) as producer:
                assert await queue_count(producer, "made") is None
                for queues in (3, 5):
                    words = ("updateTopic", "-c", CLUSTER, "-t", "made", "-r", str(queues), "-w", str(queues))
                    assert "success" in await asyncio.to_thread(shell.mqadmin, *words)
                    async with asyncio.timeout(15):
                        await wait_for_queues(producer, "made", queues)
                assert (await producer.send("made", b"hello")).queue.broker_name == "theirs"
        children.pop().kill()
