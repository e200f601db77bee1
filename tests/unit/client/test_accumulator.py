"""Gathering single messages into batches."""

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterable

import pytest
from tests.support.deliveries import settle
from tests.support.scripted_server import ScriptedServer

from holdfast.client.accumulator import Accumulator
from holdfast.client.cluster_client import ClusterClient
from holdfast.client.gathering import Batching
from holdfast.client.key_order import KeyOrder
from holdfast.client.outgoing import Packing
from holdfast.client.route_table import TopicRoute
from holdfast.client.sender import Parcel, Receipt
from holdfast.model.errors import BrokerRefused, LocalProtocolError, ProducerFull, SendFailed
from holdfast.model.message import Message, SendResult
from holdfast.model.queue import MessageQueue
from holdfast.model.unique_id import UniqueIds
from holdfast.wire.batch import split_items
from holdfast.wire.codes import RequestCode
from holdfast.wire.compression import Codec
from holdfast.wire.properties import parse_properties

FOREVER = 3600.0
NOT_STORED = SendFailed(BrokerRefused(2, "busy"), attempts=1, maybe_stored=False)


class Bench:
    """An accumulator between a test that puts messages and a broker that answers when it is told to."""

    def __init__(self, client: ClusterClient, **options: float) -> None:
        self.parcels: list[Parcel] = []
        self.order = KeyOrder()
        self._answers: list[asyncio.Future[Receipt]] = []
        self.accumulator = Accumulator(
            client,
            self._carry,
            self.order,
            next_ids=lambda count: self._ids.next_many(0, count),
            batching=Batching(**options),  # type: ignore[arg-type] # the test knows which are whole numbers
            packing=Packing(compress_over=100_000, codec=Codec.LZ4),
        )

    _ids = UniqueIds(host=bytes(4), process=1, salt=1)

    async def _carry(self, parcel: Parcel) -> Receipt:
        self.parcels.append(parcel)
        self._answers.append(asyncio.get_running_loop().create_future())
        return await self._answers[-1]

    def put(self, message: Message, queue: MessageQueue | None = None) -> asyncio.Future[SendResult]:
        """Put one."""
        future: asyncio.Future[SendResult] = asyncio.get_running_loop().create_future()
        self.accumulator.put(message, future, queue)
        return future

    def answer(self, number: int, offset: int = 100) -> None:
        """Let the broker have stored a request, the first message at *offset*."""
        parcel = self.parcels[number]
        queue = parcel.queue or MessageQueue(parcel.topic, "broker-a", 0)
        offset_id = ",".join(f"O{place}" for place in range(len(bodies(parcel))))
        result = SendResult(parcel.outgoing.message_id, queue, offset, offset_id)
        self._answers[number].set_result(Receipt(result, "address", ""))

    def refuse(self, number: int) -> None:
        """Let the broker have refused a request."""
        self._answers[number].set_exception(NOT_STORED)

    async def answer_all(self) -> None:
        """Let the broker store everything, whatever comes."""
        answered = 0
        while answered < len(self.parcels):
            if not self._answers[answered].done():
                self.answer(answered)
            answered += 1
            await settle()

    @property
    def bodies(self) -> list[list[bytes]]:
        """What each request held."""
        return [bodies(parcel) for parcel in self.parcels]


def bodies(parcel: Parcel) -> list[bytes]:
    if parcel.code == RequestCode.SEND_MESSAGE_V2:
        return [parcel.outgoing.body]
    return [bytes(body) for _, body, _ in split_items(parcel.outgoing.body)]


def with_bench(story: Callable[[Bench], Awaitable[None]], **options: float) -> None:
    async def run() -> None:
        async with ScriptedServer() as server, ClusterClient(server.address) as client:
            server.serve_topic("t", queues=4)
            await client.route("t")
            await story(Bench(client, **{"linger_s": 0, **options}))

    asyncio.run(run())


def some(count: int, key: str | None = None) -> Iterable[Message]:
    return [Message("t", b"%d" % number, key=key) for number in range(count)]


def test_messages_of_one_turn_travel_together():
    """Each is told its own id and its own place."""

    async def story(bench: Bench) -> None:
        futures = [bench.put(message) for message in some(3)]
        await settle()
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

    with_bench(story)


def test_everything_about_a_message_travels_with_it():
    """As if it had been sent alone."""

    async def story(bench: Bench) -> None:
        bench.put(Message("t", b"bare"))
        bench.put(Message("t", b"x", tags="red", keys=("k1", "k2"), flag=7, properties={"a": "ä"}))
        await settle()

        _, (flag, body, text) = split_items(bench.parcels[0].outgoing.body)
        properties = parse_properties(text.decode())
        assert properties.pop("UNIQ_KEY")
        assert (flag, bytes(body), properties) == (7, b"x", {"TAGS": "red", "KEYS": "k1 k2", "a": "ä"})
        await bench.answer_all()

    with_bench(story)


def test_a_batch_that_is_kept_whole_has_one_id():
    """It is one record; the offsets are those of the messages all the same."""

    async def story(bench: Bench) -> None:
        futures = [bench.put(message) for message in some(2)]
        await settle()
        queue = MessageQueue("t", "broker-a", 3)
        bench._answers[0].set_result(Receipt(SendResult("B", queue, 5, "WHOLE"), "address", ""))

        results = await asyncio.gather(*futures)
        assert [(result.queue, result.offset, result.offset_id) for result in results] == [
            (queue, 5, "WHOLE"),
            (queue, 6, "WHOLE"),
        ]

    with_bench(story)


def test_a_batch_waits_for_others_as_long_as_it_may():
    """And leaves at once when somebody wants everything to be sent."""

    async def story(bench: Bench) -> None:
        futures = [bench.put(message) for message in some(2)]
        await settle()
        assert bench.parcels == []

        flushing = asyncio.create_task(bench.accumulator.flush())
        await settle()
        assert bench.bodies == [[b"0", b"1"]]
        assert not flushing.done()
        bench.answer(0)
        await flushing
        assert all(future.done() for future in futures)

    with_bench(story, linger_s=FOREVER)


@pytest.mark.parametrize("options", [{"messages_max": 2}, {"bytes_max": 150}])
def test_a_full_batch_waits_for_nothing(options: dict[str, float]):
    """Neither time nor the next turn of the loop."""

    async def story(bench: Bench) -> None:
        for message in some(5):
            bench.put(message)
        await settle()

        assert bench.bodies == [[b"0", b"1"], [b"2", b"3"]]
        asyncio.get_running_loop().call_soon(asyncio.create_task, bench.answer_all())
        await bench.accumulator.flush()

    with_bench(story, linger_s=FOREVER, **options)


def test_one_request_of_a_queue_is_on_its_way():
    """What comes meanwhile grows to one batch, however many times it would have been old enough."""

    async def story(bench: Bench) -> None:
        for message in some(4, key="a"):
            bench.put(message)
            await settle()
        bench.put(Message("t", b"other", key="b"))
        await settle()
        assert bench.bodies == [[b"0"], [b"other"]]

        bench.answer(0)
        await settle()
        assert bench.bodies == [[b"0"], [b"other"], [b"1", b"2", b"3"]]
        queues = [parcel.queue for parcel in bench.parcels]
        assert queues[0] == queues[2] != queues[1]
        await bench.answer_all()

    with_bench(story)


def test_messages_without_keys_wait_for_nobody():
    """Several of their batches are on their way, but not any number."""

    async def story(bench: Bench) -> None:
        for message in some(7):
            bench.put(message)
            await settle()

        assert bench.bodies == [[b"0"], [b"1"], [b"2"], [b"3"]]
        bench.answer(2)
        await settle()
        assert bench.bodies[4:] == [[b"4", b"5", b"6"]]
        await bench.answer_all()

    with_bench(story)


def test_a_failure_reaches_whom_it_concerns():
    """And what comes behind it in the line is sent."""

    async def story(bench: Bench) -> None:
        futures = [bench.put(message) for message in some(4, key="a")]
        await settle()
        bench.refuse(0)
        await settle()
        bench.answer(1, offset=9)
        results = await asyncio.gather(*futures, return_exceptions=True)

        assert results[:2] == [NOT_STORED, NOT_STORED]
        assert [result.offset for result in results[2:] if isinstance(result, SendResult)] == [9, 10]

    with_bench(story, messages_max=2)


def test_a_future_that_nobody_wants_disturbs_nobody():
    """Its message is sent all the same."""

    async def story(bench: Bench) -> None:
        first, second = (bench.put(message) for message in some(2))
        first.cancel()
        await settle()
        bench.answer(0, offset=4)

        assert (await second).offset == 5
        assert bench.bodies == [[b"0", b"1"]]

    with_bench(story)


def test_what_no_batch_may_hold_travels_alone():
    """In its place among the others of its key; a large one compressed."""
    large = bytes(200_000)

    async def story(bench: Bench) -> None:
        for message in (
            *some(2, key="a"),
            Message("t", b"later", key="a", delay_level=3),
            Message("t", large, key="a"),
            *some(2, key="a"),
        ):
            bench.put(message)
        await settle()
        await bench.answer_all()

        assert [parcel.code for parcel in bench.parcels] == [320, 310, 310, 320]
        assert bench.bodies[:2] == [[b"0", b"1"], [b"later"]]
        assert (bench.parcels[2].outgoing.sys_flag, len(bench.parcels[2].outgoing.body) < 10_000) == (0x101, True)
        assert {parcel.queue for parcel in bench.parcels} == {bench.parcels[0].queue}

    with_bench(story, bytes_max=100_000)


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
def test_what_cannot_be_sent_is_refused_at_once(message: Message):
    """Also by a topic that is in use; nothing of it stays."""

    async def story(bench: Bench) -> None:
        bench.put(Message("t", b"x"))
        with pytest.raises(LocalProtocolError):
            bench.put(message)
        await settle()

        assert bench.bodies == [[b"x"]]
        await bench.answer_all()
        await bench.accumulator.drain()

    with_bench(story, bytes_max=3_000_000)


def test_no_more_is_taken_than_may_wait():
    """Until something is acknowledged; lingering would only prolong it."""

    async def story(bench: Bench) -> None:
        for _ in range(2):
            bench.put(Message("t", bytes(1000)))
        with pytest.raises(ProducerFull, match="at most 4000"):
            bench.put(Message("t", bytes(1000)))
        await settle()
        bench.answer(0)
        await settle()

        bench.put(Message("t", bytes(1000)))
        await settle()
        assert [len(batch) for batch in bench.bodies] == [2]
        asyncio.get_running_loop().call_soon(asyncio.create_task, bench.answer_all())
        await bench.accumulator.flush()

    with_bench(story, linger_s=FOREVER, waiting_bytes_max=4000)


def test_one_message_always_finds_room():
    """However large it is, if nothing else is there."""

    async def story(bench: Bench) -> None:
        bench.put(Message("t", bytes(1000)))
        await settle()
        assert [len(batch) for batch in bench.bodies] == [1]
        await bench.answer_all()

    with_bench(story, waiting_bytes_max=10)


def test_who_waits_for_room_is_not_passed():
    """First come, first served: also messages of one key that wait for room keep their order."""

    async def story(bench: Bench) -> None:
        loop = asyncio.get_running_loop()
        futures: list[asyncio.Future[SendResult]] = [loop.create_future() for _ in range(4)]
        waiting = [
            asyncio.create_task(bench.accumulator.put_soon(Message("t", body * 1000, key="a"), future))
            for body, future in zip((b"0", b"1", b"2", b"3"), futures, strict=True)
        ]
        await settle()
        assert [task.done() for task in waiting] == [True, True, False, False]
        bench.answer(0)
        while not waiting[2].done():
            # There is room as soon as the answer is there, but it is not for who comes now.
            with pytest.raises(ProducerFull):
                bench.put(Message("t", b"late", key="a"))
            await asyncio.sleep(0)
        await bench.answer_all()
        await asyncio.gather(*waiting, *futures)

        assert [body[:1] for batch in bench.bodies for body in batch] == [b"0", b"1", b"2", b"3"]

    with_bench(story, waiting_bytes_max=4000)


def test_who_gives_up_waiting_for_room_leaves_nothing_behind():
    """The next one is let in."""

    async def story(bench: Bench) -> None:
        loop = asyncio.get_running_loop()
        bench.put(Message("t", bytes(1000)))
        tasks = [
            asyncio.create_task(bench.accumulator.put_soon(Message("t", body), loop.create_future()))
            for body in (b"gives up", b"stays")
        ]
        await settle()
        tasks[0].cancel()
        await settle()
        bench.answer(0)
        await tasks[1]
        await settle()
        assert bench.bodies[1:] == [[b"stays"]]
        await bench.answer_all()
        assert bench.put(Message("t", b"and now"))
        await settle()
        await bench.answer_all()

    with_bench(story, waiting_bytes_max=1000)


def test_keys_wait_until_their_queues_are_known():
    """In order, together with what comes meanwhile; only messages without keys do not care."""

    async def run() -> None:
        async with ScriptedServer() as server, ClusterClient(server.address) as client:
            bench = Bench(client, linger_s=0)
            server.serve_topic("t", queues=4)
            bench.put(Message("t", b"0", key="a"))
            bench.put(Message("t", b"free"))
            await asyncio.sleep(0)
            bench.put(Message("t", b"1", key="a"))
            await bench_flush(bench)
            assert sorted(bench.bodies) == [[b"0", b"1"], [b"free"]]
            assert {parcel.queue is None for parcel in bench.parcels} == {True, False}

    asyncio.run(run())


async def bench_flush(bench: Bench) -> None:
    flushing = asyncio.create_task(bench.accumulator.flush())
    while not flushing.done():
        await asyncio.sleep(0.001)
        await bench.answer_all()


def test_keys_of_a_topic_that_does_not_exist_fail():
    """Certainly not stored, and their room is free again."""

    async def run() -> None:
        async with ScriptedServer() as server, ClusterClient(server.address) as client:
            bench = Bench(client, waiting_bytes_max=1000)
            server.serve_topic("t")
            future = bench.put(Message("other", bytes(900), key="a"))
            with pytest.raises(SendFailed, match="does not exist") as caught:
                await future
            assert not caught.value.maybe_stored
            assert bench.accumulator.has_room(900)
            assert bench.parcels == []

    asyncio.run(run())


def test_a_key_that_moves_to_another_queue_keeps_its_order():
    """What it has in its old line is answered before anything leaves in the new one, even if that is full first."""

    async def run() -> None:
        async with ScriptedServer() as server, ClusterClient(server.address) as client:
            server.serve_topic("t", queues=1)
            await client.route("t")
            bench = Bench(client, linger_s=FOREVER, messages_max=2)
            bench.put(Message("t", b"old", key="b"))
            server.serve_topic("t", queues=4)
            await client.route("t", refresh=True)
            for message in some(2, key="b"):
                bench.put(message)
            await settle()
            assert bench.bodies == [[b"old"]]
            bench.answer(0)
            await settle()
            assert bench.bodies == [[b"old"], [b"0", b"1"]]
            assert bench.parcels[0].queue != bench.parcels[1].queue
            await bench.answer_all()

    asyncio.run(run())


def test_what_waits_for_its_queue_is_not_passed():
    """Though somebody else may have found the queues meanwhile."""

    async def run() -> None:
        async with ScriptedServer() as server, ClusterClient(server.address) as client:
            server.serve_topic("t")
            asked = asyncio.Event()
            find = client.publish_route

            async def find_later(topic: str) -> TopicRoute:
                await asked.wait()
                return await find(topic)

            client.publish_route = find_later  # type: ignore[method-assign,assignment]
            bench = Bench(client, linger_s=0)
            bench.put(Message("t", b"0", key="a"))
            await client.route("t")
            bench.put(Message("t", b"1", key="a"))
            await settle()
            asked.set()
            await bench_flush(bench)
            assert bench.bodies == [[b"0", b"1"]]

    asyncio.run(run())


def test_a_queue_can_be_given():
    """It overrides the key's."""

    async def story(bench: Bench) -> None:
        queue = MessageQueue("t", "broker-a", 3)
        bench.put(Message("t", b"x"), queue)
        bench.put(Message("t", b"y", key="a"), queue)
        await settle()

        assert [(parcel.queue, bodies(parcel)) for parcel in bench.parcels] == [(queue, [b"x", b"y"])]
        await bench.answer_all()

    with_bench(story)


def test_idle_topics_can_be_forgotten():
    """Those in use stay."""

    async def story(bench: Bench) -> None:
        future = bench.put(Message("t", b"x"))
        bench.accumulator.forget(["t", "unknown"])
        assert bench.accumulator
        await settle()
        bench.answer(0)
        await future
        await settle()

        bench.accumulator.forget(["t"])
        assert not bench.accumulator

    with_bench(story)
