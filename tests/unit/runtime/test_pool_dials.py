"""Connections that shall stand: when they are dialled again, and when not."""

import asyncio
from random import Random

import pytest
from tests.support.deliveries import poll_until
from tests.support.pools import reject_request
from tests.support.scripted_server import ScriptedServer

from holdfast.runtime import pool as pool_module
from holdfast.runtime.pool import Connection, ConnectionPool, redial_pause_s


def test_the_pauses_between_dials_grow_and_vary():
    """From a tenth of a second to two: a server that is back is found soon, and not by everybody at once."""
    longest = [max(redial_pause_s(failures, Random(seed)) for seed in range(200)) for failures in range(8)]
    shortest = [min(redial_pause_s(failures, Random(seed)) for seed in range(200)) for failures in range(8)]

    assert longest == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 2, 2, 2], rel=0.01)
    assert shortest == pytest.approx([pause_s * 0.7 for pause_s in longest], rel=0.03)
    assert redial_pause_s(10_000, Random(1)) <= 2


class Dials:
    """Counts what a pool does that wants its connections to stand, as long as *wanted* says so."""

    def __init__(self) -> None:
        self.wanted = True
        self.opened: asyncio.Queue[Connection] = asyncio.Queue()
        self.pool = ConnectionPool(
            on_request=reject_request,
            on_open=self.opened.put_nowait,
            is_wanted=lambda _: self.wanted,
            rng=Random(1),
        )


async def test_a_connection_that_shall_stand_is_dialled_until_it_does(monkeypatch: pytest.MonkeyPatch):
    """Nobody has to ask; the pauses grow while the server is away."""
    pauses: list[int] = []

    def pause_s(failures: int, rng: Random) -> float:
        pauses.append(failures)
        return 0.001

    monkeypatch.setattr(pool_module, "redial_pause_s", pause_s)

    dials = Dials()
    async with ScriptedServer() as server:
        await dials.pool.connect(server.address)
        await dials.opened.get()

        await server.stop()
        await poll_until(lambda: len(pauses) >= 4)
        await server.listen(int(server.address.rpartition(":")[2]))

        assert (await dials.opened.get()).is_open
        assert pauses[:4] == [0, 1, 2, 3]
        await dials.pool.close()


async def test_a_server_that_hangs_up_at_once_is_not_dialled_in_a_rage(monkeypatch: pytest.MonkeyPatch):
    """A connection has to hold for a while before the pauses are short again."""
    pauses: list[int] = []

    def pause_s(failures: int, rng: Random) -> float:
        pauses.append(failures)
        return 0.001

    monkeypatch.setattr(pool_module, "redial_pause_s", pause_s)

    dials = Dials()
    async with ScriptedServer() as server:
        await dials.pool.connect(server.address)
        for _ in range(3):
            connection = await dials.opened.get()
            server.drop_connections()
            await connection.closed
        await dials.opened.get()
        assert pauses == [0, 1, 2]

        monkeypatch.setattr(pool_module, "_HEALTHY_AFTER_S", 0)
        server.drop_connections()
        await dials.opened.get()
        assert pauses == [0, 1, 2, 0]
        await dials.pool.close()


async def test_a_connection_that_nobody_wants_any_more_is_not_dialled(monkeypatch: pytest.MonkeyPatch):
    """Nor after the pool was closed."""
    monkeypatch.setattr(pool_module, "REDIAL_S", 0.001)

    dials = Dials()
    async with ScriptedServer() as server:
        connection = await dials.pool.connect(server.address)
        dials.wanted = False
        server.drop_connections()
        await connection.closed
        assert dials.pool._redials == {}

        connection = await dials.pool.connect(server.address)
        dials.wanted = True
        server.drop_connections()
        await connection.closed
        dials.wanted = False  # between the loss and the next dial
        await asyncio.sleep(0.01)
        assert dials.opened.qsize() == 2
        assert dials.pool.addresses() == []
        await dials.pool.close()
