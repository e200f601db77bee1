"""A connection pool and a server that it can dial."""

import asyncio
from collections.abc import Awaitable, Callable

from tests.support.scripted_server import ScriptedServer

from holdfast.runtime.pool import Connection, ConnectionPool
from holdfast.wire.frames.command import Command

CODE = 34


def nobody(connection: Connection, command: Command) -> None:
    """Take what a server asks, where none should."""
    raise AssertionError("nobody asked anything")


def with_pool(story: Callable[[ScriptedServer, ConnectionPool], Awaitable[None]]) -> None:
    """Run *story* with both."""

    async def run() -> None:
        pool = ConnectionPool(on_request=nobody)
        async with ScriptedServer() as server:
            try:
                await story(server, pool)
            finally:
                await pool.close()

    asyncio.run(run())
