"""Pulling one queue, again and again."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest
from tests.support.deliveries import run_ready_tasks
from tests.support.scripted_server import ScriptedServer
from tests.unit.client.messages.test_unpacking import a_record

from holdfast.client.cluster.cluster_client import ClusterClient
from holdfast.client.cluster.queue_rpc import QueueRpc
from holdfast.client.consume import pull_plan, queue_reader
from holdfast.client.consume.pull_plan import PullLimits
from holdfast.client.consume.queue_reader import Delivery, QueueReader, ReaderContext
from holdfast.client.options import ClientOptions
from holdfast.model.filter import parse_tags
from holdfast.model.queue import MessageQueue
from holdfast.model.route import BrokerData, QueueData, Route
from holdfast.wire.cluster.route import encode_route
from holdfast.wire.frames.codes import RequestCode
from holdfast.wire.frames.command import Command, response
from holdfast.wire.records.batch import encode_items

PULL = RequestCode.PULL_MESSAGE
QUEUE = MessageQueue("t", "broker-a", 0)


class Log:
    """A queue at the scripted server: messages 0 to *end*."""

    def __init__(self, server: ScriptedServer, end: int) -> None:
        self.end = end
        self.damaged = False
        server.answers[PULL] = self.answer

    def answer(self, command: Command) -> Command | None:
        """Answer a pull as a broker would; at the end, wait for ever."""
        offset = int(command.fields["queueOffset"])
        places = {"suggestWhichBrokerId": "0", "minOffset": "0", "maxOffset": str(self.end)}
        if offset > self.end:
            return response(command, 21, fields=places | {"nextBeginOffset": str(self.end)})
        if offset == self.end:
            return None
        last = min(self.end, offset + int(command.fields["maxMsgNums"]))
        body = bytearray(b"".join(a_record(topic="t", offset=at, body=b"%d" % at) for at in range(offset, last)))
        if self.damaged:
            body[88] ^= 1
        return response(command, fields=places | {"nextBeginOffset": str(last)}, body=bytes(body))


class Consumer:
    """Takes what a reader delivers."""

    def __init__(self, client: ClusterClient) -> None:
        self.deliveries: list[Delivery] = []
        self.moves: list[int] = []
        self.limits = PullLimits()
        self.news = asyncio.Condition()
        self.plan = ReaderContext(
            rpc=QueueRpc(client, "g"),
            subscription=lambda topic: parse_tags(topic, "*"),
            limits=lambda: self.limits,
            deliver=self.deliver,
            offset_moved=lambda _, offset: self.moves.append(offset),
        )
        self.arrived = asyncio.Event()

    def deliver(self, deliveries: list[Delivery]) -> None:
        """Keep them."""
        self.deliveries += deliveries
        self.arrived.set()

    async def offsets(self, count: int) -> list[int]:
        """Return the offsets of what was delivered, once there are *count*."""
        while len(self.deliveries) < count:
            self.arrived.clear()
            await self.arrived.wait()
        return [delivery.message.offset for delivery in self.deliveries]


@asynccontextmanager
async def a_consumer() -> AsyncIterator[tuple[ScriptedServer, Consumer]]:
    async with ScriptedServer() as server, ClusterClient(server.address) as client:
        server.serve_topic("t")
        await client.route("t")
        yield server, Consumer(client)


async def test_a_queue_is_read_to_its_end():
    """In order, without repetition, from where it began."""
    async with a_consumer() as (server, consumer):
        Log(server, 100)
        reader = QueueReader(consumer.plan, QUEUE, 10)
        reader.start()
        reader.start()  # twice is once

        assert await consumer.offsets(90) == list(range(10, 100))
        await server.wait_for_requests(PULL, 4)
        assert reader.window.commit_offset == 10
        reader.stop()


async def test_there_is_no_pull_without_room():
    """Room comes with what is done."""
    async with a_consumer() as (server, consumer):
        Log(server, 100)
        consumer.limits = PullLimits(message_count_max=32)
        reader = QueueReader(consumer.plan, QUEUE, 0)
        reader.start()
        await consumer.offsets(32)
        await run_ready_tasks()
        assert len(server.requests_of(PULL)) == 1

        consumer.deliveries[0].finish()
        await consumer.offsets(64)
        assert len(server.requests_of(PULL)) == 2
        reader.stop()


async def test_a_paused_reader_rests():
    """Until it is nudged."""
    async with a_consumer() as (server, consumer):
        Log(server, 5)
        reader = QueueReader(consumer.plan, QUEUE, 0)
        reader.is_paused = True
        reader.start()
        await run_ready_tasks()
        assert server.requests_of(PULL) == []

        reader.is_paused = False
        reader.wake()
        assert await consumer.offsets(5) == list(range(5))
        reader.stop()


async def test_an_offset_that_is_not_there_moves():
    """To where the broker says; the consumer is told."""
    async with a_consumer() as (server, consumer):
        log = Log(server, 50)
        reader = QueueReader(consumer.plan, QUEUE, 70)
        reader.start()
        await server.wait_for_requests(PULL, 2)

        assert consumer.moves == [50]
        assert reader.window.commit_offset == 50
        assert log.end == 50
        reader.stop()


async def test_a_reset_goes_elsewhere_at_once():
    """Though a pull waits at the broker; what was delivered before is nobody's business."""
    async with a_consumer() as (server, consumer):
        Log(server, 10)
        reader = QueueReader(consumer.plan, QUEUE, 0)
        reader.start()
        await consumer.offsets(10)
        await server.wait_for_requests(PULL, 2)
        (old, *_) = consumer.deliveries
        consumer.deliveries.clear()

        reader.reset(7)

        assert await consumer.offsets(3) == [7, 8, 9]
        assert not old.is_current
        old.finish()
        assert reader.window.commit_offset == 7
        reader.stop()


async def test_a_reset_of_a_reader_at_rest_does_not_wake_it():
    """It begins there when it is started."""
    async with a_consumer() as (server, consumer):
        Log(server, 10)
        reader = QueueReader(consumer.plan, QUEUE, 0)
        reader.reset(9)
        await run_ready_tasks()
        assert server.requests_of(PULL) == []

        reader.start()
        assert await consumer.offsets(1) == [9]
        reader.stop()


async def test_a_retired_reader_leaves_nothing_behind():
    """What it delivered cannot be finished any more: it is another member's."""
    async with a_consumer() as (server, consumer):
        Log(server, 10)
        reader = QueueReader(consumer.plan, QUEUE, 0)
        reader.start()
        await consumer.offsets(10)
        consumer.deliveries[0].finish()

        reader.retire()

        assert reader.window.commit_offset == 1
        assert not consumer.deliveries[1].is_current


@pytest.mark.parametrize("code", [2, 24, 25, 215])
async def test_a_refused_pull_is_tried_again(monkeypatch: pytest.MonkeyPatch, code: int):
    """After a pause; a broker that does not know us is told who we are."""
    monkeypatch.setattr(pull_plan, "ERROR_PAUSE_S", 0)

    async with a_consumer() as (server, consumer):
        log = Log(server, 1)
        answers = iter([lambda command: response(command, code, "no"), log.answer])

        def answer(command: Command) -> Command | None:
            return next(answers, log.answer)(command)

        server.answers[PULL] = answer
        reader = QueueReader(consumer.plan, QUEUE, 0)
        reader.start()

        assert await consumer.offsets(1) == [0]
        reader.stop()


async def test_a_lost_connection_is_survived(monkeypatch: pytest.MonkeyPatch):
    """Reading goes on where it was."""
    monkeypatch.setattr(pull_plan, "ERROR_PAUSE_S", 0)

    async with a_consumer() as (server, consumer):
        log = Log(server, 3)
        reader = QueueReader(consumer.plan, QUEUE, 0)
        reader.start()
        await consumer.offsets(3)
        await server.wait_for_requests(PULL, 2)

        log.end = 5
        server.drop_connections()

        assert await consumer.offsets(5) == [0, 1, 2, 3, 4]
        reader.stop()


async def test_a_damaged_record_stops_the_queue(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture):
    """Loudly, with its place; nothing is skipped."""
    monkeypatch.setattr(queue_reader, "_CORRUPT_PAUSE_S", 0.001)

    async with a_consumer() as (server, consumer):
        log = Log(server, 3)
        log.damaged = True
        reader = QueueReader(consumer.plan, QUEUE, 0)
        reader.start()
        await server.wait_for_requests(PULL, 3)
        assert consumer.deliveries == []

        log.damaged = False
        assert await consumer.offsets(3) == [0, 1, 2]
        reader.stop()
    assert any("checksum" in record.message and record.levelname == "ERROR" for record in caplog.records)


async def test_a_batch_is_delivered_from_where_its_queue_is_read_and_by_its_tags():
    """A broker that keeps batches whole returns all of one; each of its messages has its own tag."""
    batch = [(0, b"%d" % at, b"TAGS\x01%b\x02" % (b"a" if at % 2 else b"b")) for at in range(10)]
    records = {
        0: (
            a_record(topic="t", offset=0, body=encode_items(batch), sys_flag=0xC0, properties=b"INNER_NUM\x0110\x02"),
            10,
        ),
        10: (a_record(topic="t", offset=10, body=b"10", properties=b"TAGS\x01a\x02"), 11),
    }

    def answer(command: Command) -> Command | None:
        assert command.fields["opensBatches"] == "true"
        offset = int(command.fields["queueOffset"])
        if offset == 11:
            return None
        body, following = records[offset // 10 * 10]
        places = {"suggestWhichBrokerId": "0", "minOffset": "0", "maxOffset": "11"}
        return response(command, fields=places | {"nextBeginOffset": str(following)}, body=body)

    async with a_consumer() as (server, consumer):
        server.answers[PULL] = answer
        plan = msgspec.structs.replace(consumer.plan, subscription=lambda topic: parse_tags(topic, "a"))
        reader = QueueReader(plan, QUEUE, 4)
        reader.start()

        assert await consumer.offsets(4) == [5, 7, 9, 10]
        assert [delivery.message.body for delivery in consumer.deliveries] == [b"5", b"7", b"9", b"10"]
        assert reader.window.commit_offset == 5
        for delivery in consumer.deliveries[:2]:
            delivery.finish()
        assert reader.window.commit_offset == 9
        reader.stop()


async def test_a_batch_that_cannot_be_opened_does_not_stop_the_queue(caplog: pytest.LogCaptureFixture):
    """No pull will mend it, as its producer made it so. It is passed, loudly."""

    def answer(command: Command) -> Command | None:
        if command.fields["queueOffset"] != "0":
            return None
        body = a_record(topic="t", offset=0, body=b"nonsense", sys_flag=0xC0, properties=b"INNER_NUM\x015\x02")
        places = {"suggestWhichBrokerId": "0", "minOffset": "0", "maxOffset": "6", "nextBeginOffset": "6"}
        return response(command, fields=places, body=body + a_record(topic="t", offset=5))

    async with a_consumer() as (server, consumer):
        server.answers[PULL] = answer
        reader = QueueReader(consumer.plan, QUEUE, 0)
        reader.start()

        assert await consumer.offsets(1) == [5]
        await server.wait_for_requests(PULL, 2)
        assert reader.window.next_offset == 6
        reader.stop()
    assert any("batch at offset 0" in record.message and record.levelname == "ERROR" for record in caplog.records)


async def test_a_reader_that_rests_after_a_failure_can_be_told_to_go_on(monkeypatch: pytest.MonkeyPatch):
    """Its broker is back; it goes on where it was."""
    monkeypatch.setattr(pull_plan, "ERROR_PAUSE_S", 3600)
    monkeypatch.setattr(pull_plan, "ERROR_PAUSE_S_MAX", 3600)

    async with a_consumer() as (server, consumer):
        log = Log(server, 3)
        reader = QueueReader(consumer.plan, QUEUE, 0)
        reader.start()
        await consumer.offsets(3)
        await server.wait_for_requests(PULL, 2)
        log.end = 5
        server.drop_connections()
        await server.wait_for_requests(RequestCode.GET_ROUTEINFO_BY_TOPIC, 2)
        await run_ready_tasks()
        assert len(consumer.deliveries) == 3

        reader.resume()

        assert await consumer.offsets(5) == [0, 1, 2, 3, 4]
        reader.stop()


async def test_only_the_first_of_many_failures_is_worth_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """The operator knows by then."""
    monkeypatch.setattr(pull_plan, "ERROR_PAUSE_S", 0)

    async with a_consumer() as (server, consumer):
        server.refuse(PULL, 2, "busy")
        reader = QueueReader(consumer.plan, QUEUE, 0)
        reader.start()
        await server.wait_for_requests(PULL, 4)
        reader.stop()
    assert len([record for record in caplog.records if "pull of" in record.message]) == 1


# A replica beside the reader.


class Beside:
    """A master that sends readers of a unit to its replica, the replica, and a consumer of that unit."""

    def __init__(self, master: ScriptedServer, replica: ScriptedServer, consumer: Consumer) -> None:
        self.master, self.replica, self.consumer = master, replica, consumer
        self.logs = [Log(server, 3) for server in (master, replica)]
        for server, log in zip((master, replica), self.logs, strict=True):
            server.answers[PULL] = lambda command, log=log: self._answer(log, command)

    @staticmethod
    def _answer(log: Log, command: Command) -> Command | None:
        answer = log.answer(command)
        if answer is not None:
            answer.fields["suggestWhichBrokerId"] = "1"
        return answer

    def grow(self, end: int) -> None:
        """Let both have more; what is parked stays so."""
        for log in self.logs:
            log.end = end

    def pulls_at_replica(self) -> list[Command]:
        """Return what the replica was asked."""
        return [command for command in self.replica.requests if command.code == PULL]


@asynccontextmanager
async def beside_a_replica() -> AsyncIterator[tuple[Beside, QueueReader]]:
    async with (
        ScriptedServer() as master,
        ScriptedServer() as replica,
        ClusterClient(ClientOptions(master.address, unit="west")) as client,
    ):
        addresses = {0: master.address, 1: replica.address}
        data = BrokerData(cluster="east", broker_name="broker-a", broker_addrs=addresses)
        queues = QueueData(broker_name="broker-a", read_queues=1, write_queues=0, permission=4)
        route = Route(broker_datas=[data], queue_datas=[queues])
        master.on(RequestCode.GET_ROUTEINFO_BY_TOPIC, body=encode_route(route))
        await client.route("t")
        both = Beside(master, replica, Consumer(client))
        reader = QueueReader(both.consumer.plan, QUEUE, 0)
        reader.start()
        await both.consumer.offsets(3)
        await replica.wait_for_requests(PULL)
        yield both, reader
        reader.stop()


async def test_a_reader_goes_where_its_master_sends_it():
    """It says its unit, continues where it was, and comes back soon to hear whether it may stay."""
    async with beside_a_replica() as (both, _reader):
        first = next(command for command in both.master.requests if command.code == PULL)
        (second,) = both.pulls_at_replica()

        assert (first.fields["scope"], second.fields["scope"]) == ("west", "west")
        assert (first.fields["queueOffset"], second.fields["queueOffset"]) == ("0", "3")
        assert int(second.fields["suspendTimeoutMillis"]) < int(first.fields["suspendTimeoutMillis"])


async def test_a_reader_returns_to_the_master_when_the_replica_dies_or_hangs(monkeypatch: pytest.MonkeyPatch):
    """At once, where it was; and for a while it does not go back, whatever the master says."""
    monkeypatch.setattr(queue_reader, "_REPLICA_TIMEOUT_S", 0.05)

    async with beside_a_replica() as (both, _reader):
        both.grow(6)  # The replica never answers the pull that it has.

        assert await both.consumer.offsets(6) == [0, 1, 2, 3, 4, 5]
        await both.master.wait_for_requests(PULL, 3)
        assert len(both.pulls_at_replica()) == 1


@pytest.mark.parametrize("damage", ["refusal", "record"])
async def test_what_is_wrong_at_a_replica_is_read_at_the_master(monkeypatch: pytest.MonkeyPatch, damage: str):
    """A damaged record there is whole at the master: the queue does not stand still."""
    monkeypatch.setattr(queue_reader, "_REPLICA_TIMEOUT_S", 0.05)
    monkeypatch.setattr(queue_reader, "_REPLICA_AVOID_S", 0.0)

    async with beside_a_replica() as (both, _reader):
        both.grow(6)
        if damage == "record":
            both.logs[1].damaged = True
        else:
            both.replica.refuse(PULL, 1)

        assert await both.consumer.offsets(6) == [0, 1, 2, 3, 4, 5]


async def test_a_replica_that_does_not_know_the_group_yet_is_told_of_it():
    """By a heartbeat; then it is asked again."""
    async with beside_a_replica() as (both, reader):
        reader.stop()
        both.grow(6)
        known = both.replica.answers[PULL]
        both.replica.answers[PULL] = lambda command: (
            known(command) if len(both.pulls_at_replica()) > 2 else response(command, 24, "who?")
        )
        reader.start()

        assert await both.consumer.offsets(6) == [0, 1, 2, 3, 4, 5]
        assert len(both.pulls_at_replica()) >= 3
