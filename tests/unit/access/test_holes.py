"""What RocketMQ 5.5.0 lets every user do, and this broker does not: one test for each hole."""

from __future__ import annotations

import json

import pytest
from tests.support.access import Users, guarded_broker, guarded_name_server, log_in, signed
from tests.support.cluster.broker_machine import BrokerHarness, a_pull, a_send
from tests.support.cluster.machine import codes

from holdfast.broker.deferred.transactions import TIMER
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.frames.command import Command, encode_command
from holdfast.wire.frames.fields import to_fields
from holdfast.wire.records.message_id import parse_message_id
from holdfast.wire.requests.relay import RelayFields

NO = int(ResponseCode.NO_PERMISSION)


@pytest.fixture
def desk() -> BrokerHarness:
    """Eve may do everything with her own topic and group; alice with hers."""
    broker = guarded_broker()
    for topic in ("mine", "secret"):
        broker.make_topic(topic)
    users = Users(broker)
    users.add("eve", "Topic:mine All", "Group:mine All")
    users.add("alice", "Topic:secret All", "Group:secret All")
    log_in(broker, 1, "eve")
    return broker


def position_of(desk: BrokerHarness, topic: str, body: bytes = b"hello") -> int:
    """Store a message of alice; return where."""
    (sent,) = desk.call(signed(a_send(topic, body=body), "alice"), channel=desk.connect())
    assert sent.code == 0, sent.remark
    return parse_message_id(sent.fields["msgId"]).position


def refusal(desk: BrokerHarness, code: int, fields: dict[str, str] | None = None, body: object = b"") -> str:
    """Send a request of eve; return the text of its refusal."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    (answer,) = desk.call(Command(code=code, fields=fields or {}, body=data))
    assert answer.code == NO, answer
    return answer.remark or ""


def test_25_the_configuration(desk: BrokerHarness) -> None:
    """Upstream lets every user change the options of the broker, those of access control among them."""
    assert "Cluster:DefaultCluster" in refusal(desk, 25, body=b"authenticationEnabled=false")


@pytest.mark.parametrize("code", [200, 225])
def test_200_groups(desk: BrokerHarness, code: int) -> None:
    """Upstream lets every user change every group."""
    group = {"groupName": "secret", "consumeEnable": False}

    assert "Group:secret" in refusal(desk, code, body=group if code == 200 else {"groupConfigList": [group]})


def test_361_pulls(desk: BrokerHarness) -> None:
    """Upstream lets every user read every topic with this code."""
    pull = a_pull("secret", consumerGroup="mine")
    pull.code = 361

    (answer,) = desk.call(pull)

    assert (answer.code, "Topic:secret" in (answer.remark or "")) == (NO, True)


def test_320_batches(desk: BrokerHarness) -> None:
    """4.9.7 does not check batches at all."""
    (answer,) = desk.call(a_send("secret", code=320, m="true"))

    assert (answer.code, desk.store.queue("secret", 0).next_offset) == (NO, 0)


def test_18_lists_of_topics(desk: BrokerHarness) -> None:
    """Their names are in the body: one foreign topic is enough for a refusal."""
    topics = [{"topicName": "mine"}, {"topicName": "secret", "perm": 0}]

    assert "Topic:secret" in refusal(desk, 18, body={"topicConfigList": topics})


def test_34_heartbeats(desk: BrokerHarness) -> None:
    """A member of a foreign group would get a part of its queues."""
    consumer = {"groupName": "secret", "subscriptionDataSet": [{"topic": "secret"}]}

    assert "Group:secret" in refusal(desk, 34, body={"clientID": "c", "consumerDataSet": [consumer]})
    assert desk.components.clients.find_membership("secret") is None


@pytest.mark.parametrize("code", [41, 42])
def test_41_and_42_locks(desk: BrokerHarness, code: int) -> None:
    """A foreign consumer would stop, or deliver out of order."""
    queues = [{"topic": "secret", "brokerName": "broker-a", "queueId": 0}]

    assert "Group:secret" in refusal(desk, code, body={"consumerGroup": "secret", "clientId": "c", "mqSet": queues})


def test_15_offsets_of_foreign_groups(desk: BrokerHarness) -> None:
    """Whoever commits for a group makes it skip messages."""
    fields = {"topic": "mine", "queueId": "0", "commitOffset": "7"}

    assert "Group:secret" in refusal(desk, 15, fields | {"consumerGroup": "secret"})
    assert "Group:secret" in refusal(desk, 14, fields | {"consumerGroup": "secret"})


def test_11_commits_in_pulls_of_foreign_groups(desk: BrokerHarness) -> None:
    """A pull carries an offset to commit, too."""
    (answer,) = desk.call(a_pull("mine", consumerGroup="secret", sysFlag="5", commitOffset="7"))

    assert answer.code == NO
    assert desk.components.offsets.find("secret", "mine", 0) is None


def test_11_retry_topics_of_foreign_groups(desk: BrokerHarness) -> None:
    """Upstream lets every consumer read what failed in other groups."""
    (answer,) = desk.call(a_pull("%RETRY%secret", consumerGroup="mine"))

    assert (answer.code, "Group:secret" in (answer.remark or "")) == (NO, True)


def test_36_returns_of_foreign_messages(desk: BrokerHarness) -> None:
    """The copy goes to the retry topic of the sender's own group, where the sender can read it."""
    position = position_of(desk, "secret")

    text = refusal(desk, 36, {"offset": str(position), "group": "mine", "delayLevel": "1"})

    assert "Topic:secret" in text
    assert "It needs Sub." in text


def test_33_foreign_messages_by_their_position(desk: BrokerHarness) -> None:
    """Old clients name no topic, new ones may name any: the record at the position has the last word."""
    position = str(position_of(desk, "secret"))

    assert "Topic:secret" in refusal(desk, 33, {"offset": position, "topic": "mine"})
    assert "Topic:secret" in refusal(desk, 33, {"offset": position})
    (answer,) = desk.call(
        signed(Command(code=33, fields={"offset": position, "topic": "secret"}), "alice"), channel=desk.connect()
    )
    assert answer.code == 0


def test_309_foreign_messages_to_an_own_consumer(desk: BrokerHarness) -> None:
    """The broker would hand the message of any position to the consumer."""
    (sent,) = desk.call(signed(a_send("secret"), "alice"), channel=desk.connect())
    consumer = {
        "groupName": "mine",
        "consumeType": "CONSUME_PASSIVELY",
        "messageModel": "CLUSTERING",
        "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
        "subscriptionDataSet": [{"topic": "mine"}],
    }
    body = json.dumps({"clientID": "c", "consumerDataSet": [consumer]}).encode()
    assert 0 in codes(desk.call(Command(code=34, body=body, version=400)))

    fields = {"consumerGroup": "mine", "clientId": "c", "msgId": sent.fields["msgId"]}

    assert "Topic:secret" in refusal(desk, 309, fields)


def half(desk: BrokerHarness) -> Command:
    """Let alice send a half message of the producer group p."""
    properties = "UNIQ_KEY\x01U1\x02TRAN_MSG\x01true\x02PGROUP\x01p\x02"
    (sent,) = desk.call(signed(a_send("secret", f="4", i=properties), "alice"), channel=desk.connect())
    assert sent.code == 0, sent.remark
    return sent


@pytest.mark.parametrize("named", [{}, {"topic": "mine"}, {"topic": "RMQ_SYS_TRANS_HALF_TOPIC"}])
def test_37_decisions_about_foreign_transactions(desk: BrokerHarness, named: dict[str, str]) -> None:
    """Upstream checks the topic that the request names, if it names one. The half message knows its topic."""
    desk.pass_time(0, TIMER)
    sent = half(desk)
    fields = {
        "producerGroup": "p",
        "tranStateTableOffset": sent.fields["queueOffset"],
        "commitLogOffset": str(parse_message_id(sent.fields["msgId"]).position),
        "commitOrRollback": "8",
    }

    text = refusal(desk, 37, fields | named)

    assert "Topic:secret" in text
    assert desk.store.queue("secret", 0).next_offset == 0
    fields |= {} if named == {"topic": "mine"} else named  # After a check, Java 5 names the topic of half messages.
    assert codes(desk.call(signed(Command(code=37, fields=fields), "alice"), channel=desk.connect())) == [0]


def test_39_checks_of_foreign_transactions(desk: BrokerHarness) -> None:
    """A check contains the message: a producer of the group gets it only if it may send to the topic."""
    body = json.dumps({"clientID": "e", "producerDataSet": [{"groupName": "p"}]}).encode()
    desk.pass_time(0, TIMER)
    assert codes(desk.call(Command(code=34, body=body))) == [0]
    half(desk)
    desk.pop_answers(1)

    desk.pass_time(60_000, TIMER)
    desk.pass_time(1_000, TIMER, TIMER)
    assert desk.pop_answers(1) == []

    other = desk.connect()
    desk.call(signed(Command(code=34, body=body.replace(b'"e"', b'"a"')), "alice"), channel=other)
    desk.pop_answers(other)
    desk.pass_time(60_000, TIMER)
    desk.pass_time(1_000, TIMER, TIMER)
    assert codes(desk.pop_answers(other)) == [RequestCode.CHECK_TRANSACTION_STATE]
    assert desk.pop_answers(1) == []


@pytest.mark.parametrize("code", [*range(50, 55)])
def test_50_to_54_files_of_acl_1(desk: BrokerHarness, code: int) -> None:
    """With 4.9.7, every account can make itself an administrator, or read all secrets. Here nobody answers."""
    (answer,) = desk.call(Command(code=code, fields={"accessKey": "evil", "secretKey": "12345678"}))

    assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED


@pytest.mark.parametrize("code", [100, 102, 103, 104, 205, 216, 217, 318, 319, 327, 904, 7040, 7051])
def test_the_name_server(code: int) -> None:
    """Upstream's has no access control at all."""
    server = guarded_name_server()
    Users(server).add("eve", "Topic:* All", "Group:* All")
    channel = server.connect()
    log_in(server, channel, "eve")
    fields = {
        "namespace": "n", "key": "k", "value": "v", "brokerName": "b", "brokerAddr": "1.2.3.4:5", "clusterName": "c",
        "haServerAddr": "", "brokerId": "0", "topic": "t",
    }  # fmt: skip

    answer = server.request(code, fields, channel=channel)

    assert answer.code == NO


def test_a_stolen_envelope(desk: BrokerHarness) -> None:
    """Whoever relays vouches for a client: only servers may, not even a Super user."""
    Users(desk).add("root", is_super=True)
    log_in(desk, 1, "root")
    envelope = to_fields(RelayFields(source="b", boot=5, number=1, client="9.8.7.6:5", user="alice", topic="secret"))

    (answer,) = desk.call(Command(code=7020, fields=envelope, body=encode_command(a_send("secret"))))

    assert (answer.code, answer.remark) == (NO, "only servers of the cluster may relay requests")
    assert desk.store.queue("secret", 0).next_offset == 0
