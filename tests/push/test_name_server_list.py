"""Which name server a client uses: one by chance, until the list changes; and never do two tell it things."""

import asyncio
import http.server
import socket
import threading
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager, suppress
from typing import Any

import pytest
from tests.support.client_stories import poll_until, queue_count, wait_for_queues
from tests.support.fake_name_server import FakeNameServer

from holdfast import ClusterClient, ConfigError, Producer, PullConsumer, PushConsumer, blocking
from holdfast.model.message import ReceivedMessage
from holdfast.model.topic import AUTO_CREATE_TOPIC
from holdfast.wire.cluster.watch import TEXT_MAX, TOPICS_FIELD, UNWATCH, WATCH_FIELD

CLIENTS = 24
HOST = "name-servers.test"


async def ignore(message: ReceivedMessage) -> None:
    raise AssertionError("there are no messages here")


def watches(server: FakeNameServer, *topics: str) -> bool:
    """Say whether some connection watches all of *topics*."""
    return any(watched >= set(topics) for watched in server.watched())


async def test_clients_spread_over_the_list_and_each_stays_where_it_is():
    """By chance: of many clients each name server gets some. Whatever a client asks for goes to the same one."""
    async with FakeNameServer() as first, FakeNameServer() as second, AsyncExitStack() as stack:
        namesrv = f"{first.address};{second.address}"
        for number in range(CLIENTS):
            client = await stack.enter_async_context(ClusterClient(namesrv))
            for server in (first, second):
                server.serve(f"topic-{number}", f"more-{number}")
            for topic in (f"topic-{number}", f"more-{number}", f"topic-{number}"):
                await client.route(topic, refresh=True)

        assert first.queries() != []
        assert second.queries() != []
        for number in range(CLIENTS):
            asked = [server.lookups(f"topic-{number}") + server.lookups(f"more-{number}") for server in (first, second)]
            assert sorted(asked) == [0, 3]


async def test_a_new_list_ends_the_watches_at_the_old_name_server_and_begins_them_at_the_new():
    """One 329 with every topic, and every topic asked for again with watch. The old one tells nobody any more."""
    async with FakeNameServer() as old, FakeNameServer() as new:
        old.serve("orders", "bills")
        new.serve("orders", "bills", queues=3)
        async with Producer(old.address) as producer:
            await producer.queues("orders")
            await producer.queues("bills")

            await producer.set_name_servers(new.address)

            await new.wait_until(lambda: watches(new, "orders", "bills"))
            await old.wait_until(lambda: set(old.unwatched_topics()) == {"orders", "bills"})
            assert old.watched() == []
            assert len(old.requests_of(UNWATCH)) == 1
            before = len(old.queries())
            new.serve("orders", queues=5)
            new.notify("orders")
            await new.wait_until(lambda: new.lookups("orders") == 2)
            assert len(old.queries()) == before


async def test_the_end_of_many_watches_is_told_in_requests_that_every_name_server_takes():
    """Names above 64 KiB go in several."""
    topics = [f"{number:03}-{'t' * 120}" for number in range(700)]
    async with FakeNameServer() as old, FakeNameServer() as new:
        for server in (old, new):
            server.serve(*topics)
        async with Producer(old.address) as producer:
            await asyncio.gather(*(producer.queues(topic) for topic in topics))

            await producer.set_name_servers(new.address)

            await old.wait_until(lambda: len(old.unwatched_topics()) >= len(topics))
            assert sorted(old.unwatched_topics()) == topics
            sizes = [len(command.fields[TOPICS_FIELD].encode()) for command in old.requests_of(UNWATCH)]
            assert len(sizes) == 2
            assert max(sizes) <= TEXT_MAX
            await new.wait_until(lambda: watches(new, *topics))


async def test_a_longer_list_is_a_change_too():
    """Its content is what counts, not whether the old choice is still in it: the choice is made anew, by chance."""
    async with FakeNameServer() as first, FakeNameServer() as second, AsyncExitStack() as stack:
        for server in (first, second):
            server.serve("orders", "more")
        clients = [await stack.enter_async_context(ClusterClient(first.address)) for _ in range(CLIENTS)]
        for client in clients:
            await client.route("orders")

        for client in clients:
            await client.set_name_servers(f"{first.address};{second.address}")
            await client.route("more")

        assert first.lookups("more") + second.lookups("more") == CLIENTS
        assert first.lookups("more") > 0
        assert second.lookups("more") > 0
        await second.wait_until(
            lambda: sum("orders" in topics for topics in second.watched()) == second.lookups("more")
        )
        assert sum("orders" in topics for topics in first.watched()) == first.lookups("more")


async def test_the_same_list_changes_nothing():
    """Nobody is told, and nothing is asked for again."""
    async with FakeNameServer() as first, FakeNameServer() as second:
        for server in (first, second):
            server.serve("orders")
        async with Producer(f"{first.address};{second.address}") as producer:
            await producer.queues("orders")
            used, other = (first, second) if first.queries() else (second, first)

            for _ in range(10):
                await producer.set_name_servers(f"{first.address};{second.address}")
            used.notify("orders")
            await used.wait_until(lambda: used.lookups("orders") == 2)

            assert used.requests_of(UNWATCH) == []
            assert other.requests == []


@pytest.mark.parametrize("text", ["", "nonsense", "host:0", "127.0.0.1:9876;host"])
async def test_a_list_that_cannot_be_used_is_refused_and_the_old_one_stays(text: str):
    """The error names what is wrong."""
    async with FakeNameServer() as server, Producer(server.address) as producer:
        server.serve("orders")
        await producer.queues("orders")

        with pytest.raises(ConfigError):
            await producer.set_name_servers(text)

        server.notify("orders")
        await server.wait_until(lambda: server.lookups("orders") == 2)
        assert server.requests_of(UNWATCH) == []


async def test_a_lookup_that_is_under_way_leaves_no_watch_at_the_old_name_server():
    """It was asked for before the list changed and is answered after."""
    async with FakeNameServer() as old, FakeNameServer() as new:
        for server in (old, new):
            server.serve("orders", "late")
        async with Producer(old.address) as producer:
            await producer.queues("orders")
            old.is_delaying = True
            looking = asyncio.ensure_future(producer.queues("late"))
            await old.wait_until(lambda: old.lookups("late") == 1)

            await producer.set_name_servers(new.address)
            old.is_delaying = False
            old.answer_delayed()

            assert len(await looking) == 1
            await new.wait_until(lambda: watches(new, "orders", "late"))
            await old.wait_until(lambda: old.watched() == [])


async def test_a_lookup_that_is_under_way_is_watched_once_though_the_old_name_server_stays_in_the_list():
    """Whichever of the two each client chose: the other one tells it nothing."""
    async with FakeNameServer() as old, FakeNameServer() as new, AsyncExitStack() as stack:
        for server in (old, new):
            server.serve("orders", "late")
        clients = [await stack.enter_async_context(ClusterClient(old.address)) for _ in range(CLIENTS)]
        for client in clients:
            await client.route("orders")
        old.is_delaying = True
        looking = [asyncio.ensure_future(client.route("late")) for client in clients]
        await old.wait_until(lambda: old.lookups("late") == CLIENTS)

        for client in clients:
            await client.set_name_servers(f"{old.address};{new.address}")
        old.is_delaying = False
        old.answer_delayed()

        await asyncio.gather(*looking)
        await poll_until(lambda: old.watched() + new.watched() == [{"orders", "late"}] * CLIENTS)
        assert new.watched() != [], "some clients have chosen the new name server"
        assert old.watched() != [], "some clients have chosen the old name server again"


async def test_a_list_that_changes_again_and_again_ends_with_one_name_server():
    """Whatever the calls overtook: the last one counts, and nobody else tells."""
    async with FakeNameServer() as first, FakeNameServer() as second, FakeNameServer() as last:
        servers = (first, second, last)
        for server in servers:
            server.serve("orders", "bills", "fence")
        async with Producer(first.address) as producer:
            await producer.queues("orders")
            await producer.queues("bills")

            for _ in range(5):
                await asyncio.gather(*(producer.set_name_servers(server.address) for server in servers))
            await producer.set_name_servers(last.address)

            await last.wait_until(lambda: watches(last, "orders", "bills"))
            before = last.lookups("orders")
            last.notify("orders")
            await last.wait_until(lambda: last.lookups("orders") > before)
            for other in (first, second):
                await other.wait_until(lambda other=other: other.watched() == [])
            await poll_until(lambda: last.watched() == [{"orders", "bills"}])
            assert producer._client.name_servers == (last.address,)


async def test_a_name_server_that_was_left_is_not_gone_back_to():
    """It died and is there again; the client is at home elsewhere now."""
    async with FakeNameServer() as first, FakeNameServer() as second:
        for server in (first, second):
            server.serve("orders")
        async with Producer(f"{first.address};{second.address}") as producer:
            await producer.queues("orders")
            used, other = (first, second) if first.queries() else (second, first)
            port = used.port
            await used.stop()
            await other.wait_until(lambda: watches(other, "orders"))
            queries = len(used.queries())

            await used.listen(port)

            other.notify("orders")
            await other.wait_until(lambda: other.lookups("orders") >= 2)
            assert used.watched() == []
            assert len(used.queries()) == queries


async def test_missing_topics_go_along_to_the_new_name_server():
    """Where they may exist."""
    async with FakeNameServer() as old, FakeNameServer() as new, Producer(old.address) as producer:
        new.serve("orders", queues=3)
        assert await queue_count(producer, "orders") is None
        assert await queue_count(producer, "missing") is None

        await producer.set_name_servers(new.address)

        await wait_for_queues(producer, "orders", 3)
        await new.wait_until(lambda: watches(new, "missing", AUTO_CREATE_TOPIC))
        await old.wait_until(lambda: old.watched() == [])


async def test_every_client_can_be_given_another_list():
    """Readers and consumers as well as producers."""
    async with FakeNameServer() as old, FakeNameServer() as new:
        for server in (old, new):
            server.serve("orders")
        consumer = PushConsumer(old.address, "g", listener=ignore)
        consumer.subscribe("orders")
        async with PullConsumer(old.address, "g") as reader, consumer:
            await reader.queues("orders")
            await old.wait_until(lambda: sum("orders" in topics for topics in old.watched()) == 2)

            await reader.set_name_servers(new.address)
            await consumer.set_name_servers(new.address)

            await new.wait_until(lambda: sum("orders" in topics for topics in new.watched()) == 2)
            await old.wait_until(lambda: old.watched() == [])
            assert old.unwatched_topics().count("orders") == 2
            assert new.unwatched_topics() == []


async def test_the_blocking_client_can_be_given_another_list():
    """By a plain call."""
    async with FakeNameServer() as old, FakeNameServer() as new:
        for server in (old, new):
            server.serve("orders")
        with await asyncio.to_thread(blocking.Producer, old.address) as producer:
            await asyncio.to_thread(producer.queues, "orders")

            await asyncio.to_thread(producer.set_name_servers, new.address)

            await new.wait_until(lambda: watches(new, "orders"))
            await old.wait_until(lambda: old.watched() == [])
            assert old.unwatched_topics() == ["orders"]
            assert new.watched() == [{"orders"}]
            await asyncio.to_thread(producer.close)


async def test_a_name_is_resolved_to_all_its_addresses_and_again_later(monkeypatch: pytest.MonkeyPatch):
    """What the name stands for is the list: when it stands for others, the client goes there."""
    hosts = ["127.0.0.2"]
    resolve = socket.getaddrinfo

    def answer(host: Any, port: Any, *args: Any, **kwargs: Any) -> list[Any]:
        if host not in {HOST, HOST.encode()}:
            return resolve(host, port, *args, **kwargs)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, int(port or 0))) for each in hosts]

    monkeypatch.setattr(socket, "getaddrinfo", answer)

    async with FakeNameServer(host="127.0.0.2") as old, FakeNameServer(host="127.0.0.3", port=old.port) as new:
        for server in (old, new):
            server.serve("orders")
        async with Producer(f"{HOST}:{old.port}", name_server_refresh_s=0.1) as producer:
            await producer.queues("orders")
            assert watches(old, "orders")

            hosts[:] = ["127.0.0.3"]

            await new.wait_until(lambda: watches(new, "orders"))
            await old.wait_until(lambda: old.watched() == [])


async def test_all_addresses_of_a_name_are_used(monkeypatch: pytest.MonkeyPatch):
    """Clients spread over them; one that is dead is left for another."""
    resolve = socket.getaddrinfo

    def answer(host: Any, port: Any, *args: Any, **kwargs: Any) -> list[Any]:
        if host not in {HOST, HOST.encode()}:
            return resolve(host, port, *args, **kwargs)
        hosts = ("127.0.0.2", "127.0.0.3")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, int(port or 0))) for each in hosts]

    monkeypatch.setattr(socket, "getaddrinfo", answer)

    async with (
        FakeNameServer(host="127.0.0.2") as first,
        FakeNameServer(host="127.0.0.3", port=first.port) as second,
        AsyncExitStack() as stack,
    ):
        for server in (first, second):
            server.serve("orders")
        for _ in range(CLIENTS):
            client = await stack.enter_async_context(ClusterClient(f"{HOST}:{first.port}"))
            await client.route("orders")
        assert 0 < first.lookups("orders") < CLIENTS

        await first.stop()

        await second.wait_until(lambda: sum("orders" in topics for topics in second.watched()) == CLIENTS)


class AddressServer:
    """What an HTTP address server says, and how often it was asked."""

    def __init__(self) -> None:
        self.text = ""
        self.status = 200
        self.asked: list[str] = []
        self.url = ""


@contextmanager
def an_address_server() -> Iterator[AddressServer]:
    """Run one on a free port."""
    said = AddressServer()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            said.asked.append(self.path)
            body = said.text.encode()
            self.send_response(said.status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            with suppress(ConnectionError):  # nobody has to read nonsense to its end
                self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name is the library's
            return

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    said.url = f"http://127.0.0.1:{server.server_port}/rocketmq/nsaddr"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield said
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


async def test_an_address_server_says_where_the_name_servers_are_and_is_asked_again():
    """When it names others, the client goes there."""
    with an_address_server() as said:
        async with FakeNameServer() as old, FakeNameServer() as new:
            for server in (old, new):
                server.serve("orders")
            said.text = f"{old.address}\n"
            async with Producer(said.url, name_server_refresh_s=0.1) as producer:
                await producer.queues("orders")
                assert watches(old, "orders")
                assert said.asked[0] == "/rocketmq/nsaddr"

                said.text = new.address

                await new.wait_until(lambda: watches(new, "orders"))
                await old.wait_until(lambda: old.watched() == [])


@pytest.mark.parametrize(
    ("status", "text"),
    [(500, ""), (200, ""), (200, "<html>hello</html>"), (200, "x" * (8 << 20)), (404, "127.0.0.1:1")],
)
async def test_nonsense_of_an_address_server_changes_nothing(status: int, text: str, caplog: pytest.LogCaptureFixture):
    """It is logged, and the list that was good stays in use."""
    with an_address_server() as said:
        async with FakeNameServer() as server:
            server.serve("orders")
            said.text = server.address
            async with Producer(said.url, name_server_refresh_s=0.05) as producer:
                await producer.queues("orders")
                said.status, said.text = status, text
                asked = len(said.asked)
                while len(said.asked) < asked + 3:  # noqa: ASYNC110 - it is asked from another thread
                    await asyncio.sleep(0.02)

                server.notify("orders")
                await server.wait_until(lambda: server.lookups("orders") == 2)
                assert server.requests_of(UNWATCH) == []
        assert [record for record in caplog.records if said.url in record.getMessage()] != []


async def test_everything_that_is_asked_for_is_watched():
    """No query for a route leaves without the field, whichever way the list came to be."""
    async with FakeNameServer() as old, FakeNameServer() as new:
        for server in (old, new):
            server.serve("orders")
        async with Producer(old.address) as producer:
            await producer.queues("orders")
            await producer.set_name_servers(f"{new.address}")
            await new.wait_until(lambda: watches(new, "orders"))

        assert {command.fields.get(WATCH_FIELD) for command in old.queries() + new.queries()} == {"true"}
