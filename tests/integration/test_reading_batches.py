"""Consumers of ours read batches that a broker of ours keeps whole: as if there were none."""

import asyncio
from collections import Counter

import pytest
from tests.support.client_stories import Inbox, broker_addresses, new_name, read_all
from tests.support.cluster.operator import HoldfastCommand
from tests.support.cluster.raw_requests import make_topic
from tests.support.inner_batches import Item
from tests.support.whole_batches import ATTRIBUTES, an_inner_batch, send_commands

from holdfast import Batching, Message, Producer, PullConsumer, PushConsumer, RetryLater
from holdfast.admin.operations import Admin
from holdfast.wire.records.compression import Codec

CODECS: list[Codec | None] = [None, *Codec]
COUNT = 25
TOTAL = COUNT * len(CODECS)


def item(number: int) -> Item:
    unique_key = (
        f"7F0000010000000000000001{number + number // COUNT + 1:08X}"  # Each batch has one before its messages.
    )
    return Item(b"%d " % number * 20, unique_key, ("red", "green", None)[number % 3], f"k{number}", number)


@pytest.fixture
def batches(namesrv: str) -> str:
    """A topic with one queue, which holds a batch for every way to compress it."""
    topic = new_name("batches")
    address = asyncio.run(broker_addresses(namesrv))[0]
    make_topic(namesrv, [address], topic, queues=1, attributes=ATTRIBUTES)
    commands = [
        an_inner_batch(topic, [item(number * COUNT + at) for at in range(COUNT)], codec=codec)
        for number, codec in enumerate(CODECS)
    ]
    answers = send_commands(namesrv, address, commands)
    assert [answer.fields["queueOffset"] for answer in answers] == [str(COUNT * at) for at in range(len(CODECS))]
    return topic


@pytest.mark.parametrize("ordered", [False, True])
async def test_a_listener_gets_every_message_of_every_batch_once(
    namesrv: str, batches: str, group: str, *, ordered: bool
):
    """With its own content, in order if that is wanted; the group is then done with all of them."""
    inbox = Inbox()
    consumer = PushConsumer(namesrv, group, listener=inbox, start="earliest", ordered=ordered)
    consumer.subscribe(batches)
    async with consumer:
        await inbox.wait_for(TOTAL)

    got = inbox.messages if ordered else sorted(inbox.messages, key=lambda message: message.offset)
    assert [message.offset for message in got] == list(range(TOTAL))
    assert [(message.body, message.message_id, message.tags, message.keys, message.flag) for message in got] == [
        ((sent := item(number)).body, sent.unique_key, sent.tags, (sent.keys,), number) for number in range(TOTAL)
    ]
    async with PullConsumer(namesrv, group) as reader:
        (queue,) = await reader.queues(batches)
        assert await reader.committed(queue) == TOTAL


async def test_tags_are_found_within_batches(namesrv: str, batches: str, group: str):
    """Exactly the wanted ones; the others count as consumed."""
    inbox = Inbox()
    consumer = PushConsumer(namesrv, group, listener=inbox, start="earliest")
    consumer.subscribe(batches, "green")
    async with consumer:
        await inbox.wait_for(len(range(1, TOTAL, 3)))

    assert sorted(message.offset for message in inbox.messages) == list(range(1, TOTAL, 3))


@pytest.mark.parametrize("start", [7, COUNT, 3 * COUNT - 1])
async def test_a_reader_may_begin_within_a_batch(namesrv: str, batches: str, group: str, start: int):
    """Nothing from before is returned, and its position is that of the next message."""
    offsets: list[int] = []
    async with PullConsumer(namesrv, group) as consumer:
        (queue,) = await consumer.queues(batches)
        await consumer.assign([queue])
        await consumer.seek(queue, start)
        while len(offsets) < TOTAL - start:
            offsets += [message.offset for message in await consumer.poll(timeout_s=5, messages_max=10)]
            assert consumer.position(queue) == offsets[-1] + 1
    assert offsets == list(range(start, TOTAL))


async def test_a_message_that_fails_comes_again_alone(namesrv: str, batches: str, group: str):
    """One of each batch; the others are done once and for all."""
    failing = {item(number * COUNT + 5).keys for number in range(len(CODECS))}

    def fails(message: object) -> BaseException | None:
        return RetryLater(1) if {*message.keys} & failing and not message.reconsume_times else None  # type: ignore[attr-defined]

    inbox = Inbox(fails)
    consumer = PushConsumer(namesrv, group, listener=inbox, start="earliest")
    consumer.subscribe(batches)
    async with consumer:
        await inbox.wait_for(TOTAL)

    assert inbox.bodies() == Counter(item(number).body for number in range(TOTAL))
    again = [message for message in inbox.messages if message.reconsume_times]
    assert {key for message in again for key in message.keys} == failing
    assert {message.topic for message in again} == {batches}


@pytest.mark.parametrize("codec", [None, Codec.ZSTD])
async def test_what_a_producer_gathers_is_read_where_it_says(namesrv: str, codec: Codec | None):
    """Each message has the place that its future told, and is found by its id, kept in a whole batch or not."""
    topic = new_name("gathered")
    make_topic(namesrv, await broker_addresses(namesrv), topic, queues=2, attributes=ATTRIBUTES)

    async with Producer(namesrv, batching=Batching(codec=codec)) as producer:
        results = {}
        for first in range(0, 600, 100):
            futures = [producer.send_nowait(Message(topic, b"%d" % at)) for at in range(first, first + 100)]
            await producer.flush()
            results |= {b"%d" % at: future.result() for at, future in enumerate(futures, first)}
    messages = await read_all(namesrv, topic, 600)
    async with Admin(namesrv) as admin:
        for result in (results[b"0"], results[b"333"], results[b"599"]):
            (found,) = await admin.messages.by_id(topic, result.message_id)
            assert (found.message.message_id, found.message.offset) == (result.message_id, result.offset)
    places = {message.body: (message.queue, message.offset, message.message_id) for message in messages}
    assert places == {body: (result.queue, result.offset, result.message_id) for body, result in results.items()}


async def test_our_command_shows_single_messages(namesrv: str, batches: str):
    """By key, and the newest ten of a tag."""
    operator = HoldfastCommand(namesrv)
    found, shown = await asyncio.gather(
        operator.run("message", "query", batches, "--key", "k30"), operator.run("tail", batches, "--tag", "red")
    )
    (thirtieth,) = found["messages"]
    assert (thirtieth["offset"], thirtieth["id"], thirtieth["keys"]) == (30, item(30).unique_key, ["k30"])
    assert [message["offset"] for message in shown["messages"]] == list(range(72, 100, 3))
