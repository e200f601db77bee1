"""A relayed request has the rights of its client at every broker, by the word of the broker that relays it."""

from __future__ import annotations

import pytest
from tests.support.access import Users, log_in, log_in_as_server, role_secrets, signed
from tests.support.cluster.broker_machine import a_pull, a_send
from tests.support.cluster.broker_machines import TOPIC, StaticBrokers
from tests.support.cluster.machine import codes, logs

from holdfast.access.door import REFUSED
from holdfast.machine.effects import Effect, SendBytes
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.frames.command import Command, decode_command, encode_command
from holdfast.wire.frames.fields import from_fields, to_fields
from holdfast.wire.frames.frame import split_frames
from holdfast.wire.requests.relay import RelayFields

NO = int(ResponseCode.NO_PERMISSION)


@pytest.fixture
def brokers() -> StaticBrokers:
    """Queue 0 is led by a, queue 1 by b; alice may send to it and pull it, and bob may not."""
    cluster = StaticBrokers("a", "b", auth=True, secrets=role_secrets())
    for broker in cluster.brokers.values():
        Users(broker).add("alice", f"Topic:{TOPIC} Pub,Sub", "Group:consumers Sub")
        Users(broker).add("bob")
    cluster.create("a", "b")
    return cluster


def envelopes(effects: list[Effect]) -> list[RelayFields]:
    """Return the headers of the envelopes among what a broker has sent."""
    found = []
    for effect in effects:
        if isinstance(effect, SendBytes):
            frames, _ = split_frames(memoryview(b"".join(bytes(piece) for piece in effect.pieces)))
            commands = [decode_command(frame) for frame in frames]
            found += [from_fields(RelayFields, it.fields) for it in commands if it.code == RequestCode.RELAY]
    return found


@pytest.mark.parametrize("is_signed", [True, False])
def test_a_relayed_send_is_stored_as_its_clients(brokers: StaticBrokers, *, is_signed: bool) -> None:
    """Its user and its address travel with it."""
    asked = brokers["a"]
    if not is_signed:
        log_in(asked, 1, "alice")
    send = a_send(TOPIC, queue=1)

    (answer,) = asked.call(signed(send, "alice") if is_signed else send)

    assert answer.code == 0, answer.remark
    assert brokers["b"].store.queue(TOPIC, 0).next_offset == 1
    (envelope,) = envelopes(asked.effects)
    assert (envelope.user, envelope.client) == ("alice", "10.0.0.1:5000")


def test_what_the_first_broker_refuses_is_not_relayed(brokers: StaticBrokers) -> None:
    """The client has been checked there."""
    asked = brokers["a"]
    log_in(asked, 1, "bob")

    answers = asked.call(a_send(TOPIC, queue=1), a_pull(TOPIC, queue=1))

    assert codes(answers) == [NO, NO]
    assert envelopes(asked.effects) == []


def test_the_last_broker_asks_its_own_door(brokers: StaticBrokers) -> None:
    """It may have learnt of a change before the broker that relays."""
    asked, leader = brokers["a"], brokers["b"]
    log_in(asked, 1, "alice")
    Users(leader).revoke("alice")

    (sent,) = asked.call(a_send(TOPIC, queue=1))
    (pulled,) = asked.call(a_pull(TOPIC, queue=1))

    assert (sent.code, pulled.code) == (NO, NO)
    assert leader.store.queue(TOPIC, 0).next_offset == 0
    assert {(line.fields["user"], line.fields["peer"]) for line in logs(leader.effects, REFUSED)} == {
        ("alice", "10.0.0.1:5000")
    }


def test_an_envelope_contains_requests_of_one_user(brokers: StaticBrokers) -> None:
    """Several may sign on one connection: each envelope vouches for one of them."""
    asked = brokers["a"]
    for broker in brokers.brokers.values():
        Users(broker).add("carol", f"Topic:{TOPIC} Pub")
    Users(brokers["b"]).revoke("carol")

    answers = asked.call(
        signed(a_send(TOPIC, queue=1, opaque=1), "alice"),
        signed(a_send(TOPIC, queue=1, opaque=2), "carol"),
        signed(a_send(TOPIC, queue=1, opaque=3), "alice"),
    )

    assert sorted((it.opaque, it.code) for it in answers) == [(1, 0), (2, NO), (3, 0)]
    assert {envelope.user for envelope in envelopes(asked.effects)} == {"alice", "carol"}


def test_a_relayed_long_poll_is_refused_at_the_leader_when_the_permission_is_gone(brokers: StaticBrokers) -> None:
    """It waits there."""
    asked, leader = brokers["a"], brokers["b"]
    log_in(asked, 1, "alice")
    assert asked.call(a_pull(TOPIC, queue=1, sysFlag="6")) == []
    assert len(leader.components.pull_handler.parked_pulls) == 1

    Users(leader).revoke("alice")
    brokers.deliver_all()

    assert codes(asked.pop_answers(1)) == [NO]


def test_a_relayed_long_poll_gets_nothing_when_its_secret_has_ended(brokers: StaticBrokers) -> None:
    """The leader, where it waits, does not know with which secret the user has logged in: the first broker does."""
    asked = brokers["a"]
    log_in(asked, 1, "alice")
    assert asked.call(a_pull(TOPIC, queue=1, sysFlag="6")) == []

    for broker in brokers.brokers.values():
        Users(broker).update("alice", secret="a-new-secret-of-alice")
    (sent,) = brokers["b"].call(
        signed(a_send(TOPIC, queue=1), "alice", "a-new-secret-of-alice"), channel=brokers["b"].connect()
    )
    brokers.deliver_all()

    assert sent.code == 0
    assert [(it.code, it.body) for it in asked.pop_answers(1)] == [(NO, b"")]


def test_a_send_held_during_a_move_stays_that_of_its_sender(brokers: StaticBrokers) -> None:
    """Somebody else may have logged in on the connection when it is processed."""
    broker = brokers["a"]
    log_in(broker, 1, "alice")
    broker.components.relay.hold(TOPIC, [0])
    assert broker.call(a_send(TOPIC, queue=0, opaque=7)) == []
    log_in(broker, 1, "bob")
    broker.pop_answers(1)

    broker.components.relay.release(TOPIC, [0])
    broker.pass_time(0, "stats")

    assert [(it.opaque, it.code) for it in broker.pop_answers(1)] == [(7, 0)]


def an_envelope(user: str) -> Command:
    fields = RelayFields(source="x", boot=5, number=1, client="9.8.7.6:5432", user=user, topic=TOPIC, queue=0)
    return Command(code=RequestCode.RELAY, fields=to_fields(fields), body=encode_command(a_send(TOPIC, queue=0)))


@pytest.mark.parametrize(("user", "code"), [("alice", 0), ("bob", NO), ("nobody", NO), ("", NO)])
def test_a_server_vouches_for_a_user_and_not_for_its_rights(brokers: StaticBrokers, user: str, code: int) -> None:
    """The requests in the envelope pass the door as that user. An empty name is an anonymous client."""
    broker = brokers["a"]
    channel = broker.connect()
    log_in_as_server(broker, channel)

    (answer,) = broker.call(an_envelope(user), channel=channel)

    frames, _ = split_frames(memoryview(answer.body))
    assert [decode_command(frame).code for frame in frames] == [code]


def test_without_access_control_a_broker_vouches_for_who_has_proven_who_it_is() -> None:
    """While access control is switched on broker by broker, clients of the others keep their rights."""
    cluster = StaticBrokers("a", "b", secrets=role_secrets())
    cluster.create("a", "b")
    asked = cluster["a"]
    Users(asked).add("alice")

    asked.call(signed(a_send(TOPIC, queue=1, opaque=1), "alice"))
    asked.call(a_send(TOPIC, queue=1, opaque=2))
    log_in(asked, 1, "alice")
    asked.call(a_send(TOPIC, queue=1, opaque=3))

    assert [envelope.user for envelope in envelopes(asked.effects)] == ["alice", "", "alice"]
