"""What a consumer group asks brokers about queues."""

from datetime import UTC, datetime

import pytest
from tests.support.queue_calls import queue_calls
from tests.support.scripted_server import ScriptedServer

from holdfast.client.cluster.cluster_client import ClientCallbacks, ClusterClient
from holdfast.client.cluster.queue_rpc import QueueRpc, Start, start_code
from holdfast.model.errors import BrokerRefused, ConnectionLost, RemoteProtocolError, RouteNotFound
from holdfast.model.queue import MessageQueue
from holdfast.wire.cluster.route import decode_route
from holdfast.wire.frames.codes import RequestCode
from holdfast.wire.frames.command import Command, response
from holdfast.wire.requests.heartbeat import ConsumeFromWhere

QUEUE = MessageQueue("t", "broker-a", 0)
RETRY = MessageQueue("%RETRY%g", "broker-a", 0)
WHEN = datetime(2026, 11, 15, tzinfo=UTC)


async def test_a_committed_offset_is_asked_for_by_group_and_queue():
    """Never committed is None, not an error."""
    async with queue_calls() as (server, calls):
        server.on(RequestCode.QUERY_CONSUMER_OFFSET, offset="12")
        assert await calls.committed(QUEUE) == 12
        (asked,) = server.requests_of(RequestCode.QUERY_CONSUMER_OFFSET)
        assert asked.fields == {"consumerGroup": "g", "topic": "t", "queueId": "0", "bname": "broker-a"}

        server.refuse(RequestCode.QUERY_CONSUMER_OFFSET, 22)
        assert await calls.committed(QUEUE) is None
        server.on(RequestCode.QUERY_CONSUMER_OFFSET, offset="-1")
        assert await calls.committed(QUEUE) is None


async def test_a_refused_question_is_no_answer():
    """Taking it for "never committed" would skip or repeat messages."""
    async with queue_calls() as (server, calls):
        server.refuse(RequestCode.QUERY_CONSUMER_OFFSET, 1)
        with pytest.raises(BrokerRefused):
            await calls.committed(QUEUE)
        server.on(RequestCode.QUERY_CONSUMER_OFFSET)
        with pytest.raises(RemoteProtocolError):
            await calls.committed(QUEUE)


async def test_a_group_begins_where_it_was_told_to():
    """With what is to be retried, at the beginning."""
    async with queue_calls() as (server, calls):
        server.on(RequestCode.GET_MIN_OFFSET, offset="3")
        server.on(RequestCode.GET_MAX_OFFSET, offset="9")
        server.on(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, offset="5")
        assert await calls.first_offset(QUEUE, "earliest") == 3
        assert await calls.first_offset(QUEUE, "latest") == 9
        assert await calls.first_offset(QUEUE, WHEN) == 5
        (search,) = server.requests_of(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP)
        assert search.fields["timestamp"] == str(int(WHEN.timestamp() * 1000))
        assert await calls.first_offset(RETRY, "latest") == 0


@pytest.mark.parametrize("start", ["earliest", "latest", WHEN])
async def test_a_queue_that_a_broker_does_not_have_begins_at_0(start: Start):
    """Some brokers answer -1, which is no offset."""
    async with queue_calls() as (server, calls):
        for code in (
            RequestCode.GET_MIN_OFFSET,
            RequestCode.GET_MAX_OFFSET,
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
        ):
            server.on(code, offset="-1")

        assert await calls.first_offset(QUEUE, start) == 0


async def test_a_commit_is_confirmed():
    """Or it raises."""
    async with queue_calls() as (server, calls):
        server.on(RequestCode.UPDATE_CONSUMER_OFFSET)
        await calls.commit(QUEUE, 7)
        (told,) = server.requests_of(RequestCode.UPDATE_CONSUMER_OFFSET)
        assert (told.fields["commitOffset"], told.is_one_way) == ("7", False)

        server.refuse(RequestCode.UPDATE_CONSUMER_OFFSET, 26)
        with pytest.raises(BrokerRefused):
            await calls.commit(QUEUE, 8)


async def test_members_are_those_that_any_broker_of_the_topic_knows():
    """By their client ids. One that was restarted knows nobody yet; one that is away is not asked in vain."""
    members = RequestCode.GET_CONSUMER_LIST_BY_GROUP

    async with ScriptedServer() as one, ScriptedServer() as two, ClusterClient(one.namesrv) as client:
        calls = QueueRpc(client, "g")
        one.serve_topic("t", other_brokers={"broker-b": two.address})
        one.on(members, body=b'{"consumerIdList":["a","b"]}')
        two.on(members, body=b'{"consumerIdList":["b","c"]}')
        assert await calls.members("t") == {"a", "b", "c"}

        two.refuse(members, 1, "no consumer for this group")
        assert await calls.members("t") == {"a", "b"}
        await two.stop()
        assert await calls.members("t") == {"a", "b"}
        with pytest.raises(RouteNotFound):
            await calls.members("unknown")
        await two.listen(0)


async def test_members_are_unknown_when_no_broker_answers():
    """That is not the same as an empty group."""
    async with ScriptedServer() as server, ClusterClient("127.0.0.1:1") as client:
        route = decode_route(serve_and_ask(server))
        client.routes.put("t", route, 0)
        await server.stop()
        with pytest.raises(ConnectionLost):
            await QueueRpc(client, "g").members("t")
        await server.listen(0)


def serve_and_ask(server: ScriptedServer) -> bytes:
    """Return the body of the route of `t`."""
    server.serve_topic("t")
    answer = server.answers[RequestCode.GET_ROUTEINFO_BY_TOPIC](
        Command(code=RequestCode.GET_ROUTEINFO_BY_TOPIC, fields={"topic": "t"})
    )
    assert answer is not None
    return answer.body


@pytest.mark.parametrize("code", [24, 25, 26])
async def test_a_broker_that_does_not_know_us_is_told_and_asked_again(code: int):
    """It may have been restarted. If that does not help, it does not help."""
    async with ScriptedServer() as server:
        heartbeat = Command(code=RequestCode.HEART_BEAT)
        async with ClusterClient(server.namesrv, ClientCallbacks(heartbeat=lambda: heartbeat)) as client:
            calls = QueueRpc(client, "g")
            server.serve_topic("t")
            await client.route("t")
            server.refuse(RequestCode.UPDATE_CONSUMER_OFFSET, code)

            def know(command: Command) -> Command:
                server.on(RequestCode.UPDATE_CONSUMER_OFFSET)
                return response(command)

            with pytest.raises(BrokerRefused):
                await calls.commit(QUEUE, 6)
            server.answers[RequestCode.HEART_BEAT] = know
            await calls.commit(QUEUE, 7)

            told = server.requests_of(RequestCode.UPDATE_CONSUMER_OFFSET)
            assert [command.fields["commitOffset"] for command in told] == ["6", "6", "7", "7"]


async def test_a_broker_nobody_knows_cannot_be_asked():
    """The route may come back."""
    async with queue_calls() as (server, calls):
        with pytest.raises(RouteNotFound, match="broker-x"):
            calls.address(MessageQueue("t", "broker-x", 0))
        assert calls.address(MessageQueue("unknown", "broker-a", 0)) == server.address


def test_a_start_has_a_name_on_the_wire():
    """For those who look at the group."""
    assert start_code("earliest") == ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
    assert start_code("latest") == ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
    assert start_code(WHEN) == ConsumeFromWhere.CONSUME_FROM_TIMESTAMP
