"""The loss of a site whose broker has a replica at the other one: nothing of the lost site has to be brought anywhere.

both serve their own ─> A dies with a backlog ─> A is opened to B's readers ─> they drain it from the replica beside
them ─> A is back, and knows what was consumed meanwhile ─> A is closed: each for itself again
"""

import shutil
from pathlib import Path

import pytest
from tests.support.client_stories import until
from tests.support.cluster import Broker, ask, wait_until_gone
from tests.support.lost_site import (
    QUEUES,
    SETTINGS,
    TOPIC,
    UNITS,
    Sites,
    check_books,
    firsts,
    look,
    read_by,
    serve_again,
    sites,
    until_drained,
)

__all__ = ["sites"]

_GET_BROKER_RUNTIME_INFO = 28
_GET_ALL_CONSUMER_OFFSET = 43


def end_of(broker: Broker) -> str:
    """Return where the log of a broker ends."""
    return ask(broker.address, _GET_BROKER_RUNTIME_INFO, {})[1].partition('"commitLogMaxOffset":')[2].partition(",")[0]


def offsets_of(broker: Broker) -> str:
    """Return what groups have committed at a broker, as it tells replicas."""
    text = ask(broker.address, _GET_ALL_CONSUMER_OFFSET, {})[1]
    return text[text.index('"offsetTable":') :].partition("}}")[0]


def start_replica(sites: Sites, unit: str, folder: Path) -> Broker:
    """Start a replica of the broker of a site: of its cluster, wherever it stands."""
    settings = {
        **SETTINGS,
        "replica_of": f"in-{unit}",
    }
    return sites.processes.start_broker(
        f"in-{unit}", sites.name_server, cluster=unit, store=folder, flush="sync", settings=settings
    )


def lose(sites: Sites, unit: str) -> None:
    """End the broker of a site without a word; its replica stays."""
    sites.brokers[unit].child.kill()
    wait_until_gone(sites.name_server, [sites.brokers[unit].address])


@pytest.mark.timeout(300)
async def test_a_lost_site_is_drained_from_its_replica_and_comes_back(sites: Sites, tmp_path: Path) -> None:
    """Nothing is lost, nothing comes twice, order holds within each site, and nobody writes into the other."""
    lost, kept = UNITS
    replica = start_replica(sites, lost, tmp_path / "replica")

    async with sites.consumer(kept) as reader, sites.producer(kept) as writer:
        async with sites.consumer(lost), sites.producer(lost) as doomed:
            for unit, producer in ((lost, doomed), (kept, writer)):
                await sites.send(producer, unit, 2)
            for unit in UNITS:
                await until(sites.has_all(unit))
        await until(sites.has_saved(lost))
        async with sites.producer(lost) as doomed:
            await sites.send(doomed, lost, 3)
        master = sites.brokers[lost]
        await until(lambda: end_of(replica) == end_of(master))
        await until(lambda: offsets_of(replica) == offsets_of(master))
        before = len(sites.got(lost, lost))
        lose(sites, lost)

        await sites.operator.run("dr", "open", "--unit", lost)
        assert (await look(sites, lost))["unreadable"] == []
        await until(sites.has_all(lost))
        await until_drained(sites, lost)
        await sites.send(writer, kept, 1)
        await until(sites.has_all(kept))
        assert len(sites.got(lost, lost)) == before

        sites.start_broker(lost, port=master.port)
        await serve_again(sites, lost, reader, writer, 1)
    await check_books(sites, lost)


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_a_site_whose_disks_are_lost_goes_on_elsewhere_behind_what_its_replica_has(
    sites: Sites, tmp_path: Path
) -> None:
    """The runbook's last case: nothing that the replica had is lost, nothing comes twice, and order holds."""
    lost, kept = UNITS
    replica = start_replica(sites, lost, tmp_path / "replica")

    async with sites.consumer(kept) as reader:
        async with sites.consumer(lost), sites.producer(lost) as doomed:
            await sites.send(doomed, lost, 2)
            await until(sites.has_all(lost))
            await until(sites.has_saved(lost))
        async with sites.producer(lost) as doomed:
            await sites.send(doomed, lost, 3)
        await until(lambda: end_of(replica) == end_of(sites.brokers[lost]))
        await until(lambda: offsets_of(replica) == offsets_of(sites.brokers[lost]))
        lose(sites, lost)
        shutil.rmtree(sites.brokers[lost].store)

        await sites.operator.run("dr", "open", "--unit", lost)
        await until(sites.has_all(lost))
        sites.processes.start_broker("spare", sites.name_server, cluster=lost, flush="sync", settings=SETTINGS)
        await sites.operator.run("broker", "evacuate", f"in-{lost}", "--force", "--yes")
        async with sites.producer(lost) as elsewhere:
            await sites.send(elsewhere, lost, 2)
        for number in range(QUEUES):
            await sites.operator.run("queue", "abandon", TOPIC, str(number), "--unit", lost, "--yes")
        await until(sites.has_all(lost))
        await sites.operator.run("dr", "close", "--unit", lost)
        await until(lambda: read_by(reader) == {kept})
    got = sites.got(lost)
    assert len(got) == sites.count_sent(lost)
    assert firsts(got) == sites.sent[lost]
