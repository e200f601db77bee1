"""Consuming as a member of a group. What a real cluster makes of it is shown by tests/integration/test_client.py."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.support.deliveries import poll_until, run_ready_tasks
from tests.support.scripted_group import ScriptedGroup
from tests.support.scripted_server import ScriptedServer

from holdfast.client import push_consumer
from holdfast.client.consume import group_member, lock_renewal, pull_plan
from holdfast.client.consume.listener import RetryLater
from holdfast.client.push_consumer import PushConsumer
from holdfast.model.errors import LocalProtocolError
from holdfast.model.message import ReceivedMessage
from holdfast.wire.frames.codes import RequestCode
from holdfast.wire.frames.command import Command, response


@asynccontextmanager
async def a_server() -> AsyncIterator[ScriptedServer]:
    async with ScriptedServer() as server, asyncio.timeout(30):
        yield server


def never_mind_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nothing happen because some time is over: what happens does so because something happened before."""
    monkeypatch.setattr(push_consumer, "COMMIT_INTERVAL_S", 3600)
    monkeypatch.setattr(lock_renewal, "RENEW_INTERVAL_S", 3600)
    monkeypatch.setattr(lock_renewal, "_PAUSE_S", 3600)
    monkeypatch.setattr(pull_plan, "ERROR_PAUSE_S", 3600)
    monkeypatch.setattr(pull_plan, "ERROR_PAUSE_S_MAX", 3600)


class Bodies:
    """A listener that keeps what it gets."""

    def __init__(self) -> None:
        self.got: list[bytes] = []

    async def __call__(self, message: ReceivedMessage) -> None:
        """Keep one."""
        self.got.append(message.body)


async def test_what_was_consumed_is_committed_every_few_seconds(monkeypatch: pytest.MonkeyPatch):
    """And when closing."""
    monkeypatch.setattr(push_consumer, "COMMIT_INTERVAL_S", 0.001)

    async with a_server() as server:
        group, bodies = ScriptedGroup(server, end=40), Bodies()
        consumer = PushConsumer(server.namesrv, "g", listener=bodies, start="earliest")
        consumer.subscribe("t")
        async with consumer:
            await poll_until(lambda: group.committed == {0: 40})
        assert sorted(bodies.got) == sorted(b"0/%d" % number for number in range(40))
        assert server.requests_of(RequestCode.UNREGISTER_CLIENT)


async def test_a_failed_message_is_given_back_with_the_level_it_asked_for():
    """And counts as done."""
    async with a_server() as server:
        group = ScriptedGroup(server, end=3)

        async def listen(message: ReceivedMessage) -> None:
            if message.offset == 1:
                raise RetryLater(4)

        consumer = PushConsumer(server.namesrv, "g", listener=listen, start="earliest", retries_max=5)
        consumer.subscribe("t")
        async with consumer:
            await server.wait_for_requests(RequestCode.CONSUMER_SEND_MSG_BACK)
            await poll_until(lambda: consumer._readers != {})
        assert group.sent_back == [(1, 4)]
        assert group.committed == {0: 3}
        (back,) = server.requests_of(RequestCode.CONSUMER_SEND_MSG_BACK)
        assert back.fields["maxReconsumeTimes"] == "5"


async def test_closing_gives_back_what_does_not_end():
    """So that what is done behind it can be committed."""
    async with a_server() as server:
        group = ScriptedGroup(server, end=3)
        done: list[int] = []

        async def listen(message: ReceivedMessage) -> None:
            if message.offset == 0:
                await asyncio.Event().wait()
            done.append(message.offset)

        consumer = PushConsumer(server.namesrv, "g", listener=listen, start="earliest", close_timeout_s=0.01)
        consumer.subscribe("t")
        async with consumer:
            await poll_until(lambda: len(done) == 2)
        assert group.sent_back == [(0, 0)]
        assert group.committed == {0: 3}


async def test_a_lost_queue_is_committed_before_it_is_left(monkeypatch: pytest.MonkeyPatch):
    """Its new owner continues there. No commit of the other queue is due yet."""
    never_mind_the_time(monkeypatch)

    async with a_server() as server:
        group, bodies = ScriptedGroup(server, queues=2, end=10), Bodies()
        consumer = PushConsumer(server.namesrv, "g", listener=bodies, start="earliest")
        consumer.subscribe("t")
        async with consumer:
            await poll_until(lambda: len(bodies.got) == 20)
            group.other_members = ["zzz"]
            server.push(
                Command(code=RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, flag=2, fields={"consumerGroup": "readers"})
            )
            await poll_until(lambda: [queue.queue_id for queue in consumer.assignment] == [0])
            await poll_until(lambda: group.committed.get(1) == 10)
            assert group.committed.get(0, 0) == 0, "the queue that stays is committed later"
            assert len(bodies.got) == 20


async def test_an_ordered_consumer_locks_before_it_reads_and_unlocks_when_it_leaves():
    """And reads nothing that another one has locked."""
    async with a_server() as server:
        group, bodies = ScriptedGroup(server, queues=2, end=3), Bodies()
        group.is_lock_granted = False
        consumer = PushConsumer(server.namesrv, "g", listener=bodies, ordered=True, start="earliest")
        consumer.subscribe("t")
        async with consumer:
            await server.wait_for_requests(RequestCode.LOCK_BATCH_MQ)
            assert consumer.assignment == []
            group.is_lock_granted = True
            consumer._member.wake()
            await poll_until(lambda: len(bodies.got) == 6)
            assert group.locked == {0, 1}
        assert group.locked == set()
        assert [body for body in bodies.got if body.startswith(b"0")] == [b"0/0", b"0/1", b"0/2"]
        assert group.committed == {0: 3, 1: 3}


async def test_a_lock_that_ran_out_is_asked_for_again_before_the_next_message(monkeypatch: pytest.MonkeyPatch):
    """Whatever was read ahead; while nobody answers, nothing is begun."""
    monkeypatch.setattr(lock_renewal, "_PAUSE_S", 0.001)

    async with a_server() as server:
        group = ScriptedGroup(server, end=2)
        got: list[bytes] = []

        async def listen(message: ReceivedMessage) -> None:
            got.append(message.body)
            if len(got) == 1:
                server.refuse(RequestCode.LOCK_BATCH_MQ, 1, "not now")
                assert consumer._locks is not None
                consumer._locks._locks.drop([message.queue])

        consumer = PushConsumer(server.namesrv, "g", listener=listen, ordered=True, start="earliest")
        consumer.subscribe("t")
        async with consumer:
            await server.wait_for_requests(RequestCode.LOCK_BATCH_MQ, 4)
            assert got == [b"0/0"]
            server.answers[RequestCode.LOCK_BATCH_MQ] = group._lock
            await poll_until(lambda: len(got) == 2)


async def test_a_queue_that_another_member_has_locked_is_given_up(monkeypatch: pytest.MonkeyPatch):
    """At once; if it comes back, what was done is not done again."""
    monkeypatch.setattr(group_member, "_RETRY_PAUSE_S", 0.001)

    async with a_server() as server:
        group = ScriptedGroup(server, end=4)
        got: list[bytes] = []

        async def listen(message: ReceivedMessage) -> None:
            got.append(message.body)
            if message.offset == 1:
                group.is_lock_granted = False
                assert consumer._locks is not None
                consumer._locks._locks.drop([message.queue])

        consumer = PushConsumer(server.namesrv, "g", listener=listen, ordered=True, start="earliest")
        consumer.subscribe("t")
        async with consumer:
            await poll_until(lambda: len(got) == 2 and consumer.assignment == [])
            group.is_lock_granted = True
            await poll_until(lambda: len(got) == 4)
        assert got == [b"0/0", b"0/1", b"0/2", b"0/3"]


@pytest.mark.parametrize("ordered", [True, False])
async def test_a_restarted_broker_costs_no_repetition(monkeypatch: pytest.MonkeyPatch, *, ordered: bool):
    """It hears who we are, grants the locks, is told how far we are, and is pulled from where we are. All at once."""
    never_mind_the_time(monkeypatch)

    async with a_server() as server:
        group, bodies = ScriptedGroup(server, queues=2, end=5), Bodies()
        consumer = PushConsumer(server.namesrv, "g", listener=bodies, ordered=ordered, start="earliest")
        consumer.subscribe("t")
        async with consumer:
            await poll_until(lambda: len(bodies.got) == 10)
            owned = consumer.assignment

            await server.stop()
            group.restart(committed={0: 3})
            group.end = {0: 8, 1: 8}
            server.requests.clear()
            await server.listen(int(server.address.rpartition(":")[2]))

            await poll_until(lambda: len(bodies.got) == 16)
            assert sorted(bodies.got) == sorted(b"%d/%d" % (queue, at) for queue in (0, 1) for at in range(8))
            await poll_until(lambda: min(group.committed.values()) >= 5 and len(group.committed) == 2)
            assert group.locked == ({0, 1} if ordered else set())
            assert consumer.assignment == owned
            to_broker = [command for command in server.requests if command.code != RequestCode.GET_ROUTEINFO_BY_TOPIC]
            assert to_broker[0].code == RequestCode.HEART_BEAT


async def test_nothing_is_begun_between_a_lost_connection_and_the_next_lock(monkeypatch: pytest.MonkeyPatch):
    """The broker may have been restarted, and the queue may be another member's."""
    never_mind_the_time(monkeypatch)

    async with a_server() as server:
        group = ScriptedGroup(server, end=3)
        begun: list[int] = []
        ends: asyncio.Queue[None] = asyncio.Queue()

        async def listen(message: ReceivedMessage) -> None:
            begun.append(message.offset)
            await ends.get()

        consumer = PushConsumer(server.namesrv, "g", listener=listen, ordered=True, start="earliest")
        consumer.subscribe("t")
        async with consumer:
            await poll_until(lambda: begun == [0])
            await server.stop()
            group.restart(committed={})
            await poll_until(lambda: not consumer._member.client.connected_brokers())
            ends.put_nowait(None)
            await run_ready_tasks()
            assert begun == [0]

            await server.listen(int(server.address.rpartition(":")[2]))
            await poll_until(lambda: begun == [0, 1])
            assert group.locked == {0}
            for _ in range(2):
                ends.put_nowait(None)
            await poll_until(lambda: begun == [0, 1, 2])


async def test_what_another_member_consumed_meanwhile_is_not_consumed_again():
    """The broker knows of more than we when it is back."""
    async with a_server() as server:
        group, bodies = ScriptedGroup(server, end=3), Bodies()
        consumer = PushConsumer(server.namesrv, "g", listener=bodies, start="earliest")
        consumer.subscribe("t")
        async with consumer:
            await poll_until(lambda: len(bodies.got) == 3)
            await server.stop()
            group.restart(committed={0: 7})
            await server.listen(int(server.address.rpartition(":")[2]))
            await poll_until(lambda: [reader.window.next_offset for reader in consumer._readers.values()] == [7])
            assert group.committed == {0: 7}


async def test_a_broker_that_drops_out_of_the_route_keeps_its_consumers():
    """For a while: it may only be restarted, and nobody forgets where they are."""
    async with a_server() as server:
        group, bodies = ScriptedGroup(server, end=3), Bodies()
        async with ScriptedServer() as name_server:
            name_server.serve_topic("t", other_brokers={})
            name_server.answers = dict(server.answers)
            consumer = PushConsumer(name_server.namesrv, "g", listener=bodies, start="earliest")
            consumer.subscribe("t")
            async with consumer:
                await poll_until(lambda: len(bodies.got) == 3)
                routes = name_server.answers[RequestCode.GET_ROUTEINFO_BY_TOPIC]
                name_server.on(RequestCode.GET_ROUTEINFO_BY_TOPIC, body=b'{"brokerDatas":[],"queueDatas":[]}')
                await server.stop()
                await poll_until(lambda: consumer._member.client.routes.find("t").publishable == ())  # type: ignore[union-attr]
                await consumer._member.rebalance()
                assert len(consumer.assignment) == 1

                name_server.answers[RequestCode.GET_ROUTEINFO_BY_TOPIC] = routes
                group.end[0] = 5
                await server.listen(int(server.address.rpartition(":")[2]))
                await poll_until(lambda: len(bodies.got) == 5)
            assert bodies.got == [b"0/%d" % at for at in range(5)]


async def test_an_operators_reset_reaches_the_listener():
    """The messages come again."""
    async with a_server() as server:
        ScriptedGroup(server, end=3)
        bodies = Bodies()
        consumer = PushConsumer(server.namesrv, "g", listener=bodies, start="earliest")
        consumer.subscribe("t")
        async with consumer:
            await poll_until(lambda: len(bodies.got) == 3)
            body = b'{"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"t"}:1}}'
            fields = {"topic": "t", "group": "g"}
            server.push(Command(code=RequestCode.RESET_CONSUMER_CLIENT_OFFSET, flag=2, fields=fields, body=body))
            await poll_until(lambda: len(bodies.got) == 5)
        assert bodies.got[3:] == [b"0/1", b"0/2"]


async def test_a_loop_may_give_a_message_back():
    """Then it is done with it."""
    async with a_server() as server:
        group = ScriptedGroup(server, end=2)
        consumer = PushConsumer(server.namesrv, "g", start="earliest")
        consumer.subscribe("t")
        async with consumer:
            async for message in consumer:
                if message.offset == 0:
                    await consumer.retry(message, 3)
                else:
                    consumer.ack(message)
                    break
        assert group.sent_back == [(0, 3)]
        assert group.committed == {0: 2}


async def test_a_consumer_with_a_listener_cannot_be_iterated():
    """The listener gets everything."""
    async with a_server() as server:
        with pytest.raises(LocalProtocolError, match="listener"):
            aiter(PushConsumer(server.namesrv, "g", listener=Bodies()))


async def test_broadcasting_and_an_offset_file_go_together(tmp_path: Path):
    """One without the other is a mistake."""
    async with a_server() as server:
        with pytest.raises(LocalProtocolError, match="offset_file"):
            PushConsumer(server.namesrv, "g", broadcast=True)
        with pytest.raises(LocalProtocolError, match="offset_file"):
            PushConsumer(server.namesrv, "g", offset_file=tmp_path / "offsets")


async def test_a_broadcasting_consumer_drops_what_fails(tmp_path: Path):
    """There is nobody to give it back to."""
    async with a_server() as server:
        group = ScriptedGroup(server, end=2)
        seen: list[int] = []

        async def listen(message: ReceivedMessage) -> None:
            seen.append(message.offset)
            raise ValueError("no")

        consumer = PushConsumer(
            server.namesrv, "g", listener=listen, broadcast=True, offset_file=tmp_path / "offsets", start="earliest"
        )
        consumer.subscribe("t")
        async with consumer:
            await poll_until(lambda: len(seen) == 2)
        assert (group.sent_back, group.committed) == ([], {})
        assert b":2" in (tmp_path / "offsets").read_bytes()


async def test_run_returns_when_the_consumer_is_closed():
    """By somebody else; closing twice is harmless."""
    async with a_server() as server:
        ScriptedGroup(server)
        consumer = PushConsumer(server.namesrv, "g", listener=Bodies())
        consumer.subscribe("t")
        await consumer.start()
        running = asyncio.create_task(consumer.run())
        await run_ready_tasks()
        assert not running.done()

        await consumer.close()

        await running
        await consumer.close()
        assert len(server.requests_of(RequestCode.UNREGISTER_CLIENT)) == 1


async def test_a_queue_whose_offset_is_unknown_is_taken_over_later(caplog: pytest.LogCaptureFixture):
    """It is logged, because nothing of the queue is consumed until then."""
    async with a_server() as server:
        group, bodies = ScriptedGroup(server, end=1), Bodies()
        query = server.answers[RequestCode.QUERY_CONSUMER_OFFSET]
        codes = iter([1])
        server.answers[RequestCode.QUERY_CONSUMER_OFFSET] = lambda command: (
            response(command, code, "starting") if (code := next(codes, 0)) else query(command)
        )
        consumer = PushConsumer(server.namesrv, "g", listener=bodies, start="earliest")
        consumer.subscribe("t")
        async with consumer:
            await poll_until(lambda: "cannot be taken over yet" in caplog.text)
            consumer._member.wake()
            await poll_until(lambda: bodies.got == [b"0/0"])
        assert group.committed == {0: 1}
    (line,) = [text for text in caplog.messages if "cannot be taken over yet" in text]
    assert "starting" in line
