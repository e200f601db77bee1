"""Reading a queue that is indexed by record as any other: pulls and questions about it."""

from __future__ import annotations

import pytest
from tests.support.broker_clients import a_request
from tests.support.cluster.broker_machine import BrokerHarness, a_pull
from tests.support.stores import HOST, INNER_BATCH, batched_disk

from holdfast.broker.consume.index_scan import Scan
from holdfast.broker.consume.physical_pull import _slice_records
from holdfast.model.queue import PhysicalOffset
from holdfast.model.topic import BATCH_QUEUE
from holdfast.store.message_store import MessageStore
from holdfast.wire.frames import java_json
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.frames.command import Command
from holdfast.wire.records.record import decode_records

COUNTS = [10, 1, 20, 5]  # Of messages in the records of the queue: offsets 0, 10, 11 and 31.


def fill(store: MessageStore, now_ms: int) -> list[int]:
    """Store a record for each of COUNTS, 10 ms apart; return their positions."""
    store.set_queue_type("T", BATCH_QUEUE)
    positions = []
    for number, count in enumerate(COUNTS):
        properties = b"INNER_NUM\x01%d\x02" % count
        flag = INNER_BATCH if count > 1 else 0
        time_ms = now_ms + 10 * number
        positions.append(
            store.stage(store.queue("T", 0), b"%d" % number, properties, 0, flag, time_ms, HOST, 0, time_ms)[0]
        )
    store.write()
    store.confirm(store.written)
    return positions


@pytest.fixture
def desk() -> BrokerHarness:
    desk = BrokerHarness()
    desk.make_topic("T")
    return desk


def pull(desk: BrokerHarness, offset: int, count: int = 32) -> Command:
    (answer,) = desk.call(a_pull(offset=offset, maxMsgNums=str(count), opensBatches="true"))
    return answer


def found(answer: Command) -> list[int]:
    return [record.offset for record in decode_records(answer.body)]


@pytest.mark.parametrize("is_cold", [False, True])
def test_a_pull_gets_whole_records_and_goes_on_behind_them(desk: BrokerHarness, *, is_cold: bool) -> None:
    """From their middle too; the bounds it is told are those of messages."""
    fill(desk.store, desk.now_ms)
    if is_cold:
        desk.store.close(desk.now_ms)
        desk = BrokerHarness(disk=desk.disk)
        desk.make_topic("T")

    whole, middle, single, small = pull(desk, 0), pull(desk, 15), pull(desk, 10, 1), pull(desk, 0, 11)

    assert [found(answer) for answer in (whole, middle, single, small)] == [[0, 10, 11], [11, 31], [10], [0, 10]]
    assert [int(answer.fields["nextBeginOffset"]) for answer in (whole, middle, single, small)] == [31, 36, 11, 11]
    assert {answer.code for answer in (whole, middle, single, small)} == {ResponseCode.SUCCESS}
    assert (whole.fields["minOffset"], whole.fields["maxOffset"]) == ("0", "36")


def test_a_pull_behind_the_end_is_told_where_it_is(desk: BrokerHarness) -> None:
    """In messages, not in records."""
    fill(desk.store, desk.now_ms)

    beyond = pull(desk, 40)

    assert (beyond.code, beyond.fields["nextBeginOffset"]) == (ResponseCode.PULL_OFFSET_MOVED, "36")


def test_questions_about_the_queue_are_answered_in_messages(desk: BrokerHarness) -> None:
    """Its ends, offsets by time, and the entries of its index, which are those of records."""
    start_ms = desk.now_ms
    positions = fill(desk.store, start_ms)
    here = {"topic": "T", "queueId": 0}

    def offset(code: RequestCode, **fields: object) -> str:
        (answer,) = desk.call(a_request(code, **here, **fields))
        return answer.fields["offset"]

    at = RequestCode.SEARCH_OFFSET_BY_TIMESTAMP
    assert (offset(RequestCode.GET_MIN_OFFSET), offset(RequestCode.GET_MAX_OFFSET)) == ("0", "36")
    assert [offset(at, timestamp=start_ms + ms) for ms in (-1, 1, 20, 31)] == ["0", "10", "11", "36"]
    assert [offset(at, timestamp=start_ms + ms, boundaryType="UPPER") for ms in (-1, 1, 20, 31)] == [
        "0",
        "9",
        "30",
        "35",
    ]
    (shown,) = desk.call(a_request(RequestCode.QUERY_CONSUME_QUEUE, **here, index=12, count=30, consumerGroup="g"))
    body = java_json.loads(shown.body)
    assert [entry["physicOffset"] for entry in body["queueData"]] == positions[2:]
    assert (body["minQueueIndex"], body["maxQueueIndex"]) == (0, 36)


def test_a_committed_offset_behind_the_end_is_moved_back() -> None:
    """The log lost its end: what gets these offsets again must be consumed."""
    disk = batched_disk("T")
    store = BrokerHarness(disk=disk).store
    fill(store, 1_700_000_000_000)
    store.close(1_700_000_000_000)
    disk.replace("config/consumerOffset.json", b'{"offsetTable":{"T@g":{0:99}}}')

    desk = BrokerHarness(disk=disk)

    (answer,) = desk.call(a_request(RequestCode.QUERY_CONSUMER_OFFSET, topic="T", queueId=0, consumerGroup="g"))
    assert answer.fields["offset"] == "36"


@pytest.mark.parametrize("common_size", [0, 200])
def test_scattered_records_are_sent_as_views_of_the_log(common_size: int) -> None:
    """Each at its place from the first one on, whether all have one size or not."""
    span = memoryview(bytes(range(256)) * 8)
    sizes = [200, 200] if common_size else [200, 300]

    records = _slice_records(span, Scan(0, "", PhysicalOffset(0), [5_000, 6_000], sizes, common_size=common_size))

    assert [bytes(record) for record in records] == [bytes(span[:200]), bytes(span[1_000 : 1_000 + sizes[1]])]
