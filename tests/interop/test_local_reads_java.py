"""A Java consumer of another unit reads at the replica in its own while the master lives, led there by the master.

It names its unit with a hook that adds a field to every request. Its locks and offsets stay with the master.
"""

import asyncio
import json
import re
import time
from pathlib import Path

import pytest
from tests.interop.foreign_members import java_member
from tests.support.cluster.processes import BrokerProcess, ProcessCluster
from tests.support.cluster.raw_requests import make_topic, raw_request
from tests.support.java_peer import JavaPeer

from holdfast import Message, Producer

pytestmark = [pytest.mark.interop, pytest.mark.slow, pytest.mark.timeout(300)]

TOPIC, GROUP = "TopicTest", "readers"
QUEUES = 4
COUNT = 5 * QUEUES
_GET_BROKER_RUNTIME_INFO = 28
_GET_ALL_CONSUMER_OFFSET = 43
_PATIENCE_S = 120.0


def handed_out(broker: BrokerProcess) -> int:
    """Return how many messages a broker has handed out."""
    found = re.search(r'"msgGetTotalTodayNow":"(\d+)"', raw_request(broker.address, _GET_BROKER_RUNTIME_INFO, {}).text)
    assert found is not None
    return int(found.group(1))


def committed(broker: BrokerProcess) -> int:
    """Return how many messages the group is done with, by the word of a broker."""
    table = json.loads(raw_request(broker.address, _GET_ALL_CONSUMER_OFFSET, {}).body)["offsetTable"]
    return sum(table.get(f"{TOPIC}@{GROUP}", {}).values())


async def send(name_server: str, start: int) -> None:
    """Send the next messages, as many to each queue."""
    async with Producer(name_server, unit="east") as producer:
        queues = await producer.queues(TOPIC)
        for number in range(start, start + COUNT):
            await producer.send(Message(TOPIC, b"east %d" % number), queue=queues[number % QUEUES])


@pytest.mark.parametrize(("peer_name", "kind"), [("peer_5", "normal"), ("peer_5", "static"), ("peer_4", "normal")])
async def test_a_java_consumer_is_led_to_the_replica_beside_it(
    request: pytest.FixtureRequest, tmp_path: Path, peer_name: str, kind: str
) -> None:
    """Everything comes, in order; at last a whole round from the replica, and every offset at the master."""
    peer: JavaPeer = request.getfixturevalue(peer_name)
    with ProcessCluster(tmp_path) as cluster:
        name_server = cluster.namesrv
        master = cluster.start("in-east", cluster="east")
        cluster.start("in-west", cluster="west")
        if kind == "normal":
            make_topic(name_server, [master.address], TOPIC, queues=QUEUES)
        else:
            words = ["--logical-queues", str(QUEUES), "--unit", "east"]
            await cluster.operator.run("topic", "create", TOPIC, *words)
        settings = {"replica_of": "in-east", "replica_unit": "west"}
        store = tmp_path / "replica"
        replica = cluster.start("in-east", cluster="east", store=store, settings=settings)
        await cluster.operator.run("dr", "open", "--unit", "east")
        member = java_member(peer, "west", name_server, TOPIC, GROUP, tmp_path / "client", ["-Dunit=west"])
        try:
            member.ready()
            deadline, sent, is_local = time.monotonic() + _PATIENCE_S, 0, False
            while not is_local:
                before = handed_out(replica)
                await send(name_server, sent)
                sent += COUNT
                while len(member.said().got) < sent:
                    assert time.monotonic() < deadline, f"{len(member.said().got)} of {sent} came"
                    await asyncio.sleep(0.05)  # foreign programs send no event
                is_local = handed_out(replica) - before == COUNT
                assert is_local or time.monotonic() < deadline, "the master is still read"
            while committed(master) < sent:
                assert time.monotonic() < deadline, f"{committed(master)} of {sent} committed at the master"
                await asyncio.sleep(0.05)
        finally:
            member.child.kill()

    by_queue: dict[int, list[int]] = {}
    for queue, _, body in member.said().got:
        by_queue.setdefault(queue, []).append(int(body.partition(" ")[2]))
    assert by_queue == {queue: list(range(queue, sent, QUEUES)) for queue in range(QUEUES)}
