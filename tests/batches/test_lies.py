"""Batches that lie: nothing of them is delivered, nothing else is lost, nobody fills anybody else's memory."""

from __future__ import annotations

import functools
import struct
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import lz4.frame
import pytest
import zstandard
from tests.support.batch_bytes import (
    BATCH,
    JAVA_4,
    JAVA_5,
    BatchMessage,
    a_batch,
    a_request,
    a_single,
    batch_messages,
    compress,
    encode_messages,
    pull,
    pull_all,
    send,
)
from tests.support.cluster.broker_machine import BrokerHarness, a_pull

from holdfast.client.consume.pull_plan import read_pull_answer
from holdfast.client.messages.unpacking import read_messages
from holdfast.model.errors import UnreadableBatch
from holdfast.model.filter import parse_tags
from holdfast.model.queue import MessageQueue
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.frames.command import Command
from holdfast.wire.records.record import encode_record

MIB = 1 << 20


@contextmanager
def memory_below(size: int) -> Iterator[None]:
    """Fail if Python's objects take so much more at any moment."""
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        yield
        _, peak = tracemalloc.get_traced_memory()
        assert peak - before < size, f"{(peak - before) / MIB:.0f} MiB"
    finally:
        tracemalloc.stop()


def zeros(size: int) -> bytes:
    """Return one item of that size."""
    return encode_messages([BatchMessage(bytes(size), "ID1")])


def zstd_without_size(data: bytes) -> bytes:
    """Return a frame that does not say how large it is inside."""
    packer = zstandard.ZstdCompressor(write_content_size=False).compressobj()
    return packer.compress(data) + packer.flush()


def lying_size(frame: bytes, size: int) -> bytes:
    """Return an LZ4 frame that says another content size, with the checksum of its head made good."""
    info = lz4.frame.get_frame_info(frame)
    assert info["content_size"]
    head = bytearray(frame[:14])
    head[6:14] = size.to_bytes(8, "little")
    return bytes(head) + bytes([_xxh32(bytes(head[4:])) >> 8 & 0xFF]) + frame[15:]


def _xxh32(data: bytes) -> int:
    """Return the checksum of up to 15 bytes, as the format of LZ4 frames wants it."""
    p1, p2, p3, p4, p5 = 0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D, 0x27D4EB2F, 0x165667B1
    mask = 0xFFFFFFFF
    value = p5 + len(data) & mask
    whole = len(data) // 4 * 4
    for at in range(0, whole, 4):
        value = value + int.from_bytes(data[at : at + 4], "little") * p3 & mask
        value = ((value << 17 | value >> 15) & mask) * p4 & mask
    for byte in data[whole:]:
        value = value + byte * p5 & mask
        value = ((value << 11 | value >> 21) & mask) * p1 & mask
    value = (value ^ value >> 15) * p2 & mask
    value = (value ^ value >> 13) * p3 & mask
    return value ^ value >> 16


def nested() -> bytes:
    """Return a batch with a batch as the body of its message."""
    return encode_messages([BatchMessage(encode_messages(batch_messages(3)), "ID1")])


LZ4, ZSTD, ZLIB = (BATCH | 0x1 | codec << 8 for codec in (1, 2, 3))
GOOD = encode_messages(batch_messages(3, size=100))
LIES: dict[str, Callable[[], tuple[bytes, int]]] = {
    "more messages than it says": lambda: (compress(encode_messages(batch_messages(4)), "lz4"), LZ4),
    "fewer messages than it says": lambda: (compress(encode_messages(batch_messages(2)), "zstd"), ZSTD),
    "no message": lambda: (compress(b"", "zlib"), ZLIB),
    "cut short": lambda: (compress(GOOD, "lz4")[:-9], LZ4),
    "zstd cut short": lambda: (compress(GOOD, "zstd")[:-9], ZSTD),
    "zlib cut short": lambda: (compress(GOOD, "zlib")[:-9], ZLIB),
    "nothing": lambda: (b"\0", LZ4),
    "another codec than it says": lambda: (compress(GOOD, "lz4"), ZSTD),
    "an unknown codec": lambda: (compress(GOOD, "lz4"), BATCH | 0x501),
    "the last codec that there could be": lambda: (compress(GOOD, "lz4"), BATCH | 0x701),
    "a bomb of lz4": lambda: (compress(zeros(66 * MIB), "lz4"), LZ4),
    "a bomb of zstd": lambda: (compress(zeros(66 * MIB), "zstd"), ZSTD),
    "a bomb of zstd that says no size": lambda: (zstd_without_size(zeros(66 * MIB)), ZSTD),
    "a bomb of zlib": lambda: (zlib.compress(zeros(66 * MIB)), ZLIB),
    "a bomb of lz4 that says that it is small": lambda: (lying_size(compress(zeros(20 * MIB), "lz4"), 1000), LZ4),
    "something small that says it is a bomb": lambda: (lying_size(compress(GOOD, "lz4"), 1 << 40), LZ4),
    "an item that is larger than its batch": lambda: (compress(struct.pack(">i", 9999) + GOOD[4:], "lz4"), LZ4),
    "an item with a negative body": lambda: (compress(struct.pack(">iiiii", 22, 0, 0, 0, -5) + bytes(2), "lz4"), LZ4),
    "an item of size 0": lambda: (compress(bytes(66), "lz4"), LZ4),
    "properties that reach into the next item": lambda: (
        compress(GOOD.replace(b"\0\x1eUNIQ", b"\0\x2eUNIQ"), "lz4"),
        LZ4,
    ),
    "properties that end before their item": lambda: (compress(GOOD.replace(b"\0\x1eUNIQ", b"\0\x0eUNIQ"), "lz4"), LZ4),
}


@functools.cache
def tell(lie: str) -> tuple[bytes, int]:
    """Return the body of a batch that says it holds 3 messages, and its sys flag."""
    return LIES[lie]()


@pytest.mark.parametrize("lie", LIES)
def test_a_batch_that_lies_is_passed_over_and_nothing_else_is_lost(desk: BrokerHarness, lie: str):
    """Its offsets stand for no message; what was before and behind it is delivered, to every reader."""
    body, sys_flag = tell(lie)
    send(desk, a_batch(batch_messages(2)))
    answer = send(desk, a_request(body, {"UNIQ_KEY": "LIE", "INNER_NUM": "3"}, sys_flag))
    assert answer.code == ResponseCode.SUCCESS, "nobody can know before it is opened"
    send(desk, a_single(BatchMessage(b"behind", "ID9")))

    with memory_below(40 * MIB):
        old = pull_all(desk, client=JAVA_4)
        inside = pull_all(desk, 3, client=JAVA_5)
        tagged = pull_all(desk, client=JAVA_4, subscription="a")
    whole = pull_all(desk, opensBatches="true")

    assert [(record.offset, bytes(record.body)) for record in old] == [(0, b"0"), (1, b"1"), (5, b"behind")]
    assert [record.offset for record in inside] == [5]
    assert tagged == []
    unreadable: list[UnreadableBatch] = []
    raw = b"".join(encode_record(record) for record in whole)
    messages = read_messages(raw, None, unreadable=unreadable)
    assert [message.offset for message in messages] == [0, 1, 5]
    assert len(unreadable) == 1
    with pytest.raises(UnreadableBatch):
        read_messages(raw, None)


@pytest.mark.parametrize("lie", LIES)
def test_a_batch_that_lies_is_neither_found_nor_given_back(desk: BrokerHarness, lie: str):
    """Queries and returns that would need what it holds are answered, not crashed on."""
    body, sys_flag = tell(lie)
    said = {"UNIQ_KEY": f"{1 << 100:032X}", "INNER_NUM": "3", "KEYS": "key1", "INNER_IDS": "next"}
    answer = send(desk, a_request(body, said, sys_flag))
    position = int(answer.fields["msgId"][-16:], 16)
    fields = {"topic": "T", "maxNum": "9", "beginTimestamp": "0", "endTimestamp": str(1 << 60)}
    back = {"group": "g", "offset": str(position), "delayLevel": "0", "originMsgId": "ID00000001", "originTopic": "T"}

    answers = desk.call(
        Command(code=RequestCode.QUERY_MESSAGE, opaque=1, fields={**fields, "key": "key1"}),
        Command(
            code=RequestCode.QUERY_MESSAGE,
            opaque=2,
            fields={**fields, "key": f"{(1 << 100) + 2:032X}", "_UNIQUE_KEY_QUERY": "true"},
        ),
        Command(code=RequestCode.VIEW_MESSAGE_BY_ID, opaque=3, fields={"offset": str(position)}),
        Command(code=RequestCode.CONSUMER_SEND_MSG_BACK, opaque=4, fields=back),
    )

    assert [answer.opaque for answer in answers] == [1, 2, 3, 4]
    assert all(answer.code != ResponseCode.SUCCESS or not answer.body for answer in answers)
    assert answers[3].code != ResponseCode.SUCCESS
    assert send(desk, a_single(BatchMessage(b"alive", "ID"))).code == ResponseCode.SUCCESS


def test_an_answer_that_holds_gigabytes_is_opened_piece_by_piece(desk: BrokerHarness):
    """Each batch is small enough, all of them together are not: the rest is asked for again."""
    for number in range(8):
        send(desk, a_batch([BatchMessage(bytes(12 * MIB), f"I{number}")], codec="zstd"))
    send(desk, a_single(BatchMessage(b"behind", "I9")))
    queue = MessageQueue("T", "broker-a", 0)
    found: list[int] = []
    at = pulls = 0

    with memory_below(75 * MIB):
        while at < 9:
            (answer,) = desk.call(a_pull(offset=at, opensBatches="true"))
            outcome = read_pull_answer(answer, queue, parse_tags("T", "*"))
            found += [message.offset for message in outcome.messages]
            assert outcome.next_offset > at
            at = outcome.next_offset
            pulls += 1
            del outcome

    assert found == list(range(9))
    assert pulls == 3


def test_a_batch_in_a_batch_is_a_message_whose_body_nobody_opens(desk: BrokerHarness):
    """One layer is opened. What a body says is its reader's business."""
    send(desk, a_request(nested(), {"UNIQ_KEY": "B", "INNER_NUM": "1"}, BATCH))

    (record,) = pull(desk, 0).records

    assert bytes(record.body) == encode_messages(batch_messages(3))
    assert record.sys_flag & BATCH == 0


@pytest.mark.parametrize(
    "properties",
    [b"", b"\x01", b"\x02\x02\x02", b"UNIQ_KEY", b"\xff\xfe\x01\xff\x02", b"INNER_NUM\x0199\x02INNER_BASE\x017\x02"],
)
def test_strange_properties_of_a_message_stay_with_it(desk: BrokerHarness, properties: bytes):
    """They are its sender's; they break neither its batch nor the next one."""

    def strange(body: bytes) -> bytes:
        size = 22 + len(body) + len(properties)
        return struct.pack(">iiiii", size, 0, 0, 5, len(body)) + body + struct.pack(">h", len(properties)) + properties

    send(desk, a_request(strange(b"one") + strange(b"two"), {"UNIQ_KEY": "B", "INNER_NUM": "2"}, BATCH))
    send(desk, a_batch(batch_messages(1)))
    desk.pass_time(1000, "housekeep")

    found = pull_all(desk)

    assert [bytes(record.body) for record in found] == [b"one", b"two", b"0"]
    assert [record.offset for record in found] == [0, 1, 2]
    assert [record.properties for record in found[:2]] == [properties, properties]
    again = BrokerHarness(disk=desk.disk)
    assert [record.offset for record in pull_all(again)] == [0, 1, 2]


def test_a_batch_of_one_large_message_is_read_by_everybody(desk: BrokerHarness):
    """A compressed one may be larger opened than a request may be: up to 15 MiB."""
    large = [BatchMessage(bytes(14 * MIB), "ID1"), BatchMessage(b"small", "ID2")]
    assert send(desk, a_batch(large, codec="zstd")).code == ResponseCode.SUCCESS

    found = pull_all(desk, client=JAVA_4)

    assert [len(record.body) for record in found] == [14 * MIB, 5]


def test_reading_a_large_compressed_batch_piece_by_piece_opens_it_once(
    desk: BrokerHarness, monkeypatch: pytest.MonkeyPatch
):
    """A thousand pulls of one message each must not cost a thousand inflations."""
    import holdfast.wire.records.inner_batch as codec  # noqa: PLC0415 - only to count

    opened = []
    inflate = codec.decompress
    monkeypatch.setattr(codec, "decompress", lambda *args, **more: opened.append(1) or inflate(*args, **more))
    send(desk, a_batch(batch_messages(1000, size=500), codec="zlib"))

    assert len(pull_all(desk, count=1)) == 1000

    assert len(opened) == 1
