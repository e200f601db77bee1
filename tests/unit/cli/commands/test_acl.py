"""Rules, on the command line."""

import json
from pathlib import Path

import pytest
from tests.support.cluster.scripted_users import ScriptedUsers

from holdfast.cli.main import main
from holdfast.model.access.user import User


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> ScriptedUsers:
    """A cluster that every command talks to, with one user."""
    found = ScriptedUsers()
    monkeypatch.setattr("holdfast.admin.operations.ClusterAccess", lambda *_, **__: found)
    for directory in found.directories.values():
        directory.create_user(User("alice", ("secret-of-alice",)), 1)
    return found


def rules_of(servers: ScriptedUsers) -> list[str]:
    return [str(rule) for rule in servers.directories["ns:2"].rules_of("alice")]


def test_grants_for_one_resource_add_up(servers: ScriptedUsers, capsys: pytest.CaptureFixture[str]):
    """Who permits a second thing does not want to take the first one away."""
    assert main(["acl", "grant", "alice", "Topic:orders", "Pub"]) == 0
    assert main(["acl", "grant", "alice", "topic:orders", "sub,get"]) == 0

    assert rules_of(servers) == ["Allow Topic:orders Pub,Sub,Get"]
    assert capsys.readouterr().out.splitlines()[-1] == "alice has the rule: Allow Topic:orders Pub,Sub,Get"


def test_another_effect_or_address_replaces_the_rule_and_says_so(
    servers: ScriptedUsers, capsys: pytest.CaptureFixture[str]
):
    """There is one rule for each resource."""
    assert main(["acl", "grant", "alice", "Topic:orders", "Pub"]) == 0
    capsys.readouterr()

    assert main(["acl", "grant", "alice", "Topic:orders", "Sub", "--deny", "--from", "10.0.0.0/8,::1"]) == 0

    assert rules_of(servers) == ["Deny Topic:orders Sub from 10.0.0.0/8,::1"]
    assert "it replaces the rule: Allow Topic:orders Pub" in capsys.readouterr().out


def test_a_dry_run_changes_nothing(servers: ScriptedUsers, capsys: pytest.CaptureFixture[str]):
    """It shows the rule."""
    assert main(["acl", "grant", "alice", "Topic:orders", "Pub", "--dry-run"]) == 0

    assert "alice would have the rule: Allow Topic:orders Pub" in capsys.readouterr().out
    assert rules_of(servers) == []


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("Topics:orders", "Pub"), "holdfast: 'Topics:orders' is neither '*' nor a type and a name"),
        (("Topic:orders", "Read"), "the action 'Read' is unknown"),
        (("Topic:orders", "Pub", "--from", "home"), "'home' is neither an IP address nor a CIDR block"),
    ],
)
def test_a_word_that_means_nothing_is_wrong_usage(
    servers: ScriptedUsers, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], text: str
):
    """With what would be right."""
    assert main(["acl", "grant", "alice", *words]) == 2
    assert text in capsys.readouterr().err
    assert rules_of(servers) == []


def test_actions_are_removed_from_a_rule_and_then_the_rule(servers: ScriptedUsers, capsys: pytest.CaptureFixture[str]):
    """Without actions the whole rule goes."""
    assert main(["acl", "grant", "alice", "Topic:orders", "Pub,Sub,Get"]) == 0

    assert main(["acl", "revoke", "alice", "Topic:orders", "Sub"]) == 0
    assert rules_of(servers) == ["Allow Topic:orders Pub,Get"]
    assert main(["acl", "revoke", "alice", "Topic:orders", "Sub"]) == 2
    assert main(["acl", "revoke", "alice", "Topic:orders"]) == 0
    assert rules_of(servers) == []
    capsys.readouterr()
    assert main(["acl", "revoke", "alice", "Topic:orders"]) == 2
    assert "alice has no rule for Topic:orders; its rules are for: none" in capsys.readouterr().err


def test_rules_are_listed_for_people_and_for_programs(servers: ScriptedUsers, capsys: pytest.CaptureFixture[str]):
    """In the words of ACL 2.0."""
    assert main(["acl", "list"]) == 0
    assert "no rule: only administrators may do anything" in capsys.readouterr().out
    assert main(["acl", "grant", "alice", "Topic:orders", "Pub", "--from", "10.0.0.7"]) == 0
    capsys.readouterr()

    assert main(["acl", "list", "--user", "ali", "--resource", "orders"]) == 0
    assert capsys.readouterr().out.splitlines()[1].split() == [
        *("alice", "Allow", "Topic:orders", "Pub", "10.0.0.7", "Custom")
    ]
    assert main(["acl", "list", "--json"]) == 0
    (of_alice,) = json.loads(capsys.readouterr().out)
    expected = {"effect": "Allow", "resource": "Topic:orders", "actions": ["Pub"], "tier": "Custom"}
    assert of_alice == {"user": "alice", "rules": [expected | {"sources": ["10.0.0.7"]}]}


def test_an_explanation_names_the_rule_that_decides(servers: ScriptedUsers, capsys: pytest.CaptureFixture[str]):
    """And shows the others in their order."""
    assert main(["acl", "grant", "alice", "Topic:*", "Sub"]) == 0
    assert main(["acl", "grant", "alice", "Topic:orders", "Sub", "--deny", "--from", "10.0.0.0/8"]) == 0
    capsys.readouterr()

    assert main(["acl", "explain", "alice", "Sub", "Topic:orders", "--from", "10.1.2.3"]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line]
    assert lines[0] == "refused: Sub on Topic:orders for alice from 10.1.2.3; the first rule that matches denies it"
    assert [line.split()[:3] for line in lines[3:]] == [
        ["decides", "Deny", "Topic:orders"],
        ["outranked", "Allow", "Topic:*"],
    ]

    assert main(["acl", "explain", "alice", "Sub", "Topic:orders"]) == 0
    assert capsys.readouterr().out.startswith("allowed: Sub on Topic:orders for alice from 127.0.0.1;")
    assert main(["acl", "explain", "alice", "Pub", "Topic:orders"]) == 0
    assert "no rule matches" in capsys.readouterr().out


@pytest.mark.parametrize("words", [("All", "Topic:orders"), ("Pub", "Topic:*"), ("Pub", "Topic:t", "--from", "home")])
def test_an_explanation_is_for_one_request(servers: ScriptedUsers, words: tuple[str, ...]):
    """A pattern has no answer."""
    assert main(["acl", "explain", "alice", *words]) == 2


ACL_1 = """
globalWhiteRemoteAddresses: [10.10.103.*]
accounts:
- accessKey: orders-service
  secretKey: 12345678
  whiteRemoteAddress: 192.168.0.*
  defaultTopicPerm: DENY
  topicPerms: [orders=PUB]
- accessKey: operator
  secretKey: 12345678
  admin: true
"""


def test_an_acl_1_file_becomes_users_and_rules(
    servers: ScriptedUsers, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """What rules cannot express is reported, and no secret is printed."""
    file = tmp_path / "plain_acl.yml"
    file.write_text(ACL_1)

    assert main(["acl", "import", str(file), "--dry-run"]) == 0
    shown = capsys.readouterr().out
    assert "would be created" in shown
    assert servers.directories["ns:1"].find_user("operator") is None

    assert main(["acl", "import", str(file)]) == 0
    shown += (out := capsys.readouterr().out)
    assert [line.split()[:2] for line in out.splitlines()[1:3]] == [
        ["orders-service", "normal"],
        ["operator", "administrator"],
    ]
    for text in ("Not imported: white addresses", "10.10.103.*", "192.168.0.*", "acl_file"):
        assert text in out
    assert "12345678" not in shown
    assert "Allow Topic:orders Pub" in map(str, servers.directories["ns:2"].rules_of("orders-service"))


def test_a_user_that_differs_is_left_alone_and_fails_the_import(
    servers: ScriptedUsers, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """The operator decides who it is."""
    file = tmp_path / "plain_acl.yml"
    file.write_text(ACL_1)
    for directory in servers.directories.values():
        directory.create_user(User("operator", ("another-secret",)), 1)

    assert main(["acl", "import", str(file)]) == 1
    assert "left alone" in capsys.readouterr().out
    assert main(["acl", "import", str(tmp_path / "missing.yml")]) == 2
