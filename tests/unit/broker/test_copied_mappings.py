"""The logical queues of a master, at its replica."""

from __future__ import annotations

import pytest
from tests.support.broker_desk import a_pull, a_send, codes
from tests.support.replicas import Pair, make_static

from holdfast.broker.offsets import TIMER as OFFSETS_TIMER
from holdfast.wire.codes import ResponseCode


@pytest.fixture
def pair() -> Pair:
    pair = Pair()
    pair.copy_tables()
    return pair


def test_a_record_of_logical_queues_counts_when_it_is_copied(pair: Pair) -> None:
    """And the queues are read at the replica, by their logical numbers."""
    pair.follow()
    make_static(pair.master)
    pair.send(3, topic="S", queue=1)

    pair.exchange()
    pair.copy_tables()

    assert pair.replica.rooms.mappings.find("S") == pair.master.rooms.mappings.find("S")
    (theirs,), (ours,) = (desk.ask(a_pull("S", queue=1)) for desk in (pair.master, pair.replica))
    assert (ours.code, ours.body, ours.fields) == (0, theirs.body, theirs.fields)


def test_a_replica_takes_no_sends_of_logical_queues(pair: Pair) -> None:
    """Though its master has them open."""
    make_static(pair.master)
    pair.follow()
    pair.copy_tables()

    (answer,) = pair.replica.ask(a_send("S"))

    assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE


def test_what_the_log_has_no_more_records_of_is_told_by_the_master() -> None:
    """A new replica of an old master."""
    pair = Pair(log_file_size=1 << 16)
    make_static(pair.master)
    pair.master.make_topic("T")
    for _ in range(4):
        pair.master.ask(a_send(body=b"x" * 30_000))
    pair.send(2, topic="S")
    pair.master.store.log.files.remove_first()

    pair.copy_tables()
    pair.follow()
    pair.copy_tables()

    assert pair.replica.store.start == pair.master.store.start > 0
    assert pair.replica.rooms.mappings.find("S") == pair.master.rooms.mappings.find("S")
    assert codes(pair.replica.ask(a_pull("S"))) == [0]


def test_a_restarted_replica_knows_its_masters_logical_queues_without_it(pair: Pair) -> None:
    """They are in its own folder: the master may be gone for good."""
    pair.follow()
    make_static(pair.master)
    pair.send(3, topic="S")
    pair.exchange()
    pair.copy_tables()
    pair.replica.disk.sync()

    alone = Pair(pair.master, replica_disk=pair.replica.disk).replica

    assert alone.rooms.mappings.find("S") == pair.master.rooms.mappings.find("S")
    (pulled,) = alone.ask(a_pull("S"))
    assert (pulled.code, pulled.fields["maxOffset"]) == (0, "3")


def test_a_static_topic_that_is_deleted_is_gone_at_the_replica(pair: Pair) -> None:
    """Its record says so."""
    pair.follow()
    make_static(pair.master)
    pair.exchange()
    assert pair.replica.rooms.mappings.is_static("S")

    pair.master.rooms.mappings.delete("S", pair.master.now_ms)
    pair.master.rooms.topics.delete("S", pair.master.now_ms)
    pair.master.pass_time(0, OFFSETS_TIMER)
    pair.exchange()

    assert not pair.replica.rooms.mappings.is_static("S")


def test_a_replica_tells_name_servers_of_no_logical_queue(pair: Pair) -> None:
    """Whoever leads it does."""
    pair.follow()
    make_static(pair.master)
    pair.exchange()
    pair.copy_tables()

    told = pair.replica.rooms.registration._describe_topics()

    assert told.topic_queue_mapping_info_map == {}
    assert "S" not in told.topic_config_table
