"""Frames that are replayed, altered, or taken to another connection."""

from __future__ import annotations

import json
import struct

import pytest
from tests.support.access import CLIENT_NONCE, SECRET, Users, begin_login, guarded_broker, signed
from tests.support.cluster.broker_machine import BrokerHarness, a_pull, a_send
from tests.support.cluster.machine import codes

from holdfast.broker.deferred.transactions import TIMER as TRANSACTIONS
from holdfast.machine.effects import SetTimer
from holdfast.wire.access.login import client_proof
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.frames.command import BINARY, JSON, Command

NO = int(ResponseCode.NO_PERMISSION)


def json_frame(header: str, body: bytes = b"") -> bytes:
    """Return a frame whose header is this text."""
    data = header.encode()
    return struct.pack(">II", 4 + len(data) + len(body), len(data)) + data + body


def stored(desk: BrokerHarness, topic: str = "secret") -> int:
    """Return how many messages the first queue of a topic has."""
    queue = desk.store.find_queue(topic, 0)
    return queue.next_offset if queue else 0


class Recorded:
    """The frames of a login of alice, as somebody reads them on the wire."""

    def __init__(self, desk: BrokerHarness, channel: int) -> None:
        nonce = begin_login(desk, channel, "alice")["serverNonce"]
        proof = client_proof(SECRET, "alice", CLIENT_NONCE, nonce)
        self.begin = Command(code=RequestCode.LOGIN, fields={"user": "alice", "clientNonce": CLIENT_NONCE})
        self.proof = Command(code=RequestCode.LOGIN_PROOF, fields={"user": "alice", "proof": proof})
        assert codes(desk.call(self.proof, channel=channel)) == [0]


def test_a_login_cannot_be_replayed_anywhere(desk: BrokerHarness) -> None:
    """Not on its channel, not on another one, not in one read, not at another server."""
    victim = desk.connect()
    recorded = Recorded(desk, victim)
    for server, channel in ((desk, victim), (desk, desk.connect()), (desk, 1), (guarded_broker(), 1)):
        if server is not desk:
            server.make_topic("secret")
            Users(server).add("alice", "Topic:secret All")
        assert NO in codes(server.call(recorded.begin, recorded.proof, channel=channel))
        assert NO in codes(server.call(recorded.proof, channel=channel))
        if channel != victim:
            assert codes(server.call(a_send("secret"), channel=channel)) == [NO]


def test_a_login_that_began_twice_has_one_valid_nonce(desk: BrokerHarness) -> None:
    channel = desk.connect()
    first = begin_login(desk, channel, "alice")["serverNonce"]
    begin_login(desk, channel, "alice")

    proof = client_proof(SECRET, "alice", CLIENT_NONCE, first)

    assert codes(desk.call(Command(code=7061, fields={"user": "alice", "proof": proof}), channel=channel)) == [NO]


def test_a_closed_channel_leaves_no_identity_to_the_next_one_of_its_number(desk: BrokerHarness) -> None:
    desk.disconnect(2)
    desk.connect(2)

    assert codes(desk.call(a_send("secret"), channel=2)) == [NO]


@pytest.mark.parametrize("change", ["body", "topic", "queue", "group", "removed", "added"])
def test_a_signed_frame_cannot_be_altered(desk: BrokerHarness, change: str) -> None:
    channel = desk.connect()
    frame = signed(a_send("secret"), "alice")
    if change == "body":
        frame.body = b"other"
    elif change == "removed":
        frame.fields.pop("k")
    else:
        frame.fields |= {"topic": {"b": "mine"}, "queue": {"e": "1"}, "group": {"a": "x"}, "added": {"z": "1"}}[change]

    assert codes(desk.call(frame, channel=channel)) == [NO]
    assert stored(desk) == 0


def test_what_a_signature_does_not_protect(desk: BrokerHarness) -> None:
    """`docs/security.md` says so: it can be repeated, sent with another code, and its borders can be moved."""
    channel = desk.connect()
    desk.make_topic("secrets")
    Users(desk).grant("alice", "Topic:secrets Pub")
    frame = signed(a_send("secrets", a="producer"), "alice")
    pull = signed(a_pull("secret", consumerGroup="secret"), "alice")

    assert codes(desk.call(frame, frame, channel=channel)) == [0, 0]
    frame.fields |= {"b": "secret", "c": "sTBW102"}
    assert codes(desk.call(frame, channel=channel)) == [0]
    pull.code = 215
    assert codes(desk.call(pull, channel=channel)) == [0]
    assert desk.components.topics.find("secret") is None


@pytest.mark.parametrize("name", ["__ZONE_NAME", "__ZONE_MODE", "__ZONE_x", "_UNIQUE_KEY_QUERY"])
def test_fields_that_are_not_signed_change_nothing(desk: BrokerHarness, name: str) -> None:
    """Zone fields are added after signing, so they are not verified. No handler may act on them."""
    channel = desk.connect()
    command = signed(a_send("secret"), "alice")
    command.fields[name] = "secret"

    (answer,) = desk.call(command, channel=channel)

    assert answer.code == 0 or stored(desk) == 0


@pytest.mark.parametrize("signature", ["", "AAAA", "not base64", "A" * 100_000, "\0", "é", "\uff21" * 4])
@pytest.mark.parametrize("serializer", [JSON, BINARY])
@pytest.mark.parametrize("request_of", [a_send, a_pull])
def test_garbage_signatures(desk: BrokerHarness, signature: str, serializer: int, request_of: type) -> None:
    channel = desk.connect()
    command = request_of("secret")
    if len(signature) > 30_000 and serializer == BINARY:
        signature = signature[:30_000]
    command.fields |= {"AccessKey": "alice", "Signature": signature}
    command.serializer = serializer

    assert codes(desk.call(command, channel=channel)) == [NO]
    assert stored(desk) == 0


@pytest.mark.parametrize("key", ["accessKey", "accesskey", "ACCESSKEY", "AccessKey ", "AccessKey\0", "\ufeffAccessKey"])
def test_other_spellings_of_the_key_name_nobody(desk: BrokerHarness, key: str) -> None:
    channel = desk.connect()
    command = signed(a_send("secret"), "alice")
    command.fields[key] = command.fields.pop("AccessKey")

    assert codes(desk.call(command, channel=channel)) == [NO]


@pytest.mark.parametrize("user", ["holdfast.cluster", "", " ", "Alice", "alice ", "alice\0", "*", "User:alice", "%"])
def test_users_who_do_not_exist(desk: BrokerHarness, user: str) -> None:
    channel = desk.connect()

    assert codes(desk.call(signed(a_send("secret"), user), channel=channel)) == [NO]
    assert codes(desk.call(signed(a_send("secret"), user, ""), channel=channel)) == [NO]
    answer = log_in_or_refusal(desk, channel, user)
    assert answer.code != 0


def log_in_or_refusal(desk: BrokerHarness, channel: int, user: str) -> Command:
    """Try to log in with alice's secret."""
    (begun,) = desk.call(Command(code=7060, fields={"user": user, "clientNonce": CLIENT_NONCE}), channel=channel)
    if begun.code:
        return begun
    proof = client_proof(SECRET, user, CLIENT_NONCE, begun.fields["serverNonce"])
    (answer,) = desk.call(Command(code=7061, fields={"user": user, "proof": proof}), channel=channel)
    return answer


def test_the_cluster_user_cannot_be_signed_with_the_empty_secret(desk: BrokerHarness) -> None:
    channel = desk.connect()
    for secret in ("", " ", "None", "holdfast.cluster"):
        assert codes(desk.call(signed(Command(code=26), "holdfast.cluster", secret), channel=channel)) == [NO]


# Two values for one thing: the one that is checked must be the one that is used.

HEADER = '{"code":310,"flag":0,"language":"JAVA","opaque":1,"version":479,"serializeTypeCurrentRPC":"JSON"'
FIELDS = (
    '"a":"p","c":"TBW102","d":"4","e":"0","f":"0","g":"1699999999999","h":"0","i":"","j":"0","k":"false","m":"false"'
)


@pytest.mark.parametrize(
    "header",
    [
        HEADER + ',"extFields":{' + FIELDS + ',"b":"mine","b":"secret"}}',
        HEADER + ',"extFields":{' + FIELDS + ',"b":"secret","b":"mine"}}',
        HEADER + ',"extFields":{"b":"secret"},"extFields":{' + FIELDS + ',"b":"mine"}}',
        HEADER + ',"extFields":{' + FIELDS + ',"b":"mine"},"extFields":{' + FIELDS + ',"b":"secret"}}',
        HEADER + ',"extFields":{' + FIELDS + ',"b":"mine","topic":"secret"}}',
        HEADER + ',"extFields":{' + FIELDS + ',"topic":"mine","b":"secret"}}',
        HEADER + ',"extFields":{' + FIELDS + ',"b":"mine","\\u0062":"secret"}}',
        HEADER + ',"extFields":{' + FIELDS + ',"b":"secret","\\u0062":"mine"}}',
        HEADER + ',"extFields":{' + FIELDS + ',"b":"s\\u0065cret"}}',
        HEADER + ',"code":34,"extFields":{' + FIELDS + ',"b":"secret"}}',
        HEADER.replace("310", "34") + ',"code":310,"extFields":{' + FIELDS + ',"b":"secret"}}',
        HEADER + ',"flag":1,"extFields":{' + FIELDS + ',"b":"secret"}}',
        HEADER + ',"flag":2,"extFields":{' + FIELDS + ',"b":"secret"}}',
        HEADER + ',"flag":4294967298,"extFields":{' + FIELDS + ',"b":"secret"}}',
        HEADER.replace("310", "310.0") + ',"extFields":{' + FIELDS + ',"b":"secret"}}',
        HEADER.replace("310", "4294967606") + ',"extFields":{' + FIELDS + ',"b":"secret"}}',
        HEADER.replace("310", "-310") + ',"extFields":{' + FIELDS + ',"b":"secret"}}',
    ],
)
@pytest.mark.parametrize("again", [1, 2, 3])
def test_a_field_with_two_values_is_checked_as_it_is_used(desk: BrokerHarness, header: str, again: int) -> None:
    """Also when the broker has met the same bytes before, and has parts of them in a cache."""
    mine = HEADER + ',"extFields":{' + FIELDS + ',"b":"mine"}}'
    for _ in range(again):
        desk.send_bytes(json_frame(mine, b"warm"))
    desk.send_bytes(json_frame(header, b"x"))
    desk.send_bytes(json_frame(header, b"x") * 3 + json_frame(mine, b"y"))

    assert stored(desk) == 0


@pytest.mark.parametrize(
    "properties",
    [
        "REAL_TOPIC\x01secret\x02REAL_QID\x010\x02",
        "RETRY_TOPIC\x01secret\x02",
        "DELAY\x011\x02REAL_TOPIC\x01secret\x02REAL_QID\x010\x02",
        "REAL_TOPIC\x01secret\x02REAL_QID\x010\x02DELAY\x011\x02",
        "TRAN_MSG\x01true\x02REAL_TOPIC\x01secret\x02REAL_QID\x010\x02PGROUP\x01p\x02",
        "TOPIC\x01secret\x02",
        "topic\x01secret\x02",
        "__STARTDELIVERTIME\x011\x02REAL_TOPIC\x01secret\x02",
        "INNER_NUM\x012\x02REAL_TOPIC\x01secret\x02",
        "ORIGIN_MESSAGE_ID\x01x\x02RETRY_TOPIC\x01secret\x02",
        "LMQ\x01secret\x02INNER_MULTI_DISPATCH\x01secret\x02",
        "INNER_MULTI_DISPATCH\x01secret,mine\x02INNER_MULTI_QUEUE_OFFSET\x010,0\x02",
        "DELAY\x01-1\x02REAL_TOPIC\x01secret\x02",
        "DELAY\x01999999999999999999999\x02",
    ],
)
@pytest.mark.parametrize("system_flag", ["0", "4", "8", "12", "16"])
def test_properties_lead_to_no_other_topic(desk: BrokerHarness, properties: str, system_flag: str) -> None:
    """Not at once, not after a delay, not by ending a transaction."""
    desk.pass_time(0, TRANSACTIONS)
    for max_times, code in (("0", 310), ("16", 310), ("0", 320)):
        answers = desk.call(a_send("mine", code=code, i=properties, f=system_flag, l=max_times))
        for sent in answers:
            if sent.code == 0:
                end = {
                    "producerGroup": "p", "tranStateTableOffset": sent.fields["queueOffset"], "topic": "mine",
                    "commitLogOffset": str(int(sent.fields["msgId"][16:], 16)), "commitOrRollback": "8",
                }  # fmt: skip
                desk.call(Command(code=37, fields=end))
    for _ in range(30):
        desk.pass_time(1_000, *pending_timers(desk))

    assert stored(desk) == 0
    assert not desk.components.topics.find("secret,mine")


def pending_timers(desk: BrokerHarness) -> list[str]:
    """Return the timers that the broker has asked for."""
    return sorted({effect.name for effect in desk.effects if isinstance(effect, SetTimer)})


@pytest.mark.parametrize(
    "topic",
    [
        "%RETRY%", "%RETRY%%RETRY%mine",
        "%RETRY%mine\0", "%RETRY%mine%secret", "%retry%mine", "%DLQ%mine", "%RETRY%mine/../secret",
        "mine\0", "mine/../secret", "../secret", "mine%secret", "mine*", "*", "Topic:mine", "\uff4dine", "mine ",
        "", " ",
        "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC", "SCHEDULE_TOPIC_XXXX", "OFFSET_MOVED_EVENT",
        "TBW102",
        "broker-a", "DefaultCluster", "SELF_TEST_TOPIC", "DefaultCluster_REPLY_TOPIC", "x" * 300,
    ],
)  # fmt: skip
@pytest.mark.parametrize("code", [310, 320])
def test_names_that_look_like_eves(desk: BrokerHarness, topic: str, code: int) -> None:
    """Neither sends nor pulls. Only `%RETRY%mine` is hers, and that is not in this list."""
    before = desk.store.log.written

    (sent,) = desk.call(a_send(topic, code=code))
    (pulled,) = desk.call(a_pull(topic, consumerGroup="mine"))

    assert sent.code != 0
    assert pulled.code not in {0, 19, 20}
    assert desk.store.log.written == before


def test_a_batch_holds_no_message_for_another_topic(desk: BrokerHarness) -> None:
    """The records of a batch have no topic; one that has gets stored under the topic of the header."""
    for flag in ("0", "1"):
        body = json.dumps({"topic": "secret"}).encode()
        desk.call(a_send("mine", code=320, body=body, m="true", f=flag))
        desk.call(a_send("mine", code=310, body=body, m="true", f=flag))
        desk.call(a_send("secret", code=310, body=body, m="true", f=flag), a_send("mine"))

    assert stored(desk) == 0
