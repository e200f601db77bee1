"""The logical queues of a master, at its replica."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.broker_desk import a_pull, a_send, codes
from tests.support.replicas import Pair, make_static

from holdfast.broker.consume.consumer_offsets import TIMER as OFFSETS_TIMER
from holdfast.broker.replication.replica_mappings import CopiedMappings
from holdfast.model.mapping import TopicMapping, first_home
from holdfast.wire.cluster.mapping import to_detail, to_plain
from holdfast.wire.frames.codes import ResponseCode


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


# A Java master, whose log says nothing of logical queues.


def told_by_java(total: int = 2, **parts: Any) -> dict[str, Any]:
    """Return what a Java master says of the topic S with its topics."""
    homes = {number: first_home(number, "broker-a", number) for number in range(total)}
    mapping = TopicMapping(topic="S", broker="broker-a", scope="__global__", epoch=7, total=total, queues=homes)
    return {"S": to_plain(to_detail(mapping, with_extras=False)) | parts}


def copied(pair: Pair) -> CopiedMappings:
    """Return what the replica has."""
    mappings = pair.replica.rooms.mappings
    assert isinstance(mappings, CopiedMappings)
    return mappings


def test_mappings_of_a_java_master_are_adopted_and_change_with_it(pair: Pair) -> None:
    """The topic grows, and goes; a mapping that comes again changes nothing."""
    mappings = copied(pair)

    assert mappings.adopt(told_by_java()) == []
    assert mappings.led("S") == [0, 1]
    version = mappings.version
    assert mappings.adopt(told_by_java()) == []
    assert mappings.version == version

    mappings.adopt(told_by_java(3))
    assert mappings.led("S") == [0, 1, 2]
    mappings.keep_only({"S"})
    assert mappings.is_static("S")
    mappings.keep_only(set())
    assert not mappings.is_static("S")
    mappings.adopt(told_by_java())
    assert mappings.is_static("S"), "it was made anew"


@pytest.mark.parametrize(
    "parts", [{"bname": "broker-x"}, {"totalQueues": 1}, {"totalQueues": "many"}, {"hostedQueues": {"0": []}}]
)
def test_a_mapping_that_cannot_be_is_told_once_and_left_out(pair: Pair, parts: dict[str, Any]) -> None:
    """Another broker's, one with too many queues, or none at all."""
    mappings = copied(pair)

    (fault,) = mappings.adopt(told_by_java(**parts))

    assert (fault.level, fault.fields["topic"]) == ("error", "S")
    assert mappings.adopt(told_by_java(**parts)) == []
    assert not mappings.is_static("S")
    assert mappings.adopt(told_by_java()) == []
    assert mappings.is_static("S")


def test_a_replica_reads_the_logical_queues_of_a_java_master(pair: Pair) -> None:
    """Records of a static topic are in physical queues, as ours are."""
    pair.master.make_topic("S", queues=2)
    pair.send(3, topic="S", queue=1)
    pair.copy_tables()
    pair.follow()
    copied(pair).adopt(told_by_java())

    (answer,) = pair.replica.ask(a_pull("S", queue=1))

    assert (answer.code, answer.body.count(b"message")) == (0, 3)
    assert answer.fields["offsetDelta"] == "0"
