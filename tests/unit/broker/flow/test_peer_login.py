"""A broker logs in where it dials, and uses no peer that it does not trust."""

import random

import pytest

from holdfast.access.role_secrets import RoleSecrets
from holdfast.broker.flow.peer_login import LoginResult, LoginSettings, PeerLogin, login_settings
from holdfast.broker.flow.rpc import LOGIN_TIMEOUT_MS, REDIAL_MS, TIMER, CallOutcome, Rpc
from holdfast.machine.effects import CloseChannel, Log, OpenChannel, SendBytes, SetTimer
from holdfast.machine.events import ChannelId
from holdfast.machine.security_options import SecurityOptions
from holdfast.machine.turn import Turn
from holdfast.model.access.credentials import Credentials
from holdfast.model.access.user import CLUSTER_USER
from holdfast.model.errors import PeerFailed
from holdfast.wire.access.login import client_proof, server_proof
from holdfast.wire.access.signature import verify
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.frames.command import Command, decode_command, response
from holdfast.wire.frames.frame import split_frames

SECRET = "the secret of the cluster"
OLDER = "the secret of last year"
INNER = Credentials("inner-user", "inner-secret")
PEER = "10.0.0.2:10911"
NONCE = "A" * 43 + "="


def settings(*secrets: str, is_required: bool = True, inner: Credentials | None = None) -> LoginSettings:
    return LoginSettings(RoleSecrets(random.Random(1).randbytes, secrets or (SECRET,)), is_required, inner)


class Server:
    """The peer: answers logins, and other requests with success."""

    def __init__(self, *secrets: str) -> None:
        self.secrets = secrets
        self.client_nonce = ""
        self.target = ""

    def answer(self, command: Command) -> Command:
        if command.code == RequestCode.LOGIN:
            self.client_nonce, self.target = command.fields["clientNonce"], command.fields.get("target", "")
            assert command.fields["user"] == CLUSTER_USER
            return response(command, fields={"serverNonce": NONCE, "server": "b", "method": "HMAC-SHA256"})
        if command.code == RequestCode.LOGIN_PROOF:
            for secret in self.secrets:
                if command.fields["proof"] == client_proof(secret, CLUSTER_USER, self.client_nonce, NONCE, self.target):
                    proof = server_proof(secret, CLUSTER_USER, self.client_nonce, NONCE, self.target)
                    return response(command, fields={"proof": proof})
            return response(command, ResponseCode.NO_PERMISSION, "check signature failed.")
        return response(command, body=command.body)


class Dialer:
    """Calls with a login, and a peer that answers them."""

    def __init__(self, login: LoginSettings, server: Server | None = None) -> None:
        self.turn = Turn(1_000)
        self.trusted: list[ChannelId] = []
        self.rpc = Rpc(self.turn, login, self.trusted.append)
        self.server = server or Server(SECRET)
        self.channel = ChannelId(7)
        self.outcomes: list[CallOutcome] = []
        self.received: list[Command] = []

    def call(self, waiter: str, deadline_ms: int = 60_000) -> None:
        command = Command(code=RequestCode.GET_BROKER_RUNTIME_INFO, body=waiter.encode())
        assert self.rpc.call_peer(PEER, command, waiter, deadline_ms)

    def open(self) -> None:
        self.channel = ChannelId(self.channel + 1)
        self.rpc.channel_opened(self.channel, PEER)

    def pop_sent(self) -> list[Command]:
        """Return the requests that were sent since the last call."""
        effects, kept = self.turn.drain_effects(), []
        data = b""
        for effect in effects:
            if isinstance(effect, SendBytes):
                data += b"".join(bytes(piece) for piece in effect.pieces)
            else:
                kept.append(effect)
        self.turn.effects += kept
        sent = [decode_command(frame) for frame in split_frames(memoryview(data))[0]]
        self.received += sent
        return sent

    def exchange(self) -> None:
        """Let the peer answer until nothing more is sent."""
        while sent := self.pop_sent():
            for command in sent:
                self.outcomes += self.rpc.handle_response(self.channel, self.server.answer(command))

    def codes(self) -> list[int]:
        return [command.code for command in self.received]

    def dials(self) -> int:
        return sum(isinstance(effect, OpenChannel) for effect in self.turn.effects)

    def pass_time(self, milliseconds: int) -> None:
        self.turn.now_ms += milliseconds
        self.outcomes += self.rpc.on_timer()


def test_the_login_comes_before_all_requests() -> None:
    dialer = Dialer(settings())
    dialer.call("first")
    dialer.open()
    dialer.call("second")
    assert not dialer.rpc.is_connected(PEER)

    dialer.exchange()

    assert dialer.codes() == [7060, 7061, 28, 28]
    assert [outcome.waiter for outcome in dialer.outcomes] == ["first", "second"]
    assert dialer.trusted == [dialer.channel]
    assert dialer.rpc.is_trusted(PEER)


def test_the_secret_is_never_sent() -> None:
    dialer = Dialer(settings())
    dialer.call("first")
    dialer.open()
    dialer.exchange()

    assert SECRET not in str(dialer.received)
    assert SECRET not in repr(settings())


def test_the_older_secret_is_used_where_the_newer_one_is_not_known_yet() -> None:
    dialer = Dialer(settings(SECRET, OLDER), Server(OLDER))
    dialer.call("first")
    dialer.open()

    dialer.exchange()

    assert dialer.codes() == [7060, 7061, 7060, 7061, 28]
    assert dialer.trusted == [dialer.channel]


class Deceiver(Server):
    """Accepts every proof, without knowing the secret."""

    def answer(self, command: Command) -> Command:
        if command.code == RequestCode.LOGIN_PROOF:
            return response(command, fields={"proof": server_proof("a guess", CLUSTER_USER, self.client_nonce, NONCE)})
        return super().answer(command)


class Java(Server):
    """Knows no login."""

    def answer(self, command: Command) -> Command:
        if command.code in {RequestCode.LOGIN, RequestCode.LOGIN_PROOF}:
            return response(command, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "request type 7060 not supported")
        return super().answer(command)


class Babbler(Server):
    """Answers anything."""

    def answer(self, command: Command) -> Command:
        return response(command, fields={"serverNonce": "x", "proof": "y"})


@pytest.mark.parametrize("server", [Server("another secret of a cluster"), Deceiver(), Java(), Babbler()])
def test_with_access_control_an_unproven_peer_gets_no_request(server: Server) -> None:
    dialer = Dialer(settings(), server)
    dialer.call("first")
    dialer.open()
    dialer.exchange()

    assert 28 not in dialer.codes()
    ((waiter, failure),) = [(outcome.waiter, outcome.result) for outcome in dialer.outcomes]
    assert waiter == "first"
    assert isinstance(failure, PeerFailed)
    assert failure.is_unsent
    assert CloseChannel(dialer.channel) in dialer.turn.effects
    assert dialer.trusted == []


@pytest.mark.parametrize("server", [Server("another secret of a cluster"), Deceiver(), Java(), Babbler()])
def test_without_access_control_an_unproven_peer_is_used_but_not_trusted(server: Server) -> None:
    dialer = Dialer(settings(is_required=False), server)
    dialer.call("first")
    dialer.open()
    dialer.exchange()

    assert [outcome.waiter for outcome in dialer.outcomes] == ["first"]
    assert dialer.trusted == []
    assert not dialer.rpc.is_trusted(PEER)
    assert [effect.level for effect in dialer.turn.effects if isinstance(effect, Log)] == ["warning"]


def test_requests_to_java_servers_are_signed_if_that_is_configured() -> None:
    dialer = Dialer(settings(inner=INNER), Java())
    dialer.call("waits for the login")
    dialer.open()
    dialer.exchange()
    dialer.call("later")
    dialer.exchange()

    requests = [command for command in dialer.received if command.code == 28]
    assert [verify(command, [INNER.secret_key.encode()]) for command in requests] == [True, True]
    assert not dialer.rpc.is_trusted(PEER)


def test_after_a_failed_login_the_peer_is_dialed_again_once_a_second_has_passed() -> None:
    """However many requests there are: they wait for the next attempt."""
    dialer = Dialer(settings(), Deceiver())
    dialer.call("first")
    dialer.open()
    dialer.exchange()
    assert dialer.dials() == 1

    for number in range(100):
        dialer.call(str(number))
    dialer.rpc.channel_closed(dialer.channel)
    dialer.pass_time(REDIAL_MS - 1)
    assert dialer.dials() == 1

    dialer.pass_time(1)
    assert dialer.dials() == 2
    dialer.server = Server(SECRET)
    dialer.outcomes.clear()
    dialer.open()
    dialer.exchange()
    assert [outcome.waiter for outcome in dialer.outcomes] == [str(number) for number in range(100)]


def test_a_request_that_waited_too_long_for_a_login_is_never_sent() -> None:
    dialer = Dialer(settings())
    dialer.call("late", deadline_ms=1_500)
    dialer.call("patient")
    dialer.open()

    dialer.pass_time(1_000)
    ((waiter, failure),) = [(outcome.waiter, outcome.result) for outcome in dialer.outcomes]
    assert waiter == "late"
    assert isinstance(failure, PeerFailed)
    assert failure.is_unsent

    dialer.exchange()
    assert [command.body for command in dialer.received if command.code == 28] == [b"patient"]


def test_a_peer_that_does_not_answer_the_login_is_given_up() -> None:
    dialer = Dialer(settings())
    dialer.call("first")
    dialer.open()
    assert SetTimer(TIMER, 1_000 + LOGIN_TIMEOUT_MS) in dialer.turn.effects

    dialer.pass_time(LOGIN_TIMEOUT_MS)

    assert [outcome.waiter for outcome in dialer.outcomes] == ["first"]
    assert CloseChannel(dialer.channel) in dialer.turn.effects


def test_requests_that_waited_for_a_login_are_unsent_if_the_connection_is_lost() -> None:
    dialer = Dialer(settings())
    dialer.call("first")
    dialer.open()

    (outcome,) = dialer.rpc.channel_closed(dialer.channel)

    assert isinstance(outcome.result, PeerFailed)
    assert outcome.result.is_unsent


def test_answers_that_are_not_to_the_login_are_ignored_during_it() -> None:
    """A peer that has proven nothing completes no call."""
    dialer = Dialer(settings())
    dialer.call("first")
    dialer.open()
    (login,) = dialer.pop_sent()

    for opaque in range(10):
        if opaque != login.opaque:
            assert dialer.rpc.handle_response(dialer.channel, Command(code=0, opaque=opaque, flag=1)) == []


def test_the_settings_follow_the_options() -> None:
    secrets = RoleSecrets(random.Random(1).randbytes, (SECRET,), INNER)

    assert login_settings(SecurityOptions(auth=True), RoleSecrets.none(random.Random(1))) is None
    assert login_settings(SecurityOptions(), secrets) == LoginSettings(secrets, is_required=False)
    assert login_settings(SecurityOptions(auth=True), secrets) == LoginSettings(secrets, is_required=True)
    signing = login_settings(SecurityOptions(auth=True, java_peers="sign"), secrets)
    assert signing is not None
    assert signing.inner_credentials == INNER


@pytest.mark.parametrize(("configured", "target"), [((), PEER), ((PEER,), None)])
def test_a_login_names_an_address_that_others_may_have_chosen(configured: tuple[str, ...], target: str | None) -> None:
    """An operator may configure a name that the server does not know of itself."""
    secrets = settings().secrets
    chosen = login_settings(SecurityOptions(auth=True), secrets, configured)
    assert chosen is not None

    request = PeerLogin(chosen, PEER).begin()

    assert request.fields.get("target") == target


def test_a_refused_login_says_what_to_do() -> None:
    login = PeerLogin(settings(), PEER)
    login.begin()

    result = login.advance(Command(code=ResponseCode.REQUEST_CODE_NOT_SUPPORTED, flag=1))

    assert isinstance(result, LoginResult)
    assert "java_peers" in result.problem
