"""Sending with the client library, to a cluster of ours."""

import asyncio
import os
from collections import Counter, defaultdict

import pytest
from tests.support.client_stories import Inbox, new_name, poll_until, read_all

import holdfast
from holdfast import (
    Codec,
    Message,
    Producer,
    PushConsumer,
    ReceivedMessage,
    TransactionOutcome,
    blocking,
)


async def test_what_was_sent_is_what_arrives(namesrv: str, topic: str):
    """Body, key, keys, tags, properties and id of a message arrive as they were sent, at the place that was told."""
    async with Producer(namesrv) as producer:
        result = await producer.send(
            topic, b"body", key="k1", tags="red", keys=("order-7",), properties={"colour": "größer"}
        )

    (message,) = await read_all(namesrv, topic, 1)
    assert (message.body, message.key, message.keys, message.tags) == (b"body", "k1", ("k1", "order-7"), "red")
    assert message.user_properties == {"colour": "größer"}
    assert (message.message_id, message.queue, message.offset) == (result.message_id, result.queue, result.offset)
    assert message.offset_id == result.offset_id


async def test_a_thousand_sends_in_flight_are_all_stored_once(namesrv: str, topic: str):
    """Every send that was acknowledged is there, once, at its own place."""
    async with Producer(namesrv) as producer:
        await producer.send(topic, b"first")
        results = await asyncio.gather(*(producer.send(topic, b"%d" % number) for number in range(1000)))

    assert len({(result.queue, result.offset) for result in results}) == 1000
    messages = await read_all(namesrv, topic, 1001)
    assert Counter(message.body for message in messages) == Counter([b"first", *(b"%d" % n for n in range(1000))])


async def test_messages_of_one_key_are_in_one_queue_in_order(namesrv: str, topic: str):
    """Though all of them are sent at once."""
    async with Producer(namesrv) as producer:
        await producer.send(topic, b"0", key="other")
        await asyncio.gather(*(producer.send(topic, b"%d" % n, key=key) for n in range(50) for key in ("a", "b", "c")))

    queues: dict[str | None, set[object]] = defaultdict(set)
    numbers: dict[str | None, list[int]] = defaultdict(list)
    for message in await read_all(namesrv, topic, 151):
        queues[message.key].add(message.queue)
        numbers[message.key].append(int(message.body))
    for key in "abc":
        assert len(queues[key]) == 1
        assert numbers[key] == list(range(50))


async def test_send_many_tells_where_each_message_is(namesrv: str, topic: str):
    """Keyed, unkeyed and delayed messages in one call; the results are in the order of the messages."""
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


@pytest.mark.parametrize("codec", list(Codec))
async def test_a_large_body_travels_compressed(namesrv: str, topic: str, codec: Codec):
    """And arrives as it was."""
    body = b"all work and no play " * 5000
    async with Producer(namesrv, codec=codec) as producer:
        await producer.send(topic, body)

    (message,) = await read_all(namesrv, topic, 1)
    assert message.body == body
    assert message.sys_flag & 1 == 0


async def test_a_one_way_send_arrives(namesrv: str, topic: str):
    """Nobody says so, but it does."""
    async with Producer(namesrv) as producer:
        await producer.send(topic, b"first")
        await producer.send_oneway(Message(topic, b"second"))

    assert {message.body for message in await read_all(namesrv, topic, 2)} == {b"first", b"second"}


async def test_a_delayed_message_comes_later(namesrv: str, topic: str):
    """Level 1 is a second, by the broker's own clock."""
    async with Producer(namesrv) as producer:
        await producer.send(topic, b"now")
        await producer.send(topic, b"later", delay_level=1)

    now, later = await read_all(namesrv, topic, 2)
    if now.body == b"later":
        now, later = later, now
    assert later.body == b"later"
    assert later.stored_ms - later.born_ms >= 1000


async def test_a_topic_in_a_namespace_is_another_topic(namesrv: str, topic: str, group: str):
    """Producer and consumer of a namespace meet; the user never sees the long name."""
    inbox = Inbox()
    async with Producer(namesrv) as plain, Producer(namesrv, namespace="shop") as producer:
        await plain.send(topic, b"plain")
        await producer.send(topic, b"shop")
        consumer = PushConsumer(namesrv, group, namespace="shop", listener=inbox, start="earliest")
        consumer.subscribe(topic)
        async with consumer:
            (message,) = await inbox.wait_for(1)

    assert (message.topic, message.body, message.queue.topic) == (topic, b"shop", f"shop%{topic}")


async def test_a_transaction_is_delivered_if_its_block_succeeds(namesrv: str, topic: str):
    """And never if it raises."""
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


async def test_an_unfinished_transaction_is_decided_by_the_checker_of_the_group(namesrv: str, topic: str):
    """A producer that vanished is asked for by the broker; another one of its group answers."""
    asked: list[ReceivedMessage] = []

    def check(message: ReceivedMessage) -> TransactionOutcome:
        asked.append(message)
        return TransactionOutcome.COMMIT

    async with Producer(namesrv, "tx-" + topic) as vanishing:
        await vanishing.transaction(Message(topic, b"undecided", key="k")).__aenter__()  # left open
    async with Producer(namesrv, "tx-" + topic, transaction_checker=check) as other:
        await other.send(topic, b"second")
        messages = await read_all(namesrv, topic, 2)

    assert {message.body for message in messages} == {b"second", b"undecided"}
    assert (asked[0].body, asked[0].topic, asked[0].key) == (b"undecided", topic, "k")


async def test_a_request_gets_its_reply(namesrv: str, topic: str, group: str):
    """Through two topics and two brokers, to the one who asked."""
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


@pytest.mark.skipif("HOLDFAST_TEST_NAMESRV" in os.environ, reason="Java brokers create topics where messages go")
async def test_a_topic_that_a_send_creates_is_on_every_broker(namesrv: str):
    """One message is enough; each has four queues, as the client asks for fewer than the broker would make."""
    created = new_name("created")
    async with Producer(namesrv) as producer:
        await producer.send(created, b"x")

        def queues() -> dict[str, int]:
            route = producer._client.routes.find(created)
            known = () if route is None or route.is_template else route.publishable
            return dict(Counter(queue.broker_name for queue in known))

        await poll_until(lambda: len(queues()) == 2)

        assert queues() == {"broker-a": 4, "broker-b": 4}
        assert [message.body for message in await read_all(namesrv, created, 1)] == [b"x"]


async def test_no_name_server_is_said_so():
    """By a producer when it sends, by a consumer when it starts."""
    async with Producer("127.0.0.1:1", retries=0) as producer:
        with pytest.raises(holdfast.SendFailed, match=r"127\.0\.0\.1:1.*not stored"):
            await producer.send("t", b"x")
    consumer = PushConsumer("127.0.0.1:1", "g")
    consumer.subscribe("t")
    with pytest.raises(holdfast.ConnectionLost, match=r"127\.0\.0\.1:1"):
        await consumer.start()


async def test_a_message_that_cannot_be_sent_is_refused_at_once(namesrv: str, topic: str):
    """With the reason, before anything leaves."""
    async with Producer(namesrv) as producer:
        for message in (
            Message("no spaces", b"x"),
            Message(topic, b"x", delay_level=99),
            Message(topic, b"x", properties={"KEYS": "mine"}),
            Message(topic, b"x", tags="a\x02b"),
            Message(topic, os.urandom(5 * 1024 * 1024)),
        ):
            with pytest.raises(holdfast.LocalProtocolError):
                await producer.send(message)


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


async def test_a_blocking_transaction_is_decided_by_its_calls(namesrv: str, topic: str):
    """A message that is rolled back, by a call or an exception, is never delivered; a committed one is, once."""
    with blocking.Producer(namesrv, "tx-" + topic) as producer:
        with producer.transaction(Message(topic, b"rolled back")) as transaction:
            assert transaction.roll_back() is None
        with producer.transaction(Message(topic, b"committed")) as transaction:
            result = transaction.commit()
            assert (result.message_id, result.queue) == (transaction.message_id, transaction.queue)
            with pytest.raises(holdfast.LocalProtocolError, match="decided already"):
                transaction.roll_back()
        with pytest.raises(ValueError, match="mine"), producer.transaction(Message(topic, b"raised")):
            raise ValueError("mine")
        with producer.transaction(Message(topic, b"left")):
            pass
        # A broker has decided about all of the former when it delivers this one.
        producer.send(topic, b"last")

    messages = await read_all(namesrv, topic, 3)
    assert {message.body for message in messages} == {b"committed", b"left", b"last"}
