"""A logical queue that is forgotten and gets a new home: no offset is used twice, on real processes."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.support.client_stories import Inbox
from tests.support.cluster.process_presets import TOPIC, create_static, static_topic_cluster
from tests.support.cluster.processes import ProcessCluster

from holdfast import Message, Producer, PushConsumer

pytestmark = pytest.mark.timeout(170)

GROUP = "readers"
QUEUE = "3"
GAP = 1 << 40


async def send(stage: ProcessCluster, *numbers: int) -> list[int]:
    """Send a message for each number to the queue; return their offsets."""
    async with Producer(stage.namesrv, timeout_s=20) as producer:
        target = (await producer.queues(TOPIC))[int(QUEUE)]
        return [(await producer.send(Message(TOPIC, b"%d" % number), queue=target)).offset for number in numbers]


async def consume(stage: ProcessCluster, count: int) -> list[int]:
    """Return the offsets of the next *count* messages of the group, and commit them."""
    inbox = Inbox()
    consumer = PushConsumer(stage.namesrv, GROUP, listener=inbox, start="earliest")
    consumer.subscribe(TOPIC)
    async with consumer:
        return [message.offset for message in await inbox.wait_for(count)]


async def start(stage: ProcessCluster) -> None:
    """Let a queue be sent and consumed 10 messages, and then be forgotten."""
    for name in ("b1", "b2"):
        stage.start(name)
    await create_static(stage, "b1", queues=4)
    assert await send(stage, *range(10)) == list(range(10))
    assert await consume(stage, 10) == list(range(10))
    await stage.operator.run("queue", "unset", TOPIC, QUEUE, "--yes")


def labels(printed: dict[str, Any]) -> list[str]:
    """Return what the last table of a command says of its queues."""
    return [row["label"] for row in printed["tables"][0]["after"]]


async def test_a_group_continues_in_a_queue_that_was_forgotten_and_set_elsewhere(tmp_path: Path):
    """Later messages are neither hidden from the group nor missing in its lag."""
    with static_topic_cluster(tmp_path) as stage:
        await start(stage)
        words = ["queue", "set", TOPIC, QUEUE, "--broker", "b2"]
        status, said = await stage.operator.attempt(*words, "--first", "9")
        assert status != 0
        assert "offsets below 10 were used" in said

        planned = await stage.operator.run(*words, "--dry-run")
        made = await stage.operator.run(*words)

        assert f"{QUEUE}(10-)" in labels(planned)
        assert labels(made) == labels(planned)
        assert await send(stage, *range(10, 15)) == list(range(10, 15))
        assert (await stage.operator.run("group", "lag", GROUP, TOPIC))["lag"] == 5
        assert await consume(stage, 5) == list(range(10, 15))


async def test_a_consumer_that_runs_throughout_gets_everything(tmp_path: Path):
    """On the same broker, over a restart of it, and by a repair."""
    with static_topic_cluster(tmp_path, "b1", flush="sync") as stage:
        await create_static(stage, "b1", queues=4)
        inbox = Inbox()
        consumer = PushConsumer(stage.namesrv, GROUP, listener=inbox, start="earliest")
        consumer.subscribe(TOPIC)
        async with consumer:
            await send(stage, *range(10))
            await inbox.wait_for(10)
            await stage.operator.run("queue", "unset", TOPIC, QUEUE, "--yes")
            stage.kill("b1")
            await asyncio.to_thread(stage.restart, "b1")
            await stage.operator.run("queue", "set", TOPIC, QUEUE, "--broker", "b1")
            assert await send(stage, *range(10, 15)) == list(range(10, 15))
            await inbox.wait_for(15)
            await stage.operator.run("queue", "unset", TOPIC, QUEUE, "--yes")
            await stage.operator.run("queue", "repair", TOPIC)
            assert await send(stage, *range(15, 20)) == list(range(15, 20))
            assert [int(message.body) for message in await inbox.wait_for(20)] == list(range(20))


async def test_while_a_broker_that_held_the_queue_is_down_only_force_opens_it(tmp_path: Path):
    """Above the gap of a forced move: the offsets that it may have used stay free."""
    with static_topic_cluster(tmp_path) as stage:
        await start(stage)
        stage.kill("b1")
        words = ["queue", "set", TOPIC, QUEUE, "--broker", "b2"]
        status, said = await stage.operator.attempt(*words)
        assert status != 0
        assert "b1 does not answer" in said
        assert "--force" in said

        status, said = await stage.operator.attempt(*words, "--force", "--first", "100", "--yes")
        assert status != 0
        assert f"offsets below {GAP + 10} were used, or may have been" in said

        made = await stage.operator.run(*words, "--force", "--yes")
        assert made["first"] == GAP + 10


async def test_a_topic_that_is_deleted_and_made_again_starts_at_0(tmp_path: Path):
    """With its group, wherever that had committed."""
    with static_topic_cluster(tmp_path) as stage:
        await start(stage)
        await stage.operator.run("topic", "delete", TOPIC, "--yes")
        await create_static(stage, "b2", queues=4)

        assert await send(stage, *range(3)) == list(range(3))
        assert await consume(stage, 3) == list(range(3))
