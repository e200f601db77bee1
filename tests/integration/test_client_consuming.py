"""Consuming as a member of a group, from a cluster of ours."""

import asyncio
from collections import Counter, defaultdict
from pathlib import Path

from tests.support.client_stories import Inbox, poll_until, wait_for_message, wait_until_assigned

from holdfast import (
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    RetryLater,
)


async def test_a_listener_gets_every_message_once(namesrv: str, topic: str, group: str):
    """Those sent before it came, and those sent after."""
    inbox = Inbox()
    async with Producer(namesrv) as producer:
        await asyncio.gather(*(producer.send(topic, b"%d" % n) for n in range(100)))
        consumer = PushConsumer(namesrv, group, listener=inbox, start="earliest")
        consumer.subscribe(topic)
        async with consumer:
            await inbox.wait_for(100)
            await asyncio.gather(*(producer.send(topic, b"%d" % n) for n in range(100, 200)))
            await inbox.wait_for(200)

    assert inbox.bodies() == Counter(b"%d" % n for n in range(200))


async def test_a_plain_function_may_be_a_listener(namesrv: str, topic: str, group: str):
    """It runs in a thread and may block."""
    loop = asyncio.get_running_loop()
    got: asyncio.Queue[bytes] = asyncio.Queue()

    def listen(message: ReceivedMessage) -> None:
        asyncio.run_coroutine_threadsafe(got.put(message.body), loop).result()

    async with Producer(namesrv) as producer:
        await producer.send(topic, b"hello")
        consumer = PushConsumer(namesrv, group, listener=listen, start="earliest")
        consumer.subscribe(topic)
        async with consumer:
            assert await got.get() == b"hello"


async def test_only_the_wanted_tags_come(namesrv: str, topic: str, group: str):
    """Exactly those; the others count as consumed."""
    inbox = Inbox()
    async with Producer(namesrv) as producer:
        for tag in ("red", "green", "blue", "Aa", "BB"):  # the last two have one hash
            await producer.send(topic, tag.encode(), tags=tag)
        consumer = PushConsumer(namesrv, group, listener=inbox, start="earliest")
        consumer.subscribe(topic, "red || blue || Aa")
        async with consumer:
            await inbox.wait_for(3)
            await producer.send(topic, b"last", tags="red")
            await inbox.wait_for(4)

    assert inbox.bodies() == Counter([b"red", b"blue", b"Aa", b"last"])


async def test_what_a_listener_failed_on_comes_again(namesrv: str, topic: str, group: str):
    """Under its own topic and id, with the number of failures before."""
    inbox = Inbox(lambda message: RetryLater(1) if not message.reconsume_times else None)
    async with Producer(namesrv) as producer:
        result = await producer.send(topic, b"hard", tags="red")
        consumer = PushConsumer(namesrv, group, listener=inbox, start="earliest")
        consumer.subscribe(topic, "red")
        async with consumer:
            (message,) = await inbox.wait_for(1)

    assert (message.topic, message.body, message.reconsume_times) == (topic, b"hard", 1)
    assert message.message_id == result.message_id


async def test_what_fails_too_often_goes_to_the_dead_letter_topic(namesrv: str, topic: str, group: str):
    """With no retry allowed, at once."""
    inbox = Inbox(lambda _: ValueError("never"))
    async with Producer(namesrv) as producer:
        await producer.send(topic, b"hopeless")
        consumer = PushConsumer(namesrv, group, listener=inbox, start="earliest", retries_max=0)
        consumer.subscribe(topic)
        async with consumer:
            (message,) = await wait_for_message(namesrv, f"%DLQ%{group}")

    assert message.body == b"hopeless"


async def test_ordered_consumers_share_the_queues_and_keep_the_order(namesrv: str, topic: str, group: str):
    """While members come and go, each key's messages are consumed in order; nothing is missing."""
    seen: dict[str, list[int]] = defaultdict(list)
    inbox = Inbox()

    async def listen(message: ReceivedMessage) -> None:
        assert message.key is not None
        number = int(message.body)
        if not seen[message.key] or seen[message.key][-1] != number:  # a repetition is allowed, a step back is not
            seen[message.key].append(number)
        await inbox(message)

    def consumer() -> PushConsumer:
        made = PushConsumer(namesrv, group, listener=listen, ordered=True, start="earliest")
        made.subscribe(topic)
        return made

    async with Producer(namesrv) as producer:
        await producer.send(topic, b"0", key="a")

        async def send(first: int, last: int) -> None:
            for number in range(first, last):
                await asyncio.gather(*(producer.send(topic, b"%d" % number, key=key) for key in "abcdefgh"))

        async with consumer() as one:
            await send(1, 20)
            async with consumer() as two:
                await wait_until_assigned(one, two, topic=topic)
                await send(20, 40)
            await send(40, 60)
            await poll_until(lambda: len(seen) == 8 and all(numbers[-1] == 59 for numbers in seen.values()))

    assert seen.pop("a") == list(range(60))
    assert all(numbers == list(range(1, 60)) for numbers in seen.values())


async def test_an_ordered_listener_that_fails_holds_its_queue(namesrv: str, topic: str, group: str):
    """The message is tried again until it works, and only then the next one."""
    failures = iter([True, True, False, False, False])
    inbox = Inbox(lambda _: ValueError("not yet") if next(failures) else None)
    async with Producer(namesrv) as producer:
        for number in range(3):
            await producer.send(topic, b"%d" % number, key="k")
        consumer = PushConsumer(namesrv, group, listener=inbox, ordered=True, start="earliest", pause_s=0.05)
        consumer.subscribe(topic)
        async with consumer:
            messages = await inbox.wait_for(3)

    assert [message.body for message in messages] == [b"0", b"1", b"2"]
    assert [message.reconsume_times for message in messages] == [2, 0, 0]


async def test_closing_loses_and_repeats_nothing(namesrv: str, topic: str, group: str):
    """What one member consumed before it was closed, the next one does not get; the rest it does."""
    first, second = Inbox(), Inbox()
    async with Producer(namesrv) as producer:
        await asyncio.gather(*(producer.send(topic, b"%d" % n) for n in range(300)))
        consumer = PushConsumer(namesrv, group, listener=first, start="earliest", concurrency=3)
        consumer.subscribe(topic)
        async with consumer:
            await first.wait_for(50)
        following = PushConsumer(namesrv, group, listener=second)
        following.subscribe(topic)
        async with following:
            await second.wait_for(300 - len(first.messages))

    assert first.bodies() + second.bodies() == Counter(b"%d" % n for n in range(300))


async def test_closing_waits_for_a_listener_that_runs(namesrv: str, topic: str, group: str):
    """And commits what it did."""
    begun, may_end = asyncio.Event(), asyncio.Event()
    ended: list[bytes] = []

    async def listen(message: ReceivedMessage) -> None:
        begun.set()
        await may_end.wait()
        ended.append(message.body)

    async with Producer(namesrv) as producer:
        result = await producer.send(topic, b"slow")
        consumer = PushConsumer(namesrv, group, listener=listen, start="earliest")
        consumer.subscribe(topic)
        await consumer.start()
        await begun.wait()
        closing = asyncio.create_task(consumer.close())
        may_end.set()
        await closing

    assert ended == [b"slow"]
    async with PullConsumer(namesrv, group) as reader:
        await reader.queues(topic)
        assert await reader.committed(result.queue) == result.offset + 1


async def test_a_loop_is_done_with_a_message_when_it_asks_for_the_next(namesrv: str, topic: str, group: str):
    """One that is left by `break` leaves its last message for the next loop."""
    async with Producer(namesrv) as producer:
        for number in range(5):
            await producer.send(topic, b"%d" % number, key="k")

    async def take(count: int) -> list[bytes]:
        taken: list[bytes] = []
        consumer = PushConsumer(namesrv, group, ordered=True, start="earliest")
        consumer.subscribe(topic)
        async with consumer:
            async for message in consumer:
                taken.append(message.body)
                if len(taken) == count:
                    break
        return taken

    assert await take(3) == [b"0", b"1", b"2"]
    assert await take(3) == [b"2", b"3", b"4"]


async def test_broadcasting_members_each_get_everything(namesrv: str, topic: str, group: str, tmp_path: Path):
    """And go on where their own file says."""

    def member(inbox: Inbox, name: str) -> PushConsumer:
        consumer = PushConsumer(
            namesrv, group, listener=inbox, broadcast=True, offset_file=tmp_path / name, start="earliest"
        )
        consumer.subscribe(topic)
        return consumer

    one, two, again = Inbox(), Inbox(), Inbox()
    async with Producer(namesrv) as producer:
        await asyncio.gather(*(producer.send(topic, b"%d" % n) for n in range(50)))
        async with member(one, "one"), member(two, "two"):
            await one.wait_for(50)
            await two.wait_for(50)
        await producer.send(topic, b"new")
        async with member(again, "one"):
            await again.wait_for(1)

    assert one.bodies() == two.bodies() == Counter(b"%d" % n for n in range(50))
    assert again.bodies() == Counter([b"new"])
