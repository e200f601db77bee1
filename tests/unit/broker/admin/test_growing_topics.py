"""A topic has grown, and one broker has not heard of it: what clients ask it goes to the leader, or is tried again."""

import msgspec
import pytest
from tests.support.cluster.broker_machine import a_pull, a_send
from tests.support.cluster.simulated import TOPIC, MovingCluster

from holdfast.broker.relay.relay import LEADER_WAIT_MS
from holdfast.model.mapping import new_logical_queue
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.frames.command import Command
from holdfast.wire.records.record import decode_records

NEW = 2


@pytest.fixture
def cluster() -> MovingCluster:
    """Broker b leads a new queue, and the name server knows; broker a was told nothing."""
    cluster = MovingCluster("a", "b")
    cluster.make_topic({0: "a", 1: "b"})
    mappings = cluster.components["b"].mappings
    known = mappings.find(TOPIC)
    assert known is not None
    grown = msgspec.structs.replace(known.with_queues(new_logical_queue(NEW, "b", 1)), total=3, epoch=known.epoch + 1)
    mappings.change(grown)
    cluster.run(5_000)
    return cluster


def about(code: RequestCode, queue: int, **fields: str) -> Command:
    return Command(code=code, fields={"topic": TOPIC, "queueId": str(queue), "consumerGroup": "g"} | fields)


def test_what_is_asked_about_the_new_queue_is_passed_on(cluster: MovingCluster) -> None:
    """A client has the newer route: it gets what the leader answers."""
    sent = cluster.call("a", a_send(TOPIC, queue=NEW, body=b"first"))
    end = cluster.call("a", about(RequestCode.GET_MAX_OFFSET, NEW))
    offset = cluster.call("a", about(RequestCode.QUERY_CONSUMER_OFFSET, NEW))
    pulled = cluster.call("a", a_pull(TOPIC, queue=NEW))

    assert (sent.code, sent.fields["queueId"], sent.fields["queueOffset"]) == (0, str(NEW), "0")
    assert end.fields["offset"] == "1"
    assert offset.fields["offset"] == "0"
    assert [bytes(record.body) for record in decode_records(pulled.body)] == [b"first"]


@pytest.mark.parametrize(
    "command",
    [a_send(TOPIC, queue=7), a_pull(TOPIC, queue=7), about(RequestCode.GET_MAX_OFFSET, 7)],
    ids=["send", "pull", "end"],
)
def test_a_queue_that_nobody_knows_is_to_be_tried_again(cluster: MovingCluster, command: Command) -> None:
    """With 501, on which clients ask for the route anew; as soon as no name server knows it either."""
    begun_ms = cluster.world.now_ms

    answer = cluster.call("a", command)

    assert answer.code == ResponseCode.NOT_LEADER_FOR_QUEUE
    assert cluster.world.now_ms - begun_ms < LEADER_WAIT_MS


def test_a_negative_queue_is_nobodys(cluster: MovingCluster) -> None:
    """No name server is asked about it."""
    answer = cluster.call("a", about(RequestCode.GET_MAX_OFFSET, -1))

    assert answer.code == ResponseCode.NOT_LEADER_FOR_QUEUE
