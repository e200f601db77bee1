"""The client library against a cluster of ours, over real sockets.

`HOLDFAST_TEST_NAMESRV=host:port` runs the same against any other cluster, which must create topics by itself and check
transactions within seconds.
"""

import asyncio
import os
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable, Coroutine, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tests.support.cluster import Processes, make_topic

import holdfast
from holdfast import (
    Codec,
    Message,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    RetryLater,
    TransactionOutcome,
    blocking,
)

_FAST_CHECKS = {"transaction_timeout_ms": 1000, "transaction_check_interval_ms": 1000}
PATIENCE_S = 60


@pytest.fixture(scope="module")
def namesrv(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The name server of a cluster of two brokers."""
    given = os.environ.get("HOLDFAST_TEST_NAMESRV")
    if given:
        yield given
        return
    with Processes(tmp_path_factory.mktemp("client")) as processes:
        name_server = processes.start_name_server()
        for name in ("broker-a", "broker-b"):
            processes.start_broker(name, name_server, settings=_FAST_CHECKS)
        yield name_server


@pytest.fixture
def topic(namesrv: str) -> str:
    """A topic that all brokers have, with two queues on each."""
    name = new_name("topic")
    make_topic(namesrv, asyncio.run(broker_addresses(namesrv)), name, queues=2)
    return name


def new_name(kind: str) -> str:
    return f"{kind}-{uuid.uuid4().hex[:12]}"


async def broker_addresses(namesrv: str) -> list[str]:
    async with holdfast.ClusterClient(namesrv) as client:
        return list((await client.cluster_brokers()).values())


@pytest.fixture
def group() -> str:
    return new_name("group")


def run(work: Coroutine[Any, Any, None]) -> None:
    async def patiently() -> None:
        async with asyncio.timeout(PATIENCE_S):
            await work

    asyncio.run(patiently())


class Inbox:
    """A listener that keeps what it gets, and lets a test wait for it."""

    def __init__(self, fails: Callable[[ReceivedMessage], BaseException | None] = lambda _: None) -> None:
        self.messages: list[ReceivedMessage] = []
        self._fails = fails
        self._arrived = asyncio.Condition()

    async def __call__(self, message: ReceivedMessage) -> None:
        error = self._fails(message)
        if error is not None:
            raise error
        async with self._arrived:
            self.messages.append(message)
            self._arrived.notify_all()

    async def wait_for(self, count: int) -> list[ReceivedMessage]:
        async with self._arrived:
            await self._arrived.wait_for(lambda: len(self.messages) >= count)
        return self.messages

    def bodies(self) -> Counter[bytes]:
        return Counter(message.body for message in self.messages)


async def read_all(namesrv: str, topic: str, count: int) -> list[ReceivedMessage]:
    """Return the *count* messages of *topic*."""
    messages: list[ReceivedMessage] = []
    async with PullConsumer(namesrv, "reader", auto_commit=False) as consumer:
        await consumer.assign(await consumer.queues(topic))
        await consumer.seek_all("earliest")
        while len(messages) < count:
            messages += await consumer.poll(timeout_s=5, messages_max=1000)
    return messages


async def until_assigned(*consumers: PushConsumer, topic: str) -> None:
    """Return once every one of *consumers* has queues of *topic*. They announce nothing that could be awaited."""
    while not all(any(queue.topic == topic for queue in consumer.assignment) for consumer in consumers):
        await asyncio.sleep(0.02)


# Sending.


def test_what_was_sent_is_what_arrives(namesrv: str, topic: str):
    """Body, key, keys, tags, properties and id of a message arrive as they were sent, at the place that was told."""

    async def story() -> None:
        async with Producer(namesrv) as producer:
            result = await producer.send(
                topic, b"body", key="k1", tags="red", keys=("order-7",), properties={"colour": "größer"}
            )

        (message,) = await read_all(namesrv, topic, 1)
        assert (message.body, message.key, message.keys, message.tags) == (b"body", "k1", ("k1", "order-7"), "red")
        assert message.user_properties == {"colour": "größer"}
        assert (message.message_id, message.queue, message.offset) == (result.message_id, result.queue, result.offset)
        assert message.offset_id == result.offset_id

    run(story())


def test_a_thousand_sends_in_flight_are_all_stored_once(namesrv: str, topic: str):
    """Every send that was acknowledged is there, once, at its own place."""

    async def story() -> None:
        async with Producer(namesrv) as producer:
            await producer.send(topic, b"first")
            results = await asyncio.gather(*(producer.send(topic, b"%d" % number) for number in range(1000)))

        assert len({(result.queue, result.offset) for result in results}) == 1000
        messages = await read_all(namesrv, topic, 1001)
        assert Counter(message.body for message in messages) == Counter([b"first", *(b"%d" % n for n in range(1000))])

    run(story())


def test_messages_of_one_key_are_in_one_queue_in_order(namesrv: str, topic: str):
    """Though all of them are sent at once."""

    async def story() -> None:
        async with Producer(namesrv) as producer:
            await producer.send(topic, b"0", key="other")
            await asyncio.gather(
                *(producer.send(topic, b"%d" % n, key=key) for n in range(50) for key in ("a", "b", "c"))
            )

        queues: dict[str | None, set[object]] = defaultdict(set)
        numbers: dict[str | None, list[int]] = defaultdict(list)
        for message in await read_all(namesrv, topic, 151):
            queues[message.key].add(message.queue)
            numbers[message.key].append(int(message.body))
        for key in "abc":
            assert len(queues[key]) == 1
            assert numbers[key] == list(range(50))

    run(story())


def test_send_many_tells_where_each_message_is(namesrv: str, topic: str):
    """Keyed, unkeyed and delayed messages in one call; the results are in the order of the messages."""

    async def story() -> None:
        messages = [Message(topic, b"%d" % n, key=f"k{n % 3}" if n % 2 else None) for n in range(200)]
        messages[100] = Message(topic, b"100", delay_level=1)
        async with Producer(namesrv) as producer:
            await producer.send(topic, b"first")
            results = await producer.send_many(messages)

        stored = {message.message_id: message for message in await read_all(namesrv, topic, 201)}
        for number, (message, result) in enumerate(zip(messages, results, strict=True)):
            found = stored[result.message_id]
            assert (found.body, found.key) == (message.body, message.key)
            if number != 100:  # a delayed one is kept elsewhere first
                assert (found.queue, found.offset, found.offset_id) == (result.queue, result.offset, result.offset_id)

    run(story())


@pytest.mark.parametrize("codec", list(Codec))
def test_a_large_body_travels_compressed(namesrv: str, topic: str, codec: Codec):
    """And arrives as it was."""

    async def story() -> None:
        body = b"all work and no play " * 5000
        async with Producer(namesrv, codec=codec) as producer:
            await producer.send(topic, body)

        (message,) = await read_all(namesrv, topic, 1)
        assert message.body == body
        assert message.sys_flag & 1 == 0

    run(story())


def test_a_one_way_send_arrives(namesrv: str, topic: str):
    """Nobody says so, but it does."""

    async def story() -> None:
        async with Producer(namesrv) as producer:
            await producer.send(topic, b"first")
            await producer.send_oneway(Message(topic, b"second"))

        assert {message.body for message in await read_all(namesrv, topic, 2)} == {b"first", b"second"}

    run(story())


def test_a_delayed_message_comes_later(namesrv: str, topic: str):
    """Level 1 is a second, by the broker's own clock."""

    async def story() -> None:
        async with Producer(namesrv) as producer:
            await producer.send(topic, b"now")
            await producer.send(topic, b"later", delay_level=1)

        now, later = await read_all(namesrv, topic, 2)
        if now.body == b"later":
            now, later = later, now
        assert later.body == b"later"
        assert later.stored_ms - later.born_ms >= 1000

    run(story())


def test_a_topic_in_a_namespace_is_another_topic(namesrv: str, topic: str, group: str):
    """Producer and consumer of a namespace meet; the user never sees the long name."""

    async def story() -> None:
        inbox = Inbox()
        async with Producer(namesrv) as plain, Producer(namesrv, namespace="shop") as producer:
            await plain.send(topic, b"plain")
            await producer.send(topic, b"shop")
            consumer = PushConsumer(namesrv, group, namespace="shop", listener=inbox, start="earliest")
            consumer.subscribe(topic)
            async with consumer:
                (message,) = await inbox.wait_for(1)

        assert (message.topic, message.body, message.queue.topic) == (topic, b"shop", f"shop%{topic}")

    run(story())


# Transactions, requests.


def test_a_transaction_is_delivered_if_its_block_succeeds(namesrv: str, topic: str):
    """And never if it raises."""

    async def story() -> None:
        async with Producer(namesrv, "tx-" + topic) as producer:
            await producer.send(topic, b"first")
            async with producer.transaction(Message(topic, b"committed")) as transaction:
                message_id = transaction.message_id
            with pytest.raises(ValueError, match="no"):
                async with producer.transaction(Message(topic, b"rolled back")):
                    raise ValueError("no")
            async with producer.transaction(Message(topic, b"committed too")):
                pass

        messages = await read_all(namesrv, topic, 3)
        assert {message.body for message in messages} == {b"first", b"committed", b"committed too"}
        assert message_id in {message.message_id for message in messages}

    run(story())


def test_an_unfinished_transaction_is_decided_by_the_checker_of_the_group(namesrv: str, topic: str):
    """A producer that vanished is asked for by the broker; another one of its group answers."""

    async def story() -> None:
        asked: list[ReceivedMessage] = []

        def check(message: ReceivedMessage) -> TransactionOutcome:
            asked.append(message)
            return TransactionOutcome.COMMIT

        async with Producer(namesrv, "tx-" + topic) as vanishing:
            await vanishing.transaction(Message(topic, b"undecided", key="k")).__aenter__()  # noqa: PLC2801 - left open
        async with Producer(namesrv, "tx-" + topic, transaction_checker=check) as other:
            await other.send(topic, b"second")
            messages = await read_all(namesrv, topic, 2)

        assert {message.body for message in messages} == {b"second", b"undecided"}
        assert (asked[0].body, asked[0].topic, asked[0].key) == (b"undecided", topic, "k")

    run(story())


def test_a_request_gets_its_reply(namesrv: str, topic: str, group: str):
    """Through two topics and two brokers, to the one who asked."""

    async def story() -> None:
        async with Producer(namesrv, "server") as server, Producer(namesrv, "asker") as asker:

            async def answer(message: ReceivedMessage) -> None:
                await server.reply(message, b"re: " + message.body)

            consumer = PushConsumer(namesrv, group, listener=answer, start="earliest")
            consumer.subscribe(topic, "question")
            async with consumer:
                replies = await asyncio.gather(
                    *(asker.request(Message(topic, b"%d" % n, tags="question"), timeout_s=30) for n in range(5))
                )

        assert [reply.body for reply in replies] == [b"re: %d" % n for n in range(5)]

    run(story())


# Consuming.


def test_a_listener_gets_every_message_once(namesrv: str, topic: str, group: str):
    """Those sent before it came, and those sent after."""

    async def story() -> None:
        inbox = Inbox()
        async with Producer(namesrv) as producer:
            await asyncio.gather(*(producer.send(topic, b"%d" % n) for n in range(100)))
            consumer = PushConsumer(namesrv, group, listener=inbox, start="earliest")
            consumer.subscribe(topic)
            async with consumer:
                await inbox.wait_for(100)
                await asyncio.gather(*(producer.send(topic, b"%d" % n) for n in range(100, 200)))
                await inbox.wait_for(200)

        assert inbox.bodies() == Counter(b"%d" % n for n in range(200))

    run(story())


def test_a_plain_function_may_be_a_listener(namesrv: str, topic: str, group: str):
    """It runs in a thread and may block."""

    async def story() -> None:
        loop = asyncio.get_running_loop()
        got: asyncio.Queue[bytes] = asyncio.Queue()

        def listen(message: ReceivedMessage) -> None:
            asyncio.run_coroutine_threadsafe(got.put(message.body), loop).result()

        async with Producer(namesrv) as producer:
            await producer.send(topic, b"hello")
            consumer = PushConsumer(namesrv, group, listener=listen, start="earliest")
            consumer.subscribe(topic)
            async with consumer:
                assert await got.get() == b"hello"

    run(story())


def test_only_the_wanted_tags_come(namesrv: str, topic: str, group: str):
    """Exactly those; the others count as consumed."""

    async def story() -> None:
        inbox = Inbox()
        async with Producer(namesrv) as producer:
            for tag in ("red", "green", "blue", "Aa", "BB"):  # the last two have one hash
                await producer.send(topic, tag.encode(), tags=tag)
            consumer = PushConsumer(namesrv, group, listener=inbox, start="earliest")
            consumer.subscribe(topic, "red || blue || Aa")
            async with consumer:
                await inbox.wait_for(3)
                await producer.send(topic, b"last", tags="red")
                await inbox.wait_for(4)

        assert inbox.bodies() == Counter([b"red", b"blue", b"Aa", b"last"])

    run(story())


def test_what_a_listener_failed_on_comes_again(namesrv: str, topic: str, group: str):
    """Under its own topic and id, with the number of failures before."""

    async def story() -> None:
        inbox = Inbox(lambda message: RetryLater(1) if not message.reconsume_times else None)
        async with Producer(namesrv) as producer:
            result = await producer.send(topic, b"hard", tags="red")
            consumer = PushConsumer(namesrv, group, listener=inbox, start="earliest")
            consumer.subscribe(topic, "red")
            async with consumer:
                (message,) = await inbox.wait_for(1)

        assert (message.topic, message.body, message.reconsume_times) == (topic, b"hard", 1)
        assert message.message_id == result.message_id

    run(story())


def test_what_fails_too_often_goes_to_the_dead_letter_topic(namesrv: str, topic: str, group: str):
    """With no retry allowed, at once."""

    async def story() -> None:
        inbox = Inbox(lambda _: ValueError("never"))
        async with Producer(namesrv) as producer:
            await producer.send(topic, b"hopeless")
            consumer = PushConsumer(namesrv, group, listener=inbox, start="earliest", retries_max=0)
            consumer.subscribe(topic)
            async with consumer:
                (message,) = await read_when_there(namesrv, f"%DLQ%{group}")

        assert message.body == b"hopeless"

    run(story())


async def read_when_there(namesrv: str, topic: str) -> list[ReceivedMessage]:
    """Return the first message of a topic that does not exist yet. The name server pushes nothing to wait on."""
    while True:
        try:
            return await read_all(namesrv, topic, 1)
        except holdfast.RouteNotFound:
            await asyncio.sleep(0.1)


def test_ordered_consumers_share_the_queues_and_keep_the_order(namesrv: str, topic: str, group: str):
    """While members come and go, each key's messages are consumed in order; nothing is missing."""

    async def story() -> None:
        seen: dict[str, list[int]] = defaultdict(list)
        inbox = Inbox()

        async def listen(message: ReceivedMessage) -> None:
            assert message.key is not None
            number = int(message.body)
            if not seen[message.key] or seen[message.key][-1] != number:  # a repetition is allowed, a step back is not
                seen[message.key].append(number)
            await inbox(message)

        def consumer() -> PushConsumer:
            made = PushConsumer(namesrv, group, listener=listen, ordered=True, start="earliest")
            made.subscribe(topic)
            return made

        async with Producer(namesrv) as producer:
            await producer.send(topic, b"0", key="a")

            async def send(first: int, last: int) -> None:
                for number in range(first, last):
                    await asyncio.gather(*(producer.send(topic, b"%d" % number, key=key) for key in "abcdefgh"))

            async with consumer() as one:
                await send(1, 20)
                async with consumer() as two:
                    await until_assigned(one, two, topic=topic)
                    await send(20, 40)
                await send(40, 60)
                while any(numbers[-1:] != [59] for numbers in seen.values()) or len(seen) < 8:
                    await asyncio.sleep(0.02)

        assert seen.pop("a") == list(range(60))
        assert all(numbers == list(range(1, 60)) for numbers in seen.values())

    run(story())


def test_an_ordered_listener_that_fails_holds_its_queue(namesrv: str, topic: str, group: str):
    """The message is tried again until it works, and only then the next one."""

    async def story() -> None:
        failures = iter([True, True, False, False, False])
        inbox = Inbox(lambda _: ValueError("not yet") if next(failures) else None)
        async with Producer(namesrv) as producer:
            for number in range(3):
                await producer.send(topic, b"%d" % number, key="k")
            consumer = PushConsumer(namesrv, group, listener=inbox, ordered=True, start="earliest", pause_s=0.05)
            consumer.subscribe(topic)
            async with consumer:
                messages = await inbox.wait_for(3)

        assert [message.body for message in messages] == [b"0", b"1", b"2"]
        assert [message.reconsume_times for message in messages] == [2, 0, 0]

    run(story())


def test_closing_loses_and_repeats_nothing(namesrv: str, topic: str, group: str):
    """What one member consumed before it was closed, the next one does not get; the rest it does."""

    async def story() -> None:
        first, second = Inbox(), Inbox()
        async with Producer(namesrv) as producer:
            await asyncio.gather(*(producer.send(topic, b"%d" % n) for n in range(300)))
            consumer = PushConsumer(namesrv, group, listener=first, start="earliest", concurrency=3)
            consumer.subscribe(topic)
            async with consumer:
                await first.wait_for(50)
            following = PushConsumer(namesrv, group, listener=second)
            following.subscribe(topic)
            async with following:
                await second.wait_for(300 - len(first.messages))

        assert first.bodies() + second.bodies() == Counter(b"%d" % n for n in range(300))

    run(story())


def test_closing_waits_for_a_listener_that_runs(namesrv: str, topic: str, group: str):
    """And commits what it did."""

    async def story() -> None:
        begun, may_end = asyncio.Event(), asyncio.Event()
        ended: list[bytes] = []

        async def listen(message: ReceivedMessage) -> None:
            begun.set()
            await may_end.wait()
            ended.append(message.body)

        async with Producer(namesrv) as producer:
            result = await producer.send(topic, b"slow")
            consumer = PushConsumer(namesrv, group, listener=listen, start="earliest")
            consumer.subscribe(topic)
            await consumer.start()
            await begun.wait()
            closing = asyncio.create_task(consumer.close())
            may_end.set()
            await closing

        assert ended == [b"slow"]
        async with PullConsumer(namesrv, group) as reader:
            await reader.queues(topic)
            assert await reader.committed(result.queue) == result.offset + 1

    run(story())


def test_a_loop_is_done_with_a_message_when_it_asks_for_the_next(namesrv: str, topic: str, group: str):
    """One that is left by `break` leaves its last message for the next loop."""

    async def story() -> None:
        async with Producer(namesrv) as producer:
            for number in range(5):
                await producer.send(topic, b"%d" % number, key="k")

        async def take(count: int) -> list[bytes]:
            taken: list[bytes] = []
            consumer = PushConsumer(namesrv, group, ordered=True, start="earliest")
            consumer.subscribe(topic)
            async with consumer:
                async for message in consumer:
                    taken.append(message.body)
                    if len(taken) == count:
                        break
            return taken

        assert await take(3) == [b"0", b"1", b"2"]
        assert await take(3) == [b"2", b"3", b"4"]

    run(story())


def test_broadcasting_members_each_get_everything(namesrv: str, topic: str, group: str, tmp_path: Path):
    """And go on where their own file says."""

    async def story() -> None:
        def member(inbox: Inbox, name: str) -> PushConsumer:
            consumer = PushConsumer(
                namesrv, group, listener=inbox, broadcast=True, offset_file=tmp_path / name, start="earliest"
            )
            consumer.subscribe(topic)
            return consumer

        one, two, again = Inbox(), Inbox(), Inbox()
        async with Producer(namesrv) as producer:
            await asyncio.gather(*(producer.send(topic, b"%d" % n) for n in range(50)))
            async with member(one, "one"), member(two, "two"):
                await one.wait_for(50)
                await two.wait_for(50)
            await producer.send(topic, b"new")
            async with member(again, "one"):
                await again.wait_for(1)

        assert one.bodies() == two.bodies() == Counter(b"%d" % n for n in range(50))
        assert again.bodies() == Counter([b"new"])

    run(story())


# Reading on demand.


def test_a_pull_consumer_goes_where_it_is_told(namesrv: str, topic: str, group: str):
    """To an offset, to either end, to a time."""

    async def story() -> None:
        async with Producer(namesrv) as producer, PullConsumer(namesrv, group) as consumer:
            results = [await producer.send(topic, b"%d" % n, key="k") for n in range(10)]
            queue = results[0].queue
            await consumer.assign([queue])

            async def next_body(to: int | holdfast.Start) -> bytes:
                await consumer.seek(queue, to)
                (message,) = await consumer.poll(timeout_s=20, messages_max=1)
                return message.body

            assert await next_body(7) == b"7"
            assert consumer.position(queue) == 8
            assert await next_body("earliest") == b"0"
            await consumer.seek(queue, 4)
            (fourth,) = await consumer.poll(timeout_s=20, messages_max=1)
            when = datetime.fromtimestamp(fourth.stored_ms / 1000, UTC)
            assert await next_body(when) in {b"%d" % n for n in range(5)}  # others may share its millisecond
            await consumer.seek(queue, "latest")
            assert await consumer.poll(timeout_s=0.2) == []
            await producer.send(topic, b"new", key="k")
            assert [message.body for message in await consumer.poll(timeout_s=20)] == [b"new"]

    run(story())


def test_a_paused_queue_rests(namesrv: str, topic: str, group: str):
    """Until it is resumed; nothing is lost."""

    async def story() -> None:
        async with Producer(namesrv) as producer, PullConsumer(namesrv, group, start="earliest") as consumer:
            queue = (await producer.send(topic, b"0", key="k")).queue
            await consumer.assign([queue])
            consumer.pause(queue)
            assert await consumer.poll(timeout_s=0.2) == []
            consumer.resume(queue)
            assert [message.body for message in await consumer.poll(timeout_s=20)] == [b"0"]

    run(story())


def test_members_that_pull_share_a_topic_and_commit_what_they_polled(namesrv: str, topic: str, group: str):
    """The next member of the group goes on behind it."""

    async def story() -> None:
        async def take(count: int) -> Counter[bytes]:
            bodies: Counter[bytes] = Counter()
            consumer = PullConsumer(namesrv, group, start="earliest")
            consumer.subscribe(topic)
            async with consumer:
                async for message in consumer:
                    bodies[message.body] += 1
                    if bodies.total() == count:
                        break
            return bodies

        async with Producer(namesrv) as producer:
            await asyncio.gather(*(producer.send(topic, b"%d" % n) for n in range(40)))
        assert await take(15) + await take(25) == Counter(b"%d" % n for n in range(40))

    run(story())


def test_an_exception_leaves_the_last_poll_uncommitted(namesrv: str, topic: str, group: str):
    """Those messages come again; those of earlier polls do not."""

    async def story() -> None:
        async with Producer(namesrv) as producer:
            for number in range(4):
                queue = (await producer.send(topic, b"%d" % number, key="k")).queue
        with pytest.raises(ValueError, match="oops"):
            async with PullConsumer(namesrv, group, start="earliest") as consumer:
                await consumer.assign([queue])
                await consumer.poll(timeout_s=20, messages_max=2)
                await consumer.poll(timeout_s=20, messages_max=1)
                raise ValueError("oops")
        async with PullConsumer(namesrv, group) as consumer:
            await consumer.assign([queue])
            assert [message.body for message in await consumer.poll(timeout_s=20)] == [b"2", b"3"]

    run(story())


# What goes wrong.


def test_no_name_server_is_said_so():
    """By a producer when it sends, by a consumer when it starts."""

    async def story() -> None:
        async with Producer("127.0.0.1:1", retries=0) as producer:
            with pytest.raises(holdfast.SendFailed, match=r"127\.0\.0\.1:1.*not stored"):
                await producer.send("t", b"")
        consumer = PushConsumer("127.0.0.1:1", "g")
        consumer.subscribe("t")
        with pytest.raises(holdfast.ConnectionLost, match=r"127\.0\.0\.1:1"):
            await consumer.start()

    run(story())


def test_a_message_that_cannot_be_sent_is_refused_at_once(namesrv: str, topic: str):
    """With the reason, before anything leaves."""

    async def story() -> None:
        async with Producer(namesrv) as producer:
            for message in (
                Message("no spaces", b""),
                Message(topic, b"", delay_level=99),
                Message(topic, b"", properties={"KEYS": "mine"}),
                Message(topic, b"", tags="a\x02b"),
                Message(topic, os.urandom(5 * 1024 * 1024)),
            ):
                with pytest.raises(holdfast.LocalProtocolError):
                    await producer.send(message)

    run(story())


# Not asyncio.


def test_the_blocking_face_does_the_same(namesrv: str, topic: str, group: str):
    """Send, batch, transaction, iterate and poll, without a loop in sight."""
    with blocking.Producer(namesrv, "blocking") as producer:
        producer.send(topic, b"one", key="k")
        producer.send_many([Message(topic, b"two", key="k")])
        with producer.transaction(Message(topic, b"three", key="k")):
            pass

    consumer = blocking.PushConsumer(namesrv, group, start="earliest")
    consumer.subscribe(topic)
    with consumer:
        taken = []
        for message in consumer:
            taken.append(message.body)
            if len(taken) == 3:
                break
    with blocking.PullConsumer(namesrv, group + "-pull") as puller:
        puller.assign(puller.queues(topic))
        puller.seek_all("earliest")
        polled: list[bytes] = []
        while len(polled) < 3:
            polled += [message.body for message in puller.poll(timeout_s=20)]

    assert set(taken) == set(polled) == {b"one", b"two", b"three"}
