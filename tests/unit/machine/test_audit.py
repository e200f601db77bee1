"""Audit lines: which requests have one, and what it says."""

import pytest
from tests.support.access import (
    SECRET,
    Users,
    guarded_broker,
    guarded_name_server,
    log_in,
    log_in_as_server,
)
from tests.support.cluster.broker_machine import BrokerHarness
from tests.support.cluster.machine import MachineHarness

from holdfast.machine.audit import BODY_MAX, CHANGED, is_recorded
from holdfast.machine.effects import Log
from holdfast.model.access.identity import ANONYMOUS, Identity, IdentityKind
from holdfast.wire.frames import java_json
from holdfast.wire.frames.codes import RequestCode
from holdfast.wire.requests.table import BROKER_REQUESTS, NAME_SERVER_REQUESTS, Path

TOPIC = {
    "topic": "orders",
    "defaultTopic": "TBW102",
    "readQueueNums": "4",
    "writeQueueNums": "4",
    "perm": "6",
    "topicFilterType": "SINGLE_TAG",
    "topicSysFlag": "0",
    "order": "false",
}
USER = Identity(IdentityKind.USER, "ann", "192.0.2.1:1")


def audited(server: MachineHarness, kind: str = "change") -> list[dict[str, object]]:
    """Return the fields of all audit lines of one kind."""
    return [each.fields for each in server.effects if isinstance(each, Log) and each.audit == kind]


def administered() -> tuple[BrokerHarness, int]:
    """Return a broker with access control, and the channel of an administrator."""
    server = guarded_broker()
    Users(server).add("admin", is_super=True)
    channel = server.connect()
    log_in(server, channel, "admin")
    return server, channel


# What has an audit line.


def test_changes_are_what_needs_a_permission_to_change() -> None:
    """Sends, pulls, commits and heartbeats do not; nor does reading."""
    changes = {int(code) for code, spec in BROKER_REQUESTS.items() if is_recorded(spec, ANONYMOUS)}

    assert {17, 25, 200, 207, 215, 222, 314, 3001, 3002, 3003, 3006, 3007, 3008, 7001, 7005, 7051} <= changes
    assert changes.isdisjoint({10, 11, 14, 15, 28, 34, 36, 37, 41, 310, 320, 361, 3004, 3005, 7020, 7060, 7061})
    assert all(BROKER_REQUESTS[code].path is Path.HANDLER for code in changes)
    named = {int(code) for code, spec in NAME_SERVER_REQUESTS.items() if is_recorded(spec, ANONYMOUS)}
    assert named == {100, 102, 205, 216, 217, 318, 327, 3001, 3002, 3003, 3006, 3007, 3008, 7051}


@pytest.mark.parametrize("table", [BROKER_REQUESTS, NAME_SERVER_REQUESTS])
def test_what_servers_send_all_the_time_is_recorded_only_if_a_user_does(table: dict) -> None:
    """A registration every 30 seconds is no news, unless somebody forges one."""
    routine = [spec for spec in table.values() if spec.by_servers]
    server = Identity(IdentityKind.CLUSTER, "holdfast.cluster", "192.0.2.1:1")

    assert len(routine) >= 5
    for spec in routine:
        assert not is_recorded(spec, server)
        assert not is_recorded(spec, ANONYMOUS)
        assert is_recorded(spec, USER)


def test_no_body_with_a_secret_is_shown() -> None:
    """Users are created and changed by their bodies."""
    for table in (BROKER_REQUESTS, NAME_SERVER_REQUESTS):
        assert not table[3001].shows_body
        assert not table[3002].shows_body
        assert not table[7062].shows_body
        assert all(spec.rule.is_change for spec in table.values() if spec.shows_body)


# What it says.


def test_a_change_has_one_line_with_who_where_what_and_the_result() -> None:
    """Also in the metric."""
    server, channel = administered()

    server.request(RequestCode.UPDATE_AND_CREATE_TOPIC, TOPIC, channel=channel)

    (line,) = audited(server)
    assert line["user"] == "admin"
    assert line["peer"] == "10.0.0.2:5000"
    assert (line["code"], line["target"], line["result"]) == (17, "Topic:orders", "done")
    assert "writeQueueNums=4" in str(line["fields"])
    (sample,) = [
        each
        for each in server.components.metrics()
        if each.name == "broker_audit_lines" and each.labels == {"kind": "change"}
    ]
    assert sample.value == 1


def test_a_change_that_its_handler_refuses_says_why() -> None:
    """The code, and the text of the answer."""
    server, channel = administered()

    answer = server.request(RequestCode.UPDATE_AND_CREATE_TOPIC, TOPIC | {"topic": "bad topic"}, channel=channel)

    (line,) = audited(server)
    assert answer.code != 0
    assert str(line["result"]).startswith(f"refused with {answer.code}: ")


@pytest.mark.parametrize("role", ["broker", "name server"])
def test_a_user_that_is_created_has_a_line_when_that_is_answered(role: str) -> None:
    """Once, and without its secret."""
    server: MachineHarness = guarded_broker() if role == "broker" else guarded_name_server()
    Users(server).add("admin", is_super=True)
    channel = server.connect()
    log_in(server, channel, "admin")
    body = java_json.encode({"username": "shop", "password": "hush-hush", "userType": "Normal", "userStatus": "enable"})

    answer = server.request(RequestCode.AUTH_CREATE_USER, {"username": "shop"}, body=body, channel=channel)

    assert answer.code == 0
    (line,) = audited(server)
    assert (line["user"], line["fields"], line["result"]) == ("admin", "username=shop", "done")
    assert not [each for each in server.effects if isinstance(each, Log) and "hush-hush" in str(each)]


def test_rules_are_shown_as_they_were_given() -> None:
    """Who was granted what is the point; a long list is cut."""
    server, channel = administered()
    Users(server).add("shop")
    entries = [{"resource": f"Topic:t{at}", "actions": ["Pub"], "decision": "Allow"} for at in range(100)]
    body = java_json.encode({"subject": "User:shop", "policies": [{"policyType": "Custom", "entries": entries}]})

    answer = server.request(RequestCode.AUTH_CREATE_ACL, {"subject": "User:shop"}, body=body, channel=channel)
    assert answer.code == 0, answer.remark

    (line,) = audited(server)
    assert "Topic:t0" in str(line["body"])
    assert len(str(line["body"])) <= BODY_MAX + 3


def test_refusals_and_failed_logins_are_audit_lines() -> None:
    """As before in the log; now marked."""
    server, _ = administered()
    Users(server).add("shop")
    channel = server.connect()
    log_in(server, channel, "shop", "wrong-secret")
    log_in(server, channel, "shop", SECRET)

    server.request(RequestCode.UPDATE_AND_CREATE_TOPIC, TOPIC, channel=channel)

    assert [(line["user"], line["reason"]) for line in audited(server, "login")] == [("shop", "wrong secret")]
    assert [line["user"] for line in audited(server, "refusal")] == ["shop"]
    assert audited(server) == []
    assert server.components.door.audited == {"login": 1, "refusal": 1}


def test_without_access_control_changes_are_recorded_with_the_address() -> None:
    """And with the user, if one has logged in."""
    server = BrokerHarness()

    server.request(RequestCode.UPDATE_AND_CREATE_TOPIC, TOPIC)

    (line,) = audited(server)
    assert (line["user"], line["what"]) == ("", "Create or change a normal topic")
    assert str(line["peer"]).startswith("10.0.0.2:")
    assert CHANGED in server.logged()


def test_registrations_of_servers_have_no_line() -> None:
    """They come every 30 seconds."""
    server = guarded_name_server()
    channel = server.connect()
    log_in_as_server(server, channel)
    fields = {"clusterName": "c", "brokerName": "b", "brokerAddr": "192.0.2.1:1", "brokerId": "0", "haServerAddr": ""}

    server.request(RequestCode.UNREGISTER_BROKER, fields, channel=channel)

    assert audited(server) == []
