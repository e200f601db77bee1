"""Two units under two name servers, as real processes: each for itself, then one is lost, and back."""

import asyncio
from collections.abc import Iterator

import pytest
from tests.support.client_stories import Inbox, new_name, poll_until
from tests.support.cluster.processes import ProcessCluster

from holdfast import Message, Producer, PushConsumer, ReceivedMessage, RetryLater, SendResult

TOPIC = "orders"
QUEUES = 6
UNITS = ("east", "west")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessCluster]:
    """Two name servers, a broker in each unit, and a static topic of one name in each unit."""
    with ProcessCluster(tmp_path_factory.mktemp("units"), name_servers=2) as cluster:
        for unit in UNITS:
            cluster.start(f"in-{unit}", cluster=unit)
        for unit in UNITS:
            cluster.run("topic", "create", TOPIC, "--logical-queues", str(QUEUES), "--unit", unit)
        yield cluster


async def send(site: ProcessCluster, unit: str, *bodies: bytes, topic: str = TOPIC) -> list[SendResult]:
    """Send messages as a producer of *unit*, to its queues in turn."""
    async with Producer(site.namesrv, unit=unit) as producer:
        queues = await producer.queues(topic)
        return [
            await producer.send(Message(topic, body), queue=queues[at % len(queues)]) for at, body in enumerate(bodies)
        ]


def bodies(unit: str, count: int) -> list[bytes]:
    return [f"{unit}-{number}".encode() for number in range(count)]


def places(consumer: PushConsumer) -> set[tuple[str, int]]:
    return {
        (queue.broker_name.removeprefix("__syslo__"), queue.queue_id)
        for queue in consumer.assignment
        if queue.topic == TOPIC
    }


def queues_of(*units: str) -> set[tuple[str, int]]:
    return {(unit, number) for unit in units for number in range(QUEUES)}


async def test_each_unit_sees_its_own_topic_of_the_name(site: ProcessCluster):
    """Producers, consumers and commands; without a unit the command asks for one."""
    group = new_name("group")
    inboxes = {unit: Inbox() for unit in UNITS}
    consumers = [
        PushConsumer(site.namesrv, group, listener=inboxes[unit], unit=unit, start="earliest") for unit in UNITS
    ]
    for consumer in consumers:
        consumer.subscribe(TOPIC)
    async with consumers[0] as east, consumers[1] as west:
        for unit in UNITS:
            sent = await send(site, unit, *bodies(unit, 2 * QUEUES))
            assert {result.queue.broker_name for result in sent} == {f"__syslo__{unit}"}
        for unit, inbox in inboxes.items():
            await inbox.wait_for(2 * QUEUES)
            assert set(inbox.bodies()) == set(bodies(unit, 2 * QUEUES))
        assert places(east) == queues_of("east")
        assert places(west) == queues_of("west")
    status, said = await site.operator.attempt("queue", "list", TOPIC)
    assert status == 1
    assert "choose one with --unit" in said
    listed = await site.operator.run("queue", "list", TOPIC, "--unit", "west")
    assert listed["mapping"]["scope"] == "west"
    status, said = await site.operator.attempt("topic", "create", TOPIC, "--logical-queues", "2")
    assert status == 1
    assert "already" in said


async def test_a_lost_site_is_read_by_the_other_until_it_is_back(site: ProcessCluster):
    """Opened while a name server is down; nobody writes there, no queue has two owners, nothing is lost or skipped."""
    group = new_name("group")
    west_inbox, east_inbox = Inbox(), Inbox()
    west = PushConsumer(site.namesrv, group, listener=west_inbox, unit="west", start="earliest")
    survivor = PushConsumer(site.namesrv, group, listener=east_inbox, unit="east", start="earliest")
    backlog = [b"left-%d" % number for number in range(30)]
    for consumer in (west, survivor):
        consumer.subscribe(TOPIC)
    async with west, Producer(site.namesrv, unit="west") as producer:
        await poll_until(lambda: places(west) == queues_of("west"))
        await send(site, "east", *backlog)
        site.kill(site.name_servers[1])

        await site.operator.run("dr", "open", "--unit", "east")

        await poll_until(lambda: places(west) == queues_of(*UNITS))
        await poll_until(lambda: set(backlog) <= set(west_inbox.bodies()))
        assert {queue.broker_name for queue in await producer.queues(TOPIC)} == {"__syslo__west"}
        status, said = await site.operator.attempt("dr", "open", "--unit", "east")
        assert status == 1
        assert "nothing would change" in said
        async with survivor:
            await poll_until(lambda: bool(places(survivor)) and places(west) | places(survivor) == queues_of(*UNITS))
            assert places(west).isdisjoint(places(survivor))
        await poll_until(lambda: places(west) == queues_of(*UNITS))
        site.restart(site.name_servers[1])
        await until_equal(site)

        await site.operator.run("dr", "close", "--unit", "east")

        await poll_until(lambda: places(west) == queues_of("west"))
        await send(site, "east", b"back")
        returned = PushConsumer(site.namesrv, group, listener=east_inbox, unit="east", start="earliest")
        returned.subscribe(TOPIC)
        async with returned:
            await poll_until(lambda: places(returned) == queues_of("east"))
            await poll_until(lambda: b"back" in east_inbox.bodies())
        assert b"back" not in west_inbox.bodies()


async def test_a_consumer_that_moves_between_units_goes_on_where_it_was(site: ProcessCluster):
    """It leaves one unit, reads on from the other while that is open, and comes back: nothing twice, nothing never."""
    group, mark = new_name("group"), new_name("moved").encode()
    inbox = Inbox()

    def seen() -> list[bytes]:
        return sorted(body for body in inbox.bodies() if body.startswith(mark))

    async def read_on(unit: str, count: int) -> None:
        consumer = PushConsumer(site.namesrv, group, listener=inbox, unit=unit, start="earliest")
        consumer.subscribe(TOPIC)
        async with consumer:
            await poll_until(lambda: len(set(seen())) == count)

    bodies = [b"%s-%02d" % (mark, number) for number in range(30)]
    await send(site, "east", *bodies[:10])
    await read_on("east", 10)
    await site.operator.run("dr", "open", "--unit", "east")
    await send(site, "east", *bodies[10:20])
    await read_on("west", 20)
    await site.operator.run("dr", "close", "--unit", "east")
    await send(site, "east", *bodies[20:])
    await read_on("east", 30)

    assert seen() == bodies


async def test_what_fails_while_a_unit_is_open_comes_again_where_it_failed(site: ProcessCluster):
    """In the retry topic of the reader's own unit: not even a retry is written into the lost one."""
    group = new_name("group")
    failed: set[bytes] = set()

    def fails_once(message: ReceivedMessage) -> RetryLater | None:
        is_first = message.body.startswith(b"fails") and message.body not in failed
        failed.add(message.body)
        return RetryLater(1) if is_first else None

    inbox = Inbox(fails_once)
    west = PushConsumer(site.namesrv, group, listener=inbox, unit="west", start="latest")
    west.subscribe(TOPIC)
    await site.operator.run("dr", "open", "--unit", "east", "--topic", TOPIC)
    try:
        async with west:
            await poll_until(lambda: places(west) == queues_of(*UNITS))
            await poll_until(lambda: any(queue.topic.startswith("%RETRY%") for queue in west.assignment))
            lost = await send(site, "east", *bodies("fails", QUEUES))
            await poll_until(lambda: set(bodies("fails", QUEUES)) <= set(inbox.bodies()))
    finally:
        await site.operator.run("dr", "close", "--unit", "east", "--topic", TOPIC)
    assert {result.queue.broker_name for result in lost} == {"__syslo__east"}
    again = [message for message in inbox.messages if message.body.startswith(b"fails")]
    assert {message.queue.broker_name for message in again} == {"in-west"}
    assert {message.reconsume_times for message in again} == {1}


async def until_equal(site: ProcessCluster) -> None:
    """Return once both name servers know all brokers and say the same of what is open."""
    await asyncio.to_thread(site.wait_until_registered)
    while not (await site.operator.run("dr", "status"))["is_equal"]:  # noqa: ASYNC110 - nobody tells
        await asyncio.sleep(0.05)


async def test_what_is_left_of_a_lost_site_is_shown(site: ProcessCluster):
    """By group, of those who have something to read there."""
    group, topic = new_name("group"), new_name("topic")
    site.make_topic(topic, queues=2, on=["in-east"])
    reader = PushConsumer(site.namesrv, group, listener=Inbox(), unit="east", start="earliest")
    reader.subscribe(topic)
    async with reader:
        await poll_until(lambda: len(reader.assignment) >= 2)
        await send(site, "east", b"seen", topic=topic)
    await send(site, "east", *bodies("left", 7), topic=topic)
    await site.operator.run("dr", "open", "--unit", "east", "--topic", topic)
    try:
        found = await site.operator.run("dr", "status")
        (east,) = [unit for unit in found["units"] if unit["name"] == "east"]
        assert east["openings"] == [f"unit east, topic {topic}"]
        assert {each["group"]: each["lag"] >= 7 for each in east["backlogs"]}[group]
    finally:
        await site.operator.run("dr", "close", "--unit", "east", "--topic", topic)
