"""Consuming at your own pace. What a real cluster makes of it is shown by tests/integration/test_client.py."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from tests.support.deliveries import poll_until
from tests.support.scripted_group import ScriptedGroup
from tests.support.scripted_server import ScriptedServer

from holdfast.client import pull_consumer
from holdfast.client.pull_consumer import PullConsumer
from holdfast.client.push_consumer import PushConsumer
from holdfast.model.errors import ForkedClient, HoldfastError, LocalProtocolError
from holdfast.model.queue import MessageQueue
from holdfast.wire.frames.codes import RequestCode

ZERO, ONE = MessageQueue("t", "broker-a", 0), MessageQueue("t", "broker-a", 1)


@asynccontextmanager
async def a_server() -> AsyncIterator[ScriptedServer]:
    async with ScriptedServer() as server, asyncio.timeout(30):
        yield server


async def test_a_poll_takes_from_every_queue_in_turn():
    """No queue starves."""
    async with a_server() as server:
        ScriptedGroup(server, queues=2, end=30)
        async with PullConsumer(server.namesrv, "g", start="earliest") as consumer:
            await consumer.assign(await consumer.queues("t"))
            await poll_until(lambda: all(len(buffer) == 30 for buffer in consumer._buffers.values()))

            first = await consumer.poll(messages_max=10)
            second = await consumer.poll(messages_max=10)

            assert {message.queue.queue_id for message in first} != {message.queue.queue_id for message in second}
            assert [message.offset for message in first] == list(range(10))


async def test_the_position_moves_with_what_is_returned():
    """Not with what is pulled ahead; what the next poll makes done is what is committed."""
    async with a_server() as server:
        group = ScriptedGroup(server, end=30)
        async with PullConsumer(server.namesrv, "g", start="earliest", auto_commit=False) as consumer:
            await consumer.assign([ZERO])
            assert consumer.position(ZERO) == 0
            await consumer.poll(5, messages_max=4)
            assert consumer.position(ZERO) == 4
            assert await consumer.committed(ZERO) is None

            await consumer.commit()
            assert await consumer.committed(ZERO) == 4
            await consumer.commit({ZERO: 2})
            assert await consumer.committed(ZERO) == 2
        assert group.committed == {0: 2}


async def test_earlier_polls_are_committed_by_themselves(monkeypatch: pytest.MonkeyPatch):
    """The last one only when the next comes, or when the consumer is closed."""
    monkeypatch.setattr(pull_consumer, "COMMIT_INTERVAL_S", 0.001)

    async with a_server() as server:
        group = ScriptedGroup(server, end=30)
        async with PullConsumer(server.namesrv, "g", start="earliest") as consumer:
            await consumer.assign([ZERO])
            await consumer.poll(5, messages_max=4)
            await consumer.poll(5, messages_max=4)
            await poll_until(lambda: group.committed == {0: 4})
        assert group.committed == {0: 8}


async def test_seeking_forgets_what_was_pulled_ahead():
    """In one queue, or in all."""
    async with a_server() as server:
        ScriptedGroup(server, queues=2, end=30)
        async with PullConsumer(server.namesrv, "g", start="earliest") as consumer:
            await consumer.assign([ZERO, ONE])
            await consumer.poll(5, messages_max=5)

            await consumer.seek(ZERO, 28)
            assert consumer.position(ZERO) == 28
            await consumer.seek_all("latest")
            assert (consumer.position(ZERO), consumer.position(ONE)) == (30, 30)
            assert await consumer.poll(0) == []
            assert await consumer.offset_of(ZERO, "earliest") == 0


@pytest.mark.parametrize("everywhere", [True, False])
async def test_a_queue_may_be_dropped_while_a_seek_looks_up_its_offset(*, everywhere: bool):
    """Seeking in this queue fails with a reason; seeking in all queues continues with the others."""
    async with a_server() as server:
        ScriptedGroup(server, queues=2, end=30)
        async with PullConsumer(server.namesrv, "g", start="earliest") as consumer:
            await consumer.assign([ZERO, ONE])
            answer = server.answers[RequestCode.GET_MAX_OFFSET]
            server.answers[RequestCode.GET_MAX_OFFSET] = lambda _: None
            seeking = asyncio.ensure_future(
                consumer.seek_all("latest") if everywhere else consumer.seek(ZERO, "latest")
            )
            (asked,) = await server.wait_for_requests(RequestCode.GET_MAX_OFFSET)
            await consumer.assign([ONE])
            server.answers[RequestCode.GET_MAX_OFFSET] = answer
            found = answer(asked)
            assert found is not None
            server.push(found)

            if everywhere:
                await seeking
                assert consumer.position(ONE) == 30
            else:
                with pytest.raises(LocalProtocolError, match="not read by this consumer"):
                    await seeking


async def test_offsets_are_known_of_queues_that_another_client_found():
    """Nothing was assigned or looked up here: the route is found when it is needed."""
    async with a_server() as server:
        ScriptedGroup(server, end=30)
        async with PullConsumer(server.namesrv, "g") as consumer:
            assert await consumer.offset_of(ZERO, "latest") == 30
        async with PullConsumer(server.namesrv, "g") as consumer:
            await consumer.commit({ZERO: 7})
        async with PullConsumer(server.namesrv, "g") as consumer:
            assert await consumer.committed(ZERO) == 7


async def test_assigning_anew_drops_the_others():
    """Those that stay go on where they are."""
    async with a_server() as server:
        ScriptedGroup(server, queues=2, end=30)
        async with PullConsumer(server.namesrv, "g", start="earliest") as consumer:
            await consumer.assign([ZERO])
            await consumer.poll(5, messages_max=5)

            await consumer.assign([ZERO, ONE])
            assert consumer.position(ZERO) == 5
            await consumer.assign([ONE])
            assert consumer.assignment == [ONE]
            with pytest.raises(LocalProtocolError, match="assign it"):
                consumer.position(ZERO)


async def test_a_poll_waits_for_a_message():
    """Or until its time is over; a closed consumer waits no more."""
    async with a_server() as server:
        group = ScriptedGroup(server, end=0)
        async with PullConsumer(server.namesrv, "g", start="earliest") as consumer:
            await consumer.assign([ZERO])
            assert await consumer.poll(0.01) == []
            waiting = asyncio.create_task(consumer.poll(20))
            group.end[0] = 1
            await consumer.seek(ZERO, 0)  # the parked pull of the script wakes for nobody
            assert [message.body for message in await waiting] == [b"0/0"]

            waiting = asyncio.create_task(consumer.poll(20))
            await asyncio.sleep(0)
            await consumer.close()
            assert await waiting == []


async def test_a_paused_queue_returns_nothing():
    """Not even what was pulled ahead."""
    async with a_server() as server:
        ScriptedGroup(server, end=5)
        async with PullConsumer(server.namesrv, "g", start="earliest") as consumer:
            await consumer.assign([ZERO])
            await poll_until(lambda: len(consumer._buffers[ZERO]) == 5)
            consumer.pause(ZERO)
            assert await consumer.poll(0) == []
            consumer.resume(ZERO)
            assert len(await consumer.poll(0)) == 5


async def test_a_subscription_shares_the_queues_with_the_group():
    """And says in every pull what it wants: tools may come and go without a heartbeat."""
    async with a_server() as server:
        group = ScriptedGroup(server, queues=2, end=3)
        group.other_members = ["zzz"]
        consumer = PullConsumer(server.namesrv, "g", start="earliest")
        consumer.subscribe("t", "a || b")
        async with consumer:
            await poll_until(lambda: consumer.assignment == [ZERO])
            (pull, *_) = await server.wait_for_requests(RequestCode.PULL_MESSAGE)
            assert (pull.fields["subscription"], pull.fields["sysFlag"]) == ("a || b", "6")
            consumer.unsubscribe("t")
            await poll_until(lambda: consumer.assignment == [])


async def test_a_loop_goes_on_until_the_consumer_is_closed():
    """Message by message."""
    async with a_server() as server:
        ScriptedGroup(server, end=3)
        async with PullConsumer(server.namesrv, "g", start="earliest") as consumer:
            await consumer.assign([ZERO])
            positions = []
            async for message in consumer:
                positions.append((message.offset, consumer.position(ZERO)))
                if message.offset == 2:
                    await consumer.close()
            assert positions == [(0, 1), (1, 2), (2, 3)]


@pytest.mark.parametrize("auto_commit", [True, False])
async def test_a_restarted_broker_costs_neither_positions_nor_commits(
    monkeypatch: pytest.MonkeyPatch, *, auto_commit: bool
):
    """It is told again what was committed, by the consumer or by its user, and no more than that."""
    monkeypatch.setattr(pull_consumer, "COMMIT_INTERVAL_S", 3600)

    async with a_server() as server:
        group = ScriptedGroup(server, end=30)
        async with PullConsumer(server.namesrv, "g", start="earliest", auto_commit=auto_commit) as consumer:
            await consumer.assign([ZERO])
            await consumer.poll(5, messages_max=4)
            if not auto_commit:
                await consumer.commit()
            await consumer.poll(5, messages_max=4)

            await server.stop()
            group.restart(committed={0: 1})
            group.end[0] = 40
            await server.listen(int(server.address.rpartition(":")[2]))

            await poll_until(lambda: group.committed == {0: 4})
            assert consumer.position(ZERO) == 8
            messages = []
            while len(messages) < 32:
                messages += await consumer.poll(5)
            assert [message.offset for message in messages] == list(range(8, 40))


async def test_what_was_not_committed_by_hand_is_read_again_after_a_new_assignment():
    """The position of a queue that was dropped is nobody's."""
    async with a_server() as server:
        ScriptedGroup(server, end=30)
        async with PullConsumer(server.namesrv, "g", start="earliest", auto_commit=False) as consumer:
            await consumer.assign([ZERO])
            await consumer.poll(5, messages_max=4)
            await consumer.poll(5, messages_max=4)
            await consumer.assign([])
            await consumer.assign([ZERO])
            assert consumer.position(ZERO) == 0


@pytest.mark.parametrize("kind", [PullConsumer, PushConsumer])
async def test_closing_ends_a_start_that_is_under_way(kind: type[PullConsumer]):
    """Nothing of it runs on: nobody would ever stop it."""
    async with ScriptedServer() as server:
        server.answers[RequestCode.GET_ROUTEINFO_BY_TOPIC] = lambda _: None
        consumer = kind(server.namesrv, "g")
        consumer.subscribe("t")
        starting = asyncio.ensure_future(consumer.start())
        await server.wait_for_requests(RequestCode.GET_ROUTEINFO_BY_TOPIC)
        await consumer.close()

        with pytest.raises(HoldfastError):
            await starting
        assert not consumer._member.client._tasks


async def test_a_forked_child_has_no_position(monkeypatch: pytest.MonkeyPatch):
    """The parent goes on reading: what the child copied is out of date."""
    async with a_server() as server:
        ScriptedGroup(server)
        async with PullConsumer(server.namesrv, "g", start="earliest") as consumer:
            await consumer.assign([ZERO])
            with monkeypatch.context() as forked:
                forked.setattr(consumer._member.client._pool, "_is_inherited", True)
                with pytest.raises(ForkedClient):
                    consumer.position(ZERO)
            assert consumer.position(ZERO) == 0
