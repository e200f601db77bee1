"""The master's side of replication: what is shipped to whom, and to whom not."""

from __future__ import annotations

import struct

import pytest
from tests.support.cluster.broker_machine import BrokerHarness, a_send
from tests.support.cluster.machine import logs
from tests.support.cluster.replica_machines import ReplicaPair, log_bytes

from holdfast.broker.replication import ha_master
from holdfast.broker.replication.ha_master import PURPOSE, TIMER
from holdfast.machine.effects import CloseChannel
from holdfast.machine.events import ChannelClosed, ChannelId, ChannelOpened, StreamReceived
from holdfast.model.errors import DiskFailed
from holdfast.wire.cluster.ha import LogReader, encode_report

PEER = ChannelId(50)


@pytest.fixture
def desk() -> BrokerHarness:
    desk = BrokerHarness()
    desk.make_topic("T")
    for _ in range(5):
        desk.call(a_send())
    desk.streams[PEER] = bytearray()
    desk.feed(ChannelOpened(PEER, "10.0.0.8:4711", desk.now_ms, None, PURPOSE))
    return desk


def say(desk: BrokerHarness, end: int) -> None:
    """Let the replica say where its log ends."""
    desk.feed(StreamReceived(PEER, encode_report(end), desk.now_ms))


def shipped(desk: BrokerHarness) -> list[tuple[int, bytes]]:
    """Return what was sent to the replica since this was last asked."""
    data, desk.streams[PEER] = bytes(desk.streams[PEER]), bytearray()
    return [(stretch.position, bytes(stretch.data)) for stretch in LogReader().feed(data)]


def test_nothing_is_sent_before_the_replica_has_spoken(desk: BrokerHarness) -> None:
    """Where to begin is its word."""
    desk.call(a_send())
    desk.pass_time(6_000, TIMER)

    assert shipped(desk) == []


def test_a_new_replica_gets_the_whole_log_and_then_what_is_added(desk: BrokerHarness) -> None:
    """Everything, not only the last file."""
    say(desk, 0)
    before = log_bytes(desk)
    assert shipped(desk) == [(0, before)]
    say(desk, len(before))

    desk.call(a_send())

    assert shipped(desk) == [(len(before), log_bytes(desk)[len(before) :])]


def test_a_replica_goes_on_where_it_ended(desk: BrokerHarness) -> None:
    """Nothing is sent twice."""
    say(desk, 100)

    assert shipped(desk) == [(100, log_bytes(desk)[100:])]


def test_what_is_not_confirmed_is_not_shipped() -> None:
    """A crash could take it back here, and not there."""
    desk = BrokerHarness(flush="sync")
    desk.make_topic("T")
    desk.streams[PEER] = bytearray()
    desk.feed(ChannelOpened(PEER, "10.0.0.8:4711", desk.now_ms, None, PURPOSE))
    say(desk, 0)

    desk.call(a_send())
    assert shipped(desk) == []
    desk.sync()

    assert shipped(desk) == [(0, log_bytes(desk))]


def test_a_replica_that_takes_nothing_is_sent_a_window_and_no_more(
    desk: BrokerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its backlog is not ours to keep."""
    monkeypatch.setattr(ha_master, "WINDOW", 300)
    monkeypatch.setattr(ha_master, "CHUNK_SIZE_MAX", 200)
    say(desk, 0)
    assert [(at, len(data)) for at, data in shipped(desk)] == [(0, 200), (200, 100)]

    say(desk, 250)

    assert [(at, len(data)) for at, data in shipped(desk)] == [(300, 200), (500, 50)]


def test_many_that_take_nothing_hold_no_more_than_a_part_of_the_memory() -> None:
    """Senders are told to wait when three quarters are held: replicas that catch up do not bring that about."""
    desk = BrokerHarness(memory_limit=32 * 1024 * 1024, log_file_size=64 * 1024 * 1024)
    desk.make_topic("T")
    for _ in range(10):
        desk.call(a_send(body=b"x" * 3_000_000))
    peers = [ChannelId(number) for number in range(50, 80)]
    for peer in peers:
        desk.streams[peer] = bytearray()
        desk.feed(ChannelOpened(peer, f"10.0.0.8:{peer}", desk.now_ms, None, PURPOSE))
        desk.feed(StreamReceived(peer, encode_report(0), desk.now_ms))

    held = [len(desk.streams[peer]) for peer in peers]

    assert min(held) >= ha_master.CHUNK_SIZE_MAX
    assert sum(held) < desk.options.memory_limit // 2


def test_what_may_not_be_in_memory_is_read_off_the_loop(desk: BrokerHarness) -> None:
    """No seek happens where others wait."""
    before = log_bytes(desk)
    object.__setattr__(desk.store, "options", _with_hot_window(desk, 100))
    reads = []
    desk.disk.before = lambda call, path: reads.append((call, path))

    say(desk, 0)

    assert b"".join(data for _, data in shipped(desk)) == before
    assert ("read", "commitlog/00000000000000000000") in reads


def test_a_failed_read_is_repeated_with_the_next_report(desk: BrokerHarness) -> None:
    """The replica stays connected, because it still gets heartbeats, and must not wait for the log forever."""
    object.__setattr__(desk.store, "options", _with_hot_window(desk, 100))

    def fail(call: str, path: str) -> None:
        if call == "read":
            raise DiskFailed(f"read failed: {path}")

    desk.disk.before = fail
    say(desk, 0)
    assert shipped(desk) == []
    desk.disk.before = lambda _call, _path: None

    say(desk, 0)

    assert b"".join(data for _, data in shipped(desk)) == log_bytes(desk)


def _with_hot_window(desk: BrokerHarness, size: int) -> object:
    import msgspec  # noqa: PLC0415

    return msgspec.structs.replace(desk.store.options, hot_window=size)


def test_a_silent_master_gives_signs_of_life(desk: BrokerHarness) -> None:
    """Every five seconds, and they say where it will go on."""
    say(desk, 0)
    end = len(log_bytes(desk))
    shipped(desk)

    desk.pass_time(4_000, TIMER)
    assert shipped(desk) == []
    desk.pass_time(1_000, TIMER)

    assert shipped(desk) == [(end, b"")]


def test_a_silent_replica_is_let_go(desk: BrokerHarness) -> None:
    """Twenty seconds, as upstream."""
    say(desk, 0)
    desk.pass_time(19_000, TIMER)
    assert CloseChannel(PEER) not in desk.effects

    desk.pass_time(1_000, TIMER)

    assert CloseChannel(PEER) in desk.effects


def test_a_replica_that_is_ahead_is_refused_and_told_what_to_do(desk: BrokerHarness) -> None:
    """It copied something else, or this log lost its end."""
    end = len(log_bytes(desk))
    say(desk, end + 1)

    (line,) = logs(desk.effects, "replica refused")
    assert "1 bytes ahead" in str(line.fields["reason"])
    assert "empty folder" in str(line.fields["reason"])
    assert shipped(desk) == [(end, b"")]
    assert CloseChannel(PEER) in desk.effects


def test_a_replica_that_ends_before_the_log_begins_is_refused_and_told_what_to_do() -> None:
    """What it lacks is cleaned up."""
    pair = ReplicaPair(log_file_size=1 << 16)
    pair.master.make_topic("T")
    pair.send(5)
    pair.connect_and_catch_up()
    pair.disconnect()
    for _ in range(3):
        pair.send(1)
        pair.master.call(a_send(body=b"x" * 60_000))
    pair.master.store.log.files.remove_first()
    pair.replica.now_ms += 2_000

    pair.connect_and_catch_up()

    (line,) = logs(pair.master.effects, "replica refused")
    assert "deleted" in str(line.fields["reason"])
    assert (pair.state, pair.is_closed_by(pair.master)) == ("behind", True)
    assert "empty one" in pair.replica.components.ha_replica.problem


def test_a_stranger_on_the_port_is_let_go(desk: BrokerHarness) -> None:
    """Somebody who speaks frames says sizes that no log has."""
    desk.feed(StreamReceived(PEER, struct.pack(">q", -3), desk.now_ms))

    assert CloseChannel(PEER) in desk.effects
    assert shipped(desk) == []


def test_a_replica_that_has_what_it_was_not_sent_is_let_go(desk: BrokerHarness) -> None:
    """Its word would acknowledge messages that it does not have."""
    say(desk, 100)
    end = len(log_bytes(desk))

    say(desk, end + 1)

    assert desk.components.ha_master.replicated_end == 100
    assert CloseChannel(PEER) in desk.effects


@pytest.mark.parametrize("first", [0, 100])
def test_nor_is_it_believed_when_it_says_so_in_its_first_breath(desk: BrokerHarness, first: int) -> None:
    """Where it begins and what it has may come in one read."""
    end = len(log_bytes(desk))

    desk.feed(StreamReceived(PEER, encode_report(first) + encode_report(end + 1), desk.now_ms))

    assert desk.components.ha_master.replicated_end == first
    assert CloseChannel(PEER) in desk.effects


def test_a_replica_that_is_refused_has_nothing(desk: BrokerHarness) -> None:
    """Until its connection is closed, too: what it has more is not of this log."""
    say(desk, len(log_bytes(desk)) + 1_000_000)

    assert (desk.components.ha_master.replicated_end, desk.components.ha_master.in_sync_count) == (0, 0)


def test_what_a_replica_has_is_forgotten_with_it(desk: BrokerHarness) -> None:
    """Nobody has it then, for all that is known."""
    say(desk, 100)
    assert desk.components.ha_master.replicated_end == 100

    desk.feed(ChannelClosed(PEER, desk.now_ms))

    assert desk.components.ha_master.replicated_end == 0
    desk.call(a_send())
    assert logs(desk.effects, "replica left") != []


def test_a_replica_that_falls_far_behind_is_told_of_once_and_again_when_it_has_caught_up() -> None:
    """A new one is far behind at first, too: that is worth a line as well."""
    desk = BrokerHarness(in_sync_limit=1_000)
    desk.make_topic("T")
    desk.streams[PEER] = bytearray()
    desk.feed(ChannelOpened(PEER, "10.0.0.8:4711", desk.now_ms, None, PURPOSE))
    say(desk, 0)
    desk.pass_time(1_000, TIMER)
    assert logs(desk.effects, "replica far behind") == []
    for _ in range(10):
        desk.call(a_send())

    for _ in range(3):
        desk.pass_time(1_000, TIMER)
    (line,) = logs(desk.effects, "replica far behind")
    assert (line.level, line.fields["behind"]) == ("warning", len(log_bytes(desk)))
    assert "its disk" in str(line.fields["reason"])
    say(desk, len(log_bytes(desk)))
    desk.pass_time(1_000, TIMER)

    assert len(logs(desk.effects, "replica caught up")) == 1
