"""A name server that knows what a test tells it, pushes when a test says so, and remembers who asked for what.

    async with FakeNameServer() as server:
        server.serve("orders", queues=4)
        ...
        await server.until(lambda: server.watched() == [{"orders"}])      one connection, which watches one topic
        server.notify("orders")                                           a 328 to everybody
        assert server.lookups("orders") == 2

Beyond a `ScriptedNameServer` it keeps account of who watches what, and can hold its answers back, or hang.
"""

import asyncio

from tests.support.pushing_server import ROUTE, ScriptedNameServer

from holdfast.model.route import BrokerData, QueueData, Route
from holdfast.wire.cluster.deletions import DELETED_FIELD
from holdfast.wire.cluster.route import encode_route
from holdfast.wire.cluster.watch import TOPICS_FIELD, UNWATCH, WATCH_FIELD, split_topics
from holdfast.wire.frames.codes import ResponseCode
from holdfast.wire.frames.command import Command, encode_command, response

BROKER = "127.0.0.1:1"
"""Where its brokers are said to listen; nobody does."""


class FakeNameServer(ScriptedNameServer):
    """Listens on a free port while the block lasts.

    Attributes:
        routes: What it answers: topic to route.
        deleted: Topics of which it says, while it does not serve them, that they were deleted.
        is_delaying: Whether queries wait for `answer_delayed`.
        is_silent: Whether nothing is answered any more, as if the process hung.
    """

    def __init__(self, *, host: str = "127.0.0.1", port: int = 0, pushes: bool = True) -> None:
        super().__init__(pushes=pushes)
        self.routes: dict[str, Route] = {}
        self.deleted: set[str] = set()
        self.is_delaying = False
        self.is_silent = False
        self._host, self._port = host, port
        self._watches: dict[asyncio.StreamWriter, set[str]] = {}
        self._delayed: list[tuple[asyncio.StreamWriter, Command]] = []
        self.answers[ROUTE] = self._route

    async def listen(self, port: int) -> None:
        """Begin to listen, or again after `stop`."""
        self._server = await asyncio.start_server(self._serve, self._host, port or self._port)
        self.address = f"{self._host}:{self._server.sockets[0].getsockname()[1]}"

    @property
    def port(self) -> int:
        """The port it listens on."""
        return int(self.address.rsplit(":", 1)[1])

    # What it knows.

    def serve(self, *topics: str, queues: int = 1, broker: str = BROKER) -> None:
        """Let *topics* exist, with as many queues, at the address of a broker."""
        for topic in topics:
            self.routes[topic] = Route(
                broker_datas=[BrokerData(cluster="c", broker_name="broker-a", broker_addrs={0: broker})],
                queue_datas=[QueueData(broker_name="broker-a", read_queues=queues, write_queues=queues, permission=6)],
            )

    def answer_delayed(self) -> None:
        """Answer the queries that were held."""
        for writer, command in self._delayed:
            answer = self.answer(command)
            assert answer is not None
            writer.write(encode_command(answer))
        self._delayed.clear()

    def drop_connections(self) -> None:
        """End every connection as a crash would; who watched is forgotten with it."""
        super().drop_connections()
        self._watches.clear()

    # What it was asked.

    def queries(self) -> list[Command]:
        """Return every query for a route so far."""
        return self.requests_of(ROUTE)

    def lookups(self, topic: str) -> int:
        """Return how often the route of *topic* was asked for."""
        return len(self.route_queries(topic))

    def watched(self) -> list[set[str]]:
        """Return what each connection that is open watches, if anything."""
        return [topics for writer, topics in self._watches.items() if topics and writer in self._writers]

    def unwatched_topics(self) -> list[str]:
        """Return every topic that a 329 named, as often as one did."""
        return [topic for topics in self.unwatched() for topic in topics]

    def _route(self, command: Command) -> Command:
        route = self.routes.get(command.fields["topic"])
        if route is None:
            fields = {DELETED_FIELD: "true"} if command.fields["topic"] in self.deleted else {}
            return response(command, ResponseCode.TOPIC_NOT_EXIST, "no such topic", fields=fields)
        return response(command, body=encode_route(route))

    async def _handle(self, command: Command, writer: asyncio.StreamWriter) -> None:
        if command.code == ROUTE and command.fields.get(WATCH_FIELD) == "true":
            self._watches.setdefault(writer, set()).add(command.fields["topic"])
        if command.code == UNWATCH:
            self._watches.get(writer, set()).difference_update(split_topics(command.fields[TOPICS_FIELD]))
        if self.is_silent or (self.is_delaying and command.code == ROUTE):
            self._delayed.append((writer, command))
            async with self._changed:
                self.requests.append(command)
                self._changed.notify_all()
            return
        await super()._handle(command, writer)
