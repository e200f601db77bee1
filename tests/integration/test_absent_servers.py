"""What the command line says while a broker or a name server is down: which part of an answer or order is missing."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.client_stories import poll_until
from tests.support.cluster.process_presets import units_cluster
from tests.support.cluster.processes import ProcessCluster
from tests.support.cluster.raw_requests import OUR_CLIENT, wait_until, wait_until_registered

from holdfast import Message, Producer, PushConsumer, ReceivedMessage

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[ProcessCluster]:
    with units_cluster(tmp_path, {"a": "main", "b": "main"}, name_servers=2) as found:
        yield found


async def consume(fleet: ProcessCluster, topic: str, group: str) -> None:
    """Send to a topic and have a group consume and commit it."""
    got: list[ReceivedMessage] = []

    async def take(message: ReceivedMessage) -> None:
        got.append(message)

    consumer = PushConsumer(fleet.namesrv, group, listener=take, start="earliest")
    consumer.subscribe(topic)
    async with Producer(fleet.namesrv) as producer, consumer:
        await producer.send_many([Message(topic, b"x") for _ in range(20)])
        await poll_until(lambda: len(got) == 20)


def test_the_lag_of_a_group_names_the_queues_of_a_broker_that_is_down(fleet: ProcessCluster):
    """Of a topic that lives on, and of a group that no other broker knows; a group that never was is an error."""
    fleet.run("topic", "create", "both", "--queues", "3")
    fleet.run("topic", "create", "only", "--queues", "2", "--brokers", "b")
    asyncio.run(consume(fleet, "both", "billing"))
    asyncio.run(consume(fleet, "only", "mailing"))
    known = {group["name"] for group in fleet.run("group", "list")["groups"]}
    assert {"billing", "mailing"} <= known
    fleet.kill("b", until_gone=True)

    found = fleet.run("group", "lag", "billing")
    told = fleet.attempt("group", "lag", "billing")
    assert {"topic": "both", "broker": "b", "count": 3} in found["down"]
    assert {queue["broker"] for queue in found["queues"]} == {"a"}
    assert (told.status, told.err) == (0, "")
    assert "not counted: 3 queues of both on b, which is down" in told.out

    found = fleet.run("group", "lag", "mailing")
    told = fleet.attempt("group", "lag", "mailing")
    assert {"topic": "%RETRY%mailing", "broker": "b", "count": 1} in found["down"]
    assert told.status == 0
    assert "which is down" in told.out

    assert "no broker that is up knows group 'nobody', and b is down" in fleet.run_refused("group", "lag", "nobody")

    fleet.restart("b")
    assert fleet.run("group", "lag", "billing")["down"] == []


@pytest.mark.parametrize("how", [["--queues", "2"], ["--logical-queues", "4"]])
def test_a_topic_is_deleted_as_far_as_servers_answer(fleet: ProcessCluster, how: list[str]):
    """The error says where, where not, and what to do; a name server that was down hears of it from the brokers."""
    fleet.run("topic", "create", "orders", *how)
    here, away = fleet.name_servers
    fleet.kill(away)

    told = fleet.run_refused("topic", "delete", "orders", "--yes")

    assert f"topic orders is deleted at a, b and marked as deleted at {here}, but not at {away} (" in told
    assert f"`holdfast topic route orders --namesrv {away}`" in told
    assert fleet.request_route("orders").code == 17

    fleet.restart(away)
    wait_until_registered(away, ["a", "b"])
    wait_until(lambda: fleet.request_route("orders", at=1, kind=OUR_CLIENT).fields.get("hf.deleted") == "true")


def test_a_name_server_that_hung_during_a_deletion_is_told_as_the_error_says(fleet: ProcessCluster):
    """It kept the route; the command that the error names takes it away."""
    fleet.run("topic", "create", "orders", "--queues", "2")
    _, away = fleet.name_servers
    with fleet.paused(away):
        told = fleet.run_refused("topic", "delete", "orders", "--yes")
    assert f"but not at {away} (" in told

    if fleet.attempt("topic", "route", "orders", namesrv=away).status == 0:
        fleet.run("topic", "delete", "orders", "--yes", namesrv=away)
    assert fleet.attempt("topic", "route", "orders", namesrv=away).status == 1
