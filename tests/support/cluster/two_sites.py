"""Two sites under one name server, each with a static topic of 50 queues, of which one is lost and comes back."""

import asyncio
import json
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.support.client_stories import poll_until
from tests.support.cluster.processes import BrokerProcess, ProcessCluster
from tests.support.cluster.raw_requests import raw_request

from holdfast import Message, Producer, PullConsumer, PushConsumer, ReceivedMessage

TOPIC = "TopicTest"
GROUP = "fleet"
QUEUES = 50
KEYS = 60
UNITS = ("siteA", "siteB")
_GET_BROKER_RUNTIME_INFO = 28


class TwoSites(ProcessCluster):
    """A cluster with the broker `in-UNIT` for each site, the messages sent in it, and the messages consumed.

    Committed offsets are on disk soon, so that nothing has a reason to come again.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, flush="sync", settings={"offset_save_interval_ms": 100})
        self.sent: dict[str, dict[str, list[int]]] = {unit: defaultdict(list) for unit in UNITS}
        self.consumed: list[tuple[str, ReceivedMessage]] = []

    def broker_of(self, unit: str) -> BrokerProcess:
        """Return the broker of a site."""
        return self.brokers[f"in-{unit}"]

    def start_replica(self, unit: str, folder: Path, **settings: object) -> BrokerProcess:
        """Start a replica of the broker of a site."""
        name = f"in-{unit}"
        return self.start(name, cluster=unit, store=folder, settings={"replica_of": name, **settings})

    def producer(self, unit: str) -> Producer:
        """Return a producer of a site."""
        return Producer(self.namesrv, unit=unit)

    def consumer(self, unit: str) -> PushConsumer:
        """Return a new member of the group, and keep what it gets."""

        async def consume(message: ReceivedMessage) -> None:
            self.consumed.append((unit, message))

        consumer = PushConsumer(self.namesrv, GROUP, listener=consume, unit=unit, ordered=True, start="earliest")
        consumer.subscribe(TOPIC)
        return consumer

    async def send(self, producer: Producer, unit: str, rounds: int) -> None:
        """Send the next messages of every key; those of one key in order."""
        for _ in range(rounds):
            numbers = {key: len(self.sent[unit][key]) for key in (f"{unit}-{at}" for at in range(KEYS))}
            results = await producer.send_many(
                [Message(TOPIC, f"{key} {number}".encode(), key=key) for key, number in numbers.items()]
            )
            assert {result.queue.broker_name for result in results} == {f"__syslo__{unit}"}
            for key, number in numbers.items():
                self.sent[unit][key].append(number)

    def count_sent(self, unit: str) -> int:
        """Return how many messages were acknowledged in a site."""
        return sum(map(len, self.sent[unit].values()))

    def consumed_messages(self, of: str, *units: str) -> list[ReceivedMessage]:
        """Return what was consumed of the messages of a site, by whomever or by those of *units*, in that order."""
        return [
            message for at, message in self.consumed if message.body.startswith(of.encode()) and at in (units or UNITS)
        ]

    def all_consumed(self, unit: str) -> Callable[[], bool]:
        """Return the question whether everything that was sent in a site was consumed, here or there."""
        return lambda: len({message.body for message in self.consumed_messages(unit)}) == self.count_sent(unit)

    def offsets_saved(self, unit: str) -> Callable[[], bool]:
        """Return the question whether a broker has on disk how far its group is."""
        file = self.broker_of(unit).store / "config" / "consumerOffset.json"
        return lambda: (
            file.exists()
            and sum(json.loads(file.read_text())["offsetTable"].get(f"{TOPIC}@{GROUP}", {}).values())
            == self.count_sent(unit)
        )


@pytest.fixture
def sites(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoSites]:
    with TwoSites(tmp_path_factory.mktemp("sites")) as cluster:
        for unit in UNITS:
            cluster.start(f"in-{unit}", cluster=unit)
            cluster.run("topic", "create", TOPIC, "--logical-queues", str(QUEUES), "--scope", unit)
        yield cluster


def end_of(broker: BrokerProcess) -> str:
    """Return where the log of a broker ends."""
    text = raw_request(broker.address, _GET_BROKER_RUNTIME_INFO, {}).text
    return text.partition('"commitLogMaxOffset":')[2].partition(",")[0]


async def unit_status(sites: TwoSites, unit: str) -> dict[str, object]:
    """Return what is told of the loss of a site."""
    statuses = await sites.operator.run("dr", "status")
    return next(each for each in statuses["units"] if each["name"] == unit)


async def stored_in(sites: TwoSites, unit: str) -> dict[str, list[int]]:
    """Return all that a site holds: the numbers of each key, in the order of their queue."""
    found: dict[str, list[int]] = defaultdict(list)
    async with PullConsumer(sites.namesrv, "auditors", auto_commit=False, unit=unit) as consumer:
        queues = await consumer.queues(TOPIC)
        assert len(queues) == QUEUES
        await consumer.assign(queues)
        await consumer.seek_all("earliest")
        for _ in range(sites.count_sent(unit)):
            (message,) = await consumer.poll(timeout_s=10, messages_max=1)
            key, _, number = message.body.decode().partition(" ")
            found[key].append(int(number))
        assert not await consumer.poll(timeout_s=0.2)
    return found


def units_read_by(consumer: PushConsumer) -> set[str]:
    """Return the sites of whose queues a consumer has some."""
    return {queue.broker_name.removeprefix("__syslo__") for queue in consumer.assignment if queue.topic == TOPIC}


def first_order(messages: list[ReceivedMessage]) -> dict[str, list[int]]:
    """Return the numbers of each key in the order in which they were seen for the first time."""
    seen: dict[str, dict[int, None]] = defaultdict(dict)
    for message in messages:
        key, _, number = message.body.decode().partition(" ")
        seen[key][int(number)] = None
    return {key: list(numbers) for key, numbers in seen.items()}


async def wait_until_drained(sites: TwoSites, unit: str) -> None:
    """Return once nothing is left of a site's backlog, by the operator's word."""
    while (await unit_status(sites, unit))["backlogs"]:  # noqa: ASYNC110 - nobody tells
        await asyncio.sleep(0.05)


async def close_and_check(sites: TwoSites, lost: str, reader: PushConsumer, writer: Producer, rounds: int) -> None:
    """Close a site that is back; see that each serves its own from then on. *reader*, *writer*: of the other site."""
    (other,) = {*UNITS} - {lost}
    await sites.operator.run("dr", "close", "--unit", lost)
    await poll_until(lambda: units_read_by(reader) == {other})
    async with sites.consumer(lost), sites.producer(lost) as returned:
        drained = len(sites.consumed_messages(lost, other))
        for unit, producer in ((lost, returned), (other, writer)):
            await sites.send(producer, unit, rounds)
        for unit in UNITS:
            await poll_until(sites.all_consumed(unit))
        assert len(sites.consumed_messages(lost, other)) == drained


async def check_totals(sites: TwoSites, lost: str) -> None:
    """See that each site stores, and consumed, what was sent in it: once, and in order; the lost one nothing else."""
    (other,) = {*UNITS} - {lost}
    for unit in UNITS:
        assert await stored_in(sites, unit) == sites.sent[unit]
        got = sites.consumed_messages(unit)
        assert len(got) == sites.count_sent(unit)
        assert first_order(got) == sites.sent[unit]
    assert not sites.consumed_messages(other, lost)
