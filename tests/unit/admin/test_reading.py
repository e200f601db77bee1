"""Reading queues from outside any group."""

import asyncio

import pytest
from tests.support.cluster.scripted import Reply, ScriptedAccess, ScriptedRequest

from holdfast.admin.offsets import QueueRange
from holdfast.admin.reading import Reader
from holdfast.model.errors import BrokerRefused, ConnectionLost
from holdfast.model.queue import MessageQueue
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.frames.command import Command
from holdfast.wire.frames.host import pack_host
from holdfast.wire.records.batch import encode_items
from holdfast.wire.records.properties import format_properties
from holdfast.wire.records.record import StoredRecord, encode_record

HOST = pack_host("10.0.0.1:10911")


def a_range(queue_id: int, start: int, end: int) -> QueueRange:
    return QueueRange(MessageQueue("t", "broker-a", queue_id), "a:1", start, end)


def a_record(queue_id: int, offset: int, store_ms: int, tag: str = "x") -> bytes:
    properties = format_properties({"TAGS": tag}).encode()
    body = f"{queue_id}:{offset}".encode()
    return encode_record(
        StoredRecord(0, 0, "t", queue_id, offset, 0, 0, 0, HOST, store_ms, HOST, 0, 0, 0, body, properties)
    )


def an_answer(code: int, following: int, body: bytes = b"") -> Command:
    offsets = {"nextBeginOffset": str(following), "minOffset": "0", "maxOffset": "9", "suggestWhichBrokerId": "0"}
    return Command(code=code, fields=offsets, body=body)


def from_queues(queues: dict[int, list[bytes]], per_pull: int = 2) -> ScriptedAccess:
    """A broker whose queues hold these records, and that hands out a few at a time."""

    def pull(asked: ScriptedRequest) -> Reply:
        records = queues[int(asked.fields["queueId"])]
        start = int(asked.fields["queueOffset"])
        taken = records[start : start + per_pull]
        if not taken:
            return an_answer(ResponseCode.PULL_NOT_FOUND, start)
        return an_answer(0, start + len(taken), b"".join(taken))

    return ScriptedAccess().on(RequestCode.PULL_MESSAGE, pull)


async def read(reader: Reader, *ranges: QueueRange) -> list[str]:
    return [message.body.decode() async for message in reader.history(ranges)]


async def test_queues_are_merged_by_store_time():
    """The oldest message of all queues comes first, over many pulls."""
    queues = {
        0: [a_record(0, offset, 10 * offset) for offset in range(5)],
        1: [a_record(1, offset, 10 * offset + 5) for offset in range(5)],
    }

    bodies = await read(Reader(from_queues(queues)), a_range(0, 0, 5), a_range(1, 0, 5))

    assert bodies == [f"{queue}:{offset}" for offset in range(5) for queue in (0, 1)]


async def newest(queues: dict[int, list[bytes]], count: int, wants: str = "", **ranges: int) -> list[str]:
    """Return the newest messages of whole queues that end with *wants*."""
    held = [a_range(number, ranges.get("start", 0), ranges.get("end", len(queues[number]))) for number in queues]
    reader = Reader(from_queues(queues))
    return [
        message.body.decode()
        for message in await reader.newest(held, count, lambda message: message.body.endswith(wants.encode()))
    ]


async def test_the_newest_are_counted_over_all_queues():
    """By store time: a queue without recent messages, or without any, gives none of them."""
    queues = {
        0: [a_record(0, offset, offset) for offset in range(4)],
        1: [a_record(1, offset, 100 + offset) for offset in range(2)],
        2: [],
    }

    assert await newest(queues, 1) == ["1:1"]
    assert await newest(queues, 3) == ["0:3", "1:0", "1:1"]
    assert await newest(queues, 9) == ["0:0", "0:1", "0:2", "0:3", "1:0", "1:1"]


async def test_the_newest_that_are_wanted_are_found_however_far_back():
    """Not the wanted ones among the newest."""
    queues = {0: [a_record(0, offset, offset) for offset in range(50)]}

    assert await newest(queues, 3, "1") == ["0:21", "0:31", "0:41"]
    assert await newest(queues, 9, "47") == ["0:47"]
    assert await newest(queues, 2, "nothing") == []


async def test_the_newest_are_found_where_offsets_have_no_messages():
    """After a forced move, and where an index was cleaned, the last N offsets hold fewer than N messages."""
    offsets = [0, 1, 2, 30, 31]
    queue = dict(zip(offsets, (a_record(0, offset, offset) for offset in offsets), strict=True))

    def pull(asked: ScriptedRequest) -> Reply:
        start = int(asked.fields["queueOffset"])
        found = [offset for offset in offsets if offset >= start][:2]
        if not found:
            return an_answer(ResponseCode.PULL_OFFSET_MOVED, 60)
        return an_answer(0, found[-1] + 1, b"".join(queue[offset] for offset in found))

    reader = Reader(ScriptedAccess().on(RequestCode.PULL_MESSAGE, pull))
    found = await reader.newest([a_range(0, 0, 60)], 4, lambda _: True)

    assert [message.offset for message in found] == [1, 2, 30, 31]


async def test_nothing_before_the_start_and_behind_the_end_is_read():
    """What arrives while we read is not history."""
    queues = {0: [a_record(0, offset, offset) for offset in range(9)]}

    assert await read(Reader(from_queues(queues, per_pull=8)), a_range(0, 2, 5)) == ["0:2", "0:3", "0:4"]


async def test_batches_are_shown_message_by_message(caplog: pytest.LogCaptureFixture):
    """Of one that begins before the start, and ends behind the end, what lies between; a bad one is told of."""

    def a_batch(offset: int, count: int, body: bytes | None = None) -> bytes:
        items = encode_items([(0, b"%d" % at, b"TAGS\x01%d\x02" % (at % 2)) for at in range(offset, offset + count)])
        said = b"INNER_NUM\x01%d\x02" % count
        return encode_record(
            StoredRecord(0, 0, "t", 0, offset, 0, 0xC0, 0, HOST, 5, HOST, 0, 0, 0, body or items, said)
        )

    def pull(asked: ScriptedRequest) -> Reply:
        assert asked.fields["opensBatches"] == "true"
        return an_answer(0, 30, a_batch(0, 10) + a_batch(10, 10, b"nonsense") + a_batch(20, 10))

    reach = ScriptedAccess().on(RequestCode.PULL_MESSAGE, pull)

    assert await read(Reader(reach, "1"), a_range(0, 6, 24)) == ["7", "9", "21", "23"]
    assert "batch at offset 10 cannot be opened" in caplog.text


async def test_a_tag_of_the_same_hash_is_left_out():
    """The broker compares hashes; `Aa` and `BB` have the same."""
    queues = {0: [a_record(0, 0, 0, "Aa"), a_record(0, 1, 1, "BB")]}

    assert await read(Reader(from_queues(queues), "BB || C"), a_range(0, 0, 2)) == ["0:1"]


async def test_a_queue_that_does_not_move_on_ends():
    """A broker that answers "nothing here" inside the range cannot make us ask for ever."""
    assert await read(Reader(from_queues({0: []})), a_range(0, 0, 5)) == []


async def test_a_refusal_is_raised():
    """Not taken for an empty queue."""
    reach = ScriptedAccess().on(RequestCode.PULL_MESSAGE, lambda _: ResponseCode.NO_PERMISSION)

    with pytest.raises(BrokerRefused):
        await read(Reader(reach), a_range(0, 0, 5))


async def test_following_outlives_a_broker_that_goes_away(monkeypatch: pytest.MonkeyPatch):
    """The connection is lost, then the message comes; a pull that waits in vain is made again."""
    monkeypatch.setattr("holdfast.admin.reading._RETRY_S", 0)
    replies: list[Reply] = [
        ConnectionLost("gone"),
        an_answer(ResponseCode.PULL_NOT_FOUND, 5),
        an_answer(0, 6, a_record(0, 5, 1)),
    ]

    done = asyncio.Event()

    def pull(asked: ScriptedRequest) -> Reply:
        assert int(asked.fields["sysFlag"]) & 2, "a pull that follows may be parked"
        if not replies:
            done.set()
            return ConnectionLost("gone for good")
        return replies.pop(0)

    reader = Reader(ScriptedAccess().on(RequestCode.PULL_MESSAGE, pull))
    messages = reader.follow([a_range(0, 0, 5)])
    message = await anext(messages)
    await done.wait()
    await messages.aclose()

    assert message.body == b"0:5"


async def test_following_tells_a_failure_that_does_not_pass():
    """A topic that was deleted ends the reading with the broker's own words."""
    reach = ScriptedAccess().on(RequestCode.PULL_MESSAGE, lambda _: ResponseCode.TOPIC_NOT_EXIST)

    with pytest.raises(BrokerRefused):
        await anext(Reader(reach).follow([a_range(0, 0, 5)]))


async def test_the_search_for_the_newest_ends_once_they_are_found():
    """Older messages of the queue are not pulled."""
    access = from_queues({0: [a_record(0, offset, offset) for offset in range(9)]})

    found = await Reader(access).newest([a_range(0, 0, 9)], 2, lambda _: True)

    assert [message.body for message in found] == [b"0:7", b"0:8"]
    assert min(int(request.fields["queueOffset"]) for request in access.requests) == 7
