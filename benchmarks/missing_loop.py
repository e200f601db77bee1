"""Sends to a missing topic as fast as our producer refuses them, and counts the queries that reach the name server.

python -m benchmarks.missing_loop NAMESRV SECONDS        -> a line of JSON, a `MissingLoop`

tasks ─> producer ─> relay that records each route query and its time ─> name server
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections import defaultdict
from typing import Final

import msgspec
import uvloop
from benchmarks.push_findings import MissingLoop

from holdfast import Message, Producer, RouteNotFound, SendFailed
from holdfast.client.routes.route_table import POLL_INTERVAL_MS
from holdfast.model.topic import AUTO_CREATE_TOPIC
from holdfast.wire.frames.codes import RequestCode
from holdfast.wire.frames.command import decode_command
from holdfast.wire.frames.frame import split_frames

TOPIC: Final = "NobodyMadeThis"
TASKS: Final = 16
_RECEIVE_SIZE: Final = 64 * 1024


class Relay:
    """Relays bytes between one client and its name server.

    Attributes:
        query_times_s: When each topic was queried.
    """

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port
        self._copy_tasks: set[asyncio.Task[None]] = set()
        self.query_times_s: dict[str, list[float]] = defaultdict(list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Copy bytes both ways until either end closes."""
        from_server, to_server = await asyncio.open_connection(self._host, self._port)
        copy = asyncio.create_task(self._copy(from_server, writer))
        self._copy_tasks.add(copy)
        unfinished = b""
        while data := await reader.read(_RECEIVE_SIZE):
            unfinished = self._record_queries(unfinished + data)
            to_server.write(data)
            await to_server.drain()
        copy.cancel()
        to_server.close()

    def _record_queries(self, data: bytes) -> bytes:
        """Record the route queries in *data*; return the bytes of an incomplete frame."""
        frames, used = split_frames(memoryview(data))
        for command in map(decode_command, frames):
            if command.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
                self.query_times_s[command.fields["topic"]].append(time.monotonic())
        return data[used:]

    @staticmethod
    async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(_RECEIVE_SIZE):
                writer.write(data)
                await writer.drain()


async def run(namesrv: str, seconds: float) -> MissingLoop:
    """Send until the time is over."""
    host, _, port = namesrv.partition(":")
    proxy = Relay(host, int(port))
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    calls = 0
    began = time.monotonic()

    async def send(producer: Producer) -> None:
        nonlocal calls
        while time.monotonic() - began < seconds:
            calls += 1
            try:
                await producer.send(Message(TOPIC, b"x"))
            except SendFailed as error:
                if not isinstance(error.__cause__, RouteNotFound):
                    raise
            await asyncio.sleep(0)  # A refusal from memory never waits, and the producer's own poll needs its turn.

    async with Producer(address, "loop") as producer:
        await asyncio.gather(*(send(producer) for _ in range(TASKS)))
    server.close()
    return MissingLoop(
        seconds=time.monotonic() - began,
        poll_s=POLL_INTERVAL_MS / 1000,
        tasks=TASKS,
        calls=calls,
        lookups_s=[moment - began for moment in proxy.query_times_s[TOPIC]],
        template_lookups_s=[moment - began for moment in proxy.query_times_s[AUTO_CREATE_TOPIC]],
    )


def main() -> None:
    """Run."""
    namesrv, seconds = sys.argv[1:]
    print(msgspec.json.encode(uvloop.run(run(namesrv, float(seconds)))).decode(), flush=True)


if __name__ == "__main__":
    main()
