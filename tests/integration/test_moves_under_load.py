"""Logical queues move while everybody sends and receives, and whoever takes part may die: the ledger stays right.

The brokers are real processes, moves are ordered with the installed command, and the load never stops. What it measured
is printed (`pytest -rP`), not asserted: a busy machine would decide about that.
"""

import asyncio
import random
from pathlib import Path

import pytest
from tests.support.cluster.process_presets import (
    QUEUES,
    TOPIC,
    count_leaders,
    create_static,
    static_topic_cluster,
    try_to_move,
    wait_for_moves,
)
from tests.support.move_load import StaticTopicLoad

from holdfast.admin.operations import Admin

pytestmark = pytest.mark.timeout(170)

ROUNDS = 3  # kills for each victim: the moment within the move is another one every time


async def test_nobody_notices_moves(tmp_path: Path):
    """Back and forth, to a new broker, off an old one, evened out: no send fails, nothing is lost, repeated, late."""
    with static_topic_cluster(tmp_path, "broker-a", "broker-b") as stage:
        await create_static(stage, "broker-a", "broker-b")
        assert await count_leaders(stage) == {"broker-a": 4, "broker-b": 4}
        async with StaticTopicLoad(stage.namesrv, TOPIC) as load:
            await load.measure()
            first = next(q for q, leader in (await stage.operator.leaders(TOPIC)).items() if leader == "broker-a")
            for target in ("broker-b", "broker-a", "broker-b"):
                moved = await stage.operator.run("queue", "migrate", TOPIC, str(first), "--to", target)
                assert moved["bytes_copied"] == 0
                await load.wait_for_deliveries()
            await asyncio.to_thread(stage.start, "broker-c")
            await stage.operator.run("broker", "spread", "broker-c")
            assert (await count_leaders(stage))["broker-c"] == 2
            await load.wait_for_deliveries()
            await stage.operator.run("broker", "drain", "broker-a")
            assert await count_leaders(stage) == {"broker-b": 4, "broker-c": 4}
            await load.wait_for_deliveries()
            await stage.operator.run("broker", "spread", "broker-a")
            assert (await count_leaders(stage))["broker-a"] == 2
            await load.wait_for_deliveries()
            await stage.operator.run("topic", "move", TOPIC, "--to", "broker-a")
            await load.wait_for_deliveries()
            await stage.operator.run("cluster", "rebalance")
            assert sorted((await count_leaders(stage)).values()) == [2, 3, 3]
            await load.wait_for_deliveries()
            ledger = await load.finish()
        ledger.print_summary("moves")
        ledger.check_unnoticed()


@pytest.mark.parametrize("drained", [True, False])
async def test_a_rolling_restart_of_all_brokers_fails_no_send(tmp_path: Path, *, drained: bool):
    """Each is stopped in order and started again: nobody is told no. Drained before, nobody even waits."""
    with static_topic_cluster(tmp_path, "broker-a", "broker-b") as stage:
        await create_static(stage, "broker-a", "broker-b")
        timeout_s, retries = (3, 0) if drained else (30, 2)
        async with StaticTopicLoad(stage.namesrv, TOPIC, timeout_s=timeout_s, retries=retries) as load:
            await load.measure()
            for name in ("broker-a", "broker-b"):
                if drained:
                    await stage.operator.run("broker", "drain", name)
                    await load.wait_for_deliveries()
                await asyncio.to_thread(stage.stop, name)
                await asyncio.to_thread(stage.restart, name)
                if drained:
                    await stage.operator.run("broker", "spread", name)
                await load.wait_for_deliveries()
            ledger = await load.finish()
        ledger.print_summary("rolling restart")
        assert not ledger.failures, ledger.failures[:3]
        ledger.check_kept()
        assert not (drained and ledger.repeated()), ledger.repeated()[:10]


@pytest.mark.parametrize("victim", ["old leader", "new leader", "name server"])
async def test_whoever_dies_in_the_middle_of_a_move(tmp_path: Path, victim: str):
    """After the restart the move is finished or rolled back by itself, and nothing acknowledged is lost."""
    with static_topic_cluster(tmp_path, "broker-a", "broker-b", flush="sync") as stage:
        await create_static(stage, "broker-a")
        source, target = "broker-a", "broker-b"
        rng = random.Random(victim)
        async with StaticTopicLoad(stage.namesrv, TOPIC, retries_forever=True) as load, Admin(stage.namesrv) as admin:
            for _ in range(ROUNDS):
                await load.wait_for_deliveries(200)
                dies = {"old leader": source, "new leader": target}.get(victim, stage.namesrv)
                moving = asyncio.create_task(try_to_move(admin, target))
                await asyncio.sleep(rng.uniform(0.005, 0.06))  # the whole move takes about that long
                stage.kill(dies)
                await moving
                await asyncio.to_thread(stage.restart, dies)
                await wait_for_moves(admin)
                await load.wait_for_deliveries(200)
                leads = await count_leaders(stage)
                assert leads.total() == QUEUES
                if leads[target]:
                    await stage.operator.run("topic", "move", TOPIC, "--to", target)
                    source, target = target, source
            ledger = await load.finish()
        ledger.print_summary(f"{victim} killed {ROUNDS} times")
        ledger.check_kept()


async def test_an_operator_who_is_killed_leaves_no_half_moves(tmp_path: Path):
    """The brokers carry a move through without whoever ordered it: nobody notices anything."""
    with static_topic_cluster(tmp_path, "broker-a", "broker-b", "broker-c") as stage:
        await create_static(stage, "broker-a")
        async with StaticTopicLoad(stage.namesrv, TOPIC) as load, Admin(stage.namesrv) as admin:
            known = 0
            for targets in ("broker-b,broker-c", "broker-a", "broker-b"):
                await load.wait_for_deliveries(200)
                process = await stage.operator.start("topic", "move", TOPIC, "--to", targets)
                while len(await admin.moves.list()) <= known and process.returncode is None:  # noqa: ASYNC110
                    await asyncio.sleep(0.002)  # brokers tell nobody that a move has begun
                if process.returncode is None:
                    process.kill()
                await process.communicate()
                await wait_for_moves(admin)
                assert (await count_leaders(stage)).total() == QUEUES
                known = len(await admin.moves.list())
            await load.wait_for_deliveries(200)
            ledger = await load.finish()
        ledger.print_summary("operator killed")
        ledger.check_unnoticed()


async def test_of_two_operators_who_move_one_queue_one_wins(tmp_path: Path):
    """The other is told; whoever won, the queue has one leader and nobody notices."""
    with static_topic_cluster(tmp_path, "broker-a", "broker-b", "broker-c") as stage:
        await create_static(stage, "broker-a")
        async with StaticTopicLoad(stage.namesrv, TOPIC) as load, Admin(stage.namesrv) as admin:
            await load.wait_for_deliveries(200)
            plans = [await admin.moves.plan_queue(TOPIC, 0, target) for target in ("broker-b", "broker-c")]
            (one,), (other,) = await asyncio.gather(*(admin.moves.start(plan) for plan in plans))
            (one, other) = await admin.moves.follow([one, other])
            await wait_for_moves(admin)
            assert sorted(["done", "refused"]) == sorted([one.state, other.state]), (one, other)
            (winner,) = (move for move in (one, other) if move.state == "done")
            (loser,) = (move for move in (one, other) if move.state == "refused")
            assert loser.reason
            assert (await stage.operator.leaders(TOPIC))[0] == winner.target
            await load.wait_for_deliveries(200)
            ledger = await load.finish()
        ledger.check_unnoticed()


async def test_a_consumer_that_comes_later_reads_everything_from_the_beginning(tmp_path: Path):
    """What lies on brokers that lead nothing any more is read from there, in order, before what is new."""
    with static_topic_cluster(tmp_path, "broker-a", "broker-b", "broker-c") as stage:
        await create_static(stage, "broker-a")
        async with StaticTopicLoad(stage.namesrv, TOPIC, members=0) as load:
            for target in ("broker-b", "broker-c", "broker-a"):
                await load.wait_for_acks(300)
                await stage.operator.run("topic", "move", TOPIC, "--to", target)
            load.stop()
            async with load.member():
                ledger = await load.finish()
        ledger.check_unnoticed()
