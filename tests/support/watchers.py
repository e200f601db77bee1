"""Clients, brokers and operators of a name server that pushes, each one raw connection, and the server they talk to.

    async with pushing(broker_events="off") as server, server.peers(2) as (broker, client):
        await broker.register("orders")
        await client.watch("orders")
        ...
        assert await client.told() == {"orders"}        the next 328, whenever it comes

That nothing comes cannot be awaited. What is owed to a client goes out together, so a later change that it is told of
shows that there was nothing before it: `told() == {"fence"}`.
"""

import asyncio
import itertools
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from tests.support.cluster.name_server_machine import a_registration, heartbeat_fields, registration_fields

from holdfast.machine.effects import Log
from holdfast.machine.readings import Readings
from holdfast.model.topic import TopicConfig
from holdfast.nameserver.options import NameServerOptions
from holdfast.nameserver.service import NameServerService
from holdfast.wire.cluster.push_state import PushState, decode_push_state
from holdfast.wire.cluster.watch import ROUTES_CHANGED, TOPICS_FIELD, UNWATCH, WATCHING_FIELD, split_topics
from holdfast.wire.frames.codes import RequestCode
from holdfast.wire.frames.command import JSON, ONE_WAY, Command, decode_command, encode_command
from holdfast.wire.frames.frame import split_frames

ADDRESS = "10.0.0.1:10911"


class Peer:
    """One connection to a name server: of a client, a broker or an operator.

    Attributes:
        notices: Every request that the server made of us so far, oldest first.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.notices: list[Command] = []
        self._writer = writer
        self._opaques = itertools.count(1)
        self._versions = itertools.count(1)
        self._answers: dict[int, asyncio.Future[Command]] = {}
        self._unread: asyncio.Queue[Command] = asyncio.Queue()
        self._reading = asyncio.ensure_future(self._read(reader))

    async def close(self) -> None:
        """Disconnect."""
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)
        self._writer.close()
        await self._writer.wait_closed()

    async def call(
        self, code: int, fields: Mapping[str, str] | None = None, *, body: bytes = b"", serializer: int = JSON
    ) -> Command:
        """Send one request and return its answer. What the server sent before it has been received then, too."""
        opaque = next(self._opaques)
        answer = self._answers[opaque] = asyncio.get_running_loop().create_future()
        command = Command(code=code, opaque=opaque, fields=dict(fields or {}), body=body, serializer=serializer)
        self._writer.write(encode_command(command))
        return await answer

    def send_one_way(self, code: int, fields: Mapping[str, str]) -> None:
        """Send a request that gets no answer."""
        command = Command(code=code, opaque=next(self._opaques), fields=dict(fields), flag=ONE_WAY)
        self._writer.write(encode_command(command))

    # As a client.

    async def request_route(self, topic: str, **fields: str) -> Command:
        """Ask for a route as clients do that know of no watching."""
        return await self.call(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic, **fields})

    async def watch(self, *topics: str) -> Command:
        """Ask for the routes of *topics* and for their changes; return the last answer."""
        for topic in topics:
            answer = await self.request_route(topic, watch="true")
            assert answer.fields.get(WATCHING_FIELD) == "true", answer
        return answer

    async def unwatch(self, *topics: str) -> Command:
        """Say that the changes of *topics* are of no more interest; return the answer."""
        return await self.call(UNWATCH, {TOPICS_FIELD: ";".join(topics)})

    async def next_notice(self) -> set[str]:
        """Return the topics of the next notice, once it has come."""
        return set(topics_of(await self._unread.get()))

    async def notices_until(self, topic: str) -> set[str]:
        """Return the topics of all notices up to the first that names *topic*."""
        topics = await self.next_notice()
        while topic not in topics:
            topics |= await self.next_notice()
        return topics

    async def has_no_notice(self) -> bool:
        """Say whether no notice is unread, once everything has come that was sent until now."""
        await self.request_route("nobody-has-this-topic")
        return self._unread.empty()

    async def discard_notices(self) -> None:
        """Take all notices that were sent until now for read."""
        while not await self.has_no_notice():
            await self.next_notice()

    # As a broker or an operator.

    async def register(
        self,
        *topics: TopicConfig | str,
        name: str = "a",
        address: str = ADDRESS,
        mappings: Mapping[str, Any] | None = None,
        **fields: str,
    ) -> None:
        """Register as broker *name* with exactly these topics, in a version of its own."""
        body = a_registration(*topics, counter=next(self._versions), mappings=mappings or {})
        answer = await self.call(
            RequestCode.REGISTER_BROKER, registration_fields(name, address, body, **fields), body=body
        )
        assert (answer.code, answer.remark) == (0, None)

    async def unregister(self, name: str = "a", address: str = ADDRESS) -> None:
        """Say good-bye as a broker does."""
        await self.call_successfully(RequestCode.UNREGISTER_BROKER, **heartbeat_fields(name, address))

    async def push_state(self) -> PushState:
        """Return what the name server tells of its watchers."""
        answer = await self.call_successfully(RequestCode.GET_PUSH_STATE)
        return decode_push_state(answer.body)

    async def call_successfully(self, code: int, **fields: str) -> Command:
        """Have the name server do something; return the answer, which is a success."""
        answer = await self.call(code, fields)
        assert answer.code == 0, answer
        return answer

    async def _read(self, reader: asyncio.StreamReader) -> None:
        unread = b""
        while data := await reader.read(1 << 20):
            unread += data
            frames, consumed = split_frames(memoryview(unread))
            commands = [decode_command(frame) for frame in frames]
            del frames
            unread = unread[consumed:]
            for command in commands:
                if command.is_response:
                    self._answers.pop(command.opaque).set_result(command)
                else:
                    self.notices.append(command)
                    self._unread.put_nowait(command)
        for answer in self._answers.values():
            answer.set_exception(ConnectionResetError("the name server hung up"))


@asynccontextmanager
async def connect_peer(address: str) -> AsyncIterator[Peer]:
    """Connect to a server, and disconnect at the end."""
    host, port = address.rsplit(":", 1)
    peer = Peer(*await asyncio.open_connection(host, int(port)))
    try:
        yield peer
    finally:
        await peer.close()


class NameServerHarness:
    """A name server that listens, and what it told its operator.

    Attributes:
        readings: How busy it believes the machine to be. A test may set them at any time.
    """

    def __init__(self, options: NameServerOptions) -> None:
        self._logged: asyncio.Queue[Log] = asyncio.Queue()
        self.readings = Readings(memory=20.0, load=10.0)
        self.service = NameServerService(options, self._logged.put_nowait, self.readings)

    @property
    def address(self) -> str:
        """Where it listens."""
        return self.service.address

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[Peer]:
        """Connect, and disconnect at the end."""
        host, port = self.address.rsplit(":", 1)
        peer = Peer(*await asyncio.open_connection(host, int(port)))
        try:
            yield peer
        finally:
            await peer.close()

    @asynccontextmanager
    async def peers(self, count: int) -> AsyncIterator[list[Peer]]:
        """Connect so many times, and disconnect at the end."""
        async with AsyncExitStack() as stack:
            yield [await stack.enter_async_context(self.connect()) for _ in range(count)]

    async def wait_for_log(self, event: str) -> Log:
        """Return the next *event* that is logged."""
        while (log := await self.next_log()).event != event:
            continue
        return log

    async def next_log(self) -> Log:
        """Return the next line that is logged."""
        return await self._logged.get()

    def unread_logs(self) -> list[Log]:
        """Return the lines that were logged and not looked at yet."""
        return [self._logged.get_nowait() for _ in range(self._logged.qsize())]


@asynccontextmanager
async def running_name_server(**options: Any) -> AsyncIterator[NameServerHarness]:
    """Run a name server on a free port."""
    server = NameServerHarness(NameServerOptions(listen="127.0.0.1:0", **options))
    await server.service.start()
    try:
        yield server
    finally:
        await server.service.stop()


def topics_of(notice: Command) -> list[str]:
    """Return what a notice names."""
    assert notice.code == ROUTES_CHANGED, notice
    return split_topics(notice.fields[TOPICS_FIELD])
