"""What a replica has of its master besides the log, and when it believes it."""

from __future__ import annotations

import pytest
from tests.support.broker_clients import a_request
from tests.support.cluster.broker_machine import BrokerHarness, a_pull, a_send
from tests.support.cluster.machine import codes, logs
from tests.support.cluster.replica_machines import CALL_CHANNEL, ReplicaPair, log_bytes, make_static

from holdfast.broker.failover.offset_backup import _newest
from holdfast.broker.flow.component import SAVE_TIMER
from holdfast.broker.replication.table_sync import NAME as COMMITS_FILE
from holdfast.broker.replication.table_sync import TIMER
from holdfast.machine.events import ChannelClosed
from holdfast.model.errors import PeerFailed
from holdfast.model.group import GroupConfig
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.frames.command import Command
from holdfast.wire.requests.moves import (
    OffsetBackupList,
    OffsetBackupQuery,
    QueueOffsetBackup,
    decode_body,
    encode_body,
)

GROUP = "consumers"


@pytest.fixture
def pair() -> ReplicaPair:
    pair = ReplicaPair()
    pair.master.make_topic("T")
    pair.master.components.groups.put(GroupConfig(group_name=GROUP))
    pair.send(10)
    return pair


def commit(desk: BrokerHarness, offset: int, *, queue: int = 0, group: str = GROUP, topic: str = "T") -> None:
    """Let a group commit."""
    fields = {"consumerGroup": group, "topic": topic, "queueId": queue, "commitOffset": offset}
    (answer,) = desk.call(a_request(RequestCode.UPDATE_CONSUMER_OFFSET, **fields))
    assert answer.code == 0, answer.remark


def committed(desk: BrokerHarness, *, queue: int = 0, group: str = GROUP, topic: str = "T") -> int | None:
    """Return where a group stands."""
    return desk.components.offsets.find(group, topic, queue)


def test_topics_groups_and_offsets_follow(pair: ReplicaPair) -> None:
    """What the master knows, the replica knows; also what changes later, and what goes."""
    commit(pair.master, 4)
    pair.sync_tables()
    pair.connect_and_catch_up()
    pair.sync_tables()
    assert pair.replica.components.topics.find("T") == pair.master.components.topics.find("T")
    assert pair.replica.components.groups.find(GROUP) == GroupConfig(group_name=GROUP)
    assert committed(pair.replica) == 4

    pair.master.make_topic("U", 2)
    commit(pair.master, 6)
    pair.master.call(a_request(RequestCode.DELETE_TOPIC_IN_BROKER, topic="T"))
    pair.sync_tables()

    assert pair.replica.components.topics.find("U") == pair.master.components.topics.find("U")
    assert pair.replica.components.topics.find("T") is None
    assert pair.replica.store.find_queue("T", 0) is None
    assert committed(pair.replica) is None


def test_delay_offsets_follow_and_are_on_disk(pair: ReplicaPair) -> None:
    """The replica delivers nothing, and knows what was."""
    pair.master.call(a_send(i="UNIQ_KEY\x01A\x02DELAY\x011\x02"))
    pair.master.pass_time(2_000, "delays")
    assert pair.master.components.delayed_delivery.to_wire().offset_table == {1: 1}
    pair.sync_tables()

    pair.connect_and_catch_up()
    pair.sync_tables()

    assert pair.replica.components.delayed_delivery.to_wire().offset_table == {1: 1}
    assert b'"1":1' in (pair.replica.disk.read_file("config/delayOffset.json") or b"").replace(b" ", b"")
    before = log_bytes(pair.replica)
    pair.replica.pass_time(5_000, TIMER)
    assert log_bytes(pair.replica) == before


def test_offsets_are_not_believed_before_the_log_is_as_far(pair: ReplicaPair) -> None:
    """A group would skip what the replica does not have yet."""
    pair.sync_tables()
    pair.connect_and_catch_up()
    pair.send(2)
    commit(pair.master, 12)

    pair.sync_tables()
    assert committed(pair.replica) is None
    pair.exchange()
    pair.replica.pass_time(1, TIMER)

    assert committed(pair.replica) == 12


def test_nothing_is_lost_to_a_master_whose_log_is_another_one(pair: ReplicaPair) -> None:
    """It lost its disk: the replica has the last copy of the messages, and of what is known about them."""
    pair.sync_tables()
    pair.connect_and_catch_up()
    commit(pair.master, 4)
    pair.sync_tables()
    pair.disconnect()
    commit(pair.replica, 7)
    pair.replica.pass_time(1_000, TIMER, SAVE_TIMER)
    again = ReplicaPair(BrokerHarness(name="broker-a"), replica_disk=pair.replica.disk)

    for _ in range(3):
        again.sync_tables()
        again.connect()
        again.exchange()

    assert again.state == "ahead"
    assert again.replica.components.topics.find("T") is not None
    assert again.replica.components.groups.find(GROUP) is not None
    assert again.replica.store.find_queue("T", 0) is not None
    assert committed(again.replica) == 7


def test_nothing_is_copied_before_the_topics_are_known(pair: ReplicaPair) -> None:
    """How they are indexed is not in the log."""
    pair.replica.components.table_sync.set_master("10.0.0.9:10911")
    assert not pair.connect()

    pair.sync_tables()

    assert pair.connect()


def test_a_topic_that_is_made_while_the_replica_follows_is_asked_for(pair: ReplicaPair) -> None:
    """Its records wait until it is known that batches are kept whole."""
    pair.sync_tables()
    pair.connect_and_catch_up()
    pair.master.make_topic("B", 1, attributes={"queue.type": "BatchCQ"})
    pair.master.call(a_send("B"))
    pair.master.call(a_send("T", body=b"behind"))
    pair.exchange()
    assert pair.replica.store.replica.awaited_topic == "B"
    assert pair.replica.store.queue("T", 0).offset_max == 10

    pair.sync_tables(milliseconds=1)

    assert pair.replica.store.replica.awaited_topic is None
    assert pair.replica.store.queue("B", 0).accepts_batches
    assert pair.replica.store.queue("B", 0).offset_max == 1
    assert codes(pair.replica.call(a_pull(offset=10))) == [0]


@pytest.mark.parametrize("last_step", ["_fetch_mappings", "_exchange_offsets", "_fetch_end"])
def test_records_of_a_new_topic_are_readable_if_the_master_dies_after_it_sent_its_topics(
    pair: ReplicaPair, monkeypatch: pytest.MonkeyPatch, last_step: str
) -> None:
    """Their topic is known by then, and no later sync may ever come."""

    async def die(_address: str) -> None:
        raise PeerFailed("the connection was closed")

    pair.sync_tables()
    pair.connect_and_catch_up()
    pair.master.make_topic("new")
    pair.master.call(a_send("new"))
    pair.exchange()
    monkeypatch.setattr(pair.replica.components.table_sync, last_step, die)

    pair.sync_tables(milliseconds=1)

    assert codes(pair.replica.call(a_pull("new"))) == [0]


def test_records_of_a_topic_that_nobody_has_any_more_do_not_wait_for_ever(pair: ReplicaPair) -> None:
    """It was deleted before the replica came."""
    pair.master.make_topic("gone")
    pair.master.call(a_send("gone"))
    pair.master.call(a_request(RequestCode.DELETE_TOPIC_IN_BROKER, topic="gone"))
    pair.send(1)
    pair.sync_tables()
    pair.connect_and_catch_up()
    assert pair.replica.store.replica.awaited_topic == "gone"

    pair.sync_tables(milliseconds=1)

    assert pair.replica.store.queue("T", 0).offset_max == 11
    assert pair.replica.store.find_queue("gone", 0) is None
    pair.master.make_topic("gone", 1, attributes={"queue.type": "BatchCQ"})  # how it is indexed is its own affair
    pair.master.call(a_send("gone"))
    pair.exchange()
    pair.sync_tables(milliseconds=1)
    assert pair.replica.store.queue("gone", 0).accepts_batches
    assert pair.replica.store.queue("gone", 0).offset_max == 1


def test_a_replica_refuses_what_changes_tables(pair: ReplicaPair) -> None:
    """It has its master's, and would have them again in a moment."""
    pair.sync_tables()

    (answer,) = pair.replica.call(a_request(RequestCode.DELETE_TOPIC_IN_BROKER, topic="T"))

    assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert pair.replica.components.topics.find("T") is not None


def test_what_was_committed_at_the_replica_is_carried_back_first_of_all(pair: ReplicaPair) -> None:
    """The master's older offsets do not take it back here."""
    commit(pair.master, 2)
    pair.sync_tables()
    pair.connect_and_catch_up()
    pair.sync_tables()

    commit(pair.replica, 7)
    commit(pair.replica, 1, queue=1)
    pair.sync_tables()

    assert (committed(pair.master), committed(pair.master, queue=1)) == (7, 1)
    assert (committed(pair.replica), committed(pair.replica, queue=1)) == (7, 1)
    assert pair.replica.components.offsets.unsent_commits == {}
    (line,) = logs(pair.replica.effects, "offsets sent to the master")
    assert line.fields["queues"] == 2


def test_an_offset_that_is_older_than_the_masters_is_not_carried_back(pair: ReplicaPair) -> None:
    """The group went on there."""
    pair.sync_tables()
    pair.connect_and_catch_up()
    commit(pair.replica, 3)
    commit(pair.master, 5)

    pair.sync_tables()

    assert (committed(pair.master), committed(pair.replica)) == (5, 5)


def test_a_group_that_came_into_being_at_the_replica_is_carried_back_with_its_offsets(pair: ReplicaPair) -> None:
    """The master would refuse commits of a group that it does not know."""
    pair.sync_tables()
    pair.connect_and_catch_up()
    pair.replica.components.groups.ensure("new")
    commit(pair.replica, 3, group="new")

    pair.sync_tables()

    assert committed(pair.master, group="new") == 3


def test_what_is_to_be_carried_back_survives_a_restart_of_the_replica(pair: ReplicaPair) -> None:
    """It is on disk within a second."""
    pair.sync_tables()
    pair.connect_and_catch_up()
    pair.sync_tables()
    commit(pair.replica, 7)
    pair.replica.feed(ChannelClosed(CALL_CHANNEL, pair.replica.now_ms))
    pair.replica.components.table_sync.master = None
    pair.replica.pass_time(1_000, TIMER, SAVE_TIMER)
    assert pair.replica.disk.read_file(f"config/{COMMITS_FILE}") is not None
    pair.replica.disk.sync()

    again = ReplicaPair(pair.master, replica_disk=pair.replica.disk)
    assert committed(again.replica) == 7
    again.sync_tables()
    again.connect_and_catch_up()
    again.sync_tables(milliseconds=0)

    assert committed(pair.master) == 7


def test_a_commit_that_comes_while_the_master_is_asked_is_not_lost(pair: ReplicaPair) -> None:
    """What the master told is older than it."""
    pair.sync_tables()
    offsets = pair.replica.components.offsets
    commit(pair.replica, 7)

    offsets.merge_master(pair.master.components.offsets.to_wire())

    assert committed(pair.replica) == 7


def test_a_forced_move_is_told_what_groups_committed_at_the_replica() -> None:
    """All that the master told, and on top of it what came since; which is newer than anybody's copy."""
    pair = ReplicaPair()
    make_static(pair.master)
    for group in ("early", "late"):
        pair.master.components.groups.put(GroupConfig(group_name=group))
        commit(pair.master, 1, topic="S", group=group)
    pair.sync_tables()
    pair.connect_and_catch_up()
    pair.sync_tables()
    commit(pair.replica, 5, topic="S", group="late")

    body = encode_body(OffsetBackupQuery(topic="S", queues=[0]))
    (answer,) = pair.replica.call(Command(code=RequestCode.GET_OFFSET_BACKUPS, body=body))
    told = decode_body(answer.body, OffsetBackupList).backups
    by_peer = QueueOffsetBackup(
        topic="S", queue=0, generation=0, boot_ms=9, number=9, offsets={"early": 3, "late": 4}, resets=["early", "late"]
    )

    assert _newest(told)[0].offsets == {"early": 1, "late": 5}
    found = _newest([*told, by_peer])[0]
    assert (found.offsets, found.resets) == ({"early": 3, "late": 5}, ["early"])
    (nothing,) = pair.master.call(Command(code=RequestCode.GET_OFFSET_BACKUPS, body=body))
    assert decode_body(nothing.body, OffsetBackupList).backups == []
