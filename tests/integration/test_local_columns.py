"""While a unit is open, readers of columns in other units read its queues at the replica in their own unit.

As consumers do (`test_local_reads.py`); what Spark's tasks read with is the same code. The stories ask where rows were
read, and whether each came once and in order.
"""

import asyncio
from collections import defaultdict
from pathlib import Path

import pytest
from tests.integration.test_local_reads import AWAY, HOME, handed_out, start_replica
from tests.support.client_stories import poll_until
from tests.support.cluster.processes import BrokerProcess
from tests.support.cluster.two_sites import TOPIC, TwoSites, end_of, sites

pytest.importorskip("pyarrow", reason="pyarrow is not installed: make install-spark")
from holdfast import arrow
from holdfast.bulk import cluster_session
from holdfast.bulk.cluster_connection import PerProcess

__all__ = ["sites"]

pytestmark = pytest.mark.timeout(300)


def read(sites: TwoSites, unit: str) -> dict[str, list[int]]:
    """Return what a reader of *unit* reads of the unit that may be open: the numbers of each key, as they came."""
    found: dict[str, list[int]] = defaultdict(list)
    for batch in arrow.read(sites.namesrv, TOPIC, columns=["body"], unit=unit, timeout_s=60):
        for body in batch["body"].to_pylist():
            key, _, number = body.decode().partition(" ")
            if key.startswith(HOME):
                found[key].append(int(number))
    return found


async def check_read(sites: TwoSites, unit: str = AWAY) -> None:
    """See that every row is read, once and in order."""
    assert await asyncio.to_thread(read, sites, unit) == sites.sent[HOME]


async def until_read_at(sites: TwoSites, where: BrokerProcess) -> None:
    """Read until all rows come from one broker: a replica reports now and then that it has caught up."""
    while True:
        before = handed_out(where)
        await check_read(sites)
        if handed_out(where) - before == sites.count_sent(HOME):
            return


async def open_with_replica(sites: TwoSites, folder: Path, rounds: int = 20) -> BrokerProcess:
    """Send in the unit, open it, and return its replica once that has a copy of all."""
    replica = start_replica(sites, folder)
    async with sites.producer(HOME) as writer:
        await sites.send(writer, HOME, rounds)
    await poll_until(lambda: end_of(replica) == end_of(sites.broker_of(HOME)))
    await sites.operator.run("dr", "open", "--unit", HOME)
    return replica


async def test_columns_of_an_open_unit_are_read_at_the_replica_beside_the_reader(
    sites: TwoSites, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its master hands out nothing more to them, and one row to a new process; to readers of its own unit, all."""
    replica = await open_with_replica(sites, tmp_path / "replica")
    master = sites.broker_of(HOME)
    await until_read_at(sites, replica)
    before = handed_out(master)
    await check_read(sites)
    assert handed_out(master) == before

    monkeypatch.setattr(cluster_session, "_sessions", PerProcess())
    await check_read(sites)
    assert handed_out(master) == before + 1

    before = handed_out(replica)
    await check_read(sites, HOME)
    assert handed_out(replica) == before


async def test_columns_are_read_at_the_master_when_the_replica_hangs_or_dies(sites: TwoSites, tmp_path: Path) -> None:
    """From the same place: no row is missing, comes twice, or in another order."""
    replica = await open_with_replica(sites, tmp_path / "replica")
    await until_read_at(sites, replica)

    with sites.paused(replica):
        async with sites.producer(HOME) as writer:
            await sites.send(writer, HOME, 5)  # What the replica lacks, too.
        await check_read(sites)

    sites.kill(replica)
    await check_read(sites)
