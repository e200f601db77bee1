"""Messages of a batch are found, shown and tried again one by one, though all of them are one record."""

from __future__ import annotations

import pytest
from tests.support.batch_bytes import BATCH, BatchMessage, a_batch, java_batch, pull, pull_all, send
from tests.support.cluster.broker_machine import BrokerHarness

from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.frames.command import Command
from holdfast.wire.records.properties import parse_properties
from holdfast.wire.records.record import StoredRecord, decode_records

FIRST_ID = 0x7F0000010000000018B4AAC2DEADBE00


def following(count: int, *, start: int = 0) -> list[BatchMessage]:
    """Return messages whose ids follow each other, and a key that every second one shares."""
    return [
        BatchMessage(b"%d" % number, f"{FIRST_ID + 1 + number:032X}", keys=f"key{number}" + " even" * (number % 2 == 0))
        for number in range(start, start + count)
    ]


def ours(batch: list[BatchMessage], codec: str = "plain") -> Command:
    """Return the batch as our producer sends it: keys outside, ids one by one behind that of the batch."""
    keys = " ".join(dict.fromkeys(key for said in batch for key in said.keys.split()))
    batch_id = f"{int(batch[0].id, 16) - 1:032X}"
    return a_batch(batch, codec=codec, extra_properties={"UNIQ_KEY": batch_id, "KEYS": keys, "INNER_IDS": "next"})


def query(desk: BrokerHarness, key: str, *, is_id: bool = False, most: int = 32) -> list[StoredRecord]:
    """Look for messages by key, or by the id that their sender gave them."""
    fields = {
        "topic": "T",
        "key": key,
        "maxNum": str(most),
        "beginTimestamp": "0",
        "endTimestamp": str((1 << 63) - 1),
        "_UNIQUE_KEY_QUERY": str(is_id).lower(),
    }
    (answer,) = desk.call(Command(code=RequestCode.QUERY_MESSAGE, opaque=1, fields=fields))
    if answer.code == ResponseCode.QUERY_NOT_FOUND:
        return []
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return list(decode_records(answer.body))


def indexed(desk: BrokerHarness) -> None:
    """Let the key index be fed."""
    for _ in range(5):
        desk.pass_time(1000, "housekeep")


@pytest.mark.parametrize("when", ["at once", "when it is indexed", "after a crash"])
@pytest.mark.parametrize("kind", ["plain", "lz4", "zstd", "zlib", "Java's"])
def test_keys_and_ids_inside_a_batch_can_be_queried(desk: BrokerHarness, kind: str, when: str):
    """Who asks gets that message alone, at its own offset, whatever else its batch holds."""
    for start in (0, 20):
        batch = following(20, start=start)
        send(desk, java_batch(batch) if kind == "Java's" else ours(batch, kind))
    if when != "at once":
        indexed(desk)
    if when == "after a crash":
        desk = BrokerHarness(disk=desk.disk)

    by_key = query(desk, "key23")
    by_id = query(desk, following(40)[23].id, is_id=True)
    shared = query(desk, "even")

    for found in (by_key, by_id):
        assert [(record.offset, bytes(record.body)) for record in found] == [(23, b"23")]
        assert found[0].sys_flag & BATCH == 0
    assert sorted(record.offset for record in shared) == list(range(0, 40, 2))
    assert query(desk, "key40") == []
    assert query(desk, f"{FIRST_ID + 99:032X}", is_id=True) == []


def test_a_query_returns_no_more_than_it_was_asked_for(desk: BrokerHarness):
    """Also where one record holds more of the key than that."""
    send(desk, ours(following(40)))

    assert len(query(desk, "even", most=5)) == 5


def test_a_message_is_found_however_large_it_is_opened(desk: BrokerHarness):
    """A compressed batch may hold more than an answer usually brings: the first one comes in any case."""
    large = BatchMessage(bytes(9 << 20), f"{FIRST_ID + 1:032X}", keys="large")
    send(desk, ours([large], "zstd"))

    (found,) = query(desk, "large")

    assert len(found.body) == 9 << 20


def test_a_query_that_has_to_open_much_lets_others_have_a_turn(desk: BrokerHarness):
    """A few large batches at a time; the answer comes all the same."""
    for start in range(0, 10, 2):
        batch = [
            BatchMessage(bytes(2 << 20), f"{FIRST_ID + 1 + start:032X}"),
            BatchMessage(b"%d" % start, f"{FIRST_ID + 2 + start:032X}", keys="k"),
        ]
        send(desk, ours(batch, "zstd"))
    fields = {"topic": "T", "key": "k", "maxNum": "9", "beginTimestamp": "0", "endTimestamp": str(1 << 60)}

    at_once = desk.call(Command(code=RequestCode.QUERY_MESSAGE, opaque=1, fields=fields))
    turns = 0
    while not desk.answers[1]:
        desk.pass_time(1, "pauses")
        turns += 1

    assert at_once == []
    assert turns == 2
    (answer,) = desk.answers[1]
    assert [bytes(record.body) for record in decode_records(answer.body)] == [b"8", b"6", b"4", b"2", b"0"]


def test_a_record_is_shown_by_its_place_as_the_messages_that_it_holds(desk: BrokerHarness):
    """33, by which tools show a message: the id of the answer to the send is that of the whole batch."""
    answer = send(desk, ours(following(4)))
    (whole,) = pull(desk, 0, opensBatches="true").records

    (view,) = desk.call(
        Command(
            code=RequestCode.VIEW_MESSAGE_BY_ID,
            opaque=1,
            fields={"offset": str(whole.position), "topic": "T", "msgId": answer.fields["msgId"]},
        )
    )

    assert view.code == ResponseCode.SUCCESS
    assert [bytes(record.body) for record in decode_records(view.body)] == [b"0", b"1", b"2", b"3"]


def give_back(desk: BrokerHarness, record: StoredRecord, **fields: str) -> Command:
    """Say that a message could not be consumed."""
    said = {
        "group": "consumers",
        "offset": str(record.position),
        "delayLevel": "0",
        "originMsgId": parse_properties(record.properties.decode()).get("UNIQ_KEY", ""),
        "originTopic": "T",
        "unitMode": "false",
        "maxReconsumeTimes": "16",
    }
    (answer,) = desk.call(Command(code=RequestCode.CONSUMER_SEND_MSG_BACK, opaque=1, fields=said | fields))
    return answer


@pytest.mark.parametrize("kind", ["plain", "zstd", "Java's"])
def test_one_failed_message_is_tried_again_alone(desk: BrokerHarness, kind: str):
    """It comes back by way of the retry topic as a message like any other; the others of its batch do not."""
    batch = following(9)
    send(desk, java_batch(batch) if kind == "Java's" else ours(batch, kind))
    failed = pull(desk, 4).records[0]

    answer = give_back(desk, failed)
    desk.pass_time(3_600_000, "delays")

    assert answer.code == ResponseCode.SUCCESS, answer.remark
    stored = [*pull_all(desk, topic="%RETRY%consumers"), *pull_all(desk, topic="SCHEDULE_TOPIC_XXXX", queue=2)]
    assert {bytes(record.body) for record in stored} == {b"4"}
    properties = parse_properties(stored[0].properties.decode())
    assert (properties["RETRY_TOPIC"], stored[0].reconsume_times) == ("T", 1)
    assert properties["KEYS"] == "key4 even"
    assert not {"INNER_NUM", "INNER_BASE"} & properties.keys()
    assert stored[0].sys_flag & (BATCH | 0x701) == 0


def test_a_message_that_fails_too_often_is_a_dead_letter_alone(desk: BrokerHarness):
    """The other way that a failed message goes."""
    send(desk, ours(following(9), "zlib"))

    answer = give_back(desk, pull(desk, 7).records[0], maxReconsumeTimes="0")

    assert answer.code == ResponseCode.SUCCESS, answer.remark
    assert [bytes(record.body) for record in pull_all(desk, topic="%DLQ%consumers")] == [b"7"]


@pytest.mark.parametrize("name", ["", "nobody's", "BATCH"])
def test_a_batch_is_not_given_back_as_a_whole(desk: BrokerHarness, name: str):
    """Without an id of one of its messages nobody knows which failed: refused, with a reason."""
    send(desk, ours(following(3)))
    record = pull(desk, 1).records[0]

    answer = give_back(desk, record, originMsgId=f"{FIRST_ID:032X}" if name == "BATCH" else name)

    assert answer.code != ResponseCode.SUCCESS
    assert answer.remark
    assert pull_all(desk, topic="%RETRY%consumers") == []
