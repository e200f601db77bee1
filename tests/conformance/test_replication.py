"""The replication stream as Java pairs were recorded to speak it."""

from __future__ import annotations

import base64
import gzip
import json
from pathlib import Path

import pytest
from tests.support.cluster.broker_machine import BrokerHarness
from tests.support.cluster.replica_machines import MASTER, log_bytes

from holdfast.broker.replication.ha_master import PURPOSE
from holdfast.broker.replication.ha_replica import TIMER as FOLLOWING_TIMER
from holdfast.machine.events import ChannelId, ChannelOpened, StreamReceived
from holdfast.sim.world.disk import SimDisk
from holdfast.wire.cluster.ha import LogReader, ReportReader

STREAMS = Path(__file__).parent.parent / "data" / "streams"
CHANNEL = ChannelId(7)


@pytest.fixture(params=["4.9.7", "5.5.0"])
def stream(request: pytest.FixtureRequest) -> list[tuple[str, bytes]]:
    """What each side said, in order: `>` the slave, `<` the master. The first connection only."""
    text = gzip.decompress((STREAMS / f"{request.param}-ha-stream.jsonl.gz").read_bytes()).decode()
    lines = [json.loads(line) for line in text.splitlines()]
    return [(line["dir"], base64.b64decode(line["bytes"])) for line in lines if line["c"] == lines[0]["c"]]


def _said(stream: list[tuple[str, bytes]], side: str) -> bytes:
    return b"".join(data for direction, data in stream if direction == side)


def test_our_replica_copies_what_a_java_master_sent(stream: list[tuple[str, bytes]]) -> None:
    """And says of it what a Java slave said."""
    desk = BrokerHarness(replica_of="broker-a", ha_master=MASTER)
    desk.streams[CHANNEL] = bytearray()
    desk.pass_time(0, FOLLOWING_TIMER)
    desk.feed(ChannelOpened(CHANNEL, MASTER, desk.now_ms, MASTER, PURPOSE))

    for side, data in stream:
        if side == "<":
            desk.feed(StreamReceived(CHANNEL, data, desk.now_ms))

    sent = b"".join(bytes(stretch.data) for stretch in LogReader().feed(_said(stream, "<")))
    assert sent
    assert log_bytes(desk) == sent
    assert desk.store.confirmed == len(sent)
    assert desk.components.ha_replica.state == "following"
    theirs, ours = ReportReader().feed(_said(stream, ">")), ReportReader().feed(desk.streams[CHANNEL])
    assert ours == sorted(set(theirs))


def test_our_master_sends_a_java_slave_what_a_java_master_sent(stream: list[tuple[str, bytes]]) -> None:
    """The same log, from the same place, when it is asked with the same words."""
    log = b"".join(bytes(stretch.data) for stretch in LogReader().feed(_said(stream, "<")))
    disk = SimDisk()
    disk.create("commitlog/00000000000000000000", 1 << 20).write(0, [log])
    disk.sync()
    desk = BrokerHarness(disk=disk)
    desk.streams[CHANNEL] = bytearray()
    desk.feed(ChannelOpened(CHANNEL, "10.0.0.8:4711", desk.now_ms, None, PURPOSE))

    for side, data in stream:
        if side == ">":
            desk.feed(StreamReceived(CHANNEL, data, desk.now_ms))

    assert b"".join(bytes(stretch.data) for stretch in LogReader().feed(desk.streams[CHANNEL])) == log
    assert desk.components.ha_master.replicated_end == len(log)
