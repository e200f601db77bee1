"""Sends on connections that we dial: their answers take a shorter way."""

import asyncio

import pytest
from tests.support.pools import CODE, a_pool
from tests.support.scripted_server import ScriptedServer

from holdfast.model.errors import ConnectionLost, RequestTimeout
from holdfast.runtime.pool import Connection, ConnectionPool, SendAnswer
from holdfast.wire.frames.command import BINARY, JSON, Command, encode_command, response


def send(connection: Connection, **fields: str) -> SendAnswer:
    """Send something that is answered as a send is."""
    opaque, answer = connection.begin_send(5)
    connection.write(encode_command(Command(code=CODE, opaque=opaque, fields=fields)))
    return answer


@pytest.mark.parametrize("serializer", [JSON, BINARY])
async def test_answers_to_sends_and_others_share_a_connection(serializer: int):
    """In any encoding; each comes to who asked, in the form they asked for."""
    async with a_pool() as (server, pool):

        def answer(command: Command) -> Command:
            answered = response(command, int(command.fields["n"]), "said", fields={"queueId": "1", "queueOffset": "2"})
            answered.serializer = serializer
            return answered

        server.answers[CODE] = answer
        connection = await pool.connect(server.address)

        first, second = send(connection, n="0"), connection.request(Command(code=CODE, fields={"n": "1"}), 5)
        third = send(connection, n="2")

        reply, other, refusal = await first, await second, await third
        assert (reply.code, reply.fields.queue_id, reply.fields.queue_offset) == (0, 1, 2)
        assert (other.code, other.fields) == (1, {"queueId": "1", "queueOffset": "2"})
        assert (refusal.code, refusal.remark) == (2, "said")


async def test_an_answer_to_a_send_that_takes_liberties_is_read_the_general_way():
    """A number that is none does not end the connection."""
    async with a_pool() as (server, pool):
        server.on(CODE, queueId="one", queueOffset="2")
        connection = await pool.connect(server.address)

        reply = await send(connection)

        assert (reply.code, reply.fields.queue_id) == (0, None)
        assert connection.is_open


async def test_a_server_may_ask_on_a_connection_that_sends():
    """Its request is not taken for an answer."""
    asked: asyncio.Queue[int] = asyncio.Queue()
    pool = ConnectionPool(on_request=lambda _, command: asked.put_nowait(command.code))
    async with ScriptedServer() as server:
        server.answers[CODE] = lambda _: None
        connection = await pool.connect(server.address)
        answer = send(connection)
        await server.wait_for_requests(CODE)
        server.push(Command(code=40, opaque=server.requests_of(CODE)[0].opaque))

        assert await asked.get() == 40
        assert not answer.done()
        answer.cancel()
        await pool.close()


async def test_a_send_ends_with_its_connection_or_its_time():
    """As any other request."""
    async with a_pool() as (server, pool):
        server.answers[CODE] = lambda _: None
        connection = await pool.connect(server.address)
        opaque, late = connection.begin_send(0.02)
        with pytest.raises(RequestTimeout):
            await late
        lost = send(connection)
        await server.wait_for_requests(CODE)
        server.drop_connections()
        with pytest.raises(ConnectionLost):
            await lost
        assert opaque
