"""A name server under burden tells less often, or waits; it says why, and forgets nothing. Readings are fed."""

import asyncio
import json
import urllib.request
from collections.abc import Callable
from math import ceil

import pytest
from tests.support.cluster.name_server_machine import a_topic
from tests.support.cluster.ports import free_port
from tests.support.watchers import NameServerHarness, Peer, running_name_server

from holdfast.cli.main import main
from holdfast.wire.cluster.push_state import PushState

EVERY_SECOND, EVERY_10_S, PAUSED = "every second", "every 10 s", "paused"
READINGS = ("memory", "load", "network")


async def until_state(peer: Peer, holds: Callable[[PushState], bool]) -> PushState:
    """Return what the name server tells of its watchers once *holds* of it."""
    while not holds(state := await peer.push_state()):  # noqa: ASYNC110 - it tells nobody when that changes
        await asyncio.sleep(0.02)
    return state


async def pace_logged(server: NameServerHarness) -> tuple[str, str]:
    """Return the next line about the pace, and the reason in it: it is written at a tick, when the pace has effect."""
    while not (log := await server.next_log()).event.startswith("route notices"):
        continue
    return log.event, str(log.fields.get("reason", ""))


def set_readings(server: NameServerHarness, **percents: float | None) -> None:
    """Let the machine be as busy as this; a reading that is not named is low."""
    for name in READINGS:
        setattr(server.readings, name, percents.get(name, 1.0))


@pytest.mark.parametrize("reading", READINGS)
@pytest.mark.parametrize(
    ("percent", "pace"), [(60.0, EVERY_10_S), (72.0, EVERY_10_S), (90.0, EVERY_10_S), (90.1, PAUSED), (300.0, PAUSED)]
)
async def test_any_single_reading_slows_or_pauses(reading: str, percent: float, pace: str):
    """Changes wait then, and the state says how many clients wait, at which pace, and what is to blame."""
    async with running_name_server() as server, server.peers(2) as (broker, client):
        await broker.register("orders", "bills")
        await client.watch("orders", "bills")
        set_readings(server, **{reading: percent})

        await broker.register(a_topic("orders", 8))

        event, reason = await pace_logged(server)
        assert ("paused" if pace == PAUSED else "slowed to one in 10 s") in event
        assert reason == f"{reading} {ceil(percent)} %"
        state = await client.push_state()
        assert (state.pace, state.reason) == (pace, reason)
        assert getattr(state.readings, reading) == percent
        if pace == PAUSED:
            assert state.pending_clients == 1
            assert await client.has_no_notice()


@pytest.mark.parametrize("readings", [dict.fromkeys(READINGS, 59.9), dict.fromkeys(READINGS), {"network": None}])
async def test_below_60_percent_everything_is_told_within_a_second(readings: dict[str, float | None]):
    """Likewise where nothing is known: what is not known is left out, and shown as unknown."""
    async with running_name_server() as server, server.peers(2) as (broker, client):
        await broker.register("orders", "bills")
        await client.watch("orders")
        set_readings(server, **readings)

        await broker.register(a_topic("orders", 8))

        assert await client.next_notice() == {"orders"}
        state = await client.push_state()
        assert (state.pace, state.reason, state.pending_clients) == (EVERY_SECOND, "", 0)
        for name, percent in readings.items():
            assert getattr(state.readings, name) == ("unknown" if percent is None else percent)


async def test_an_unknown_reading_does_not_hide_a_high_one():
    """It counts neither as 0 nor as full."""
    async with running_name_server() as server, server.peers(2) as (broker, client):
        await broker.register("orders", "bills")
        await client.watch("orders")
        set_readings(server, memory=None, load=95.0, network=None)

        await broker.register(a_topic("orders", 8))

        assert await pace_logged(server) == ("route notices paused", "load 95 %")
        assert await client.has_no_notice()


@pytest.mark.parametrize("percent", [75.0, 95.0])
async def test_nothing_that_changed_meanwhile_is_forgotten(percent: float):
    """Topics, permissions, a broker's death: each client is told all of its own in one frame as soon as it is calm."""
    async with running_name_server() as server, server.peers(5) as (broker, mortal, keeper, client, other):
        await broker.register("orders", "bills", "rest")
        await keeper.register("fence", name="z", address="10.0.0.26:10911")
        await mortal.register("mortal", "mortal-too", name="m", address="10.0.0.13:10911")
        await client.watch("orders", "bills", "mortal", "created", "rest")
        await other.watch("mortal-too")
        set_readings(server, memory=99.0)
        await broker.register(a_topic("orders", 8))
        await pace_logged(server)
        set_readings(server, load=percent)

        await mortal.close()
        await server.wait_for_log("broker left")
        await broker.register("created")
        await broker.register(a_topic("bills", 8))
        await broker.register(a_topic("bills", 9))
        assert (await client.push_state()).pending_clients == 2
        assert await client.has_no_notice()
        set_readings(server)

        assert await client.notices_until("orders") == {"orders", "bills", "mortal", "created"}
        assert await other.next_notice() == {"mortal-too"}
        state = await client.push_state()
        assert (state.pace, state.reason, state.pending_clients) == (EVERY_SECOND, "", 0)


async def test_who_leaves_during_a_pause_is_owed_nothing():
    """No trace is left of a connection that is closed, nor of a topic that nobody watches any more."""
    async with running_name_server() as server, server.peers(2) as (broker, client):
        await broker.register("orders", "bills")
        set_readings(server, load=95.0)
        async with server.peers(5) as watching:
            for peer in watching:
                await peer.watch("orders", "bills", "missing")
            await client.watch("orders")
            await broker.register(a_topic("orders", 8), a_topic("bills", 8))
            state = await client.push_state()
            assert (state.watching_clients, state.watched_topics, state.watches) == (6, 3, 16)
            assert state.pending_clients == 6

        state = await until_state(client, lambda state: state.watching_clients == 1)
        assert (state.watched_topics, state.watches, state.pending_clients) == (1, 1, 1)
        await client.unwatch("orders")
        state = await client.push_state()
        assert (state.watching_clients, state.watched_topics, state.watches) == (0, 0, 0)


async def test_a_change_of_pace_is_logged_once_with_its_reason():
    """Slowed, paused and back: one line each, however often the machine is looked at."""
    async with running_name_server() as server, server.peers(2) as (broker, client):
        await broker.register("orders", "bills")
        await client.watch("orders")
        lines = []
        for memory in (72.4, 95.0, 99.0, 75.0, 5.0):
            set_readings(server, memory=memory)
            await broker.register(a_topic("orders", int(memory)))
            if memory != 99.0:  # paused before, paused now: nothing is said
                lines.append(await pace_logged(server))

        assert lines == [
            ("route notices slowed to one in 10 s", "memory 73 %"),
            ("route notices paused", "memory 95 %"),
            ("route notices slowed to one in 10 s", "memory 75 %"),
            ("route notices every second again", ""),
        ]
        await client.discard_notices()
        await broker.register(a_topic("orders", 100))
        await client.next_notice()
        assert [log for log in server.unread_logs() if log.event.startswith("route notices")] == []


async def test_back_off_can_be_switched_off():
    """For machines that are always busy: then readings are shown, and followed by nobody."""
    async with running_name_server(notify_back_off=False) as server, server.peers(2) as (broker, client):
        await broker.register("orders", "bills")
        await client.watch("orders")
        set_readings(server, memory=99.0, load=400.0)

        await broker.register(a_topic("orders", 8))

        assert await client.next_notice() == {"orders"}
        state = await client.push_state()
        assert state.pace == EVERY_SECOND
        assert (state.readings.memory, state.readings.load) == (99.0, 400.0)


@pytest.mark.slow
async def test_a_slowed_name_server_tells_once_in_10_s():
    """Between two notices lie ten seconds; what changes meanwhile goes along. A lower bound: no machine is too slow."""
    loop = asyncio.get_running_loop()
    async with running_name_server() as server, server.peers(2) as (broker, client):
        await broker.register("orders", "bills")
        await client.watch("orders", "bills")
        set_readings(server, network=75.0)
        await broker.register(a_topic("orders", 8))
        assert "orders" in await client.next_notice()
        told_at = loop.time()

        await broker.register(a_topic("orders", 9))
        await broker.register(a_topic("bills", 9))

        assert await client.next_notice() == {"orders", "bills"}
        assert loop.time() - told_at > 9


async def test_metrics_tell_the_same():
    """Watchers, what is pending, the interval (0: paused) and the readings that are known."""
    port = free_port()

    def fetch() -> dict[str, float]:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if line[0] != "#")}

    async with (
        running_name_server(metrics_listen=f"127.0.0.1:{port}") as server,
        server.peers(3) as (broker, client, other),
    ):
        await broker.register("orders", "bills")
        await client.watch("orders", "bills")
        await other.watch("orders")
        set_readings(server, network=None)
        await broker.register(a_topic("orders", 8))
        await client.next_notice()
        await other.next_notice()
        set_readings(server, memory=95.0, network=None)
        await broker.register(a_topic("bills", 8))
        await until_state(client, lambda state: state.pace == PAUSED)

        told = await asyncio.to_thread(fetch)

        expected = {
            "watching_clients": 2,
            "watched_topics": 2,
            "watches": 3,
            "notices_pending_clients": 1,
            "notices_sent_total": 2,
            "notice_interval_seconds": 0,
            "readings_known": 2,
            "memory_percent": 95,
            "load_percent": 1,
        }
        assert {name: told[f"holdfast_namesrv_{name}"] for name in expected} == expected
        assert "holdfast_namesrv_network_percent" not in told


async def test_cluster_describe_tells_the_same(capsys: pytest.CaptureFixture[str]):
    """Per name server: who watches, who waits, the pace with its reason, and readings, unknown ones as unknown."""

    async def describe(server: NameServerHarness, *words: str) -> str:
        command = ["cluster", "describe", *words, "--namesrv", server.address]
        assert await asyncio.to_thread(main, command) == 0
        return capsys.readouterr().out

    async with running_name_server() as server, server.peers(2) as (broker, client):
        await broker.register("orders", "bills", address="127.0.0.1:1")
        await client.watch("orders", "bills")
        set_readings(server, memory=95.0, network=None)
        await broker.register(a_topic("orders", 8), address="127.0.0.1:1")
        found, shown, address = json.loads(await describe(server, "--json")), await describe(server), server.address

    (push,) = found["route_push"]
    assert push["address"] == address
    assert push["pushes"] is True
    assert (push["watching_clients"], push["watched_topics"], push["pending_clients"]) == (1, 2, 1)
    assert (push["pace"], push["reason"]) == (PAUSED, "memory 95 %")
    assert push["readings"] == {"memory": 95.0, "load": 1.0, "network": "unknown"}
    (line,) = [line for line in shown.splitlines() if line.lstrip().startswith(address)]
    assert f"{PAUSED}: memory 95 %" in line
    assert "unknown" in line
