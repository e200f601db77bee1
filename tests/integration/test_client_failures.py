"""Brokers die and operators intervene while clients work."""

import asyncio
from collections import Counter
from pathlib import Path

import msgspec
import pytest
from tests.support.client_stories import Inbox, broker_addresses, new_name, poll_until, wait_until_assigned
from tests.support.cluster.processes import ProcessCluster

import holdfast
from holdfast import ClusterClient, Message, Producer, PullConsumer, PushConsumer, SendResult
from holdfast.wire.frames import java_json
from holdfast.wire.frames.codes import RequestCode
from holdfast.wire.frames.command import Command

_JAVA_4_9_7 = 407


async def test_a_killed_broker_costs_no_send_and_no_message(tmp_path: Path):
    """Sends without keys go to the other broker; what was acknowledged is consumed once the broker is back."""
    with ProcessCluster(tmp_path, "broker-a", "broker-b") as cluster:
        name_server = cluster.namesrv
        cluster.make_topic("t", queues=2)
        inbox, results = Inbox(), list[SendResult]()
        consumer = PushConsumer(name_server, "g", listener=inbox, start="earliest")
        consumer.subscribe("t")
        async with Producer(name_server) as producer, consumer:

            async def send(count: int) -> None:
                for number in range(count):
                    results.append(await producer.send("t", b"%d" % len(results), properties={"n": str(number)}))

            await send(20)
            await inbox.wait_for(20)
            sending = asyncio.create_task(send(200))
            await poll_until(lambda: len(results) > 60)
            await asyncio.to_thread(cluster.kill, "broker-b")
            await sending
            assert {result.queue.broker_name for result in results[-20:]} == {"broker-a"}
            await asyncio.to_thread(cluster.wait_until_gone, "broker-b")
            await asyncio.to_thread(cluster.restart, "broker-b")
            await poll_until(
                lambda: {message.message_id for message in inbox.messages} >= {r.message_id for r in results}
            )


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("brokers", [1, 2])
async def test_a_crashed_broker_that_comes_back_costs_no_repetition(tmp_path: Path, *, ordered: bool, brokers: int):
    """Both members keep their queues and their places, and repair the offsets that the broker forgot."""
    names = ["broker-a", "broker-b"][:brokers]
    with ProcessCluster(tmp_path, *names, flush="sync") as cluster:
        name_server = cluster.namesrv
        cluster.make_topic("t", queues=4)
        inbox = Inbox()
        members = [
            PushConsumer(name_server, "g", listener=inbox, ordered=ordered, start="earliest", concurrency=4)
            for _ in range(2)
        ]
        for member in members:
            member.subscribe("t")
        async with Producer(name_server) as producer, members[0], members[1]:
            await wait_until_assigned(*members, topic="t")
            await poll_until(lambda: sum(queue.topic == "t" for m in members for queue in m.assignment) == 4 * brokers)
            owned = [member.assignment for member in members]
            await producer.send_many(Message("t", b"%d" % number, key=str(number % 16)) for number in range(400))
            await inbox.wait_for(400)

            await asyncio.to_thread(cluster.kill, names[-1])
            await asyncio.to_thread(cluster.restart, names[-1])
            await producer.send_many(Message("t", b"%d" % number, key=str(number % 16)) for number in range(400, 800))

            await inbox.wait_for(800)
            assert inbox.bodies() == Counter(b"%d" % number for number in range(800))
            assert [member.assignment for member in members] == owned
            if ordered:
                for key in range(16):
                    seen = [int(m.body) for m in inbox.messages if m.properties["KEYS"] == str(key)]
                    assert seen == sorted(seen)
        async with PullConsumer(name_server, "g", auto_commit=False) as reader:
            for queue in await reader.queues("t"):
                end = await reader.offset_of(queue, "latest")
                assert (await reader.committed(queue) or 0) == end


async def test_a_reader_keeps_its_position_through_a_crash(tmp_path: Path):
    """What it committed by hand is there again; what it did not is not."""
    with ProcessCluster(tmp_path, "broker-a", flush="sync") as cluster:
        name_server = cluster.namesrv
        cluster.make_topic("t", queues=1)
        async with Producer(name_server) as producer, PullConsumer(name_server, "g", auto_commit=False) as consumer:
            await producer.send_many(Message("t", b"%d" % number) for number in range(50))
            (queue,) = await consumer.queues("t")
            await consumer.assign([queue])
            await consumer.seek(queue, "earliest")
            first = await consumer.poll(10, messages_max=10)
            await consumer.commit()
            more = await consumer.poll(10, messages_max=10)

            await asyncio.to_thread(cluster.kill, "broker-a")
            await asyncio.to_thread(cluster.restart, "broker-a")

            rest = []
            while len(first + more + rest) < 50:
                rest += await consumer.poll(10)
            assert [message.offset for message in first + more + rest] == list(range(50))
            while await consumer.committed(queue) != len(first):  # noqa: ASYNC110 - it is repaired beside everything else
                await asyncio.sleep(0.02)


async def test_an_operator_moves_a_group_back(namesrv: str, topic: str, group: str):
    """To the beginning, while it consumes; everything comes again."""
    inbox = Inbox()
    consumer = PushConsumer(namesrv, group, listener=inbox, start="earliest")
    consumer.subscribe(topic)
    async with Producer(namesrv) as producer, consumer, ClusterClient(namesrv) as operator:
        await producer.send_many(Message(topic, b"%d" % number) for number in range(10))
        await inbox.wait_for(10)
        await consumer._offset_store.save()  # Java brokers of 4.x move only groups that have committed
        for address in await broker_addresses(namesrv):
            fields = {"topic": topic, "group": group, "timestamp": "0", "isForce": "true"}
            await operator.invoke(address, Command(code=RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, fields=fields))
        # A reset is heard of with the answer to the next pull: messages wake the pulls that wait.
        for _ in range(4):
            await producer.send(topic, b"new")
        await poll_until(lambda: all(inbox.bodies()[b"%d" % number] >= 2 for number in range(10)))
        await poll_until(lambda: inbox.bodies()[b"new"] >= 4)
    again = {body: times for body, times in inbox.bodies().items() if body != b"new"}
    assert again == {b"%d" % number: 2 for number in range(10)}


@pytest.mark.parametrize("ordered", [True, False])
async def test_a_consumer_that_is_told_to_begin_elsewhere_does_so_at_once(namesrv: str, topic: str, *, ordered: bool):
    """As brokers tell members of 4.x (220); no message has to come first, and the broker knows the new offsets."""
    group, inbox = new_name("group"), Inbox()
    consumer = PushConsumer(namesrv, group, listener=inbox, ordered=ordered, start="earliest")
    consumer.subscribe(topic)
    introduce_as_java_4(consumer)
    async with Producer(namesrv) as producer, consumer, ClusterClient(namesrv) as operator:
        await producer.send_many(Message(topic, b"%d" % number) for number in range(10))
        await inbox.wait_for(10)
        await consumer._offset_store.save()  # Java brokers of 4.x move only groups that have committed
        for address in await broker_addresses(namesrv):
            fields = {"topic": topic, "group": group, "timestamp": "0", "isForce": "true"}
            await operator.invoke(address, Command(code=RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, fields=fields))

        await inbox.wait_for(20)
        assert inbox.bodies() == Counter({b"%d" % number: 2 for number in range(10)})


def introduce_as_java_4(consumer: PushConsumer) -> None:
    """Let *consumer* say in its heartbeats that it is a Java client of version 4.9.7."""
    client = consumer._member.client
    usual = client._callbacks.heartbeat
    assert usual is not None
    client._callbacks = msgspec.structs.replace(
        client._callbacks,
        heartbeat=lambda: msgspec.structs.replace(usual(), language="JAVA", version=_JAVA_4_9_7),
    )


@pytest.mark.parametrize("ordered", [True, False])
async def test_an_operator_has_a_message_consumed(namesrv: str, topic: str, *, ordered: bool):
    """By a member of their choice, now (309), and sees what the listener made of it. Offsets do not move."""
    group, calls = new_name("group"), list[holdfast.ReceivedMessage]()

    def listen(message: holdfast.ReceivedMessage) -> None:
        calls.append(message)
        if len(calls) == 3:
            raise ValueError("not again")
        if len(calls) == 4:
            raise holdfast.RetryLater(5)

    consumer = PushConsumer(namesrv, group, listener=listen, ordered=ordered, start="earliest")
    consumer.subscribe(topic)
    async with Producer(namesrv) as producer, consumer, ClusterClient(namesrv) as operator:
        sent = await producer.send(topic, b"hello", tags="red", key="k")
        await poll_until(lambda: len(calls) == 1)
        address = (await operator.cluster_brokers())[sent.queue.broker_name]
        fields = {"consumerGroup": group, "clientId": consumer.client_id, "msgId": sent.offset_id, "topic": topic}
        results = []
        for _ in range(3):
            command = Command(code=RequestCode.CONSUME_MESSAGE_DIRECTLY, fields=dict(fields))
            results.append(java_json.loads((await operator.invoke(address, command)).body))

    assert [result["consumeResult"] for result in results] == ["CR_SUCCESS", "CR_THROW_EXCEPTION", "CR_LATER"]
    assert {result["order"] for result in results} == {ordered}
    assert "ValueError: not again" in results[1]["remark"]
    assert len(calls) == 4
    assert {(call.message_id, call.queue, call.offset, call.body, call.tags, call.key) for call in calls} == {
        (sent.message_id, sent.queue, sent.offset, b"hello", "red", "k")
    }


async def test_an_operator_looks_into_a_consumer(namesrv: str, topic: str):
    """Through a broker: what it subscribes to, which queues it has, how far it is."""
    group, inbox = new_name("group"), Inbox()
    consumer = PushConsumer(namesrv, group, listener=inbox, ordered=True, start="earliest")
    consumer.subscribe(topic, "red")
    async with Producer(namesrv) as producer, consumer, ClusterClient(namesrv) as operator:
        await producer.send(topic, b"x", tags="red")
        await inbox.wait_for(1)
        (address, *_) = await broker_addresses(namesrv)
        fields = {"consumerGroup": group, "clientId": consumer.client_id, "jstackEnable": "false"}
        answer = await operator.invoke(address, Command(code=RequestCode.GET_CONSUMER_RUNNING_INFO, fields=fields))

    info = java_json.loads(answer.body)
    assert {item["topic"]: item["subString"] for item in info["subscriptionSet"]}[topic] == "red"
    assert Counter(status["locked"] for status in info["mqTable"].values())[True] >= 2
    assert info["properties"]["PROP_CONSUMEORDERLY"] == "true"
