"""The replica's side of replication: what is copied, and what is found not to be a copy."""

from __future__ import annotations

import pytest
from tests.support.cluster.broker_machine import BrokerHarness, a_pull, a_send
from tests.support.cluster.machine import codes, logs
from tests.support.cluster.replica_machines import ReplicaPair, log_bytes
from tests.support.stores import overwrite, run_housekeeping

from holdfast.broker.replication.ha_master import TIMER as SHIPPING_TIMER
from holdfast.broker.replication.ha_replica import STUCK_RETRY_MS
from holdfast.broker.replication.ha_replica import TIMER as FOLLOWING_TIMER
from holdfast.machine.effects import Log, OpenChannel, ReadLog, SendBytes
from holdfast.machine.events import ChannelId, DiskFault, StreamReceived
from holdfast.model.errors import DiskFull
from holdfast.sim.world.disk import SimDisk
from holdfast.store.recovery.replica_log import Indexing
from holdfast.wire.cluster.ha import encode_head
from holdfast.wire.frames.codes import ResponseCode

LOG = "commitlog/00000000000000000000"


@pytest.fixture
def pair() -> ReplicaPair:
    pair = ReplicaPair()
    pair.master.make_topic("T")
    pair.replica.make_topic("T")
    pair.send(10)
    return pair


def test_a_replica_has_every_byte_and_hands_out_every_message(pair: ReplicaPair) -> None:
    """What was there before it came, and what is sent while it follows."""
    pair.connect_and_catch_up()
    pair.send(3)
    pair.exchange()

    assert log_bytes(pair.replica) == log_bytes(pair.master)
    assert pair.state == "following"
    (theirs,), (ours,) = pair.master.call(a_pull()), pair.replica.call(a_pull())
    assert (ours.code, ours.body, ours.fields) == (0, theirs.body, theirs.fields)
    assert pair.master.components.ha_master.replicated_end == pair.master.store.written


def test_a_pull_that_waits_at_the_replica_is_answered_when_the_message_comes(pair: ReplicaPair) -> None:
    """Readers of a replica wait as those of a master do."""
    pair.connect_and_catch_up()
    assert pair.replica.call(a_pull(offset=10, sysFlag="6")) == []

    pair.send(1)
    pair.exchange()

    (pulled,) = pair.replica.answers[1]
    assert (pulled.code, b"message 0" in pulled.body) == (0, True)


def test_a_replica_refuses_messages(pair: ReplicaPair) -> None:
    """The next of the master's would lie where they are."""
    pair.connect_and_catch_up()

    (answer,) = pair.replica.call(a_send())

    assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert "replica" in (answer.remark or "")
    assert log_bytes(pair.replica) == log_bytes(pair.master)


def test_what_the_master_is_told_is_on_disk() -> None:
    """Under synchronous flush a report waits for the sync; a reader waits for it too."""
    pair = ReplicaPair(flush="sync")
    pair.master.make_topic("T")
    pair.replica.make_topic("T")
    pair.connect_and_catch_up()
    pair.is_sync_paused = True
    pair.send(1)

    pair.exchange()
    assert pair.master.components.ha_master.replicated_end == 0
    assert codes(pair.replica.call(a_pull())) == [ResponseCode.PULL_NOT_FOUND]
    pair.replica.sync()
    pair.exchange()

    assert pair.master.components.ha_master.replicated_end == pair.master.store.written
    assert codes(pair.replica.call(a_pull())) == [0]


def test_a_broken_connection_is_dialed_again_and_nothing_is_missing(pair: ReplicaPair) -> None:
    """Wherever it broke: also in the middle of a record."""
    for size in (1, 40, 13, 500, 12, 99):
        assert pair.connect()
        channel = ChannelId(pair._channel)
        pair.master.feed(StreamReceived(channel, bytes(pair.replica.streams[channel]), pair.master.now_ms))
        data = bytes(pair.master.streams[channel])[: 12 + size]
        pair.replica.feed(StreamReceived(channel, data, pair.replica.now_ms))
        pair.disconnect()
        assert not pair.connect(), "not before a second has passed"
        pair.pass_time(1_000)

    pair.connect_and_catch_up()

    assert log_bytes(pair.replica) == log_bytes(pair.master)
    assert codes(pair.replica.call(a_pull())) == [0]


def test_a_master_that_cannot_be_reached_is_tried_again(pair: ReplicaPair) -> None:
    """Every second."""
    assert pair.connect(is_reachable=False)
    assert not pair.connect()
    pair.replica.now_ms += 1_000

    pair.connect_and_catch_up()

    assert pair.state == "following"


def test_a_master_that_cannot_be_reached_is_told_of_once(pair: ReplicaPair) -> None:
    """With what to look at; again when it was there and is lost."""
    for _ in range(3):
        assert pair.connect(is_reachable=False)
        pair.pass_time(1_000)
    assert pair.connect()
    pair.disconnect()

    (line,) = logs(pair.replica.effects, "master not reached")
    assert (line.level, line.fields["reason"]) == ("warning", "refused")
    assert "ha_port" in str(line.fields["hint"])
    pair.pass_time(1_000)
    pair.connect_and_catch_up()
    pair.disconnect()
    pair.pass_time(1_000)
    assert pair.connect(is_reachable=False)
    assert len(logs(pair.replica.effects, "master lost")) == 1
    assert len(logs(pair.replica.effects, "master not reached")) == 1


def test_a_master_that_nobody_knows_is_told_of() -> None:
    """Its name may be mistyped. Not at once: it may be on its way."""
    desk = BrokerHarness(replica_of="broekr-a")
    desk.pass_time(9_000, FOLLOWING_TIMER)
    assert logs(desk.effects, "master unknown") == []

    for _ in range(3):
        desk.pass_time(1_000, FOLLOWING_TIMER)

    (line,) = logs(desk.effects, "master unknown")
    assert "broekr-a" in str(line.fields["reason"])


def test_the_end_of_the_log_is_compared_before_anything_is_added(pair: ReplicaPair) -> None:
    """A copy of another broker is not continued with this one's messages."""
    other = ReplicaPair()
    other.master.make_topic("T")
    other.send(12, queue=1)
    other.connect_and_catch_up()
    before = log_bytes(other.replica)
    foreign = ReplicaPair(pair.master, replica_disk=other.replica.disk)
    pair.send(10)

    foreign.connect_and_catch_up()

    assert foreign.state == "diverged"
    assert "differ at position" in foreign.replica.components.ha_replica.problem
    assert "empty one" in foreign.replica.components.ha_replica.problem
    assert log_bytes(foreign.replica) == before
    (line,) = logs(foreign.replica.effects, "not following")
    assert line.level == "error"
    assert foreign.is_closed_by(foreign.replica)


def test_a_diverged_replica_looks_again_now_and_then_and_says_it_once(pair: ReplicaPair) -> None:
    """The master may be brought back in order."""
    other = ReplicaPair()
    other.master.make_topic("T")
    other.send(5, queue=1)
    other.connect_and_catch_up()
    foreign = ReplicaPair(pair.master, replica_disk=other.replica.disk)
    foreign.connect_and_catch_up()
    foreign.disconnect()
    foreign.pass_time(STUCK_RETRY_MS - 1)
    assert not foreign.connect()
    foreign.pass_time(1)

    foreign.connect_and_catch_up()

    assert foreign.state == "diverged"
    assert len(logs(foreign.replica.effects, "not following")) == 1


def test_a_restarted_replica_compares_and_goes_on(pair: ReplicaPair) -> None:
    """What it compares is the end of what it has."""
    pair.connect_and_catch_up()
    pair.disconnect()
    pair.replica.disk.sync()
    pair.send(5)

    again = ReplicaPair(pair.master, replica_disk=pair.replica.disk)
    again.connect_and_catch_up()

    assert again.state == "following"
    assert log_bytes(again.replica) == log_bytes(pair.master)
    (shipped,) = logs(pair.master.effects, "replica follows")[1:]
    assert shipped.fields["from"] == 1


def test_a_replica_that_is_ahead_of_its_master_says_so_once_the_master_has_nothing_more(pair: ReplicaPair) -> None:
    """The master lost its end: what it has is the same, and then there is no more."""
    pair.connect_and_catch_up()
    pair.disconnect()
    cut = pair.master.store.queue("T", 0).get_entry(8)[0]
    late = ReplicaPair(_shortened(pair.master, cut), replica_disk=_closed(pair.replica))

    late.connect_and_catch_up()
    assert late.state == "comparing"
    for _ in range(2):
        late.pass_time(5_000)
        late.master.pass_time(0, SHIPPING_TIMER)
        late.exchange()

    assert late.state == "ahead"
    assert f"the master's at {cut}" in late.replica.components.ha_replica.problem
    assert "move its queues by force" in late.replica.components.ha_replica.problem


def _shortened(desk: BrokerHarness, end: int) -> BrokerHarness:
    """Return a broker whose log is the beginning of another one's."""
    disk = SimDisk()
    disk.create(LOG, 1 << 20).write(0, [log_bytes(desk)[:end]])
    disk.sync()
    return BrokerHarness(disk=disk)


def _closed(desk: BrokerHarness) -> SimDisk:
    """Return what an orderly end leaves."""
    desk.store.close(desk.now_ms)
    return desk.disk


def _torn(desk: BrokerHarness, at: int, data: bytes) -> SimDisk:
    """Return what a crash leaves that changed the log somewhere."""
    desk.disk.sync()
    overwrite(desk.disk, LOG, at, data)
    return desk.disk


@pytest.mark.parametrize("flush", ["async", "sync"])
def test_what_a_crash_tore_is_copied_again(flush: str) -> None:
    """A record that lost its last bytes may look whole: its topic is no part of its checksum."""
    pair = ReplicaPair(flush=flush)
    pair.master.make_topic("T")
    pair.replica.make_topic("T")
    pair.send(10)
    pair.send(1, i="")
    pair.connect_and_catch_up()
    pair.disconnect()
    end = len(log_bytes(pair.master))
    properties = log_bytes(pair.master).rindex(b"CLUSTER")
    torn = _torn(pair.replica, properties + 2, bytes(3))

    again = ReplicaPair(pair.master, flush=flush, replica_disk=torn)
    assert again.replica.store.written == end
    again.is_read_split = False
    again.connect_and_catch_up()
    assert pair.master.components.ha_master.replicated_end == end

    assert again.state == "following"
    assert log_bytes(again.replica) == log_bytes(pair.master)
    (line,) = logs(again.replica.effects, "end of the log copy discarded")
    assert line.fields["from"] == properties + 2
    (theirs,), (ours,) = pair.master.call(a_pull()), again.replica.call(a_pull())
    assert ours.body == theirs.body


def test_after_a_crash_another_log_is_another_log_all_the_same(pair: ReplicaPair) -> None:
    """Its first record differs already."""
    other = ReplicaPair()
    other.master.make_topic("T")
    other.send(12, queue=1)
    other.connect_and_catch_up()
    other.replica.disk.sync()
    before = log_bytes(other.replica)

    foreign = ReplicaPair(pair.master, replica_disk=other.replica.disk)
    foreign.send(20)
    foreign.connect_and_catch_up()

    assert (foreign.state, log_bytes(foreign.replica)) == ("diverged", before)


def test_what_was_on_disk_before_a_crash_was_not_torn_by_it(pair: ReplicaPair) -> None:
    """A difference there is another log, or damage that somebody should know of."""
    pair.connect_and_catch_up()
    run_housekeeping(pair.replica.store, pair.replica.now_ms + 60_000)
    pair.send(5)
    pair.exchange()
    pair.disconnect()
    at = log_bytes(pair.master).index(b"CLUSTER")
    torn = _torn(pair.replica, at, b"X")

    again = ReplicaPair(pair.master, replica_disk=torn)
    again.connect_and_catch_up()

    assert again.state == "diverged"
    assert f"position {at}" in again.replica.components.ha_replica.problem


def test_a_master_that_goes_on_elsewhere_is_not_followed(pair: ReplicaPair) -> None:
    """A gap in the log is never bridged."""
    pair.connect_and_catch_up()
    before = log_bytes(pair.replica)

    end = len(before)
    channel = ChannelId(pair._channel)
    pair.replica.feed(StreamReceived(channel, encode_head(end + 7, 3) + b"abc", pair.replica.now_ms))

    assert (pair.state, log_bytes(pair.replica)) == ("behind", before)


def test_bytes_that_are_no_record_are_not_kept(pair: ReplicaPair) -> None:
    """The replica says where they came, and what to look at."""
    pair.connect_and_catch_up()
    before = log_bytes(pair.replica)
    channel, end = ChannelId(pair._channel), len(before)

    pair.replica.feed(StreamReceived(channel, encode_head(end, 100) + b"x" * 100, pair.replica.now_ms))

    assert (pair.state, log_bytes(pair.replica)) == ("broken", before)
    assert f"from {end} on is no record" in pair.replica.components.ha_replica.problem


def test_a_silent_master_is_given_up_and_a_living_one_is_told_of(pair: ReplicaPair) -> None:
    """A report every five seconds; twenty without a word are too many."""
    pair.connect_and_catch_up()
    channel = ChannelId(pair._channel)
    pair.replica.effects.clear()
    for _ in range(15):
        pair.replica.pass_time(1_000, FOLLOWING_TIMER)
    reports = [effect for effect in pair.replica.effects if isinstance(effect, SendBytes) and effect.channel == channel]
    assert len(reports) == 3
    assert not pair.is_closed_by(pair.replica)

    pair.replica.pass_time(5_000, FOLLOWING_TIMER)

    assert pair.is_closed_by(pair.replica)
    assert [line.fields["for"] for line in logs(pair.replica.effects, "master silent")] == [20_000]


def test_a_full_disk_stops_the_copy_before_the_disk_does(pair: ReplicaPair) -> None:
    """It goes on when there is room again."""
    total = pair.replica.disk.space()[1]
    pair.replica.disk.space = lambda: (total - 1, total)  # type: ignore[method-assign]
    pair.replica.store.housekeep(pair.replica.now_ms)

    pair.connect_and_catch_up()

    assert (pair.state, pair.replica.store.written) == ("full", 0)
    del pair.replica.disk.space
    pair.replica.store.housekeep(pair.replica.now_ms)
    pair.disconnect()
    pair.pass_time(STUCK_RETRY_MS)
    pair.connect_and_catch_up()
    assert log_bytes(pair.replica) == log_bytes(pair.master)
    assert pair.replica.store.is_writable


def test_a_copy_without_room_for_its_next_log_file_goes_on_when_there_is_some(pair: ReplicaPair) -> None:
    """Though the disk said that it had room: nobody has to start the replica again."""

    def refuse(call: str, path: str) -> None:
        if call == "create" and path.startswith("commitlog/"):
            raise DiskFull(f"there is no room for {path}")

    pair.replica.disk.before = refuse
    pair.master.call(*[a_send(body=bytes(50_000)) for _ in range(30)])

    pair.connect_and_catch_up()

    assert pair.state == "full"
    assert pair.replica.store.written < pair.master.store.written
    pair.replica.disk.before = None
    pair.replica.store.housekeep(pair.replica.now_ms)
    pair.disconnect()
    pair.pass_time(STUCK_RETRY_MS)
    pair.connect_and_catch_up()
    assert pair.replica.store.written == pair.master.store.written
    assert pair.replica.store.is_writable


def test_records_that_waited_for_their_topic_and_find_no_space_are_no_fault_of_the_broker(
    pair: ReplicaPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The replica reports why it does not follow, and tries again."""
    pair.connect_and_catch_up()

    def refuse(_indexing: Indexing) -> None:
        raise DiskFull("there is no space for consumequeue/T/0/0")

    monkeypatch.setattr(pair.replica.store.replica, "create_entries", refuse)

    pair.replica.components.ha_replica.resume_waiting()

    assert pair.state == "broken"


def test_a_broker_that_is_no_replica_dials_nobody(pair: ReplicaPair) -> None:
    """Nor does it want to be told of masters."""
    pair.master.components.ha_replica.set_master("10.0.0.1:1")

    assert not any(isinstance(effect, OpenChannel) for effect in pair.master.effects)
    assert not [effect for effect in pair.master.effects if isinstance(effect, Log) and effect.level == "error"]


def test_a_replica_that_cannot_read_the_end_of_its_log_says_so(
    pair: ReplicaPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It cannot compare, and so it copies nothing."""
    pair.connect_and_catch_up()
    pair.disconnect()
    pair.pass_time(1_000)

    def fail(effect: ReadLog) -> DiskFault:
        return DiskFault("bad sector", pair.replica.now_ms, effect.token)

    monkeypatch.setattr(pair.replica, "_read", fail)
    assert not pair.connect()

    assert pair.state == "broken"
    assert "the end of the log cannot be read: bad sector" in pair.replica.components.ha_replica.problem
