"""Users are managed as RocketMQ 5 does it, and secrets are returned to few."""

import json
from typing import Any

import pytest
from tests.support.access import SECRET, Users, guarded_broker, guarded_name_server, log_in_as_server, signed
from tests.support.cluster.broker_machine import BrokerHarness
from tests.support.cluster.machine import MachineHarness

from holdfast.wire.frames.command import Command, encode_command


@pytest.fixture(params=[guarded_broker, guarded_name_server], ids=["broker", "name server"])
def server(request: pytest.FixtureRequest) -> MachineHarness:
    """A role with an administrator, and a user who may manage users."""
    server: MachineHarness = request.param()
    users = Users(server)
    users.add("admin", is_super=True)
    users.add("deputy", "Cluster:* All")
    return server


def send(
    server: MachineHarness,
    code: int,
    username: str | None = None,
    body: object = None,
    by: str = "admin",
    **fields: str,
) -> Command:
    """Send a request about a user; return the answer."""
    named = {} if username is None else {"username": username}
    data = b"" if body is None else json.dumps(body).encode()
    channel = server.connect()
    server.receive(channel, encode_command(signed(server.new_request(code, named | fields, body=data), by)))
    (answer,) = server.pop_answers(channel)
    return answer


def create(server: MachineHarness, name: str, by: str = "admin", **body: Any) -> Command:
    return send(server, 3001, name, {"username": name, "password": "password-1"} | body, by)


def result(answer: Command) -> tuple[int, str | None]:
    return answer.code, answer.remark


def test_a_user_is_created_changed_returned_and_deleted(server: MachineHarness) -> None:
    assert create(server, "alice").code == 0
    assert json.loads(send(server, 3004, "alice").body) == {
        "username": "alice",
        "password": "password-1",
        "userType": "Normal",
        "userStatus": "enable",
    }

    assert send(server, 3002, "alice", {"userStatus": "disable"}).code == 0
    changed = json.loads(send(server, 3004, "alice").body)
    assert (changed["userStatus"], changed["password"]) == ("disable", "password-1")

    assert send(server, 3003, "alice").code == 0
    assert send(server, 3003, "alice").code == 0
    assert (send(server, 3004, "alice").code, send(server, 3004, "alice").body) == (0, b"")


def test_users_are_listed_by_a_part_of_their_names(server: MachineHarness) -> None:
    create(server, "alice")
    create(server, "alina")

    listed = json.loads(send(server, 3005, filter="ali").body)

    assert [user["username"] for user in listed] == ["alice", "alina"]
    assert send(server, 3005, filter="nobody").body == b""


def test_a_creation_that_is_repeated_succeeds(server: MachineHarness) -> None:
    assert create(server, "alice").code == 0
    assert create(server, "alice").code == 0

    assert result(create(server, "alice", password="password-2")) == (16, "The user is existed")


@pytest.mark.parametrize(
    ("code", "name", "body", "expected"),
    [
        (3001, "", {"password": "password-1"}, (29, "The username is blank")),
        (3001, "bob", {}, (16, "password can not be blank")),
        (3002, "bob", {"password": "password-2"}, (16, "The user is not exist")),
        (3004, "", None, (29, "The username is blank")),
    ],
)
def test_refusals_have_the_codes_and_texts_of_upstream(
    server: MachineHarness, code: int, name: str, body: object, expected: tuple[int, str]
) -> None:
    assert result(send(server, code, name, body)) == expected


def test_secrets_are_returned_only_to_super_users_and_servers(server: MachineHarness) -> None:
    assert "password" in json.loads(send(server, 3004, "deputy").body)
    assert "password" not in json.loads(send(server, 3004, "admin", by="deputy").body)
    assert all("password" not in user for user in json.loads(send(server, 3005, by="deputy").body))

    channel = server.connect()
    log_in_as_server(server, channel)
    answer = server.request(3004, {"username": "admin"}, channel=channel)
    assert json.loads(answer.body)["password"] == SECRET


def test_only_a_super_user_creates_changes_and_deletes_super_users(server: MachineHarness) -> None:
    needed = (1, "The super user can only be create by super user")
    assert result(create(server, "eve", by="deputy", userType="Super")) == needed
    assert create(server, "eve", by="deputy").code == 0
    assert send(server, 3002, "eve", {"userType": "Super"}, by="deputy").code == 1
    assert send(server, 3002, "admin", {"password": "password-2"}, by="deputy").code == 1
    assert send(server, 3003, "admin", by="deputy").code == 1

    assert send(server, 3002, "eve", {"userType": "Super"}).code == 0
    assert send(server, 3003, "eve", by="deputy").code == 1


def test_without_access_control_nobody_plants_a_super_user_or_reads_secrets() -> None:
    """They would count once it is on."""
    server = BrokerHarness()
    body = json.dumps({"username": "eve", "password": "password-1", "userType": "Super"}).encode()
    assert server.request(3001, {"username": "eve"}, body=body).code == 1
    body = json.dumps({"username": "eve", "password": "password-1"}).encode()
    channel = server.connect()
    server.send_bytes(encode_command(server.new_request(3001, {"username": "eve"}, body=body)), channel)

    assert json.loads(server.request(3004, {"username": "eve"}).body) == {
        "username": "eve",
        "userType": "Normal",
        "userStatus": "enable",
    }


def test_a_secret_is_replaced_in_two_steps(server: MachineHarness) -> None:
    """Meanwhile both are valid."""

    def may_list(secret: str) -> bool:
        channel = server.connect()
        server.receive(channel, encode_command(signed(server.new_request(3005), "deputy", secret)))
        return server.pop_answers(channel)[0].code == 0

    assert send(server, 3002, "deputy", {"password": "password-2"}, **{"hf.keepOld": "true"}).code == 0
    assert (may_list(SECRET), may_list("password-2")) == (True, True)

    assert send(server, 3002, "deputy", {}, **{"hf.keepOld": "false"}).code == 0
    assert (may_list(SECRET), may_list("password-2")) == (False, True)

    assert send(server, 3002, "deputy", {"password": "password-3"}).code == 0
    assert (may_list("password-2"), may_list("password-3")) == (False, True)


@pytest.mark.parametrize("code", [50, 51, 52, 53, 54])
def test_requests_of_the_older_access_control_are_not_supported(server: MachineHarness, code: int) -> None:
    assert result(send(server, code)) == (3, f" request type {code} not supported")
