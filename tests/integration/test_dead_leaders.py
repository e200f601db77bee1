"""Leaders that die, name servers that forget nothing, and the policy that replaces a dead leader, on real processes."""

import asyncio
import os
import signal
from pathlib import Path

import pytest
from tests.support.cluster.process_presets import TOPIC, create_static, static_topic_cluster
from tests.support.cluster.processes import ProcessCluster

from holdfast import HoldfastError, Message, Producer, PullConsumer
from holdfast.nameserver.cluster.queue_leases import FILE as LEASES_FILE

pytestmark = pytest.mark.timeout(170)

GAP = 1 << 40
LEASE_MS = 1_000


async def send(namesrv: str, queue: int, body: bytes) -> int:
    """Send one message to a logical queue; return its offset."""
    async with Producer(namesrv, timeout_s=5) as producer:
        target = (await producer.queues(TOPIC))[queue]
        return (await producer.send(Message(TOPIC, body), queue=target)).offset


async def send_surely(namesrv: str, queue: int, body: bytes) -> int:
    """Send one message as often as it takes; return the offset of the copy that was acknowledged."""
    while True:
        try:
            return await send(namesrv, queue, body)
        except HoldfastError:
            await asyncio.sleep(0.2)  # Whoever takes over tells nobody but the name server.


async def read_up_to(last: bytes, namesrv: str, queue: int) -> list[bytes]:
    """Return the messages of a logical queue, from the first on, up to *last* at least."""
    found: list[bytes] = []
    async with PullConsumer(namesrv, "readers", auto_commit=False) as consumer:
        target = (await consumer.queues(TOPIC))[queue]
        await consumer.assign([target])
        await consumer.seek(target, 0)
        while last not in found:
            found += [message.body for message in await consumer.poll(timeout_s=5)]
    return found


async def queue_of(stage: ProcessCluster, broker: str) -> int:
    return next(queue for queue, leader in (await stage.operator.leaders(TOPIC)).items() if leader == broker)


async def restart_name_server(stage: ProcessCluster, folder: Path, *, knows_leases: bool = False) -> None:
    stage.kill(stage.namesrv)
    if knows_leases:
        # As if it had been here for long: nobody has to wait until promises of before are void.
        file = folder / f"namesrv-{stage.namesrv.rpartition(':')[2]}" / LEASES_FILE
        await asyncio.to_thread(file.write_bytes, b"{}")
    await asyncio.to_thread(stage.restart, stage.namesrv)


async def test_a_restarted_name_server_serves_a_topic_whose_leader_is_dead(tmp_path: Path):
    """The living lead theirs, and the dead one's have a place for its return."""
    with static_topic_cluster(tmp_path, "broker-a", "broker-b") as stage:
        await create_static(stage, "broker-a", "broker-b")
        dead, alive = await queue_of(stage, "broker-a"), await queue_of(stage, "broker-b")
        assert await send(stage.namesrv, dead, b"before") == 0

        stage.kill("broker-a")
        await restart_name_server(stage, tmp_path)

        assert await send_surely(stage.namesrv, alive, b"living") == 0
        await asyncio.to_thread(stage.restart, "broker-a")
        assert await send_surely(stage.namesrv, dead, b"after") == 1


@pytest.mark.parametrize("way", ["kill", "stop and continue"])
async def test_with_the_policy_a_silent_leader_is_replaced_and_takes_nothing_any_more(tmp_path: Path, way: str):
    """Its process died, or was only stopped for a while and finds its lease over."""
    with static_topic_cluster(tmp_path, settings={"auto_force": "true", "lease_ms": LEASE_MS}) as stage:
        await restart_name_server(stage, tmp_path, knows_leases=True)
        for name in ("broker-a", "broker-b"):
            stage.start(name)
        await create_static(stage, "broker-a", "broker-b")
        queue = await queue_of(stage, "broker-a")
        assert await send_surely(stage.namesrv, queue, b"before") == 0
        child = stage.brokers["broker-a"].child

        if way == "kill":
            stage.kill("broker-a")
        else:
            os.kill(child.pid, signal.SIGSTOP)
        assert await send_surely(stage.namesrv, queue, b"meanwhile") >= GAP
        if way == "kill":
            await asyncio.to_thread(stage.restart, "broker-a")
        else:
            os.kill(child.pid, signal.SIGCONT)

        assert await send_surely(stage.namesrv, queue, b"after") > GAP
        bodies = await read_up_to(b"after", stage.namesrv, queue)
        # What nobody answered in time was sent again, and may have been taken when the stopped one went on.
        assert list(dict.fromkeys(bodies)) == [b"before", b"meanwhile", b"after"]
