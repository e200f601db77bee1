"""A connection pool and a server that it can dial."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.support.scripted_server import ScriptedServer

from holdfast.runtime.pool import Connection, ConnectionPool
from holdfast.wire.frames.command import Command

CODE = 34


def reject_request(connection: Connection, command: Command) -> None:
    """Take what a server asks, where none should."""
    raise AssertionError("nobody asked anything")


@asynccontextmanager
async def a_pool() -> AsyncIterator[tuple[ScriptedServer, ConnectionPool]]:
    """Provide both."""
    pool = ConnectionPool(on_request=reject_request)
    async with ScriptedServer() as server:
        try:
            yield server, pool
        finally:
            await pool.close()
