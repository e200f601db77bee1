"""The loss of a site from end to end, as real processes: two clusters under one name server, each with 50 queues.

both serve their own ─> A dies with a backlog ─> A is opened to B's readers ─> A's disk is served at another address
─> B's consumers drain it ─> A is back ─> A is closed: each for itself again
"""

import pytest
from tests.support.client_stories import poll_until
from tests.support.cluster.ports import free_port
from tests.support.cluster.two_sites import (
    QUEUES,
    TOPIC,
    UNITS,
    TwoSites,
    check_totals,
    close_and_check,
    sites,
    unit_status,
    wait_until_drained,
)

__all__ = ["sites"]


@pytest.mark.timeout(300)
async def test_a_lost_site_is_drained_by_the_other_and_comes_back(sites: TwoSites) -> None:
    """Nothing is lost, nothing comes twice, order holds within each site, and nobody writes into the other."""
    lost, kept = UNITS
    home = sites.broker_of(lost).port

    async with sites.consumer(kept) as reader, sites.producer(kept) as writer:
        async with sites.consumer(lost), sites.producer(lost) as doomed:
            for unit, producer in ((lost, doomed), (kept, writer)):
                await sites.send(producer, unit, 3)
            for unit in UNITS:
                await poll_until(sites.all_consumed(unit))
        await poll_until(sites.offsets_saved(lost))
        # Its consumers are gone; what its producer still writes is a backlog.
        async with sites.producer(lost) as doomed:
            await sites.send(doomed, lost, 4)
        before = len(sites.consumed_messages(lost, lost))
        sites.kill(f"in-{lost}", until_gone=True)

        await sites.operator.run("dr", "open", "--unit", lost)
        status = await unit_status(sites, lost)
        assert [(each["topic"], len(each["queues"])) for each in status["unreadable"]] == [(TOPIC, QUEUES)]  # type: ignore[attr-defined]
        await sites.send(writer, kept, 2)
        await poll_until(sites.all_consumed(kept))
        assert not sites.consumed_messages(lost, kept)

        # Its disk survived: it is served where it can be reached.
        sites.restart(f"in-{lost}", port=free_port())
        async with sites.consumer(kept):
            await poll_until(sites.all_consumed(lost))
            await sites.send(writer, kept, 1)
        assert len(sites.consumed_messages(lost, lost)) == before
        await wait_until_drained(sites, lost)

        sites.stop(f"in-{lost}")
        sites.restart(f"in-{lost}", port=home)
        await close_and_check(sites, lost, reader, writer, 2)
    await check_totals(sites, lost)
