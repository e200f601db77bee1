"""What tools tell of a topic's queues, where a broker that they could not ask returns with something else."""

import msgspec
from tests.support.cluster.simulated import TOPIC, MovingCluster

from holdfast.broker.admin.static_admin import _is_repetition
from holdfast.model.mapping import FORCED_GAP, LogicalQueue, TopicMapping, new_logical_queue
from holdfast.wire.cluster import mapping as wire
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.frames.command import Command


def tell(cluster: MovingCluster, broker: str, *queues: LogicalQueue, total: int) -> None:
    """Tell a broker of more queues, as a growth or a repair does."""
    record = cluster.components[broker].mappings.find(TOPIC)
    assert record is not None
    told = msgspec.structs.replace(record.with_queues(*queues), total=total, epoch=record.epoch + 1_000)
    fields = {"topic": TOPIC, "defaultTopic": "TBW102", "readQueueNums": "2", "writeQueueNums": "2", "perm": "6"}
    fields |= {"topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false"}
    body = wire.encode(wire.to_detail(told))
    answer = cluster.call(broker, Command(code=RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC, fields=fields, body=body))
    assert answer.code == ResponseCode.SUCCESS, answer.remark


def test_whoever_returns_with_a_home_that_was_given_to_another_is_fenced() -> None:
    """A growth reached only the broker that died; the repair opened its queue elsewhere. No offset is used twice."""
    cluster = MovingCluster("a", "b")
    cluster.make_topic({0: "a", 1: "b"})
    tell(cluster, "b", new_logical_queue(2, "b", 1), total=3)
    cluster.kill("b")
    home = msgspec.structs.replace(new_logical_queue(2, "a", 1).leader, generation=1, first=FORCED_GAP)

    tell(cluster, "a", LogicalQueue(2, (home,)), total=3)
    cluster.restart("b")
    cluster.run(30_000)
    cluster.run(5_000, cluster.produce(2, 2, "b"))

    assert cluster.leader(2) == "a"
    assert cluster.acked == {b"2-0": (2, FORCED_GAP), b"2-1": (2, FORCED_GAP + 1)}


def test_a_tool_cannot_record_a_topic_of_another_cluster() -> None:
    """The broker says where the topic is fixed."""
    cluster = MovingCluster("a", clusters={"a": "east"})
    record = TopicMapping(
        topic=TOPIC, broker="a", scope="west", epoch=1, total=1, queues={0: new_logical_queue(0, "a", 0)}
    )
    fields = {"topic": TOPIC, "defaultTopic": "TBW102", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6"}
    fields |= {"topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false"}

    body = wire.encode(wire.to_detail(record))
    told = Command(code=RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC, fields=fields, body=body)
    answer = cluster.call("a", told)

    assert answer.code == ResponseCode.INVALID_PARAMETER
    assert "T is fixed in west, and a belongs to cluster east" in (answer.remark or "")
    assert cluster.components["a"].mappings.find(TOPIC) is None


def test_an_older_record_is_accepted_only_if_it_repeats_what_happened() -> None:
    """A tool that was slow may finish its move. What names another physical queue, or another queue, never happened."""
    known = TopicMapping(topic=TOPIC, broker="a", epoch=7, total=2, queues={0: new_logical_queue(0, "a", 1)})

    def is_repetition(*queues: LogicalQueue, epoch: int = 6) -> bool:
        return _is_repetition(known, msgspec.structs.replace(known, queues={}, epoch=epoch).with_queues(*queues))

    assert is_repetition(known.queues[0])
    assert not is_repetition(known.queues[0], epoch=7)
    assert not is_repetition(new_logical_queue(0, "a", 2))
    assert not is_repetition(known.queues[0], new_logical_queue(1, "a", 3))
