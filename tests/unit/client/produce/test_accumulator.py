"""Gathering single messages into batches."""

import asyncio
import os

import pytest
from tests.support.accumulators import (
    FOREVER,
    NOT_STORED,
    AccumulatorHarness,
    accumulator_harness,
    bodies,
    make_messages,
)
from tests.support.deliveries import run_ready_tasks
from tests.support.scripted_server import ScriptedServer

from holdfast.client.cluster.cluster_client import ClusterClient
from holdfast.client.produce.sender import Receipt
from holdfast.client.routes.route_table import TopicRoute
from holdfast.model.errors import LocalProtocolError, SendFailed
from holdfast.model.message import Message, SendResult
from holdfast.model.queue import MessageQueue
from holdfast.wire.records.batch import split_items
from holdfast.wire.records.properties import parse_properties


async def test_messages_of_one_turn_travel_together():
    """Each is told its own id and its own place."""
    async with accumulator_harness() as bench:
        futures = [bench.put(message) for message in make_messages(3)]
        await run_ready_tasks()
        bench.answer(0, offset=40)
        results = await asyncio.gather(*futures)

        (parcel,) = bench.parcels
        assert (parcel.code, parcel.queue, bench.bodies) == (320, None, [[b"0", b"1", b"2"]])
        ids = [parse_properties(text.decode())["UNIQ_KEY"] for _, _, text in split_items(parcel.outgoing.body)]
        assert [(result.message_id, result.offset, result.offset_id) for result in results] == [
            (ids[0], 40, "O0"),
            (ids[1], 41, "O1"),
            (ids[2], 42, "O2"),
        ]
        assert parcel.outgoing.message_id not in ids
        assert parcel.outgoing.properties == f"UNIQ_KEY\x01{parcel.outgoing.message_id}\x02"


async def test_everything_about_a_message_travels_with_it():
    """As if it had been sent alone."""
    async with accumulator_harness() as bench:
        bench.put(Message("t", b"bare"))
        bench.put(Message("t", b"x", tags="red", keys=("k1", "k2"), flag=7, properties={"a": "ä"}))
        await run_ready_tasks()

        _, (flag, body, text) = split_items(bench.parcels[0].outgoing.body)
        properties = parse_properties(text.decode())
        assert properties.pop("UNIQ_KEY")
        assert (flag, bytes(body), properties) == (7, b"x", {"TAGS": "red", "KEYS": "k1 k2", "a": "ä"})
        await bench.answer_all()


async def test_a_batch_that_is_kept_whole_has_one_id():
    """It is one record; the offsets are those of the messages all the same."""
    async with accumulator_harness() as bench:
        futures = [bench.put(message) for message in make_messages(2)]
        await run_ready_tasks()
        queue = MessageQueue("t", "broker-a", 3)
        bench._answers[0].set_result(Receipt(SendResult("B", queue, 5, "WHOLE"), "address", ""))

        results = await asyncio.gather(*futures)
        assert [(result.queue, result.offset, result.offset_id) for result in results] == [
            (queue, 5, "WHOLE"),
            (queue, 6, "WHOLE"),
        ]


async def test_a_batch_waits_for_others_as_long_as_it_may():
    """And leaves at once when somebody wants everything to be sent."""
    async with accumulator_harness(linger_s=FOREVER) as bench:
        futures = [bench.put(message) for message in make_messages(2)]
        await run_ready_tasks()
        assert bench.parcels == []

        flushing = asyncio.create_task(bench.accumulator.flush())
        await run_ready_tasks()
        assert bench.bodies == [[b"0", b"1"]]
        assert not flushing.done()
        bench.answer(0)
        await flushing
        assert all(future.done() for future in futures)


@pytest.mark.parametrize("options", [{"messages_max": 2}, {"bytes_max": 150}])
async def test_a_full_batch_waits_for_nothing(options: dict[str, float]):
    """Neither time nor the next turn of the loop."""
    async with accumulator_harness(linger_s=FOREVER, **options) as bench:
        for message in make_messages(5):
            bench.put(message)
        await run_ready_tasks()

        assert bench.bodies == [[b"0", b"1"], [b"2", b"3"]]
        asyncio.get_running_loop().call_soon(asyncio.create_task, bench.answer_all())
        await bench.accumulator.flush()


async def test_one_request_of_a_queue_is_on_its_way():
    """What comes meanwhile grows to one batch, however many times it would have been old enough."""
    async with accumulator_harness() as bench:
        for message in make_messages(4, key="a"):
            bench.put(message)
            await run_ready_tasks()
        bench.put(Message("t", b"other", key="b"))
        await run_ready_tasks()
        assert bench.bodies == [[b"0"], [b"other"]]

        bench.answer(0)
        await run_ready_tasks()
        assert bench.bodies == [[b"0"], [b"other"], [b"1", b"2", b"3"]]
        queues = [parcel.queue for parcel in bench.parcels]
        assert queues[0] == queues[2] != queues[1]
        await bench.answer_all()


async def test_messages_without_keys_wait_for_nobody():
    """Several of their batches are on their way, but not any number."""
    async with accumulator_harness() as bench:
        for message in make_messages(7):
            bench.put(message)
            await run_ready_tasks()

        assert bench.bodies == [[b"0"], [b"1"], [b"2"], [b"3"]]
        bench.answer(2)
        await run_ready_tasks()
        assert bench.bodies[4:] == [[b"4", b"5", b"6"]]
        await bench.answer_all()


async def test_a_failure_reaches_whom_it_concerns():
    """And what comes behind it in the line is sent."""
    async with accumulator_harness(messages_max=2) as bench:
        futures = [bench.put(message) for message in make_messages(4, key="a")]
        await run_ready_tasks()
        bench.refuse(0)
        await run_ready_tasks()
        bench.answer(1, offset=9)
        results = await asyncio.gather(*futures, return_exceptions=True)

        assert results[:2] == [NOT_STORED, NOT_STORED]
        assert [result.offset for result in results[2:] if isinstance(result, SendResult)] == [9, 10]


async def test_a_future_that_nobody_wants_disturbs_nobody():
    """Its message is sent all the same."""
    async with accumulator_harness() as bench:
        first, second = (bench.put(message) for message in make_messages(2))
        first.cancel()
        await run_ready_tasks()
        bench.answer(0, offset=4)

        assert (await second).offset == 5
        assert bench.bodies == [[b"0", b"1"]]


async def test_what_no_batch_may_hold_travels_alone():
    """In its place among the others of its key; a large one compressed."""
    large = bytes(200_000)

    async with accumulator_harness(bytes_max=100_000) as bench:
        for message in (
            *make_messages(2, key="a"),
            Message("t", b"later", key="a", delay_level=3),
            Message("t", large, key="a"),
            *make_messages(2, key="a"),
        ):
            bench.put(message)
        await run_ready_tasks()
        await bench.answer_all()

        assert [parcel.code for parcel in bench.parcels] == [320, 310, 310, 320]
        assert bench.bodies[:2] == [[b"0", b"1"], [b"later"]]
        assert (bench.parcels[2].outgoing.sys_flag, len(bench.parcels[2].outgoing.body) < 10_000) == (0x101, True)
        assert {parcel.queue for parcel in bench.parcels} == {bench.parcels[0].queue}


@pytest.mark.parametrize(
    "message",
    [
        Message("t", b""),
        Message("not a name", b"x"),
        Message("t", b"x", tags="\x01"),
        Message("t", b"x", properties={"a": "b" * 32_730}),
        Message("t", b"x", flag=1 << 40),
        Message("t", os.urandom(5_000_000)),
    ],
)
async def test_what_cannot_be_sent_is_refused_at_once(message: Message):
    """Also by a topic that is in use; nothing of it stays."""
    async with accumulator_harness(bytes_max=3_000_000) as bench:
        bench.put(Message("t", b"x"))
        with pytest.raises(LocalProtocolError):
            bench.put(message)
        await run_ready_tasks()

        assert bench.bodies == [[b"x"]]
        await bench.answer_all()
        await bench.accumulator.drain()


async def test_keys_wait_until_their_queues_are_known():
    """In order, together with what comes meanwhile; only messages without keys do not care."""
    async with ScriptedServer() as server, ClusterClient(server.address) as client:
        bench = AccumulatorHarness(client, linger_s=0)
        server.serve_topic("t", queues=4)
        bench.put(Message("t", b"0", key="a"))
        bench.put(Message("t", b"free"))
        await asyncio.sleep(0)
        bench.put(Message("t", b"1", key="a"))
        await bench_flush(bench)
        assert sorted(bench.bodies) == [[b"0", b"1"], [b"free"]]
        assert {parcel.queue is None for parcel in bench.parcels} == {True, False}


async def bench_flush(bench: AccumulatorHarness) -> None:
    flushing = asyncio.create_task(bench.accumulator.flush())
    while not flushing.done():
        await asyncio.sleep(0.001)
        await bench.answer_all()


async def test_keys_of_a_topic_that_does_not_exist_fail():
    """Certainly not stored, and their room is free again."""
    async with ScriptedServer() as server, ClusterClient(server.address) as client:
        bench = AccumulatorHarness(client, waiting_bytes_max=1000)
        server.serve_topic("t")
        future = bench.put(Message("other", bytes(900), key="a"))
        with pytest.raises(SendFailed, match="does not exist") as caught:
            await future
        assert not caught.value.maybe_stored
        assert bench.accumulator.has_room(900)
        assert bench.parcels == []


async def test_a_key_that_moves_to_another_queue_keeps_its_order():
    """What it has in its old line is answered before anything leaves in the new one, even if that is full first."""
    async with ScriptedServer() as server, ClusterClient(server.address) as client:
        server.serve_topic("t", queues=1)
        await client.route("t")
        bench = AccumulatorHarness(client, linger_s=FOREVER, messages_max=2)
        bench.put(Message("t", b"old", key="b"))
        server.serve_topic("t", queues=4)
        await client.route("t", refresh=True)
        for message in make_messages(2, key="b"):
            bench.put(message)
        await run_ready_tasks()
        assert bench.bodies == [[b"old"]]
        bench.answer(0)
        await run_ready_tasks()
        assert bench.bodies == [[b"old"], [b"0", b"1"]]
        assert bench.parcels[0].queue != bench.parcels[1].queue
        await bench.answer_all()


async def test_what_waits_for_its_queue_is_not_passed():
    """Though somebody else may have found the queues meanwhile."""
    async with ScriptedServer() as server, ClusterClient(server.address) as client:
        server.serve_topic("t")
        asked = asyncio.Event()
        find = client.publish_route

        async def find_later(topic: str, *, timeout_s: float) -> TopicRoute:
            await asked.wait()
            return await find(topic, timeout_s=timeout_s)

        client.publish_route = find_later  # type: ignore[method-assign,assignment]
        bench = AccumulatorHarness(client, linger_s=0)
        bench.put(Message("t", b"0", key="a"))
        await client.route("t")
        bench.put(Message("t", b"1", key="a"))
        await run_ready_tasks()
        asked.set()
        await bench_flush(bench)
        assert bench.bodies == [[b"0", b"1"]]


async def test_a_queue_can_be_given():
    """It overrides the key's."""
    async with accumulator_harness() as bench:
        queue = MessageQueue("t", "broker-a", 3)
        bench.put(Message("t", b"x"), queue)
        bench.put(Message("t", b"y", key="a"), queue)
        await run_ready_tasks()

        assert [(parcel.queue, bodies(parcel)) for parcel in bench.parcels] == [(queue, [b"x", b"y"])]
        await bench.answer_all()


async def test_idle_topics_can_be_forgotten():
    """Those in use stay."""
    async with accumulator_harness() as bench:
        future = bench.put(Message("t", b"x"))
        bench.accumulator.forget(["t", "unknown"])
        assert bench.accumulator
        await run_ready_tasks()
        bench.answer(0)
        await future
        await run_ready_tasks()

        bench.accumulator.forget(["t"])
        assert not bench.accumulator
