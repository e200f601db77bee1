"""Folders that Java brokers wrote: one stopped in order (5.5.0, two brokers), one killed (4.9.7).

Each archive has a manifest of what a Java client read from the running brokers. We must serve the same, byte for byte.
"""

from __future__ import annotations

import hashlib
import shutil
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lz4.frame
import msgspec
import pytest
import zstandard
from tests.support.stores import finish

from holdfast.runtime.posix_disk import PosixDisk
from holdfast.store.base.config_files import load_config
from holdfast.store.base.options import StoreOptions
from holdfast.store.message_store import MessageStore
from holdfast.store.queues.queue_index import QueueIndex
from holdfast.wire.frames.host import format_host
from holdfast.wire.records.batch import split_items
from holdfast.wire.records.message_id import format_message_id
from holdfast.wire.records.properties import parse_properties
from holdfast.wire.records.record import COMPRESSED, INNER_BATCH, StoredRecord

GOLDEN = Path(__file__).parents[1] / "data" / "golden"
FOLDERS = [
    ("rocketmq-4.9.7-killed", "broker-a"),
    ("rocketmq-5.5.0-clean", "broker-a"),
    ("rocketmq-5.5.0-clean", "broker-b"),
]
# The manifest of this topic has logical offsets.
NOT_HERE = {"GoldenStatic"}
INNER = "GoldenInner"  # Indexed by record, with many messages in most records.
NOW_MS = 1_794_760_000_000
OPTIONS = StoreOptions(retention_ms=1 << 50, clean_forced_percent=100, disk_full_percent=100)

Line = dict[str, Any]


class Golden:
    """An unpacked folder, opened, and its manifest."""

    def __init__(self, folder: Path, broker: str) -> None:
        self.folder = folder / broker
        self.disk = PosixDisk(self.folder)
        self.broker = broker
        lines = [msgspec.json.decode(line) for line in (folder / "manifest.jsonl").read_bytes().splitlines()]
        self.lines: list[Line] = [
            line for line in lines if line.get("brokerName", broker) == broker and line["topic"] not in NOT_HERE
        ]
        self.store = self.open()

    def open(self) -> MessageStore:
        """Open the folder, again if need be."""
        return MessageStore.open(self.disk, OPTIONS, NOW_MS)

    def kind(self, name: str) -> Iterator[Line]:
        """Return the manifest's lines of one kind."""
        return (line for line in self.lines if line["kind"] == name)


@pytest.fixture(params=FOLDERS, ids="-".join)
def golden(request: pytest.FixtureRequest, tmp_path: Path) -> Golden:
    archive, broker = request.param
    with tarfile.open(GOLDEN / f"{archive}.tar.gz") as tar:
        tar.extractall(tmp_path, filter="data")
    return Golden(tmp_path / archive, broker)


def read_message(store: MessageStore, line: Line) -> StoredRecord:
    queue = store.find_queue(line["topic"], line["queueId"])
    assert queue is not None
    position, size, _ = queue.get_entry(line["queueOffset"])
    record = store.read_record(position)
    assert record is not None
    assert record.size == size
    return record


def plain_body(record: StoredRecord) -> bytes:
    body = bytes(record.body)
    if not record.sys_flag & COMPRESSED:
        return body
    match record.sys_flag >> 8 & 7:
        case 1:
            return bytes(lz4.frame.decompress(body))
        case 2:
            return zstandard.ZstdDecompressor().decompressobj().decompress(body)
        case _:
            return zlib.decompress(body)


def describe(record: StoredRecord) -> Line:
    body = plain_body(record)
    properties = parse_properties(bytes(record.properties).decode())
    return {
        "commitLogOffset": record.position,
        "storeSize": record.size,
        "storeTimestamp": record.store_ms,
        "bornTimestamp": record.born_ms,
        "storeHost": format_host(record.store_host),
        "bornHost": format_host(record.born_host),
        "offsetMsgId": format_message_id(record.store_host, record.position),
        "keys": properties.get("KEYS"),
        "tags": properties.get("TAGS"),
        "flag": record.flag,
        "sysFlag": record.sys_flag,
        "bodyCRC": record.body_crc,
        "reconsumeTimes": record.reconsume_times,
        "preparedTransactionOffset": record.prepared_position,
        "bodyLength": len(body),
        "sha256": hashlib.sha256(body).hexdigest(),
    }


def check_messages(store: MessageStore, golden: Golden) -> int:
    count = 0
    for line in golden.kind("message"):
        if line["topic"] == INNER:
            count += 1
            check_inner(store, line)
            continue
        record = read_message(store, line)
        described = describe(record)
        assert described == {name: line[name] for name in described}
        # The client adds names of its own while reading; none of the stored ones may be missing or changed.
        stored = parse_properties(bytes(record.properties).decode())
        assert stored.items() >= {k: v for k, v in line["properties"].items() if k in stored}.items()
        assert line["properties"].keys() - stored.keys() <= {"MIN_OFFSET", "MAX_OFFSET"}
        count += 1
    return count


def check_inner(store: MessageStore, line: Line) -> None:
    """Check a message that may be one of many in its record: the record is found by the message's own offset."""
    record = read_message(store, line)
    described = describe(record)
    if record.sys_flag & INNER_BATCH:
        flag, body, text = split_items(record.body)[line["queueOffset"] - record.offset]
        properties = parse_properties(bytes(text).decode())
        assert properties.items() <= line["properties"].items()
        described |= {
            "storeSize": 0,
            "offsetMsgId": None,
            "keys": properties.get("KEYS"),
            "tags": properties.get("TAGS"),
            "flag": flag,
            "bodyCRC": 0,
            "bodyLength": len(body),
            "sha256": hashlib.sha256(body).hexdigest(),
        }
    assert described == {name: line[name] for name in described}


def inner_lines(golden: Golden) -> dict[int, list[Line]]:
    """Return the messages of the topic that is indexed by record, by queue."""
    queues: dict[int, list[Line]] = {}
    for line in golden.kind("message"):
        if line["topic"] == INNER:
            queues.setdefault(line["queueId"], []).append(line)
    return queues


def catch_up(store: MessageStore) -> None:
    while store.index_lag_bytes:
        if store.housekeep(NOW_MS).read is not None:
            store.note_warmed()


def test_every_message_of_the_manifest_is_served_exactly(golden: Golden):
    """Position, times, hosts, flags, properties and body are those that a Java client read."""
    assert check_messages(golden.store, golden) > 1000
    assert golden.store.recovered.damages == []


def test_queues_have_the_bounds_of_the_manifest(golden: Golden):
    """Min and max offsets are the broker's, and no queue is missing."""
    bounds = {
        (line["topic"], line["queueId"]): (line["minOffset"], line["maxOffset"])
        for line in golden.kind("queue")
        if line["maxOffset"] > 0
    }

    found = {
        (queue.topic, queue.queue_id): (queue.offset_min, queue.offset_max) for queue in golden.store.list_queues()
    }

    assert bounds.items() <= found.items()


def test_committed_offsets_are_read_from_the_configuration(golden: Golden):
    """The offsets of golden-group are those of the manifest, out of JSON with bare integer keys."""
    committed = load_config(golden.disk.read_file, "consumerOffset.json")["offsetTable"]

    offsets = list(golden.kind("offset"))
    assert offsets
    for line in offsets:
        assert committed[f"{line['topic']}@{line['group']}"][str(line["queueId"])] == line["offset"]


def test_every_message_is_found_by_its_keys(golden: Golden):
    """The index, Java's or rebuilt, leads from every unique key and every word of the keys to the message."""
    catch_up(golden.store)

    for line in golden.kind("message"):
        if line["topic"].startswith((INNER, "%RETRY%", "%DLQ%", "RMQ_SYS", "SCHEDULE", "rmq_sys")):
            continue
        for key in [line["msgId"], *(line["keys"] or "").split()]:
            found = finish(golden.store, golden.store.find_by_key(line["topic"], key, 1000, 0, 1 << 62))
            assert line["commitLogOffset"] in found, key


def test_times_lead_to_the_messages_of_batches(golden: Golden):
    """By every store time, and just before and behind it: the first offset not older, the last not younger."""
    for number, lines in inner_lines(golden).items():
        queue = golden.store.queue(INNER, number)
        times = {line["queueOffset"]: line["storeTimestamp"] for line in lines}
        assert queue.accepts_batches
        for offset, time_ms in times.items():
            assert finish(golden.store, golden.store.store_time(queue, offset)) == time_ms
        for time_ms in {time_ms + shift for time_ms in times.values() for shift in (-1, 0, 1)}:
            at_or_after = [offset for offset, stored in times.items() if stored >= time_ms]
            at_or_before = [offset for offset, stored in times.items() if stored <= time_ms]
            found = finish(golden.store, golden.store.offset_at_time(queue, time_ms))
            upper = finish(golden.store, golden.store.offset_at_time(queue, time_ms, upper=True))
            assert found == min(at_or_after, default=queue.offset_max)
            assert upper == max(at_or_before, default=queue.offset_min)


def batch_files(golden: Golden) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in golden.folder.glob("batchconsumequeue/*/*/*")}


def test_indexes_by_record_keep_every_byte(golden: Golden):
    """Opening and closing writes nothing into them, and no index by message of their topics appears."""
    before = batch_files(golden)

    golden.store.close(NOW_MS)
    again = golden.open()

    assert batch_files(golden) == before
    assert bool(before) == bool(inner_lines(golden))
    assert again.recovered.is_clean
    assert not (golden.folder / "consumequeue" / INNER).exists()


def test_indexes_by_record_are_made_again_byte_for_byte(golden: Golden):
    """From the log alone they become what the Java broker wrote."""
    before = batch_files(golden)
    golden.store.close(NOW_MS)
    shutil.rmtree(golden.folder / "batchconsumequeue", ignore_errors=True)

    store = MessageStore.open(golden.disk, msgspec.structs.replace(OPTIONS, batch_file_size=460), NOW_MS)

    check_messages(store, golden)
    store.close(NOW_MS)
    assert batch_files(golden) == before


def test_nothing_is_lost_by_closing_and_by_dying(golden: Golden):
    """After an orderly end, and after dying without one, everything is still there and new messages go behind it."""
    queue = golden.store.queue("GoldenNormal", 0)
    end = append(golden.store, queue)
    inner = golden.store.find_queue(INNER, 0)
    inner_end = append(golden.store, inner) if inner is not None else 0
    golden.store.close(NOW_MS)

    closed = golden.open()
    assert closed.recovered.is_clean
    check_messages(closed, golden)
    end = append(closed, closed.queue("GoldenNormal", 0))
    died = golden.open()

    assert not died.recovered.is_clean
    check_messages(died, golden)
    survivor = died.queue("GoldenNormal", 0)
    assert survivor.offset_max == end
    assert inner is None or died.queue(INNER, 0).offset_max == inner_end == inner.offset_max
    assert read_message(died, {"topic": "GoldenNormal", "queueId": 0, "queueOffset": end - 1}).body == b"new"


def append(store: MessageStore, queue: QueueIndex) -> int:
    store.stage(queue, b"new", b"TAGS\x01a\x02", 0, 0, NOW_MS, bytes(8), 97, NOW_MS)
    store.write()
    store.confirm(store.written)
    return queue.offset_max
