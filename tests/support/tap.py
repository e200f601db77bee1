"""A tap on the wire: sits between clients and a server and keeps every frame.

    with Tap("127.0.0.1:9876") as tap:
        ...                               clients connect to tap.address
    tap.asked, tap.answers, tap.pushed    what clients asked, what they were answered, what they were sent unasked

Bytes pass unchanged and in order. It runs in a thread of its own, beside whatever a test does.
"""

import asyncio
import threading
from typing import Self

from holdfast.wire.frames.command import Command, decode_command
from holdfast.wire.frames.frame import split_frames

_STARTED_S = 30


class Tap:
    """Passes on what goes to and comes from *server* while the block lasts.

    Attributes:
        address: Where clients connect.
        requests: What clients asked so far.
        answers: What the server answered.
        pushed: What the server sent without being asked.
    """

    def __init__(self, server: str) -> None:
        self.address = ""
        self.requests: list[Command] = []
        self.answers: list[Command] = []
        self.pushed: list[Command] = []
        self._host, _, self._port = server.rpartition(":")
        self._loop = asyncio.new_event_loop()
        self._stopped = asyncio.Event()
        self._listens = threading.Event()
        self._thread = threading.Thread(target=lambda: self._loop.run_until_complete(self._run()), name="tap")

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._listens.wait(_STARTED_S)
        return self

    def __exit__(self, *error: object) -> None:
        self._loop.call_soon_threadsafe(self._stopped.set)
        self._thread.join()
        self._loop.close()

    async def _run(self) -> None:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        self._listens.set()
        await self._stopped.wait()
        server.close()
        other_tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in other_tasks:
            task.cancel()
        await asyncio.gather(*other_tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            server_reader, server_writer = await asyncio.open_connection(self._host, int(self._port))
        except OSError:
            writer.close()
            return
        await asyncio.gather(
            self._relay(reader, server_writer, is_server=False), self._relay(server_reader, writer, is_server=True)
        )

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_server: bool) -> None:
        unread = b""
        try:
            while data := await reader.read(1 << 16):
                writer.write(data)
                frames, consumed = split_frames(memoryview(unread + data))
                for command in map(decode_command, frames):
                    self._record(command, is_server=is_server)
                unread = (unread + data)[consumed:]
        except ConnectionError:
            pass  # one end died: the other one hears of it by the close
        finally:
            writer.close()

    def _record(self, command: Command, *, is_server: bool) -> None:
        if not is_server:
            self.requests.append(command)
        elif command.is_response:
            self.answers.append(command)
        else:
            self.pushed.append(command)
