"""Delayed and transactional messages whose logical queue moved away meanwhile."""

from __future__ import annotations

import pytest
from tests.support.broker_clients import a_heartbeat, connect_client, pop_requests
from tests.support.cluster.broker_machine import a_send
from tests.support.cluster.broker_machines import TOPIC, StaticBrokers
from tests.unit.broker.deferred.test_remote_transactions import decide, send_half

from holdfast.broker.messages.writer import Draft
from holdfast.broker.relay.message_forwarder import Origin
from holdfast.model.topic import FORWARD_TOPIC
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.frames.command import Command, encode_command
from holdfast.wire.frames.fields import to_fields
from holdfast.wire.frames.host import format_host
from holdfast.wire.records.properties import parse_properties
from holdfast.wire.requests.forward import ForwardFields


def let_time_pass(desks: StaticBrokers, milliseconds: int, *timers: str) -> None:
    """Let time pass everywhere, in steps that let calls and pauses go on."""
    for _ in range(8):
        for desk in desks.brokers.values():
            desk.pass_time(milliseconds // 8, *timers, "pauses", "calls")
        desks.deliver_all()


def a_delayed(body: bytes) -> Command:
    return a_send(TOPIC, queue=0, body=body, i="UNIQ_KEY\x01k\x02DELAY\x011\x02")


def bodies(desks: StaticBrokers) -> list[bytes]:
    return [body for _, body in desks.read_all(0)]


@pytest.fixture
def desks() -> StaticBrokers:
    desks = StaticBrokers("a", "b")
    desks.create("a", "b")
    return desks


def test_a_delayed_message_carries_its_logical_queue(desks: StaticBrokers):
    """At the leader it is delivered there, with the next logical offset."""
    desks.send(0, b"first")
    desks.move(0, "b")
    (answer,) = desks["b"].call(a_delayed(b"later"))
    before = bodies(desks)

    let_time_pass(desks, 2_000, "delays")

    assert answer.code == 0
    assert (before, bodies(desks)) == ([b"first"], [b"first", b"later"])


def test_a_delayed_message_follows_its_queue(desks: StaticBrokers):
    """It is sent to the new leader when it is due, and is not delayed again."""
    desks["a"].call(a_delayed(b"later"))
    desks.move(0, "b")
    desks.send(0, b"first")

    let_time_pass(desks, 2_000, "delays")

    assert bodies(desks) == [b"first", b"later"]
    let_time_pass(desks, 4_000, "delays")
    assert bodies(desks) == [b"first", b"later"]


def test_a_delayed_message_waits_for_a_leader_that_is_away(desks: StaticBrokers):
    """It is neither lost nor put where it does not belong."""
    desks["a"].call(a_delayed(b"later"))
    desks.move(0, "b")
    desks.kill("b")
    let_time_pass(desks, 4_000, "delays")
    lost = [effect for effect in desks["a"].effects if "lost" in str(effect)]
    desks["b"].is_up = True
    desks.announce_addresses(desks["a"])

    let_time_pass(desks, 8_000, "delays")

    assert lost == []
    assert bodies(desks) == [b"later"]


def test_a_committed_message_follows_its_queue(desks: StaticBrokers):
    """The half message stays where it was taken; what it becomes goes to whoever leads."""
    let_time_pass(desks, 800, "transactions")
    half = a_send(TOPIC, queue=0, body=b"half", f="4", i="UNIQ_KEY\x01k\x02TRAN_MSG\x01true\x02PGROUP\x01producers\x02")
    (sent,) = desks["a"].call(half)
    desks.move(0, "b")

    position = int(sent.fields["msgId"][-16:], 16)
    (*answers,) = desks["a"].call(
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


def a_forward(position: int, body: bytes = b"later") -> Command:
    """Return a message that broker c sends to the leader of queue 0."""
    fields = ForwardFields(source="c", stream="level 1", position=position, settled=0, topic=TOPIC, queue_id=0)
    return Command(code=RequestCode.FORWARD_MESSAGE, fields=to_fields(fields), body=body)


def test_a_forwarded_message_is_taken_once(desks: StaticBrokers):
    """However often it is sent: its sender may not have heard the answer."""
    answers = [desks["a"].call(a_forward(position))[-1].code for position in (7, 7, 8, 7)]

    assert answers == [0, 0, 0, 0]
    assert bodies(desks) == [b"later", b"later"]


def test_a_forwarded_message_is_not_known_before_it_is_on_disk():
    """Its sender, who did not hear the answer and asks again, would forget it, and a power cut take it."""
    desks = StaticBrokers("a", flush="sync")
    desks.create("a")
    desk = desks["a"]
    data = encode_command(a_forward(7))
    desk.send_bytes(data)

    (too_early,) = desk.send_bytes(data)
    desk.sync()
    (again,) = desk.send_bytes(data)

    assert (too_early.code, again.code) == (ResponseCode.SYSTEM_BUSY, 0)
    assert bodies(desks) == [b"later"]


def test_a_forwarded_message_goes_to_the_leader_by_way_of_others(desks: StaticBrokers):
    """As any request does; the one that passes it on stores nothing, and knows no name."""
    desks.move(0, "b")

    (answer,) = desks["a"].call(a_forward(7))

    assert answer.code == 0
    assert bodies(desks) == [b"later"]
    assert desks["a"].store.find_queue(FORWARD_TOPIC, 0) is None


def test_a_forwarded_message_that_cannot_be_stored_has_no_name_yet(desks: StaticBrokers):
    """It is refused as any message is, and taken when it comes again."""
    desks["a"].pressure.is_high = True
    (refused,) = desks["a"].call(a_forward(7))
    desks["a"].pressure.is_high = False
    desks["a"].answers[1].clear()

    (taken,) = desks["a"].call(a_forward(7))

    assert (refused.code, taken.code) == (ResponseCode.SYSTEM_BUSY, 0)
    assert bodies(desks) == [b"later"]


def test_a_forwarded_message_looks_as_if_it_had_been_delivered_here(desks: StaticBrokers):
    """Its properties, its sender and its time are those of the message that was sent."""
    desks["a"].call(a_delayed(b"later"))
    desks.move(0, "b")
    let_time_pass(desks, 2_000, "delays")

    log = desks["b"].store.find_queue(TOPIC, desks.queue(0).leader.queue_id)
    assert log is not None
    record = desks["b"].store.read_record(log.get_entry(0)[0])
    assert record is not None
    properties = parse_properties(record.properties.decode())
    assert (properties["UNIQ_KEY"], properties["REAL_TOPIC"]) == ("k", TOPIC)
    assert format_host(record.born_host) == "10.0.0.1:5000"


def test_a_half_message_keeps_its_name_when_its_sender_is_asked(desks: StaticBrokers, monkeypatch: pytest.MonkeyPatch):
    """It is stored anew for that. Whoever has it, of which nobody was told, recognises it all the same."""
    monkeypatch.setattr("holdfast.broker.deferred.transactions._FORWARD_PAUSES_MS", (10,))
    let_time_pass(desks, 800, "transactions")
    connect_client(desks["b"], 7, a_heartbeat("producer", producer_group="p"))
    sent, forwards = send_half(desks, "b", "K1"), desks["b"].components.forwarder
    send = forwards.send

    async def send_unheard(draft: Draft, origin: Origin) -> bool:
        await send(draft, origin)
        return False

    with monkeypatch.context() as patched:
        patched.setattr(forwards, "send", send_unheard)
        decide(desks, "b", sent, "K1")
        let_time_pass(desks, 800, "transactions")
    stored = bodies(desks)
    let_time_pass(desks, 16_000, "transactions")
    question = pop_requests(desks["b"], 7)[-1]
    again = {name: question.fields[name] for name in ("tranStateTableOffset", "commitLogOffset")}
    decide(desks, "b", sent, "K1", **again)
    let_time_pass(desks, 800, "transactions")

    assert again["tranStateTableOffset"] != sent.fields["queueOffset"], "a copy"
    assert stored == bodies(desks) == [b"K1"]
    assert desks["b"].components.transaction_handler.undecided_count == 0
