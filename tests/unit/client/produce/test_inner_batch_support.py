"""Who keeps a batch whole, and what a producer sends to whom."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
from tests.support.deliveries import poll_until
from tests.support.scripted_server import ScriptedServer

from holdfast.client.cluster.cluster_client import ClusterClient
from holdfast.client.produce import inner_batch_support
from holdfast.client.produce.batch_lines import Batching
from holdfast.client.produce.inner_batch_support import InnerBatchSupport
from holdfast.client.producer import Producer
from holdfast.model.message import Message
from holdfast.model.queue import MessageQueue
from holdfast.model.topic import TopicConfig
from holdfast.wire.frames import java_json
from holdfast.wire.frames.codes import RequestCode
from holdfast.wire.frames.command import Command, response
from holdfast.wire.records.batch import split_items
from holdfast.wire.records.compression import Codec
from holdfast.wire.records.inner_batch import INNER_BATCH, unwrap_items
from holdfast.wire.records.properties import parse_properties

SEND = RequestCode.SEND_BATCH_MESSAGE
ASK = RequestCode.GET_TOPIC_CONFIG
STORED = {"msgId": "0A00000200002A9F0000000000000400", "queueId": "0", "queueOffset": "7"}
BATCH_INDEX = {"queue.type": "BatchCQ"}


def serve(
    server: ScriptedServer, *, capabilities: str = "innerBatch", attributes: dict[str, str] | None = None
) -> None:
    server.serve_topic("t")
    server.on(SEND, **STORED)
    server.on(RequestCode.SEND_MESSAGE_V2, **STORED)
    server.on(RequestCode.HEART_BEAT, **({"capabilities": capabilities} if capabilities else {}))
    server.on(ASK, body=java_json.encode(TopicConfig(name="t", attributes=attributes or {})))


@asynccontextmanager
async def a_producer(
    *, codec: Codec | None = None, **options: str | dict[str, str]
) -> AsyncIterator[tuple[ScriptedServer, Producer]]:
    async with ScriptedServer() as server:
        serve(server, **options)  # type: ignore[arg-type] # the test knows which is which
        async with Producer(server.namesrv, "p", batching=Batching(linger_s=0, codec=codec)) as producer:
            yield server, producer


async def send_two(server: ScriptedServer, producer: Producer, **more: str) -> Command:
    """Send a batch and return its request."""
    futures = [producer.send_nowait(Message("t", b"%d" % number * 99, **more)) for number in range(2)]  # type: ignore[arg-type]
    await producer.flush()
    assert [future.result().offset for future in futures] == [7, 8]
    return server.requests_of(SEND)[-1]


async def get_known(server: ScriptedServer, producer: Producer) -> None:
    """Send a batch that lets the producer ask."""
    first = await send_two(server, producer)
    assert first.fields["f"] != "0"


async def test_nobody_is_asked_who_does_not_say_that_it_can():
    """As every broker that does not know the word: it gets what every broker takes."""
    for capabilities in ("", "innerBatches,other"):
        async with a_producer(capabilities=capabilities, attributes=BATCH_INDEX) as (server, producer):
            for _ in range(3):
                command = await send_two(server, producer)

            assert (command.fields["f"], len(split_items(command.body))) == ("0", 2)
            assert server.requests_of(ASK) == []


async def test_a_topic_that_is_indexed_by_message_gets_no_whole_batches():
    """Asked for once."""
    async with a_producer() as (server, producer):
        for _ in range(2):
            command = await send_two(server, producer)

        assert command.fields["f"] == "0"
        assert len(server.requests_of(ASK)) == 1


async def test_no_batch_waits_long_for_who_does_not_answer(monkeypatch: pytest.MonkeyPatch):
    """One question is asked at a time; when it is answered after all, that counts."""
    monkeypatch.setattr(inner_batch_support, "_PATIENCE_S", 0.01)

    async with a_producer(attributes=BATCH_INDEX) as (server, producer):
        answer = server.answers[ASK]
        unanswered: list[Command] = []
        server.answers[ASK] = unanswered.append
        for _ in range(3):
            command = await send_two(server, producer)

        assert command.fields["f"] == "0"
        assert len(server.requests_of(ASK)) == 1

        late = answer(unanswered[0])
        assert late is not None
        server.push(late)
        await poll_until(lambda: producer._inner_batch_support._supported["t", server.address])
        assert (await send_two(server, producer)).fields["f"] != "0"


async def test_batches_that_come_together_ask_once():
    """And all of them are kept whole."""
    async with a_producer(attributes=BATCH_INDEX) as (server, producer):
        messages = [[Message("t", b"x", key=key) for _ in range(2)] for key in "abcd"]
        await asyncio.gather(*(producer.send_many(batch) for batch in messages))

        assert [command.fields["f"] for command in server.requests_of(SEND)] == ["192"] * 4
        assert len(server.requests_of(ASK)) == 1


async def test_a_broker_that_can_gets_one_record():
    """With everything outside that it needs, once it is known."""
    async with a_producer(capabilities="other,innerBatch", attributes=BATCH_INDEX) as (server, producer):
        await get_known(server, producer)
        command = await send_two(server, producer, key="k", tags="red")

        assert (int(command.fields["f"]), command.fields["m"]) == (INNER_BATCH, "true")
        properties = parse_properties(command.fields["i"])
        batch_id = properties.pop("UNIQ_KEY")
        assert properties == {"INNER_NUM": "2", "INNER_IDS": "next", "KEYS": "k", "TAGS": "red"}
        items = unwrap_items(command.body, INNER_BATCH, command.fields["i"].encode())
        ids = [parse_properties(text.decode())["UNIQ_KEY"] for _, _, text in items]
        assert [int(each, 16) - int(batch_id, 16) for each in ids] == [1, 2]
        assert [bytes(body[:1]) for _, body, _ in items] == [b"0", b"1"]
        assert len(server.requests_of(ASK)) == 1


@pytest.mark.parametrize("codec", list(Codec))
async def test_a_whole_batch_can_be_compressed(codec: Codec):
    """All messages together; nobody but a consumer undoes it."""
    async with a_producer(attributes=BATCH_INDEX, codec=codec) as (server, producer):
        await get_known(server, producer)
        command = await send_two(server, producer)

        sys_flag = int(command.fields["f"])
        assert sys_flag == INNER_BATCH | 1 | codec << 8
        items = unwrap_items(command.body, sys_flag, command.fields["i"].encode())
        assert [bytes(body[:1]) for _, body, _ in items] == [b"0", b"1"]


async def test_keys_that_do_not_fit_outside_are_sent_inside():
    """In a batch that the broker looks into."""
    async with a_producer(attributes=BATCH_INDEX) as (server, producer):
        await get_known(server, producer)
        futures = [
            producer.send_nowait(Message("t", b"x", keys=tuple(f"{letter}{number}" * 500 for number in range(5))))
            for letter in "abcdefg"
        ]
        await asyncio.gather(*futures)

        command = server.requests_of(SEND)[-1]
        assert (command.fields["f"], len(split_items(command.body))) == ("0", 7)


async def test_a_refused_whole_batch_is_sent_again_as_every_broker_takes_it():
    """At once, without costing an attempt; and no other is sent after it."""
    async with a_producer(attributes=BATCH_INDEX) as (server, producer):
        await get_known(server, producer)

        def refuse_whole(command: Command) -> Command:
            if int(command.fields["f"]) & INNER_BATCH:
                return response(command, 13, "not here")
            return response(command, fields=STORED)

        server.answers[SEND] = refuse_whole
        await send_two(server, producer)
        await send_two(server, producer)

        assert [command.fields["f"] for command in server.requests_of(SEND)] == ["192", "192", "0", "0"]


async def test_a_busy_broker_gets_the_whole_batch_again():
    """It has nothing against the batch."""
    async with a_producer(attributes=BATCH_INDEX) as (server, producer):
        await get_known(server, producer)
        busy = [True]

        def answer(command: Command) -> Command:
            return response(command, 2, "busy") if busy and busy.pop() else response(command, fields=STORED)

        server.answers[SEND] = answer
        await send_two(server, producer)

        assert [command.fields["f"] for command in server.requests_of(SEND)] == ["192", "192", "192"]


async def test_a_broker_that_comes_back_is_asked_again():
    """It may be another one."""
    async with a_producer(attributes=BATCH_INDEX) as (server, producer):
        await get_known(server, producer)
        server.on(RequestCode.HEART_BEAT)
        server.drop_connections()
        await poll_until(lambda: not producer._client.connected_brokers())
        command = await send_two(server, producer)

        assert command.fields["f"] == "0"
        assert producer._inner_batch_support._supported == {("t", server.address): False}


async def test_a_topic_that_is_forgotten_is_asked_for_again():
    """Others stay."""
    async with a_producer(attributes=BATCH_INDEX) as (server, producer):
        await get_known(server, producer)
        producer._inner_batch_support.mark_unsupported("other", server.address)

        producer._forget(["t"])

        assert producer._inner_batch_support._supported == {("other", server.address): False}


async def test_a_topic_that_is_not_there_yet_is_asked_for_again():
    """With the next batch."""
    async with a_producer(attributes=BATCH_INDEX) as (server, producer):
        server.refuse(ASK, 17)
        await send_two(server, producer)
        await send_two(server, producer)
        assert len(server.requests_of(ASK)) == 2


async def test_each_broker_of_a_mixed_cluster_gets_what_it_takes():
    """Also when a batch goes to the other one after the first could not take it."""
    async with ScriptedServer() as new, ScriptedServer() as old:
        serve(new, attributes=BATCH_INDEX)
        serve(old, capabilities="")
        new.serve_topic("t", other_brokers={"broker-b": old.address})
        new.on(RequestCode.HEART_BEAT, capabilities="innerBatch")
        async with Producer(new.namesrv, "p", batching=Batching(linger_s=0)) as producer:
            queue = MessageQueue("t", "broker-a", 0)
            await asyncio.gather(*(producer.send_nowait(Message("t", b"x"), queue=queue) for _ in range(2)))
            new.refuse(SEND, 1)
            for _ in range(4):
                await asyncio.gather(*(producer.send_nowait(Message("t", b"y")) for _ in range(2)))

            assert {command.fields["f"] for command in old.requests_of(SEND)} == {"0"}
            assert "192" in {command.fields["f"] for command in new.requests_of(SEND)[1:]}


@pytest.mark.parametrize(
    ("capabilities", "attributes", "wanted"),
    [("innerBatch", BATCH_INDEX, True), ("innerBatch", {}, False), ("", BATCH_INDEX, False)],
)
async def test_who_keeps_batches_whole_is_asked_once(capabilities: str, attributes: dict[str, str], *, wanted: bool):
    """And not for the topic if it cannot anyway."""
    async with a_producer(capabilities=capabilities, attributes=attributes) as (server, producer):
        whole = InnerBatchSupport(producer._client)

        assert [await whole.is_supported("t", server.address) for _ in range(3)] == [wanted] * 3
        assert len(server.requests_of(ASK)) == (1 if capabilities else 0)
        assert len(server.requests_of(RequestCode.HEART_BEAT)) <= 2  # one of them with the connection


async def test_a_broker_that_does_not_answer_gets_what_everybody_takes_and_is_asked_again():
    """It may answer the next time."""
    async with a_producer(attributes=BATCH_INDEX) as (server, producer):
        whole = InnerBatchSupport(producer._client)
        answer = server.answers[ASK]
        server.answers[ASK] = lambda command: response(command, 2, "busy")
        assert not await whole.is_supported("t", server.address)
        whole.forget_broker(server.address)
        server.answers[ASK] = answer
        assert await whole.is_supported("t", server.address)


class SlowClient:
    """A way to a broker that keeps batches whole, and whose answer is on its way for as long as a test wants."""

    def __init__(self) -> None:
        self.answers: list[asyncio.Future[Command]] = []

    def capabilities_of(self, address: str) -> frozenset[str]:
        return frozenset({"innerBatch"})

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        return asyncio.get_running_loop().create_task(work)

    async def invoke(self, address: str, command: Command) -> Command:
        self.answers.append(asyncio.get_running_loop().create_future())
        return await self.answers[-1]


async def test_an_answer_of_a_broker_that_has_gone_is_not_believed_of_the_next_one() -> None:
    """A Java broker at the same address would store the batch as a message that no client can read."""
    client = SlowClient()
    whole = InnerBatchSupport(cast("ClusterClient", client))
    config = java_json.encode(TopicConfig(name="t", attributes=BATCH_INDEX))
    first = asyncio.create_task(whole.is_supported("t", "b:1"))
    await poll_until(lambda: len(client.answers) == 1)

    whole.forget_broker("b:1")
    client.answers[0].set_result(Command(code=0, body=config))

    assert await first is False
    second = asyncio.create_task(whole.is_supported("t", "b:1"))
    await poll_until(lambda: len(client.answers) == 2)
    client.answers[1].set_result(Command(code=0, body=config))
    assert await second is True


@pytest.mark.parametrize(("version", "says_id"), [(407, False), (513, True)])
async def test_a_batch_has_an_id_of_its_own_only_where_its_messages_keep_theirs(version: int, *, says_id: bool) -> None:
    """A broker of 4.x appends the properties of a batch to those of each message, and the last of a name counts."""
    async with a_producer() as (server, producer):

        def beat(command: Command) -> Command:
            answer = response(command)
            answer.version = version
            return answer

        server.answers[RequestCode.HEART_BEAT] = beat

        request = await send_two(server, producer)

        assert ("UNIQ_KEY" in parse_properties(request.fields["i"])) == says_id
        items = [parse_properties(properties.decode()) for _, _, properties in split_items(request.body)]
        assert len({item["UNIQ_KEY"] for item in items}) == 2
