"""Answering what operators ask of a consumer."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from tests.support.deliveries import pull_more
from tests.support.scripted_server import ScriptedServer
from tests.unit.client.messages.test_unpacking import a_record

from holdfast.client.cluster.server_request import decode_request
from holdfast.client.consume.consumer_requests import ConsumerRequests
from holdfast.client.consume.group_member import GroupMember, MemberCallbacks
from holdfast.client.consume.listener import ListenerCall, RetryLater
from holdfast.client.consume.lock_renewal import LockRenewal
from holdfast.client.consume.offset_store import OffsetStore
from holdfast.client.consume.queue_reader import QueueReader, ReaderContext
from holdfast.client.options import ClientOptions
from holdfast.model.message import ReceivedMessage
from holdfast.model.queue import MessageQueue
from holdfast.wire.frames import java_json
from holdfast.wire.frames.codes import RequestCode
from holdfast.wire.frames.command import Command
from holdfast.wire.records.batch import encode_items

QUEUE = MessageQueue("t", "broker-a", 0)


class Office:
    """A consumer with one queue, and its desk."""

    def __init__(self, server: ScriptedServer, listener: Callable[[ReceivedMessage], Awaitable[None]] | None) -> None:
        self.member = GroupMember(
            ClientOptions(server.namesrv),
            "g",
            MemberCallbacks(assigned=list, change=self.never),
            is_push=True,
            start="latest",
        )
        plan = ReaderContext(
            rpc=self.member.rpc,
            subscription=self.member.subscription,
            limits=NotImplemented,
            deliver=NotImplemented,
            offset_moved=NotImplemented,
        )
        self.reader = QueueReader(plan, QUEUE, 10)
        self.keeper = OffsetStore(self.member.rpc, "latest")
        call = None if listener is None else ListenerCall(listener, 1)
        readers = {QUEUE: self.reader}
        locks = LockRenewal(self.member.rpc, readers, NotImplemented)
        self.requests = ConsumerRequests(self.member, readers, self.keeper, call, locks, is_ordered=True)

    async def never(self, change: object) -> bool:
        """Change nothing."""
        return True

    async def consume(self, record: bytes) -> Command:
        """Return the answer to a request to consume one message."""
        return await self.ask(RequestCode.CONSUME_MESSAGE_DIRECTLY, record, consumerGroup="g", brokerName="broker-a")

    async def ask(self, code: int, body: bytes = b"", **fields: str) -> Command:
        """Return what the desk answers."""
        request = decode_request("address", Command(code=code, opaque=5, fields=fields, body=body))
        assert request is not None
        answer = await self.requests.answer(request)
        assert answer.opaque == 5
        return answer


@asynccontextmanager
async def an_office(
    listener: Callable[[ReceivedMessage], Awaitable[None]] | None = None,
) -> AsyncIterator[tuple[ScriptedServer, Office]]:
    async with ScriptedServer() as server:
        server.serve_topic("t")
        server.on(RequestCode.UPDATE_CONSUMER_OFFSET)
        office = Office(server, listener)
        async with office.member.client as client:
            await client.route("t")
            yield server, office


async def test_an_operator_can_reset_offsets():
    """The window begins there, and the broker is told."""
    async with an_office() as (server, office):
        pull_more(office.reader, 5)
        body = b'{"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"t"}:2}}'

        answer = await office.ask(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, body, group="g", topic="t")

        assert answer.code == 0
        assert (office.reader.window.next_offset, office.reader.window.commit_offset) == (2, 2)
        (told,) = server.requests_of(RequestCode.UPDATE_CONSUMER_OFFSET)
        assert told.fields["commitOffset"] == "2"


async def test_a_reset_of_another_group_or_queue_changes_nothing():
    """It was sent to the wrong one."""
    async with an_office() as (_server, office):
        body = b'{"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"t"}:2}}'

        assert (await office.ask(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, body, group="x", topic="t")).code == 1
        assert (await office.ask(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, body, group="g", topic="u")).code == 0
        assert office.reader.window.next_offset == 10


async def test_an_operator_can_ask_how_far_it_is():
    """In the queues of one topic."""
    async with an_office() as (_server, office):
        for fields, count in (({"topic": "t", "group": "g"}, 1), ({"topic": "u", "group": "g"}, 0)):
            answer = await office.ask(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, **fields)
            offsets = java_json.loads(answer.body)["messageQueueTable"]
            assert list(offsets.values()) == [10] * count


async def test_an_operator_can_ask_how_it_is():
    """Subscriptions, queues, settings."""
    async with an_office() as (_server, office):
        office.member.subscribe("t", "a")
        pull_more(office.reader, 5)

        info = java_json.loads((await office.ask(RequestCode.GET_CONSUMER_RUNNING_INFO, consumerGroup="g")).body)

        (status,) = info["mqTable"].values()
        assert (status["commitOffset"], status["cachedMsgCount"], status["cachedMsgMaxOffset"]) == (10, 5, 14)
        assert [item["subString"] for item in info["subscriptionSet"]] == ["a"]
        assert info["properties"]["PROP_CONSUMEORDERLY"] == "true"


async def test_an_operator_can_have_a_message_consumed():
    """And sees what the listener raised."""
    got: list[ReceivedMessage] = []

    async def listen(message: ReceivedMessage) -> None:
        got.append(message)
        if message.body == b"bad":
            raise ValueError("cannot")
        if message.body == b"later":
            raise RetryLater(3)

    async with an_office(listen) as (_server, office):
        good = await office.consume(a_record(topic="t"))
        bad = await office.consume(a_record(body=b"bad"))

        later = await office.consume(a_record(body=b"later"))
        assert json.loads(good.body)["consumeResult"] == "CR_SUCCESS"
        assert json.loads(bad.body)["consumeResult"] == "CR_THROW_EXCEPTION"
        assert json.loads(later.body)["consumeResult"] == "CR_LATER"
        assert "ValueError: cannot" in json.loads(bad.body)["remark"]
        assert got[0].queue == MessageQueue("t", "broker-a", 3)


async def test_a_batch_cannot_be_consumed_directly():
    """Java's broker would send it whole, not knowing which of its messages is meant."""
    items = encode_items([(0, b"one", b""), (0, b"two", b"")])
    record = a_record(body=items, sys_flag=0xC0, properties=b"INNER_NUM\x012\x02")

    async def listen(_: ReceivedMessage) -> None:
        raise AssertionError("nothing is to be consumed")

    async with an_office(listen) as (_server, office):
        answer = await office.consume(record)
        assert (answer.code, answer.remark) == (1, "one message is wanted, not 2")


async def test_without_a_listener_a_message_cannot_be_consumed_directly():
    """The answer says so."""
    async with an_office() as (_server, office):
        answer = await office.consume(a_record())
        assert (answer.code, answer.remark) == (1, "this consumer has no listener")
