"""The replica's side of replication: what is copied, and what is found not to be a copy."""

from __future__ import annotations

import pytest
from tests.support.broker_desk import BrokerDesk, a_pull, a_send, codes
from tests.support.replicas import Pair, log_bytes, logs
from tests.support.stores import keep_house, overwrite

from holdfast.broker.replication.ha_master import TIMER as SHIPPING_TIMER
from holdfast.broker.replication.ha_replica import STUCK_MS
from holdfast.broker.replication.ha_replica import TIMER as FOLLOWING_TIMER
from holdfast.machine.effects import Log, OpenChannel, SendBytes
from holdfast.machine.events import ChannelId, StreamReceived
from holdfast.model.errors import DiskFull
from holdfast.sim.world.disk import SimDisk
from holdfast.wire.cluster.ha import encode_head
from holdfast.wire.frames.codes import ResponseCode

LOG = "commitlog/00000000000000000000"


@pytest.fixture
def pair() -> Pair:
    pair = Pair()
    pair.master.make_topic("T")
    pair.replica.make_topic("T")
    pair.send(10)
    return pair


def test_a_replica_has_every_byte_and_hands_out_every_message(pair: Pair) -> None:
    """What was there before it came, and what is sent while it follows."""
    pair.follow()
    pair.send(3)
    pair.exchange()

    assert log_bytes(pair.replica) == log_bytes(pair.master)
    assert pair.state == "following"
    (theirs,), (ours,) = pair.master.ask(a_pull()), pair.replica.ask(a_pull())
    assert (ours.code, ours.body, ours.fields) == (0, theirs.body, theirs.fields)
    assert pair.master.rooms.shipping.replicated == pair.master.store.written


def test_a_pull_that_waits_at_the_replica_is_answered_when_the_message_comes(pair: Pair) -> None:
    """Readers of a replica wait as those of a master do."""
    pair.follow()
    assert pair.replica.ask(a_pull(offset=10, sysFlag="6")) == []

    pair.send(1)
    pair.exchange()

    (pulled,) = pair.replica.answers[1]
    assert (pulled.code, b"message 0" in pulled.body) == (0, True)


def test_a_replica_refuses_messages(pair: Pair) -> None:
    """The next of the master's would lie where they are."""
    pair.follow()

    (answer,) = pair.replica.ask(a_send())

    assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert "replica" in (answer.remark or "")
    assert log_bytes(pair.replica) == log_bytes(pair.master)


def test_what_the_master_is_told_is_on_disk() -> None:
    """Under synchronous flush a report waits for the sync; a reader waits for it too."""
    pair = Pair(flush="sync")
    pair.master.make_topic("T")
    pair.replica.make_topic("T")
    pair.follow()
    pair.holds_syncs = True
    pair.send(1)

    pair.exchange()
    assert pair.master.rooms.shipping.replicated == 0
    assert codes(pair.replica.ask(a_pull())) == [ResponseCode.PULL_NOT_FOUND]
    pair.replica.sync()
    pair.exchange()

    assert pair.master.rooms.shipping.replicated == pair.master.store.written
    assert codes(pair.replica.ask(a_pull())) == [0]


def test_a_broken_connection_is_dialed_again_and_nothing_is_missing(pair: Pair) -> None:
    """Wherever it broke: also in the middle of a record."""
    for size in (1, 40, 13, 500, 12, 99):
        assert pair.connect()
        channel = ChannelId(pair._channel)
        pair.master.feed(StreamReceived(channel, bytes(pair.replica.streams[channel]), pair.master.now_ms))
        data = bytes(pair.master.streams[channel])[: 12 + size]
        pair.replica.feed(StreamReceived(channel, data, pair.replica.now_ms))
        pair.break_off()
        assert not pair.connect(), "not before a second has passed"
        pair.pass_time(1_000)

    pair.follow()

    assert log_bytes(pair.replica) == log_bytes(pair.master)
    assert codes(pair.replica.ask(a_pull())) == [0]


def test_a_master_that_cannot_be_reached_is_tried_again(pair: Pair) -> None:
    """Every second."""
    assert pair.connect(is_reachable=False)
    assert not pair.connect()
    pair.replica.now_ms += 1_000

    pair.follow()

    assert pair.state == "following"


def test_a_master_that_cannot_be_reached_is_told_of_once(pair: Pair) -> None:
    """With what to look at; again when it was there and is lost."""
    for _ in range(3):
        assert pair.connect(is_reachable=False)
        pair.pass_time(1_000)
    assert pair.connect()
    pair.break_off()

    (line,) = logs(pair.replica.effects, "master not reached")
    assert (line.level, line.fields["reason"]) == ("warning", "refused")
    assert "ha_port" in str(line.fields["hint"])
    pair.pass_time(1_000)
    pair.follow()
    pair.break_off()
    pair.pass_time(1_000)
    assert pair.connect(is_reachable=False)
    assert len(logs(pair.replica.effects, "master lost")) == 1
    assert len(logs(pair.replica.effects, "master not reached")) == 1


def test_a_master_that_nobody_knows_is_told_of() -> None:
    """Its name may be mistyped. Not at once: it may be on its way."""
    desk = BrokerDesk(replica_of="broekr-a")
    desk.pass_time(9_000, FOLLOWING_TIMER)
    assert logs(desk.effects, "master unknown") == []

    for _ in range(3):
        desk.pass_time(1_000, FOLLOWING_TIMER)

    (line,) = logs(desk.effects, "master unknown")
    assert "broekr-a" in str(line.fields["reason"])


def test_the_end_of_the_log_is_compared_before_anything_is_added(pair: Pair) -> None:
    """A copy of another broker is not continued with this one's messages."""
    other = Pair()
    other.master.make_topic("T")
    other.send(12, queue=1)
    other.follow()
    before = log_bytes(other.replica)
    foreign = Pair(pair.master, replica_disk=other.replica.disk)
    pair.send(10)

    foreign.follow()

    assert foreign.state == "diverged"
    assert "differ at position" in foreign.replica.rooms.following.problem
    assert "empty one" in foreign.replica.rooms.following.problem
    assert log_bytes(foreign.replica) == before
    (line,) = logs(foreign.replica.effects, "not following")
    assert line.level == "error"
    assert foreign.is_closed_by(foreign.replica)


def test_a_diverged_replica_looks_again_now_and_then_and_says_it_once(pair: Pair) -> None:
    """The master may be brought back in order."""
    other = Pair()
    other.master.make_topic("T")
    other.send(5, queue=1)
    other.follow()
    foreign = Pair(pair.master, replica_disk=other.replica.disk)
    foreign.follow()
    foreign.break_off()
    foreign.pass_time(STUCK_MS - 1)
    assert not foreign.connect()
    foreign.pass_time(1)

    foreign.follow()

    assert foreign.state == "diverged"
    assert len(logs(foreign.replica.effects, "not following")) == 1


def test_a_restarted_replica_compares_and_goes_on(pair: Pair) -> None:
    """What it compares is the end of what it has."""
    pair.follow()
    pair.break_off()
    pair.replica.disk.sync()
    pair.send(5)

    again = Pair(pair.master, replica_disk=pair.replica.disk)
    again.follow()

    assert again.state == "following"
    assert log_bytes(again.replica) == log_bytes(pair.master)
    (shipped,) = logs(pair.master.effects, "replica follows")[1:]
    assert shipped.fields["from"] == 1


def test_a_replica_that_is_ahead_of_its_master_says_so_once_the_master_has_nothing_more(pair: Pair) -> None:
    """The master lost its end: what it has is the same, and then there is no more."""
    pair.follow()
    pair.break_off()
    cut = pair.master.store.queue("T", 0).get_entry(8)[0]
    late = Pair(_shortened(pair.master, cut), replica_disk=_closed(pair.replica))

    late.follow()
    assert late.state == "comparing"
    for _ in range(2):
        late.pass_time(5_000)
        late.master.pass_time(0, SHIPPING_TIMER)
        late.exchange()

    assert late.state == "ahead"
    assert f"the master's at {cut}" in late.replica.rooms.following.problem
    assert "move its queues by force" in late.replica.rooms.following.problem


def _shortened(desk: BrokerDesk, end: int) -> BrokerDesk:
    """Return a broker whose log is the beginning of another one's."""
    disk = SimDisk()
    disk.create(LOG, 1 << 20).write(0, [log_bytes(desk)[:end]])
    disk.sync()
    return BrokerDesk(disk=disk)


def _closed(desk: BrokerDesk) -> SimDisk:
    """Return what an orderly end leaves."""
    desk.store.close(desk.now_ms)
    return desk.disk


def _torn(desk: BrokerDesk, at: int, data: bytes) -> SimDisk:
    """Return what a crash leaves that changed the log somewhere."""
    desk.disk.sync()
    overwrite(desk.disk, LOG, at, data)
    return desk.disk


@pytest.mark.parametrize("flush", ["async", "sync"])
def test_what_a_crash_tore_is_copied_again(flush: str) -> None:
    """A record that lost its last bytes may look whole: its topic is no part of its checksum."""
    pair = Pair(flush=flush)
    pair.master.make_topic("T")
    pair.replica.make_topic("T")
    pair.send(10)
    pair.send(1, i="")
    pair.follow()
    pair.break_off()
    end = len(log_bytes(pair.master))
    properties = log_bytes(pair.master).rindex(b"CLUSTER")
    torn = _torn(pair.replica, properties + 2, bytes(3))

    again = Pair(pair.master, flush=flush, replica_disk=torn)
    assert again.replica.store.written == end
    again.cuts = False
    again.follow()
    assert pair.master.rooms.shipping.replicated == end

    assert again.state == "following"
    assert log_bytes(again.replica) == log_bytes(pair.master)
    (line,) = logs(again.replica.effects, "end of the copy given up")
    assert line.fields["from"] == properties + 2
    (theirs,), (ours,) = pair.master.ask(a_pull()), again.replica.ask(a_pull())
    assert ours.body == theirs.body


def test_after_a_crash_another_log_is_another_log_all_the_same(pair: Pair) -> None:
    """Its first record differs already."""
    other = Pair()
    other.master.make_topic("T")
    other.send(12, queue=1)
    other.follow()
    other.replica.disk.sync()
    before = log_bytes(other.replica)

    foreign = Pair(pair.master, replica_disk=other.replica.disk)
    foreign.send(20)
    foreign.follow()

    assert (foreign.state, log_bytes(foreign.replica)) == ("diverged", before)


def test_what_was_on_disk_before_a_crash_was_not_torn_by_it(pair: Pair) -> None:
    """A difference there is another log, or damage that somebody should know of."""
    pair.follow()
    keep_house(pair.replica.store, pair.replica.now_ms + 60_000)
    pair.send(5)
    pair.exchange()
    pair.break_off()
    at = log_bytes(pair.master).index(b"CLUSTER")
    torn = _torn(pair.replica, at, b"X")

    again = Pair(pair.master, replica_disk=torn)
    again.follow()

    assert again.state == "diverged"
    assert f"position {at}" in again.replica.rooms.following.problem


def test_a_master_that_goes_on_elsewhere_is_not_followed(pair: Pair) -> None:
    """A gap in the log is never bridged."""
    pair.follow()
    before = log_bytes(pair.replica)

    end = len(before)
    channel = ChannelId(pair._channel)
    pair.replica.feed(StreamReceived(channel, encode_head(end + 7, 3) + b"abc", pair.replica.now_ms))

    assert (pair.state, log_bytes(pair.replica)) == ("behind", before)


def test_bytes_that_are_no_record_are_not_kept(pair: Pair) -> None:
    """The replica says where they came, and what to look at."""
    pair.follow()
    before = log_bytes(pair.replica)
    channel, end = ChannelId(pair._channel), len(before)

    pair.replica.feed(StreamReceived(channel, encode_head(end, 100) + b"x" * 100, pair.replica.now_ms))

    assert (pair.state, log_bytes(pair.replica)) == ("broken", before)
    assert f"from {end} on is no record" in pair.replica.rooms.following.problem


def test_a_silent_master_is_given_up_and_a_living_one_is_told_of(pair: Pair) -> None:
    """A report every five seconds; twenty without a word are too many."""
    pair.follow()
    channel = ChannelId(pair._channel)
    pair.replica.effects.clear()
    for _ in range(3):
        pair.replica.pass_time(5_000, FOLLOWING_TIMER)
    reports = [effect for effect in pair.replica.effects if isinstance(effect, SendBytes) and effect.channel == channel]
    assert len(reports) == 3
    assert not pair.is_closed_by(pair.replica)

    pair.replica.pass_time(5_000, FOLLOWING_TIMER)

    assert pair.is_closed_by(pair.replica)


def test_a_full_disk_stops_the_copy_before_the_disk_does(pair: Pair) -> None:
    """It goes on when there is room again."""
    total = pair.replica.disk.space()[1]
    pair.replica.disk.space = lambda: (total - 1, total)  # type: ignore[method-assign]
    pair.replica.store.housekeep(pair.replica.now_ms)

    pair.follow()

    assert (pair.state, pair.replica.store.written) == ("full", 0)
    del pair.replica.disk.space
    pair.replica.store.housekeep(pair.replica.now_ms)
    pair.break_off()
    pair.pass_time(STUCK_MS)
    pair.follow()
    assert log_bytes(pair.replica) == log_bytes(pair.master)
    assert pair.replica.store.writable


def test_a_copy_without_room_for_its_next_log_file_goes_on_when_there_is_some(pair: Pair) -> None:
    """Though the disk said that it had room: nobody has to start the replica again."""

    def refuse(call: str, path: str) -> None:
        if call == "create" and path.startswith("commitlog/"):
            raise DiskFull(f"there is no room for {path}")

    pair.replica.disk.before = refuse
    pair.master.ask(*[a_send(body=bytes(50_000)) for _ in range(30)])

    pair.follow()

    assert pair.state == "full"
    assert pair.replica.store.written < pair.master.store.written
    pair.replica.disk.before = None
    pair.replica.store.housekeep(pair.replica.now_ms)
    pair.break_off()
    pair.pass_time(STUCK_MS)
    pair.follow()
    assert pair.replica.store.written == pair.master.store.written
    assert pair.replica.store.writable


def test_records_that_waited_for_their_topic_and_find_no_space_are_no_fault_of_the_broker(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The replica reports why it does not follow, and tries again."""
    pair.follow()

    def refuse() -> None:
        raise DiskFull("there is no space for consumequeue/T/0/0")

    monkeypatch.setattr(pair.replica.store.replica, "enter", refuse)

    pair.replica.rooms.following.enter(pair.replica.now_ms)

    assert pair.state == "broken"


def test_a_broker_that_is_no_replica_dials_nobody(pair: Pair) -> None:
    """Nor does it want to be told of masters."""
    pair.master.rooms.following.learn("10.0.0.1:1")

    assert not any(isinstance(effect, OpenChannel) for effect in pair.master.effects)
    assert not [effect for effect in pair.master.effects if isinstance(effect, Log) and effect.level == "error"]
