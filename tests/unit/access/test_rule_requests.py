"""Rules are managed as RocketMQ 5 does it."""

import json

import pytest
from tests.support.access import Users, guarded_broker, guarded_name_server, signed
from tests.support.cluster.machine import MachineHarness

from holdfast.wire.frames.command import Command, encode_command


@pytest.fixture(params=[guarded_broker, guarded_name_server], ids=["broker", "name server"])
def server(request: pytest.FixtureRequest) -> MachineHarness:
    """A role with an administrator and a user without rules."""
    server: MachineHarness = request.param()
    users = Users(server)
    users.add("admin", is_super=True)
    users.add("alice")
    return server


def send(server: MachineHarness, code: int, body: object = None, **fields: str) -> Command:
    """Send a request of the administrator; return the answer."""
    data = b"" if body is None else json.dumps(body).encode()
    channel = server.connect()
    server.receive(channel, encode_command(signed(server.new_request(code, fields, body=data), "admin")))
    (answer,) = server.pop_answers(channel)
    return answer


def a_rule(resource: str, *actions: str, decision: str = "Allow") -> dict[str, object]:
    return {"resource": resource, "actions": list(actions), "decision": decision}


def rules_body(*entries: dict[str, object], subject: str | None = "User:alice") -> dict[str, object]:
    body: dict[str, object] = {"policies": [{"policyType": "Custom", "entries": list(entries)}]}
    return body if subject is None else body | {"subject": subject}


def test_rules_are_merged_by_their_resource(server: MachineHarness) -> None:
    assert send(server, 3006, rules_body(a_rule("Topic:a", "Pub"), a_rule("Topic:b*", "Sub"))).code == 0
    assert send(server, 3007, rules_body(a_rule("Topic:a", "All", decision="Deny"))).code == 0

    body = json.loads(send(server, 3009, subject="User:alice").body)

    assert body["subject"] == "User:alice"
    ((policy),) = body["policies"]
    assert policy["policyType"] == "Custom"
    assert policy["entries"] == [a_rule("Topic:a", "All", decision="Deny"), a_rule("Topic:b*", "Sub")]


def test_the_subject_in_the_body_counts_more_than_that_in_the_header(server: MachineHarness) -> None:
    Users(server).add("bob")

    send(server, 3006, rules_body(a_rule("Topic:a", "Pub")), subject="User:bob")
    send(server, 3006, rules_body(a_rule("Topic:b", "Pub"), subject=None), subject="User:bob")

    assert "Topic:a" in send(server, 3009, subject="User:alice").body.decode()
    assert "Topic:a" not in send(server, 3009, subject="User:bob").body.decode()


def test_rules_are_deleted_by_their_resource_or_all_at_once(server: MachineHarness) -> None:
    send(server, 3006, rules_body(a_rule("Topic:a", "Pub"), a_rule("Topic:b", "Pub")))

    assert send(server, 3008, subject="User:alice", resource="Topic:a").code == 0
    assert "Topic:b" in send(server, 3009, subject="User:alice").body.decode()
    assert "Topic:a" not in send(server, 3009, subject="User:alice").body.decode()

    assert send(server, 3008, subject="User:alice").code == 0
    assert (send(server, 3009, subject="User:alice").code, send(server, 3009, subject="User:alice").body) == (0, b"")


def test_rules_are_listed_by_parts_of_subject_and_resource(server: MachineHarness) -> None:
    Users(server).add("bob", "Topic:orders Sub")
    send(server, 3006, rules_body(a_rule("Topic:orders", "Pub"), a_rule("Group:g", "Sub")))

    listed = json.loads(send(server, 3010, subjectFilter="ali", resourceFilter="orders").body)

    assert [each["subject"] for each in listed] == ["User:alice"]
    assert [entry["resource"] for entry in listed[0]["policies"][0]["entries"]] == ["Topic:orders"]
    assert send(server, 3010, resourceFilter="nothing").body == b""


@pytest.mark.parametrize(
    ("code", "body", "fields", "remark"),
    [
        (3006, rules_body(a_rule("Topic:a", "Pub"), subject="User:x"), {}, "The subject of User:x is not exist."),
        (3006, {"subject": "User:alice", "policies": []}, {}, "The policies is empty."),
        (3006, rules_body(a_rule("Topic:a")), {}, "The actions is empty."),
        (3008, None, {"subject": "User:alice"}, "The acl is not exist."),
    ],
)
def test_refusals_have_the_texts_of_upstream(
    server: MachineHarness, code: int, body: object, fields: dict[str, str], remark: str
) -> None:
    answer = send(server, code, body, **fields)

    assert (answer.code, answer.remark) == (16, remark)
