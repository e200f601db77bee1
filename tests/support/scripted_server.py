"""A server that answers by script: any role, as far as a test needs it.

    async with ScriptedServer() as server:
        server.on(RequestCode.HEART_BEAT)                                   answers 0
        server.on(RequestCode.GET_MAX_OFFSET, offset="7")                   answers 0 with fields
        server.answers[code] = lambda command: response(command, 2, "busy") anything else; None for silence
        await server.heard(code)                                            the next request of that code

Without a script for a code it answers 3, as real servers do.
"""

import asyncio
from collections.abc import Callable
from typing import Self

from holdfast.model.route import BrokerData, QueueData, Route
from holdfast.wire.cluster.route import encode_route
from holdfast.wire.frames.codes import RequestCode
from holdfast.wire.frames.command import Command, decode_command, encode_command, response
from holdfast.wire.frames.frame import split_frames

AnswerScript = Callable[[Command], Command | None]


class ScriptedServer:
    """Listens on a free port of loopback while the block lasts."""

    def __init__(self) -> None:
        self.answers: dict[int, AnswerScript] = {}
        self.requests: list[Command] = []
        self.reads: list[int] = []
        self.address = ""
        self._changed = asyncio.Condition()
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        await self.listen(0)
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.stop()

    @property
    def namesrv(self) -> str:
        """Another name of the same address: clients tell name servers and brokers apart by the text."""
        return self.address.replace("127.0.0.1", "localhost")

    async def listen(self, port: int) -> None:
        """Begin to listen, or again after `stop`."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", port)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        """Listen no more and drop every connection."""
        assert self._server is not None
        self._server.close()
        self.drop_connections()
        await self._server.wait_closed()

    def on(self, code: int, *, body: bytes = b"", **fields: str) -> None:
        """Answer *code* with success."""
        self.answers[code] = lambda command: response(command, fields=fields, body=body)

    def refuse(self, code: int, with_code: int, remark: str = "no") -> None:
        """Answer *code* with a refusal."""
        self.answers[code] = lambda command: response(command, with_code, remark)

    def serve_topic(
        self, topic: str, *, queues: int = 1, other_brokers: dict[str, str] | None = None, other_cluster: str = "c"
    ) -> None:
        """Be name server and broker `broker-a` of *topic*; *others* are more, name -> address, of a cluster."""
        brokers = {"broker-a": self.address, **(other_brokers or {})}
        route = Route(
            broker_datas=[
                BrokerData(
                    cluster="c" if name == "broker-a" else other_cluster, broker_name=name, broker_addrs={0: address}
                )
                for name, address in brokers.items()
            ],
            queue_datas=[
                QueueData(broker_name=name, read_queues=queues, write_queues=queues, permission=6) for name in brokers
            ],
        )
        before = self.answers.get(RequestCode.GET_ROUTEINFO_BY_TOPIC)

        def answer(command: Command) -> Command | None:
            if command.fields["topic"] == topic:
                return response(command, body=encode_route(route))
            return response(command, 17, "no such topic") if before is None else before(command)

        self.answers[RequestCode.GET_ROUTEINFO_BY_TOPIC] = answer
        self.on(RequestCode.HEART_BEAT)
        self.on(RequestCode.UNREGISTER_CLIENT)

    def answer(self, command: Command) -> Command | None:
        """Return what the script says to *command*."""
        script = self.answers.get(command.code)
        return response(command, 3, "not scripted") if script is None else script(command)

    def requests_of(self, code: int) -> list[Command]:
        """Return the requests of one code so far."""
        return [command for command in self.requests if command.code == code and not command.is_response]

    async def wait_for_requests(self, code: int, count: int = 1) -> list[Command]:
        """Return the requests of one code once there are *count*."""
        async with self._changed:
            await self._changed.wait_for(lambda: len(self.requests_of(code)) >= count)
        return self.requests_of(code)

    async def wait_for_answer(self, opaque: int) -> Command:
        """Return what a client answered to our own request *opaque*."""

        def found() -> list[Command]:
            return [command for command in self.requests if command.is_response and command.opaque == opaque]

        async with self._changed:
            await self._changed.wait_for(found)
        return found()[0]

    async def wait_until_disconnected(self) -> None:
        """Return once no client is connected."""
        async with self._changed:
            await self._changed.wait_for(lambda: not self._writers)

    def push(self, command: Command) -> None:
        """Send *command* to every client."""
        for writer in self._writers:
            writer.write(encode_command(command))

    def drop_connections(self) -> None:
        """End every connection as a crash would."""
        for writer in self._writers:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        unread = b""
        try:
            while data := await reader.read(1 << 20):
                unread += data
                frames, consumed = split_frames(memoryview(unread))
                self.reads.append(len(frames))
                for frame in frames:
                    await self._handle(decode_command(frame), writer)
                del frames
                unread = unread[consumed:]
        except ConnectionError:
            pass  # the test dropped it
        finally:
            self._writers.discard(writer)
            writer.close()
            async with self._changed:
                self._changed.notify_all()

    async def _handle(self, command: Command, writer: asyncio.StreamWriter) -> None:
        if not command.is_response:
            answer = self.answer(command)
            if answer is not None and not command.is_one_way:
                writer.write(encode_command(answer))
        async with self._changed:
            self.requests.append(command)
            self._changed.notify_all()
