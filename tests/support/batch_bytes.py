"""Batches byte by byte, as the formats say: what clients send, what a broker keeps, what readers get.

    item    size i32 | 0 i32 | 0 i32 | flag i32 | body size i32 | body | properties size i16 | properties
    unit    position i64 | size i32 | tag i64 | store time i64 | first offset i64 | count i16 | -1 i32 | 0 i32

Nothing of ours makes or opens a batch here, so that our codecs cannot agree with each other on something wrong.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile
from typing import NamedTuple, Protocol

import lz4.frame
import zstandard
from tests.support.cluster.broker_machine import BrokerHarness, a_pull
from tests.support.cluster.raw_requests import java_topic_fields

from holdfast.machine.events import Stopping
from holdfast.wire.frames.codes import RequestCode
from holdfast.wire.frames.command import Command
from holdfast.wire.records.properties import parse_properties
from holdfast.wire.records.record import StoredRecord, decode_record, decode_records

BATCH = 0x40 | 0x80
"""Bits of the sys flag: a batch that stays one record."""
CODECS = {"plain": 0, "lz4": 0x101, "zstd": 0x201, "zlib": 0x301}
"""What the sys flag says of each way to compress."""
JAVA_4 = {"language": "JAVA", "version": 407}
JAVA_5 = {"language": "JAVA", "version": 513}
ENTRY_FORMAT = struct.Struct(">qiqqqhii")
_LOG_START = 0xDAA320A7


class BatchMessage(NamedTuple):
    """A message of a batch."""

    body: bytes
    id: str
    tag: str = ""
    keys: str = ""
    flag: int = 0

    @property
    def properties(self) -> bytes:
        """As text."""
        pairs = {"UNIQ_KEY": self.id, "TAGS": self.tag, "KEYS": self.keys}
        return "".join(f"{name}\x01{text}\x02" for name, text in pairs.items() if text).encode()


class RecordEntry(NamedTuple):
    """An entry of an index by record."""

    position: int
    size: int
    tag: int
    stored_ms: int
    base: int
    count: int
    compacted: int
    reserved: int


class FileReader(Protocol):
    """What a folder is looked at with."""

    def list(self, folder: str) -> list[str]:
        """Return the names in *folder*."""
        ...

    def read_file(self, path: str) -> bytes | None:
        """Return a file."""
        ...


def batch_messages(count: int, *, start: int = 0, tags: Sequence[str] = ("",), size: int = 0) -> list[BatchMessage]:
    """Return messages that say their number, with ids, keys and flags of their own."""
    return [
        BatchMessage(b"%d" % number + b"." * size, f"ID{number:08X}", tags[number % len(tags)], f"key{number}", number)
        for number in range(start, start + count)
    ]


def encode_messages(batch: Iterable[BatchMessage]) -> bytes:
    """Return the body of a batch."""
    return b"".join(
        struct.pack(">iiiii", 22 + len(message.body) + len(message.properties), 0, 0, message.flag, len(message.body))
        + message.body
        + struct.pack(">h", len(message.properties))
        + message.properties
        for message in batch
    )


def compress(body: bytes, codec: str) -> bytes:
    """Return a body as a producer compresses it."""
    if codec == "lz4":
        return bytes(lz4.frame.compress(body))
    if codec == "zstd":
        return zstandard.ZstdCompressor().compress(body)
    return zlib.compress(body) if codec == "zlib" else body


def a_batch(
    batch: Sequence[BatchMessage],
    *,
    topic: str = "T",
    queue: int = 0,
    codec: str = "plain",
    extra_properties: Mapping[str, str] | None = None,
    code: int = RequestCode.SEND_MESSAGE_V2,
) -> Command:
    """Return a batch as a new client sends it: what is in it is said outside; *outside* adds to that, or replaces."""
    properties = {"UNIQ_KEY": "BATCH" + batch[0].id, "INNER_NUM": str(len(batch))} | dict(extra_properties or {})
    return a_request(
        compress(encode_messages(batch), codec), properties, BATCH | CODECS[codec], topic=topic, queue=queue, code=code
    )


def java_batch(
    batch: Sequence[BatchMessage],
    *,
    topic: str = "T",
    queue: int = 0,
    extra_properties: Mapping[str, str] | None = None,
) -> Command:
    """Return a batch as Java's producer 5.x sends it: nothing outside but the id."""
    properties = {"UNIQ_KEY": "BATCH" + batch[0].id} | dict(extra_properties or {})
    return a_request(encode_messages(batch), properties, topic=topic, queue=queue, code=RequestCode.SEND_BATCH_MESSAGE)


def old_batch(batch: Sequence[BatchMessage], *, topic: str = "T", queue: int = 0) -> Command:
    """Return a batch as old clients send it: not even an id outside."""
    return a_request(
        encode_messages(batch), {"WAIT": "true"}, topic=topic, queue=queue, code=RequestCode.SEND_BATCH_MESSAGE
    )


def a_single(message: BatchMessage, *, topic: str = "T", queue: int = 0) -> Command:
    """Return a message that travels alone."""
    return a_request(
        message.body, parse_properties(message.properties.decode()), topic=topic, queue=queue, flag=message.flag
    )


def a_request(
    body: bytes,
    properties: Mapping[str, str],
    sys_flag: int = 0,
    *,
    topic: str = "T",
    queue: int = 0,
    code: int = RequestCode.SEND_MESSAGE_V2,
    flag: int = 0,
) -> Command:
    """Return any send."""
    text = "".join(f"{name}\x01{value}\x02" for name, value in properties.items())
    is_batch = code == RequestCode.SEND_BATCH_MESSAGE
    return Command(
        code=code,
        opaque=7,
        fields={
            "a": "producers",
            "b": topic,
            "c": "TBW102",
            "d": "4",
            "e": str(queue),
            "f": str(sys_flag),
            "g": "1699999999999",
            "h": str(flag),
            "i": text,
            "j": "0",
            "k": "false",
            "m": "true" if is_batch else "false",
        },
        body=body,
    )


def make_topic(harness: BrokerHarness, topic: str = "T", *, kind: str = "BatchCQ", queues: int = 4) -> Command:
    """Create a topic as Java's tools do; return the answer."""
    fields = java_topic_fields(topic, queues) | {"attributes": f"+queue.type={kind}"}
    (answer,) = harness.call(Command(code=RequestCode.UPDATE_AND_CREATE_TOPIC, opaque=3, fields=fields))
    return answer


def stop(harness: BrokerHarness) -> None:
    """End a broker in order, so that its files say all that it knows."""
    harness.feed(Stopping(harness.now_ms))
    harness.store.close(harness.now_ms)


def send(harness: BrokerHarness, command: Command) -> Command:
    """Send a request that is answered at once."""
    (answer,) = harness.call(command)
    return answer


class PullReply(NamedTuple):
    """An answer to a pull."""

    code: int
    next: int
    min: int
    max: int
    records: list[StoredRecord]

    @property
    def offsets(self) -> list[int]:
        """Of all records."""
        return [record.offset for record in self.records]

    @property
    def bodies(self) -> list[bytes]:
        """Of all records."""
        return [bytes(record.body) for record in self.records]


def pull(
    harness: BrokerHarness,
    offset: int,
    *,
    client: Mapping[str, object] = JAVA_4,
    topic: str = "T",
    queue: int = 0,
    count: int = 32,
    **fields: str,
) -> PullReply:
    """Pull, with a subscription to everything unless *fields* say otherwise; nobody waits."""
    command = a_pull(topic, queue=queue, offset=offset, maxMsgNums=str(count), **fields)
    for name, value in client.items():
        setattr(command, name, value)
    (answer,) = harness.call(command)
    fields_received = answer.fields
    numbers = [int(fields_received[name]) for name in ("nextBeginOffset", "minOffset", "maxOffset")]
    return PullReply(answer.code, *numbers, list(decode_records(bytes(answer.body))))


def pull_all(harness: BrokerHarness, start: int = 0, **options: object) -> list[StoredRecord]:
    """Pull from *start* to the end of a queue, as a client does; return every record."""
    found: list[StoredRecord] = []
    at = start
    while True:
        pulled = pull(harness, at, **options)  # type: ignore[arg-type]
        found += pulled.records
        if pulled.code not in {0, 20}:
            return found
        assert pulled.next > at, "a pull that brings nothing forward would be repeated for ever"
        at = pulled.next


def read_entries(files: FileReader, topic: str = "T", queue: int = 0) -> list[RecordEntry]:
    """Return the index of a queue, from its files, up to where nothing was written yet."""
    folder = f"batchconsumequeue/{topic}/{queue}"
    data = b"".join(files.read_file(f"{folder}/{name}") or b"" for name in files.list(folder))
    entries = (
        RecordEntry(*ENTRY_FORMAT.unpack_from(data, at))
        for at in range(0, len(data) - ENTRY_FORMAT.size + 1, ENTRY_FORMAT.size)
    )
    return list(takewhile(lambda entry: entry.size, entries))


def records(files: FileReader) -> list[StoredRecord]:
    """Return the log, from its files."""
    found = []
    for name in files.list("commitlog"):
        data = files.read_file(f"commitlog/{name}") or b""
        at = 0
        while at + 8 <= len(data) and int.from_bytes(data[at + 4 : at + 8], "big") == _LOG_START:
            found.append(decode_record(data, at))
            at += found[-1].size
    return found


def topic_records(files: FileReader, topic: str = "T") -> list[StoredRecord]:
    """Return the records of one topic, from the log's files."""
    return [record for record in records(files) if record.topic == topic]
