"""With leases a dead leader is replaced by itself, and never are there two who take sends of one queue."""

import pytest
from tests.support.cluster.broker_machine import a_send
from tests.support.cluster.simulated import TOPIC, MovingCluster, force_queue

from holdfast.model.mapping import FORCED_GAP
from holdfast.nameserver.cluster.queue_leases import FILE
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.requests.moves import DrainRequest

LEASE_MS = 30_000


def a_cluster(*names: str, name_servers: int = 1, auto_force: bool = True) -> MovingCluster:
    """Four queues, of which a leads 0 and 1, and b the others; three messages are in each."""
    cluster = MovingCluster(*(names or ("a", "b")), name_servers=name_servers, auto_force=auto_force)
    cluster.make_topic({0: "a", 1: "a", 2: "b", 3: "b"})
    for queue, leader in enumerate("aabb"):
        assert cluster.run(5_000, cluster.produce(queue, 3, leader)), "leases are there at once"
    return cluster


def leaders(cluster: MovingCluster) -> list[str]:
    return ["".join(cluster.open_brokers(queue)) for queue in range(4)]


def cut_off(cluster: MovingCluster, *hosts: str) -> None:
    """Let nothing pass between *hosts* and everybody else but clients."""
    everybody = {node.host for node in (*cluster.name_servers, *cluster.brokers.values())}
    for inside in hosts:
        for outside in everybody - {*hosts}:
            cluster.network.cut_link(inside, outside)
            cluster.network.cut_link(outside, inside)


def test_a_dead_leader_is_replaced_after_two_leases():
    """Its queues open elsewhere behind the gap, as an operator would have opened them."""
    cluster = a_cluster()

    cluster.kill("a")
    cluster.run(2 * LEASE_MS - 10_000)
    assert leaders(cluster) == ["", "", "b", "b"], "it may come back"

    assert cluster.run(25_000, lambda: leaders(cluster) == ["b"] * 4)
    cluster.run(5_000, cluster.produce(0, 1, "b"))
    assert cluster.acked[b"0-0"] == (0, FORCED_GAP)


def test_queues_of_a_dead_leader_are_shared_out():
    """Nobody gets all of them."""
    cluster = a_cluster("a", "b", "c")

    cluster.kill("a")

    assert cluster.run(4 * LEASE_MS, lambda: "" not in leaders(cluster))
    assert sorted(leaders(cluster)) == ["b", "b", "b", "c"]


def test_a_broker_that_drains_takes_nothing():
    """The others do, when it is their turn."""
    cluster = a_cluster("a", "b", "c")
    cluster.request("c", RequestCode.SET_DRAINING, DrainRequest(draining=True))

    cluster.kill("a")

    assert cluster.run(6 * LEASE_MS, lambda: leaders(cluster) == ["b"] * 4)


def test_a_leader_that_comes_back_is_fenced_and_what_it_had_is_read_in_its_place():
    """As after a force by hand."""
    cluster = a_cluster()
    cluster.kill("a")
    assert cluster.run(4 * LEASE_MS, lambda: leaders(cluster) == ["b"] * 4)

    cluster.restart("a")
    cluster.run(20_000)

    assert leaders(cluster) == ["b"] * 4
    assert len(cluster.consume("b", 0)) == 3


def test_a_leader_that_comes_back_in_time_goes_on():
    """A restart is no death."""
    cluster = a_cluster()
    cluster.kill("a")
    cluster.run(LEASE_MS)

    cluster.restart("a")

    assert cluster.run(3_000, lambda: leaders(cluster) == ["a", "a", "b", "b"])
    cluster.run(4 * LEASE_MS)
    assert leaders(cluster) == ["a", "a", "b", "b"]


def test_a_leader_that_nobody_hears_stops_before_another_begins():
    """It is alive, and its clients reach it: after one lease it takes nothing, and says why."""
    cluster = a_cluster()  # Its eyes see at every step that no queue is open twice.
    cut_off(cluster, "10.0.1.1")
    cluster.run(LEASE_MS - 5_000)
    before = leaders(cluster)[0]
    cluster.run(10_000)

    answer = cluster.call("a", a_send(TOPIC, queue=0))

    assert before == "a"
    assert leaders(cluster) == ["", "", "b", "b"]
    assert answer.code == ResponseCode.SYSTEM_BUSY
    assert "renew the lease of a" in (answer.remark or "")
    assert cluster.run(4 * LEASE_MS, lambda: leaders(cluster) == ["b"] * 4)
    cluster.network.mend()
    cluster.run(60_000)
    assert leaders(cluster) == ["b"] * 4


def test_a_process_that_was_stopped_takes_nothing_that_came_meanwhile():
    """Its first event after that finds the lease over, whatever timers say."""
    cluster = a_cluster()
    log = cluster.components["a"].mappings.placement(TOPIC, 0).queue_index
    assert log is not None
    seen: list[int] = []

    cluster.brokers["a"].environment.skew_ms += LEASE_MS + 1_000  # All at once, and before any timer.
    got = cluster.call_later("a", a_send(TOPIC, queue=0))
    cluster.world.checks.append(lambda: seen.append(log.next_offset) if leaders(cluster)[0] == "" else None)

    assert cluster.run(5_000, lambda: bool(got))
    assert set(seen) == {3}
    assert leaders(cluster)[0] == "a", "it asked, and was confirmed"


def test_a_clock_that_jumps_makes_nobody_force():
    """Name servers count the time of their own timers."""
    cluster = a_cluster("a", "b", "c")

    for jump_ms in (10 * LEASE_MS, -20 * LEASE_MS):
        for node in (*cluster.name_servers, *cluster.brokers.values()):
            node.environment.skew_ms += jump_ms
            cluster.run(7_000)

    assert cluster.run(5_000, lambda: leaders(cluster) == ["a", "a", "b", "b"])


def test_a_clock_that_went_back_does_not_make_a_lease_longer():
    """Time went on between the other events."""
    cluster = a_cluster()
    cut_off(cluster, "10.0.1.1")

    cluster.brokers["a"].environment.skew_ms -= 100 * LEASE_MS
    cluster.run(LEASE_MS + 3_000)

    assert leaders(cluster)[0] == ""


def test_a_queue_that_moves_is_confirmed_at_its_new_leader_at_once():
    """Whoever hands over has stopped: nobody waits for a lease to end."""
    cluster = a_cluster()
    done = cluster.produce(1, 50, "a", "b")

    cluster.move("a", "b", 1)

    assert cluster.run(5_000, done)
    assert (cluster.refused, cluster.unknown_outcomes) == ([], [])
    assert leaders(cluster)[1] == "b"


def test_whoever_has_no_lease_hands_nothing_over():
    """Somebody else may lead it by now. It goes on when that is known."""
    cluster = a_cluster()
    cluster.network.cut_link("10.0.1.1", "10.0.0.1")
    cluster.network.cut_link("10.0.0.1", "10.0.1.1")
    cluster.run(LEASE_MS + 2_000)

    move = cluster.move("a", "b", 1)
    cluster.run(5_000)
    assert cluster.moves("a")[move.id].state == "planned"
    assert cluster.components["a"].mappings.placement(TOPIC, 1).state == "open"

    cluster.network.mend()
    assert cluster.run(10_000, lambda: leaders(cluster)[1] == "b")


def test_with_three_name_servers_a_dead_one_is_not_missed():
    """Two of three are a majority, for those who lead and for those who take over."""
    cluster = a_cluster("a", "b", name_servers=3)
    cluster.name_servers[1].kill()
    cluster.run(2 * LEASE_MS)
    assert leaders(cluster) == ["a", "a", "b", "b"]

    cluster.kill("a")

    assert cluster.run(4 * LEASE_MS, lambda: leaders(cluster) == ["b"] * 4)


def test_a_minority_of_name_servers_neither_keeps_a_leader_nor_makes_one():
    """It sits with one of three: it stops, and the other side goes on."""
    cluster = a_cluster("a", "b", name_servers=3)

    cut_off(cluster, "10.0.1.1", "10.0.0.1")
    cluster.run(LEASE_MS + 2_000)
    assert leaders(cluster) == ["", "", "b", "b"]

    assert cluster.run(4 * LEASE_MS, lambda: leaders(cluster) == ["b"] * 4)


@pytest.mark.parametrize("loses", ["nothing", "its file"])
def test_a_name_server_that_is_restarted_forgets_no_promise(loses: str):
    """Everything of before may still hold: without its file it confirms nothing for a while."""
    cluster = a_cluster("a", "b")
    cut_off(cluster, "10.0.1.1")
    cluster.run(15_000)
    cluster.name_server.kill()
    if loses == "its file":
        assert cluster.name_server.disk is not None
        cluster.name_server.disk.remove(FILE)

    cluster.name_server.start()
    cluster.run(2 * LEASE_MS - 10_000)
    assert leaders(cluster)[0] == ""

    cluster.run(3 * LEASE_MS)
    assert leaders(cluster)[2:] == ["b", "b"]
    # Who held what is in the file, too: without it nobody is known to have died.
    assert leaders(cluster)[0] == ("" if loses == "its file" else "b")


def test_a_leader_that_wants_no_leases_any_more_is_not_replaced():
    """It is alive, and was restarted with the policy switched off."""
    cluster = a_cluster("a", "b")
    old = cluster.brokers["a"]
    old.kill()

    cluster.options["auto_force"] = False
    cluster.brokers["a"] = cluster.create_broker("a", cluster.address("a"), disk=old.disk)
    cluster.restart("a")
    cluster.run(6 * LEASE_MS)

    assert leaders(cluster) == ["a", "a", "b", "b"]
    assert not cluster.components["a"].lease_renewal.is_enabled


def test_of_two_who_were_told_to_open_a_queue_one_is_confirmed_and_the_other_steps_back():
    """Two operators, or one and a move that nobody had heard of: nothing was taken, so nothing is lost."""
    cluster = a_cluster("a", "b", "c")
    cluster.kill("a")
    cut_off(cluster, cluster.brokers["b"].host)
    answers = [force_queue(cluster, name) for name in "bc"]
    cluster.network.mend()
    assert [answer.code for answer in answers] == [0, 0], "neither knew of the other"
    assert leaders(cluster)[0] == "", "its old leader may still take sends"

    assert cluster.run(3 * LEASE_MS, lambda: leaders(cluster)[0] != "")
    cluster.run(20_000)

    states = sorted(cluster.components[name].mappings.placement(TOPIC, 0).state for name in "bc")
    assert states == ["elsewhere", "open"]
    machine = cluster.name_server.shell.machine  # type: ignore[union-attr]
    assert machine.routes.static.topics[TOPIC].reasons == []  # type: ignore[attr-defined]


def test_without_the_policy_nothing_is_asked_and_nobody_replaced():
    """It is off by default."""
    cluster = a_cluster(auto_force=False)
    cluster.kill("a")

    cluster.run(10 * LEASE_MS)

    assert leaders(cluster) == ["", "", "b", "b"]
    assert not cluster.components["b"].lease_renewal.is_enabled
    assert cluster.name_server.disk is not None
    assert cluster.name_server.disk.read_file(FILE) == b"{}"


def test_queues_of_a_dead_leader_stay_in_their_cluster():
    """At the first turn: brokers of other clusters have none, though they have a topic of that name."""
    clusters = {"a": "east", "b": "east", "x": "west", "y": "west", "z": "west"}
    cluster = MovingCluster(*clusters, clusters=clusters, auto_force=True)
    cluster.make_topic({0: "a", 1: "a", 2: "b", 3: "b"}, scope="east")
    cluster.make_topic({0: "x", 1: "y"}, scope="west")
    cluster.run(5_000)

    cluster.kill("a")

    assert cluster.run(2 * LEASE_MS + 15_000, lambda: all("b" in cluster.open_brokers(queue) for queue in range(4)))
