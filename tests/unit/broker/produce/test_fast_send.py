import pytest
from tests.support.cluster.broker_machine import BrokerHarness, a_send
from tests.support.cluster.machine import codes

from holdfast.machine.effects import SendBytes
from holdfast.model.errors import DiskFailed, DiskFull
from holdfast.model.java_hash import java_hash
from holdfast.wire.frames.codes import ResponseCode
from holdfast.wire.frames.command import BINARY, ONE_WAY
from holdfast.wire.records.message_id import parse_message_id
from holdfast.wire.records.properties import parse_properties


@pytest.fixture
def desk() -> BrokerHarness:
    desk = BrokerHarness()
    desk.make_topic("T")
    return desk


def test_all_messages_of_one_read_are_one_write_and_one_answer(desk: BrokerHarness) -> None:
    """Whatever their queues, their records go to disk in one call and their answers out in one."""
    writes: list[str] = []
    desk.disk.before = lambda call, path: writes.append(path) if call == "write" else None
    effects_before = len(desk.effects)

    answers = desk.call(*[a_send(queue=number % 4, opaque=number) for number in range(10)])

    assert codes(answers) == [0] * 10
    assert [answer.opaque for answer in answers] == list(range(10))
    assert sum(isinstance(effect, SendBytes) for effect in desk.effects[effects_before:]) == 1
    assert writes == ["commitlog/00000000000000000000"]


def test_offsets_count_up_within_a_queue(desk: BrokerHarness) -> None:
    """Each queue counts for itself, in the order of arrival."""
    answers = desk.call(*[a_send(queue=number % 2, opaque=number) for number in range(6)])

    assert [(answer.fields["queueId"], answer.fields["queueOffset"]) for answer in answers] == [
        ("0", "0"), ("1", "0"), ("0", "1"), ("1", "1"), ("0", "2"), ("1", "2"),
    ]  # fmt: skip


def test_the_answer_says_where_the_record_is(desk: BrokerHarness) -> None:
    """The message id holds the broker's address and the record's position."""
    (answer,) = desk.call(a_send(body=b"find me"))

    found = parse_message_id(answer.fields["msgId"])
    record = desk.store.read_record(found.position)
    assert found.address == desk.options.address
    assert record is not None
    assert bytes(record.body) == b"find me"


def test_a_record_holds_what_was_sent(desk: BrokerHarness) -> None:
    """Properties, flags, times and hosts; the broker adds its cluster."""
    (answer,) = desk.call(a_send(h="7", g="123", j="2", i="UNIQ_KEY\x01U\x02clé\x01ключ\x02TAGS\x01é"))

    record = desk.store.read_record(parse_message_id(answer.fields["msgId"]).position)
    assert record is not None
    assert (record.flag, record.born_ms, record.reconsume_times) == (7, 123, 2)
    assert parse_properties(bytes(record.properties).decode()) == {
        "UNIQ_KEY": "U", "clé": "ключ", "TAGS": "é", "CLUSTER": "DefaultCluster",
    }  # fmt: skip
    assert record.born_host == bytes([10, 0, 0, 1, 0, 0, 0x13, 0x88])
    assert record.store_ms == desk.now_ms


@pytest.mark.parametrize(
    ("properties", "tag"),
    [
        ("UNIQ_KEY\x01U\x02TAGS\x01TagA", "TagA"),
        ("TAGS\x01TagA\x02UNIQ_KEY\x01U\x02", "TagA"),
        ("UNIQ_KEY\x01U\x02TAGS\x01TagA\x02KEYS\x01k\x02", "TagA"),
        ("UNIQ_KEY\x01U\x02MYTAGS\x01TagA\x02", ""),
        ("UNIQ_KEY\x01U\x02", ""),
        ("UNIQ_KEY\x01U\x02x\x01TAGS\x01not\x02", ""),
    ],
)
def test_the_index_entry_has_the_hash_of_the_tag(desk: BrokerHarness, properties: str, tag: str) -> None:
    """Wherever the property stands in the text, and only if it is a property."""
    desk.call(a_send(i=properties))

    ((_, _, code),) = desk.store.queue("T", 0).entries(0, 1)
    assert code == (java_hash(tag) if tag else 0)


def test_neighbours_with_other_tags_keep_their_own(desk: BrokerHarness) -> None:
    """What is remembered of one message is believed of the next only if both end alike."""
    ends = [
        "TAGS\x01A\x02",
        "TAGS\x01A\x02",
        "TAGS\x01AA\x02",
        "TAGS\x01A",
        "TAGS\x01A\x02k\x01v\x02",
        "MYTAGS\x01A\x02",
        "TAGS\x01B\x02k\x01TAGS\x01A\x02",
        "k\x01TAGS\x01A\x02",
        "",
    ]

    desk.call(*[a_send(queue=0, opaque=number, i=f"UNIQ_KEY\x01U\x02{end}") for number, end in enumerate(ends)])

    found = [code for _, _, code in desk.store.queue("T", 0).entries(0, len(ends))]
    assert found == [java_hash(tag) for tag in ("A", "A", "AA", "A", "A", "", "B", "", "")]


def test_a_one_way_send_is_stored_and_not_answered(desk: BrokerHarness) -> None:
    """Also amid others."""
    silent = a_send(opaque=2)
    silent.flag = ONE_WAY

    answers = desk.call(a_send(opaque=1), silent, a_send(opaque=3))

    assert [answer.opaque for answer in answers] == [1, 3]
    assert desk.store.queue("T", 0).offset_max == 3


def test_binary_headers_are_answered_in_binary(desk: BrokerHarness) -> None:
    """A request is answered in its own encoding, and stored the same."""
    request = a_send(body=b"binary")
    request.serializer = BINARY

    (answer,) = desk.call(request)

    assert answer.serializer == BINARY
    assert answer.fields["queueOffset"] == "0"


def test_long_field_names_mean_the_same(desk: BrokerHarness) -> None:
    """Code 10 spells out what 310 abbreviates."""
    request = a_send(code=10)
    request.fields = {
        "producerGroup": "p", "topic": "T", "defaultTopic": "TBW102", "defaultTopicQueueNums": "4", "queueId": "1",
        "sysFlag": "0", "bornTimestamp": "5", "flag": "3", "properties": "UNIQ_KEY\x01U\x02", "reconsumeTimes": "0",
        "unitMode": "0", "batch": "0",
    }  # fmt: skip

    (answer,) = desk.call(request)

    assert (answer.code, answer.fields["queueId"]) == (0, "1")


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"e": "4"}, ResponseCode.INVALID_PARAMETER),
        ({"b": "no/such*name"}, ResponseCode.INVALID_PARAMETER),
        ({"b": "SCHEDULE_TOPIC_XXXX"}, ResponseCode.NO_PERMISSION),
        ({"b": "Other", "c": "NoTemplate"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"e": "zero"}, ResponseCode.INVALID_PARAMETER),
        ({"i": "UNIQ_KEY\x01" + "x" * 33_000}, ResponseCode.MESSAGE_ILLEGAL),
        ({"i": "UNIQ_KEY\x01U\x02TIMER_DELAY_SEC\x0110\x02"}, ResponseCode.MESSAGE_ILLEGAL),
    ],
)
def test_what_cannot_be_taken_is_refused_with_a_reason(
    desk: BrokerHarness, change: dict[str, str], code: ResponseCode
) -> None:
    """Nothing is stored, and the messages around it are not disturbed."""
    good, bad, later = desk.call(a_send(opaque=1), a_send(opaque=2, **change), a_send(opaque=3))

    assert (good.code, bad.code, later.code) == (0, code, 0)
    assert bad.remark
    assert desk.store.queue("T", 0).offset_max == 2


def test_a_body_over_the_limit_is_refused() -> None:
    """The limit is the broker's option."""
    desk = BrokerHarness(message_size_max=100)
    desk.make_topic("T")

    answers = desk.call(a_send(body=bytes(100), opaque=1), a_send(body=bytes(101), opaque=2))

    assert codes(answers) == [0, ResponseCode.MESSAGE_ILLEGAL]


def test_an_unknown_topic_is_created_from_its_template(desk: BrokerHarness) -> None:
    """With as many queues as the sender asks for, at most those of the template."""
    (answer,) = desk.call(a_send("Fresh", d="3"))

    config = desk.components.topics.find("Fresh")
    assert answer.code == 0
    assert config is not None
    assert config.write_queues == 3


def test_a_message_without_a_unique_key_gets_one(desk: BrokerHarness) -> None:
    """Some clients send none; tools look messages up by it."""
    (answer,) = desk.call(a_send(i="KEYS\x01k\x02"))

    record = desk.store.read_record(parse_message_id(answer.fields["msgId"]).position)
    assert record is not None
    assert len(parse_properties(bytes(record.properties).decode())["UNIQ_KEY"]) == 32


def test_sync_flush_answers_after_the_sync_and_not_before() -> None:
    """Acknowledged means on disk."""
    desk = BrokerHarness(flush="sync")
    desk.make_topic("T")

    assert desk.call(a_send(opaque=1)) == []
    assert desk.store.queue("T", 0).offset_max == 0

    desk.sync()

    assert codes(desk.answers[1]) == [0]
    assert desk.store.queue("T", 0).offset_max == 1


def refuse_writes(call: str, path: str) -> None:
    if call == "write":
        raise DiskFailed(f"{path}: no space left on the disk")


def test_a_disk_that_fails_answers_nobody_and_takes_no_more() -> None:
    """The channel is closed, because its outcome is unknown; later sends are refused with a reason."""
    desk = BrokerHarness()
    desk.make_topic("T")
    desk.call(a_send())
    desk.disk.before = refuse_writes

    assert desk.call(a_send(opaque=2)) == []
    (refused,) = desk.call(a_send(opaque=3))

    assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert "disk" in (refused.remark or "")


def refuse_files(call: str, path: str) -> None:
    if call == "create":
        raise DiskFull(f"there is no room for {path}")


def test_a_log_without_room_for_its_next_file_goes_on_when_there_is_some(desk: BrokerHarness) -> None:
    """Senders are told why; none loses its connection, and nobody has to start the broker again."""
    desk.call(a_send(body=bytes(400_000)))
    desk.disk.before = refuse_files

    answers = [answer for _ in range(4) for answer in desk.call(a_send(body=bytes(400_000)))]
    desk.disk.before = None
    desk.pass_time(1000, "housekeep")
    answers += desk.call(a_send(body=bytes(400_000)))

    full = ResponseCode.SERVICE_NOT_AVAILABLE
    assert codes(answers) == [0, full, full, full, 0]
    assert "has no space for another log file" in (answers[1].remark or "")
    assert answers[-1].fields["queueOffset"] == "2"


def test_too_many_unsynced_bytes_make_the_broker_busy() -> None:
    """The backlog of a slow disk is bounded; senders are told to try again."""
    desk = BrokerHarness(flush="sync", unsynced_size_max=2_000)
    desk.make_topic("T")
    desk.call(*[a_send(body=bytes(1_000)) for _ in range(3)])

    (busy,) = desk.call(a_send(opaque=9))
    desk.sync()
    desk.call(a_send(opaque=10))
    desk.sync()

    assert busy.code == ResponseCode.SYSTEM_BUSY
    assert codes(desk.answers[1]) == [0]


def test_senders_are_told_to_wait_while_memory_is_short(desk: BrokerHarness) -> None:
    """Also those of single messages of the hot path; when it is over they are taken again."""
    desk.pressure.is_high = True
    (refused,) = desk.call(a_send())
    desk.pressure.is_high = False
    (taken,) = desk.call(a_send())

    assert codes([refused, taken]) == [ResponseCode.SYSTEM_BUSY, ResponseCode.SUCCESS]
    assert "memory_limit" in (refused.remark or "")
    assert taken.fields["queueOffset"] == "0"
