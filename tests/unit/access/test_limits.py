"""Limits for connections and rates, around a name server."""

import random
from typing import Any

import pytest
from tests.support.access import (
    CLIENT_NONCE,
    SECRET,
    Users,
    log_in,
    log_in_as_server,
    role_secrets,
    signed,
)
from tests.support.cluster.broker_machine import a_send
from tests.support.cluster.broker_machines import TOPIC as STATIC_TOPIC
from tests.support.cluster.broker_machines import StaticBrokers
from tests.support.cluster.machine import MachineHarness, logs

from holdfast.access.limits import (
    BURST_MS,
    CONNECTION_REFUSED,
    PAUSE_MAX_MS,
    THROTTLE_GRACE_MS,
    UNPROVEN_TIMER,
    LimitedRole,
)
from holdfast.machine.effects import CloseChannel, Effect, PauseReading, SetTimer
from holdfast.machine.events import ChannelId, ChannelOpened, FramesReceived, ReadsReceived, TimerFired
from holdfast.machine.security_options import SecurityOptions
from holdfast.nameserver.core import NameServer
from holdfast.nameserver.options import NameServerOptions
from holdfast.wire.access.login import client_proof
from holdfast.wire.frames.codes import RequestCode
from holdfast.wire.frames.command import encode_command
from holdfast.wire.frames.frame import split_frames

CLUSTER = RequestCode.GET_BROKER_CLUSTER_INFO


class Limited(MachineHarness):
    """A name server with limits, and the user `ann`."""

    def __init__(self, **options: Any) -> None:
        settings = NameServerOptions(**{"auth": True, **options})
        role = NameServer(settings, random.Random(7), secrets=role_secrets())
        super().__init__(role)
        self.users = Users(self)
        self.users.add("ann")
        self.limits = LimitedRole(role, settings, role.sessions)
        self.machine = self.limits

    def accept(self, address: str) -> tuple[ChannelId, list[Effect]]:
        """Let a client connect; return its channel, and the effects."""
        channel = ChannelId(len(self.answers) + 1000)
        self.answers[channel] = []
        return channel, self.feed(ChannelOpened(channel, address, self.now_ms))

    def closes(self, effects: list[Effect]) -> list[int]:
        return [effect.channel for effect in effects if isinstance(effect, CloseChannel)]

    def read(self, channel: int, requests: int = 1) -> int:
        """Let one read with *requests* arrive; return for how long the channel is not read then."""
        data = b"".join(encode_command(self.new_request(CLUSTER)) for _ in range(requests))
        return self.waiting(self.receive(channel, data), channel)

    def waiting(self, effects: list[Effect], channel: int) -> int:
        """Return for how long a channel is not read."""
        pauses = [each.until_ms for each in effects if isinstance(each, PauseReading) and each.channel == channel]
        return max(pauses, default=self.now_ms) - self.now_ms

    def begin(self, channel: int, fields: dict[str, str], code: RequestCode) -> dict[str, str]:
        """Send a request of a login; return the fields of what was sent first."""
        self.pop_answers(channel)
        self.receive(channel, encode_command(self.new_request(code, fields)))
        return self.answers[channel][0].fields

    def pop_throttles(self, channel: int) -> list[int]:
        """Return for how long the client on a channel was asked to wait, since the last time."""
        answers = self.pop_answers(channel)
        return [int(each.fields["waitMs"]) for each in answers if each.code == RequestCode.THROTTLE and each.is_one_way]

    def sample(self, name: str, **labels: str) -> float:
        return next(each.value for each in self.limits.samples() if (each.name, each.labels) == (name, labels))


# Connections.


def test_an_address_with_too_many_connections_gets_no_more() -> None:
    """Others do, and so does this one when a connection has ended."""
    server = Limited(connections_per_address_max=2, auth=False)
    first, _ = server.accept("192.0.2.7:1")
    server.accept("192.0.2.7:2")

    third, effects = server.accept("192.0.2.7:3")
    assert server.closes(effects) == [third]
    assert logs(effects, CONNECTION_REFUSED)[0].fields["peer"] == "192.0.2.7:3"
    assert server.closes(server.accept("192.0.2.8:1")[1]) == []

    server.disconnect(third)
    assert server.closes(server.accept("192.0.2.7:4")[1]) != []
    server.disconnect(first)
    server.disconnect(server.accept("192.0.2.9:1")[0])
    assert server.sample("connections_limited", reason="address") == 2


def test_connections_that_the_role_opened_are_not_counted() -> None:
    """Neither for their address nor as unproven."""
    server = Limited(connections_per_address_max=1)
    for channel in (501, 502):
        server.answers[channel] = []
        dialed = ChannelOpened(ChannelId(channel), "192.0.2.7:1", server.now_ms, dialed="192.0.2.7:1")
        assert server.closes(server.feed(dialed)) == []

    assert server.sample("connections_unproven") == 0


def test_too_many_unproven_connections_cost_the_one_that_began_first() -> None:
    """The others have had less time. Who has proven who it is does not count."""
    server = Limited(unproven_connections_max=2)
    proven, oldest, younger = server.connect(), server.connect(), server.connect()
    assert server.closed() == {proven}

    log_in(server, oldest, "ann")
    server.connect()
    assert server.closed() == {proven}

    server.connect()
    assert server.closed() == {proven, younger}
    assert server.sample("connections_limited", reason="crowded") == 2
    assert server.sample("connections_unproven") == 2


def test_an_unproven_connection_ends_in_time() -> None:
    """One that logged in or signs stays; a later one has its own time."""
    server = Limited(unproven_timeout_ms=5_000)
    idle, login, signer = server.connect(), server.connect(), server.connect()
    log_in(server, login, "ann")
    server.receive(signer, encode_command(signed(server.new_request(CLUSTER), "ann")))
    server.now_ms += 1_000
    later = server.connect()

    server.now_ms += 4_000
    effects = server.feed(TimerFired(UNPROVEN_TIMER, server.now_ms))
    assert server.closes(effects) == [idle]
    assert SetTimer(UNPROVEN_TIMER, server.now_ms + 1_000) in effects

    server.disconnect(later)
    server.now_ms += 1_000
    assert server.feed(TimerFired(UNPROVEN_TIMER, server.now_ms)) == []
    _, effects = server.accept("192.0.2.1:7")
    assert SetTimer(UNPROVEN_TIMER, server.now_ms + 5_000) in effects


def test_a_refused_login_proves_nothing() -> None:
    """Nor does a wrong signature."""
    server = Limited(unproven_timeout_ms=5_000)
    login, signer = server.connect(), server.connect()
    assert log_in(server, login, "ann", "wrong").code != 0
    server.receive(signer, encode_command(signed(server.new_request(CLUSTER), "ann", "wrong")))

    server.now_ms += 5_000
    assert server.closes(server.feed(TimerFired(UNPROVEN_TIMER, server.now_ms))) == [login, signer]


def test_without_access_control_nobody_has_to_prove_anything() -> None:
    """No timer, no count."""
    server = Limited(auth=False, connections_per_address_max=9)

    _, effects = server.accept("192.0.2.1:7")

    assert effects == []
    assert server.sample("connections_unproven") == 0


# Rates.


def test_a_user_above_its_rate_is_read_later() -> None:
    """It may use the rate of a second at once; what it owes is paid by waiting."""
    server = Limited(user_requests_max=10)
    channel = server.connect()
    log_in(server, channel, "ann")
    server.now_ms += 10_000

    assert server.read(channel, 10) == 0
    assert server.read(channel, 3) == 300
    server.now_ms += 300
    assert server.read(channel) == 100
    server.now_ms += 10_000
    assert server.read(channel, 10) == 0
    assert server.sample("user_pauses") == 2
    assert server.sample("user_paused_ms") == 400


def test_all_connections_of_a_user_share_its_rate_and_no_other_does() -> None:
    """Also if one logs in and the other signs; a login within a read changes who pays for it."""
    server = Limited(user_requests_max=10)
    server.users.add("bob")
    first, second, other = server.connect(), server.connect(), server.connect()
    log_in(server, first, "ann")
    log_in(server, other, "bob")
    server.now_ms += 10_000

    server.read(first, 10)
    signing = b"".join(encode_command(signed(server.new_request(CLUSTER), "ann")) for _ in range(2))
    assert server.waiting(server.receive(second, signing), second) == 200
    assert server.read(other, 10) == 0


def test_bytes_of_requests_and_answers_are_charged() -> None:
    """A consumer is limited by what it gets."""
    server = Limited(user_bytes_max=2_000)
    channel = server.connect()
    log_in(server, channel, "ann")
    server.now_ms += 10_000
    request = encode_command(server.new_request(CLUSTER))

    effects = server.receive(channel, request * 40)
    size = 40 * (len(request) + len(encode_command(server.pop_answers(channel)[-1])))

    assert server.waiting(effects, channel) == pytest.approx(size / 2 - BURST_MS, abs=60)


def test_reads_of_one_turn_are_charged_to_their_users() -> None:
    """Each to its own."""
    server = Limited(user_requests_max=10)
    server.users.add("bob")
    busy, calm = server.connect(), server.connect()
    log_in(server, busy, "ann")
    log_in(server, calm, "bob")
    server.now_ms += 10_000
    request = encode_command(server.new_request(CLUSTER))
    reads = [
        FramesReceived(channel, split_frames(memoryview(request * count))[0], server.now_ms)
        for channel, count in ((busy, 12), (calm, 1))
    ]

    effects = server.feed(ReadsReceived(reads, server.now_ms))

    assert [server.waiting(effects, channel) for channel in (busy, calm)] == [200, 0]


def test_a_client_that_obeys_throttles_is_asked_to_wait_and_is_read() -> None:
    """What is on its way would time out otherwise. It knows before it has the answers, so before it sends again."""
    server = Limited(user_requests_max=10)
    channel = server.connect()
    log_in(server, channel, "ann", acceptsThrottle="true")
    server.now_ms += 10_000
    server.pop_answers(channel)

    assert server.read(channel, 13) == 0
    assert server.answers[channel][0].code == RequestCode.THROTTLE
    assert len(server.answers[channel]) == 14
    assert server.pop_throttles(channel) == [300]
    server.now_ms += 300
    assert server.read(channel) == 0
    assert server.pop_throttles(channel) == [100]
    server.now_ms += 10_000
    assert server.read(channel, 10) == 0
    assert server.pop_throttles(channel) == []
    assert (server.sample("user_throttles"), server.sample("user_throttled_ms")) == (2, 400)
    assert server.sample("user_pauses") == 0


def test_a_client_that_sends_long_after_it_was_throttled_is_paused() -> None:
    """What it sends at first may have been on its way. Once it has waited, it is trusted again."""
    server = Limited(user_requests_max=10)
    channel = server.connect()
    log_in(server, channel, "ann", acceptsThrottle="true")
    server.now_ms += 10_000
    server.pop_answers(channel)

    server.read(channel, 50)
    server.now_ms += THROTTLE_GRACE_MS
    assert server.read(channel) == 0
    assert server.pop_throttles(channel) == [4_000, 2_100]
    server.now_ms += 1
    assert server.read(channel) == 2_199
    assert server.pop_throttles(channel) == []
    server.now_ms += 2_199
    assert server.read(channel) == 0
    assert server.pop_throttles(channel) == [100]


def test_who_logs_in_above_its_rate_is_throttled_with_the_login() -> None:
    """Another connection has used up the rate."""
    server = Limited(user_requests_max=10)
    first, second = server.connect(), server.connect()
    log_in(server, first, "ann", acceptsThrottle="true")
    server.read(first, 20)
    nonce = server.begin(second, {"user": "ann", "clientNonce": CLIENT_NONCE}, RequestCode.LOGIN)["serverNonce"]
    proof = client_proof(SECRET, "ann", CLIENT_NONCE, nonce)

    fields = server.begin(second, {"user": "ann", "proof": proof, "acceptsThrottle": "true"}, RequestCode.LOGIN_PROOF)

    assert int(fields["waitMs"]) > 0
    assert server.pop_answers(second)[-1].code == 0


def test_nobody_waits_longer_than_a_connection_lasts() -> None:
    """However much one read brought."""
    server = Limited(user_requests_max=1)
    channel = server.connect()
    log_in(server, channel, "ann")

    assert server.read(channel, 500) == PAUSE_MAX_MS
    server.now_ms += PAUSE_MAX_MS
    assert server.read(channel) == 1_000


def test_servers_are_not_charged() -> None:
    """They bring the requests of clients, which another server has charged."""
    server = Limited(user_requests_max=1)
    channel = server.connect()
    log_in_as_server(server, channel)

    assert server.read(channel, 500) == 0


def test_a_relayed_request_is_charged_by_the_broker_of_its_client_alone() -> None:
    """The leader answers it under the name of the same user, who can still use its whole rate there."""
    brokers = StaticBrokers("a", "b", auth=True, secrets=role_secrets())
    limits = {}
    for name, broker in brokers.brokers.items():
        Users(broker).add("ann", "* All")
        options = SecurityOptions(auth=True, user_requests_max=10)
        broker.machine = limits[name] = LimitedRole(broker.machine, options, broker.components.sessions)
    brokers.create("b")
    client = brokers["a"].connect()
    log_in(brokers["a"], client, "ann", acceptsThrottle="true")
    sends = [a_send(STATIC_TOPIC, queue=0, opaque=100 + number) for number in range(40)]

    # Each is relayed in an envelope of its own.
    answers = [answer for send in sends for answer in brokers["a"].call(send, channel=client)]

    assert [each.code for each in answers if each.opaque >= 100 and not each.is_one_way] == [0] * 40
    assert brokers["b"].store.queue(STATIC_TOPIC, 0).next_offset == 40
    waits = {name: {each.name: each.value for each in limited.samples()} for name, limited in limits.items()}
    assert waits["a"]["user_throttled_ms"] >= 3_000
    assert (waits["b"]["user_throttles"], waits["b"]["user_pauses"]) == (0, 0)
    direct = brokers["b"].connect()
    log_in(brokers["b"], direct, "ann")
    brokers["b"].now_ms += 200  # the two requests of the login
    assert brokers["b"].call(*[a_send(STATIC_TOPIC, queue=0, opaque=200 + number) for number in range(10)])
    assert next(each.value for each in limits["b"].samples() if each.name == "user_pauses") == 0


def test_strangers_pay_by_address_with_access_control() -> None:
    """Without it they might be servers."""
    server = Limited(user_requests_max=10)
    first, second, elsewhere = server.connect(), server.connect(), server.accept("192.0.2.200:1")[0]

    assert server.read(first, 10) == 0
    assert server.read(second, 2) == 200
    assert server.read(elsewhere, 10) == 0

    server = Limited(user_requests_max=10, auth=False)
    channel = server.connect()
    assert server.read(channel, 500) == 0


def test_a_role_without_limits_has_nothing_around_it() -> None:
    """Not even a call for each event."""
    assert not LimitedRole.is_needed(SecurityOptions())
    assert LimitedRole.is_needed(SecurityOptions(auth=True))
    assert LimitedRole.is_needed(SecurityOptions(connections_per_address_max=1))
    assert LimitedRole.is_needed(SecurityOptions(user_requests_max=1))
    assert LimitedRole.is_needed(SecurityOptions(user_bytes_max=1))
