"""Static topics that are indexed by record: through creation, growth, moves, forced moves and restarts."""

import msgspec
import pytest
from tests.support.cluster.broker_machine import a_send
from tests.support.cluster.simulated import TOPIC, MovingCluster, force_queue

from holdfast.model.errors import ConnectionLost
from holdfast.model.mapping import FORCED_GAP, TopicMapping, new_logical_queue
from holdfast.model.topic import TopicConfig
from holdfast.wire.cluster import mapping as wire
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.frames.command import Command
from holdfast.wire.records.batch import encode_items
from holdfast.wire.records.inner_batch import unwrap_items, wrap_items
from holdfast.wire.requests.moves import QueueTotal

ID = "0A000001000000000001000000010007"


def a_cluster(*names: str) -> MovingCluster:
    cluster = MovingCluster(*names)
    cluster.make_topic({0: "a", 1: "a"}, queue_type="BatchCQ")
    return cluster


def send(cluster: MovingCluster, broker: str, count: int, queue: int = 0) -> int:
    """Send a batch by way of a broker; return the logical offset of its first message."""
    whole = wrap_items(encode_items([(0, b"%d" % at, b"") for at in range(count)]), count, ID)
    fields = {"f": str(whole.sys_flag), "i": whole.properties, "m": "true"}
    request = a_send(TOPIC, queue=queue, code=320, body=whole.body, **fields)
    try:
        answer = cluster.call(broker, request)
    except ConnectionLost:  # Half open, since somebody lost power.
        answer = cluster.call(broker, request)
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    assert answer.fields["batchUniqId"] == ID
    return int(answer.fields["queueOffset"])


def counts(cluster: MovingCluster, queue: int = 0) -> list[int]:
    """Return how many messages the records of a queue hold, home by home."""
    found: list[int] = []
    for segment in cluster.logical_queue(queue).readable:
        store = cluster.stores[segment.broker]
        log = store.find_queue(TOPIC, segment.queue_id)
        assert log is None or log.accepts_batches
        for position, _, _ in () if log is None else log.entries(0, 10_000):
            record = store.read_record(position)
            assert record is not None
            found.append(len(unwrap_items(record.body, record.sys_flag, record.properties)))
    return found


def kind(cluster: MovingCluster, broker: str) -> bool:
    config = cluster.components[broker].topics.find(TOPIC)
    assert config is not None
    return config.accepts_batches


def test_batches_stay_whole_through_moves() -> None:
    """There and back again: logical offsets go on, each batch is one record where it was taken."""
    cluster = a_cluster("a", "b")
    firsts = [send(cluster, "a", 5), send(cluster, "a", 3)]
    cluster.move("a", "b", 0)
    firsts += [send(cluster, "b", 4), send(cluster, "a", 2)]  # one of them through the old leader
    cluster.move("b", "a", 0)

    firsts.append(send(cluster, "a", 7))

    assert firsts == [0, 5, 8, 12, 14]
    assert counts(cluster) == [5, 3, 4, 2, 7]


def test_who_never_heard_of_the_topic_takes_it_over_with_its_index() -> None:
    """How it is indexed comes with what is handed over, and is on disk before anything else is."""
    cluster = MovingCluster("a", "b")
    cluster.make_topic({0: "a"}, queue_type="BatchCQ")
    late = cluster.brokers["late"] = cluster.create_broker("late", "10.0.1.9:10911")
    cluster.steps["late"] = 0
    late.start()
    cluster.run(5_000)
    send(cluster, "a", 5)

    cluster.move("a", "late", 0)
    assert cluster.run(20_000, lambda: cluster.open_brokers(0) == ["late"])
    first = send(cluster, "late", 2)
    late.kill()
    late.start()
    cluster.run(5_000)

    assert first == 5
    assert kind(cluster, "late")
    assert counts(cluster) == [5, 2]
    assert send(cluster, "late", 2) == 7


def test_a_forced_move_brings_the_index_along() -> None:
    """The new leader of queues whose leader died keeps their batches whole; so does the old one when it is back."""
    cluster = a_cluster("a", "b")
    send(cluster, "a", 5)
    cluster.kill("a")

    assert force_queue(cluster, "b").code == ResponseCode.SUCCESS
    assert send(cluster, "b", 3) == FORCED_GAP
    cluster.restart("a")
    cluster.run(30_000)

    assert cluster.stores["a"].queue(TOPIC, 0).accepts_batches
    assert counts(cluster) == [5, 3]
    assert cluster.logical_queue(0).segments[0].end == 5


@pytest.mark.parametrize("how", ["kill", "power_off"])
def test_a_leader_that_is_started_again_goes_on_behind_its_batches(how: str) -> None:
    """What was acknowledged is there, whole, and its offsets are given once."""
    cluster = a_cluster("a", "b")
    send(cluster, "a", 5)
    node = cluster.brokers["a"]
    getattr(node, how)()
    node.start()
    cluster.run(5_000)

    assert send(cluster, "a", 2) == 5
    assert counts(cluster) == [5, 2]


def tell(cluster: MovingCluster, broker: str, mapping: TopicMapping, **fields: str) -> Command:
    """Tell a broker of a static topic as tools do."""
    named = {"topic": mapping.topic, "defaultTopic": "TBW102", "readQueueNums": "1", "writeQueueNums": "1"}
    named |= {"perm": "6", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false"} | fields
    body = wire.encode(wire.to_detail(mapping))
    return cluster.call(broker, Command(code=RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC, fields=named, body=body))


def test_a_static_topic_is_made_and_grown_with_its_attributes() -> None:
    """Every broker that is told has them. Java's tool says nothing of attributes: what is known stays."""
    cluster = MovingCluster("a", "b")
    epoch = cluster.world.now_ms
    parts = {"a": new_logical_queue(0, "a", 0), "b": new_logical_queue(1, "b", 0)}
    records = {
        name: TopicMapping(topic=TOPIC, broker=name, epoch=epoch, total=2, queues={home.queue: home})
        for name, home in parts.items()
    }
    made = [tell(cluster, name, record, attributes="+queue.type=BatchCQ") for name, record in records.items()]
    grown = msgspec.structs.replace(records["a"].with_queues(new_logical_queue(2, "a", 1)), epoch=epoch + 1, total=3)

    told = tell(cluster, "a", grown)
    other = tell(cluster, "a", msgspec.structs.replace(grown, epoch=epoch + 2), attributes="+queue.type=SimpleCQ")
    cluster.run(5_000)

    assert [answer.code for answer in (*made, told)] == [0, 0, 0]
    assert other.code == ResponseCode.INVALID_PARAMETER
    assert "holdfast index convert" in (other.remark or "")
    assert kind(cluster, "a")
    assert kind(cluster, "b")
    assert [send(cluster, name, 3, queue) for name, queue in (("a", 0), ("b", 1), ("a", 2))] == [0, 0, 0]
    assert [counts(cluster, queue) for queue in range(3)] == [[3], [3], [3]]


def test_a_record_that_is_newer_than_the_file_of_topics_says_how_it_is_indexed() -> None:
    """A crash between the two left the topic in the log only."""
    cluster = MovingCluster("a")
    rooms = cluster.components["a"]
    config = TopicConfig(name=TOPIC, read_queues=1, write_queues=1, attributes={"queue.type": "BatchCQ"})
    record = TopicMapping(topic=TOPIC, broker="a", epoch=1, total=1, queues={0: new_logical_queue(0, "a", 0)})
    rooms.mappings.change(record, config=config)
    cluster.kill("a")
    cluster.restart("a")
    cluster.run(5_000)

    assert send(cluster, "a", 4) == 0
    assert counts(cluster) == [4]


def test_a_topic_that_is_indexed_otherwise_here_is_not_taken_over() -> None:
    """It says so, instead of mixing two kinds of index."""
    cluster = a_cluster("a", "b")
    config = TopicConfig(name=TOPIC)
    stamp = QueueTotal(topic=config, scope="__global__", epoch=cluster.world.now_ms, total=2)

    answer = cluster.request("b", RequestCode.PUT_QUEUE_TOTAL, stamp)

    assert answer.code != ResponseCode.SUCCESS
    assert "queue.type" in (answer.remark or "")


def test_a_normal_topic_of_batches_becomes_static_as_it_is() -> None:
    """Its batches stay where they are, and the next one follows them."""
    cluster = MovingCluster("a")
    config = TopicConfig(name=TOPIC, read_queues=1, write_queues=1, attributes={"queue.type": "BatchCQ"})
    cluster.components["a"].topics.put(config)
    assert send(cluster, "a", 5) == 0
    record = TopicMapping(topic=TOPIC, broker="a", epoch=1, total=1, queues={0: new_logical_queue(0, "a", 0)})

    told = tell(cluster, "a", record, attributes="+queue.type=BatchCQ")
    cluster.run(5_000)

    assert told.code == ResponseCode.SUCCESS, told.remark
    assert send(cluster, "a", 2) == 5
    assert counts(cluster) == [5, 2]
