"""`holdfast index convert` on real folders: those of Java brokers, our own, one in use; and killed anywhere."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from tests.integration.test_golden_stores import GOLDEN, NOW_MS, OPTIONS, Golden, check_messages
from tests.support.cluster.processes import ProcessCluster
from tests.support.conversions import convert, fill_store, plain_disk, read_served

from holdfast.blocking import Producer
from holdfast.cli.main import main
from holdfast.model.errors import StoreError
from holdfast.model.message import Message
from holdfast.runtime.posix_disk import PosixDisk
from holdfast.store.message_store import MessageStore
from holdfast.store.recovery.conversion_plan import ConvertedKind

TOPICS = {
    "rocketmq-5.5.0-clean": ["GoldenNormal", "GoldenTransaction"],
    "rocketmq-4.9.7-killed": ["GoldenBatch", "GoldenDelay"],
}
# What a process asks of the system that changes files; it may die before each, and behind each.
CHANGES = {
    "pwritev",
    "fsync",
    "fdatasync",
    "ftruncate",
    "open",
    "replace",
    "rename",
    "unlink",
    "rmdir",
    "mkdir",
    "write",
}


def files_below(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(params=sorted(TOPICS))
def golden(request: pytest.FixtureRequest, tmp_path: Path) -> Golden:
    """A folder of a Java broker, opened and closed once by ours: one of them was killed."""
    with tarfile.open(GOLDEN / f"{request.param}.tar.gz") as tar:
        tar.extractall(tmp_path, filter="data")
    golden = Golden(tmp_path / request.param, "broker-a")
    golden.store.close(NOW_MS)
    return golden


def test_folders_of_java_brokers_are_converted_and_back(golden: Golden, capsys: pytest.CaptureFixture[str]):
    """Every message of the manifest is served from the new index; back again the files are what Java wrote."""
    topics = TOPICS[golden.folder.parent.name]
    before = files_below(golden.folder / "consumequeue")
    for topic in topics:
        words = ["index", "convert", topic, "--to", "batch", "--store", str(golden.folder)]
        assert main([*words, "--json"]) == 0
        report = json.loads(capsys.readouterr().out)
        assert report["switched"]
        assert report["converted"] == sum(queue["entries"] for queue in report["queues"]) > 10

    store = golden.open()
    assert {queue.topic for queue in store.list_queues() if queue.accepts_batches} >= set(topics)
    assert check_messages(store, golden) > 1000
    assert store.recovered.damages == []
    store.close(NOW_MS)

    for topic in topics:
        assert main(["index", "convert", topic, "--to", "simple", "--store", str(golden.folder)]) == 0
        assert f"{topic} has an index by message (simple) now" in capsys.readouterr().out
    assert files_below(golden.folder / "consumequeue") == before


def test_a_topic_of_batches_keeps_its_index(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """The one line says which record is in the way."""
    with tarfile.open(GOLDEN / "rocketmq-5.5.0-clean.tar.gz") as tar:
        tar.extractall(tmp_path, filter="data")
    folder = tmp_path / "rocketmq-5.5.0-clean" / "broker-a"
    before = files_below(folder / "batchconsumequeue")

    assert main(["index", "convert", "GoldenInner", "--to", "simple", "--store", str(folder)]) == 1

    assert "messages, and an index by message can hold only one" in capsys.readouterr().err
    assert files_below(folder / "batchconsumequeue") == before
    assert MessageStore.open(PosixDisk(folder), OPTIONS, NOW_MS).queue("GoldenInner", 0).accepts_batches


def test_a_folder_in_use_is_refused_and_converted_when_its_broker_has_stopped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """The broker that starts afterwards has the topic as it was, with the other kind of index."""
    store = tmp_path / "store"
    words = ["index", "convert", "Parcels", "--to", "batch", "--store", str(store)]
    with ProcessCluster(tmp_path) as cluster:
        name_server = cluster.namesrv
        cluster.start("broker-a", store=store)
        cluster.make_topic("Parcels", queues=2)
        with Producer(name_server) as producer:
            for number in range(20):
                producer.send(Message("Parcels", b"%d" % number))
        assert main(words) == 1
        assert f"{store} is in use: stop its broker first" in capsys.readouterr().err
        cluster.stop("broker-a")

        assert main(words) == 0
        assert main(words) == 0
        assert "Parcels has an index by record (batch)\n" in capsys.readouterr().out
        cluster.restart("broker-a")
        with Producer(name_server) as producer:
            producer.send(Message("Parcels", b"20"))
        words = ["tail", "Parcels", "--from", "earliest", "--max", "100", "--namesrv", name_server, "--json"]
        assert main(words) == 0
        found = json.loads(capsys.readouterr().out)
        assert main(["topic", "describe", "Parcels", "--namesrv", name_server, "--json"]) == 0
        described = capsys.readouterr().out

    assert sorted(int(message["body"]) for message in found["messages"]) == list(range(21))
    assert "BatchCQ" in described


def test_wrong_folders_and_queues_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """With status 2: nothing was even looked at."""
    assert main(["index", "convert", "orders", "--to", "batch", "--store", str(tmp_path)]) == 2
    assert "is not a store folder of a broker" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())

    make_folder(tmp_path)
    words = ["index", "convert", "orders", "--to", "batch", "--store", str(tmp_path)]
    assert main([*words, "--queue", "7"]) == 2
    assert "queue 7 of orders has no message, only [0, 1] have" in capsys.readouterr().err
    assert not (tmp_path / "holdfast/conversion/orders").exists()

    assert main([*words, "--queue", "1"]) == 0
    assert main([*words, "--queue", "7"]) == 2
    assert main(words) == 0
    assert "7 entries in" in capsys.readouterr().out


def test_a_queue_is_prepared_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """The topic is switched by the run that does the rest."""
    make_folder(tmp_path)
    words = ["index", "convert", "orders", "--to", "batch", "--store", str(tmp_path)]

    assert main([*words, "--queue", "1"]) == 0
    assert "ready, but not yet in use" in capsys.readouterr().out
    assert (tmp_path / "consumequeue" / "orders").is_dir()
    assert main([*words, "--json"]) == 0

    report = json.loads(capsys.readouterr().out)
    assert (report["switched"], report["resumed"], report["converted"]) == (True, True, 7)


def make_folder(folder: Path, to: ConvertedKind = "batch") -> None:
    """Make a folder of small files whose index is not *to*."""
    disk: Any = PosixDisk(folder)
    plain_disk(disk)
    fill_store(disk, 13)
    if to == "simple":
        convert(disk, "batch")


def watch(at: Callable[[], None]) -> None:
    """Call *at* before and behind every call that changes files, in this thread."""

    def look(_frame: FrameType, event: str, function: Any) -> None:
        if event in {"c_call", "c_return"} and getattr(function, "__name__", "") in CHANGES:
            at()

    sys.setprofile(look)


def convert_until(folder: Path, to: ConvertedKind, last: int) -> None:
    """Convert in this process, which dies at the moment number *last*."""
    moments = 0

    def die() -> None:
        nonlocal moments
        moments += 1
        if moments == last:
            os.kill(os.getpid(), signal.SIGKILL)

    watch(die)
    convert(PosixDisk(folder), to)
    sys.setprofile(None)


def is_served(folder: Path, copy: Path, before: object) -> bool:
    """Return whether a broker would start on a copy of *folder*, and then serve all; else it has said what to run."""
    shutil.copytree(folder, copy)
    try:
        assert read_served(PosixDisk(copy)) == before
    except StoreError as error:
        assert "holdfast index convert orders" in str(error)  # noqa: PT017 - it may also not happen
        return False
    finally:
        shutil.rmtree(copy)
    return True


@pytest.mark.parametrize("step", [149, pytest.param(1, marks=[pytest.mark.slow, pytest.mark.timeout(900)])])
@pytest.mark.parametrize("to", ["batch", "simple"])
def test_a_conversion_may_be_killed_anywhere(tmp_path: Path, to: ConvertedKind, step: int):
    """Whatever is left is served whole or refused with what to run, and the next run ends well."""
    fresh, folder = tmp_path / "fresh", tmp_path / "killed"
    make_folder(fresh, to)
    shutil.copytree(fresh, tmp_path / "wanted")
    before = read_served(PosixDisk(tmp_path / "wanted"))
    convert(PosixDisk(tmp_path / "wanted"), to)
    wanted = {kind: files_below(tmp_path / "wanted" / kind) for kind in ("consumequeue", "batchconsumequeue")}
    moment, has_died, refused = 1, True, 0
    while has_died:
        shutil.copytree(fresh, folder)
        process = multiprocessing.get_context("fork").Process(target=convert_until, args=(folder, to, moment))
        process.start()
        process.join()
        has_died = process.exitcode == -signal.SIGKILL
        assert has_died or process.exitcode == 0
        refused += not is_served(folder, tmp_path / "copy", before)

        convert(PosixDisk(folder), to)

        assert {kind: files_below(folder / kind) for kind in wanted} == wanted
        assert read_served(PosixDisk(folder)) == before
        shutil.rmtree(folder)
        moment += step
    assert moment > 100
    assert refused or step > 1, "it was never killed in the middle of a switch"
