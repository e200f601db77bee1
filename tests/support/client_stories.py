"""What stories about the client library are told with: a listener that can be waited for, and ways to read a topic."""

import asyncio
import uuid
from collections import Counter
from collections.abc import Callable

import holdfast
from holdfast import Producer, PullConsumer, PushConsumer, ReceivedMessage

TIMEOUT_S = 60


def new_name(kind: str) -> str:
    """Return a name that nobody else uses."""
    return f"{kind}-{uuid.uuid4().hex[:12]}"


async def broker_addresses(namesrv: str) -> list[str]:
    """Return where the brokers of a cluster listen."""
    async with holdfast.ClusterClient(namesrv) as client:
        return list((await client.cluster_brokers()).values())


class Inbox:
    """A listener that keeps what it gets, and lets a test wait for it.

    Args:
        find_error: Returns what to raise instead of keeping a message.
    """

    def __init__(self, find_error: Callable[[ReceivedMessage], BaseException | None] = lambda _: None) -> None:
        self.messages: list[ReceivedMessage] = []
        self._find_error = find_error
        self._arrived = asyncio.Condition()

    async def __call__(self, message: ReceivedMessage) -> None:
        """Take one."""
        error = self._find_error(message)
        if error is not None:
            raise error
        async with self._arrived:
            self.messages.append(message)
            self._arrived.notify_all()

    async def wait_for(self, count: int) -> list[ReceivedMessage]:
        """Return everything once there are *count*."""
        async with self._arrived:
            await self._arrived.wait_for(lambda: len(self.messages) >= count)
        return self.messages

    def bodies(self) -> Counter[bytes]:
        """Return what came, and how often."""
        return Counter(message.body for message in self.messages)


async def read_all(namesrv: str, topic: str, count: int) -> list[ReceivedMessage]:
    """Return the *count* messages of *topic*."""
    messages: list[ReceivedMessage] = []
    async with PullConsumer(namesrv, "reader", auto_commit=False) as consumer:
        await consumer.assign(await consumer.queues(topic))
        await consumer.seek_all("earliest")
        while len(messages) < count:
            messages += await consumer.poll(timeout_s=5, messages_max=1000)
    return messages


async def wait_for_message(namesrv: str, topic: str) -> list[ReceivedMessage]:
    """Return the first message of a topic that does not exist yet. The name server pushes nothing to wait on."""
    while True:
        try:
            return await read_all(namesrv, topic, 1)
        except holdfast.RouteNotFound:
            await asyncio.sleep(0.1)


async def poll_until(condition: Callable[[], bool]) -> None:
    """Return once *condition* is true."""
    while not condition():  # noqa: ASYNC110 - what is waited for tells nobody
        await asyncio.sleep(0.02)


async def queue_count(producer: Producer, topic: str) -> int | None:
    """Return to how many queues of *topic* a producer can send; None when there is no such topic."""
    try:
        return len(await producer.queues(topic))
    except holdfast.RouteNotFound:
        return None


async def wait_for_queues(producer: Producer, topic: str, count: int) -> None:
    """Return once *producer* can send to so many queues of *topic*."""
    while await queue_count(producer, topic) != count:  # noqa: ASYNC110 - it tells nobody when it learns of them
        await asyncio.sleep(0.02)


async def wait_until_assigned(*consumers: PushConsumer, topic: str) -> None:
    """Return once every one of *consumers* has queues of *topic*."""
    await poll_until(lambda: all(any(queue.topic == topic for queue in consumer.assignment) for consumer in consumers))
