"""The logical queues of a master, at its replica."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.cluster.broker_machine import a_pull, a_send
from tests.support.cluster.machine import codes, logs
from tests.support.cluster.replica_machines import ReplicaPair, make_static

from holdfast.broker.flow.component import SAVE_TIMER
from holdfast.broker.replication.replica_mappings import ReplicaMappings
from holdfast.model.mapping import TopicMapping, new_logical_queue
from holdfast.wire.cluster.mapping import to_detail, to_plain
from holdfast.wire.frames.codes import ResponseCode


@pytest.fixture
def pair() -> ReplicaPair:
    pair = ReplicaPair()
    pair.sync_tables()
    return pair


def test_a_record_of_logical_queues_counts_when_it_is_copied(pair: ReplicaPair) -> None:
    """And the queues are read at the replica, by their logical numbers."""
    pair.connect_and_catch_up()
    make_static(pair.master)
    pair.send(3, topic="S", queue=1)

    pair.exchange()
    pair.sync_tables()

    assert pair.replica.components.mappings.find("S") == pair.master.components.mappings.find("S")
    (theirs,), (ours,) = (desk.call(a_pull("S", queue=1)) for desk in (pair.master, pair.replica))
    assert (ours.code, ours.body, ours.fields) == (0, theirs.body, theirs.fields)


def test_a_replica_takes_no_sends_of_logical_queues(pair: ReplicaPair) -> None:
    """Though its master has them open."""
    make_static(pair.master)
    pair.connect_and_catch_up()
    pair.sync_tables()

    (answer,) = pair.replica.call(a_send("S"))

    assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE


def test_what_the_log_has_no_more_records_of_is_told_by_the_master() -> None:
    """A new replica of an old master."""
    pair = ReplicaPair(log_file_size=1 << 16)
    make_static(pair.master)
    pair.master.make_topic("T")
    for _ in range(4):
        pair.master.call(a_send(body=b"x" * 30_000))
    pair.send(2, topic="S")
    pair.master.store.log.files.remove_first()

    pair.sync_tables()
    pair.connect_and_catch_up()
    pair.sync_tables()

    assert pair.replica.store.start == pair.master.store.start > 0
    assert pair.replica.components.mappings.find("S") == pair.master.components.mappings.find("S")
    assert codes(pair.replica.call(a_pull("S"))) == [0]


def test_a_restarted_replica_knows_its_masters_logical_queues_without_it(pair: ReplicaPair) -> None:
    """They are in its own folder: the master may be gone for good."""
    pair.connect_and_catch_up()
    make_static(pair.master)
    pair.send(3, topic="S")
    pair.exchange()
    pair.sync_tables()
    pair.replica.disk.sync()

    alone = ReplicaPair(pair.master, replica_disk=pair.replica.disk).replica

    assert alone.components.mappings.find("S") == pair.master.components.mappings.find("S")
    (pulled,) = alone.call(a_pull("S"))
    assert (pulled.code, pulled.fields["maxOffset"]) == (0, "3")


def test_a_static_topic_that_is_deleted_is_gone_at_the_replica(pair: ReplicaPair) -> None:
    """Its record says so."""
    pair.connect_and_catch_up()
    make_static(pair.master)
    pair.exchange()
    assert pair.replica.components.mappings.is_static("S")

    pair.master.components.mappings.delete("S")
    pair.master.components.topics.delete("S")
    pair.master.pass_time(0, SAVE_TIMER)
    pair.exchange()

    assert not pair.replica.components.mappings.is_static("S")


def test_a_replica_tells_name_servers_of_no_logical_queue(pair: ReplicaPair) -> None:
    """Whoever leads it does."""
    pair.connect_and_catch_up()
    make_static(pair.master)
    pair.exchange()
    pair.sync_tables()

    told = pair.replica.components.registration._describe_topics()

    assert told.topic_queue_mapping_info_map == {}
    assert "S" not in told.topic_config_table


# A Java master, whose log says nothing of logical queues.


def told_by_java(total: int = 2, **parts: Any) -> dict[str, Any]:
    """Return what a Java master says of the topic S with its topics."""
    homes = {number: new_logical_queue(number, "broker-a", number) for number in range(total)}
    mapping = TopicMapping(topic="S", broker="broker-a", scope="__global__", epoch=7, total=total, queues=homes)
    return {"S": to_plain(to_detail(mapping, with_extras=False)) | parts}


def copied(pair: ReplicaPair) -> ReplicaMappings:
    """Return what the replica has."""
    mappings = pair.replica.components.mappings
    assert isinstance(mappings, ReplicaMappings)
    return mappings


def test_mappings_of_a_java_master_are_adopted_and_change_with_it(pair: ReplicaPair) -> None:
    """The topic grows, and goes; a mapping that comes again changes nothing."""
    mappings = copied(pair)

    mappings.adopt_java(told_by_java())
    assert mappings.led_queues("S") == [0, 1]
    version = mappings.version
    mappings.adopt_java(told_by_java())
    assert mappings.version == version

    mappings.adopt_java(told_by_java(3))
    assert mappings.led_queues("S") == [0, 1, 2]
    mappings.keep_only({"S"})
    assert mappings.is_static("S")
    mappings.keep_only(set())
    assert not mappings.is_static("S")
    mappings.adopt_java(told_by_java())
    assert mappings.is_static("S"), "it was made anew"


@pytest.mark.parametrize(
    "parts", [{"bname": "broker-x"}, {"totalQueues": 1}, {"totalQueues": "many"}, {"hostedQueues": {"0": []}}]
)
def test_a_mapping_that_cannot_be_is_told_once_and_left_out(pair: ReplicaPair, parts: dict[str, Any]) -> None:
    """Another broker's, one with too many queues, or none at all."""
    mappings = copied(pair)

    for _ in range(2):
        mappings.adopt_java(told_by_java(**parts))
    assert not mappings.is_static("S")
    mappings.adopt_java(told_by_java())

    (fault,) = logs(pair.replica.components.turn.effects, "mapping of the master not adopted")
    assert (fault.level, fault.fields["topic"]) == ("error", "S")
    assert mappings.is_static("S")


def test_a_replica_reads_the_logical_queues_of_a_java_master(pair: ReplicaPair) -> None:
    """Records of a static topic are in physical queues, as ours are."""
    pair.master.make_topic("S", queues=2)
    pair.send(3, topic="S", queue=1)
    pair.sync_tables()
    pair.connect_and_catch_up()
    copied(pair).adopt_java(told_by_java())

    (answer,) = pair.replica.call(a_pull("S", queue=1))

    assert (answer.code, answer.body.count(b"message")) == (0, 3)
    assert answer.fields["offsetDelta"] == "0"
