"""Batches that stay one record, from the request to the store; and those that cannot."""

import pytest
from tests.support.cluster.broker_machine import BrokerHarness, a_send
from tests.support.cluster.machine import codes

from holdfast.model.java_hash import java_hash
from holdfast.store.queues.batch_consume_queue import RecordIndex
from holdfast.wire.frames.codes import ResponseCode
from holdfast.wire.frames.command import BINARY, ONE_WAY, Command
from holdfast.wire.records.batch import encode_items, split_items
from holdfast.wire.records.compression import Codec
from holdfast.wire.records.inner_batch import unwrap_items, wrap_items
from holdfast.wire.records.message_id import parse_message_id
from holdfast.wire.records.properties import parse_properties
from holdfast.wire.records.record import StoredRecord

BATCHES = {"queue.type": "BatchCQ"}
ID = "0A000001000000000001000000010007"


@pytest.fixture
def desk() -> BrokerHarness:
    desk = BrokerHarness()
    desk.make_topic("B", attributes=BATCHES)
    desk.make_topic("T")
    return desk


def the_items(count: int, size: int = 3) -> bytes:
    return encode_items([(0, b"%*d" % (size, number), b"UNIQ_KEY\x01item%d\x02" % number) for number in range(count)])


def ours(count: int = 3, *, codec: Codec | None = None, topic: str = "B", **fields: str) -> Command:
    """Return a batch as our producer closes it."""
    whole = wrap_items(the_items(count, 200), count, ID, keys=["k1", "k2"], tags={"TagA"}, codec=codec)
    named = {"f": str(whole.sys_flag), "i": whole.properties, "m": "true"} | fields
    return a_send(topic, code=320, body=whole.body, **named)


def javas(body: bytes | None = None, *, topic: str = "B", **fields: str) -> Command:
    """Return a batch as Java's producer sends it: it has an id, and nobody has counted."""
    named = {"i": f"UNIQ_KEY\x01{ID}\x02WAIT\x01true\x02", "m": "true"} | fields
    return a_send(topic, code=320, body=the_items(3) if body is None else body, **named)


def record_of(desk: BrokerHarness, answer: Command) -> StoredRecord:
    record = desk.store.read_record(parse_message_id(answer.fields["msgId"]).position)
    assert record is not None
    return record


@pytest.mark.parametrize("codec", [None, Codec.ZSTD])
def test_a_batch_that_its_sender_closed_is_one_record(desk: BrokerHarness, codec: Codec | None) -> None:
    """Its body is stored as it came, its messages have an offset each, and its answer names the first."""
    request = ours(3, codec=codec)
    desk.call(a_send("B", opaque=1))

    (answer,) = desk.call(request)

    record = record_of(desk, answer)
    properties = parse_properties(bytes(record.properties).decode())
    assert (answer.fields["queueOffset"], answer.fields["batchUniqId"]) == ("1", ID)
    assert bytes(record.body) == request.body
    assert record.sys_flag & 0xC1 == 0xC0 | (codec is not None)
    assert properties == {
        "UNIQ_KEY": ID, "INNER_NUM": "3", "KEYS": "k1 k2", "TAGS": "TagA", "CLUSTER": "DefaultCluster",
        "INNER_BASE": "1",
    }  # fmt: skip
    assert len(unwrap_items(record.body, record.sys_flag, record.properties)) == 3
    queue = desk.store.queue("B", 0)
    assert (queue.offset_min, queue.offset_max) == (0, 4)
    ((_, _, code),) = queue.entries(2, 1)
    assert code == java_hash("TagA")


def test_a_batch_of_java_is_counted_by_the_broker(desk: BrokerHarness) -> None:
    """Its items are not touched; the count is put outside, with both bits of the sys flag."""
    items = the_items(2) + the_items(1, size=99)

    (answer,) = desk.call(javas(items))

    record = record_of(desk, answer)
    assert answer.fields["batchUniqId"] == ID
    assert record.sys_flag & 0xC0 == 0xC0
    assert bytes(record.body) == items
    assert parse_properties(bytes(record.properties).decode())["INNER_NUM"] == "3"
    assert desk.store.queue("B", 0).offset_max == 3


@pytest.mark.parametrize(
    "request_",
    [javas(topic="T"), javas(i="WAIT\x01true\x02"), javas(i="")],
    ids=["a topic that is indexed by message", "no id outside", "no properties"],
)
def test_other_batches_are_split(desk: BrokerHarness, request_: Command) -> None:
    """A record for each message, and its id in the answer."""
    (answer,) = desk.call(request_)

    queue = desk.store.queue(request_.fields["b"], 0)
    assert "batchUniqId" not in answer.fields
    assert len(answer.fields["msgId"].split(",")) == queue.offset_max == 3
    assert len(set(queue.entries(0, 3))) == 3


def test_neighbours_of_a_batch_keep_their_order(desk: BrokerHarness) -> None:
    """Single messages and batches of one read are stored as they came, whichever path they take."""
    silent = ours(2)
    silent.flag = ONE_WAY
    binary = ours(4)
    binary.serializer = BINARY

    answers = desk.call(a_send("B", opaque=1), ours(5), silent, a_send("B", opaque=2), javas())
    (last,) = desk.call(binary)

    assert [answer.fields["queueOffset"] for answer in answers] == ["0", "1", "8", "9"]
    assert (last.fields["queueOffset"], last.fields["batchUniqId"], last.serializer) == ("12", ID, BINARY)
    queue = desk.store.queue("B", 0)
    assert isinstance(queue, RecordIndex)
    assert (queue.offset_max, queue.entry_end) == (16, 6)


def test_messages_of_batches_are_counted_one_by_one(desk: BrokerHarness) -> None:
    """By the statistics that tools show."""
    desk.call(ours(5), javas(), a_send("B"))

    assert desk.components.stats.puts.value == 9


@pytest.mark.parametrize(
    ("request_", "part"),
    [
        (ours(topic="T"), "queue.type=BatchCQ"),
        (a_send("T", f=str(0xC0)), "queue.type=BatchCQ"),
        (a_send("B", f=str(0xC0)), "no INNER_NUM"),
        (ours(f="0"), "without 0x80"),
        (a_send("B", i="UNIQ_KEY\x01U\x02INNER_NUM\x013\x02"), "without 0x80"),
        (a_send("T", i="UNIQ_KEY\x01U\x02INNER_NUM\x013\x02"), "without 0x80"),
        (ours(i=f"UNIQ_KEY\x01{ID}\x02"), "no INNER_NUM"),
        (ours(i=f"UNIQ_KEY\x01{ID}\x02INNER_NUM\x010\x02"), "'0'"),
        (ours(i=f"UNIQ_KEY\x01{ID}\x02INNER_NUM\x0132768\x02"), "1 to 32767"),
        (ours(i=f"UNIQ_KEY\x01{ID}\x02INNER_NUM\x01many\x02"), "many"),
        (ours(i=f"UNIQ_KEY\x01{ID}\x02INNER_NUM\x014\x02"), "holds 3"),
        (ours(i=f"UNIQ_KEY\x01{ID}\x02INNER_NUM\x013\x02DELAY\x013\x02"), "one by one"),
        (ours(i=f"UNIQ_KEY\x01{ID}\x02INNER_NUM\x013\x02TIMER_DELAY_SEC\x013\x02"), "one by one"),
        (javas(i=f"UNIQ_KEY\x01{ID}\x02DELAY\x013\x02"), "one by one"),
        (ours(f=str(0xC0 | 0x4)), "transaction"),
        (ours(topic="%RETRY%g"), "retry"),
        (javas(the_items(3)[:-1]), "batch item 2"),
        (javas(b""), "empty"),
        (javas(encode_items([(0, b"", b"")]) * 32768), "more than 32767"),
    ],
)
def test_what_cannot_be_an_inner_batch_is_refused(desk: BrokerHarness, request_: Command, part: str) -> None:
    """With a text that says what to do; nothing is stored, and its neighbours are."""
    answers = desk.call(a_send("B", opaque=1), request_, a_send("B", opaque=2))

    assert codes(answers) == [0, ResponseCode.MESSAGE_ILLEGAL, 0]
    assert part in (answers[1].remark or "")
    assert sum(queue.next_offset for queue in desk.store.list_queues()) == 2


def test_a_count_that_cannot_be_seen_is_believed(desk: BrokerHarness) -> None:
    """What is compressed is not opened to count it: whoever opens it will see."""
    lie = ours(3, codec=Codec.LZ4)
    lie.fields["i"] = lie.fields["i"].replace("INNER_NUM\x013", "INNER_NUM\x019")

    (answer,) = desk.call(lie)

    assert answer.code == 0
    assert desk.store.queue("B", 0).offset_max == 9


def test_a_batch_without_an_id_gets_one(desk: BrokerHarness) -> None:
    """As a single message does."""
    (answer,) = desk.call(ours(i="INNER_NUM\x013\x02"))

    properties = parse_properties(bytes(record_of(desk, answer).properties).decode())
    assert properties["UNIQ_KEY"] == answer.fields["batchUniqId"] == answer.fields["transactionId"]


def test_an_id_that_json_would_spell_otherwise_is_answered_all_the_same(desk: BrokerHarness) -> None:
    """Nobody's id breaks an answer."""
    (answer,) = desk.call(ours(i='UNIQ_KEY\x01say "hé"\x02INNER_NUM\x013\x02'))

    assert answer.fields["batchUniqId"] == 'say "hé"'


def test_a_batch_that_is_too_large_is_refused() -> None:
    """As a whole: what is larger than a message may be does not fit into a record."""
    desk = BrokerHarness(message_size_max=1000)
    desk.make_topic("B", attributes=BATCHES)

    answers = desk.call(ours(3), ours(9))

    assert codes(answers) == [0, ResponseCode.MESSAGE_ILLEGAL]
    assert "smaller" in (answers[1].remark or "")


def test_single_messages_of_every_kind_go_to_such_topics(desk: BrokerHarness) -> None:
    """Delayed ones too: they come to their queue when they are due."""
    answers = desk.call(a_send("B"), a_send("B", i="UNIQ_KEY\x01U\x02DELAY\x011\x02"))

    assert codes(answers) == [0, 0]
    assert desk.store.queue("B", 0).offset_max == 1
    desk.pass_time(2000, "delays")
    assert desk.store.queue("B", 0).offset_max == 2


def test_batches_are_there_after_a_restart(desk: BrokerHarness) -> None:
    """Also after a crash: the index is made again from the log, with the counts that it says."""
    desk.call(ours(3), a_send("B"), javas())

    again = BrokerHarness(disk=desk.disk)

    queue = again.store.queue("B", 0)
    assert queue.accepts_batches
    assert (queue.offset_min, queue.offset_max, queue.next_offset) == (0, 7, 7)
    (answer,) = again.call(ours(2))
    assert answer.fields["queueOffset"] == "7"
    assert len(split_items(record_of(again, answer).body)) == 2
