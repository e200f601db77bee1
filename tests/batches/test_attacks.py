"""Batches of strangers: forged properties and flags, damaged records, topics made anew. The broker stays what it is."""

from __future__ import annotations

import struct

import pytest
from tests.support.batch_bytes import (
    BATCH,
    JAVA_4,
    JAVA_5,
    BatchMessage,
    a_batch,
    a_request,
    a_single,
    batch_messages,
    encode_messages,
    java_batch,
    make_topic,
    old_batch,
    pull,
    pull_all,
    read_entries,
    send,
    stop,
    topic_records,
)
from tests.support.cluster.broker_machine import BrokerHarness
from tests.support.stores import overwrite

from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.frames.command import Command
from holdfast.wire.records.properties import parse_properties

OURS = {"opensBatches": "true"}


def as_java_reads_it(desk: BrokerHarness) -> list[tuple[int, int]]:
    """Return (first offset, count) of every record of T, by what Java's dispatch takes them from: the properties."""
    found = []
    for record in topic_records(desk.disk):
        said = parse_properties(record.properties.decode())
        if "INNER_NUM" in said and "INNER_BASE" in said:
            found.append((int(said["INNER_BASE"]), int(said["INNER_NUM"])))
        else:
            found.append((record.offset, 1))
    return found


FORGED = {
    "a first offset": {"INNER_BASE": "999"},
    "a first offset that is none": {"INNER_BASE": "x"},
    "the offset that it will have": {"INNER_BASE": "2"},
    "ids that follow an id of letters": {"UNIQ_KEY": "hello", "INNER_IDS": "next"},
    "ids that follow a short id": {"UNIQ_KEY": "1", "INNER_IDS": "next"},
    "ids that follow the last id": {"UNIQ_KEY": "F" * 32, "INNER_IDS": "next"},
    "ids that follow a long id": {"UNIQ_KEY": "7" * 20_000, "INNER_IDS": "next"},
    "ids that follow in another way": {"INNER_IDS": "random"},
    "many keys": {"KEYS": " ".join(str(number) for number in range(5000))},
    "a topic": {"REAL_TOPIC": "other", "REAL_QID": "7"},
    "that it was tried before": {"RETRY_TOPIC": "other", "RECONSUME_TIME": "3"},
}


@pytest.mark.parametrize("forged", FORGED)
def test_what_a_batch_says_of_itself_moves_nothing(desk: BrokerHarness, forged: str):
    """Where it is, the broker decides; a restart, and a Java broker on the same folder, read the same."""
    send(desk, a_batch(batch_messages(2)))
    answer = send(desk, a_batch(batch_messages(3, start=2), extra_properties=FORGED[forged]))
    assert answer.code in {ResponseCode.SUCCESS, ResponseCode.MESSAGE_ILLEGAL}
    send(desk, a_batch(batch_messages(4, start=5)))
    for _ in range(3):
        desk.pass_time(1000, "housekeep")
    for key in ("hello", "1", "7" * 20_000, "F" * 32, "4999", "2"):
        fields = {"topic": "T", "key": key, "maxNum": "9", "beginTimestamp": "0", "endTimestamp": str(1 << 60)}
        for is_id in ("false", "true"):
            query = Command(code=RequestCode.QUERY_MESSAGE, opaque=1, fields={**fields, "_UNIQUE_KEY_QUERY": is_id})
            assert desk.call(query)[0].code in {ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND}

    counts = [2, 3, 4] if answer.code == ResponseCode.SUCCESS else [2, 4]
    places = [(sum(counts[:number]), count) for number, count in enumerate(counts)]
    assert [record.offset for record in pull_all(desk)] == list(range(sum(counts)))
    assert as_java_reads_it(desk) == places
    again = BrokerHarness(disk=desk.disk, queue_file_entries=4)
    assert [record.offset for record in pull_all(again)] == list(range(sum(counts)))
    stop(again)
    assert [(unit.base, unit.count) for unit in read_entries(again.disk)] == places


@pytest.mark.parametrize("room", range(0, 60, 7))
def test_properties_that_leave_no_room_for_the_brokers_are_refused(desk: BrokerHarness, room: int):
    """Their size is 15 bits: what the broker adds must fit, or nothing is stored."""
    text = "UNIQ_KEY\x01B\x02INNER_NUM\x013\x02"
    more = "x" * (32_767 - len(text) - 3 - room)

    answer = send(desk, a_batch(batch_messages(3), extra_properties={"UNIQ_KEY": "B", "P": more}))

    assert answer.code in {ResponseCode.SUCCESS, ResponseCode.MESSAGE_ILLEGAL}
    stored = topic_records(desk.disk)
    assert all(len(record.properties) <= 32_767 for record in stored)
    assert len(stored) == (answer.code == ResponseCode.SUCCESS)
    assert send(desk, a_batch(batch_messages(2))).code == ResponseCode.SUCCESS
    assert len(pull_all(BrokerHarness(disk=desk.disk, queue_file_entries=4))) == 3 * len(stored) + 2


@pytest.mark.parametrize(
    "sys_flag",
    [0x80, 0x40, BATCH | 0x10, BATCH | 0x20, BATCH | 0x30, BATCH | 0x4, BATCH | 0x8, BATCH | 0xC, -1, 1 << 30],
)
@pytest.mark.parametrize("code", [RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE])
def test_flags_of_strangers_break_no_record(desk: BrokerHarness, sys_flag: int, code: int):
    """Taken or refused: what is in the log can be read back by everybody, and after a restart."""
    said = {"UNIQ_KEY": "B", "INNER_NUM": "3"}
    answer = send(desk, a_request(encode_messages(batch_messages(3)), said, sys_flag, code=code))
    send(desk, a_batch(batch_messages(2, start=3)))

    stored = topic_records(desk.disk)

    assert answer.code in {ResponseCode.SUCCESS, ResponseCode.MESSAGE_ILLEGAL}, answer
    is_batch = sys_flag & BATCH == BATCH or sys_flag & 0x80
    if answer.code == ResponseCode.SUCCESS and is_batch:
        assert [record.offset for record in pull_all(desk)] == list(range(5))
        assert stored[0].sys_flag & BATCH == BATCH, "readers look for both bits"
    for reader in (JAVA_4, JAVA_5):
        before = [(record.offset, bytes(record.body)) for record in pull_all(desk, client=reader)]
        again = BrokerHarness(disk=desk.disk, queue_file_entries=4)
        assert [(record.offset, bytes(record.body)) for record in pull_all(again, client=reader)] == before
    assert as_java_reads_it(desk) == [
        (record.offset, 2 if record is stored[-1] else 3 if is_batch else 1) for record in stored
    ]


def test_a_compressed_batch_without_permission_to_stay_whole_is_refused(desk: BrokerHarness):
    """A 320 whose body is compressed cannot be split, and does not say that it need not be."""
    body = a_batch(batch_messages(3), codec="zlib").body

    answer = send(desk, a_request(body, {"UNIQ_KEY": "B"}, 0x301, code=RequestCode.SEND_BATCH_MESSAGE))

    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert topic_records(desk.disk) == []


@pytest.mark.parametrize("kind", ["old", "Java's"])
def test_a_message_that_says_that_it_is_a_batch_is_one_message(desk: BrokerHarness, kind: str):
    """Java's dispatch believes the two properties wherever they stand: a record that has them must be a batch."""
    forged = b"UNIQ_KEY\x01I1\x02INNER_NUM\x0199\x02INNER_BASE\x017\x02"
    item = struct.pack(">iiiii", 22 + 4 + len(forged), 0, 0, 0, 4) + b"body" + struct.pack(">h", len(forged)) + forged
    outside = {"WAIT": "true"} if kind == "old" else {"UNIQ_KEY": "B"}

    answer = send(
        desk, a_request(item + encode_messages(batch_messages(1)), outside, code=RequestCode.SEND_BATCH_MESSAGE)
    )
    send(desk, a_batch(batch_messages(2)))

    expected = {"old": [(0, 2)], "Java's": [(0, 2), (2, 2)]}[kind]
    if kind == "old" and answer.code == ResponseCode.SUCCESS:
        expected = [(0, 1), (1, 1), (2, 2)]
    assert as_java_reads_it(desk) == expected
    again = BrokerHarness(disk=desk.disk, queue_file_entries=4)
    stop(again)
    assert [(unit.base, unit.count) for unit in read_entries(again.disk)] == expected


@pytest.mark.parametrize("size", [0x8000, 0xFFFF])
@pytest.mark.parametrize("codec", ["plain", "lz4"])
def test_properties_that_are_too_large_for_a_record_reach_no_reader(desk: BrokerHarness, size: int, codec: str):
    """Their size has 16 bits and a sign: as a record of its own Java would read it wrongly, and all behind it."""
    text = b"UNIQ_KEY\x01I1\x02P\x01" + b"x" * size
    text = text[:size]
    item = struct.pack(">iiiii", 22 + 4 + size, 0, 0, 0, 4) + b"body" + struct.pack(">H", size) + text
    body = encode_messages(batch_messages(1)) + item
    flag = BATCH
    if codec == "lz4":
        import lz4.frame  # noqa: PLC0415 - for this one

        body, flag = lz4.frame.compress(body), BATCH | 0x101
    send(desk, a_request(body, {"UNIQ_KEY": "B", "INNER_NUM": "2"}, flag))
    send(desk, a_single(BatchMessage(b"behind", "I9")))

    found = pull_all(desk, client=JAVA_4)

    assert all(len(record.properties) <= 0x7FFF for record in found)
    assert bytes(found[-1].body) == b"behind"


DAMAGE = [
    (b"INNER_NUM\x013", b"INNER_NUM\x01x"),
    (b"INNER_NUM\x013", b"INNER_NUM\x010"),
    (b"INNER_NUM\x013", b"INNER_NUN\x013"),
    (b"INNER_NUM\x013", b"INNER_NUM\x013".replace(b"\x01", b"\x02")),
    (b"INNER_BASE\x012", b"INNER_BASE\x019"),
    (b"INNER_BASE\x012", b"INNER_BASE\x01-"),
    (b"INNER_BASE\x012", b"INNER_BASF\x012"),
]


@pytest.mark.parametrize(("right", "wrong"), DAMAGE, ids=str)
def test_a_record_whose_properties_were_damaged_hides_no_other(desk: BrokerHarness, right: bytes, wrong: bytes):
    """The checksum of a record is that of its body: what it says outside may be anything. A start survives it."""
    for start, count in ((0, 2), (2, 3), (5, 4)):
        send(desk, a_batch(batch_messages(count, start=start)))
    log = desk.disk.read_file("commitlog/00000000000000000000") or b""
    overwrite(desk.disk, "commitlog/00000000000000000000", log.index(right), wrong)
    desk.disk.remove("batchconsumequeue")

    again = BrokerHarness(disk=desk.disk, queue_file_entries=4)

    found = {record.offset: bytes(record.body) for record in pull_all(again)}
    assert {0: b"0", 1: b"1"}.items() <= found.items()
    for offset, body in {5: b"5", 6: b"6", 7: b"7", 8: b"8"}.items():
        assert found.get(offset) == body, "what is behind it keeps its offsets"
    answer = send(again, a_batch(batch_messages(2, start=9)))
    assert int(answer.fields["queueOffset"]) >= 9


def test_a_topic_made_anew_has_the_index_that_it_says(desk: BrokerHarness):
    """Deleted, and made with the other kind, back and forth, over restarts."""
    for turn, kind in enumerate(("SimpleCQ", "BatchCQ", "SimpleCQ", "BatchCQ")):
        send(desk, java_batch(batch_messages(3)))
        (gone,) = desk.call(Command(code=RequestCode.DELETE_TOPIC_IN_BROKER, opaque=1, fields={"topic": "T"}))
        assert gone.code == ResponseCode.SUCCESS
        if turn % 2:
            desk = BrokerHarness(disk=desk.disk, queue_file_entries=4)
        assert make_topic(desk, kind=kind).code == ResponseCode.SUCCESS
        answer = send(desk, java_batch(batch_messages(5)))
        assert ("batchUniqId" in answer.fields) == (kind == "BatchCQ")
        desk = BrokerHarness(disk=desk.disk, queue_file_entries=4)
        assert [bytes(record.body) for record in pull_all(desk, int(answer.fields["queueOffset"]))] == [
            b"0",
            b"1",
            b"2",
            b"3",
            b"4",
        ]


def test_a_delayed_message_and_a_committed_one_join_the_batches(desk: BrokerHarness):
    """Single messages of every kind go to such a topic as to any other."""
    send(desk, a_batch(batch_messages(2)))
    delayed = a_request(b"late", {"UNIQ_KEY": "D", "DELAY": "1"})
    half = a_request(b"half", {"UNIQ_KEY": "H", "TRAN_MSG": "true", "PGROUP": "producers"}, 0x4)
    assert send(desk, delayed).code == ResponseCode.SUCCESS
    prepared = send(desk, half)
    assert prepared.code == ResponseCode.SUCCESS

    position = int(prepared.fields["msgId"][-16:], 16)
    commit = {
        "producerGroup": "producers",
        "tranStateTableOffset": prepared.fields["queueOffset"],
        "commitLogOffset": str(position),
        "commitOrRollback": "8",
        "msgId": "H",
        "transactionId": "H",
    }
    desk.pass_time(0, "transactions")
    assert desk.call(Command(code=RequestCode.END_TRANSACTION, opaque=1, fields=commit))[0].code == 0
    desk.pass_time(2000, "delays")
    desk.pass_time(2000, "delays")
    send(desk, a_batch(batch_messages(2, start=2)))

    found = [bytes(record.body) for record in pull_all(desk)]
    assert sorted(found) == sorted([b"0", b"1", b"late", b"half", b"2", b"3"])
    stop(desk)
    assert sum(unit.count for unit in read_entries(desk.disk)) == 6


@pytest.mark.parametrize("count", ["0", "-1", str(2**31 - 1)])
@pytest.mark.parametrize("size", ["0", "-1", str(2**31 - 1)])
def test_limits_that_are_none_are_survived(desk: BrokerHarness, count: str, size: str):
    """Whatever a pull asks for, it is answered, and with no more than the broker hands out at once."""
    for start in range(0, 4000, 1000):
        send(desk, a_batch(batch_messages(1000, start=start, size=900), codec="lz4"))

    for reader, fields in ((JAVA_4, {}), (JAVA_5, {}), (JAVA_4, OURS)):
        pulled = pull(desk, 500, client=reader, count=int(count), maxMsgBytes=size, **fields)
        assert pulled.code in {0, 19, 20, 21}
        assert sum(record.size for record in pulled.records) <= 5 << 20


def test_old_batches_of_nothing_are_refused(desk: BrokerHarness):
    """A batch of 0 by the old way, too."""
    assert send(desk, a_request(b"", {"WAIT": "true"}, code=RequestCode.SEND_BATCH_MESSAGE)).code == 13
    assert send(desk, old_batch(batch_messages(1))).code == 0
