"""From the body of a pull answer to messages as users see them."""

import contextlib
import zlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.client.messages.unpacking import LazyProperties, read_messages
from holdfast.model.errors import CorruptRecord, HoldfastError, UnreadableBatch
from holdfast.model.queue import MessageQueue
from holdfast.wire.records.batch import encode_items
from holdfast.wire.records.compression import Codec, compress
from holdfast.wire.records.record import StoredRecord, encode_record

QUEUE = MessageQueue("T", "broker-a", 3)
# One record as Java writes it.
GOLDEN = bytes.fromhex(
    "00000065daa320a758932aac000000030000000700000000000000050000000000000400000000000000018bcfe568000a0000010000c350"
    "0000018bcfe568010a00000200002a9f0000000000000000000000000000000268690154000754414753014102"
)
RECORD = StoredRecord(
    0, 1024, "T", 3, 5, 7, 0, 1, bytes(8), 2, bytes([10, 0, 0, 2, 0, 0, 0x2A, 0x9F]), 0, 0, 0, b"hi", b"TAGS\x01A\x02"
)


def a_record(**changes: object) -> bytes:
    return encode_record(msgspec.structs.replace(RECORD, **changes))


def test_a_record_of_java_is_read():
    """Golden bytes."""
    (message,) = read_messages(GOLDEN, QUEUE)

    assert (message.topic, message.body, message.queue, message.offset) == ("T", b"hi", QUEUE, 5)
    assert (message.flag, message.position, message.reconsume_times) == (7, 1024, 0)
    assert (message.born_ms, message.stored_ms) == (1700000000000, 1700000000001)
    assert (message.tags, dict(message.properties)) == ("A", {"TAGS": "A"})
    assert message.offset_id == "0A00000200002A9F0000000000000400"


def test_records_stand_one_behind_the_other():
    """Without a count."""
    body = b"".join(a_record(offset=offset) for offset in range(3))

    assert [message.offset for message in read_messages(body, QUEUE)] == [0, 1, 2]


def test_a_flipped_bit_is_found():
    """Every record's checksum is verified."""
    damaged = bytearray(GOLDEN)
    damaged[damaged.index(b"hi")] ^= 1

    with pytest.raises(CorruptRecord, match="checksum"):
        read_messages(bytes(damaged), QUEUE)


def test_a_record_without_a_queue_tells_its_own():
    """As the answers to queries do."""
    (message,) = read_messages(GOLDEN, None)

    assert message.queue == MessageQueue("T", "", 3)


def test_a_compressed_body_is_uncompressed():
    """And no longer marked."""
    (message,) = read_messages(a_record(body=zlib.compress(b"long"), sys_flag=0x301), QUEUE)

    assert (message.body, message.sys_flag & 0x701) == (b"long", 0)


def test_a_body_that_cannot_be_uncompressed_is_given_out_as_it_is():
    """Still marked. The sender sent it so; holding it back would hold up the queue for ever."""
    (message,) = read_messages(a_record(body=b"not zlib", sys_flag=0x301), QUEUE)

    assert (message.body, message.sys_flag & 1) == (b"not zlib", 1)


def test_a_retried_message_has_the_topic_it_was_sent_to():
    """Users subscribe to that, not to the group's retry topic."""
    body = a_record(topic="%RETRY%g", properties=b"RETRY_TOPIC\x01orders\x02", reconsume_times=2)

    (message,) = read_messages(body, QUEUE)

    assert (message.topic, message.reconsume_times) == ("orders", 2)


def test_a_namespace_is_taken_off():
    """Also of a retried message."""
    plain, retried = read_messages(
        a_record(topic="ns%orders") + a_record(topic="%RETRY%ns%g", properties=b"RETRY_TOPIC\x01ns%orders\x02"),
        QUEUE,
        namespace="ns",
    )

    assert plain.topic == retried.topic == "orders"


def test_an_offset_delta_is_added():
    """Physical to logical."""
    (message,) = read_messages(GOLDEN, QUEUE, offset_delta=1000)

    assert message.offset == 1005


def test_a_batch_that_was_kept_whole_is_opened():
    """Each item is a message with an offset of its own; the batch may be compressed."""
    items = encode_items([(1, b"one", b"KEYS\x01a\x02"), (2, b"two", b"KEYS\x01b\x02")])

    record = a_record(body=zlib.compress(items), sys_flag=0xC0 | 0x301, offset=40, properties=b"INNER_NUM\x012\x02")

    messages = read_messages(record, QUEUE)

    assert [(m.offset, m.flag, m.body, m.keys) for m in messages] == [
        (40, 1, b"one", ("a",)),
        (41, 2, b"two", ("b",)),
    ]
    assert {message.sys_flag for message in messages} == {0xC0}


@pytest.mark.parametrize(
    ("body", "sys_flag", "properties"),
    [
        (b"nonsense", 0xC0, b""),
        (b"nonsense", 0xC0 | 0x301, b""),
        (encode_items([(0, b"one", b"")]), 0xC0, b"INNER_NUM\x012\x02"),
        (encode_items([(0, b"one", b"")] * 3), 0xC0, b"INNER_NUM\x012\x02"),
        (encode_items([(0, b"one", b"")] * 2)[:-1], 0xC0, b"INNER_NUM\x012\x02"),
        (compress(bytes(70_000_000), Codec.ZSTD), 0xC0 | 0x201, b"INNER_NUM\x012\x02"),
        (compress(bytes(70_000_000), Codec.LZ4), 0xC0 | 0x101, b"INNER_NUM\x012\x02"),
        (compress(bytes(70_000_000), Codec.ZLIB), 0xC0 | 0x301, b"INNER_NUM\x012\x02"),
    ],
    ids=["garbage", "not compressed", "too few", "too many", "torn", "zstd bomb", "lz4 bomb", "zlib bomb"],
)
def test_a_batch_that_cannot_be_opened_is_refused(body: bytes, sys_flag: int, properties: bytes):
    """Half of it would be a loss in silence."""
    with pytest.raises(UnreadableBatch, match="offset 5"):
        read_messages(a_record(body=body, sys_flag=sys_flag, properties=properties), QUEUE)


def test_what_stands_beside_a_batch_that_cannot_be_opened_is_read():
    """Whoever wants to get on is told which batch it was."""
    unreadable: list[UnreadableBatch] = []
    body = a_record(offset=1) + a_record(body=b"nonsense", sys_flag=0xC0, offset=2) + a_record(offset=9)

    messages = read_messages(body, QUEUE, offset_delta=100, unreadable=unreadable)

    assert [message.offset for message in messages] == [101, 109]
    assert [error.offset for error in unreadable] == [102]


def test_properties_are_a_mapping():
    """Read when first asked for; what is no UTF-8 does not hurt."""
    properties = LazyProperties(b"a\x01b\x02c\x01\xff\x02")

    assert (properties["a"], properties.get("x"), len(properties), set(properties)) == ("b", None, 2, {"a", "c"})
    assert repr(properties) == "{'a': 'b', 'c': '\N{REPLACEMENT CHARACTER}'}"


@given(st.data())
def test_any_damage_is_read_or_refused(data: st.DataObject):
    """Wherever a record is damaged, and whatever its flags say about its body."""
    damaged = bytearray(a_record(body=zlib.compress(b"long"), sys_flag=data.draw(st.sampled_from([0, 0x301, 0xC0]))))
    for _ in range(data.draw(st.integers(0, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))

    with contextlib.suppress(HoldfastError):
        for message in read_messages(bytes(damaged), QUEUE, namespace="ns"):
            assert isinstance(dict(message.properties), dict)
