"""Keeping the locks of an ordered consumer."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

import pytest
from tests.support.deliveries import a_reader, poll_until, run_ready_tasks
from tests.support.scripted_group import ScriptedGroup
from tests.support.scripted_server import ScriptedServer

from holdfast.client.cluster.cluster_client import ClusterClient
from holdfast.client.cluster.queue_rpc import QueueRpc
from holdfast.client.consume import lock_renewal
from holdfast.client.consume.lock_renewal import LockRenewal, NoLocks
from holdfast.client.consume.queue_reader import QueueReader
from holdfast.model.queue import MessageQueue
from holdfast.wire.frames.codes import RequestCode

LOCK = RequestCode.LOCK_BATCH_MQ


class Desk:
    """A consumer with two queues, and its locks."""

    def __init__(self, server: ScriptedServer, client: ClusterClient) -> None:
        self.group = ScriptedGroup(server, queues=2)
        self.one, self.two = a_reader(0), a_reader(1)
        self.readers: dict[MessageQueue, QueueReader] = {reader.queue: reader for reader in (self.one, self.two)}
        self.refused: set[MessageQueue] = set()
        self.locks = LockRenewal(QueueRpc(client, "g"), self.readers, self.refuse)

    def refuse(self, queues: Iterable[MessageQueue]) -> None:
        """Take note of what somebody else has."""
        self.refused |= set(queues)


@asynccontextmanager
async def a_desk() -> AsyncIterator[tuple[ScriptedServer, Desk]]:
    async with ScriptedServer() as server, ClusterClient(server.namesrv) as client, asyncio.timeout(30):
        desk = Desk(server, client)
        await client.route("t")
        yield server, desk


async def test_what_is_granted_is_held_until_it_is_given_back():
    """Both sides know."""
    async with a_desk() as (_server, desk):
        assert not desk.locks.has_lock(desk.one)

        assert await desk.locks.lock(desk.readers) == set(desk.readers)
        await desk.locks.acquire_lock(desk.one)
        assert desk.locks.has_lock(desk.one)

        await desk.locks.unlock([desk.one.queue])
        assert not desk.locks.has_lock(desk.one)
        assert desk.locks.has_lock(desk.two)
        assert desk.group.locked == {1}


async def test_what_somebody_else_has_is_held_no_more():
    """And the consumer is told."""
    async with a_desk() as (_server, desk):
        await desk.locks.lock(desk.readers)
        desk.group.is_lock_granted = False

        assert await desk.locks.lock([desk.one.queue]) == set()

        assert desk.refused == {desk.one.queue}
        assert not desk.locks.has_lock(desk.one)
        assert desk.locks.has_lock(desk.two)


async def test_a_silent_broker_takes_nothing_away():
    """A lock is believed for its time."""
    async with a_desk() as (server, desk):
        await desk.locks.lock(desk.readers)
        server.refuse(LOCK, 1, "not now")

        assert await desk.locks.lock(desk.readers) == set()

        assert desk.refused == set()
        assert desk.locks.has_lock(desk.one)


async def test_after_a_lost_connection_nothing_is_held_until_the_broker_grants_it_again():
    """Who waits does not ask on its own; it goes on as soon as the lock is there."""
    async with a_desk() as (server, desk):
        await desk.locks.lock(desk.readers)
        desk.locks.suspend([desk.one.queue])
        waiting = asyncio.create_task(desk.locks.acquire_lock(desk.one))
        await run_ready_tasks()
        assert not desk.locks.has_lock(desk.one)
        assert desk.locks.has_lock(desk.two)
        assert len(server.requests_of(LOCK)) == 1

        assert await desk.locks.regain([desk.one.queue]) == {desk.one.queue}
        await waiting
        assert desk.locks.has_lock(desk.one)


async def test_who_waits_asks_again_and_again(monkeypatch: pytest.MonkeyPatch):
    """Until it is granted, or the queue is another reader's."""
    monkeypatch.setattr(lock_renewal, "_PAUSE_S", 0.001)

    async with a_desk() as (server, desk):
        server.refuse(LOCK, 1, "not now")
        waiting = [asyncio.create_task(desk.locks.acquire_lock(reader)) for reader in (desk.one, desk.two)]
        await server.wait_for_requests(LOCK, 6)
        assert not any(task.done() for task in waiting)

        del desk.readers[desk.two.queue]
        await waiting[1]
        server.answers[LOCK] = desk.group._lock
        await waiting[0]
        assert (desk.locks.has_lock(desk.one), desk.locks.has_lock(desk.two)) == (True, False)


async def test_locks_are_renewed(monkeypatch: pytest.MonkeyPatch):
    """Those of what is consumed, also after the broker was away for a while."""
    monkeypatch.setattr(lock_renewal, "RENEW_INTERVAL_S", 0.001)

    async with a_desk() as (server, desk):
        desk.locks.suspend([desk.two.queue])
        renewing = asyncio.create_task(desk.locks.renew_forever())
        await poll_until(lambda: desk.locks.has_lock(desk.one) and desk.locks.has_lock(desk.two))
        before = len(server.requests_of(LOCK))
        again = await server.wait_for_requests(LOCK, before + 2)
        renewing.cancel()

        assert desk.group.locked == {0, 1}
        assert desk.refused == set()
        assert {queue["queueId"] for queue in json.loads(again[-1].body)["mqSet"]} == {0, 1}


async def test_without_locks_everything_is_held():
    """A broadcasting consumer shares with nobody."""
    reader = a_reader()
    await NoLocks().acquire_lock(reader)
    assert NoLocks().has_lock(reader)
