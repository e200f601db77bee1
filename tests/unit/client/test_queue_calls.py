"""What a consumer group asks brokers about queues."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

import pytest
from tests.support.deliveries import a_received_message
from tests.support.scripted_server import ScriptedServer

from holdfast.client.cluster_client import ClusterClient
from holdfast.client.queue_calls import QueueCalls, start_code
from holdfast.model.errors import BrokerRefused, RemoteProtocolError, RouteNotFound
from holdfast.model.queue import MessageQueue
from holdfast.wire.codes import RequestCode
from holdfast.wire.command import Command, response
from holdfast.wire.heartbeat import ConsumeFromWhere

QUEUE = MessageQueue("t", "broker-a", 0)
RETRY = MessageQueue("%RETRY%g", "broker-a", 0)
WHEN = datetime(2026, 11, 15, tzinfo=UTC)


def with_calls(story: Callable[[ScriptedServer, QueueCalls], Awaitable[None]]) -> None:
    async def run() -> None:
        async with ScriptedServer() as server, ClusterClient(server.address) as client:
            server.serve_topic("t", queues=2)
            await client.route("t")
            await story(server, QueueCalls(client, "g"))

    asyncio.run(run())


def test_a_committed_offset_is_asked_for_by_group_and_queue():
    """Never committed is None, not an error."""

    async def story(server: ScriptedServer, calls: QueueCalls) -> None:
        server.on(RequestCode.QUERY_CONSUMER_OFFSET, offset="12")
        assert await calls.committed(QUEUE) == 12
        (asked,) = server.heard_of(RequestCode.QUERY_CONSUMER_OFFSET)
        assert asked.fields == {"consumerGroup": "g", "topic": "t", "queueId": "0", "bname": "broker-a"}

        server.refuse(RequestCode.QUERY_CONSUMER_OFFSET, 22)
        assert await calls.committed(QUEUE) is None
        server.on(RequestCode.QUERY_CONSUMER_OFFSET, offset="-1")
        assert await calls.committed(QUEUE) is None

    with_calls(story)


def test_a_refused_question_is_no_answer():
    """Taking it for "never committed" would skip or repeat messages."""

    async def story(server: ScriptedServer, calls: QueueCalls) -> None:
        server.refuse(RequestCode.QUERY_CONSUMER_OFFSET, 1)
        with pytest.raises(BrokerRefused):
            await calls.first_offset(QUEUE, "latest")
        server.on(RequestCode.QUERY_CONSUMER_OFFSET)
        with pytest.raises(RemoteProtocolError):
            await calls.committed(QUEUE)

    with_calls(story)


def test_a_group_goes_on_where_it_was():
    """Else it begins where it was told to; with what is to be retried, at the beginning."""

    async def story(server: ScriptedServer, calls: QueueCalls) -> None:
        server.on(RequestCode.QUERY_CONSUMER_OFFSET, offset="12")
        assert await calls.first_offset(QUEUE, "latest") == 12

        server.refuse(RequestCode.QUERY_CONSUMER_OFFSET, 22)
        server.on(RequestCode.GET_MIN_OFFSET, offset="3")
        server.on(RequestCode.GET_MAX_OFFSET, offset="9")
        server.on(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, offset="5")
        assert await calls.first_offset(QUEUE, "earliest") == 3
        assert await calls.first_offset(QUEUE, "latest") == 9
        assert await calls.first_offset(QUEUE, WHEN) == 5
        (search,) = server.heard_of(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP)
        assert search.fields["timestamp"] == str(int(WHEN.timestamp() * 1000))
        assert await calls.first_offset(RETRY, "latest") == 0

    with_calls(story)


def test_a_commit_is_confirmed():
    """Or it raises."""

    async def story(server: ScriptedServer, calls: QueueCalls) -> None:
        server.on(RequestCode.UPDATE_CONSUMER_OFFSET)
        await calls.commit(QUEUE, 7)
        (told,) = server.heard_of(RequestCode.UPDATE_CONSUMER_OFFSET)
        assert (told.fields["commitOffset"], told.is_one_way) == ("7", False)

        server.refuse(RequestCode.UPDATE_CONSUMER_OFFSET, 26)
        with pytest.raises(BrokerRefused):
            await calls.commit(QUEUE, 8)

    with_calls(story)


def test_members_are_those_that_a_broker_of_the_topic_knows():
    """By their client ids."""

    async def story(server: ScriptedServer, calls: QueueCalls) -> None:
        server.on(RequestCode.GET_CONSUMER_LIST_BY_GROUP, body=b'{"consumerIdList":["a","b"]}')

        assert await calls.members("t") == ["a", "b"]
        with pytest.raises(RouteNotFound):
            await calls.members("unknown")

    with_calls(story)


def test_locks_are_asked_for_together_and_granted_one_by_one():
    """In upstream's words."""

    async def story(server: ScriptedServer, calls: QueueCalls) -> None:
        other = MessageQueue("t", "broker-a", 1)

        def grant_first(command: Command) -> Command:
            asked = json.loads(command.body)
            return response(command, body=json.dumps({"lockOKMQSet": asked["mqSet"][:1]}).encode())

        server.answers[RequestCode.LOCK_BATCH_MQ] = grant_first
        server.on(RequestCode.UNLOCK_BATCH_MQ)

        assert await calls.lock([QUEUE, other]) == {QUEUE}
        await calls.unlock([QUEUE])

        (unlocked,) = server.heard_of(RequestCode.UNLOCK_BATCH_MQ)
        assert json.loads(unlocked.body)["mqSet"] == [{"topic": "t", "brokerName": "broker-a", "queueId": 0}]
        assert json.loads(unlocked.body)["consumerGroup"] == "g"

    with_calls(story)


def test_a_broker_that_does_not_answer_grants_nothing():
    """The others' locks are good all the same; unlocking is a courtesy."""

    async def story(server: ScriptedServer, calls: QueueCalls) -> None:
        server.refuse(RequestCode.LOCK_BATCH_MQ, 1)
        server.refuse(RequestCode.UNLOCK_BATCH_MQ, 1)
        unknown = MessageQueue("t", "broker-x", 0)

        assert await calls.lock([QUEUE, unknown]) == set()
        await calls.unlock([QUEUE, unknown])

        server.on(RequestCode.LOCK_BATCH_MQ, body=b'{"lockOKMQSet":[{"topic":"u","brokerName":"b","queueId":0}]}')
        assert await calls.lock([QUEUE]) == set()

    with_calls(story)


def test_a_message_is_given_back_by_its_position():
    """With how much later it shall come."""

    async def story(server: ScriptedServer, calls: QueueCalls) -> None:
        server.on(RequestCode.CONSUMER_SEND_MSG_BACK)

        await calls.send_back(a_received_message(QUEUE, 5), 3, 16)

        (back,) = server.heard_of(RequestCode.CONSUMER_SEND_MSG_BACK)
        wanted = {"offset": "1005", "group": "g", "delayLevel": "3", "originTopic": "t", "maxReconsumeTimes": "16"}
        assert wanted.items() <= back.fields.items()

    with_calls(story)


def test_a_broker_nobody_knows_cannot_be_asked():
    """The route may come back."""

    async def story(server: ScriptedServer, calls: QueueCalls) -> None:
        with pytest.raises(RouteNotFound, match="broker-x"):
            calls.address(MessageQueue("t", "broker-x", 0))
        assert calls.address(MessageQueue("unknown", "broker-a", 0)) == server.address

    with_calls(story)


def test_a_start_has_a_name_on_the_wire():
    """For those who look at the group."""
    assert start_code("earliest") == ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
    assert start_code("latest") == ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
    assert start_code(WHEN) == ConsumeFromWhere.CONSUME_FROM_TIMESTAMP
