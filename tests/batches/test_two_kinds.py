"""RIP-26, "refactor consume queue interface": nobody can tell from a queue's answers which kind of index it has.

The same messages go into two topics, one indexed by message and one by record; then everything that can be asked is
asked of both.
"""

from __future__ import annotations

import contextlib
import json
from random import Random

import pytest
from tests.support.batch_bytes import (
    JAVA_4,
    BatchMessage,
    a_batch,
    a_single,
    java_batch,
    make_topic,
    pull,
    pull_all,
    send,
)
from tests.support.cluster.broker_machine import BrokerHarness
from tests.support.cluster.machine import codes
from tests.support.stores import overwrite

from holdfast.machine.effects import ReadLog
from holdfast.machine.events import Event, LogRead, Stopping
from holdfast.model.errors import CorruptRecord
from holdfast.wire.frames.codes import RequestCode
from holdfast.wire.frames.command import Command
from holdfast.wire.records.properties import parse_properties
from holdfast.wire.records.record import StoredRecord

KINDS = {"S": "SimpleCQ", "B": "BatchCQ"}
TAGS = ("", "a", "b")
SIZES = (3, 1, 5, 2, 1, 1, 8, 4, 1, 6, 2, 9, 1)
"""How many messages travel together."""


def fill(desk: BrokerHarness, seed: int = 1) -> list[int]:
    """Send the same to both topics, some at equal times; return all the times."""
    random = Random(seed)
    number = 0
    times = []
    for size in SIZES:
        desk.now_ms += random.choice((0, 0, 1, 10))
        times.append(desk.now_ms)
        batch = [
            BatchMessage(b"m%d" % each, f"ID{each:08X}", random.choice(TAGS), f"key{each}", each)
            for each in range(number, number + size)
        ]
        number += size
        codec = random.choice(("plain", "lz4", "java"))
        for topic, kind in KINDS.items():
            if size == 1 and codec == "java":
                answer = send(desk, a_single(batch[0], topic=topic))
            elif kind == "SimpleCQ" or codec == "java":
                answer = send(desk, java_batch(batch, topic=topic))
            else:
                answer = send(desk, a_batch(batch, topic=topic, codec=codec))
            assert answer.code == 0, answer.remark
    return times


@pytest.fixture(params=[300_000, 3])
def desk(request: pytest.FixtureRequest) -> BrokerHarness:
    """A broker with both topics; its index files have many entries, or three."""
    desk = BrokerHarness(queue_file_entries=request.param)
    for topic, kind in KINDS.items():
        make_topic(desk, topic, kind=kind)
    return desk


def reopened(desk: BrokerHarness) -> BrokerHarness:
    """Return a broker on the disk of one that was killed."""
    again = BrokerHarness(disk=desk.disk, queue_file_entries=desk.options.queue_file_entries)
    again.now_ms = desk.now_ms
    return again


def ask_both(desk: BrokerHarness, code: int, **fields: str) -> list[tuple[int, dict[str, str]]]:
    """Ask the same of both topics."""
    answers = [
        desk.call(Command(code=code, opaque=1, fields={"topic": topic, "queueId": "0", **fields}))[0] for topic in KINDS
    ]
    return [(answer.code, answer.fields) for answer in answers]


def shown(record: StoredRecord) -> tuple[object, ...]:
    """Return what a reader sees of a message, but for where it lies in the log."""
    properties = parse_properties(record.properties.decode())
    named = {name: properties.get(name) for name in ("UNIQ_KEY", "KEYS", "TAGS")}
    return (record.offset, bytes(record.body), record.flag, record.sys_flag & 0xFFF, record.store_ms, named)


@pytest.mark.parametrize("is_restarted", [False, True])
def test_bounds_and_times_are_those_of_the_other_kind(desk: BrokerHarness, *, is_restarted: bool):
    """Empty: 0 and 0; a time behind the last: the end; both boundaries exact, where times are equal, too."""
    for code in (RequestCode.GET_MIN_OFFSET, RequestCode.GET_MAX_OFFSET, RequestCode.GET_EARLIEST_MSG_STORETIME):
        simple, batched = ask_both(desk, code)
        assert batched == simple, f"empty, {code}"
    times = fill(desk)
    desk = reopened(desk) if is_restarted else desk

    for code in (RequestCode.GET_MIN_OFFSET, RequestCode.GET_MAX_OFFSET, RequestCode.GET_EARLIEST_MSG_STORETIME):
        simple, batched = ask_both(desk, code)
        assert batched == simple, code
    offsets = set()
    for time_ms in [0, times[0] - 5, *sorted({time + shift for time in times for shift in (-1, 0, 1)}), 1 << 62]:
        for boundary in ("LOWER", "UPPER"):
            simple, batched = ask_both(
                desk, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, timestamp=str(time_ms), boundaryType=boundary
            )
            assert batched == simple, f"{boundary} of {time_ms - times[0]}"
            offsets.add(batched[1]["offset"])
    assert len(offsets) > 8, "the times tell little"


@pytest.mark.parametrize("is_restarted", [False, True])
@pytest.mark.parametrize("count", [1, 2, 4, 7, 32])
def test_a_reader_of_single_messages_gets_the_same_at_every_offset(
    desk: BrokerHarness, count: int, *, is_restarted: bool
):
    """Before the first, in the middle of any batch, at the end and behind it."""
    fill(desk)
    desk = reopened(desk) if is_restarted else desk
    total = sum(SIZES)

    for offset in (-1, *range(total + 3), 1 << 40, (1 << 63) - 1):
        simple, batched = (pull(desk, offset, topic=topic, count=count) for topic in KINDS)
        assert batched[:4] == simple[:4], f"pull at {offset}"
        assert [*map(shown, batched.records)] == [*map(shown, simple.records)], f"pull at {offset}"


@pytest.mark.parametrize("tags", ["a", "b", "a || b", "nobody", "*"])
@pytest.mark.parametrize("start", [0, 1, 7, 13])
def test_tags_choose_the_same_messages(desk: BrokerHarness, tags: str, start: int):
    """Wherever the messages of a tag are in their batches."""
    fill(desk)

    simple, batched = (pull_all(desk, start, topic=topic, subscription=tags) for topic in KINDS)

    wanted = set(tags.split(" || "))
    exact = [  # By message the hash of the tag is the whole truth, as these differ.
        record
        for record in batched
        if tags == "*" or parse_properties(record.properties.decode()).get("TAGS") in wanted
    ]
    assert exact == batched
    assert [*map(shown, batched)] == [*map(shown, simple)]


def test_lag_and_statistics_are_those_of_the_other_kind(desk: BrokerHarness):
    """A committed offset may lie inside a batch; lag counts messages."""
    fill(desk)
    body = b'{"groupName":"g","consumeEnable":true}'
    assert codes(desk.call(Command(code=RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, opaque=1, body=body))) == [0]
    for topic in KINDS:
        commit = {"consumerGroup": "g", "topic": topic, "queueId": "0", "commitOffset": "12"}
        assert codes(desk.call(Command(code=RequestCode.UPDATE_CONSUMER_OFFSET, opaque=1, fields=commit))) == [0]

    for code, fields in (
        (RequestCode.GET_TOPIC_STATS_INFO, {}),
        (RequestCode.GET_CONSUME_STATS, {"consumerGroup": "g"}),
    ):
        said = []
        for topic in KINDS:
            (answer,) = desk.call(Command(code=code, opaque=1, fields={"topic": topic, **fields}))
            said.append(answer.body.decode().replace(f'"{topic}"', '"?"'))
        assert said[0] == said[1]
        assert str(sum(SIZES)) in said[1]


def test_index_entries_that_are_shown_to_people_are_those_of_the_other_kind(desk: BrokerHarness):
    """321, by which `mqadmin queryCq` looks at an index: the same offsets in both."""
    fill(desk)

    shown_ = []
    for topic in KINDS:
        fields = {"topic": topic, "queueId": "0", "index": "2", "count": "9", "consumerGroup": ""}
        (answer,) = desk.call(Command(code=RequestCode.QUERY_CONSUME_QUEUE, opaque=1, fields=fields))
        body = json.loads(answer.body)
        shown_.append((answer.code, body["minQueueIndex"], body["maxQueueIndex"]))
    assert shown_[0] == shown_[1]


@pytest.mark.parametrize("topic", KINDS)
@pytest.mark.parametrize("position", [-1, 1 << 20, 1 << 62])
def test_a_damaged_last_entry_gives_no_offset_twice(topic: str, position: int):
    """An index is made again from the log where an orderly end left more than it tells."""
    desk = BrokerHarness(queue_file_entries=20)
    make_topic(desk, topic, kind=KINDS[topic])
    for _ in range(7):
        send(desk, java_batch([BatchMessage(b"x", "I1"), BatchMessage(b"y", "I2")], topic=topic))
    desk.feed(Stopping(desk.now_ms))
    desk.store.close(desk.now_ms)
    folder, last = ("consumequeue/S", 13 * 20) if topic == "S" else ("batchconsumequeue/B", 6 * 46)
    overwrite(desk.disk, f"{folder}/0/00000000000000000000", last, position.to_bytes(8, "big", signed=True))

    again = BrokerHarness(disk=desk.disk, queue_file_entries=20)

    assert [record.offset for record in pull_all(again, topic=topic)] == list(range(14))
    assert send(again, java_batch([BatchMessage(b"z", "I3")], topic=topic)).fields["queueOffset"] == "14"


PLACES = [
    (0, -1),
    (0, 1),
    (0, 1 << 19),
    (0, 1 << 62),
    (8, 0),
    (8, 92),
    (8, -5),
    (8, 1 << 16),
    (8, 0x7FFFFFFE),
]
"""Where in an entry, and what: its position has 8 bytes, its size 4."""


@pytest.mark.parametrize(("at", "value"), PLACES)
@pytest.mark.parametrize("topic", KINDS)
def test_a_damaged_entry_breaks_no_answer_and_sends_no_reader_back(topic: str, at: int, value: int):
    """Every answer is a whole frame and goes on behind the damage. What is no record is no message: readers see it."""
    desk = BrokerHarness(queue_file_entries=20)
    make_topic(desk, topic, kind=KINDS[topic])
    for each in range(7):
        send(desk, a_single(BatchMessage(b"%d" % each * (1 + each % 3), f"I{each}"), topic=topic))
        send(desk, a_single(BatchMessage(b"between", "X"), topic="another" if each == 3 else "TBW"))
    desk.feed(Stopping(desk.now_ms))
    desk.store.close(desk.now_ms)
    folder, size = ("consumequeue/S", 20) if topic == "S" else ("batchconsumequeue/B", 46)
    data = value.to_bytes(4 if at else 8, "big", signed=True)
    overwrite(desk.disk, f"{folder}/0/00000000000000000000", 3 * size + at, data)
    desk = BrokerHarness(disk=desk.disk, queue_file_entries=20)
    right = {each: b"%d" % each * (1 + each % 3) for each in range(7)}

    for fields in ({}, {"opensBatches": "true"}):
        for count in (1, 32):
            with contextlib.suppress(CorruptRecord):
                found = pull_all(desk, topic=topic, count=count, **fields)
                assert {record.offset: bytes(record.body) for record in found}.items() <= right.items()
        for offset in (4, 5, 6):
            assert pull(desk, offset, topic=topic, **fields).bodies[0] == right[offset]


@pytest.mark.parametrize("reader", [{}, {"opensBatches": "true"}], ids=["singles", "whole batches"])
@pytest.mark.parametrize("topic", KINDS)
def test_nobody_is_sent_behind_the_end_of_a_queue_that_goes_while_it_is_read(topic: str, reader: dict[str, str]):
    """Whatever is stored there next has offsets from 0 on: who waited for the old records must not miss it."""
    desk = BrokerHarness()
    make_topic(desk, topic, kind=KINDS[topic])
    send(desk, java_batch([BatchMessage(b"%d" % number, f"I{number}") for number in range(7)], topic=topic))
    send(desk, a_single(BatchMessage(b"the last one is looked at by the start", "X"), topic="another"))
    desk.feed(Stopping(desk.now_ms))
    desk.store.close(desk.now_ms)
    desk = BrokerHarness(disk=desk.disk)
    read = desk._read

    def lose(effect: ReadLog) -> Event:
        if not effect.file.path.startswith("commitlog"):
            return read(effect)
        desk.store.erase_queue(topic, 0)
        return LogRead(effect.token, b"", desk.now_ms)

    desk._read = lose  # type: ignore[method-assign]

    pulled = pull(desk, 0, topic=topic, **reader)

    assert (pulled.code, pulled.next, pulled.records) == (20, 0, [])


def test_a_parked_pull_is_woken_by_either_kind(desk: BrokerHarness):
    """A reader that waits at the end gets the next message, the first of a batch or a single one."""
    fill(desk)
    total = sum(SIZES)
    late = [BatchMessage(b"late", "IDX"), BatchMessage(b"later", "IDY")]
    for channel, topic in enumerate(KINDS, start=2):
        desk.connect(channel)
        command = Command(
            code=11,
            opaque=9,
            fields={
                "consumerGroup": "consumers",
                "topic": topic,
                "queueId": "0",
                "queueOffset": str(total),
                "maxMsgNums": "32",
                "sysFlag": "6",
                "commitOffset": "-1",
                "suspendTimeoutMillis": "15000",
                "subscription": "*",
                "subVersion": "0",
            },
            **JAVA_4,  # type: ignore[arg-type]
        )
        assert desk.call(command, channel=channel) == []

    for topic in KINDS:
        send(desk, java_batch(late, topic=topic))

    for channel in (2, 3):
        (answer,) = desk.answers[channel]
        assert (answer.code, answer.fields["nextBeginOffset"]) == (0, str(total + 2))
