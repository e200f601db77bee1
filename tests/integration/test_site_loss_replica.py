"""The loss of a site whose broker has a replica at the other one: nothing of the lost site has to be brought anywhere.

both serve their own ─> A dies with a backlog ─> A is opened to B's readers ─> they drain it from the replica beside
them ─> A is back, and knows what was consumed meanwhile ─> A is closed: each for itself again
"""

import shutil
from pathlib import Path

import pytest
from tests.support.client_stories import poll_until
from tests.support.cluster.processes import BrokerProcess
from tests.support.cluster.raw_requests import raw_request
from tests.support.cluster.two_sites import (
    QUEUES,
    TOPIC,
    UNITS,
    TwoSites,
    check_totals,
    close_and_check,
    end_of,
    first_order,
    sites,
    unit_status,
    units_read_by,
    wait_until_drained,
)

__all__ = ["sites"]

_GET_ALL_CONSUMER_OFFSET = 43


def offsets_of(broker: BrokerProcess) -> str:
    """Return what groups have committed at a broker, as it tells replicas."""
    text = raw_request(broker.address, _GET_ALL_CONSUMER_OFFSET, {}).text
    return text[text.index('"offsetTable":') :].partition("}}")[0]


@pytest.mark.timeout(300)
async def test_a_lost_site_is_drained_from_its_replica_and_comes_back(sites: TwoSites, tmp_path: Path) -> None:
    """Nothing is lost, nothing comes twice, order holds within each site, and nobody writes into the other."""
    lost, kept = UNITS
    replica = sites.start_replica(lost, tmp_path / "replica")

    async with sites.consumer(kept) as reader, sites.producer(kept) as writer:
        async with sites.consumer(lost), sites.producer(lost) as doomed:
            for unit, producer in ((lost, doomed), (kept, writer)):
                await sites.send(producer, unit, 2)
            for unit in UNITS:
                await poll_until(sites.all_consumed(unit))
        await poll_until(sites.offsets_saved(lost))
        async with sites.producer(lost) as doomed:
            await sites.send(doomed, lost, 3)
        master = sites.broker_of(lost)
        await poll_until(lambda: end_of(replica) == end_of(master))
        await poll_until(lambda: offsets_of(replica) == offsets_of(master))
        before = len(sites.consumed_messages(lost, lost))
        sites.kill(f"in-{lost}", until_gone=True)  # Its replica stays.

        await sites.operator.run("dr", "open", "--unit", lost)
        assert (await unit_status(sites, lost))["unreadable"] == []
        await poll_until(sites.all_consumed(lost))
        await wait_until_drained(sites, lost)
        await sites.send(writer, kept, 1)
        await poll_until(sites.all_consumed(kept))
        assert len(sites.consumed_messages(lost, lost)) == before

        sites.restart(f"in-{lost}")
        await close_and_check(sites, lost, reader, writer, 1)
    await check_totals(sites, lost)


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_a_site_whose_disks_are_lost_goes_on_elsewhere_behind_what_its_replica_has(
    sites: TwoSites, tmp_path: Path
) -> None:
    """The runbook's last case: nothing that the replica had is lost, nothing comes twice, and order holds."""
    lost, kept = UNITS
    replica = sites.start_replica(lost, tmp_path / "replica")

    async with sites.consumer(kept) as reader:
        async with sites.consumer(lost), sites.producer(lost) as doomed:
            await sites.send(doomed, lost, 2)
            await poll_until(sites.all_consumed(lost))
            await poll_until(sites.offsets_saved(lost))
        async with sites.producer(lost) as doomed:
            await sites.send(doomed, lost, 3)
        await poll_until(lambda: end_of(replica) == end_of(sites.broker_of(lost)))
        await poll_until(lambda: offsets_of(replica) == offsets_of(sites.broker_of(lost)))
        sites.kill(f"in-{lost}", until_gone=True)  # Its replica stays.
        shutil.rmtree(sites.broker_of(lost).store)

        await sites.operator.run("dr", "open", "--unit", lost)
        await poll_until(sites.all_consumed(lost))
        sites.start("spare", cluster=lost)
        await sites.operator.run("broker", "evacuate", f"in-{lost}", "--force", "--yes")
        async with sites.producer(lost) as elsewhere:
            await sites.send(elsewhere, lost, 2)
        for number in range(QUEUES):
            await sites.operator.run("queue", "abandon", TOPIC, str(number), "--unit", lost, "--yes")
        await poll_until(sites.all_consumed(lost))
        await sites.operator.run("dr", "close", "--unit", lost)
        await poll_until(lambda: units_read_by(reader) == {kept})
    got = sites.consumed_messages(lost)
    assert len(got) == sites.count_sent(lost)
    assert first_order(got) == sites.sent[lost]
