"""Sending messages. What a real cluster makes of it is shown by tests/integration/test_client.py."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest
from tests.support.deliveries import a_received_message, poll_until, run_ready_tasks
from tests.support.scripted_server import ScriptedServer

from holdfast.client.produce import sender
from holdfast.client.produce.batch_lines import Batching
from holdfast.client.producer import Producer
from holdfast.client.routes import route_refresher
from holdfast.model.errors import LocalProtocolError, RequestTimeout, SendFailed
from holdfast.model.message import Message, ReceivedMessage
from holdfast.model.queue import MessageQueue
from holdfast.wire.frames.codes import RequestCode
from holdfast.wire.frames.command import Command, response
from holdfast.wire.records.batch import split_items
from holdfast.wire.records.properties import parse_properties

SEND = RequestCode.SEND_MESSAGE_V2
STORED = {"msgId": "0A00000200002A9F0000000000000400", "queueId": "0", "queueOffset": "7"}


@asynccontextmanager
async def a_producer() -> AsyncIterator[tuple[ScriptedServer, Producer]]:
    async with ScriptedServer() as server:
        server.serve_topic("t")
        server.on(SEND, **STORED)
        server.on(RequestCode.SEND_BATCH_MESSAGE, **STORED)
        async with Producer(server.namesrv, "p") as producer:
            yield server, producer


async def test_topic_and_body_make_a_message():
    """As well as a message does."""
    async with a_producer() as (server, producer):
        await producer.send("t", b"body", tags="x", keys=["a"], properties={"p": "q"})
        await producer.send(Message("t", b"body", tags="x", keys=("a",), properties={"p": "q"}))

        one, two = (parse_properties(command.fields["i"]) for command in server.requests_of(SEND))
        assert one.pop("UNIQ_KEY") != two.pop("UNIQ_KEY")
        assert one == two == {"KEYS": "a", "TAGS": "x", "p": "q"}


async def test_many_sends_are_in_flight_at_once():
    """The server sees all of them before it answers any."""
    async with a_producer() as (server, producer):
        await producer.send("t", b"first")
        held: list[Command] = []
        server.answers[SEND] = held.append

        sends = [asyncio.create_task(producer.send("t", b"%d" % number)) for number in range(200)]
        await server.wait_for_requests(SEND, 201)
        assert len(held) == 200
        assert not any(task.done() for task in sends)
        for command in held:
            server.push(response(command, fields=STORED))
        assert {result.offset for result in await asyncio.gather(*sends)} == {7}
        assert {command.body for command in held} == {b"%d" % number for number in range(200)}


async def test_sends_of_one_key_are_one_at_a_time():
    """So that a retry cannot overtake."""
    async with a_producer() as (server, producer):
        await producer.send("t", b"first")
        held: list[Command] = []
        server.answers[SEND] = held.append

        sends = [asyncio.create_task(producer.send("t", b"x", key=key)) for key in ("a", "a", "b")]
        await server.wait_for_requests(SEND, 3)
        await run_ready_tasks()
        assert len(held) == 2
        server.on(SEND, **STORED)
        for command in held:
            server.push(response(command, fields=STORED))
        await asyncio.gather(*sends)


async def test_closing_waits_for_what_is_in_flight():
    """And takes nothing new."""
    async with a_producer() as (server, producer):
        held: list[Command] = []
        server.answers[SEND] = held.append
        sending = asyncio.create_task(producer.send("t", b"x"))
        await server.wait_for_requests(SEND)

        closing = asyncio.create_task(producer.close())
        await run_ready_tasks()
        assert not closing.done()
        with pytest.raises(LocalProtocolError, match="not open"):
            await producer.send("t", b"late")
        server.push(response(held[0], fields=STORED))

        assert (await sending).offset == 7
        await closing
        (goodbye,) = server.requests_of(RequestCode.UNREGISTER_CLIENT)
        assert goodbye.fields == {"clientID": producer.client_id, "producerGroup": "p"}


@pytest.mark.parametrize("way", ["send", "send_nowait"])
async def test_concurrent_calls_of_close_all_wait_for_what_is_in_flight(way: str):
    """Neither call hangs, and neither fails the message by closing the connections early."""
    async with a_producer() as (server, producer), asyncio.timeout(10):
        held: list[Command] = []
        server.answers[SEND] = held.append
        sending = asyncio.ensure_future(getattr(producer, way)(Message("t", b"x")))
        await server.wait_for_requests(SEND)

        closing = []
        for _ in range(2):
            closing.append(asyncio.create_task(producer.close()))
            await run_ready_tasks()
        assert not any(task.done() for task in closing)
        server.push(response(held[0], fields=STORED))

        assert (await sending).offset == 7
        await asyncio.gather(*closing)


async def test_a_producer_that_was_not_started_says_so():
    """With what to write instead."""
    with pytest.raises(LocalProtocolError, match="async with"):
        await Producer("127.0.0.1:1").send("t", b"x")


async def test_a_batch_is_one_request():
    """Nothing in it is compressed: the flag is the whole batch's."""
    async with a_producer() as (server, producer):
        await producer.send_many([Message("t", b"a" * 10_000), Message("t", b"b")])

        (command,) = server.requests_of(RequestCode.SEND_BATCH_MESSAGE)
        assert (command.fields["m"], command.fields["f"]) == ("true", "0")
        assert [bytes(body) for _, body, _ in split_items(command.body)] == [b"a" * 10_000, b"b"]


async def test_a_half_message_is_marked():
    """With its group, so that the broker knows whom to ask."""
    async with a_producer() as (server, producer):
        server.on(RequestCode.END_TRANSACTION)
        async with producer.transaction(Message("t", b"x")):
            pass
        with pytest.raises(LocalProtocolError, match="delayed"):
            async with producer.transaction(Message("t", b"x", delay_level=1)):
                pytest.fail("it should not have begun")

        (half,) = server.requests_of(SEND)
        assert half.fields["f"] == "4"
        assert {"TRAN_MSG": "true", "PGROUP": "p"}.items() <= parse_properties(half.fields["i"]).items()


async def test_topics_of_transactions_are_kept(monkeypatch: pytest.MonkeyPatch):
    """Brokers may ask about them at any time; every other topic is forgotten when nobody sends to it."""
    monkeypatch.setattr(route_refresher, "_POLL_TICK_S", 0.01)
    monkeypatch.setattr(route_refresher, "_SWEEP_S", 0.02)

    async with ScriptedServer() as server, asyncio.timeout(30):
        server.on(SEND, **STORED)
        server.on(RequestCode.END_TRANSACTION)
        server.serve_topic("t")
        server.serve_topic("u")
        async with Producer(server.namesrv, "p", topic_expiry_s=0.1) as producer:
            async with producer.transaction(Message("t", b"x")):
                pass
            await producer.send("u", b"x")

            await poll_until(lambda: producer._client.routes.find("u") is None)

            assert producer._client.routes.find("t") is not None
            assert {topic for topic, _ in producer._sender._templates} == {"t"}


async def test_sends_to_a_topic_that_does_not_exist_ask_nobody_twice():
    """A program that goes on trying costs the name server one question per poll."""
    async with a_producer() as (server, producer):
        for _ in range(50):
            with pytest.raises(SendFailed, match="does not exist and no broker creates topics"):
                await producer.send("nowhere", b"x")

        asked = [command.fields["topic"] for command in server.requests_of(RequestCode.GET_ROUTEINFO_BY_TOPIC)]
        assert sorted(asked) == ["TBW102", "nowhere"]


async def test_a_request_without_a_reply_ends():
    """In the time it was given."""
    async with a_producer() as (_server, producer):
        with pytest.raises(RequestTimeout, match="no client replied"):
            await producer.request(Message("t", b"x"), timeout_s=0.05)


async def test_names_are_put_into_the_namespace():
    """Topic and group."""
    async with ScriptedServer() as server:
        server.serve_topic("ns%t")
        server.on(SEND, **STORED)
        async with Producer(server.namesrv, "p", namespace="ns") as producer:
            result = await producer.send("t", b"x")
            assert [queue.topic for queue in await producer.queues("t")] == ["ns%t"]
        (command,) = server.requests_of(SEND)
        assert (command.fields["a"], command.fields["b"], result.queue.topic) == ("ns%p", "ns%t", "ns%t")


@pytest.mark.parametrize("way", ["send", "send_nowait", "send_soon"])
async def test_a_message_goes_to_no_queue_of_another_topic(way: str):
    """It would be stored in the queue of that number of its own topic, and the result would name the other one."""
    async with a_producer() as (server, producer):

        async def send() -> None:
            await getattr(producer, way)(Message("t", b"x"), queue=MessageQueue("u", "broker-a", 0))

        with pytest.raises(LocalProtocolError, match="no queue of the topic 't'"):
            await send()
        assert server.requests_of(SEND) == []


async def test_a_queue_is_known_with_and_without_the_namespace():
    """`queues` returns the names on the wire; users of a namespace write the others."""
    async with ScriptedServer() as server:
        server.serve_topic("ns%t")
        server.on(SEND, **STORED)
        async with Producer(server.namesrv, "p", namespace="ns") as producer:
            for topic in ("ns%t", "t"):
                await producer.send("t", b"x", queue=MessageQueue(topic, "broker-a", 0))
            with pytest.raises(LocalProtocolError, match="no queue of the topic 'ns%t'"):
                await producer.send("t", b"x", queue=MessageQueue("u", "broker-a", 0))


async def test_a_reply_without_a_way_back_fails():
    """No broker serves the reply topic."""
    async with a_producer() as (server, producer):
        server.serve_topic("c_REPLY_TOPIC", queues=0)
        with pytest.raises(SendFailed, match="c_REPLY_TOPIC"):
            await producer.reply(a_request(), b"reply")


async def test_a_reply_tries_the_other_brokers():
    """Only one of them has the requester's connection: the one that stored the request is asked first."""
    async with ScriptedServer() as one, ScriptedServer() as two:
        one.serve_topic("c_REPLY_TOPIC", other_brokers={"broker-b": two.address})
        one.refuse(RequestCode.SEND_REPLY_MESSAGE_V2, 1, "channel not found")
        two.on(RequestCode.SEND_REPLY_MESSAGE_V2, **STORED)
        two.on(RequestCode.HEART_BEAT)
        two.on(RequestCode.UNREGISTER_CLIENT)
        async with Producer(one.namesrv, "p") as producer:
            result = await producer.reply(a_request(), b"reply")
        assert result.queue.broker_name == "broker-b"
        assert len(one.requests_of(RequestCode.SEND_REPLY_MESSAGE_V2)) == 1


@pytest.mark.parametrize("timeout_s", [0, 0.05])
async def test_a_reply_ends_in_the_time_it_was_given(monkeypatch: pytest.MonkeyPatch, timeout_s: float):
    """All brokers together, and 0 is a time like any other."""
    monkeypatch.setattr(sender, "ATTEMPT_TIMEOUT_S", 3600)
    async with ScriptedServer() as server, asyncio.timeout(10):
        server.serve_topic("c_REPLY_TOPIC", queues=9)
        server.answers[RequestCode.SEND_REPLY_MESSAGE_V2] = lambda _: None
        async with Producer(server.namesrv, "p", timeout_s=3600) as producer:
            await producer.queues("c_REPLY_TOPIC")

            with pytest.raises(SendFailed, match="no answer"):
                await producer.reply(a_request(), b"reply", timeout_s=timeout_s)

        assert len(await server.wait_for_requests(RequestCode.SEND_REPLY_MESSAGE_V2)) == 1


async def test_a_reply_does_not_wait_longer_for_name_servers():
    """It was certainly not stored."""
    async with ScriptedServer() as server, asyncio.timeout(10):
        server.answers[RequestCode.GET_ROUTEINFO_BY_TOPIC] = lambda _: None
        async with Producer(server.namesrv, "p") as producer:
            with pytest.raises(SendFailed, match="no name server returned the route") as raised:
                await producer.reply(a_request(), b"reply", timeout_s=0)
    assert not raised.value.maybe_stored


def a_request() -> ReceivedMessage:
    asked = {"CLUSTER": "c", "CORRELATION_ID": "id", "REPLY_TO_CLIENT": "me", "TTL": "1500"}
    return msgspec.structs.replace(a_received_message(MessageQueue("t", "broker-a", 0), 5), properties=asked)


async def test_messages_are_gathered():
    """Given one by one, sent together, each with its own place."""
    async with a_producer() as (server, producer):
        futures = [producer.send_nowait(Message("t", b"%d" % number)) for number in range(3)]
        futures.append(await producer.send_soon(Message("t", b"3")))
        await producer.flush()

        assert [future.result().offset for future in futures] == [7, 8, 9, 10]
        (command,) = server.requests_of(RequestCode.SEND_BATCH_MESSAGE)
        assert [bytes(body) for _, body, _ in split_items(command.body)] == [b"0", b"1", b"2", b"3"]


async def test_a_key_keeps_its_order_whichever_way_it_is_sent():
    """Gathered, alone and in explicit batches: each waits for what came before it."""
    async with a_producer() as (server, producer):
        await producer.queues("t")
        held: list[Command] = []
        server.answers[SEND] = server.answers[RequestCode.SEND_BATCH_MESSAGE] = held.append
        tasks: list[asyncio.Future[object]] = [producer.send_nowait(Message("t", b"0", key="a"))]
        tasks.append(asyncio.create_task(producer.send("t", b"1", key="a")))
        await asyncio.sleep(0)
        tasks.append(producer.send_nowait(Message("t", b"2", key="a")))
        tasks.append(asyncio.create_task(producer.send_many([Message("t", b"3", key="a")] * 2)))
        await asyncio.sleep(0)
        tasks.append(producer.send_nowait(Message("t", b"4", key="a")))

        for number in range(5):
            await poll_until(lambda: len(held) > number)  # noqa: B023 - called at once
            await asyncio.sleep(0.02)  # longer than anything lingers
            assert len(held) == number + 1
            server.push(response(held[number], fields=STORED))
        await asyncio.gather(*tasks)
        assert [command.body[-200:].count(b"%d" % number) > 0 for number, command in enumerate(held)] == [True] * 5


async def test_closing_sends_what_lingers():
    """Nothing that was taken is lost; nothing more is taken."""
    async with ScriptedServer() as server:
        server.serve_topic("t")
        server.on(SEND, **STORED)
        server.on(RequestCode.SEND_BATCH_MESSAGE, **STORED)
        producer = Producer(server.namesrv, "p", batching=Batching(linger_s=3600, waiting_bytes_max=2000))
        await producer.start()
        futures = [producer.send_nowait(Message("t", b"x" * 1000, key="a"))]
        waiting = asyncio.create_task(producer.send_soon(Message("t", b"y" * 1000, key="a")))
        await asyncio.sleep(0)

        await producer.close()

        futures.append(await waiting)
        assert [future.result().offset for future in futures] == [7, 7]
        with pytest.raises(LocalProtocolError, match="not open"):
            producer.send_nowait(Message("t", b"late"))


async def test_gathered_messages_know_the_namespace():
    """As all others do."""
    async with ScriptedServer() as server:
        server.serve_topic("ns%t")
        server.on(SEND, **STORED)
        async with Producer(server.namesrv, "p", namespace="ns") as producer:
            await producer.send_nowait(Message("t", b"x"))
        assert server.requests_of(SEND)[0].fields["b"] == "ns%t"
