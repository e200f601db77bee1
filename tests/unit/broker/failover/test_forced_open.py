"""A dead leader does not stop its queues; when it returns it is read-only, and what it acknowledged has its place."""

from typing import Any

import msgspec
import pytest
from tests.support.cluster.broker_machine import a_send
from tests.support.cluster.simulated import TOPIC, MovingCluster, force_queue, segments_of
from tests.support.cluster.simulated_world import NAMESRV

from holdfast.broker.failover.forced_open import CHECK_MS, ForcedMoves
from holdfast.broker.mapping.cluster_view import QUERY_TIMEOUT_MS
from holdfast.model.group import GroupConfig
from holdfast.model.mapping import FORCED_GAP, TopicMapping
from holdfast.nameserver.routes.static_topic_store import FILE as STATIC_FILE
from holdfast.sim.world.network import Socket
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.frames.command import Command
from holdfast.wire.records.record import decode_records
from holdfast.wire.requests.moves import AbandonRequest


def a_cluster(*names: str) -> MovingCluster:
    """Ten messages are in queue 0, which a leads."""
    cluster = MovingCluster(*(names or ("a", "b")))
    cluster.make_topic({0: "a", 1: "b"})
    cluster.run(5_000, cluster.produce(0, 10, "a"))
    return cluster


def state(cluster: MovingCluster, name: str, queue: int = 0) -> str:
    return cluster.components[name].mappings.placement(TOPIC, queue).state


def test_a_forced_queue_opens_far_above_everything_that_may_exist() -> None:
    """The new leader cannot know the end: no offset may ever be used twice."""
    cluster = a_cluster()
    cluster.kill("a")

    answer = force_queue(cluster, "b")
    cluster.run(5_000, cluster.produce(0, 3, "b"))

    assert answer.code == ResponseCode.SUCCESS
    assert cluster.leader(0) == "b"
    assert cluster.acked[b"0-0"] == (0, FORCED_GAP)
    assert force_queue(cluster, "b").code == ResponseCode.SUCCESS, "asked twice is asked once"
    assert len(cluster.logical_queue(0).segments) == 2


def test_dead_brokers_take_no_longer_together_than_one() -> None:
    """A forced move asks all of them who leads, and then all of them for copies of offsets."""
    cluster = a_cluster("a", "b", "c", "d", "e")
    for name in "acde":
        cluster.power_off(name)
    began_ms = cluster.world.now_ms

    answer = force_queue(cluster, "b")

    assert answer.code == ResponseCode.SUCCESS
    assert cluster.world.now_ms - began_ms < 2 * QUERY_TIMEOUT_MS


def test_readers_wait_at_the_unknown_end_with_an_error_that_names_the_broker() -> None:
    """What it took may still come: nobody skips it silently."""
    cluster = a_cluster()
    cluster.kill("a")
    force_queue(cluster, "b")

    answer = cluster.pull("b", 0, 10)

    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "a" in (answer.remark or "").replace(",", " ").split()


def test_a_leader_that_returns_is_fenced_and_tells_its_end() -> None:
    """Its records are readable in their place; what is sent to it goes to the new leader."""
    cluster = a_cluster()
    cluster.kill("a")
    force_queue(cluster, "b")

    cluster.restart("a")
    cluster.run(10_000)

    assert state(cluster, "a") == "elsewhere"
    sealed, opened = cluster.logical_queue(0).segments
    assert (sealed.end, opened.first) == (10, FORCED_GAP)
    cluster.acked.clear()
    cluster.run(5_000, cluster.produce(0, 3, "a"))
    assert [offset for _, offset in cluster.acked.values()] == [FORCED_GAP, FORCED_GAP + 1, FORCED_GAP + 2]
    assert len(cluster.consume("a", 0)) == len(cluster.consume("b", 0)) == 13


def test_a_fence_holds_over_restarts_of_everything() -> None:
    """It is in the log of the fenced."""
    cluster = a_cluster()
    cluster.kill("a")
    force_queue(cluster, "b")
    cluster.restart("a")
    cluster.run(10_000)

    for node in (cluster.name_server, *cluster.brokers.values()):
        node.kill()
    cluster.run(1_000)
    cluster.restart("a")
    cluster.run(10_000)

    assert state(cluster, "a") == "elsewhere"
    assert cluster.open_brokers(0) == []


def test_a_leader_that_was_only_out_of_sight_is_fenced_when_it_is_back() -> None:
    """It never stopped. What it took meanwhile lies inside the gap, and is kept."""
    cluster = a_cluster("a", "b")
    cluster.world.checks.clear()  # Two are open for a while: that is what the gap is for.
    others = ("10.0.0.1", "10.0.1.2")
    for host in others:
        cluster.network.cut_link("10.0.1.1", host)
        cluster.network.cut_link(host, "10.0.1.1")
    force_queue(cluster, "b")
    cluster.sent.clear()
    done = cluster.produce(0, 15, "a")  # Bodies 0-0 to 0-9 are there already.
    assert cluster.run(10_000, done)
    assert len(cluster.acked) == 15

    cluster.network.mend()
    cluster.run(3 * CHECK_MS)

    assert state(cluster, "a") == "elsewhere"
    sealed, _ = cluster.logical_queue(0).segments
    assert sealed.end == 25
    assert len(cluster.consume("b", 0)) == 25


def test_what_a_fenced_leader_holds_is_on_disk_before_its_end_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where flushing is asynchronous and the disk slow: whoever reads the end early reads no wrong one."""
    cluster = MovingCluster("a", "b", flush="async")
    cluster.world.checks.clear()
    cluster.make_topic({0: "a", 1: "b"})
    cluster.network.cut_link("10.0.1.1", "10.0.0.1")
    cluster.network.cut_link("10.0.0.1", "10.0.1.1")
    force_queue(cluster, "b")
    node, mappings, log = cluster.brokers["a"], cluster.components["a"].mappings, cluster.stores["a"].queue(TOPIC, 0)
    node.environment.disk_latency.sync_ms = (300, 300)
    change, seen = mappings.change, []

    def look(mapping: TopicMapping, **rest: Any) -> int:
        if mapping.queues[0].leader.broker == "b":
            seen.append((log.get_entry(log.offset_max - 1)[0], node.synced))
        return change(mapping, **rest)

    monkeypatch.setattr(mappings, "change", look)
    done = cluster.produce(0, 200, "a")
    cluster.run(20)
    cluster.network.mend()
    cluster.run(200)
    cluster.components["a"].forced_moves.suspect(TOPIC)
    assert cluster.run(10_000, done)

    assert state(cluster, "a") == "elsewhere"
    assert [last < synced for last, synced in seen] == [True]


def test_an_operator_gives_up_what_a_dead_leader_may_hold() -> None:
    """Readers go on behind the end that was named. It is too late for the broker to name another."""
    cluster = a_cluster()
    cluster.kill("a")
    force_queue(cluster, "b")
    cluster.run(5_000, cluster.produce(0, 2, "b"))
    order = AbandonRequest(topic=TOPIC, queue=0, generation=0, end=5)

    answer = cluster.request("b", RequestCode.ABANDON_QUEUE, order)
    cluster.restart("a")
    cluster.run(10_000)

    assert answer.code == ResponseCode.SUCCESS
    assert cluster.logical_queue(0).segments[0].end == 5
    assert len(cluster.consume("b", 0)) == 7
    assert cluster.request("b", RequestCode.ABANDON_QUEUE, order).code == ResponseCode.SUCCESS
    other = AbandonRequest(topic=TOPIC, queue=0, generation=0, end=7)
    assert cluster.request("b", RequestCode.ABANDON_QUEUE, other).code == ResponseCode.ILLEGAL_OPERATION


def test_an_end_that_was_told_to_a_leader_who_died_with_it_is_asked_for() -> None:
    """Its broker has told it, and sees no reason to tell it again."""
    cluster = a_cluster("a", "b", "c")
    cluster.kill("a")
    force_queue(cluster, "b")
    before = segments_of(cluster, 0, "b")
    cluster.restart("a")
    cluster.run(10_000)
    assert cluster.logical_queue(0).segments[0].end == 10
    cluster.kill("b")

    force_queue(cluster, "c", source="b", segments=before)
    assert cluster.logical_queue(0).segments[0].end is None
    cluster.run(2 * CHECK_MS)

    assert cluster.logical_queue(0).segments[0].end == 10


def test_whoever_remembers_only_its_own_homes_learns_of_the_others_when_it_is_made_leader() -> None:
    """A broker whose part of a queue has expired keeps no list of the others' parts: that was the leader's business."""
    cluster = a_cluster("a", "b", "c")
    cluster.move("a", "c", 0)
    cluster.run(10_000, cluster.are_moves_finished)
    cluster.move("c", "b", 0)
    cluster.run(10_000, cluster.are_moves_finished)
    mappings = cluster.components["c"].mappings
    mapping = mappings.find(TOPIC)
    assert mapping is not None
    mappings.change(mapping.with_queues(mapping.queues[0].reduce_to("c")))
    assert "a" not in {segment.broker for segment in mapping.queues[0].reduce_to("c").segments}
    cluster.kill("b")

    force_queue(cluster, "c", source="b")

    assert [segment.broker for segment in cluster.logical_queue(0).readable] == ["a", "b", "c"]
    assert len(list(decode_records(cluster.pull("c", 0, 0).body))) == 10


def test_only_a_leader_fixes_ends() -> None:
    """Anybody else would decide about what is not its own."""
    cluster = a_cluster()

    answer = cluster.request("b", RequestCode.ABANDON_QUEUE, AbandonRequest(topic=TOPIC, queue=0, generation=0, end=5))

    assert answer.code == ResponseCode.ILLEGAL_OPERATION


def test_a_move_whose_target_died_is_ended_by_force() -> None:
    """It was granted, and nobody can say whether it was opened: the third broker goes on, behind a gap."""
    cluster = a_cluster("a", "b", "c")
    move = cluster.move("a", "b", 0)
    assert cluster.run(5_000, lambda: state(cluster, "a") == "sealed")
    cluster.kill("b")
    cluster.run(500)

    force_queue(cluster, "c")
    cluster.run(3 * CHECK_MS)

    assert cluster.leader(0) == "c"
    assert state(cluster, "a") == "elsewhere"
    assert cluster.moves("a")[move.id].state == "failed"
    assert [segment.broker for segment in cluster.logical_queue(0).readable] == ["a", "b", "c"]
    cluster.acked.clear()
    cluster.run(5_000, cluster.produce(0, 2, "a"))
    assert len(cluster.acked) == 2


def test_after_a_restart_sends_wait_until_name_servers_were_asked() -> None:
    """Somebody may have been made leader meanwhile. They are held, not refused."""
    cluster = a_cluster()
    cluster.kill("a")
    cluster.run(100)

    cluster.restart("a")
    done = cluster.produce(0, 12, "a")

    assert cluster.open_brokers(0) == []
    assert cluster.run(5_000, done)
    assert (cluster.refused, cluster.unknown_outcomes) == ([], [])
    assert cluster.open_brokers(0) == ["a"]


def test_a_restarted_leader_takes_sends_within_a_second() -> None:
    """Asking name servers and peers is a matter of round trips."""
    cluster = a_cluster()
    cluster.kill("a")
    cluster.run(100)

    cluster.restart("a")

    assert cluster.run(1_000, lambda: cluster.open_brokers(0) == ["a"])


def test_without_any_name_server_a_restarted_leader_takes_no_sends_and_says_what_it_waits_for() -> None:
    """Somebody may have been made leader meanwhile, and nobody can tell. When one answers it goes on by itself."""
    cluster = a_cluster()
    cluster.name_server.kill()
    cluster.kill("a")
    cluster.run(100)

    cluster.restart("a")
    cluster.run(60_000)
    answer = cluster.call("a", a_send(TOPIC, queue=0))

    assert cluster.open_brokers(0) == []
    assert answer.code == ResponseCode.SYSTEM_BUSY
    assert answer.remark == (
        f"queue 0 of T waits until a name server confirms that a still leads it ({NAMESRV} asked);"
        " try again in a moment"
    )
    cluster.name_server.start()
    assert cluster.run(4_000, lambda: cluster.open_brokers(0) == ["a"])


def test_everything_can_be_restarted_at_once() -> None:
    """A lone broker with a lone name server too: nobody waits for somebody who waits for him."""
    for names in (("a",), ("a", "b")):
        cluster = MovingCluster(*names)
        cluster.make_topic({0: "a", 1: names[-1]})
        for node in (cluster.name_server, *cluster.brokers.values()):
            node.kill()
        cluster.run(1_000)

        for node in (*cluster.brokers.values(), cluster.name_server):
            node.start()

        opened = [["a"], [names[-1]]]
        assert cluster.run(3_000, lambda cluster=cluster, opened=opened: [*map(cluster.open_brokers, (0, 1))] == opened)


def test_a_name_server_that_lost_its_folder_lets_brokers_open_once_they_registered() -> None:
    """A dead broker makes the topic incomplete there for ever; those that live go on."""
    cluster = a_cluster()
    cluster.name_server.kill()
    for node in cluster.brokers.values():
        node.kill()
    assert cluster.name_server.disk is not None
    cluster.name_server.disk.remove(STATIC_FILE)

    cluster.name_server.start()
    cluster.restart("a")

    assert cluster.run(3_000, lambda: cluster.open_brokers(0) == ["a"])


def test_a_name_server_that_has_not_heard_of_the_topic_confirms_nothing() -> None:
    """It answers, and knows of no other leader, because it knows of none at all."""
    cluster = a_cluster()
    cluster.name_server.kill()
    cluster.kill("a")
    cluster.kill("b")
    assert cluster.name_server.disk is not None
    cluster.name_server.disk.remove(STATIC_FILE)
    cluster.name_server.start()

    cluster.restart("a")
    assert cluster.run(1_000, lambda: bool(ways(cluster)))
    cluster.network.delay(ways(cluster)[0], 5_000)  # the first: on it the broker registers
    cluster.run(4_000)

    assert cluster.components["a"].view.has_answer(), "it was asked, and answered"
    assert cluster.open_brokers(0) == []
    assert cluster.run(5_000, lambda: cluster.open_brokers(0) == ["a"])


def ways(cluster: MovingCluster) -> list[Socket]:
    """Return the connections of a to the name server."""
    found = cluster.network.connections()
    return [one for one in found if one.owner.host == "10.0.1.1" and one.peer.owner.host == "10.0.0.1"]


def test_a_delayed_message_waits_with_the_queue() -> None:
    """What the broker itself writes is a write, too."""
    cluster = a_cluster()
    assert cluster.call("a", a_send(TOPIC, queue=0, body=b"late", i="DELAY\x011\x02")).code == ResponseCode.SUCCESS
    cluster.name_server.kill()
    cluster.kill("a")
    cluster.restart("a")
    cluster.run(20_000)
    log = cluster.components["a"].mappings.placement(TOPIC, 0).queue_index
    assert log is not None
    assert log.offset_max == 10

    cluster.name_server.start()

    assert cluster.run(20_000, lambda: log.offset_max == 11)


def test_a_gap_is_no_lag() -> None:
    """How far a group is behind is a number of messages; the gap is told beside it. Java's tool subtracts by itself."""
    cluster = a_cluster()
    cluster.kill("a")
    force_queue(cluster, "b")
    cluster.run(5_000, cluster.produce(0, 3, "b"))
    cluster.components["b"].groups.put_all([GroupConfig(group_name="consumers")])
    cluster.commit("b", 0, 4)

    logical = consume_stats(cluster, lo="true")
    physical = consume_stats(cluster, language="JAVA", version=495)
    old = consume_stats(cluster, language="JAVA", version=407)

    end = FORCED_GAP + 3
    assert (logical["brokerOffset"], logical["consumerOffset"], logical["gap"]) == (end, 4, end - 4 - 3)
    assert physical["brokerOffset"] + FORCED_GAP - physical["consumerOffset"] == 3
    assert old["brokerOffset"] - old["consumerOffset"] == 3
    assert "gap" not in physical.keys() | old.keys()
    answer = cluster.request("b", RequestCode.GET_BROKER_CONSUME_STATS, None, isOrder="false")
    assert b'"totalDiff":3,' in bytes(answer.body)


def consume_stats(
    cluster: MovingCluster, *, language: str = "PYTHON", version: int = 0, **fields: str
) -> dict[str, int]:
    """Return what b tells of queue 0, which is its physical queue 1."""
    asked = {"consumerGroup": "consumers", "topic": TOPIC} | fields
    command = Command(code=RequestCode.GET_CONSUME_STATS, fields=asked, language=language, version=version)
    answer = cluster.call("b", command)
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    head, _, rest = bytes(answer.body).partition(b'"queueId":1' if version >= 413 else b'"queueId":0')
    assert head
    row: dict[str, int] = msgspec.json.decode(rest[rest.index(b":{") + 1 : rest.index(b"}", rest.index(b":{")) + 1])
    return row


def test_a_leader_that_waits_for_a_name_server_says_so_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not within the second that a name server may take to start; and again when its queues are open."""
    cluster = a_cluster()
    cluster.name_server.kill()
    cluster.kill("a")
    cluster.run(100)
    cluster.restart("a")
    lines: list[str] = []
    forced_moves = cluster.components["a"].forced_moves
    monkeypatch.setattr(forced_moves, "_log", lambda _level, event, **_fields: lines.append(event))

    cluster.run(500)
    assert lines == []
    cluster.run(10_000)
    assert lines == ["queues not opened"]
    cluster.name_server.start()
    cluster.run(4_000)

    assert lines == ["queues not opened", "queues opened after all"]


def test_a_fenced_leader_that_restarts_reports_its_end_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its new leader was not there to hear it, and need not ask."""
    cluster = a_cluster()
    cluster.kill("a")
    force_queue(cluster, "b")
    monkeypatch.setattr(ForcedMoves, "_report_end", do_nothing)
    monkeypatch.setattr(ForcedMoves, "_fetch_ends", do_nothing)
    cluster.restart("a")
    cluster.run(10_000)
    assert (state(cluster, "a"), cluster.logical_queue(0).segments[0].end) == ("elsewhere", None)
    cluster.kill("a")
    monkeypatch.undo()

    monkeypatch.setattr(ForcedMoves, "_fetch_ends", do_nothing)
    cluster.restart("a")
    cluster.run(10_000)

    assert cluster.logical_queue(0).segments[0].end == 10


async def do_nothing(*_: object) -> None:
    """Stand in for a call that reaches nobody."""
