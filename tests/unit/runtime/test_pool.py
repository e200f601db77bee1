"""Connections that we dial."""

import asyncio

import pytest
from tests.support.pools import CODE, a_pool, reject_request
from tests.support.scripted_server import ScriptedServer

from holdfast.model.errors import ConnectionLost, RequestTimeout
from holdfast.runtime import pool as pool_module
from holdfast.runtime.pool import Connection, ConnectionPool
from holdfast.wire.frames.codes import RequestCode
from holdfast.wire.frames.command import ONE_WAY, Command, response


async def test_an_answer_comes_to_who_asked():
    """Though the server answers in another order."""
    async with a_pool() as (server, pool):
        held: list[Command] = []

        def swap(command: Command) -> Command | None:
            held.append(command)
            if len(held) < 3:
                return None
            for late in held[:2]:
                server.push(response(late, fields=late.fields))
            return response(command, fields=command.fields)

        server.answers[CODE] = swap

        answers = await asyncio.gather(
            *(pool.invoke(server.address, Command(code=CODE, fields={"n": str(n)}), 5) for n in range(3))
        )

        assert [answer.fields["n"] for answer in answers] == ["0", "1", "2"]


async def test_requests_of_one_turn_leave_in_one_write():
    """A thousand senders cost one system call."""
    async with a_pool() as (server, pool):
        server.on(CODE)
        connection = await pool.connect(server.address)

        await asyncio.gather(*(connection.request(Command(code=CODE), 5) for _ in range(100)))

        assert server.reads == [100]


async def test_one_connection_serves_all_who_ask_for_it_at_once():
    """It is dialled once."""
    async with a_pool() as (server, pool):
        connections = await asyncio.gather(*(pool.connect(server.address) for _ in range(5)))

        assert len(set(connections)) == 1
        assert pool.addresses() == [server.address]


async def test_no_answer_in_time_is_a_timeout():
    """The others on the connection are not concerned, and a late answer is dropped."""
    async with a_pool() as (server, pool):
        server.answers[CODE] = lambda _: None
        server.on(CODE + 1)

        late = pool.invoke(server.address, Command(code=CODE), 0.05)
        with pytest.raises(RequestTimeout, match="may have been executed"):
            await late
        server.push(response(server.requests_of(CODE)[0]))
        assert (await pool.invoke(server.address, Command(code=CODE + 1), 5)).code == 0


async def test_a_short_deadline_behind_a_long_one_is_kept():
    """The earliest deadline is the one that is watched."""
    async with a_pool() as (server, pool):
        server.answers[CODE] = lambda _: None
        connection = await pool.connect(server.address)
        patient = connection.request(Command(code=CODE), 60)

        with pytest.raises(RequestTimeout):
            await connection.request(Command(code=CODE), 0.05)
        assert not patient.done()
        assert connection.in_flight == 1
        patient.cancel()


async def test_a_server_that_is_silent_altogether_is_given_up(monkeypatch: pytest.MonkeyPatch):
    """The next request dials again."""
    monkeypatch.setattr(pool_module, "_SILENCE_MS_MAX", 0)

    async with a_pool() as (server, pool):
        server.answers[CODE] = lambda _: None
        connection = await pool.connect(server.address)

        with pytest.raises(RequestTimeout):
            await connection.request(Command(code=CODE), 0.05)
        await connection.closed
        assert await pool.connect(server.address) is not connection


async def test_a_lost_connection_fails_what_was_on_it():
    """And says that it had been sent. Then it is dialled again."""
    async with a_pool() as (server, pool):
        server.answers[CODE] = lambda _: server.drop_connections()
        server.on(CODE + 1)

        with pytest.raises(ConnectionLost) as caught:
            await pool.invoke(server.address, Command(code=CODE), 5)
        assert caught.value.was_sent
        assert (await pool.invoke(server.address, Command(code=CODE + 1), 5)).code == 0


async def test_nobody_there_is_said_so():
    """Nothing was sent."""
    async with a_pool() as (server, pool):
        await server.stop()
        for address in (server.address, "no-port", "127.0.0.1:x"):
            with pytest.raises(ConnectionLost) as caught:
                await pool.invoke(address, Command(code=CODE), 5)
            assert not caught.value.was_sent
        await server.listen(0)


async def test_a_one_way_request_is_marked_and_waits_for_nothing():
    """The server answers it never."""
    async with a_pool() as (server, pool):
        await pool.send_one_way(server.address, Command(code=CODE))

        (heard,) = await server.wait_for_requests(CODE)
        assert heard.is_one_way


async def test_what_a_server_asks_is_passed_on_and_can_be_answered():
    """On the same connection."""

    def answer(connection: Connection, command: Command) -> None:
        connection.answer(response(command, 7, "so it is"))

    pool = ConnectionPool(on_request=answer)
    async with ScriptedServer() as server:
        server.on(CODE)
        await pool.invoke(server.address, Command(code=CODE), 5)

        server.push(Command(code=40, opaque=99))
        answered = await server.wait_for_answer(99)

        assert (answered.code, answered.remark) == (7, "so it is")
        await pool.close()


async def test_bytes_that_are_no_protocol_end_the_connection():
    """Whoever waits on it is told."""
    async with a_pool() as (server, pool):

        def nonsense(command: Command) -> Command | None:
            for writer in server._writers:
                writer.write(b"\xff" * 64)
            return None

        server.answers[CODE] = nonsense
        with pytest.raises(ConnectionLost, match="frame size"):
            await pool.invoke(server.address, Command(code=CODE), 5)


async def test_closing_lets_what_was_written_leave():
    """A good-bye arrives. Afterwards nothing can be dialled."""
    async with a_pool() as (server, pool):
        connection = await pool.connect(server.address)
        connection.send_one_way(Command(code=CODE))

        await pool.close()

        await server.wait_for_requests(CODE)
        with pytest.raises(ConnectionLost, match="closed"):
            await pool.connect(server.address)
        with pytest.raises(ConnectionLost):
            connection.begin(1)
        with pytest.raises(ConnectionLost):
            connection.send_one_way(Command(code=CODE))


async def test_owners_hear_of_connections():
    """When they are up, and when they are gone."""
    opened: list[str] = []
    closed: list[str] = []
    pool = ConnectionPool(
        on_request=reject_request,
        on_open=lambda connection: opened.append(connection.address),
        on_close=lambda connection: closed.append(connection.address),
    )
    async with ScriptedServer() as server:
        connection = await pool.connect(server.address)
        assert (opened, closed) == ([server.address], [])

        server.drop_connections()
        await connection.closed

        assert closed == [server.address]
        assert pool.find(server.address) is None
        await pool.close()


async def test_a_peer_that_does_not_read_holds_up_those_who_ask():
    """Until it reads again, or is gone; answers are read meanwhile."""
    async with a_pool() as (server, pool):
        connection = await pool.connect(server.address)
        assert not connection.is_full
        await connection.wait_until_writable()

        connection.set_paused(is_paused=True)
        waiting = asyncio.create_task(connection.wait_until_writable())
        await asyncio.sleep(0)
        assert connection.is_full
        assert not waiting.done()
        connection.set_paused(is_paused=False)
        await waiting
        assert not connection.is_full

        connection.set_paused(is_paused=True)
        waiting = asyncio.create_task(connection.wait_until_writable())
        await asyncio.sleep(0)
        server.drop_connections()
        await waiting


async def test_no_more_requests_are_in_flight_than_is_good(monkeypatch: pytest.MonkeyPatch):
    """Whoever asks for room waits for an answer to somebody else; one who gives up takes no room."""
    monkeypatch.setattr(pool_module, "IN_FLIGHT_MAX", 2)

    async with a_pool() as (server, pool):
        held: list[Command] = []
        server.answers[CODE] = held.append
        connection = await pool.connect(server.address)
        answers = [connection.request(Command(code=CODE), 5) for _ in range(2)]
        waiting = [asyncio.create_task(connection.wait_until_writable()) for _ in range(3)]
        await server.wait_for_requests(CODE, 2)
        assert not any(task.done() for task in waiting)

        waiting[0].cancel()
        server.push(response(held[0]))
        await answers[0]
        await waiting[1]
        answers.append(connection.request(Command(code=CODE), 5))
        await asyncio.sleep(0)
        assert not waiting[2].done()

        for command in held[1:]:
            server.push(response(command))
        await waiting[2]
        answers[2].cancel()


async def test_room_comes_back_when_a_request_is_given_up(monkeypatch: pytest.MonkeyPatch):
    """Its answer is not waited for any more."""
    monkeypatch.setattr(pool_module, "IN_FLIGHT_MAX", 1)

    async with a_pool() as (server, pool):
        server.answers[CODE] = lambda _: None
        connection = await pool.connect(server.address)
        late = connection.request(Command(code=CODE), 0.05)

        await connection.wait_until_writable()

        with pytest.raises(RequestTimeout):
            await late


def throttle(wait_ms: int) -> Command:
    return Command(code=RequestCode.THROTTLE, flag=ONE_WAY, fields={"waitMs": str(wait_ms)})


async def test_a_server_that_asks_to_wait_gets_the_next_requests_later():
    """The longest wait counts. What is in flight is answered; the time of a request begins when it is sent."""
    async with a_pool() as (server, pool):

        def ask_to_wait(command: Command) -> Command:
            for wait_ms in (20_000, 25_000, 1):
                server.push(throttle(wait_ms))
            return response(command)

        server.answers[CODE] = ask_to_wait
        assert (await pool.invoke(server.address, Command(code=CODE), 5)).code == 0
        server.on(CODE)
        connection = await pool.connect(server.address)
        throttle_timer = connection.throttle._timer
        assert throttle_timer is not None
        assert throttle_timer.when() > asyncio.get_running_loop().time() + 20

        waiting = asyncio.create_task(pool.invoke(server.address, Command(code=CODE), 5))
        sending = asyncio.create_task(connection.wait_until_writable())
        await connection.request(Command(code=CODE), 5)
        assert (connection.is_full, connection.throttle.is_active) == (True, True)
        assert (waiting.done(), sending.done(), len(server.requests)) == (False, False, 2)

        connection.throttle.end()
        assert (await waiting).code == 0
        await sending
        assert (connection.is_full, connection.throttle.is_active) == (False, False)


async def test_a_lost_connection_ends_a_throttle():
    """Those who wait learn that they have to dial again; a new connection begins without one."""
    async with a_pool() as (server, pool):
        server.answers[CODE] = lambda command: server.push(throttle(20_000)) or response(command)
        await pool.invoke(server.address, Command(code=CODE), 5)
        waiting = asyncio.create_task(pool.invoke(server.address, Command(code=CODE), 5))
        await asyncio.sleep(0)

        server.drop_connections()

        with pytest.raises(ConnectionLost, match="not sent"):
            await waiting
        assert not (await pool.connect(server.address)).throttle.is_active


@pytest.mark.parametrize("wait_ms", ["", "soon", "99999999999"])
async def test_a_throttle_that_cannot_be_read_ends_the_connection(wait_ms: str):
    """As every other malformed request does."""
    async with a_pool() as (server, pool):
        connection = await pool.connect(server.address)
        server.push(Command(code=RequestCode.THROTTLE, flag=ONE_WAY, fields={"waitMs": wait_ms}))

        await connection.closed
        assert pool.find(server.address) is None
