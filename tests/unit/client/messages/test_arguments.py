"""Arguments that cannot work fail at the call, by name, and harm no other caller."""

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import pytest
from tests.support.scripted_group import ScriptedGroup
from tests.support.scripted_server import ScriptedServer

from holdfast.client.consume.pull_plan import Prefetch
from holdfast.client.messages.arguments import check_message, check_seconds, check_start, check_text
from holdfast.client.produce.batch_lines import Batching
from holdfast.client.producer import Producer
from holdfast.client.pull_consumer import PullConsumer
from holdfast.client.push_consumer import PushConsumer
from holdfast.model.errors import ConfigError, LocalProtocolError
from holdfast.model.message import Message, ReceivedMessage
from holdfast.model.queue import MessageQueue
from holdfast.runtime.pool import ConnectionPool
from holdfast.wire.frames.codes import RequestCode
from holdfast.wire.frames.command import Command

QUEUE = MessageQueue("t", "broker-a", 0)
STORED = {"msgId": "0A00000200002A9F0000000000000400", "queueId": "0", "queueOffset": "7"}
WRONG = (TypeError, ValueError, LocalProtocolError, ConfigError)
NOWHERE = "127.0.0.1:1"
LONE_SURROGATE = "\ud800"
# Neither a text, nor bytes, nor a number, nor a collection of such.
ODD: list[Any] = [5, 1.5, {"a": 1}, ["x"], object(), print]

Call = Callable[[Any], object]


def bad_messages() -> Iterator[Any]:
    """Messages of which one part is wrong, and things that are none."""
    yield from [*ODD, "text", None, b"bytes"]
    for topic in [*ODD, None, b"t", "", "a b", LONE_SURROGATE]:
        yield Message(topic, b"x")
    for body in [*ODD, None, "text", "", bytearray(b"x"), memoryview(b"x")]:
        yield Message("t", body)
    for text in [*ODD, b"x", LONE_SURROGATE, "\x01", 0, []]:
        yield Message("t", b"x", tags=text)
        yield Message("t", b"x", key=text)
    for keys in [5, "one text", b"x", None, (5,), (b"x",), (LONE_SURROGATE,), ("",), object()]:
        yield Message("t", b"x", keys=cast("tuple[str, ...]", keys))
    for number in ["3", 1.5, None, [], 2**40, -(2**40)]:
        yield Message("t", b"x", delay_level=cast("int", number))
        yield Message("t", b"x", flag=cast("int", number))
    yield Message("t", b"x", flag=cast("int", 0.0))
    for properties in [5, ["a"], {"a": 5}, {5: "a"}, {"a": None}, {"a": LONE_SURROGATE}, {"": "a"}, {"TAGS": "a"}]:
        yield Message("t", b"x", properties=cast("dict[str, str]", properties))


def bad_calls_of_a_producer() -> Iterator[Call]:
    """Every public method, with every parameter wrong."""
    good = Message("t", b"x")
    for message in bad_messages():
        yield lambda producer, message=message: producer.send_many([good, message])
        yield lambda producer, message=message: producer.send_nowait(message)
        yield lambda producer, message=message: producer.send_soon(message)
        yield lambda producer, message=message: producer.send_oneway(message)
        yield lambda producer, message=message: producer.request(message)
        yield lambda producer, message=message: producer.transaction(message).__aenter__()
        if not isinstance(message, str):
            yield lambda producer, message=message: producer.send(message)
    for body in [*ODD, None, "text", bytearray(b"x")]:
        yield lambda producer, body=body: producer.send("t", body)
    for parts in ({"key": 5}, {"tags": 5}, {"keys": "text"}, {"keys": 5}, {"delay_level": "3"}, {"properties": 5}):
        yield lambda producer, parts=parts: producer.send("t", b"x", **parts)
        yield lambda producer, parts=parts: producer.send(good, **parts)
    for queue in [*ODD, "t", MessageQueue("t", cast("str", 5), 0), MessageQueue("t", "broker-a", cast("int", "0"))]:
        yield lambda producer, queue=queue: producer.send(good, queue=queue)
        yield lambda producer, queue=queue: producer.send_nowait(good, queue=queue)
        yield lambda producer, queue=queue: producer.send_soon(good, queue=queue)
    for timeout_s in ["soon", math.nan, [], True]:
        yield lambda producer, timeout_s=timeout_s: producer.send(good, timeout_s=timeout_s)
        yield lambda producer, timeout_s=timeout_s: producer.send_many([good], timeout_s=timeout_s)
        yield lambda producer, timeout_s=timeout_s: producer.transaction(good, timeout_s=timeout_s)
        yield lambda producer, timeout_s=timeout_s: producer.request(good, timeout_s=timeout_s)
    yield lambda producer: producer.request(good, timeout_s=math.inf)
    yield lambda producer: producer.send_many(good)
    yield lambda producer: producer.reply(good, b"x")
    yield lambda producer: producer.has_room("many")
    for odd in ODD:
        yield lambda producer, odd=odd: producer.queues(odd)
        yield lambda producer, odd=odd: producer.set_name_servers(odd)


async def outcome(call: Call, client: object) -> object:
    """Return what *call* ends with: its result or its exception."""
    try:
        found = call(client)
        return await found if isinstance(found, Awaitable) else found
    except Exception as error:  # noqa: BLE001 - the test looks at it
        return error


async def test_no_bad_argument_of_one_harms_the_others():
    """With any ten of them 99 good sends are under way, of every kind: all are stored, on the one connection."""
    async with ScriptedServer() as server, Producer(server.namesrv, retries=0) as producer:
        server.serve_topic("t")
        for code in (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE, RequestCode.HEART_BEAT):
            server.on(code, **STORED)
        await producer.send("t", b"first")
        connection = producer._client.find_connection(server.address)
        calls = list(bad_calls_of_a_producer())
        for some in (calls[at : at + 10] for at in range(0, len(calls), 10)):
            good = [
                *(producer.send("t", b"good") for _ in range(33)),
                *(producer.send_soon(Message("t", b"good")) for _ in range(33)),
                producer.send_many([Message("t", b"good")] * 33),
            ]
            tasks = [asyncio.ensure_future(work) for work in good[:30]]
            for found in await asyncio.gather(*(outcome(call, producer) for call in some)):
                assert isinstance(found, WRONG), found
            tasks += [asyncio.ensure_future(work) for work in good[30:]]
            for result in await asyncio.gather(*tasks):
                if isinstance(result, asyncio.Future):
                    await result
        assert producer._client.find_connection(server.address) is connection
        assert connection is not None
        assert connection.in_flight == 0


async def test_bad_arguments_of_a_producer_are_refused_before_anybody_is_asked():
    """No name server answers here, and none has to."""
    async with Producer(NOWHERE) as producer:
        for call in bad_calls_of_a_producer():
            assert isinstance(await outcome(call, producer), WRONG)


async def test_a_batch_is_not_spoiled_by_one_of_its_messages():
    """What joins a batch without much ado is checked all the same."""
    async with ScriptedServer() as server, Producer(server.namesrv, batching=Batching(linger_s=0.05)) as producer:
        server.serve_topic("t")
        for code in (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE):
            server.on(code, **STORED)
        await producer.send_nowait(Message("t", b"first"))
        futures = [producer.send_nowait(Message("t", b"good"))]
        for message in bad_messages():
            with pytest.raises(WRONG):
                producer.send_nowait(message)
        futures.append(producer.send_nowait(Message("t", b"good", tags="")))
        assert [result.offset for result in await asyncio.gather(*futures)] == [7, 8]


@pytest.mark.parametrize(
    "options",
    [
        *({name: odd} for odd in ODD for name in ("group", "namespace", "batching", "unit", "namesrv")),
        *(
            {name: "1"}
            for name in ("timeout_s", "retries", "compress_over", "codec", "batch_bytes_max", "topic_expiry_s")
        ),
        {"transaction_checker": 5},
        {"name_server_refresh_s": "1"},
        {"group": "a b"},
        {"group": LONE_SURROGATE},
        {"namespace": "a b"},
        {"unit": LONE_SURROGATE},
        {"retries": -1},
        {"timeout_s": math.nan},
        {"codec": 1},
    ],
)
def test_a_producer_has_usable_options(options: dict[str, Any]):
    """Each is checked by name."""
    with pytest.raises(WRONG):
        Producer(**{"namesrv": NOWHERE, **options})


@pytest.mark.parametrize("kind", [PushConsumer, PullConsumer])
@pytest.mark.parametrize(
    "options",
    [
        *({name: odd} for odd in ODD for name in ("group", "namespace", "prefetch", "unit", "namesrv", "start")),
        {"start": "foo"},
        {"start": "2026-01-01"},
        {"start": None},
        {"name_server_refresh_s": "1"},
        {"group": "a b"},
    ],
)
def test_a_consumer_has_usable_options(kind: Any, options: dict[str, Any]):
    """Each is checked by name."""
    with pytest.raises(WRONG):
        kind(**{"namesrv": NOWHERE, "group": "g", **options})


@pytest.mark.parametrize(
    "options",
    [
        {"listener": 5},
        {"ordered": "yes"},
        {"broadcast": 1},
        {"broadcast": True, "offset_file": 5},
        {"concurrency": 0},
        {"concurrency": "20"},
        {"retries_max": 1.5},
        {"pause_s": -1},
        {"pause_s": "1"},
        {"close_timeout_s": None},
    ],
)
def test_a_push_consumer_has_usable_options(options: dict[str, Any]):
    """Each is checked by name."""
    with pytest.raises(WRONG):
        PushConsumer(**{"namesrv": NOWHERE, "group": "g", **options})


async def test_consumers_check_what_they_are_called_with():
    """Every method with a parameter; subscriptions among them, which every heartbeat carries from then on."""
    message = cast("ReceivedMessage", Message("t", b"x"))
    both: list[Call] = [
        *(lambda consumer, odd=odd: consumer.subscribe(odd) for odd in [*ODD, None, "", "a b", LONE_SURROGATE]),
        *(lambda consumer, odd=odd: consumer.subscribe("t", odd) for odd in [*ODD, None, LONE_SURROGATE]),
        *(lambda consumer, odd=odd: consumer.unsubscribe(odd) for odd in [*ODD, None]),
        *(lambda consumer, odd=odd: consumer.queues(odd) for odd in [*ODD, None]),
        *(lambda consumer, odd=odd: consumer.set_name_servers(odd) for odd in [*ODD, None]),
    ]
    pushing: list[Call] = [
        lambda consumer: consumer.ack(message),
        lambda consumer: consumer.retry(message),
        lambda consumer: consumer.retry(QUEUE, 3),
    ]
    pulling: list[Call] = [
        *(lambda consumer, odd=odd: consumer.assign([odd]) for odd in [*ODD, "t", None]),
        *(lambda consumer, odd=odd: consumer.assign([QUEUE], odd) for odd in [*ODD, None]),
        *(lambda consumer, odd=odd: consumer.poll(odd) for odd in ["1", None, math.nan, []]),
        *(lambda consumer, odd=odd: consumer.poll(0, messages_max=odd) for odd in ["1", None, -1, 1.5]),
        *(lambda consumer, odd=odd: consumer.seek(QUEUE, odd) for odd in ["foo", None, -1, 1.5, True]),
        *(lambda consumer, odd=odd: consumer.seek(odd, 0) for odd in ODD),
        *(lambda consumer, odd=odd: consumer.seek_all(odd) for odd in ["foo", None, 5]),
        *(lambda consumer, odd=odd: consumer.offset_of(QUEUE, odd) for odd in ["foo", None, 5]),
        *(lambda consumer, odd=odd: consumer.commit(odd) for odd in ["t", 5, {"t": 1}, {QUEUE: "1"}, {QUEUE: -1}]),
    ]
    for name in ("pause", "resume", "position", "committed"):
        pulling += [lambda consumer, name=name, odd=odd: getattr(consumer, name)(odd) for odd in ODD]

    async with ScriptedServer() as server:
        ScriptedGroup(server, end=0)
        async with PushConsumer(server.namesrv, "g") as push, PullConsumer(server.namesrv, "g") as pull:
            await pull.assign([QUEUE])
            for consumer, calls in ((push, both + pushing), (pull, both + pulling)):
                for call in calls:
                    assert isinstance(found := await outcome(call, consumer), WRONG), found


def test_a_wrong_start_is_told_what_it_may_be():
    """In both kinds of error."""
    for value, kind in (("foo", ValueError), (5, TypeError), (None, TypeError)):
        with pytest.raises(kind, match="'earliest', 'latest' or a datetime"):
            check_start("start", value)
    for start in ("earliest", "latest", datetime(2026, 1, 1, tzinfo=UTC), datetime(1960, 1, 1, tzinfo=UTC)):
        check_start("start", start)


def test_a_start_is_a_time_that_can_be_sent():
    """A local time at the very begin of the calendar has no timestamp."""
    with pytest.raises(ValueError, match="which has no timestamp"):
        check_start("start", datetime.min)  # noqa: DTZ901 - the case at hand


def test_good_values_pass():
    """Subclasses and the odd but legal ones."""
    check_text("x", "größer")
    check_seconds("x", math.inf)
    check_seconds("x", -1)
    check_message(Message("t", type("Octets", (bytes,), {})(b"x"), keys=cast("tuple[str, ...]", ["a"]), flag=True))
    PushConsumer(NOWHERE, "g", broadcast=True, offset_file=Path("x"), retries_max=-1)
    Prefetch(message_count_max=0)


@pytest.mark.parametrize(
    "options", [{"linger_s": "1"}, {"bytes_max": 1.5}, {"messages_max": "1"}, {"codec": 1}], ids=str
)
def test_batching_has_usable_options(options: dict[str, Any]):
    """Each is checked by name."""
    with pytest.raises(TypeError):
        Batching(**options)


async def test_a_request_that_cannot_be_encoded_is_not_waited_for():
    """Otherwise it would time out, and the connection, with everything on it, would be taken for dead."""
    async with ScriptedServer() as server:
        server.on(RequestCode.HEART_BEAT)
        pool = ConnectionPool(on_request=lambda *_: None)
        connection = await pool.connect(server.address)
        good = connection.request(Command(code=RequestCode.HEART_BEAT), 10)
        with pytest.raises((TypeError, ValueError, LocalProtocolError)):
            connection.request(Command(code=RequestCode.HEART_BEAT, remark=LONE_SURROGATE), 10)
        with pytest.raises(TypeError, match="only bytes"):
            connection.write(b"head", cast("bytes", "body"))
        assert (await good).code == 0
        assert connection.in_flight == 0
        await pool.close()
