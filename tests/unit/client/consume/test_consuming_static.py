"""Consuming logical queues: from their leaders, also while those change."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from tests.support.deliveries import a_received_message, poll_until, run_ready_tasks
from tests.support.scripted_group import ScriptedGroup
from tests.support.scripted_server import ScriptedServer
from tests.support.static_topics import MOCK, a_record, logical_queue, serve_static

from holdfast.client import push_consumer
from holdfast.client.cluster.cluster_client import ClusterClient
from holdfast.client.cluster.queue_rpc import QueueRpc
from holdfast.client.consume import lock_renewal, pull_plan
from holdfast.client.consume.lock_requests import request_locks
from holdfast.client.consume.send_back import send_back
from holdfast.client.pull_consumer import PullConsumer
from holdfast.client.push_consumer import PushConsumer
from holdfast.model.errors import BrokerRefused, RouteNotFound
from holdfast.model.leadership import Leader
from holdfast.model.mapping import TopicMapping
from holdfast.model.message import ReceivedMessage
from holdfast.wire.cluster.route import MAPPING_FIELD
from holdfast.wire.frames.codes import RequestCode
from holdfast.wire.frames.command import Command, response

PULL = RequestCode.PULL_MESSAGE
SEND = RequestCode.SEND_MESSAGE_V2
A_LEADS = a_record("a", {0: 1}, total=1)
B_LEADS = a_record("b", {0: 2}, epoch=2, total=1)


class Cluster:
    """The brokers `a`, which is also the name server, and `b`; both know the group."""

    def __init__(self, a: ScriptedServer, b: ScriptedServer) -> None:
        self.a, self.b = a, b
        self.group_a, self.group_b = ScriptedGroup(a, queues=2), ScriptedGroup(b, queues=2)

    def serve(self, *records: TopicMapping) -> None:
        """Let the name server say what brokers registered."""
        serve_static(self.a, *records, addresses={"a": self.a.address, "b": self.b.address})


@asynccontextmanager
async def a_cluster() -> AsyncIterator[Cluster]:
    async with ScriptedServer() as a, ScriptedServer() as b, asyncio.timeout(30):
        yield Cluster(a, b)


@asynccontextmanager
async def some_calls() -> AsyncIterator[tuple[Cluster, QueueRpc]]:
    async with a_cluster() as cluster, ClusterClient(cluster.a.namesrv) as client:
        cluster.a.serve_topic("%RETRY%g", other_brokers={"b": cluster.b.address})
        cluster.serve(A_LEADS)
        await client.route("t")
        yield cluster, QueueRpc(client, "g")


def never_mind_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nothing happen because some time is over: what happens does so because something happened before."""
    monkeypatch.setattr(push_consumer, "COMMIT_INTERVAL_S", 3600)
    monkeypatch.setattr(lock_renewal, "RENEW_INTERVAL_S", 3600)
    monkeypatch.setattr(lock_renewal, "_PAUSE_S", 3600)
    monkeypatch.setattr(pull_plan, "ERROR_PAUSE_S", 3600)
    monkeypatch.setattr(pull_plan, "ERROR_PAUSE_S_MAX", 3600)


async def test_questions_about_a_queue_go_to_its_leader():
    """By the logical number and the mock broker's name; a replica is not asked."""
    async with some_calls() as (cluster, calls):
        cluster.group_a.committed[0] = 5
        assert await calls.committed(logical_queue(0)) == 5
        (asked,) = cluster.a.requests_of(RequestCode.QUERY_CONSUMER_OFFSET)
        assert (asked.fields["queueId"], asked.fields["bname"]) == ("0", MOCK)
        assert calls.address(logical_queue(0), 1) == cluster.a.address

        with pytest.raises(RouteNotFound):
            calls.address(logical_queue(7))


async def test_a_question_follows_a_queue_that_has_moved():
    """The old leader says that it is not the one; the answer is the new one's."""
    async with some_calls() as (cluster, calls):
        cluster.a.refuse(RequestCode.UPDATE_CONSUMER_OFFSET, 501, "moved")
        asking = asyncio.ensure_future(calls.commit(logical_queue(0), 9))
        await cluster.a.wait_for_requests(RequestCode.UPDATE_CONSUMER_OFFSET, 2)
        cluster.serve(A_LEADS, B_LEADS)

        await asking
        assert cluster.group_b.committed == {0: 9}


async def test_a_question_that_nobody_takes_ends():
    """After the time that a request may take."""
    async with some_calls() as (cluster, calls):
        calls.client.timeout_s = 0.1
        cluster.a.refuse(RequestCode.UPDATE_CONSUMER_OFFSET, 501, "moved")

        with pytest.raises(BrokerRefused, match="moved"):
            await calls.commit(logical_queue(0), 9)


async def test_locks_are_kept_by_the_leader():
    """Where a broker leads the queue no more, nothing is said about the lock, and the leader is looked for."""
    async with some_calls() as (cluster, calls):
        assert (await request_locks(calls, [logical_queue(0)])).granted == {logical_queue(0)}
        cluster.a.refuse(RequestCode.LOCK_BATCH_MQ, 501, "moved")
        cluster.serve(A_LEADS, B_LEADS)

        outcome = await request_locks(calls, [logical_queue(0)])
        assert not outcome.granted | outcome.refused
        assert (await request_locks(calls, [logical_queue(0)])).granted == {logical_queue(0)}
        assert cluster.group_b.locked == {0}


async def test_members_are_asked_for_at_every_broker_of_the_topic():
    """A leader may have lost everything it led, and still know members."""
    async with some_calls() as (cluster, calls):
        cluster.group_a.other_members, cluster.group_b.other_members = ["x"], ["y"]

        assert await calls.members("t") == {"x", "y"}


async def test_what_failed_is_sent_to_the_retry_topic():
    """As an ordinary message: its record may lie on any broker that ever led the queue."""
    async with some_calls() as (cluster, calls):
        taken: list[Command] = []

        def take(command: Command) -> Command:
            taken.append(command)
            return response(command, fields={"msgId": "A", "queueId": "0", "queueOffset": "0"})

        cluster.a.answers[SEND] = cluster.b.answers[SEND] = take

        await send_back(calls, a_received_message(logical_queue(0), 3), 4, 5)

        (sent,) = taken
        assert (sent.fields["b"], sent.fields["j"], sent.fields["l"]) == ("%RETRY%g", "1", "5")
        assert "RETRY_TOPIC\x01t\x02" in sent.fields["i"]
        assert cluster.group_a.sent_back == []


async def test_what_one_broker_does_not_take_back_another_may():
    """If none does, the last one's reason is told."""
    async with some_calls() as (cluster, calls):
        message = a_received_message(logical_queue(0), 3)
        cluster.a.refuse(SEND, 14, "full")
        cluster.b.on(SEND, msgId="A", queueId="0", queueOffset="0")
        for _ in range(5):
            await send_back(calls, message, 0, None)

        cluster.b.refuse(SEND, 14, "full")
        with pytest.raises(BrokerRefused, match="full"):
            await send_back(calls, message, 0, None)


async def test_a_consumer_reads_logical_queues_from_their_leaders():
    """It says that it reads mappings, adds the delta to offsets, and commits logical numbers."""
    async with a_cluster() as cluster:
        cluster.serve(a_record("a", {0: 1}, total=2), a_record("b", {1: 1}, total=2))
        cluster.group_a.end[0] = cluster.group_b.end[1] = 3
        plain = cluster.a.answers[PULL]

        def moved_segment(command: Command) -> Command | None:
            """Answer as for a segment that begins at the logical offset 100: records have physical offsets."""
            command.fields["queueOffset"] = str(max(0, int(command.fields["queueOffset"]) - 100))
            answer = plain(command)
            if answer is not None:
                answer.fields |= {"nextBeginOffset": "103", "minOffset": "100", "maxOffset": "103"}
                answer.fields["offsetDelta"] = "100"
            return answer

        cluster.a.answers[PULL] = moved_segment
        async with PullConsumer(cluster.a.namesrv, "g", start="earliest") as consumer:
            assert await consumer.queues("t") == [logical_queue(0), logical_queue(1)]
            await consumer.assign(await consumer.queues("t"))
            messages: list[ReceivedMessage] = []
            while len(messages) < 6:
                messages += await consumer.poll(timeout_s=5)
            await consumer.commit()

        found = {(message.queue, message.offset) for message in messages}
        assert found == {(logical_queue(0), 100 + at) for at in range(3)} | {(logical_queue(1), at) for at in range(3)}
        assert (cluster.group_a.committed, cluster.group_b.committed) == ({0: 103}, {1: 3})
        assert cluster.b.requests_of(PULL)[0].fields[MAPPING_FIELD] == "1"
        assert cluster.b.requests_of(RequestCode.HEART_BEAT)[0].fields == {MAPPING_FIELD: "1"}


async def test_the_queues_of_a_group_are_the_logical_ones():
    """However many brokers lead them."""
    async with a_cluster() as cluster:
        cluster.serve(a_record("a", {0: 1}, total=2), a_record("b", {1: 1}, total=2))
        consumer = PushConsumer(cluster.a.namesrv, "g", start="earliest")
        consumer.subscribe("t")
        async with consumer:
            assert await consumer.queues("t") == [logical_queue(0), logical_queue(1)]
            await poll_until(lambda: {logical_queue(0), logical_queue(1)} <= set(consumer.assignment))


async def test_a_pull_that_is_refused_by_an_old_leader_goes_to_the_new_one(monkeypatch: pytest.MonkeyPatch):
    """At once, from the same place."""
    never_mind_the_time(monkeypatch)

    async with a_cluster() as cluster:
        cluster.serve(A_LEADS)
        cluster.group_a.end[0] = 2
        async with PullConsumer(cluster.a.namesrv, "g", start="earliest") as consumer:
            await consumer.assign([logical_queue(0)])
            assert [message.offset for message in await consumer.poll(5)] == [0, 1]
            cluster.group_b.end[0] = 5
            cluster.serve(A_LEADS, B_LEADS)
            _, parked = await cluster.a.wait_for_requests(PULL, 2)
            cluster.a.push(response(parked, 501, "moved"))

            assert [message.offset for message in await consumer.poll(5)] == [2, 3, 4]


async def test_a_queue_that_is_dropped_while_its_leader_changes_does_not_stop_the_others(
    caplog: pytest.LogCaptureFixture,
):
    """The others still continue at the new leader, which gets their commits."""
    async with a_cluster() as cluster:
        cluster.serve(a_record("a", {0: 1, 1: 1}, total=2), a_record("b", {}, total=2))
        cluster.group_a.end = {0: 2, 1: 2}
        async with PullConsumer(cluster.a.namesrv, "g", start="earliest", auto_commit=False) as consumer:
            await consumer._member.client.connection(cluster.b.address)
            await consumer.assign([logical_queue(0), logical_queue(1)])
            offsets: list[int] = []
            while len(offsets) < 4:
                offsets += [message.offset for message in await consumer.poll(5)]
            await consumer.commit()

            routes = consumer._member.client.routes
            assert all(routes.update_leader(logical_queue(number), Leader("b", 2)) for number in (0, 1))
            consumer._follow_leaders("t")
            await consumer.assign([logical_queue(1)])  # before the task that `_follow` started has run

            await poll_until(lambda: cluster.group_b.committed == {1: 2})
            await cluster.b.wait_for_requests(PULL)
    assert [record.message for record in caplog.records if record.levelname == "ERROR"] == []


@pytest.mark.parametrize("ordered", [True, False])
async def test_a_consumer_follows_a_queue_whose_old_leader_is_silent(monkeypatch: pytest.MonkeyPatch, *, ordered: bool):
    """Its pull is not left waiting there; locks and offsets are looked after at the new leader."""
    never_mind_the_time(monkeypatch)

    async with a_cluster() as cluster:
        cluster.serve(A_LEADS)
        cluster.group_a.end[0] = 2
        got: list[int] = []

        async def listen(message: ReceivedMessage) -> None:
            got.append(message.offset)

        consumer = PushConsumer(cluster.a.namesrv, "g", listener=listen, ordered=ordered, start="earliest")
        consumer.subscribe("t")
        async with consumer:
            await poll_until(lambda: len(got) == 2)
            await cluster.a.wait_for_requests(PULL, 2)  # parked for ever
            cluster.group_b.end[0] = 4
            cluster.serve(A_LEADS, B_LEADS)
            await consumer._member.client.refresh_leaders("t")

            await poll_until(lambda: len(got) == 4)
            await poll_until(lambda: cluster.group_b.committed.get(0, 0) >= 2)
            assert cluster.group_b.locked == ({0} if ordered else set())
        assert got == [0, 1, 2, 3]


async def test_a_part_of_the_queue_that_cannot_be_read_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """With pauses, said once, and nothing is skipped: the broker that holds it is away."""
    monkeypatch.setattr(pull_plan, "ERROR_PAUSE_S", 0.001)

    async with a_cluster() as cluster:
        cluster.serve(A_LEADS)
        cluster.group_a.end[0] = 2
        readable = cluster.a.answers[PULL]
        cluster.a.refuse(PULL, 1, "offsets 0 to 2 are on broker c, which does not answer")
        async with PullConsumer(cluster.a.namesrv, "g", start="earliest") as consumer:
            await consumer.assign([logical_queue(0)])
            await cluster.a.wait_for_requests(PULL, 5)
            assert {pull.fields["queueOffset"] for pull in cluster.a.requests_of(PULL)} == {"0"}
            cluster.a.answers[PULL] = readable

            assert [message.offset for message in await consumer.poll(5)] == [0, 1]
    assert [record.levelname for record in caplog.records if "broker c" in record.message] == ["WARNING"]


async def test_a_leader_that_stays_is_not_left():
    """A route may change for other reasons."""
    async with a_cluster() as cluster:
        cluster.serve(A_LEADS)
        async with PullConsumer(cluster.a.namesrv, "g", start="earliest") as consumer:
            await consumer.assign([logical_queue(0)])
            await cluster.a.wait_for_requests(PULL)
            cluster.serve(a_record("a", {0: 1}, epoch=7, total=1), a_record("b", {}, epoch=7, total=1))
            await consumer._member.client.refresh_leaders("t")
            await run_ready_tasks()

            assert len(cluster.a.requests_of(PULL)) == 1


def naming_b(script: Callable[[Command], Command | None]) -> Callable[[Command], Command | None]:
    """Answer as a broker that passed the request on to `b`."""

    def answer(command: Command) -> Command | None:
        told = script(command)
        if told is not None:
            told.fields |= {"hf.leader": "b", "hf.generation": "2"}
        return told

    return answer


async def test_an_answer_that_names_the_new_leader_is_followed_at_once():
    """No name server is asked for it."""
    async with some_calls() as (cluster, calls):
        cluster.serve(A_LEADS, a_record("b", {}, total=1))
        await calls.client.refresh_leaders("t")
        update = RequestCode.UPDATE_CONSUMER_OFFSET
        cluster.a.answers[update] = naming_b(cluster.a.answers[update])

        await calls.commit(logical_queue(0), 9)
        await calls.commit(logical_queue(0), 10)

        assert [heard.fields["hf.mapping"] for heard in cluster.a.requests_of(update)] == ["1"]
        assert cluster.group_b.committed == {0: 10}


async def test_what_a_pull_brought_by_way_of_the_old_leader_is_kept(monkeypatch: pytest.MonkeyPatch):
    """The next pull goes to the new one: nothing is pulled twice."""
    never_mind_the_time(monkeypatch)

    async with a_cluster() as cluster:
        cluster.serve(A_LEADS, a_record("b", {}, total=1))
        cluster.group_a.end[0], cluster.group_b.end[0] = 2, 5
        cluster.a.answers[PULL] = naming_b(cluster.a.answers[PULL])
        async with PullConsumer(cluster.a.namesrv, "g", start="earliest") as consumer:
            await consumer._member.client.connection(cluster.b.address)
            await consumer.assign([logical_queue(0)])

            assert [message.offset for message in await consumer.poll(5)] == [0, 1]
            assert [message.offset for message in await consumer.poll(5)] == [2, 3, 4]

        assert [pull.fields["queueOffset"] for pull in cluster.a.requests_of(PULL)] == ["0"]
        assert [pull.fields["queueOffset"] for pull in cluster.b.requests_of(PULL)].count("2") == 1
