"""RIP-26: a batch is received as one message, kept as one record, and indexed by one item of 46 bytes."""

from __future__ import annotations

import pytest
from tests.support.batch_bytes import (
    BATCH,
    CODECS,
    JAVA_5,
    BatchMessage,
    RecordEntry,
    a_batch,
    a_request,
    a_single,
    batch_messages,
    compress,
    encode_messages,
    java_batch,
    make_topic,
    old_batch,
    pull,
    read_entries,
    send,
    stop,
    topic_records,
)
from tests.support.cluster.broker_machine import BrokerHarness

from holdfast.model.java_hash import java_hash
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.frames.command import Command
from holdfast.wire.records.properties import parse_properties


def bounds(desk: BrokerHarness, topic: str = "T") -> tuple[int, int]:
    """Return the lowest offset of queue 0, and its end."""
    fields = {"topic": topic, "queueId": "0"}
    low, high = desk.call(
        Command(code=RequestCode.GET_MIN_OFFSET, opaque=1, fields=fields),
        Command(code=RequestCode.GET_MAX_OFFSET, opaque=2, fields=fields),
    )
    return int(low.fields["offset"]), int(high.fields["offset"])


@pytest.mark.parametrize("code", [RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE])
@pytest.mark.parametrize("codec", CODECS)
def test_a_batch_is_one_record_with_the_body_as_it_came(desk: BrokerHarness, codec: str, code: int):
    """The engine treats a batch as a normal message; compressed or not, nobody touches what is in it."""
    batch = batch_messages(20, size=50)

    answer = send(desk, a_batch(batch, codec=codec, code=code))

    assert answer.code == ResponseCode.SUCCESS, answer.remark
    (record,) = topic_records(desk.disk)
    assert bytes(record.body) == compress(encode_messages(batch), codec)
    assert record.sys_flag == BATCH | CODECS[codec]
    said = parse_properties(record.properties.decode())
    assert (said["INNER_NUM"], said["INNER_BASE"], record.offset) == ("20", "0", 0)


@pytest.mark.parametrize("count", [1, 2, 100, 32_767])
def test_a_batch_is_one_item_of_46_bytes(desk: BrokerHarness, count: int):
    """Position, size, tag, store time, first offset, count, -1, 0; whatever the number of messages."""
    send(desk, a_single(BatchMessage(b"before", "ID0")))
    desk.now_ms += 5

    send(desk, a_batch([BatchMessage(b"x", "")] * count, extra_properties={"TAGS": "paid"}))

    stop(desk)
    _, record = topic_records(desk.disk)
    assert read_entries(desk.disk)[1:] == [
        RecordEntry(record.position, record.size, java_hash("paid"), desk.now_ms, 1, count, -1, 0),
    ]


def test_the_index_lies_in_files_named_by_their_first_byte(desk: BrokerHarness):
    """`batchconsumequeue/<topic>/<queue>/`, one behind the other, and nothing in `consumequeue`."""
    for start in range(0, 30, 3):
        send(desk, a_batch(batch_messages(3, start=start), queue=2))

    stop(desk)
    names = desk.disk.list("batchconsumequeue/T/2")
    assert names == [f"{number * 4 * 46:020d}" for number in range(3)]
    assert [unit.base for unit in read_entries(desk.disk, queue=2)] == list(range(0, 30, 3))
    assert "T/" not in desk.disk.list("consumequeue")


def test_offsets_count_messages_and_the_answer_names_the_first(desk: BrokerHarness):
    """Batches and single messages follow each other without a gap."""
    answers = [
        send(desk, a_batch(batch_messages(10))),
        send(desk, a_single(BatchMessage(b"alone", "ID100"))),
        send(desk, java_batch(batch_messages(7, start=20))),
        send(desk, a_batch(batch_messages(1, start=40), codec="zlib")),
        send(desk, old_batch(batch_messages(2, start=50))),
        send(desk, a_batch(batch_messages(3, start=60))),
    ]

    assert [answer.fields["queueOffset"].split(",")[0] for answer in answers] == ["0", "10", "11", "18", "19", "21"]
    assert bounds(desk) == (0, 24)


def test_the_answer_has_one_id_of_the_record_and_the_id_of_the_batch(desk: BrokerHarness):
    """Java's producer takes a batch as kept whole if the answer says `batchUniqId`."""
    answer = send(desk, java_batch(batch_messages(3)))

    assert answer.fields["batchUniqId"] == "BATCHID00000000"
    assert "," not in answer.fields["msgId"]
    (record,) = topic_records(desk.disk)
    assert answer.fields["msgId"] == (record.store_host + record.position.to_bytes(8, "big")).hex().upper()


def test_javas_batch_is_counted_by_the_broker(desk: BrokerHarness):
    """Java's producer 5.x says nothing outside but an id."""
    send(desk, java_batch(batch_messages(9, tags=("a", "b"))))

    stop(desk)
    (record,) = topic_records(desk.disk)
    assert bytes(record.body) == encode_messages(batch_messages(9, tags=("a", "b")))
    assert record.sys_flag & BATCH == BATCH
    assert parse_properties(record.properties.decode())["INNER_NUM"] == "9"
    (unit,) = read_entries(desk.disk)
    assert (unit.base, unit.count) == (0, 9)


def test_old_client_and_new_broker_use_outer_batches(desk: BrokerHarness):
    """Who does not say that its batch may stay whole gets a record and an entry for each message."""
    answer = send(desk, old_batch(batch_messages(5)))

    stop(desk)
    assert answer.code == ResponseCode.SUCCESS
    assert "batchUniqId" not in answer.fields
    assert len(answer.fields["msgId"].split(",")) == 5
    assert [(unit.base, unit.count) for unit in read_entries(desk.disk)] == [(number, 1) for number in range(5)]
    assert [bytes(record.body) for record in topic_records(desk.disk)] == [b"0", b"1", b"2", b"3", b"4"]


def test_a_topic_indexed_by_message_splits_javas_batch():
    """The topic's attribute decides, not the client's version."""
    desk = BrokerHarness()
    make_topic(desk, kind="SimpleCQ")

    answer = send(desk, java_batch(batch_messages(4)))

    stop(desk)
    assert len(answer.fields["msgId"].split(",")) == 4
    assert len(topic_records(desk.disk)) == 4
    index = desk.disk.read_file("consumequeue/T/0/00000000000000000000")
    assert index is not None
    assert index[: 4 * 20].count(java_hash("").to_bytes(8, "big")) >= 4
    assert index[4 * 20 : 5 * 20] == bytes(20)


@pytest.mark.parametrize("flush", ["async", "sync"])
def test_the_whole_batch_can_be_read_as_soon_as_it_is_acknowledged(flush: str):
    """What the proposal begins with: no consumer waits until an index of its messages has been built."""
    desk = BrokerHarness(flush=flush)
    make_topic(desk)
    desk.call(a_batch(batch_messages(500)))
    desk.sync()
    assert desk.answers[1][-1].code == ResponseCode.SUCCESS

    pulled = pull(desk, 0, client=JAVA_5, count=500)

    assert (pulled.code, pulled.next, pulled.max) == (0, 500, 500)
    (record,) = pulled.records
    assert bytes(record.body) == encode_messages(batch_messages(500))


NUMBERS = ["0", "-1", "32768", "65537", "99999999999", "x", " 3", "3.0", "0x3", "٣"]


@pytest.mark.parametrize(
    ("what", "request_"),
    [
        *(
            (
                f"says {number!r}",
                a_request(encode_messages(batch_messages(3)), {"UNIQ_KEY": "B", "INNER_NUM": number}, BATCH),
            )
            for number in NUMBERS
        ),
        ("says no number", a_request(encode_messages(batch_messages(3)), {"UNIQ_KEY": "B"}, BATCH)),
        ("says more than it holds", a_batch(batch_messages(3), extra_properties={"INNER_NUM": "4"})),
        ("says less than it holds", a_batch(batch_messages(3), extra_properties={"INNER_NUM": "2"})),
        ("a number without the flag", a_request(b"hello", {"UNIQ_KEY": "B", "INNER_NUM": "1"})),
        ("cut short", a_request(encode_messages(batch_messages(3))[:-1], {"UNIQ_KEY": "B", "INNER_NUM": "3"}, BATCH)),
        (
            "more behind it",
            a_request(encode_messages(batch_messages(3)) + b"more", {"UNIQ_KEY": "B", "INNER_NUM": "3"}, BATCH),
        ),
        ("no items at all", a_request(b"hello world", {"UNIQ_KEY": "B", "INNER_NUM": "1"}, BATCH)),
        ("empty", a_request(b"", {"UNIQ_KEY": "B", "INNER_NUM": "1"}, BATCH)),
        ("Java's, cut short", a_request(encode_messages(batch_messages(3))[:-1], {"UNIQ_KEY": "B"}, code=320)),
        ("Java's, empty", a_request(b"", {"UNIQ_KEY": "B"}, code=320)),
        ("Java's, too many", java_batch([BatchMessage(b"x", "I")] * 32_768)),
        ("delayed", a_batch(batch_messages(3), extra_properties={"DELAY": "3"})),
        (
            "in a transaction",
            a_request(encode_messages(batch_messages(3)), {"UNIQ_KEY": "B", "INNER_NUM": "3"}, BATCH | 0x4),
        ),
        ("to a retry topic", a_batch(batch_messages(3), topic="%RETRY%consumers")),
        ("too large", a_request(bytes(5 << 20), {"UNIQ_KEY": "B", "INNER_NUM": "3"}, BATCH | 0x101)),
    ],
    ids=lambda case: case if isinstance(case, str) else "",
)
def test_a_batch_that_is_none_is_refused_and_nothing_is_stored(desk: BrokerHarness, what: str, request_: Command):
    """A clear refusal: the code says that the message is wrong, the text why."""
    answer = send(desk, request_)

    assert answer.code == ResponseCode.MESSAGE_ILLEGAL, f"{what}: {answer}"
    assert answer.remark
    assert topic_records(desk.disk) == []
    assert bounds(desk) == (0, 0)
    assert send(desk, a_batch(batch_messages(2))).fields["queueOffset"] == "0"


def test_a_batch_to_a_topic_indexed_by_message_is_refused():
    """There is no permission to split what says that it stays whole; the text says what to do."""
    desk = BrokerHarness()
    make_topic(desk, kind="SimpleCQ")

    answer = send(desk, a_batch(batch_messages(3)))

    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert answer.remark is not None
    assert "T" in answer.remark
    assert bounds(desk) == (0, 0)


def test_how_a_topic_is_indexed_cannot_change_while_it_is_served(desk: BrokerHarness):
    """As upstream: an unchangeable attribute. The converter is for that."""
    send(desk, a_batch(batch_messages(3)))

    answer = make_topic(desk, kind="SimpleCQ")

    assert answer.code != ResponseCode.SUCCESS
    assert answer.remark
    assert send(desk, a_batch(batch_messages(3))).code == ResponseCode.SUCCESS


@pytest.mark.parametrize("kind", ["Batch", "", "simplecq", "SimpleCQ,BatchCQ"])
def test_an_unknown_kind_of_index_is_refused(kind: str):
    """As upstream: `queue.type` is BatchCQ or SimpleCQ."""
    desk = BrokerHarness()

    assert make_topic(desk, kind=kind).code != ResponseCode.SUCCESS


def test_a_broker_says_in_its_answer_to_a_heartbeat_that_it_takes_batches(desk: BrokerHarness):
    """That is how a new client finds out; an old one does not look."""
    body = b'{"clientID":"c","producerDataSet":[{"groupName":"p"}],"consumerDataSet":[]}'

    (answer,) = desk.call(Command(code=RequestCode.HEART_BEAT, opaque=1, body=body))

    assert answer.code == ResponseCode.SUCCESS
    assert "innerBatch" in answer.fields["capabilities"]
