"""Users, on the command line."""

import io
import json
import stat
from pathlib import Path

import pytest
from tests.support.cluster.scripted_users import ScriptedUsers

from holdfast.cli.main import main
from holdfast.model.access.user import User, UserKind


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> ScriptedUsers:
    """A cluster that every command talks to."""
    found = ScriptedUsers()
    monkeypatch.setattr("holdfast.admin.operations.ClusterAccess", lambda *_, **__: found)
    return found


def user_of(servers: ScriptedUsers, name: str = "alice") -> User | None:
    return servers.directories["ns:1"].find_user(name)


def test_a_generated_secret_is_printed_once(servers: ScriptedUsers, capsys: pytest.CaptureFixture[str]):
    """Nobody can look it up later."""
    assert main(["user", "create", "alice"]) == 0

    printed = capsys.readouterr()
    alice = user_of(servers)
    assert alice is not None
    assert printed.out == (f"created the user alice\nits secret, which is shown only now: {alice.secrets[0]}\n")
    assert len(alice.secrets[0]) == 32
    assert "holdfast acl grant alice" in printed.err


def test_a_saved_secret_is_not_printed(servers: ScriptedUsers, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """It is in a file that only its owner can read."""
    file = tmp_path / "alice.secret"

    assert main(["user", "create", "alice", "--super", "--save-to", str(file)]) == 0

    secret = file.read_text().removesuffix("\n")
    assert user_of(servers) == User("alice", (secret,), UserKind.SUPER)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    printed = capsys.readouterr()
    assert secret not in printed.out + printed.err
    assert "created the administrator alice" in printed.out


def test_a_refused_user_leaves_no_file(servers: ScriptedUsers, tmp_path: Path):
    """And a file that exists is not replaced: it may have the secret of another user."""
    servers.directories["ns:1"].create_user(User("alice", ("another-secret",)), 1)
    file = tmp_path / "alice.secret"

    assert main(["user", "create", "alice", "--save-to", str(file)]) == 1
    assert list(tmp_path.iterdir()) == []

    file.write_text("of-somebody-else")
    assert main(["user", "create", "bob", "--save-to", str(file)]) == 2
    assert (file.read_text(), user_of(servers, "bob")) == ("of-somebody-else", None)


def test_a_secret_comes_from_a_file_or_from_standard_input(
    servers: ScriptedUsers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """Never from an argument, which every user of the machine could see."""
    file = tmp_path / "given"
    file.write_text("from-a-file\n")
    file.chmod(0o600)
    monkeypatch.setattr("sys.stdin", io.StringIO("from-the-input\n"))

    assert main(["user", "create", "alice", "--secret-from", str(file)]) == 0
    assert main(["user", "create", "bob", "--secret-from", "-"]) == 0

    assert (user_of(servers), user_of(servers, "bob")) == (
        User("alice", ("from-a-file",)),
        User("bob", ("from-the-input",)),
    )
    assert "from-" not in capsys.readouterr().out
    file.chmod(0o644)
    assert main(["user", "create", "carol", "--secret-from", str(file)]) == 2


def test_the_list_has_no_secrets(servers: ScriptedUsers, capsys: pytest.CaptureFixture[str]):
    """Only what an operator needs to see."""
    servers.directories["ns:1"].create_user(User("root", ("secret-of-root",), UserKind.SUPER), 1)
    servers.directories["ns:1"].create_user(User("alice", ("secret-of-alice",), is_enabled=False), 1)

    assert main(["user", "list"]) == 0
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [
        ["USER", "KIND", "STATE", "RULES"],
        ["alice", "normal", "disabled", "0"],
        ["root", "administrator", "enabled", "-"],
    ]
    assert main(["user", "list", "roo", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == [{"name": "root", "kind": "Super", "is_enabled": True, "rules": 0}]


def test_a_secret_is_replaced_while_the_old_one_stays_valid(servers: ScriptedUsers, tmp_path: Path):
    """The file of the user is replaced at once, and clients that follow it use the new secret."""
    file = tmp_path / "alice.secret"
    assert main(["user", "create", "alice", "--save-to", str(file)]) == 0
    old = file.read_text().removesuffix("\n")

    assert main(["user", "update", "alice", "--save-to", str(file), "--keep-old-secret"]) == 0
    new = file.read_text().removesuffix("\n")
    assert user_of(servers) == User("alice", (new, old))
    assert new != old

    assert main(["user", "update", "alice", "--drop-old-secret", "--disable"]) == 0
    assert user_of(servers) == User("alice", (new,), is_enabled=False)


def test_a_user_becomes_an_administrator_and_a_normal_user_again(servers: ScriptedUsers):
    """Its secret and its state stay."""
    assert main(["user", "create", "alice"]) == 0
    before = user_of(servers)
    assert before is not None

    assert main(["user", "update", "alice", "--super"]) == 0
    assert user_of(servers) == User("alice", before.secrets, UserKind.SUPER)
    assert main(["user", "update", "alice", "--normal"]) == 0
    assert user_of(servers) == before


def test_an_update_says_what_is_missing(servers: ScriptedUsers, capsys: pytest.CaptureFixture[str]):
    """A command that does nothing would look like one that worked."""
    assert main(["user", "create", "alice"]) == 0

    assert main(["user", "update", "alice"]) == 2
    assert "nothing to change" in capsys.readouterr().err
    assert main(["user", "update", "alice", "--keep-old-secret"]) == 2
    assert "--keep-old-secret is for a new secret" in capsys.readouterr().err
    assert main(["user", "update", "alicx", "--disable"]) == 1
    assert "did you mean 'alice'" in capsys.readouterr().err


def test_a_server_that_is_away_is_named(servers: ScriptedUsers, capsys: pytest.CaptureFixture[str]):
    """It catches up without another command."""
    servers.kill("ns:2")

    assert main(["user", "create", "alice"]) == 0
    assert "warning: ns:2 did not receive the change" in capsys.readouterr().err


def test_users_of_brokers_are_announced(servers: ScriptedUsers, capsys: pytest.CaptureFixture[str]):
    """With name servers of Java, each broker has its own."""
    servers.directories = {"a:1": servers.directories["a:1"]}

    assert main(["user", "create", "alice"]) == 0
    assert "each broker has its own, and was changed: a:1" in capsys.readouterr().err


def test_a_deletion_asks_at_a_terminal(servers: ScriptedUsers, monkeypatch: pytest.MonkeyPatch):
    """Who declines keeps the user."""
    assert main(["user", "create", "alice"]) == 0
    monkeypatch.setattr("holdfast.cli.session.is_interactive", lambda: True)
    monkeypatch.setattr("typer.confirm", lambda *_, **__: False)

    assert main(["user", "delete", "alice"]) == 1
    assert user_of(servers) is not None
    assert main(["user", "delete", "alice", "--yes"]) == 0
    assert user_of(servers) is None


def test_the_first_administrator_is_created_in_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Once: then an administrator creates others."""
    folder, file = tmp_path / "ns", tmp_path / "admin.secret"

    assert main(["user", "init", str(folder), "--save-to", str(file)]) == 0

    content = json.loads((folder / "config" / "holdfastAccess.json").read_text())
    (record,) = content["records"]
    assert record["user"] == {"secrets": [file.read_text().strip()], "kind": "Super", "enabled": True}
    assert "created the administrator admin" in capsys.readouterr().out
    assert main(["user", "init", str(folder), "--name", "other"]) == 1
    assert "there is an administrator already: admin" in capsys.readouterr().err
