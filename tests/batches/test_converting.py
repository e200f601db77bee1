"""RIP-26, "old instance": the historical index of a topic becomes one by record, and everybody goes on."""

from __future__ import annotations

import contextlib
import io
import json
import struct
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest
from tests.support.batch_bytes import (
    a_batch,
    a_single,
    batch_messages,
    java_batch,
    make_topic,
    pull_all,
    read_entries,
    records,
    send,
    stop,
)
from tests.support.cluster.broker_machine import BrokerHarness

from holdfast.cli.main import main
from holdfast.model.java_hash import java_hash
from holdfast.runtime.posix_disk import PosixDisk
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.frames.command import Command

ENTRY = struct.Struct(">qiq")


def a_broker(folder: Path, entries: int = 16) -> BrokerHarness:
    """Return a broker on a real folder."""
    disk: Any = PosixDisk(folder)
    return BrokerHarness(disk=disk, queue_file_entries=entries, index_slots=10, index_entries=100)


def an_old_instance(folder: Path, entries: int = 16) -> None:
    """Fill a topic that is indexed by message, commit an offset, and end."""
    desk = a_broker(folder, entries)
    make_topic(desk, kind="SimpleCQ", queues=2)
    for number in range(40):
        desk.now_ms += 7
        send(desk, a_single(batch_messages(1, start=number, tags=("a", "b"))[0], queue=number % 2))
    send(desk, java_batch(batch_messages(5, start=100)))
    commit = {"consumerGroup": "TOOLS_CONSUMER", "topic": "T", "queueId": "0", "commitOffset": "11"}
    desk.call(Command(code=RequestCode.UPDATE_CONSUMER_OFFSET, opaque=1, fields=commit))
    stop(desk)


def convert(folder: Path, to: str, *words: str) -> tuple[int, str, str]:
    """Run the command; return its status and what it said."""
    said, complained = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(complained):
        status = main(["index", "convert", "T", "--to", to, "--store", str(folder), *words])
    return status, said.getvalue(), complained.getvalue()


def by_message(folder: Path, queue: int) -> list[tuple[int, int, int]]:
    """Return the entries of an index by message, from its files."""
    data = b"".join(path.read_bytes() for path in sorted((folder / f"consumequeue/T/{queue}").iterdir()))
    return list(takewhile(lambda entry: entry[1], ENTRY.iter_unpack(data)))


def test_every_entry_becomes_one_of_a_single_message(tmp_path: Path):
    """Position, size and tag as they were, the store time of the record, its offset, and a count of 1."""
    an_old_instance(tmp_path)
    before = {queue: by_message(tmp_path, queue) for queue in (0, 1)}

    status, said, complained = convert(tmp_path, "batch", "--json")

    assert status == 0, complained
    report = json.loads(said)
    assert report["switched"]
    assert [queue["entries"] for queue in report["queues"]] == [25, 20]
    times = {record.position: record.store_ms for record in records(PosixDisk(tmp_path))}
    for queue, entries in before.items():
        found = read_entries(PosixDisk(tmp_path), queue=queue)
        assert [unit[:3] for unit in found] == entries
        assert [unit[3:] for unit in found] == [
            (times[position], offset, 1, -1, 0) for offset, (position, _, _) in enumerate(entries)
        ]
        assert {tag for _, _, tag in entries} >= {java_hash("a" if queue == 0 else "b")}
    assert not (tmp_path / "consumequeue" / "T").exists()


def test_everybody_goes_on_and_batches_are_kept_whole_from_then_on(tmp_path: Path):
    """Offsets stay, also those that groups committed; back again it goes only while every count is 1."""
    an_old_instance(tmp_path)
    assert convert(tmp_path, "batch")[0] == 0
    desk = a_broker(tmp_path)

    question = {"consumerGroup": "TOOLS_CONSUMER", "topic": "T", "queueId": "0"}
    (committed,) = desk.call(Command(code=RequestCode.QUERY_CONSUMER_OFFSET, opaque=1, fields=question))
    old = [bytes(record.body) for record in pull_all(desk)]
    answer = send(desk, a_batch(batch_messages(4, start=200), codec="zstd"))

    assert committed.fields.get("offset", "11") == "11"
    assert old == [b"%d" % number for number in (*range(0, 40, 2), *range(100, 105))]
    assert (answer.code, answer.fields["queueOffset"]) == (ResponseCode.SUCCESS, "25")
    assert [record.offset for record in pull_all(desk)] == list(range(29))
    stop(desk)
    status, _, complained = convert(tmp_path, "simple")
    assert status == 1
    assert "4 messages" in complained
    assert read_entries(PosixDisk(tmp_path))[-1].count == 4


def test_there_and_back_is_where_it_began(tmp_path: Path):
    """Byte for byte; a second run has nothing to do, and says so."""
    an_old_instance(tmp_path, entries=300_000)
    files = sorted((tmp_path / "consumequeue").rglob("0*"))
    before = {path: path.read_bytes() for path in files if path.is_file()}

    assert convert(tmp_path, "batch")[0] == 0
    assert convert(tmp_path, "batch")[0] == 0
    assert convert(tmp_path, "simple")[0] == 0

    assert {path: path.read_bytes() for path in before} == before
    assert len(pull_all(a_broker(tmp_path))) == 25


@pytest.mark.parametrize(
    ("words", "status", "part"),
    [
        (["index", "convert"], 2, "TOPIC"),
        (["index", "convert", "T", "--store", "{}"], 2, "--to"),
        (["index", "convert", "T", "--to", "batches", "--store", "{}"], 2, "batch"),
        (["index", "convert", "T", "--to", "batch"], 2, "--store"),
        (["index", "convert", "t", "--to", "batch", "--store", "{}"], 1, "t"),
        (["index", "convert", "T", "--to", "batch", "--store", "{}/nowhere"], 2, "nowhere"),
        (["index", "convert", "T", "--to", "batch", "--store", "{}", "--queue", "9"], 2, "queue 9"),
        (["index", "convert", "T", "--to", "batch", "--store", "{}", "--jsn"], 2, "--json"),
        (["index", "convert", "../T", "--to", "batch", "--store", "{}"], 1, "../T"),
        (["index", "convert", "", "--to", "batch", "--store", "{}"], 1, ""),
        (["index", "convert", "%RETRY%g", "--to", "batch", "--store", "{}"], 1, "%RETRY%g"),
        (["index", "convert", "SCHEDULE_TOPIC_XXXX", "--to", "batch", "--store", "{}"], 1, "SCHEDULE_TOPIC_XXXX"),
    ],
)
def test_what_is_mistyped_is_named_and_changes_nothing(tmp_path: Path, words: list[str], status: int, part: str):
    """One line, no traceback, and the folder is as it was."""
    an_old_instance(tmp_path)
    before = {str(path): path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    said, complained = io.StringIO(), io.StringIO()

    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(complained):
        ended = main([word.replace("{}", str(tmp_path)) for word in words])

    assert ended in {1, 2}
    assert ended == status, complained.getvalue()
    assert part in complained.getvalue()
    assert "Traceback" not in complained.getvalue()
    assert said.getvalue() == ""
    after = {str(path): path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    changed = {path for path in after if after[path] != before.get(path)}
    assert not {path for path in changed if "holdfast/conversion" not in path} - {str(tmp_path / "lock")}
