"""Which permissions a request needs: by its header, by its body, and in requests that Java sent."""

import contextlib
import json

import msgspec
import pytest
from tests.support import recordings

from holdfast.model.access.resource import Permission
from holdfast.model.errors import RemoteProtocolError
from holdfast.wire.frames.codes import RequestCode
from holdfast.wire.frames.command import Command, encode_command
from holdfast.wire.frames.fields import BadField, to_fields
from holdfast.wire.requests.permissions import PUBLIC
from holdfast.wire.requests.relay import RelayFields
from holdfast.wire.requests.send import LongSendFields
from holdfast.wire.requests.table import BROKER_REQUESTS, NAME_SERVER_REQUESTS, REQUESTS, RequestSpec, Role


def describe(permission: Permission) -> str:
    """Return a permission as `Topic t: Get Sub`."""
    resource, actions = permission
    return f"{resource.type.value} {resource.name}: {' '.join(sorted(action.value for action in actions))}"


def needs(code: int, fields: dict[str, str] | None = None, body: object = b"") -> list[str]:
    """Return what a request to a broker needs. A *body* that is not bytes is sent as JSON."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    command = Command(code=code, fields=fields or {}, body=data)
    return [describe(permission) for permission in BROKER_REQUESTS[code].find_permissions(command)]


QUEUE = {"topic": "t", "queueId": "0"}
PULL = {**QUEUE, "consumerGroup": "g", "queueOffset": "0"}
SEND = {"a": "p", "b": "t", "e": "0"}
LOCK = {
    "clientId": "c",
    "consumerGroup": "g",
    "mqSet": [
        {"topic": "t", "brokerName": "b", "queueId": 0},
        {"topic": "t", "brokerName": "b", "queueId": 1},
        {"topic": "%RETRY%g", "brokerName": "b", "queueId": 0},
    ],
}
HEARTBEAT = {
    "clientID": "c",
    "producerDataSet": [{"groupName": "p"}],
    "consumerDataSet": [
        {"groupName": "g", "subscriptionDataSet": [{"topic": "t"}, {"topic": "%RETRY%g"}]},
        {"groupName": "h", "subscriptionDataSet": [{"topic": "t"}, {"topic": "u"}]},
    ],
}


@pytest.mark.parametrize("code", [10, 310, 320, 324, 325])
def test_a_send_needs_pub_for_its_topic(code: int):
    """In both versions of the header, for batches and for replies."""
    fields = {"producerGroup": "p", "topic": "t", "queueId": "0"} if code in {10, 324} else SEND

    assert needs(code, fields) == ["Topic t: Pub"]


def test_a_send_to_a_retry_topic_is_part_of_consuming():
    """Old consumers send failed messages there themselves."""
    assert needs(310, SEND | {"b": "%RETRY%g"}) == ["Group g: Sub"]


@pytest.mark.parametrize("code", [11, 361])
def test_a_pull_needs_its_group_and_its_topic(code: int):
    """361 is checked like 11, although RocketMQ does not check it."""
    assert needs(code, PULL) == ["Group g: Sub", "Topic t: Sub"]


def test_a_pull_from_the_own_retry_topic_needs_the_group_alone():
    """No operator grants retry topics one by one."""
    assert needs(11, PULL | {"topic": "%RETRY%g"}) == ["Group g: Sub"]


def test_a_pull_from_the_retry_topic_of_another_group_needs_that_group():
    """Otherwise every consumer could read the failed messages of all groups."""
    assert needs(11, PULL | {"topic": "%RETRY%other"}) == ["Group g: Sub", "Group other: Sub"]


def test_a_heartbeat_needs_all_groups_and_topics_in_its_body():
    """Each once. Producers need nothing before they send."""
    assert needs(34, body=HEARTBEAT) == ["Group g: Sub", "Topic t: Sub", "Group h: Sub", "Topic u: Sub"]
    assert needs(34, body={"clientID": "c", "producerDataSet": [{"groupName": "p"}]}) == []


@pytest.mark.parametrize("code", [41, 42])
def test_locks_need_the_group_and_the_topics_of_all_queues(code: int):
    """Each topic once."""
    assert needs(code, body=LOCK) == ["Group g: Sub", "Topic t: Sub"]


def test_lists_need_every_topic_and_group_in_their_body():
    """One permitted topic does not permit the others."""
    assert needs(18, body={"topicConfigList": [{"topicName": "t"}, {"topicName": "u"}]}) == [
        "Topic t: Create",
        "Topic u: Create",
    ]
    assert needs(200, body={"groupName": "g"}) == ["Group g: Create"]
    assert needs(225, body={"groupConfigList": [{"groupName": "g"}, {"groupName": "h"}]}) == [
        "Group g: Create",
        "Group h: Create",
    ]


def test_a_subscription_check_needs_what_the_subscription_needs():
    """It reveals whether the topic exists."""
    check = {"clientId": "c", "group": "g", "subscriptionData": {"topic": "t"}}

    assert needs(46, body=check) == ["Group g: Sub", "Topic t: Sub"]


def envelope(*commands: Command) -> tuple[dict[str, str], bytes]:
    fields = to_fields(RelayFields(source="a", boot=1, number=1, topic="t", queue=0))
    return fields, b"".join(encode_command(command) for command in commands)


def test_an_envelope_needs_all_that_its_requests_need():
    """Besides the right of a broker: it is no way around permissions."""
    fields, body = envelope(
        Command(code=RequestCode.SEND_MESSAGE_V2, fields=SEND),
        Command(code=RequestCode.SEND_MESSAGE_V2, fields=SEND | {"b": "u"}),
        Command(code=RequestCode.PULL_MESSAGE, fields=PULL),
        Command(code=RequestCode.LOCK_BATCH_MQ, body=json.dumps(LOCK).encode()),
    )

    assert needs(7020, fields, body) == [
        "Cluster : Update",
        "Topic t: Pub",
        "Topic u: Pub",
        "Group g: Sub",
        "Topic t: Sub",
    ]


def test_requests_that_must_not_be_relayed_add_nothing_to_an_envelope():
    """The broker refuses such an envelope, whatever the sender may do."""
    fields, body = envelope(*envelope_in_envelope(), Command(code=99_999))

    assert needs(7020, fields, body) == ["Cluster : Update"]


def envelope_in_envelope() -> list[Command]:
    fields, body = envelope(Command(code=RequestCode.SEND_MESSAGE_V2, fields=SEND))
    return [Command(code=RequestCode.RELAY, fields=fields, body=body)]


@pytest.mark.parametrize("code", [18, 34, 41, 42, 46, 200, 225, 7020])
def test_a_body_that_cannot_be_read_is_refused(code: int):
    """As its handler would refuse it. No permissions at all would be a way in."""
    fields = envelope()[0] if code == 7020 else {}

    with pytest.raises(RemoteProtocolError):
        needs(code, fields, b"\xff{")


def test_the_handler_decides_about_messages_of_which_no_topic_is_named():
    """By its position alone, a message, or a half message, may be one of any topic."""
    assert needs(33, {"offset": "7", "topic": "t"}) == ["Topic t: Get"]
    assert needs(33, {"offset": "7"}) == []
    decision = {"producerGroup": "p", "tranStateTableOffset": "1", "commitLogOffset": "7", "commitOrRollback": "8"}
    assert needs(37, decision | {"topic": "t"}) == ["Topic t: Pub"]
    assert needs(37, decision) == needs(37, decision | {"topic": "RMQ_SYS_TRANS_HALF_TOPIC"}) == []


def test_every_user_may_ask_where_topics_are_created():
    """A producer asks this when its topic does not exist."""
    query = Command(code=105, fields={"topic": "TBW102"})
    assert NAME_SERVER_REQUESTS[105].find_permissions(query) == ()


def test_offsets_need_group_and_topic():
    """Committing is more than asking."""
    fields = {**QUEUE, "consumerGroup": "g"}

    assert needs(14, fields) == ["Topic t: Get Sub", "Group g: Get Sub"]
    assert needs(15, fields | {"commitOffset": "1"}) == ["Topic t: Sub Update", "Group g: Sub Update"]


def test_lag_needs_the_group_and_each_named_topic():
    """A topic goes before a list of topics, as in the handler."""
    fields = {"consumerGroup": "g"}

    assert needs(208, fields) == ["Group g: Get"]
    assert needs(208, fields | {"topicList": "t;u;"}) == ["Group g: Get", "Topic t: Get", "Topic u: Get"]
    assert needs(208, fields | {"topic": "t", "topicList": "u"}) == ["Group g: Get", "Topic t: Get"]


def test_a_replicas_report_is_more_than_a_query():
    """The master redirects consumers by it."""
    assert needs(28) == ["Cluster : Get"]
    assert needs(28, {"hf.replica": "1", "hf.unit": "u"}) == ["Cluster : Update"]


def test_an_absent_name_needs_no_permission_and_an_empty_one_is_a_name():
    """Where the field is optional, empty is absent, too."""
    end = {"producerGroup": "p", "tranStateTableOffset": "0", "commitLogOffset": "0", "commitOrRollback": "8"}

    assert needs(37, end) == []
    assert needs(37, end | {"topic": "t"}) == ["Topic t: Pub"]
    assert needs(35, {"clientID": "c", "consumerGroup": ""}) == []
    assert needs(215, {"topic": ""}) == ["Topic : Delete"]


def test_departed_brokers_are_shown_with_permitted_topics_only():
    """Addresses are public, queue counts belong to topics."""
    spec = NAME_SERVER_REQUESTS[106]
    plain = Command(code=106, body=b'["t"]')
    departed = Command(code=106, fields={"hf.left": "1"}, body=b'["t"]')

    assert spec.find_permissions(plain) == ()
    assert [describe(permission) for permission in spec.find_permissions(departed)] == ["Topic t: Get Pub Sub"]


def recorded() -> list[tuple[Role, recordings.RecordedFrame]]:
    """Return the recorded requests that a role of ours knows."""
    found = []
    for frame in recordings.all_frames():
        acceptor = Role.NAME_SERVER if frame.line["conn"].endswith("-namesrv") else Role.BROKER
        role = acceptor if frame.line["dir"] == ">" else Role.CLIENT
        if not frame.is_response and frame.code in REQUESTS[role]:
            found.append((role, frame))
    return found


def test_the_permissions_of_requests_of_java_can_be_found():
    """In both encodings, of both generations; and all that they need are things that the recorded cluster had."""
    named: dict[str, set[str]] = {}
    frames = recorded()
    for role, frame in frames:
        assert frame.code is not None
        for resource, actions in REQUESTS[role][frame.code].find_permissions(frame.command):
            assert actions
            named.setdefault(resource.type.value, set()).add(resource.name)

    assert len(frames) > 1500
    assert named["Cluster"] == {""}
    assert {"CG_push", "CG_order", "CG_lite"} <= named["Group"]
    assert {"TopicN", "TopicPull", "TopicStatic"} <= named["Topic"]
    assert not any(name.startswith("%RETRY%") for names in named.values() for name in names)


@pytest.mark.parametrize(
    ("name", "code", "expected"),
    [
        ("4.9.7-json-orderly", 41, {"Group CG_order: Sub", "Topic TopicN: Sub"}),
        ("5.5.0-binary-orderly", 42, {"Group CG_order: Sub", "Topic TopicN: Sub"}),
        ("5.5.0-json-push", 34, {"Group CG_push: Sub", "Topic TopicN: Sub"}),
        ("4.9.7-json-send-v1", 10, {"Topic TopicN: Pub"}),
        ("5.5.0-binary-lite-pull", 361, {"Group CG_lite: Sub", "Topic TopicLite: Sub"}),
    ],
)
def test_bodies_of_java_are_understood(name: str, code: int, expected: set[str]):
    """Heartbeats and locks have their names in bodies that are not always valid JSON."""
    frames = [frame for frame in recordings.read(name) if frame.code == code and not frame.is_response]

    found = {
        describe(permission) for frame in frames for permission in BROKER_REQUESTS[code].find_permissions(frame.command)
    }

    assert found == expected


def test_what_can_be_public_is_listed():
    """Each has a reason, and the page of requests says so."""
    servers = (Role.BROKER, Role.NAME_SERVER)
    public = {
        (role.value, spec.code): spec.rule.text
        for role in servers
        for spec in REQUESTS[role].values()
        if spec.rule.can_be_public
    }

    assert public == {
        ("broker", 18): "each Topic in the body: Create; else public",  # an empty list creates nothing
        ("broker", 34): "each consumer Group and its Topics in the body: Sub; else public",  # producers
        ("broker", 35): "Group, if named: Sub; else public",  # ends what the sender began
        # Old clients name no topic. The handler checks that of the record.
        ("broker", 33): "Topic of the message: Get; else public",
        ("broker", 37): "Topic of the half message: Pub; else public",
        ("broker", 225): "each Group in the body: Create; else public",  # an empty list creates nothing
        ("broker", 400): "public",  # always refused
        ("broker", 7060): "public",  # a login
        ("broker", 7061): "public",
        ("name server", 106): (  # addresses alone
            "each Topic in the body: Pub or Sub or Get, if departed brokers are asked for; else public"
        ),
        ("name server", 329): "public",  # ends watches of the sender
        ("name server", 7060): "public",  # a login
        ("name server", 7061): "public",
    }
    assert all(spec.rule is PUBLIC for spec in REQUESTS[Role.CLIENT].values()), "servers do not sign requests"


@pytest.mark.parametrize(
    ("role", "spec"),
    [(role, spec) for role in (Role.BROKER, Role.NAME_SERVER) for spec in REQUESTS[role].values()],
    ids=lambda it: getattr(it, "name", "") or it.code.name,
)
def test_no_other_request_is_public(role: Role, spec: RequestSpec):
    """Whatever its header leaves out, and with any empty body."""
    fields = {field.encode_name: field for field in msgspec.structs.fields(spec.header)}
    required = {name: "1" for name, field in fields.items() if field.required}
    if spec.header is LongSendFields:
        required = {"topic": "1", "queueId": "1"}
    texts = {name: "" for name, field in fields.items() if field.type in {str, str | None}}
    found = []
    for header in (required, required | texts):
        for body in (b"", b"{}", b"[]"):
            with contextlib.suppress(BadField, RemoteProtocolError):
                found.append(spec.find_permissions(Command(code=spec.code, fields=header, body=body)))

    assert all(found) or spec.rule.can_be_public
