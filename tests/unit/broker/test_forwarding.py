"""Delayed and transactional messages whose logical queue moved away meanwhile."""

from __future__ import annotations

import pytest
from tests.support.broker_desk import a_send
from tests.support.static_desks import TOPIC, StaticDesks

from holdfast.wire.command import Command
from holdfast.wire.properties import parse_properties


def let_time_pass(desks: StaticDesks, milliseconds: int, *timers: str) -> None:
    """Let time pass everywhere, in steps that let calls and pauses go on."""
    for _ in range(8):
        for desk in desks.desks.values():
            desk.pass_time(milliseconds // 8, *timers, "pauses", "calls")
        desks.settle()


def a_delayed(body: bytes) -> Command:
    return a_send(TOPIC, queue=0, body=body, i="UNIQ_KEY\x01k\x02DELAY\x011\x02")


def bodies(desks: StaticDesks) -> list[bytes]:
    return [body for _, body in desks.read_all(0)]


@pytest.fixture
def desks() -> StaticDesks:
    desks = StaticDesks("a", "b")
    desks.create("a", "b")
    return desks


def test_a_delayed_message_carries_its_logical_queue(desks: StaticDesks):
    """At the leader it is delivered there, with the next logical offset."""
    desks.send(0, b"first")
    desks.move(0, "b")
    (answer,) = desks["b"].ask(a_delayed(b"later"))
    before = bodies(desks)

    let_time_pass(desks, 2_000, "delays")

    assert answer.code == 0
    assert (before, bodies(desks)) == ([b"first"], [b"first", b"later"])


def test_a_delayed_message_follows_its_queue(desks: StaticDesks):
    """It is sent to the new leader when it is due, and is not delayed again."""
    desks["a"].ask(a_delayed(b"later"))
    desks.move(0, "b")
    desks.send(0, b"first")

    let_time_pass(desks, 2_000, "delays")

    assert bodies(desks) == [b"first", b"later"]
    let_time_pass(desks, 4_000, "delays")
    assert bodies(desks) == [b"first", b"later"]


def test_a_delayed_message_waits_for_a_leader_that_is_away(desks: StaticDesks):
    """It is neither lost nor put where it does not belong."""
    desks["a"].ask(a_delayed(b"later"))
    desks.move(0, "b")
    desks.go_down("b")
    let_time_pass(desks, 4_000, "delays")
    lost = [effect for effect in desks["a"].effects if "lost" in str(effect)]
    desks["b"].is_up = True
    desks.introduce(desks["a"])

    let_time_pass(desks, 8_000, "delays")

    assert lost == []
    assert bodies(desks) == [b"later"]


def test_a_committed_message_follows_its_queue(desks: StaticDesks):
    """The half message stays where it was taken; what it becomes goes to whoever leads."""
    let_time_pass(desks, 800, "transactions")
    half = a_send(TOPIC, queue=0, body=b"half", f="4", i="UNIQ_KEY\x01k\x02TRAN_MSG\x01true\x02PGROUP\x01producers\x02")
    (sent,) = desks["a"].ask(half)
    desks.move(0, "b")

    position = int(sent.fields["msgId"][-16:], 16)
    (*answers,) = desks["a"].ask(
        Command(
            code=37,
            fields={
                "producerGroup": "producers",
                "tranStateTableOffset": sent.fields["queueOffset"],
                "commitLogOffset": str(position),
                "commitOrRollback": "8",
                "msgId": "k",
            },
        )
    )

    assert [answer.code for answer in answers] == [0]
    assert bodies(desks) == [b"half"]
    log = desks["b"].store.find_queue(TOPIC, desks.queue(0).leader.queue_id)
    assert log is not None
    record = desks["b"].store.read_record(log.get_entry(0)[0])
    assert record is not None
    assert "REAL_TOPIC" not in parse_properties(record.properties.decode())
