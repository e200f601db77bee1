"""Being a member of a consumer group."""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable

import pytest
from tests.support.scripted_server import ScriptedServer

from holdfast.client.cluster.cluster_client import ignore_broker
from holdfast.client.consume import group_member
from holdfast.client.consume.group_member import GroupMember, MemberCallbacks
from holdfast.client.consume.rebalance import AssignmentChange
from holdfast.client.options import ClientOptions
from holdfast.model.errors import LocalProtocolError
from holdfast.model.queue import MessageQueue
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.frames.command import Command, response

MEMBERS = RequestCode.GET_CONSUMER_LIST_BY_GROUP


class Consumer:
    """Has queues, and changes as it is told."""

    def __init__(
        self,
        server: ScriptedServer,
        *,
        is_push: bool = True,
        is_broadcast: bool = False,
        broker_up: Callable[[str], Awaitable[None]] = ignore_broker,
    ) -> None:
        self.queues: set[MessageQueue] = set()
        self.changed = asyncio.Event()
        self.settles = True
        self.refusals = 0
        self.member = GroupMember(
            ClientOptions(server.namesrv),
            "g",
            MemberCallbacks(assigned=lambda: self.queues, change=self.change, broker_up=broker_up),
            is_push=is_push,
            start="latest",
            is_broadcast=is_broadcast,
        )

    async def change(self, change: AssignmentChange) -> bool:
        """Do as told, after so many refusals."""
        if self.refusals:
            self.refusals -= 1
            return False
        self.queues = self.queues - set(change.lost) | set(change.gained)
        self.changed.set()
        return self.settles

    async def until(self, count: int) -> list[int]:
        """Return our queues of the topic once there are *count*."""
        while len(self.numbers()) != count:
            self.changed.clear()
            await self.changed.wait()
        return self.numbers()

    def numbers(self) -> list[int]:
        """Return our queues of the topic."""
        return sorted(queue.queue_id for queue in self.queues if queue.topic == "t")


def tell_members(server: ScriptedServer, consumer: Consumer, *others: str) -> None:
    """Let the broker know of our member and of *others*."""

    def answer(command: Command) -> Command:
        members = [consumer.member.client.client_id, *others]
        return response(command, body=json.dumps({"consumerIdList": members}).encode())

    server.answers[MEMBERS] = answer


async def close(consumer: Consumer) -> None:
    await consumer.member.stop()
    await consumer.member.close()


async def test_the_only_member_gets_everything():
    """The brokers have heard of it before it asks."""
    async with ScriptedServer() as server:
        server.serve_topic("t", queues=4)
        consumer = Consumer(server)
        tell_members(server, consumer)
        consumer.member.subscribe("t", "a || b")
        await consumer.member.start()

        assert await consumer.until(4) == [0, 1, 2, 3]
        codes = [command.code for command in server.requests]
        assert codes.index(RequestCode.HEART_BEAT) < codes.index(MEMBERS)
        beat = json.loads(server.requests_of(RequestCode.HEART_BEAT)[0].body)
        (group,) = beat["consumerDataSet"]
        assert {item["topic"] for item in group["subscriptionDataSet"]} == {"t", "%RETRY%g"}
        await close(consumer)
        (goodbye,) = server.requests_of(RequestCode.UNREGISTER_CLIENT)
        assert goodbye.fields["consumerGroup"] == "g"


async def test_members_share_and_share_anew_when_told():
    """A broker says that the group changed (40)."""
    async with ScriptedServer() as server:
        server.serve_topic("t", queues=4)
        consumer = Consumer(server)
        tell_members(server, consumer)
        consumer.member.subscribe("t")
        await consumer.member.start()
        await consumer.until(4)

        tell_members(server, consumer, "zzz")
        server.push(Command(code=RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, flag=2, fields={"consumerGroup": "g"}))
        assert await consumer.until(2) == [0, 1]
        await close(consumer)


async def test_a_member_that_the_broker_does_not_know_keeps_what_it_has():
    """And says again who it is: a broker may have been restarted."""
    async with ScriptedServer() as server:
        server.serve_topic("t", queues=2)
        consumer = Consumer(server)
        tell_members(server, consumer)
        consumer.member.subscribe("t")
        await consumer.member.start()
        await consumer.until(2)
        beats = len(server.requests_of(RequestCode.HEART_BEAT))

        for body in (b'{"consumerIdList":["zzz"]}', None):
            if body is None:
                server.refuse(MEMBERS, 1, "no consumer for this group")
            else:
                server.on(MEMBERS, body=body)
            assert not await consumer.member.rebalance()

        assert consumer.numbers() == [0, 1]
        assert len(server.requests_of(RequestCode.HEART_BEAT)) > beats
        await close(consumer)


async def test_a_topic_that_appears_later_is_found(monkeypatch: pytest.MonkeyPatch):
    """It is looked for until it is there."""
    monkeypatch.setattr(group_member, "_RETRY_PAUSE_S", 0.001)

    async with ScriptedServer() as server:
        server.serve_topic("other")
        consumer = Consumer(server, is_broadcast=True)
        consumer.member.subscribe("t")
        await consumer.member.start()
        await server.wait_for_requests(RequestCode.GET_ROUTEINFO_BY_TOPIC, 3)
        assert consumer.numbers() == []

        server.serve_topic("t", queues=2)
        assert await consumer.until(2) == [0, 1]
        await close(consumer)


async def test_a_broadcasting_member_gets_everything_and_asks_nobody():
    """It has no retry topic either."""
    async with ScriptedServer() as server:
        server.serve_topic("t", queues=3)
        consumer = Consumer(server, is_broadcast=True)
        consumer.member.subscribe("t")
        await consumer.member.start()

        assert await consumer.until(3) == [0, 1, 2]
        assert server.requests_of(MEMBERS) == []
        assert set(consumer.member.subscriptions) == {"t"}
        await close(consumer)


async def test_subscriptions_may_change_while_it_runs():
    """Brokers are told, queues come and go."""
    async with ScriptedServer() as server:
        server.serve_topic("t", queues=2)
        consumer = Consumer(server, is_push=False)
        tell_members(server, consumer)
        await consumer.member.start()

        consumer.member.subscribe("t")
        assert await consumer.until(2) == [0, 1]
        consumer.member.unsubscribe("t")
        assert await consumer.until(0) == []
        assert consumer.member.subscription("t").sub_string == "*"
        await close(consumer)


async def test_what_could_not_be_taken_over_is_tried_again(monkeypatch: pytest.MonkeyPatch):
    """Soon, not in twenty seconds."""
    monkeypatch.setattr(group_member, "_RETRY_PAUSE_S", 0.001)

    async with ScriptedServer() as server:
        server.serve_topic("t", queues=2)
        consumer = Consumer(server)
        tell_members(server, consumer)
        consumer.member.subscribe("t")

        consumer.refusals = 1
        await consumer.member.start()

        assert await consumer.until(2) == [0, 1]
        assert consumer.refusals == 0
        await close(consumer)


async def test_names_that_cannot_exist_are_refused():
    """Groups and topics."""
    async with ScriptedServer() as server:
        consumer = Consumer(server)
        with pytest.raises(LocalProtocolError, match="a b"):
            consumer.member.subscribe("a b")
        with pytest.raises(LocalProtocolError, match="consumer group"):
            GroupMember(
                ClientOptions(server.address),
                "",
                MemberCallbacks(assigned=list, change=consumer.change),
                is_push=True,
                start="latest",
            )


async def test_those_who_have_not_come_back_yet_are_members_for_a_while(monkeypatch: pytest.MonkeyPatch):
    """A broker that was restarted knows at first only who found it first."""
    monkeypatch.setattr(group_member, "_RECONNECT_WINDOW_S", 0.3)

    async with ScriptedServer() as server, asyncio.timeout(30):
        server.serve_topic("t", queues=4)
        recovered: asyncio.Queue[str] = asyncio.Queue()
        consumer = Consumer(server, broker_up=recovered.put)
        tell_members(server, consumer, "zzz")
        consumer.member.subscribe("t")
        await consumer.member.start()
        assert await consumer.until(2) == [0, 1]
        assert await recovered.get() == server.address

        tell_members(server, consumer)
        server.drop_connections()
        assert await recovered.get() == server.address
        await consumer.member.rebalance()
        assert consumer.numbers() == [0, 1]

        assert await consumer.until(4) == [0, 1, 2, 3]  # the other one is gone indeed
        await close(consumer)


async def test_a_topic_that_does_not_exist_is_logged_once(caplog: pytest.LogCaptureFixture):
    """Nothing is consumed of one whose name is mistyped, and nothing else would say why. When it is created, too."""
    with caplog.at_level(logging.INFO, "holdfast.client"):
        async with ScriptedServer() as server:
            server.on(RequestCode.HEART_BEAT)
            server.refuse(RequestCode.GET_ROUTEINFO_BY_TOPIC, ResponseCode.TOPIC_NOT_EXIST)
            consumer = Consumer(server)
            consumer.member.subscribe("t")
            await consumer.member.start()
            for _ in range(3):
                assert not await consumer.member.rebalance()
            (warning,) = [record for record in caplog.records if record.levelno == logging.WARNING]
            assert "group g subscribes to the topic t, which does not exist" in warning.getMessage()
            assert "holdfast topic create" in warning.getMessage()

            tell_members(server, consumer)
            server.serve_topic("t")
            await consumer.until(1)
            assert "the topic t exists now" in caplog.text
            await close(consumer)
