"""A replica logs in before it gets the log, and follows no master that has not proven to be one."""

import random

import pytest
from tests.support.access import CLIENT_NONCE, CLUSTER_SECRET, SECRET, Users, log_in, role_secrets
from tests.support.cluster.broker_machine import BrokerHarness, a_send
from tests.support.cluster.replica_machines import ReplicaPair, log_bytes

from holdfast.access.role_secrets import RoleSecrets
from holdfast.broker.replication.ha_master import PURPOSE, TIMER
from holdfast.broker.replication.ha_replica import TIMER as FOLLOWING_TIMER
from holdfast.broker.replication.stream_login import FRAME_SIZE_MAX, LOGIN_MAX_MS, MAGIC, is_trusted, parse_trusted
from holdfast.machine.effects import CloseChannel, Log
from holdfast.machine.events import ChannelClosed, ChannelId, ChannelOpened, StreamReceived
from holdfast.model.access.user import CLUSTER_USER
from holdfast.model.errors import ConfigError
from holdfast.wire.access.login import client_proof
from holdfast.wire.cluster.ha import encode_report
from holdfast.wire.frames.codes import RequestCode
from holdfast.wire.frames.command import Command, decode_command, encode_command
from holdfast.wire.frames.frame import split_frames

OTHER = RoleSecrets(role_secrets().new_nonce, ("the-secret-of-another-cluster",))
NONE = RoleSecrets.none(random.Random(1))
STREAM = ChannelId(50)


def a_broker(*, auth: bool = True, secrets: RoleSecrets | None = None, **options: object) -> BrokerHarness:
    return BrokerHarness(auth=auth, secrets=secrets or role_secrets(), **options)  # type: ignore[arg-type]


def a_pair(master: BrokerHarness, **options: object) -> ReplicaPair:
    """Return a master with a message, and a replica."""
    master.make_topic("T")
    Users(master).add("producer", "Topic:T Pub")
    log_in(master, 1, "producer")
    assert [answer.code for answer in master.call(a_send("T"))] == [0]
    master.sync()
    settings: dict[str, object] = {"auth": True, "secrets": role_secrets()} | options
    return ReplicaPair(master, **settings)  # type: ignore[arg-type]


def try_to_follow(pair: ReplicaPair) -> None:
    pair.connect()
    pair.exchange()


def test_a_replica_that_logs_in_gets_the_log() -> None:
    """In whatever pieces the bytes arrive."""
    pair = a_pair(a_broker())

    try_to_follow(pair)

    assert pair.state == "following"
    assert log_bytes(pair.replica) == log_bytes(pair.master) != b""


@pytest.mark.parametrize("secrets", [OTHER, NONE], ids=["other", "none"])
def test_a_stranger_gets_no_byte_of_the_log(secrets: RoleSecrets) -> None:
    pair = a_pair(a_broker(), auth=False, secrets=secrets)

    for _ in range(3):
        try_to_follow(pair)
        assert pair.is_closed_by(pair.master) or pair.is_closed_by(pair.replica)
        pair.disconnect()
        pair.pass_time(2_000)

    assert pair.state != "following"
    assert pair.replica.store.written == 0
    assert not pair.master.components.ha_master.had_replica


def test_a_replica_with_access_control_follows_no_master_without_the_secret() -> None:
    pair = a_pair(a_broker(auth=False, secrets=OTHER))

    try_to_follow(pair)

    assert pair.is_closed_by(pair.replica)
    pair.disconnect()
    assert pair.state == "waiting"
    (line,) = [
        effect for effect in pair.replica.effects if isinstance(effect, Log) and effect.event.startswith("master")
    ]
    assert "login" in str(line.fields["reason"])
    assert CLUSTER_SECRET not in str(line.fields)


def test_without_access_control_an_older_master_is_followed_after_one_attempt() -> None:
    """So a cluster gets its secret server by server."""
    pair = a_pair(a_broker(auth=False, secrets=OTHER), auth=False)

    try_to_follow(pair)
    pair.disconnect()
    pair.pass_time(2_000)
    try_to_follow(pair)

    assert pair.state == "following"


def test_a_master_without_access_control_admits_replicas_that_know_no_login() -> None:
    pair = a_pair(a_broker(auth=False), auth=False, secrets=NONE)

    try_to_follow(pair)

    assert pair.state == "following"


def test_java_replicas_and_masters_are_trusted_by_their_address() -> None:
    """They know no login: the stream begins as upstream's."""
    pair = a_pair(a_broker(trusted_brokers=("10.0.0.8",)), trusted_brokers=("10.0.0.0/8",))

    try_to_follow(pair)

    assert pair.state == "following"
    assert pair.replica.components.ha_replica.is_following


class Stranger:
    """A connection to the replication port of a master with access control."""

    def __init__(self, master: BrokerHarness) -> None:
        self.master = master
        master.streams[STREAM] = bytearray()
        master.feed(ChannelOpened(STREAM, "192.0.2.7:4711", master.now_ms, None, PURPOSE))

    def send(self, data: bytes) -> bytes:
        self.master.streams[STREAM].clear()
        self.master.feed(StreamReceived(STREAM, memoryview(data), self.master.now_ms))
        return bytes(self.master.streams[STREAM])

    def call(self, command: Command, prefix: bytes = b"") -> Command:
        frames, _ = split_frames(memoryview(self.send(prefix + encode_command(command))))
        return decode_command(frames[0])

    @property
    def is_closed(self) -> bool:
        return CloseChannel(STREAM) in self.master.effects


def login_of(user: str) -> Command:
    return Command(code=RequestCode.LOGIN, fields={"user": user, "clientNonce": CLIENT_NONCE})


def proof_of(user: str, secret: str, nonce: str) -> Command:
    proof = client_proof(secret, user, CLIENT_NONCE, nonce)
    return Command(code=RequestCode.LOGIN_PROOF, fields={"user": user, "proof": proof})


def test_a_user_is_not_a_replica() -> None:
    """Not even a Super user."""
    master = a_broker()
    Users(master).add("admin", is_super=True)
    stranger = Stranger(master)
    nonce = stranger.call(login_of("admin"), MAGIC).fields["serverNonce"]
    assert stranger.call(proof_of("admin", SECRET, nonce)).code == 0

    stranger.send(encode_report(0) * 4)

    assert stranger.is_closed or stranger.send(b"") == b""
    assert not master.components.ha_master.replicas[STREAM].has_begun


def test_a_recorded_proof_is_not_accepted_again() -> None:
    master = a_broker()
    stranger = Stranger(master)
    nonce = stranger.call(login_of(CLUSTER_USER), MAGIC).fields["serverNonce"]
    proof = proof_of(CLUSTER_USER, CLUSTER_SECRET, nonce)
    assert stranger.call(proof).code == 0
    master.feed(ChannelClosed(STREAM, master.now_ms))

    other = Stranger(master)
    other.call(login_of(CLUSTER_USER), MAGIC)
    assert other.call(proof).code == 16
    assert not master.components.ha_master.replicas[STREAM].has_begun


@pytest.mark.parametrize(
    "data",
    [
        encode_report(0),
        encode_report(1 << 40),
        b"\xfeHFLOGON" + bytes(8),
        MAGIC + encode_command(Command(code=RequestCode.SEND_MESSAGE)),
        MAGIC + (FRAME_SIZE_MAX * 2).to_bytes(4, "big"),
        MAGIC + b"\x00\x00\x00\x05\x00\x00\x00\x01{",
        MAGIC + encode_command(Command(code=RequestCode.LOGIN)),
        b"GET / HTTP/1.1\r\n\r\n",
    ],
)
def test_a_connection_that_begins_otherwise_is_closed(data: bytes) -> None:
    master = a_broker()
    stranger = Stranger(master)

    for byte in data:
        if not stranger.is_closed:
            stranger.send(bytes([byte]))

    assert stranger.is_closed
    assert stranger.send(encode_report(0)) == b""


def test_a_login_that_takes_too_long_ends() -> None:
    """Though it drips."""
    master = a_broker()
    stranger = Stranger(master)

    for byte in MAGIC:
        stranger.send(bytes([byte]))
        master.pass_time(LOGIN_MAX_MS // 7, TIMER)

    assert stranger.is_closed


def test_a_master_that_does_not_answer_is_left() -> None:
    pair = a_pair(a_broker())
    pair.connect()

    pair.pass_time(LOGIN_MAX_MS, FOLLOWING_TIMER, TIMER)

    assert pair.is_closed_by(pair.replica)


def test_a_trusted_address_and_a_server_have_proven_enough() -> None:
    """No limit for unproven connections ends their streams."""
    for trusted in (("192.0.2.7",), ()):
        master = a_broker(trusted_brokers=trusted)
        stranger = Stranger(master)
        unproven = master.components.sessions.unproven
        unproven[STREAM] = master.now_ms
        if not trusted:
            nonce = stranger.call(login_of(CLUSTER_USER), MAGIC).fields["serverNonce"]
            assert unproven
            stranger.call(proof_of(CLUSTER_USER, CLUSTER_SECRET, nonce))
        else:
            stranger.send(encode_report(0))
        assert not unproven


def test_trusted_brokers_are_addresses_or_blocks() -> None:
    trusted = parse_trusted(["10.0.0.0/8", "2001:db8::1"])

    assert is_trusted("10.1.2.3", trusted)
    assert is_trusted("2001:db8::1", trusted)
    assert not is_trusted("192.0.2.1", trusted)
    assert not is_trusted("broker.example", trusted)
    with pytest.raises(ConfigError, match="trusted_brokers"):
        parse_trusted(["broker.example"])
