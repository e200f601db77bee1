"""A login proves who uses a connection, once: no part of it can be used again."""

from __future__ import annotations

import random

import pytest
from tests.support.access import (
    CLIENT_NONCE,
    CLUSTER_SECRET,
    SECRET,
    Users,
    begin_login,
    guarded_broker,
    guarded_name_server,
    log_in,
    log_in_as_server,
)
from tests.support.cluster.broker_machine import BrokerHarness, a_send
from tests.support.cluster.machine import MachineHarness, logs

from holdfast.access.login_server import LOGIN_FAILED, REQUIRED_FIELD
from holdfast.access.role_secrets import RoleSecrets
from holdfast.broker.flow.peer_login import LoginSettings, PeerLogin
from holdfast.model.access.user import CLUSTER_USER
from holdfast.wire.access.login import client_proof, is_server_proof
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.frames.command import Command

REFUSED = (ResponseCode.NO_PERMISSION, "check signature failed.")


@pytest.fixture
def desk() -> BrokerHarness:
    broker = guarded_broker()
    broker.make_topic("T")
    Users(broker).add("alice", "Topic:T Pub")
    return broker


def prove(desk: MachineHarness, channel: int, user: str, proof: str) -> Command:
    return desk.request(RequestCode.LOGIN_PROOF, {"user": user, "proof": proof}, channel=channel)


def may_send(desk: BrokerHarness, channel: int) -> bool:
    (answer,) = desk.call(a_send(), channel=channel)
    return answer.code == 0


def reasons(desk: MachineHarness) -> list[object]:
    return [line.fields["reason"] for line in logs(desk.effects, LOGIN_FAILED)]


def test_after_a_login_requests_need_no_signature(desk: BrokerHarness) -> None:
    """On that connection, and on no other."""
    other = desk.connect()

    answer = log_in(desk, 1, "alice")

    assert answer.code == 0
    assert may_send(desk, 1)
    assert not may_send(desk, other)


def test_the_server_proves_that_it_knows_the_secret_too(desk: BrokerHarness) -> None:
    """Its proof is another one than the client's: it cannot be the client's, sent back."""
    nonce = begin_login(desk, 1, "alice")["serverNonce"]
    proof = client_proof(SECRET, "alice", CLIENT_NONCE, nonce)

    answer = prove(desk, 1, "alice", proof)

    assert is_server_proof(SECRET, "alice", CLIENT_NONCE, nonce, answer.fields["proof"])
    assert answer.fields["proof"] != proof


def test_a_recorded_proof_is_refused_the_second_time(desk: BrokerHarness) -> None:
    """Even on its own connection: the nonce is forgotten by the first attempt."""
    nonce = begin_login(desk, 1, "alice")["serverNonce"]
    proof = client_proof(SECRET, "alice", CLIENT_NONCE, nonce)
    assert prove(desk, 1, "alice", proof).code == 0

    again = prove(desk, 1, "alice", proof)

    assert (again.code, again.remark) == REFUSED
    assert may_send(desk, 1), "the login before it is not hurt"


@pytest.mark.parametrize("role", ["broker", "name server"])
def test_a_login_that_is_meant_for_another_server_is_refused(role: str) -> None:
    """A process that has registered itself as a broker cannot pass on the login of a broker that dials it."""
    server = guarded_broker() if role == "broker" else guarded_name_server()
    own, foreign = server.connect(), server.connect()
    secrets = RoleSecrets(random.Random(1).randbytes, (CLUSTER_SECRET,))

    def pass_on(channel: int, dialed: str) -> Command:
        victim = PeerLogin(LoginSettings(secrets), dialed)
        first = victim.begin()
        proof = victim.advance(server.request(RequestCode.LOGIN, first.fields, channel=channel))
        assert isinstance(proof, Command)
        return server.request(RequestCode.LOGIN_PROOF, proof.fields, channel=channel)

    refused = pass_on(foreign, "10.6.6.6:10911")
    accepted = pass_on(own, "127.0.0.1:10911")

    assert (refused.code, refused.remark) == REFUSED
    assert "10.6.6.6:10911" in str(reasons(server)[0])
    assert (accepted.code == 0) == (role == "broker")


def test_a_wrong_proof_uses_the_nonce_up(desk: BrokerHarness) -> None:
    """A secret cannot be guessed with one nonce."""
    nonce = begin_login(desk, 1, "alice")["serverNonce"]
    prove(desk, 1, "alice", client_proof("another-secret", "alice", CLIENT_NONCE, nonce))

    right = prove(desk, 1, "alice", client_proof(SECRET, "alice", CLIENT_NONCE, nonce))

    assert (right.code, right.remark) == REFUSED


def test_a_proof_for_another_connection_is_refused(desk: BrokerHarness) -> None:
    """Each connection has a nonce of its own."""
    other = desk.connect()
    nonce = begin_login(desk, 1, "alice")["serverNonce"]
    begin_login(desk, other, "alice")

    answer = prove(desk, other, "alice", client_proof(SECRET, "alice", CLIENT_NONCE, nonce))

    assert (answer.code, answer.remark) == REFUSED


def test_a_login_cannot_be_begun_as_one_user_and_ended_as_another(desk: BrokerHarness) -> None:
    """The proof of a weak user must not open the door for a strong one."""
    Users(desk).add("root", is_super=True)
    nonce = begin_login(desk, 1, "alice")["serverNonce"]

    answer = prove(desk, 1, "root", client_proof(SECRET, "root", CLIENT_NONCE, nonce))

    assert (answer.code, answer.remark) == REFUSED


def test_a_nonce_is_valid_for_ten_seconds(desk: BrokerHarness) -> None:
    """Whoever answers later begins anew."""
    early, late = desk.connect(), desk.connect()
    nonces = {channel: begin_login(desk, channel, "alice")["serverNonce"] for channel in (early, late)}
    proofs = {channel: client_proof(SECRET, "alice", CLIENT_NONCE, nonce) for channel, nonce in nonces.items()}

    desk.pass_time(9_999)
    in_time = prove(desk, early, "alice", proofs[early])
    desk.pass_time(1)
    too_late = prove(desk, late, "alice", proofs[late])

    assert in_time.code == 0
    assert (too_late.code, too_late.remark) == REFUSED
    assert reasons(desk) == ["the login took longer than 10 s"]


def test_every_nonce_is_another_one(desk: BrokerHarness) -> None:
    """A nonce that comes again would make a recorded proof valid again."""
    nonces = [begin_login(desk, 1, "alice")["serverNonce"] for _ in range(20)]

    assert len(set(nonces)) == 20


def test_a_refused_login_reveals_nothing_to_the_client_and_the_reason_to_the_operator(desk: BrokerHarness) -> None:
    """Wrong secret, unknown or disabled user: one answer. The log names user, address and reason, and no secret."""
    Users(desk).update("alice", is_enabled=False)
    Users(desk).add("bob")

    answers = [log_in(desk, 1, "alice"), log_in(desk, 1, "nobody"), log_in(desk, 1, "bob", "a-guess-of-mine")]

    assert {(answer.code, answer.remark) for answer in answers} == {REFUSED}
    lines = [line.fields for line in logs(desk.effects, LOGIN_FAILED)]
    assert [(line["user"], line["reason"]) for line in lines] == [
        ("alice", "disabled user"),
        ("nobody", "unknown user"),
        ("bob", "wrong secret"),
    ]
    assert {line["peer"] for line in lines} == {"10.0.0.1:5000"}
    assert "a-guess-of-mine" not in repr(desk.effects)
    counted = {sample.name: sample.value for sample in desk.components.metrics()}
    assert (counted["broker_login_failures"], counted["broker_logins"]) == (3, 0)


def test_a_refused_login_leaves_the_earlier_one_as_it_is(desk: BrokerHarness) -> None:
    """A client that tries a new secret too early works on with the old one."""
    log_in(desk, 1, "alice")

    answer = log_in(desk, 1, "alice", "a-new-secret-of-alice")

    assert (answer.code, answer.remark) == REFUSED
    assert may_send(desk, 1)


def test_the_last_login_on_a_connection_counts(desk: BrokerHarness) -> None:
    """Rights are not added up."""
    Users(desk).add("bob")
    log_in(desk, 1, "alice")

    log_in(desk, 1, "bob")

    assert not may_send(desk, 1)


def test_during_a_rotation_both_secrets_are_accepted(desk: BrokerHarness) -> None:
    """Then the old one ends, with all sessions that used it."""
    users, new = Users(desk), "a-new-secret-of-alice"
    old_channel, new_channel = desk.connect(), desk.connect()
    users.update("alice", secret=new, keeps_old=True)
    assert [log_in(desk, old_channel, "alice").code, log_in(desk, new_channel, "alice", new).code] == [0, 0]
    assert may_send(desk, old_channel)

    users.update("alice", keeps_old=False)

    assert not may_send(desk, old_channel)
    assert may_send(desk, new_channel)
    assert log_in(desk, old_channel, "alice").code == ResponseCode.NO_PERMISSION
    assert log_in(desk, old_channel, "alice", new).code == 0
    assert may_send(desk, old_channel)


@pytest.mark.parametrize("nonce", ["", "AAAA", "not base64 at all!", "A" * 1000])
def test_a_client_needs_a_nonce_of_the_right_size(desk: BrokerHarness, nonce: str) -> None:
    """A short one would be the same again one day."""
    answer = desk.request(RequestCode.LOGIN, {"user": "alice", "clientNonce": nonce}, channel=1)

    assert answer.code == ResponseCode.INVALID_PARAMETER


def test_a_proof_without_a_beginning_is_refused(desk: BrokerHarness) -> None:
    """There is no nonce to prove anything with."""
    answer = prove(desk, 1, "alice", "AAAA")

    assert (answer.code, answer.remark) == REFUSED
    assert reasons(desk) == ["no login was begun on this connection"]


@pytest.mark.parametrize("build", [guarded_broker, guarded_name_server])
def test_a_server_logs_in_with_the_secret_of_the_cluster(build: type) -> None:
    """And with nothing else: there is no such user."""
    server: MachineHarness = build()
    channel = server.connect()

    wrong = log_in(server, channel, CLUSTER_USER, SECRET)
    log_in_as_server(server, channel)

    assert (wrong.code, wrong.remark) == REFUSED
    assert server.request(RequestCode.GET_DR_SWITCH, channel=channel).code != ResponseCode.NO_PERMISSION


def test_a_role_without_a_cluster_secret_knows_no_servers() -> None:
    """An empty secret would be known to everybody."""
    desk = BrokerHarness(auth=True)

    assert log_in(desk, 1, CLUSTER_USER, CLUSTER_SECRET).code == ResponseCode.NO_PERMISSION
    assert log_in(desk, 1, CLUSTER_USER, "").code == ResponseCode.NO_PERMISSION
    assert reasons(desk) == ["no cluster secret here"] * 2


def test_without_access_control_a_login_is_possible_but_not_required() -> None:
    """Clients get their secrets before access control is switched on."""
    desk = BrokerHarness()
    desk.make_topic("T")
    Users(desk).add("alice")

    begun = begin_login(desk, 1, "alice")
    answer = log_in(desk, 1, "alice")

    assert begun[REQUIRED_FIELD] == "false"
    assert answer.code == 0
    assert may_send(desk, 1), "without any right"
    assert begin_login(guarded_broker(), 1, "alice")[REQUIRED_FIELD] == "true"


def test_what_was_begun_on_a_closed_connection_is_forgotten(desk: BrokerHarness) -> None:
    """However many clients begin and leave."""
    server = desk.components.listeners("channel_closed")
    assert server
    for _ in range(100):
        channel = desk.connect()
        begin_login(desk, channel, "alice")
        desk.disconnect(channel)

    login_server = next(it for it in desk.components._built if type(it).__name__ == "LoginServer")
    assert login_server._challenges == {}  # type: ignore[attr-defined]
