"""The door admits what rules allow and refuses the rest, frame by frame, also on the hot paths."""

from __future__ import annotations

import pytest
from tests.support.access import Users, guarded_broker, guarded_name_server, log_in, signed
from tests.support.cluster.broker_machine import BrokerHarness, a_pull, a_send
from tests.support.cluster.machine import MachineHarness, codes, logs

from holdfast.access import door as door_module
from holdfast.access.door import REFUSED, require_rules
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.frames.command import ONE_WAY, Command, encode_command
from holdfast.wire.frames.frame import JSON, frame_prefix
from holdfast.wire.requests.table import BROKER_REQUESTS

NO = int(ResponseCode.NO_PERMISSION)


@pytest.fixture
def desk() -> BrokerHarness:
    """A broker with topics T and U; alice may send to T and pull it as group consumers."""
    broker = guarded_broker()
    broker.make_topic("T")
    broker.make_topic("U")
    Users(broker).add("alice", "Topic:T Pub,Sub", "Group:consumers Sub")
    return broker


def stored(desk: BrokerHarness, topic: str = "T") -> int:
    return desk.store.queue(topic, 0).next_offset


def metric(desk: BrokerHarness, name: str) -> float:
    return next(sample.value for sample in desk.components.metrics() if sample.name == name)


# Runs of frames.


def test_one_refused_send_hurts_no_other_in_its_read(desk: BrokerHarness) -> None:
    """Answers keep their order."""
    log_in(desk, 1, "alice")

    answers = desk.call(a_send(opaque=1), a_send("U", opaque=2), a_send(opaque=3))

    assert [(answer.opaque, answer.code) for answer in answers] == [(1, 0), (2, NO), (3, 0)]
    assert (stored(desk), stored(desk, "U")) == (2, 0)


def test_one_refused_send_hurts_no_other_connection_of_its_run(desk: BrokerHarness) -> None:
    """Adjacent reads of several connections are one run, if all of them are surely admitted."""
    channels = [1, *(desk.connect() for _ in range(3))]
    for channel in channels[:3]:
        log_in(desk, channel, "alice")

    answered = desk.call_together(
        {
            channels[0]: [a_send(opaque=1)],
            channels[1]: [a_send("U", opaque=2)],
            channels[2]: [a_send(opaque=3), a_send(opaque=4)],
            channels[3]: [a_send(opaque=5)],
        }
    )

    assert [codes(answered[channel]) for channel in channels] == [[0], [NO], [0, 0], [NO]]
    assert stored(desk) == 3


def test_signed_and_logged_in_senders_share_a_run(desk: BrokerHarness) -> None:
    """Both are admitted without the general path."""
    other = desk.connect()
    log_in(desk, 1, "alice")
    general: list[object] = []
    desk.broker._dispatcher._handle_general = lambda *args: general.append(args) or True  # type: ignore[method-assign, func-returns-value]

    answered = desk.call_together({1: [a_send(opaque=1)], other: [signed(a_send(opaque=2), "alice")]})

    assert [codes(answered[channel]) for channel in (1, other)] == [[0], [0]]
    assert metric(desk, "broker_signatures_verified") == 1
    assert not general


def test_a_logged_in_sender_stays_on_the_hot_path(desk: BrokerHarness) -> None:
    """Sends and pulls: rules are looked at once, and not again before they change."""
    log_in(desk, 1, "alice")
    decided: list[object] = []
    authority = desk.components.door._authority
    decide = authority.decide
    authority.decide = lambda *args: decided.append(args) or decide(*args)  # type: ignore[method-assign, func-returns-value]

    for _ in range(3):
        assert codes(desk.call(a_send(), a_send())) == [0, 0]
        assert codes(desk.call(a_pull(), a_pull())) == [0, 0]

    assert len(decided) == 3  # Pub; Sub for the group, Sub for the topic
    Users(desk).grant("alice", "Topic:U Pub")
    desk.call(a_send())
    assert len(decided) == 4


def test_without_access_control_nothing_is_asked() -> None:
    """Not even who sends."""
    desk = BrokerHarness()
    desk.make_topic("T")
    desk.components.door._sessions = None  # type: ignore[assignment]

    assert codes(desk.call(a_send(), a_send())) == [0, 0]
    assert codes(desk.call(a_pull())) == [0]
    assert codes(desk.call(Command(code=RequestCode.GET_BROKER_CONFIG))) == [0]


def test_a_rule_that_changes_counts_for_the_next_frame(desk: BrokerHarness) -> None:
    """On connections that are open, in both directions."""
    users = Users(desk)
    log_in(desk, 1, "alice")
    assert codes([*desk.call(a_send()), *desk.call(a_pull())]) == [0, 0]

    users.revoke("alice")
    assert codes(desk.call(a_send(), a_pull())) == [NO, NO]

    users.grant("alice", "Topic:T Pub")
    assert codes([*desk.call(a_send()), *desk.call(a_pull())]) == [0, NO]


def test_a_topic_that_is_deleted_must_be_created_again_by_who_may(desk: BrokerHarness) -> None:
    """The permission to send to it was remembered while it existed."""
    users = Users(desk)
    users.grant("alice", "Topic:T Pub,Sub,Delete")
    log_in(desk, 1, "alice")
    assert codes(desk.call(a_send())) == [0]

    assert codes(desk.call(Command(code=215, fields={"topic": "T"}))) == [0]
    desk.components.topics.deletions = type("None", (), {"is_deleted": lambda _self, _name: False})()  # type: ignore[assignment]
    (answer,) = desk.call(a_send())

    assert (answer.code, "It needs Create." in (answer.remark or "")) == (NO, True)


def test_what_a_session_remembers_is_bounded(desk: BrokerHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user who may read everything may name any number of groups."""
    monkeypatch.setattr(door_module, "KNOWN_MAX", 10)
    Users(desk).add("reader", "Topic:* Sub", "Group:* Sub")
    log_in(desk, 1, "reader")

    for number in range(25):
        desk.call(a_pull(consumerGroup=f"g{number}"))

    session = desk.components.door._sessions.find_login(1)  # type: ignore[arg-type]
    assert session is not None
    assert len(session.pullable) <= 10


# Creation of topics by sends.


def test_a_send_that_creates_its_topic_needs_create_too(desk: BrokerHarness) -> None:
    """The refusal names it, so that the operator knows what is missing."""
    users = Users(desk)
    users.grant("alice", "Topic:new Pub")
    log_in(desk, 1, "alice")

    (refused,) = desk.call(a_send("new"))
    users.grant("alice", "Topic:new Pub,Create")
    (created,) = desk.call(a_send("new"))

    assert refused.remark == (
        "User:alice has no permission to access Topic:new from 10.0.0.1, no matched policies. It needs Create."
    )
    assert created.code == 0
    assert stored(desk, "new") == 1


def test_a_reply_that_creates_its_topic_needs_create_too(desk: BrokerHarness) -> None:
    """325 creates topics like 310."""
    Users(desk).grant("alice", "Topic:new Pub")
    log_in(desk, 1, "alice")

    (refused,) = desk.call(a_send("new", code=325))

    assert refused.code == NO
    assert "It needs Create." in (refused.remark or "")


@pytest.mark.parametrize("topic", ["%RETRY%consumers", "%DLQ%consumers"])
def test_the_topics_of_a_group_are_created_for_who_may_consume_as_it(desk: BrokerHarness, topic: str) -> None:
    """No operator creates them by hand."""
    Users(desk).grant("alice", "Topic:%DLQ%consumers Pub")
    Users(desk).add("bob", "Topic:%DLQ%consumers Pub")

    (by_stranger,) = desk.call(signed(a_send(topic), "bob"))
    (by_member,) = desk.call(signed(a_send(topic), "alice"))

    assert (by_stranger.code, by_member.code) == (NO, 0)
    assert desk.components.topics.find(topic) is not None


def test_a_send_to_a_retry_topic_of_a_foreign_group_is_refused(desk: BrokerHarness) -> None:
    """Its members would get the message."""
    (answer,) = desk.call(signed(a_send("%RETRY%others"), "alice"))

    assert answer.remark == (
        "User:alice has no permission to access Group:others from 10.0.0.1, no matched policies. It needs Sub."
    )


# Refusals.


def test_a_refusal_is_logged_with_who_and_where_and_counted(desk: BrokerHarness) -> None:
    """And what was refused."""
    log_in(desk, 1, "alice")

    desk.call(Command(code=RequestCode.UPDATE_BROKER_CONFIG, body=b"fileReservedTime=1"))

    (line,) = logs(desk.effects, REFUSED)
    assert line.level == "warning"
    assert (line.fields["user"], line.fields["peer"], line.fields["code"]) == ("alice", "10.0.0.1:5000", 25)
    assert "Cluster:DefaultCluster" in str(line.fields["reason"])
    assert metric(desk, "broker_requests_refused") == 1


def test_a_one_way_request_is_refused_silently_but_counted(desk: BrokerHarness) -> None:
    """Nobody waits for an answer; the operator sees it."""
    log_in(desk, 1, "alice")
    send = a_send("U")
    send.flag = ONE_WAY

    assert desk.call(send) == []
    assert stored(desk, "U") == 0
    assert len(logs(desk.effects, REFUSED)) == 1


def test_a_name_of_any_length_makes_no_long_answer_or_log_line(desk: BrokerHarness) -> None:
    """Whoever is refused chooses these texts."""
    (by_name,) = desk.call(signed(a_send(), "x" * 100_000))
    (by_topic,) = desk.call(signed(a_send("t" * 100_000), "alice"))

    assert len(by_name.remark or "") < 1_100
    assert len(by_topic.remark or "") < 1_100
    assert all(len(str(value)) < 1_100 for line in logs(desk.effects, REFUSED) for value in line.fields.values())


def test_answers_are_not_checked(desk: BrokerHarness) -> None:
    """They belong to requests of the server."""
    desk.call(Command(code=0, opaque=99, flag=1))

    assert metric(desk, "broker_requests_refused") == 0


def test_a_code_that_nobody_handles_needs_no_user(desk: BrokerHarness) -> None:
    """Upstream's clients try codes of newer brokers, and understand this answer."""
    (answer,) = desk.call(Command(code=200_050))

    assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED


def test_a_role_cannot_be_built_with_a_request_that_nobody_checks() -> None:
    """Neither without a row nor without a rule."""
    with pytest.raises(AssertionError, match="code 9999 has a handler, but no row"):
        require_rules([9999], BROKER_REQUESTS)
    with pytest.raises(AssertionError, match="row of code 1 has no rule"):
        require_rules([1], {1: type("Row", (), {"rule": None})()})


# Parked pulls.


def test_a_parked_pull_is_refused_as_soon_as_its_permission_is_revoked(desk: BrokerHarness) -> None:
    """Of logged-in users and of signing ones; those of others wait on."""
    users, other = Users(desk), desk.connect()
    users.add("bob", "Topic:T Sub", "Group:consumers Sub")
    log_in(desk, 1, "alice")
    waiting = {"sysFlag": "6", "suspendTimeoutMillis": "15000"}
    assert desk.call(a_pull(opaque=1, **waiting)) == []
    assert desk.call(signed(a_pull(opaque=2, **waiting), "alice"), channel=other) == []
    assert desk.call(signed(a_pull(opaque=3, **waiting), "bob"), channel=other) == []

    users.revoke("alice")

    assert [(it.opaque, it.code) for it in desk.pop_answers(1)] == [(1, NO)]
    assert [(it.opaque, it.code) for it in desk.pop_answers(other)] == [(2, NO)]
    assert len(desk.components.pull_handler.parked_pulls) == 1
    desk.call(signed(a_send(), "alice"))
    users.grant("alice", "Topic:T Pub")
    desk.call(signed(a_send(), "alice"))
    assert codes(desk.pop_answers(other)) == [0]


def test_a_parked_pull_is_refused_when_its_secret_ends(desk: BrokerHarness) -> None:
    """A thief does not get the next message either."""
    log_in(desk, 1, "alice")
    desk.call(a_pull(sysFlag="6"))

    Users(desk).update("alice", secret="a-new-secret-of-alice")

    assert [(it.code, it.remark) for it in desk.pop_answers(1)] == [(NO, "check signature failed.")]


@pytest.mark.parametrize("is_signed", [True, False])
def test_a_parked_pull_waits_on_if_its_client_has_the_new_secret(desk: BrokerHarness, *, is_signed: bool) -> None:
    """It has proven that on the same connection before the old one ended: a rotation disturbs no consumer."""
    new, users = "a-new-secret-of-alice", Users(desk)
    if not is_signed:
        log_in(desk, 1, "alice")
    pull = a_pull(sysFlag="6")
    assert desk.call(signed(pull, "alice") if is_signed else pull) == []
    users.update("alice", secret=new, keeps_old=True)
    if is_signed:
        assert desk.call(signed(a_pull("U", opaque=2), "alice", new))
    else:
        assert log_in(desk, 1, "alice", new).code == 0
    desk.pop_answers(1)

    users.update("alice", keeps_old=False)

    assert desk.pop_answers(1) == []
    users.delete("alice")
    assert codes(desk.pop_answers(1)) == [NO]


def test_a_parked_pull_stays_that_of_its_sender(desk: BrokerHarness) -> None:
    """Even if somebody else logs in on the connection while it waits."""
    users = Users(desk)
    users.add("bob")
    log_in(desk, 1, "alice")
    desk.call(a_pull(sysFlag="6"))
    log_in(desk, 1, "bob")

    users.add("carol")
    assert desk.pop_answers(1) == []
    users.delete("alice")

    assert [it.remark for it in desk.pop_answers(1)] == ["User:alice is not found."]


# Held frames.


def test_a_held_frame_stays_that_of_its_sender(desk: BrokerHarness) -> None:
    """It was read before somebody else logged in on the connection."""
    Users(desk).add("root", is_super=True)
    log_in(desk, 1, "alice")
    door, turn = desk.components.door, desk.components.turn
    held_by_alice = door._sessions.find_login(1)  # type: ignore[arg-type]
    log_in(desk, 1, "root")
    desk.pop_answers(1)

    turn.replay(1, encode_command(a_send("U", opaque=1)), held_by_alice)  # type: ignore[arg-type]
    turn.replay(1, encode_command(a_send("T", opaque=2)), held_by_alice)  # type: ignore[arg-type]
    desk.pass_time(0, "stats")

    assert [(it.opaque, it.code) for it in desk.pop_answers(1)] == [(1, NO), (2, 0)]
    assert codes(desk.call(a_send("U"))) == [0], "root itself is not held to the rights of alice"


# Name servers.


@pytest.fixture
def server() -> MachineHarness:
    """A name server that knows topic T; alice may send to it."""
    name_server = guarded_name_server()
    Users(name_server).add("alice", "Topic:T Pub")
    return name_server


def ask(server: MachineHarness, channel: int, topic: str, user: str | None = None) -> Command:
    command = server.new_request(105, {"topic": topic})
    if user is not None:
        signed(command, user)
    return server.request(105, command.fields, channel=channel)


def test_routes_are_for_users_who_need_them(server: MachineHarness) -> None:
    """Logged in or signed; whether or not the topic exists."""
    channel, signing = server.connect(), server.connect()

    assert ask(server, channel, "T").remark == "username cannot be null."
    log_in(server, channel, "alice")

    assert ask(server, channel, "T").code == ResponseCode.TOPIC_NOT_EXIST
    assert ask(server, channel, "U").code == NO
    assert ask(server, signing, "T", "alice").code == ResponseCode.TOPIC_NOT_EXIST
    assert ask(server, signing, "U", "alice").code == NO


def test_a_cached_route_is_not_for_everybody(server: MachineHarness) -> None:
    """The hot loop asks the door, too, and one refused query hurts no other."""
    channel = server.connect()
    log_in(server, channel, "alice")
    cache = server.machine._answer_cache  # type: ignore[attr-defined]
    cache.standard["T"] = cache.standard["U"] = _Rendered()
    queries = [server.new_request(105, {"topic": topic}) for topic in ("T", "U", "T")]

    server.receive(channel, b"".join(map(encode_command, queries)))

    assert codes(server.pop_answers(channel)) == [0, NO, 0]


class _Rendered:
    """A rendered answer for opaques of every length."""

    def __init__(self) -> None:
        start, self.tail = b'{"code":0,"flag":1,"opaque":', b"}"
        self.heads = [frame_prefix(JSON, len(start) + count + 1, 0) + start for count in range(11)]


def test_a_route_query_is_refused_when_the_rule_is_gone(server: MachineHarness) -> None:
    """On an open connection."""
    users, channel = Users(server), server.connect()
    log_in(server, channel, "alice")
    assert ask(server, channel, "T").code == ResponseCode.TOPIC_NOT_EXIST

    users.revoke("alice")

    assert ask(server, channel, "T").code == NO


def test_only_servers_and_administrators_register_brokers(server: MachineHarness) -> None:
    """Upstream's name server lets everybody in."""
    channel = server.connect()
    fields = {"brokerName": "b", "brokerAddr": "10.0.0.9:1", "clusterName": "C", "haServerAddr": "", "brokerId": "0"}

    refused = server.request(103, fields, channel=channel)
    log_in(server, channel, "alice")
    refused_too = server.request(103, fields, channel=channel)

    assert (refused.code, refused_too.code) == (NO, NO)
