"""The loss of a site whose broker has a replica at the other one: nothing of the lost site has to be brought anywhere.

both serve their own ─> A dies with a backlog ─> A is opened to B's readers ─> they drain it from the replica beside
them ─> A is back, and knows what was consumed meanwhile ─> A is closed: each for itself again
"""

import shutil
from pathlib import Path

import pytest
from tests.support.client_stories import poll_until
from tests.support.cluster.processes import BrokerProcess, call, wait_until_gone
from tests.support.cluster.two_sites import (
    QUEUES,
    SETTINGS,
    TOPIC,
    UNITS,
    LostSiteCluster,
    check_totals,
    close_and_check,
    first_order,
    sites,
    unit_status,
    units_read_by,
    wait_until_drained,
)

__all__ = ["sites"]

_GET_BROKER_RUNTIME_INFO = 28
_GET_ALL_CONSUMER_OFFSET = 43


def end_of(broker: BrokerProcess) -> str:
    """Return where the log of a broker ends."""
    return call(broker.address, _GET_BROKER_RUNTIME_INFO, {})[1].partition('"commitLogMaxOffset":')[2].partition(",")[0]


def offsets_of(broker: BrokerProcess) -> str:
    """Return what groups have committed at a broker, as it tells replicas."""
    text = call(broker.address, _GET_ALL_CONSUMER_OFFSET, {})[1]
    return text[text.index('"offsetTable":') :].partition("}}")[0]


def start_replica(sites: LostSiteCluster, unit: str, folder: Path) -> BrokerProcess:
    """Start a replica of the broker of a site: of its cluster, wherever it stands."""
    settings = {
        **SETTINGS,
        "replica_of": f"in-{unit}",
    }
    return sites.processes.start_broker(
        f"in-{unit}", sites.name_server, cluster=unit, store=folder, flush="sync", settings=settings
    )


def lose(sites: LostSiteCluster, unit: str) -> None:
    """End the broker of a site without a word; its replica stays."""
    sites.brokers[unit].child.kill()
    wait_until_gone(sites.name_server, [sites.brokers[unit].address])


@pytest.mark.timeout(300)
async def test_a_lost_site_is_drained_from_its_replica_and_comes_back(sites: LostSiteCluster, tmp_path: Path) -> None:
    """Nothing is lost, nothing comes twice, order holds within each site, and nobody writes into the other."""
    lost, kept = UNITS
    replica = start_replica(sites, lost, tmp_path / "replica")

    async with sites.consumer(kept) as reader, sites.producer(kept) as writer:
        async with sites.consumer(lost), sites.producer(lost) as doomed:
            for unit, producer in ((lost, doomed), (kept, writer)):
                await sites.send(producer, unit, 2)
            for unit in UNITS:
                await poll_until(sites.all_consumed(unit))
        await poll_until(sites.offsets_saved(lost))
        async with sites.producer(lost) as doomed:
            await sites.send(doomed, lost, 3)
        master = sites.brokers[lost]
        await poll_until(lambda: end_of(replica) == end_of(master))
        await poll_until(lambda: offsets_of(replica) == offsets_of(master))
        before = len(sites.consumed_messages(lost, lost))
        lose(sites, lost)

        await sites.operator.run("dr", "open", "--unit", lost)
        assert (await unit_status(sites, lost))["unreadable"] == []
        await poll_until(sites.all_consumed(lost))
        await wait_until_drained(sites, lost)
        await sites.send(writer, kept, 1)
        await poll_until(sites.all_consumed(kept))
        assert len(sites.consumed_messages(lost, lost)) == before

        sites.start_broker(lost, port=master.port)
        await close_and_check(sites, lost, reader, writer, 1)
    await check_totals(sites, lost)


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_a_site_whose_disks_are_lost_goes_on_elsewhere_behind_what_its_replica_has(
    sites: LostSiteCluster, tmp_path: Path
) -> None:
    """The runbook's last case: nothing that the replica had is lost, nothing comes twice, and order holds."""
    lost, kept = UNITS
    replica = start_replica(sites, lost, tmp_path / "replica")

    async with sites.consumer(kept) as reader:
        async with sites.consumer(lost), sites.producer(lost) as doomed:
            await sites.send(doomed, lost, 2)
            await poll_until(sites.all_consumed(lost))
            await poll_until(sites.offsets_saved(lost))
        async with sites.producer(lost) as doomed:
            await sites.send(doomed, lost, 3)
        await poll_until(lambda: end_of(replica) == end_of(sites.brokers[lost]))
        await poll_until(lambda: offsets_of(replica) == offsets_of(sites.brokers[lost]))
        lose(sites, lost)
        shutil.rmtree(sites.brokers[lost].store)

        await sites.operator.run("dr", "open", "--unit", lost)
        await poll_until(sites.all_consumed(lost))
        sites.processes.start_broker("spare", sites.name_server, cluster=lost, flush="sync", settings=SETTINGS)
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
