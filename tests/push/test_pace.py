"""When notices go out: spread where a broker's event concerns everybody, never too many at once, never forgotten."""

import asyncio
from contextlib import AsyncExitStack

from tests.support.cluster.name_server_machine import a_topic
from tests.support.watchers import NameServerHarness, Peer, running_name_server

CLIENTS = 40
DAYS_MS = 1_000_000_000


async def watching(server: NameServerHarness, stack: AsyncExitStack, *topics: str, count: int = CLIENTS) -> list[Peer]:
    """Return *count* clients that watch *topics*."""
    clients = [await stack.enter_async_context(server.connect()) for _ in range(count)]
    await asyncio.gather(*(client.watch(*topics) for client in clients))
    return clients


async def count_told(clients: list[Peer]) -> int:
    """Return how many of *clients* have been told something that was sent until now."""
    return [await client.has_no_notice() for client in clients].count(False)


async def test_a_brokers_death_is_told_to_everybody_but_not_at_once():
    """While others are told of something else at a tick, most still wait for their own moment; in the end all know."""
    options = {"broker_event_spread_ms": 6_000}
    async with running_name_server(**options) as server, AsyncExitStack() as stack, server.connect() as keeper:
        await keeper.register("clock", name="z", address="10.0.0.26:10911")
        async with server.connect() as broker:
            await broker.register("orders", "bills")
            clients = await watching(server, stack, "orders")
            (clock,) = await watching(server, stack, "clock", count=1)
        await server.wait_for_log("broker left")

        await keeper.register(a_topic("clock", 8), name="z", address="10.0.0.26:10911")
        await clock.next_notice()

        assert await count_told(clients) < CLIENTS
        assert await asyncio.gather(*(client.next_notice() for client in clients)) == [{"orders"}] * CLIENTS


async def test_no_more_frames_go_out_than_the_rate_allows_and_the_oldest_go_first():
    """The rest follows tick by tick, and whoever has to be told something later comes after them."""
    async with running_name_server(notify_rate_max=8) as server, AsyncExitStack() as stack, server.connect() as broker:
        await broker.register("orders", "late")
        clients = await watching(server, stack, "orders")
        (late,) = await watching(server, stack, "late", count=1)

        await broker.register(a_topic("orders", 8))
        waiting = [asyncio.ensure_future(client.next_notice()) for client in clients]
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        await broker.register(a_topic("late", 8))
        await asyncio.gather(*(client.request_route("orders") for client in clients))
        first = sum(task.done() for task in waiting)

        assert await late.next_notice() == {"late"}
        await asyncio.gather(*(client.request_route("orders") for client in clients))
        assert 0 < first < CLIENTS
        assert all(task.done() for task in waiting)
        assert [task.result() for task in waiting] == [{"orders"}] * CLIENTS


async def test_what_changes_while_a_client_waits_goes_along():
    """Each client gets one frame with everything, however long its turn takes to come."""
    async with running_name_server(notify_rate_max=1) as server, AsyncExitStack() as stack, server.connect() as broker:
        await broker.register("orders", "bills")
        clients = await watching(server, stack, "orders", "bills", count=3)
        await broker.register(a_topic("orders", 8))
        waiting = [asyncio.ensure_future(client.next_notice()) for client in clients]
        done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)

        await broker.register(a_topic("bills", 8))

        told = await asyncio.gather(*waiting)
        assert sorted(map(sorted, told)) == [["bills", "orders"], ["bills", "orders"], ["orders"]]
        first = clients[waiting.index(done.pop())]
        assert await first.next_notice() == {"bills"}


async def test_everything_that_is_owed_to_a_client_is_one_notice():
    """Two brokers die and one starts; then a topic changes, which is told at the next tick, and the rest with it."""
    async with running_name_server(broker_event_spread_ms=DAYS_MS) as server, server.peers(5) as peers:
        keeper, first, second, third, client = peers
        await keeper.register("fence", name="z", address="10.0.0.26:10911")
        await first.register("first", "more", name="f", address="10.0.0.6:10911")
        await second.register("second", "more", name="s", address="10.0.0.19:10911")
        await client.watch("fence", "first", "second", "third", "more")

        await first.close()
        await second.unregister("s", "10.0.0.19:10911")
        await server.wait_for_log("broker left")
        await server.wait_for_log("broker left")
        await third.register("third", name="t", address="10.0.0.20:10911")
        await keeper.register(a_topic("fence", 8), name="z", address="10.0.0.26:10911")

        assert await client.next_notice() == {"fence", "first", "second", "third", "more"}


async def test_what_is_not_watched_any_more_is_not_told_though_it_was_owed():
    """Nor is it when it is watched again: the answer to that query had it."""
    async with (
        running_name_server(broker_event_spread_ms=DAYS_MS) as server,
        server.peers(3) as (keeper, broker, client),
    ):
        await keeper.register("fence", name="z", address="10.0.0.26:10911")
        await broker.register("orders", "bills")
        await client.watch("fence", "orders", "bills")
        await broker.unregister()

        await client.unwatch("orders", "bills")
        await client.watch("bills")

        await keeper.register(a_topic("fence", 8), name="z", address="10.0.0.26:10911")
        assert await client.next_notice() == {"fence"}
