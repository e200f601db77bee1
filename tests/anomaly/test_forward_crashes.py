"""Whoever dies between the forwarding of a message and the note that it was forwarded: it is delivered once.

A delayed message, or a half one, is taken by a; its queue moves to b; when it is due, or committed, a sends it there. A
crash may come at every step of that, on either side, before and after either has it on disk.
"""

import pytest
from tests.support.cluster.broker_machine import a_send
from tests.support.cluster.simulated import TOPIC, MovingCluster

from holdfast.model.errors import HoldfastError
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.frames.command import Command

STEPS = range(1, 24, 2)
DELAYED = [f"later-{number}".encode() for number in range(4)]
HALF = b"half"


def a_cluster(*names: str) -> MovingCluster:
    cluster = MovingCluster(*(names or ("a", "b")))
    cluster.make_topic({0: "a", 1: "b"})
    return cluster


def move(cluster: MovingCluster, source: str, target: str) -> None:
    cluster.move(source, target, 0)
    assert cluster.run(10_000, cluster.are_moves_finished)


def schedule(cluster: MovingCluster) -> int:
    """Send delayed messages to a; return when they are due."""
    for body in DELAYED:
        properties = f"UNIQ_KEY\x01{body.decode()}\x02DELAY\x011\x02"
        assert cluster.call("a", a_send(TOPIC, queue=0, body=body, i=properties)).code == ResponseCode.SUCCESS
    return cluster.world.now_ms + 1_000


def die(cluster: MovingCluster, victim: str) -> None:
    """Let the broker that is to die do so, and start it again a second later."""
    cluster.run(4_000, lambda: not cluster.is_up(victim))
    cluster.run(1_000)
    cluster.restart(victim)


@pytest.mark.parametrize("how", ["kill", "power"])
@pytest.mark.parametrize("victim", ["a", "b"])
@pytest.mark.parametrize("step", STEPS)
def test_a_delayed_message_is_delivered_once(victim: str, step: int, how: str) -> None:
    """The schedule is gone through again from where it was saved; the leader knows what it has, after a restart too."""
    cluster = a_cluster()
    due_ms = schedule(cluster)
    move(cluster, "a", "b")
    cluster.run(due_ms - cluster.world.now_ms - 10)

    cluster.kill_before(victim, step, how)
    die(cluster, victim)
    cluster.run(15_000)

    assert sorted(cluster.consume("b", 0)) == DELAYED


@pytest.mark.parametrize("step", range(1, 24, 3))
def test_a_delayed_message_is_delivered_once_although_its_queue_moves_on(step: int) -> None:
    """The names of what was taken go along, to a broker that restarts, and back to where the messages came from."""
    cluster = a_cluster("a", "b", "c")
    due_ms = schedule(cluster)
    move(cluster, "a", "b")
    cluster.run(due_ms - cluster.world.now_ms - 10)
    cluster.kill_before("a", step)
    cluster.run(4_000, lambda: not cluster.is_up("a"))

    move(cluster, "b", "c")
    cluster.pull("c", 0, 0)
    cluster.commit("c", 0, 1)
    cluster.run(5_000)  # What was committed is saved: nothing else of the move is needed any more.
    cluster.kill("c")
    cluster.restart("c")
    cluster.run(3_000)
    if step % 2:
        cluster.restart("a")
        cluster.run(15_000)
    else:
        cluster.restart("a")
        cluster.components["a"].delayed_delivery.forwarder = None  # It gets to it only when it leads the queue again.
        cluster.run(3_000)
        move(cluster, "c", "a")
        cluster.components["a"].delayed_delivery.forwarder = cluster.components["a"].forwarder
        cluster.run(15_000)

    assert sorted(cluster.consume("b", 0)) == DELAYED


def test_what_was_delivered_before_the_queue_left_is_not_forwarded_after_a_crash() -> None:
    """It is in a home that is still here."""
    cluster = a_cluster()
    schedule(cluster)
    cluster.run(4_000, lambda: len(cluster.read(0)) == len(DELAYED))
    move(cluster, "a", "b")

    cluster.kill("a")
    cluster.brokers["a"].disk.replace("config/delayOffset.json", b'{"offsetTable":{},"position":0}')  # type: ignore[union-attr]
    cluster.restart("a")
    cluster.run(15_000)

    assert sorted(cluster.consume("b", 0)) == DELAYED


def decision(sent: Command) -> Command:
    """Return the word that a half message is committed."""
    return Command(
        code=RequestCode.END_TRANSACTION,
        fields={
            "producerGroup": "producers",
            "tranStateTableOffset": sent.fields["queueOffset"],
            "commitLogOffset": str(int(sent.fields["msgId"][-16:], 16)),
            "commitOrRollback": "8",
            "msgId": "k",
        },
    )


@pytest.mark.parametrize("victim", ["a", "b"])
@pytest.mark.parametrize("step", range(1, 12))
def test_a_committed_message_is_delivered_once(victim: str, step: int) -> None:
    """Its producer, who heard nothing, says so again until it hears something."""
    cluster = a_cluster()
    cluster.run(2_000)
    half = a_send(TOPIC, queue=0, body=HALF, f="4", i="UNIQ_KEY\x01k\x02TRAN_MSG\x01true\x02PGROUP\x01producers\x02")
    sent = cluster.call("a", half)
    move(cluster, "a", "b")

    cluster.kill_before(victim, step)
    cluster.call_later("a", decision(sent))
    die(cluster, victim)
    cluster.run(10_000)
    for _ in range(3):
        try:
            cluster.call("a", decision(sent))
        except HoldfastError:
            continue
    cluster.run(10_000)

    assert cluster.consume("b", 0) == [HALF]
