"""The name server and brokers of ours as processes: what a user does to a topic reaches a client that watches."""

import asyncio
from pathlib import Path

import pytest
from tests.support.client_stories import poll_until, queue_count, wait_for_queues
from tests.support.cluster.processes import ProcessCluster
from tests.support.watchers import connect_peer

from holdfast import Producer, SendFailed
from holdfast.cli.main import main

BEFORE_A_POLL_S = 15


@pytest.fixture(autouse=True)
def calm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let name servers push though the machine is busy with tests."""
    monkeypatch.setenv("HOLDFAST_NAMESRV_NOTIFY_BACK_OFF", "false")


@pytest.mark.parametrize("broker_events", ["spread", "off"])
async def test_what_is_done_to_a_topic_of_our_broker_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broker_events: str
):
    """Created, grown, deleted, created again: each is one notice, whether or not brokers' events are told."""
    monkeypatch.setenv("HOLDFAST_NAMESRV_BROKER_EVENTS", broker_events)

    with ProcessCluster(tmp_path, "broker-a") as cluster:
        namesrv = cluster.namesrv
        cluster.make_topic("other", queues=1)
        async with connect_peer(namesrv) as client:
            await client.watch("orders")
            for words in (
                ("create", "orders", "--queues", "2"),
                ("update", "orders", "--queues", "4"),
                ("delete", "orders", "--yes"),
                ("create", "orders", "--queues", "3"),
            ):
                assert await asyncio.to_thread(main, ["topic", *words, "--namesrv", namesrv]) == 0
                assert await client.next_notice() == {"orders"}


async def test_a_brokers_end_and_start_are_told(tmp_path: Path):
    """Killed, and started again; stopped in order, and started again."""
    with ProcessCluster(tmp_path, "broker-z", "broker-a") as cluster:
        namesrv = cluster.namesrv
        cluster.make_topic("orders", queues=2, on=["broker-a"])
        async with connect_peer(namesrv) as client:
            await client.watch("orders")
            for is_orderly in (False, True):
                await asyncio.to_thread(cluster.stop if is_orderly else cluster.kill, "broker-a")
                assert await client.next_notice() == {"orders"}
                assert (await client.request_route("orders")).code == 17
                await asyncio.to_thread(cluster.restart, "broker-a")
                assert await client.next_notice() == {"orders"}
                assert (await client.request_route("orders")).code == 0


async def test_a_producer_knows_a_topic_long_before_a_poll(tmp_path: Path):
    """It was refused, the topic is created, and the next send goes through; then to the queues added since."""
    with ProcessCluster(tmp_path, "broker-a", settings={"auto_create_topics": "false"}) as cluster:
        namesrv = cluster.namesrv
        async with Producer(namesrv) as producer:
            assert await queue_count(producer, "orders") is None
            for queues in (2, 5):
                await asyncio.to_thread(cluster.make_topic, "orders", queues=queues)
                async with asyncio.timeout(BEFORE_A_POLL_S):
                    await wait_for_queues(producer, "orders", queues)
                await producer.send("orders", b"hello")


async def test_a_name_server_that_comes_back_is_watched_again(tmp_path: Path):
    """It has forgotten everything; its clients and brokers tell it again."""
    with ProcessCluster(tmp_path, "broker-a") as cluster:
        namesrv = cluster.namesrv
        cluster.make_topic("orders", queues=2)
        async with Producer(namesrv) as producer:
            await wait_for_queues(producer, "orders", 2)
            await asyncio.to_thread(cluster.kill, namesrv)
            await asyncio.to_thread(cluster.restart, namesrv)

            await asyncio.to_thread(cluster.make_topic, "orders", queues=6)

            async with asyncio.timeout(BEFORE_A_POLL_S):
                await wait_for_queues(producer, "orders", 6)
            assert (await producer.send("orders", b"hello")).queue.broker_name == "broker-a"
            async with connect_peer(namesrv) as operator:
                assert (await operator.push_state()).watches > 0


@pytest.mark.parametrize("creates", [True, False])
async def test_a_deleted_static_topic_stays_deleted_until_it_is_created_again(tmp_path: Path, *, creates: bool):
    """Also over a restart of the name server; sends fail at once, and the same producer then uses the new topic."""
    settings = {"auto_create_topics": str(creates).lower()}
    with ProcessCluster(tmp_path, "broker-a", "broker-b", settings=settings) as cluster:
        namesrv = cluster.namesrv

        def restart_name_server() -> None:
            cluster.kill(namesrv)
            cluster.restart(namesrv)
            cluster.wait_until_registered()

        async def topic(*words: str) -> None:
            assert await asyncio.to_thread(main, ["topic", *words, "--namesrv", namesrv]) == 0

        await topic("create", "orders", "--logical-queues", "4")
        async with Producer(namesrv) as producer, asyncio.timeout(60):
            await producer.send("orders", b"x")
            await topic("delete", "orders", "--yes")
            await poll_until(lambda: producer._client.routes.is_deleted("orders"))
            for _ in range(20):
                with pytest.raises(SendFailed, match=r"tried once.*'orders' was deleted"):
                    await producer.send("orders", b"x")
            await asyncio.to_thread(restart_name_server)
            async with Producer(namesrv) as other:
                with pytest.raises(SendFailed, match=r"tried once.*'orders' was deleted"):
                    await other.send("orders", b"x")
            await topic("create", "orders", "--logical-queues", "3")
            await wait_for_queues(producer, "orders", 3)
            await producer.send("orders", b"x")
