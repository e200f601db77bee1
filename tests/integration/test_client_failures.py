"""Brokers die and operators intervene while clients work."""

import asyncio
from collections import Counter
from pathlib import Path

from tests.support.client_stories import Inbox, broker_addresses, new_name, run, until
from tests.support.cluster import Processes, make_topic, wait_until_gone

from holdfast import ClusterClient, Message, Producer, PushConsumer, SendResult
from holdfast.wire import java_json
from holdfast.wire.codes import RequestCode
from holdfast.wire.command import Command


def test_a_killed_broker_costs_no_send_and_no_message(tmp_path: Path):
    """Sends without keys go to the other broker; what was acknowledged is consumed once the broker is back."""

    async def story(processes: Processes) -> None:
        name_server = processes.start_name_server()
        alive = processes.start_broker("broker-a", name_server)
        victim = processes.start_broker("broker-b", name_server)
        make_topic(name_server, [alive.address, victim.address], "t", queues=2)
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
            await until(lambda: len(results) > 60)
            await asyncio.to_thread(victim.child.kill)
            await sending
            assert {result.queue.broker_name for result in results[-20:]} == {"broker-a"}
            await asyncio.to_thread(wait_until_gone, name_server, ["broker-b"])
            await asyncio.to_thread(
                processes.start_broker, "broker-b", name_server, port=victim.port, store=victim.store
            )
            await until(lambda: {message.message_id for message in inbox.messages} >= {r.message_id for r in results})

    with Processes(tmp_path) as processes:
        run(story(processes))


def test_an_operator_moves_a_group_back(namesrv: str, topic: str, group: str):
    """To the beginning, while it consumes; everything comes again."""

    async def story() -> None:
        inbox = Inbox()
        consumer = PushConsumer(namesrv, group, listener=inbox, start="earliest")
        consumer.subscribe(topic)
        async with Producer(namesrv) as producer, consumer, ClusterClient(namesrv) as operator:
            await producer.send_many(Message(topic, b"%d" % number) for number in range(10))
            await inbox.wait_for(10)
            for address in await broker_addresses(namesrv):
                fields = {"topic": topic, "group": group, "timestamp": "0", "isForce": "true"}
                await operator.invoke(address, Command(code=RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, fields=fields))
            # A reset is heard of with the answer to the next pull: messages wake the pulls that wait.
            for _ in range(4):
                await producer.send(topic, b"new")
            await until(lambda: all(inbox.bodies()[b"%d" % number] == 2 for number in range(10)))

    run(story())


def test_an_operator_looks_into_a_consumer(namesrv: str, topic: str):
    """Through a broker: what it subscribes to, which queues it has, how far it is."""

    async def story() -> None:
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

    run(story())
