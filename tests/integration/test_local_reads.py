"""While a unit is open, the consumers of other units read its queues at the replica in their own unit.

The master lives, and keeps offsets and locks. The stories ask where messages were read (28, messages handed out), and
whether the books are right: nothing lost, nothing twice, everything in order.
"""

import re
from pathlib import Path

import pytest
from tests.support.client_stories import poll_until
from tests.support.cluster.processes import BrokerProcess
from tests.support.cluster.raw_requests import raw_request
from tests.support.cluster.two_sites import (
    UNITS,
    TwoSites,
    check_totals,
    end_of,
    first_order,
    sites,
    units_read_by,
)

from holdfast import Producer

__all__ = ["sites"]

pytestmark = pytest.mark.timeout(300)
HOME, AWAY = UNITS  # the unit that is opened, and the unit of those who read it from afar
_GET_BROKER_RUNTIME_INFO = 28
_COUNT = re.compile(r'"msgGetTotalTodayNow":"(\d+)"')


def start_replica(sites: TwoSites, folder: Path, *, number: int = 1, unit: str = AWAY) -> BrokerProcess:
    """Start a replica of the broker of the unit that will be opened; it stands in *unit*."""
    return sites.start_replica(HOME, folder, replica_id=number, replica_unit=unit)


def handed_out(broker: BrokerProcess) -> int:
    """Return how many messages a broker has handed out."""
    found = _COUNT.search(raw_request(broker.address, _GET_BROKER_RUNTIME_INFO, {}).text)
    assert found is not None
    return int(found.group(1))


async def send_and_read(sites: TwoSites, producer: Producer, rounds: int = 1) -> None:
    """Send in the opened unit, and return once everything was consumed."""
    await sites.send(producer, HOME, rounds)
    await poll_until(sites.all_consumed(HOME))


async def until_read_at(sites: TwoSites, producer: Producer, where: BrokerProcess) -> None:
    """Send until a whole round is read at one broker: a reader changes with its next answer."""
    while True:
        before, count = handed_out(where), sites.count_sent(HOME)
        await send_and_read(sites, producer)
        if handed_out(where) - before == sites.count_sent(HOME) - count:
            return


def check_order(sites: TwoSites) -> None:
    """See that nothing is missing or twice, and everything is in order."""
    got = sites.consumed_messages(HOME)
    assert len(got) == sites.count_sent(HOME)
    assert first_order(got) == sites.sent[HOME]


async def test_an_open_unit_is_read_at_the_replica_beside_the_reader(sites: TwoSites, tmp_path: Path) -> None:
    """While its master lives, which hands out nothing more and has the offsets; closed, each reads its own again."""
    replica = start_replica(sites, tmp_path / "replica")
    master = sites.broker_of(HOME)

    async with sites.producer(HOME) as writer:
        await sites.send(writer, HOME, 2)
        async with sites.consumer(AWAY) as reader:
            await sites.operator.run("dr", "open", "--unit", HOME)
            await poll_until(lambda: units_read_by(reader) == set(UNITS))
            await until_read_at(sites, writer, replica)

            before = handed_out(master)
            await send_and_read(sites, writer, 5)
            assert handed_out(master) == before
            await poll_until(sites.offsets_saved(HOME))

            await sites.operator.run("dr", "close", "--unit", HOME)
            await poll_until(lambda: units_read_by(reader) == {AWAY})
        async with sites.consumer(HOME):
            before = handed_out(replica)
            await send_and_read(sites, writer)
            assert handed_out(replica) == before
    await check_totals(sites, HOME)


async def test_of_two_replicas_each_reader_has_the_one_in_its_unit(sites: TwoSites, tmp_path: Path) -> None:
    """Though the other has the lower number. When the master dies, all continue at that, from the same place."""
    other = start_replica(sites, tmp_path / "other", number=1, unit=HOME)
    near = start_replica(sites, tmp_path / "near", number=2)
    master = sites.broker_of(HOME)

    async with sites.consumer(AWAY) as reader:
        async with sites.producer(HOME) as writer:
            await sites.operator.run("dr", "open", "--unit", HOME)
            await poll_until(lambda: units_read_by(reader) == set(UNITS))
            await until_read_at(sites, writer, near)
            await send_and_read(sites, writer, 5)
            assert handed_out(other) == 0
            await sites.send(writer, HOME, 5)
            written = end_of(master)
            await poll_until(lambda: end_of(other) == end_of(near) == written)
        sites.kill(master)
        await poll_until(sites.all_consumed(HOME))
    check_order(sites)


async def test_a_reader_leaves_a_replica_that_hangs_and_one_that_dies(sites: TwoSites, tmp_path: Path) -> None:
    """It continues at the master, where it was: nothing that the replica lacks is skipped, and nothing comes again."""
    replica = start_replica(sites, tmp_path / "replica")
    master = sites.broker_of(HOME)

    async with sites.producer(HOME) as writer, sites.consumer(AWAY) as reader:
        await sites.operator.run("dr", "open", "--unit", HOME)
        await poll_until(lambda: units_read_by(reader) == set(UNITS))
        await until_read_at(sites, writer, replica)

        with sites.paused(replica):
            await send_and_read(sites, writer, 3)
        await poll_until(lambda: end_of(replica) == end_of(master))
        await send_and_read(sites, writer, 2)

        sites.kill(replica)
        await send_and_read(sites, writer, 3)
        await poll_until(sites.offsets_saved(HOME))
    check_order(sites)
