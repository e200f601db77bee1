"""What the command line says while a broker or a name server is down: which part of an answer or order is missing."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.client_stories import until
from tests.support.fleet import Fleet, a_fleet

from holdfast import Message, Producer, PushConsumer, ReceivedMessage

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    with a_fleet(tmp_path, {"a": "main", "b": "main"}, name_servers=2) as found:
        yield found


async def consume(fleet: Fleet, topic: str, group: str) -> None:
    """Send to a topic and have a group consume and commit it."""
    got: list[ReceivedMessage] = []

    async def take(message: ReceivedMessage) -> None:
        got.append(message)

    consumer = PushConsumer(fleet.namesrv, group, listener=take, start="earliest")
    consumer.subscribe(topic)
    async with Producer(fleet.namesrv) as producer, consumer:
        await producer.send_many([Message(topic, b"x") for _ in range(20)])
        await until(lambda: len(got) == 20)


def test_the_lag_of_a_group_names_the_queues_of_a_broker_that_is_down(fleet: Fleet):
    """Of a topic that lives on, and of a group that no other broker knows; a group that never was is an error."""
    fleet.run("topic", "create", "both", "--queues", "3")
    fleet.run("topic", "create", "only", "--queues", "2", "--brokers", "b")
    asyncio.run(consume(fleet, "both", "billing"))
    asyncio.run(consume(fleet, "only", "mailing"))
    known = {group["name"] for group in fleet.run("group", "list")["groups"]}
    assert {"billing", "mailing"} <= known
    fleet.lose("b")

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

    assert "no broker that is up knows group 'nobody', and b is down" in fleet.refused("group", "lag", "nobody")

    fleet.start_again("b")
    assert fleet.run("group", "lag", "billing")["down"] == []
