"""What a pull gets of an index by record if its reader cannot open batches, or must not get all of one."""

import struct

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.cluster.broker_machine import BrokerHarness, a_pull
from tests.support.inner_batches import JAVA_4, JAVA_5, a_batch_harness, make_items, put_batch, put_record

from holdfast.broker.messages.batch_cache import UnpackReason
from holdfast.wire.frames.codes import ResponseCode
from holdfast.wire.frames.command import Command
from holdfast.wire.records.batch import encode_items
from holdfast.wire.records.compression import Codec, compress, flag_of
from holdfast.wire.records.inner_batch import INNER_BATCH, is_inner_batch
from holdfast.wire.records.record import StoredRecord, decode_records

OURS = ("PYTHON", 479)
CODECS = [None, *Codec]


def pull(desk: BrokerHarness, offset: int, who: tuple[str, int] = JAVA_4, **fields: str) -> Command:
    command = a_pull(offset=offset, **fields)
    command.language, command.version = who
    (answer,) = desk.call(command)
    return answer


def records(answer: Command) -> list[StoredRecord]:
    return list(decode_records(answer.body))


def found(answer: Command) -> list[tuple[int, bytes]]:
    return [(record.offset, bytes(record.body)) for record in records(answer)]


def numbered(start: int, end: int) -> list[tuple[int, bytes]]:
    return [(number, b"%03d" % number) for number in range(start, end)]


def reopened(desk: BrokerHarness) -> BrokerHarness:
    """Return another broker on the same disk, with nothing in memory."""
    desk.components.topics.save()
    desk.store.close(desk.now_ms)
    return BrokerHarness(disk=desk.disk)


def following(answer: Command) -> int:
    return int(answer.fields["nextBeginOffset"])


@pytest.mark.parametrize("codec", CODECS)
def test_a_reader_that_knows_no_batches_gets_single_messages(codec: Codec | None) -> None:
    """From the offset it asked for on, with what each was sent with; the rest is its batch's."""
    desk = a_batch_harness()
    position = put_batch(desk, make_items(0, 10, tags=("a", "b"), size=100), codec=codec)

    answer = pull(desk, 4)

    got = records(answer)
    assert [record.offset for record in got] == [4, 5, 6, 7, 8, 9]
    assert [bytes(record.body) for record in got] == [b"%0100d" % number for number in range(4, 10)]
    assert [record.properties for record in got] == [item.properties for item in make_items(4, 6, tags=("a", "b"))]
    assert [record.flag for record in got] == [4, 5, 6, 0, 1, 2]
    assert {record.position for record in got} == {position}
    assert {(record.topic, record.queue_id, record.sys_flag, record.reconsume_times) for record in got} == {
        ("T", 0, 0, 0)
    }
    assert {(record.born_ms, record.store_ms) for record in got} == {(desk.now_ms - 1, desk.now_ms)}
    assert (answer.code, following(answer)) == (ResponseCode.SUCCESS, 10)
    assert desk.components.batch_cache.inflated[UnpackReason.SPLIT] == (codec is not None)


@pytest.mark.parametrize(
    ("who", "opens"), [(OURS, "true"), (JAVA_4, "true"), (JAVA_5, None)], ids=["ours", "by its word", "java 5"]
)
def test_a_reader_that_opens_batches_gets_them_as_they_are_stored(who: tuple[str, int], opens: str | None) -> None:
    """And nothing is opened here."""
    desk = a_batch_harness()
    position = put_batch(desk, make_items(0, 10), codec=Codec.ZSTD)
    put_record(desk, b"single", b"UNIQ_KEY\x01u\x02")
    said = {} if opens is None else {"opensBatches": opens}

    answer = pull(desk, 0, who, **said)

    whole, single = records(answer)
    assert (whole.position, is_inner_batch(whole.sys_flag), following(answer)) == (position, True, 11)
    assert bytes(single.body) == b"single"
    assert set(desk.components.batch_cache.unpacked.values()) == {0}


@pytest.mark.parametrize(
    ("who", "opens"), [(OURS, None), (("GO", 513), None), (("JAVA", 412), None), (JAVA_5, "false"), (OURS, "what")]
)
def test_a_high_version_of_another_client_proves_nothing(who: tuple[str, int], opens: str | None) -> None:
    """Who does not say that it opens batches, and is no Java client that does, gets single messages."""
    desk = a_batch_harness()
    put_batch(desk, make_items(0, 3))

    assert found(pull(desk, 0, who, **({} if opens is None else {"opensBatches": opens}))) == numbered(0, 3)


def test_our_reader_gets_the_whole_batch_also_from_its_middle() -> None:
    """It leaves out by itself what it did not ask for."""
    desk = a_batch_harness()
    put_batch(desk, make_items(0, 10), codec=Codec.LZ4)

    answer = pull(desk, 7, OURS, opensBatches="true")

    (whole,) = records(answer)
    assert (whole.offset, following(answer)) == (0, 10)
    assert desk.components.batch_cache.unpacked[UnpackReason.SPLIT] == 0


def test_java_5_gets_the_rest_of_a_batch_as_single_messages_and_then_whole_ones() -> None:
    """It would deliver everything that a batch holds; the number that it asks for is of no use to it there either."""
    desk = a_batch_harness()
    put_batch(desk, make_items(0, 100), codec=Codec.ZSTD)
    put_batch(desk, make_items(100, 3), codec=Codec.ZSTD)

    rest = pull(desk, 7, JAVA_5)
    behind = pull(desk, following(rest), JAVA_5)

    assert found(rest) == numbered(7, 100)
    assert [is_inner_batch(record.sys_flag) for record in records(behind)] == [True]
    assert desk.components.batch_cache.inflated[UnpackReason.SPLIT] == 1


def test_the_number_of_messages_is_limited_also_within_a_batch() -> None:
    """The next pull goes on in its middle; what was opened once is kept for it."""
    desk = a_batch_harness()
    put_record(desk, b"000", b"")
    put_batch(desk, make_items(1, 8), codec=Codec.ZLIB)
    put_batch(desk, make_items(9, 8), codec=Codec.ZLIB)
    got, offset = [], 0

    while offset < 17:
        answer = pull(desk, offset, maxMsgNums="3")
        assert len(found(answer)) == min(3, 17 - offset)
        got += found(answer)
        offset = following(answer)

    assert got == numbered(0, 17)
    assert desk.components.batch_cache.inflated[UnpackReason.SPLIT] == 2


def test_the_size_is_limited_but_never_to_nothing() -> None:
    """By what leaves, not by what the batch has."""
    desk = a_batch_harness()
    put_batch(desk, make_items(0, 20, size=1000))

    few, one = pull(desk, 3, maxMsgBytes="5000"), pull(desk, 3, maxMsgBytes="10")

    assert [record.offset for record in records(few)] == [3, 4, 5, 6]
    assert len(few.body) <= 5000
    assert [record.offset for record in records(one)] == [3]
    assert (following(few), following(one)) == (7, 4)


def test_tags_are_looked_for_within_batches() -> None:
    """Of a batch whose messages have several tags, and of one that is of a single message; by the hash, as ever."""
    desk = a_batch_harness()
    put_batch(desk, make_items(0, 6, tags=("a", "b", None)))
    put_batch(desk, make_items(6, 1, tags=(None,)))
    put_batch(desk, make_items(7, 1, tags=("a",)))
    put_record(desk, b"008", b"TAGS\x01b\x02")
    put_record(desk, b"009", b"TAGS\x01a\x02")
    put_batch(desk, make_items(10, 3, tags=("b",)))

    answer = pull(desk, 1, subscription="a || c")

    assert found(answer) == [(3, b"003"), (7, b"007"), (9, b"009")]
    assert following(answer) == 13


def test_a_limit_among_tagged_messages_goes_on_at_the_next_one() -> None:
    """Not behind the batch, and not at what was looked at already."""
    desk = a_batch_harness()
    put_batch(desk, make_items(0, 12, tags=("a", "b", "c")))

    first = pull(desk, 0, subscription="b", maxMsgNums="2")
    second = pull(desk, following(first), subscription="b", maxMsgNums="2")

    assert [record.offset for record in records(first) + records(second)] == [1, 4, 7, 10]
    assert following(second) == 12


def test_a_batch_without_the_tag_is_passed() -> None:
    """The reader is told how far it need not look again."""
    desk = a_batch_harness()
    put_batch(desk, make_items(0, 6, tags=("a", "b")))

    answer = pull(desk, 2, subscription="z")

    assert (answer.code, following(answer)) == (ResponseCode.PULL_RETRY_IMMEDIATELY, 6)


def test_a_pull_that_waits_is_woken_by_a_batch() -> None:
    """And gets its messages one by one."""
    desk = a_batch_harness()
    desk.connect(2)
    command = a_pull(sysFlag="6")

    assert desk.call(command, channel=2) == []
    position = put_batch(desk, make_items(0, 3))
    desk.components.pull_handler.wake_queue("T", 0)
    desk.call(a_pull(queue=1))

    (answer,) = desk.answers[2]
    assert found(answer) == numbered(0, 3)
    assert {record.position for record in records(answer)} == {position}


@pytest.mark.parametrize("codec", CODECS)
def test_batches_that_lie_cold_on_disk_are_split_too(codec: Codec | None) -> None:
    """Index entries and records are read elsewhere."""
    desk = a_batch_harness()
    for start in range(0, 50, 10):
        put_batch(desk, make_items(start, 10), codec=codec)
    desk = reopened(desk)

    answer = pull(desk, 13)

    assert found(answer) == numbered(13, 45)
    assert following(answer) == 45


def test_a_damaged_batch_is_passed() -> None:
    """As a damaged single message is; what is told about it is in the log."""
    desk = a_batch_harness()
    put_batch(desk, make_items(0, 3))
    damaged = put_batch(desk, make_items(3, 3))
    put_batch(desk, make_items(6, 3))
    desk = reopened(desk)
    desk.disk.open("commitlog/00000000000000000000").write(damaged + 120, [b"\xff\xff\xff"])

    answer = pull(desk, 0)

    assert found(answer) == [*numbered(0, 3), *numbered(6, 9)]


@pytest.mark.parametrize(
    ("at", "value"),
    [(36, (2).to_bytes(2, "big")), (0, (7).to_bytes(8, "big")), (8, (200).to_bytes(4, "big"))],
    ids=["count", "position", "size"],
)
@pytest.mark.parametrize("is_cold", [False, True])
def test_an_index_that_says_something_else_than_the_record_is_not_believed(
    at: int, value: bytes, *, is_cold: bool
) -> None:
    """Two messages of one offset would be worse than none, and a reader that is refused would ask for ever."""
    desk = a_batch_harness()
    put_batch(desk, make_items(0, 3))
    put_batch(desk, make_items(3, 3))
    desk = reopened(desk)
    if not is_cold:
        pull(desk, 0)
        desk.components.batch_cache._cached.clear()
    desk.disk.open("batchconsumequeue/T/0/00000000000000000000").write(at, [value])

    assert found(pull(desk, 0)) == numbered(3, 6)


LIES = {
    "too few items": (encode_items([(0, b"x", b"")]), 0, 2),
    "too many items": (encode_items([(0, b"x", b"")] * 3), 0, 2),
    "no items": (b"", 0, 2),
    "a torn item": (encode_items([(0, b"x", b"")] * 2)[:-1], 0, 2),
    "garbage": (b"\xff" * 100, 0, 2),
    "not compressed": (b"\xff" * 100, flag_of(Codec.ZSTD), 2),
    "an unknown codec": (b"\xff" * 100, 0x701, 2),
    "a zlib bomb": (compress(bytes(20_000_000), Codec.ZLIB), flag_of(Codec.ZLIB), 2),
    "a zstd bomb": (compress(bytes(20_000_000), Codec.ZSTD), flag_of(Codec.ZSTD), 2),
    "an lz4 bomb": (compress(bytes(20_000_000), Codec.LZ4), flag_of(Codec.LZ4), 2),
    "properties that no record can hold": (
        struct.pack(">iiiii1sH", 23 + 0x8000, 0, 0, 0, 1, b"x", 0x8000) + bytes(0x8000),
        0,
        1,
    ),
    "no count": (encode_items([(0, b"x", b"")] * 2), 0, None),
}


@pytest.mark.parametrize("name", LIES)
def test_a_batch_that_lies_stands_for_no_message(name: str) -> None:
    """The reader gets on behind it and loses nothing else; it is counted, and not tried again and again."""
    body, codec, count = LIES[name]
    desk = a_batch_harness()
    put_batch(desk, make_items(0, 3))
    said = b"" if count is None else b"INNER_NUM\x01%d\x02" % count
    put_record(desk, body, b"UNIQ_KEY\x01u\x02" + said, INNER_BATCH | codec)
    lost = count or 1
    put_batch(desk, make_items(3 + lost, 2))

    both, behind, alone = pull(desk, 0), pull(desk, 3), pull(desk, 3, maxMsgNums="1")

    assert found(both) == [*numbered(0, 3), *numbered(3 + lost, 5 + lost)]
    assert found(behind) == numbered(3 + lost, 5 + lost)
    assert following(alone) > 3
    assert desk.components.batch_cache.unreadable[UnpackReason.SPLIT] == 1


class Plan(msgspec.Struct):
    """A queue, and how it is read: counts of the records, 0 for one that is no batch; number and size per pull."""

    counts: list[int]
    number: int
    size: int
    start: int
    tag: str


@given(
    st.builds(
        Plan,
        st.lists(st.integers(0, 12), min_size=1, max_size=8),
        st.integers(1, 15),
        st.integers(1, 1000),
        st.integers(0, 30),
        st.sampled_from(["*", "a", "a || b", "c"]),
    )
)
def test_whoever_reads_piece_by_piece_reads_everything_once(plan: Plan) -> None:
    """From wherever it begins, whatever it asks for, as if there had never been a batch."""
    desk, sent = a_batch_harness(), []
    for count in plan.counts:
        batch = make_items(len(sent), count or 1, tags=("a", "b", None))
        if count:
            put_batch(desk, batch, codec=CODECS[len(sent) % 4])
        else:
            put_record(desk, batch[0].body, batch[0].properties)
        sent += batch
    start = min(plan.start, len(sent))
    got, offset = [], start

    while offset < len(sent):
        answer = pull(desk, offset, subscription=plan.tag, maxMsgNums=str(plan.number), maxMsgBytes=str(plan.size))
        assert offset < following(answer) <= len(sent)
        assert len(found(answer)) <= plan.number
        assert len(answer.body) <= plan.size or len(found(answer)) == 1
        got += found(answer)
        offset = following(answer)

    tags = set(plan.tag.split(" || "))
    assert got == [
        (number, item.body)
        for number, item in enumerate(sent)
        if number >= start and (plan.tag == "*" or item.tags in tags)
    ]
