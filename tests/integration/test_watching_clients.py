"""Clients that watch routes, on real processes: what changes reaches them long before they would ask."""

import asyncio
import re
import urllib.request
from pathlib import Path

import pytest
from tests.support.cluster.ports import free_port
from tests.support.cluster.process_presets import (
    QUEUES,
    TOPIC,
    create_static,
    static_topic_cluster,
    try_to_move,
    wait_for_moves,
)
from tests.support.deliveries import poll_until

from holdfast import Producer, SendFailed
from holdfast.admin.operations import Admin

pytestmark = pytest.mark.timeout(170)

# Far below the 30 s after which a client asks by itself, far above the second after which it is told.
_SOON_S = 12


@pytest.fixture(autouse=True)
def busy_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let name servers tell clients also while other tests keep the machine busy."""
    monkeypatch.setenv("HOLDFAST_NAMESRV_NOTIFY_BACK_OFF", "false")


def relayed(metrics: str) -> int:
    """Return how many sends a broker has passed on to other leaders."""
    with urllib.request.urlopen(f"http://{metrics}/metrics", timeout=5) as answer:
        found = re.search(rb"^holdfast_broker_relayed_sends_total (\d+)", answer.read(), re.MULTILINE)
    assert found is not None
    return int(found[1])


def leaders(producer: Producer) -> set[str]:
    """Return who leads the queues of the topic, as far as *producer* knows."""
    route = producer._client.routes.find(TOPIC)
    return set() if route is None else {leader.broker for leader in route.leaders.values()}


async def send_forever(producer: Producer, sent: list[int]) -> None:
    while True:
        await producer.send(TOPIC, b"%d" % len(sent))
        sent.append(1)


async def test_producers_follow_a_move_without_an_error(tmp_path: Path):
    """Whether they send or not; and the old leader has nothing to pass on any more."""
    with static_topic_cluster(tmp_path) as stage:
        metrics = f"127.0.0.1:{free_port()}"
        stage.start("broker-a", settings={"metrics_listen": metrics})
        stage.start("broker-b")
        await create_static(stage, "broker-a")
        producers = [Producer(stage.namesrv, f"p{number}") for number in range(6)]
        async with Admin(stage.namesrv) as admin:
            for producer in producers:
                await producer.start()
                await producer.send(TOPIC, b"first")
            busy: list[int] = []
            tasks = [asyncio.ensure_future(send_forever(producer, busy)) for producer in producers[:3]]

            async with asyncio.timeout(_SOON_S):
                await try_to_move(admin, "broker-b")
                await wait_for_moves(admin)
                await poll_until(lambda: all(leaders(producer) == {"broker-b"} for producer in producers))

            for task in tasks:
                task.cancel()
            ended = await asyncio.gather(*tasks, return_exceptions=True)
            assert all(isinstance(error, asyncio.CancelledError) for error in ended), ended
            before = await asyncio.to_thread(relayed, metrics)
            for producer in producers:
                await asyncio.gather(*(producer.send(TOPIC, b"x") for _ in range(10 * QUEUES)))
            assert await asyncio.to_thread(relayed, metrics) == before
            for producer in producers:
                await producer.close()


async def test_a_missing_topic_is_there_when_it_is_created(tmp_path: Path):
    """Nobody asks for it meanwhile, however often somebody sends to it."""
    with static_topic_cluster(tmp_path, "broker-a", settings={"auto_create_topics": False}) as stage:
        async with Producer(stage.namesrv) as producer:
            with pytest.raises(SendFailed, match="create it first"):
                await producer.send("later", b"x")
            await stage.operator.run("topic", "create", "later")

            async with asyncio.timeout(_SOON_S):
                await poll_until(lambda: producer._client.routes.find("later") is not None)

            assert (await producer.send("later", b"x")).offset == 0


async def test_a_name_server_that_comes_back_is_asked_and_tells_again(tmp_path: Path):
    """What was watched before is watched again, by who did not send anything meanwhile."""
    with static_topic_cluster(tmp_path, "broker-a") as stage:
        await stage.operator.run("topic", "create", "orders")
        async with Producer(stage.namesrv) as producer:
            await producer.send("orders", b"x")
            stage.kill(stage.namesrv)
            await asyncio.to_thread(stage.restart, stage.namesrv)
            async with asyncio.timeout(_SOON_S), Admin(stage.namesrv) as admin:
                await until_told(admin, "orders")
                await stage.operator.run("topic", "update", "orders", "--queues", "7")
                await poll_until(lambda: queue_count(producer, "orders") == 7)
            queues = await producer.queues("orders")
            assert sorted(queue.queue_id for queue in queues) == list(range(7))


def queue_count(producer: Producer, topic: str) -> int:
    """Return how many queues *topic* has, as far as *producer* knows."""
    route = producer._client.routes.find(topic)
    return 0 if route is None else len(route.publishable)


async def until_told(admin: Admin, topic: str) -> None:
    """Return once the name server knows *topic* again."""
    while await admin.access.find_route(topic) is None:  # noqa: ASYNC110 - a name server tells nobody that asks so
        await asyncio.sleep(0.05)
