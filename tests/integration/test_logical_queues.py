"""Static topics as operators and applications meet them, on real processes: tables, searches, a leader that dies."""

import asyncio
import contextlib
import json
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from tests.support.client_stories import Inbox, poll_until, wait_until_assigned
from tests.support.cluster.operator import HoldfastCommand
from tests.support.cluster.process_presets import TOPIC, create_static, static_topic_cluster
from tests.support.cluster.processes import ProcessCluster
from tests.support.move_load import StaticTopicLoad

from holdfast import Message, Producer, PullConsumer, PushConsumer, ReceivedMessage, SendResult
from holdfast.admin.operations import Admin
from holdfast.client.cluster.cluster_client import ClusterClient
from holdfast.model.errors import SendFailed
from holdfast.wire.frames.codes import RequestCode
from holdfast.wire.frames.command import Command
from holdfast.wire.requests.moves import OffsetBackupList, OffsetBackupQuery, decode_body, encode_body

pytestmark = pytest.mark.timeout(170)

GROUP = "readers"
GAP = 1 << 40  # how far behind a dead leader's last known offset the next home begins


async def send(namesrv: str, queue: int, *numbers: int, topic: str = TOPIC) -> list[SendResult]:
    """Send a message for each number to one logical queue."""
    async with Producer(namesrv, timeout_s=20) as producer:
        target = (await producer.queues(topic))[queue]
        return [
            await producer.send(Message(topic, b"%d" % number, keys=(f"n{number}",)), queue=target)
            for number in numbers
        ]


async def read(namesrv: str, queue: int, count: int, *, start: int | None = 0) -> list[ReceivedMessage]:
    """Return *count* messages of one logical queue, from where the group is if nothing is said; let it have them."""
    messages: list[ReceivedMessage] = []
    async with PullConsumer(namesrv, GROUP, auto_commit=False) as consumer:
        target = (await consumer.queues(TOPIC))[queue]
        await consumer.assign([target])
        if start is not None:
            await consumer.seek(target, start)
        while len(messages) < count:
            messages += await consumer.poll(timeout_s=5, messages_max=1000)
        await consumer.commit()
    return messages


def numbers(messages: list[ReceivedMessage]) -> list[int]:
    return [int(message.body) for message in messages]


def offsets(messages: list[ReceivedMessage]) -> list[int]:
    return [message.offset for message in messages]


async def expire(namesrv: str, broker: str) -> None:
    """Let what the group has read expire on *broker*."""
    async with Admin(namesrv) as admin:
        dropped, kept = await admin.draining.discard_consumed(broker, [GROUP])
    assert dropped
    assert not kept, kept


async def led_by(operator: HoldfastCommand, broker: str) -> list[int]:
    """Return the queues that *broker* leads."""
    return sorted(queue for queue, leader in (await operator.leaders(TOPIC)).items() if leader == broker)


async def test_the_tables_of_the_proposal(tmp_path: Path):
    """Migrate, expire, migrate back onto an expired queue and onto an unexpired one, as `queue list` shows them."""
    with static_topic_cluster(tmp_path, "broker1", "broker2") as stage:
        operator = stage.operator
        await create_static(stage, "broker1", "broker2", queues=4)
        p, q = await led_by(operator, "broker1")
        r, s = await led_by(operator, "broker2")
        others = [f"broker2 | 0 | {r} | Normal", f"broker2 | 1 | {s} | Normal"]
        assert await operator.rows(TOPIC) == [f"broker1 | 0 | {p} | Normal", f"broker1 | 1 | {q} | Normal", *others]

        await send(stage.namesrv, p, *range(101))
        moved = await operator.run("queue", "migrate", TOPIC, str(p), "--to", "broker2")
        assert moved["bytes_copied"] == 0
        assert await operator.rows(TOPIC) == [
            f"broker1 | 0 | {p}(0-100) | ReadOnly",
            f"broker1 | 1 | {q} | Normal",
            *others,
            f"broker2 | 2 | {p}(101-) | Normal",
        ]

        assert offsets(await read(stage.namesrv, p, 101)) == list(range(101))
        await expire(stage.namesrv, "broker1")
        assert (await operator.rows(TOPIC))[0] == f"broker1 | 0 | {p}(-) | Expired"

        await send(stage.namesrv, p, *range(101, 201))
        await operator.run("queue", "migrate", TOPIC, str(p), "--to", "broker1")
        assert await operator.rows(TOPIC) == [
            f"broker1 | 0 | {p}(201-) | Normal",
            f"broker1 | 1 | {q} | Normal",
            *others,
            f"broker2 | 2 | {p}(101-200) | ReadOnly",
        ]

        await send(stage.namesrv, p, *range(201, 301))
        await operator.run("queue", "migrate", TOPIC, str(p), "--to", "broker2")
        assert await operator.rows(TOPIC) == [
            f"broker1 | 0 | {p}(201-300) | ReadOnly",
            f"broker1 | 1 | {q} | Normal",
            *others,
            f"broker2 | 2 | {p}(101-200) | ReadOnly",
            f"broker2 | 3 | {p}(301-) | Normal",
        ]
        await send(stage.namesrv, p, 301)
        assert numbers(await read(stage.namesrv, p, 201)) == list(range(101, 302))


async def test_a_broker_goes_and_a_new_one_comes(tmp_path: Path):
    """Drained, it still serves what it has; with that consumed it can be removed; a new broker gets its share."""
    with static_topic_cluster(tmp_path, "broker1", "broker2") as stage:
        operator = stage.operator
        await create_static(stage, "broker1", "broker2", queues=4)
        mine, yours = await led_by(operator, "broker1"), await led_by(operator, "broker2")
        for queue in yours:
            await send(stage.namesrv, queue, *range(101))

        drained = await operator.run("broker", "drain", "broker2")
        assert not drained["removable"]
        assert {hold["kind"] for hold in drained["holds"]} >= {"records"}
        assert sorted(await operator.rows(TOPIC)) == sorted(
            [
                *(f"broker1 | {number} | {queue} | Normal" for number, queue in enumerate(mine)),
                *(f"broker1 | {number + 2} | {queue}(101-) | Normal" for number, queue in enumerate(yours)),
                *(f"broker2 | {number} | {queue}(0-100) | ReadOnly" for number, queue in enumerate(yours)),
            ]
        )
        status, said = await operator.attempt("broker", "remove", "broker2", "--yes")
        assert status == 1, said

        for queue in yours:
            assert offsets(await read(stage.namesrv, queue, 101)) == list(range(101))
        drained = await operator.run("broker", "drain", "broker2", "--wait", "--discard-consumed", GROUP)
        assert drained["removable"], drained["holds"]
        await operator.run("broker", "remove", "broker2", "--yes")
        await asyncio.to_thread(stage.stop, "broker2")
        assert [row.split(" | ")[0] for row in await operator.rows(TOPIC)] == ["broker1"] * 4

        for queue in yours:
            await send(stage.namesrv, queue, *range(101, 201))
        await asyncio.to_thread(stage.start, "broker3")
        await operator.run("broker", "spread", "broker3")
        assert len(await led_by(operator, "broker3")) == 2
        for queue in yours:
            assert offsets(await read(stage.namesrv, queue, 100)) == list(range(101, 201))


async def test_a_drain_waits_for_everything_that_the_broker_is_still_needed_for(tmp_path: Path):
    """A delayed message, an open transaction, a message to be tried again: each holds it, and then it can go."""
    retried = [b"retried %d" % number for number in range(12)]  # each to a broker of chance, so some to this one

    def refuse(message: ReceivedMessage) -> BaseException | None:
        return ValueError("not yet") if message.body in retried else None

    # The second level is long enough to be seen; retries begin with the third.
    settings = {"delay_levels": "1s 10s 1s", "transaction_check_interval_ms": 500}
    with static_topic_cluster(tmp_path, "broker-a", "broker-b", settings=settings) as stage:
        operator = stage.operator
        await create_static(stage, "broker-a", queues=2)
        first, inbox = Inbox(refuse), Inbox()
        async with Producer(stage.namesrv, "shop", timeout_s=20) as producer, Admin(stage.namesrv) as admin:
            async with a_consumer(stage.namesrv, first) as consumer:
                await wait_until_assigned(consumer, topic=TOPIC)
                for body in retried:
                    await producer.send(Message(TOPIC, body))
                await producer.send(Message(TOPIC, b"plain"))
                await first.wait_for(1)
                await until_sent_back(admin, "broker-a")
            await producer.send(Message(TOPIC, b"delayed", delay_level=2))
            async with producer.transaction(Message(TOPIC, b"transactional")):
                draining = await operator.start("broker", "drain", "broker-a", "--wait", "--discard-consumed", GROUP)
                held: set[str] = set()
                while not held >= {"delayed", "half", "retry"}:
                    held |= {hold.kind for hold in await admin.draining.find_blockers("broker-a")}
                    await asyncio.sleep(0.05)  # brokers tell nobody what they are needed for
                status, said = await operator.attempt("broker", "remove", "broker-a", "--yes")
                assert (status, draining.returncode) == (1, None), said
                assert "still needed" in said
            async with a_consumer(stage.namesrv, inbox):
                await poll_until(lambda: inbox.bodies().keys() >= {*retried, b"delayed", b"transactional"})
                said_json, _ = await draining.communicate()
        assert json.loads(said_json)["removable"], said_json
        await operator.run("broker", "remove", "broker-a", "--yes")
        await asyncio.to_thread(stage.stop, "broker-a")
        assert {row.split(" | ")[0] for row in await operator.rows(TOPIC)} == {"broker-b"}
        assert inbox.bodies() == dict.fromkeys((*retried, b"delayed", b"transactional"), 1)


def a_consumer(namesrv: str, inbox: Inbox) -> PushConsumer:
    consumer = PushConsumer(namesrv, GROUP, listener=inbox, start="earliest")
    consumer.subscribe(TOPIC)
    return consumer


async def until_sent_back(admin: Admin, broker: str) -> None:
    """Return once a message waits on *broker* to be tried again."""
    while not any(hold.kind in {"delayed", "retry"} for hold in await admin.draining.find_blockers(broker)):  # noqa: ASYNC110
        await asyncio.sleep(0.05)  # brokers tell nobody what they are needed for


async def test_searches_resets_and_lag_are_exact_across_homes(tmp_path: Path):
    """By offset, by time and by key, backwards over the border of two homes, while the old home is elsewhere."""
    with static_topic_cluster(tmp_path, "broker-a", "broker-b") as stage:
        operator = stage.operator
        await create_static(stage, "broker-a", queues=2)
        await send(stage.namesrv, 0, *range(50))
        await operator.run("queue", "migrate", TOPIC, "0", "--to", "broker-b")
        between = datetime.now(UTC) + timedelta(milliseconds=1)
        await asyncio.sleep(0.005)  # clocks of messages count milliseconds
        await send(stage.namesrv, 0, *range(50, 100))

        assert numbers(await read(stage.namesrv, 0, 100)) == list(range(100))
        assert await lag(operator) == 0
        await operator.run("group", "reset", GROUP, TOPIC, "--to", "30", "--queue", "0", "--yes")
        assert await lag(operator) == 70
        assert numbers(await read(stage.namesrv, 0, 70, start=None)) == list(range(30, 100))

        async with PullConsumer(stage.namesrv, GROUP, auto_commit=False) as consumer:
            queue = (await consumer.queues(TOPIC))[0]
            assert await consumer.offset_of(queue, "earliest") == 0
            assert await consumer.offset_of(queue, "latest") == 100
            assert await consumer.offset_of(queue, between) == 50
            assert await consumer.offset_of(queue, between - timedelta(hours=1)) == 0
        for number in (7, 77):
            found = (await operator.run("message", "query", TOPIC, "--key", f"n{number}"))["messages"]
            assert [(one["queue"], one["offset"], one["body"]) for one in found] == [(0, number, str(number))]


async def lag(operator: HoldfastCommand) -> int:
    """Return how far the group is behind."""
    total: int = (await operator.run("group", "lag", GROUP, TOPIC))["lag"]
    return total


async def test_delayed_transactional_and_retried_messages_come_through_a_move(tmp_path: Path):
    """Sent before the queues move, due, decided or refused after it: each comes once, or once more where refused."""
    with static_topic_cluster(tmp_path, "broker-a", "broker-b") as stage:
        operator = stage.operator
        await create_static(stage, "broker-a", queues=2)
        refused = set[bytes]()

        def refuse_once(message: ReceivedMessage) -> BaseException | None:
            if message.body.startswith(b"retried") and message.body not in refused:
                refused.add(message.body)
                return ValueError("not yet")
            return None

        inbox = Inbox(refuse_once)
        consumer = PushConsumer(stage.namesrv, GROUP, listener=inbox, start="earliest")
        consumer.subscribe(TOPIC)
        async with Producer(stage.namesrv, "shop", timeout_s=20) as producer, consumer:
            await wait_until_assigned(consumer, topic=TOPIC)
            for number in range(4):
                await producer.send(Message(TOPIC, b"delayed %d" % number, key=str(number), delay_level=2))
                await producer.send(Message(TOPIC, b"retried %d" % number, key=str(number)))
            async with contextlib.AsyncExitStack() as transactions:
                for number in range(4):
                    half = producer.transaction(Message(TOPIC, b"transactional %d" % number, key=str(number)))
                    await transactions.enter_async_context(half)
                await operator.run("topic", "move", TOPIC, "--to", "broker-b")
            expected = {
                b"%s %d" % (kind, number): 1
                for kind in (b"delayed", b"retried", b"transactional")
                for number in range(4)
            }
            await poll_until(lambda: inbox.bodies().keys() >= expected.keys())
            assert inbox.bodies() == expected
            assert len(refused) == 4


async def test_a_dead_leader_does_not_stop_its_queues(tmp_path: Path):
    """Forced elsewhere behind a gap; consumers wait at the unknown end; the broker returns fenced, with all it had."""
    with static_topic_cluster(tmp_path, "broker-a", "broker-b", flush="sync") as stage:
        operator = stage.operator
        await create_static(stage, "broker-a", queues=2)
        await send(stage.namesrv, 0, *range(20))
        assert numbers(await read(stage.namesrv, 0, 20)) == list(range(20))
        await send(stage.namesrv, 0, *range(20, 30))  # acknowledged by the broker that dies, and read by nobody
        status, said = await operator.attempt("broker", "evacuate", "broker-a", "--force", "--yes")
        assert status == 1, said  # it lives

        await asyncio.to_thread(stage.kill, "broker-a")
        await operator.run("broker", "evacuate", "broker-a", "--force", "--yes")
        assert await operator.leaders(TOPIC) == {0: "broker-b", 1: "broker-b"}
        results = await send(stage.namesrv, 0, *range(30, 40))
        assert all(result.offset >= GAP for result in results)

        inbox = Inbox()
        consumer = PushConsumer(stage.namesrv, GROUP, listener=inbox, ordered=True, start="earliest")
        consumer.subscribe(TOPIC)
        async with consumer:
            await wait_until_assigned(consumer, topic=TOPIC)
            await asyncio.sleep(1)  # nothing may come, and nothing tells that it does not
            assert inbox.messages == []
            await asyncio.to_thread(stage.restart, "broker-a")
            await poll_until(lambda: numbers(inbox.messages)[-1:] == [39])
        # How far the group had come may be forgotten with the dead broker: then it begins at the earliest.
        assert numbers(inbox.messages) in (list(range(20, 40)), list(range(40)))
        assert await operator.leaders(TOPIC) == {0: "broker-b", 1: "broker-b"}
        results = await send(stage.namesrv, 0, *range(40, 45))
        assert [result.offset for result in results] == list(range(results[0].offset, results[0].offset + 5))
        found = await read(stage.namesrv, 0, 45)
        assert numbers(found) == list(range(45))
        assert len(set(offsets(found))) == 45


async def until_copied(stage: ProcessCluster, offset: int, queue: int = 0) -> None:
    """Return once some broker has a copy of how far the group has consumed a queue."""
    question = Command(
        code=RequestCode.GET_OFFSET_BACKUPS, body=encode_body(OffsetBackupQuery(topic=TOPIC, queues=[queue]))
    )
    async with ClusterClient(stage.namesrv) as client, asyncio.timeout(30):
        brokers = await client.cluster_brokers()
        while True:
            answers = [await client.ask(address, question) for address in brokers.values()]
            copies = [copy for answer in answers for copy in decode_body(answer.body, OffsetBackupList).backups]
            if any(copy.offsets.get(GROUP) == offset for copy in copies):
                return


async def test_a_group_goes_on_where_it_was_after_a_forced_move(tmp_path: Path):
    """Its offsets died with the leader; another broker has a copy, and the new leader asks for it."""
    with static_topic_cluster(tmp_path, "broker-a", "broker-b", "broker-c", flush="sync") as stage:
        await create_static(stage, "broker-a", queues=1)
        await send(stage.namesrv, 0, *range(12))
        assert numbers(await read(stage.namesrv, 0, 12)) == list(range(12))
        await until_copied(stage, 12)
        await send(stage.namesrv, 0, *range(12, 20))

        await asyncio.to_thread(stage.kill, "broker-a")
        await stage.operator.run("queue", "migrate", TOPIC, "0", "--to", "broker-c", "--force", "--yes")
        await asyncio.to_thread(stage.restart, "broker-a")

        assert await stage.operator.leaders(TOPIC) == {0: "broker-c"}
        assert numbers(await read(stage.namesrv, 0, 8, start=None)) == list(range(12, 20))


async def test_what_a_dead_broker_holds_can_be_abandoned(tmp_path: Path):
    """Consumers go on behind the gap, and do not go back when the broker returns."""
    with static_topic_cluster(tmp_path, "broker-a", "broker-b", flush="sync") as stage:
        operator = stage.operator
        await create_static(stage, "broker-a", queues=1)
        await send(stage.namesrv, 0, *range(20))
        assert numbers(await read(stage.namesrv, 0, 20)) == list(range(20))
        await asyncio.to_thread(stage.kill, "broker-a")
        await operator.run("queue", "migrate", TOPIC, "0", "--to", "broker-b", "--force", "--yes")
        await send(stage.namesrv, 0, *range(30, 40))

        await operator.run("queue", "abandon", TOPIC, "0", "--yes")

        assert numbers(await read(stage.namesrv, 0, 10, start=None)) == list(range(30, 40))
        assert await lag(operator) == 0
        await asyncio.to_thread(stage.restart, "broker-a")
        await send(stage.namesrv, 0, 40)
        assert numbers(await read(stage.namesrv, 0, 1, start=None)) == [40]


async def test_a_normal_topic_becomes_static_in_place(tmp_path: Path):
    """What it holds stays readable, in order, and its queues can move from then on."""
    with static_topic_cluster(tmp_path, "broker-a", "broker-b") as stage:
        operator = stage.operator
        await operator.run("topic", "create", TOPIC, "--queues", "2")
        async with Producer(stage.namesrv) as producer:
            for target in await producer.queues(TOPIC):
                for number in range(10):
                    await producer.send(Message(TOPIC, b"%d" % number), queue=target)
        await operator.run("topic", "make-static", TOPIC, "--pause", "1", "--yes")
        await operator.run("topic", "move", TOPIC, "--to", "broker-b")
        await operator.run("topic", "grow", TOPIC, "--logical-queues", "6")
        for queue in range(6):
            await send(stage.namesrv, queue, *range(10, 15))

        seen = defaultdict[int, list[int]](list)
        for queue in range(6):
            for message in await read(stage.namesrv, queue, 15 if queue < 4 else 5):
                seen[queue].append(int(message.body))
        assert seen == {queue: [*range(0 if queue < 4 else 10, 15)] for queue in range(6)}
        status, said = await operator.attempt("topic", "grow", TOPIC, "--logical-queues", "4")
        assert status == 1, said


async def test_a_broker_that_is_down_hides_only_its_own_old_messages(tmp_path: Path):
    """Sends and new messages go on; what it holds waits for its return."""
    with static_topic_cluster(tmp_path, "broker-a", "broker-b") as stage:
        operator = stage.operator
        await create_static(stage, "broker-a", queues=2)
        await send(stage.namesrv, 0, *range(10))
        await operator.run("topic", "move", TOPIC, "--to", "broker-b")
        await asyncio.to_thread(stage.kill, "broker-a")

        results = await send(stage.namesrv, 0, *range(10, 20))
        assert [result.offset for result in results] == list(range(10, 20))
        assert numbers(await read(stage.namesrv, 0, 10, start=10)) == list(range(10, 20))
        inbox = Inbox()
        consumer = PushConsumer(stage.namesrv, "late", listener=inbox, ordered=True, start="earliest")
        consumer.subscribe(TOPIC)
        async with consumer:
            await wait_until_assigned(consumer, topic=TOPIC)
            await asyncio.sleep(1)  # nothing may come, and nothing tells that it does not
            assert inbox.messages == []
            await asyncio.to_thread(stage.restart, "broker-a")
            await poll_until(lambda: len(inbox.messages) >= 20)
        assert numbers(inbox.messages) == list(range(20))


async def test_a_forced_move_of_a_busy_queue_loses_nothing_that_was_acknowledged(tmp_path: Path):
    """A broker dies under load, its queues open elsewhere, it returns: every message comes, in order."""
    with static_topic_cluster(tmp_path, "broker-a", "broker-b", flush="sync") as stage:
        await create_static(stage, "broker-a", "broker-b")
        async with StaticTopicLoad(stage.namesrv, TOPIC, retries_forever=True) as load:
            await load.wait_for_deliveries()
            await asyncio.to_thread(stage.kill, "broker-a")
            await stage.operator.run("broker", "evacuate", "broker-a", "--force", "--yes")
            await load.wait_for_acks(400)
            await asyncio.to_thread(stage.restart, "broker-a")
            ledger = await load.finish()
        assert not ledger.lost()
        assert not ledger.out_of_order(), ledger.out_of_order()[:5]
        assert not ledger.misplaced()
        assert not ledger.reused_offsets()


async def test_a_send_to_a_queue_whose_mapping_was_deleted_says_so_and_was_not_stored(tmp_path: Path):
    """With the words of the broker and what to do; messages for any queue go to the others."""
    with static_topic_cluster(tmp_path, "a", "b") as stage:
        await create_static(stage, "a", "b", queues=2)
        async with Producer(stage.namesrv, timeout_s=20) as producer:
            gone = (await producer.queues(TOPIC))[1]
            await producer.send(Message(TOPIC, b"0"), queue=gone)
            await stage.operator.run("queue", "unset", TOPIC, "1", "--yes")

            with pytest.raises(SendFailed, match=f"has no leader.*holdfast queue set {TOPIC} 1") as caught:
                await producer.send(Message(TOPIC, b"1"), queue=gone)

            assert not caught.value.maybe_stored
            results = [await producer.send(Message(TOPIC, b"%d" % number)) for number in range(4)]
            assert {result.queue.queue_id for result in results} == {0}
