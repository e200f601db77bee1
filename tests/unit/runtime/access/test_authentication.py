"""What a pool does between a dial and the first request."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from tests.support.pools import CODE
from tests.support.scripted_server import ScriptedServer

from holdfast.model.access.credentials import Credentials
from holdfast.model.errors import ConnectionLost, LoginFailed
from holdfast.runtime.pool import Connection, ConnectionPool
from holdfast.wire.access.signature import verify
from holdfast.wire.frames.command import Command

LOGIN = CODE + 1
Authenticate = Callable[[Connection], Awaitable[object]]


class PlayedAuthenticator:
    """Does with a connection what a test says."""

    def __init__(self, authenticate: Authenticate) -> None:
        self._authenticate = authenticate
        self.refusal: LoginFailed | None = None

    def check(self, address: str) -> None:
        if self.refusal is not None:
            raise self.refusal

    async def authenticate(self, connection: Connection) -> None:
        await self._authenticate(connection)


class Owner:
    """Remembers what the pool reports."""

    def __init__(self) -> None:
        self.reports: list[str] = []

    def opened(self, connection: Connection) -> None:
        self.reports.append("opened")

    def closed(self, connection: Connection) -> None:
        self.reports.append("closed")

    def requested(self, connection: Connection, command: Command) -> None:
        self.reports.append(f"requested {command.code}")


@asynccontextmanager
async def a_pool(authenticator: PlayedAuthenticator) -> AsyncIterator[tuple[ScriptedServer, ConnectionPool, Owner]]:
    owner = Owner()
    pool = ConnectionPool(
        on_request=owner.requested, on_open=owner.opened, on_close=owner.closed, authenticator=authenticator
    )
    async with ScriptedServer() as server:
        server.on(CODE)
        server.on(LOGIN)
        try:
            yield server, pool, owner
        finally:
            await pool.close()


async def log_in(connection: Connection) -> Command:
    return await connection.request(Command(code=LOGIN), 5)


async def refuse(connection: Connection) -> None:
    await log_in(connection)
    raise LoginFailed(16, "no", user="ann", address=connection.address)


async def test_a_connection_is_authenticated_before_anybody_gets_it():
    """All callers wait for one login, and the owner is notified after it."""
    async with a_pool(PlayedAuthenticator(log_in)) as (server, pool, owner):
        await asyncio.gather(*(pool.invoke(server.address, Command(code=CODE), 5) for _ in range(3)))

        assert [command.code for command in server.requests] == [LOGIN, CODE, CODE, CODE]
        assert owner.reports == ["opened"]


async def test_a_refused_login_reaches_every_caller_and_closes_the_connection():
    """The owner never knew the connection, so that nothing is reported to it."""
    async with a_pool(PlayedAuthenticator(refuse)) as (server, pool, owner):
        failures = await asyncio.gather(
            *(pool.invoke(server.address, Command(code=CODE), 5) for _ in range(2)), return_exceptions=True
        )

        assert all(isinstance(failure, LoginFailed) for failure in failures)
        assert [command.code for command in server.requests] == [LOGIN]
        await server.wait_until_disconnected()
        assert pool.addresses() == []
        assert owner.reports == []


async def test_a_login_that_was_just_refused_costs_no_dial():
    """Each send would cause one."""
    authenticator = PlayedAuthenticator(log_in)
    async with a_pool(authenticator) as (server, pool, _):
        authenticator.refusal = LoginFailed(16, "no", user="ann", address=server.address)

        with pytest.raises(LoginFailed):
            await pool.connect(server.address)
        assert server.reads == []


async def test_requests_of_a_peer_that_proved_nothing_are_ignored():
    """It could move the offsets of a consumer, for example."""
    handled = asyncio.Event()

    async def log_in_late(connection: Connection) -> None:
        await log_in(connection)
        server.push(Command(code=7, opaque=1))
        await connection.request(Command(code=CODE), 5)  # The request came before this answer.
        handled.set()

    async with a_pool(PlayedAuthenticator(log_in_late)) as (server, pool, owner):
        await pool.connect(server.address)
        server.push(Command(code=8, opaque=2))
        await pool.invoke(server.address, Command(code=CODE), 5)

        assert handled.is_set()
        assert owner.reports == ["opened", "requested 8"]


async def test_a_connection_lost_during_the_login_is_a_lost_connection():
    """It can be dialled again."""

    async def drop(connection: Connection) -> None:
        await log_in(connection)
        server.drop_connections()
        await connection.closed

    async with a_pool(PlayedAuthenticator(drop)) as (server, pool, owner):
        with pytest.raises(ConnectionLost, match="lost after the login"):
            await pool.connect(server.address)
        assert owner.reports == []


async def test_closing_the_pool_ends_a_login():
    """And its connection."""
    asked = asyncio.Event()

    async def hang(connection: Connection) -> None:
        asked.set()
        await asyncio.Event().wait()

    async with a_pool(PlayedAuthenticator(hang)) as (server, pool, _):
        waiting = asyncio.ensure_future(pool.connect(server.address))
        await asked.wait()
        await pool.close()

        with pytest.raises(ConnectionLost, match="closed"):
            await waiting
        await server.wait_until_disconnected()
        assert pool.addresses() == []


async def test_a_connection_with_a_signer_signs_every_request_and_no_answer():
    """The caller's command stays unsigned: it may go to another server next."""
    ann = Credentials("ann", "secret", "token")

    async def sign(connection: Connection) -> None:
        connection.signer = ann

    async with a_pool(PlayedAuthenticator(sign)) as (server, pool, _):
        command = Command(code=CODE, fields={"topic": "t"}, body=b"x")
        await pool.invoke(server.address, command, 5)
        await pool.send_one_way(server.address, Command(code=CODE + 2))
        (one_way,) = await server.wait_for_requests(CODE + 2)
        connection = await pool.connect(server.address)
        connection.answer(Command(code=0, opaque=99, flag=1))
        answer = await server.wait_for_answer(99)

        (request,) = server.requests_of(CODE)
        assert verify(request, [b"secret"])
        assert verify(one_way, [b"secret"])
        assert request.fields["SecurityToken"] == "token"
        assert not verify(request, [b"other"])
        assert answer.fields == {}
        assert command.fields == {"topic": "t"}
