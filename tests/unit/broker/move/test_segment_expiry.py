"""What retention took away leaves what clients read, and its place is listed until it is used again."""

import pytest
from tests.support.cluster.simulated import TOPIC, MovingCluster

from holdfast.broker.move.segment_expiry import CHECK_MS, QUIET_MS
from holdfast.model.errors import ConnectionLost
from holdfast.model.mapping import LogicalQueue, TopicMapping, mapping_rows
from holdfast.model.topic import TopicConfig
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.requests.moves import DrainRequest, MappingsAnswer, decode_body

RETENTION_MS = 120_000
FILE_SIZE = 16_384
FULL = 150
"""So many small messages are more than a log file."""


def a_cluster(*names: str, leaders: dict[int, str] | None = None) -> MovingCluster:
    """Brokers that keep little for a short time; the cluster of the proposal: a leads 0 and 1, b leads 2 and 3."""
    cluster = MovingCluster(*(names or ("a", "b")), log_file_size=FILE_SIZE, retention_ms=RETENTION_MS)
    cluster.make_topic(leaders or {0: "a", 1: "a", 2: "b", 3: "b"})
    return cluster


def produce(cluster: MovingCluster, queue: int, count: int, by: str) -> None:
    assert cluster.run(60_000, cluster.produce(queue, count, by, pause_ms=1))


def move(cluster: MovingCluster, source: str, target: str, *queues: int) -> None:
    cluster.move(source, target, *queues)
    assert cluster.run(10_000, cluster.are_moves_finished)


def fill_files(cluster: MovingCluster, queue: int, by: str) -> None:
    """Let retention have something to remove: the last file of a log never goes."""
    produce(cluster, queue, FULL, by)


def a_queue_of_three_homes() -> MovingCluster:
    """Queue 0 holds five messages on each of a, b and c, which leads it."""
    cluster = a_cluster("a", "b", "c", leaders={0: "a", 1: "b", 2: "a", 3: "c"})
    produce(cluster, 0, 5, "a")
    move(cluster, "a", "b", 0)
    produce(cluster, 0, 5, "b")
    move(cluster, "b", "c", 0)
    produce(cluster, 0, 5, "c")
    return cluster


def rows(cluster: MovingCluster) -> list[tuple[str, int, str, str]]:
    found = mapping_rows(cluster.logical_queue(queue) for queue in range(4))
    return [(row.broker, row.queue_id, row.label, row.status.value) for row in found]


def record(cluster: MovingCluster, name: str) -> TopicMapping:
    mapping = cluster.components[name].mappings.find(TOPIC)
    assert mapping is not None
    return mapping


def is_expired(queue: LogicalQueue, generation: int) -> bool:
    home = queue.find(generation)
    return home is not None and home.expired


def test_a_home_that_retention_emptied_expires_and_is_used_again() -> None:
    """The third and fourth table of the proposal, by files that really go."""
    cluster = a_cluster()
    produce(cluster, 0, 101, "a")
    move(cluster, "a", "b", 0)
    fill_files(cluster, 1, "a")

    assert cluster.run(RETENTION_MS + 2 * CHECK_MS, lambda: is_expired(cluster.logical_queue(0), 0))

    assert rows(cluster) == [
        ("a", 0, "0(-)", "Expired"),
        ("a", 1, "1", "Normal"),
        ("b", 0, "2", "Normal"),
        ("b", 1, "3", "Normal"),
        ("b", 2, "0(101-)", "Normal"),
    ]
    cluster.sent.clear()
    produce(cluster, 0, 100, "b")
    move(cluster, "b", "a", 0)
    assert rows(cluster) == [
        ("a", 0, "0(201-)", "Normal"),
        ("a", 1, "1", "Normal"),
        ("b", 0, "2", "Normal"),
        ("b", 1, "3", "Normal"),
        ("b", 2, "0(101-200)", "ReadOnly"),
    ]
    produce(cluster, 0, 1, "b")
    assert cluster.acked[b"0-0"] == (0, 201)


def test_a_queue_that_comes_back_before_its_old_home_expired_gets_a_new_one() -> None:
    """The fifth table of the proposal."""
    cluster = a_cluster()
    produce(cluster, 0, 101, "a")
    move(cluster, "a", "b", 0)
    produce(cluster, 0, 100, "b")
    cluster.run(2 * CHECK_MS)

    move(cluster, "b", "a", 0)

    assert rows(cluster) == [
        ("a", 0, "0(0-100)", "ReadOnly"),
        ("a", 1, "1", "Normal"),
        ("a", 2, "0(201-)", "Normal"),
        ("b", 0, "2", "Normal"),
        ("b", 1, "3", "Normal"),
        ("b", 2, "0(101-200)", "ReadOnly"),
    ]


def test_an_expired_queue_is_used_again_after_a_leader_without_messages() -> None:
    """The leader in between wrote nothing: its segment expires at once and hides where its neighbours met."""
    cluster = a_cluster("a", "b", "c", leaders={0: "a", 1: "a", 2: "b", 3: "c"})
    produce(cluster, 0, 5, "a")
    move(cluster, "a", "b", 0)
    produce(cluster, 0, 5, "b")
    move(cluster, "b", "c", 0)
    fill_files(cluster, 2, "b")
    assert cluster.run(RETENTION_MS + 2 * CHECK_MS, lambda: is_expired(cluster.logical_queue(0), 1))

    move(cluster, "c", "b", 0)

    produce(cluster, 0, 3, "b")
    assert cluster.open_brokers(0) == ["b"]
    assert cluster.leader(0) == "b"


def test_all_homes_expire_in_one_look_whether_here_or_elsewhere() -> None:
    """The leader looks on behind the first; a home of its own is looked at like any other."""
    cluster = a_cluster("a", "b")
    produce(cluster, 0, 5, "a")
    move(cluster, "a", "b", 0)
    produce(cluster, 0, 5, "b")
    move(cluster, "b", "a", 0)
    fill_files(cluster, 1, "a")
    fill_files(cluster, 2, "b")

    cluster.run(RETENTION_MS + 2 * CHECK_MS)

    assert [home.expired for home in cluster.logical_queue(0).segments] == [True, True, False]
    answer = cluster.request("a", RequestCode.GET_MIN_OFFSET, None, topic=TOPIC, queueId="0")
    assert answer.fields["offset"] == "10"


def test_a_reader_in_an_expired_home_goes_on_behind_it() -> None:
    """What is gone in the middle hides neither what is older nor what is newer."""
    cluster = a_queue_of_three_homes()
    fill_files(cluster, 1, "b")

    cluster.run(RETENTION_MS + 2 * CHECK_MS)

    assert [home.expired for home in cluster.logical_queue(0).segments] == [False, True, False]
    assert cluster.consume("c", 0) == [b"0-0", b"0-1", b"0-2", b"0-3", b"0-4"] * 2
    inside = cluster.pull("c", 0, 7)
    assert inside.fields["nextBeginOffset"] in {"10", "15"}
    answer = cluster.request("c", RequestCode.GET_MIN_OFFSET, None, topic=TOPIC, queueId="0")
    assert answer.fields["offset"] == "10"


def test_the_old_home_forgets_the_homes_of_others() -> None:
    """It keeps its own place, and who leads; the rest is the leader's business. It lasts over a restart."""
    cluster = a_queue_of_three_homes()
    fill_files(cluster, 1, "b")
    assert [home.broker for home in record(cluster, "b").queues[0].segments] == ["a", "b", "c"]

    cluster.run(RETENTION_MS + 2 * CHECK_MS)
    cluster.kill("b")
    cluster.restart("b")
    cluster.run(5_000)

    kept = record(cluster, "b").queues[0]
    assert [(home.broker, home.expired) for home in kept.segments] == [("b", True), ("c", False)]


def test_every_broker_of_the_topic_hears_of_the_new_epoch() -> None:
    """A change of the topic reaches all its brokers."""
    cluster = a_cluster("a", "b", "c", leaders={0: "a", 1: "a"})
    produce(cluster, 0, 5, "a")
    move(cluster, "a", "b", 0)
    fill_files(cluster, 1, "a")
    before = record(cluster, "c").epoch

    cluster.run(RETENTION_MS + 2 * CHECK_MS)

    assert is_expired(cluster.logical_queue(0), 0)
    assert {record(cluster, name).epoch for name in ("a", "b", "c")} == {record(cluster, "b").epoch}
    assert record(cluster, "c").epoch > before


def test_a_home_of_which_something_is_left_stays_readable() -> None:
    """Wherever it is: only the last record makes the difference."""
    cluster = a_cluster()
    fill_files(cluster, 0, "a")
    cluster.run(RETENTION_MS - 20_000)
    cluster.sent.clear()
    produce(cluster, 0, 10, "a")
    move(cluster, "a", "b", 0)

    cluster.run(20_000 + 2 * CHECK_MS)

    log = cluster.stores["a"].find_queue(TOPIC, 0)
    assert log is not None
    assert 0 < log.offset_min < log.offset_max
    assert not is_expired(cluster.logical_queue(0), 0)
    assert not is_expired(record(cluster, "a").queues[0], 0)
    answer = cluster.request("b", RequestCode.GET_MIN_OFFSET, None, topic=TOPIC, queueId="0")
    assert answer.fields["offset"] == str(log.offset_min)


def test_a_broker_that_cannot_be_asked_has_lost_nothing() -> None:
    """Its homes stay readable in the tables until it says otherwise."""
    cluster = a_cluster()
    produce(cluster, 0, 5, "a")
    move(cluster, "a", "b", 0)
    cluster.kill("a")

    cluster.run(RETENTION_MS + 3 * CHECK_MS)

    assert not is_expired(cluster.logical_queue(0), 0)


def test_a_broker_that_leads_nothing_ends_its_last_file() -> None:
    """Otherwise what is in it would stay for ever: no more records come that would begin another."""
    cluster = a_cluster(leaders={0: "a", 1: "b"})
    produce(cluster, 0, 5, "a")
    move(cluster, "a", "b", 0)

    cluster.run(RETENTION_MS + QUIET_MS + 3 * CHECK_MS)

    assert is_expired(cluster.logical_queue(0), 0)
    assert cluster.stores["a"].start > 0
    assert cluster.stores["b"].start == 0


def test_a_log_that_began_a_file_goes_on_after_a_crash() -> None:
    """The file that was begun, and what it begins with, are found again."""
    cluster = a_cluster(leaders={0: "a", 1: "b"})
    produce(cluster, 0, 5, "a")
    move(cluster, "a", "b", 0)
    cluster.run(QUIET_MS + 2 * CHECK_MS)
    end = cluster.stores["a"].written
    assert end > FILE_SIZE

    cluster.kill("a")
    cluster.restart("a")
    cluster.run(2 * CHECK_MS)

    assert cluster.stores["a"].written == end
    assert cluster.consume("b", 0) == [f"0-{at}".encode() for at in range(5)]
    move(cluster, "b", "a", 0)
    assert cluster.leader(0) == "a"


def test_a_broker_that_is_not_drained_keeps_its_file_for_normal_topics() -> None:
    """It only never had a queue of the static topic: its other messages make no file end."""
    cluster = a_cluster("a", "b", leaders={0: "a", 1: "a"})
    normal = TopicConfig(name="N", read_queues=1, write_queues=1)
    cluster.components["b"].topics.put(normal)
    store = cluster.stores["b"]
    store.stage(store.queue("N", 0), b"x", b"", 0, 0, 0, bytes(8), 0, cluster.world.now_ms)

    cluster.run(QUIET_MS + 3 * CHECK_MS)
    assert store.written < FILE_SIZE

    cluster.request("b", RequestCode.SET_DRAINING, DrainRequest(draining=True))
    cluster.run(QUIET_MS + 3 * CHECK_MS)
    assert store.written > FILE_SIZE


@pytest.mark.parametrize("how", ["kill", "power_off"])
def test_a_drained_broker_stays_marked_until_told_otherwise(how: str) -> None:
    """Over restarts of any kind, and also when the record of it has become a line of the snapshot."""
    cluster = a_cluster()
    marked = []
    for draining in (True, False):
        answer = cluster.request("a", RequestCode.SET_DRAINING, DrainRequest(draining=draining))
        assert answer.code == ResponseCode.SUCCESS
        for wait_ms in (0, 10_000):
            cluster.run(wait_ms)
            getattr(cluster.brokers["a"], how)()
            cluster.restart("a")
            cluster.run(3_000)
            try:
                told = cluster.request("a", RequestCode.GET_MAPPINGS)
            except ConnectionLost:  # Half open, since somebody died.
                told = cluster.request("a", RequestCode.GET_MAPPINGS)
            marked.append(decode_body(told.body, MappingsAnswer).draining)

    assert marked == [True, True, False, False]
