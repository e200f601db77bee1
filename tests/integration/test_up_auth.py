"""`holdfast up --auth` as its user meets it: who is admitted, who is refused, and what stays over a restart."""

import json
import stat
from pathlib import Path

import pytest
from tests.support.child import Child
from tests.support.cluster.operator import HOLDFAST, CommandResult, run_in_process
from tests.support.cluster.up import READY_TIMEOUT_S, Up

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(autouse=True)
def _own_profiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the profiles of the person who runs the tests as they are."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


def run(cluster: Up, *words: str) -> CommandResult:
    """Run a command without a user of its own."""
    return run_in_process(*words, namesrv=cluster.namesrv)


def run_as(cluster: Up, user: str, file: str, *words: str) -> CommandResult:
    """Run a command as a user."""
    return run(cluster, *words, "--access-key", user, "--secret-file", file)


def bodies(result: CommandResult) -> list[str]:
    return [message["body"] for message in json.loads(result.out)["messages"]]


def test_only_users_with_a_permission_are_served(tmp_path: Path):
    """Nobody without a user, the administrator with everything, and a user with one right with just that."""
    with Up(tmp_path / "data", "--brokers", "1", "--auth") as cluster:
        auth = cluster.announced["auth"]
        assert set(auth) == {"access_key", "secret_file"}
        admin = (auth["access_key"], auth["secret_file"])
        assert stat.S_IMODE(Path(auth["secret_file"]).stat().st_mode) == 0o600

        refused = run(cluster, "send", "orders", "anonymous")
        assert refused.status == 1
        assert "has access control: say who you are with --access-key USER --secret-file FILE" in refused.err

        assert run_as(cluster, *admin, "topic", "create", "orders", "--queues", "1").status == 0
        assert run_as(cluster, *admin, "send", "orders", "of the administrator").status == 0

        file = str(tmp_path / "alice.secret")
        assert run_as(cluster, *admin, "user", "create", "alice", "--save-to", file).status == 0
        refused = run_as(cluster, "alice", file, "send", "orders", "too early")
        assert (refused.status, "User:alice has no permission to access Topic:orders" in refused.err) == (1, True)

        assert run_as(cluster, *admin, "acl", "grant", "alice", "Topic:orders", "Pub").status == 0
        assert run_as(cluster, "alice", file, "send", "orders", "of alice").status == 0
        for words in (
            ("send", "billing", "another topic"),
            ("tail", "orders", "--from", "earliest"),
            ("topic", "delete", "orders", "--yes"),
            ("user", "list"),
            ("acl", "grant", "alice", "*", "All"),
        ):
            refused = run_as(cluster, "alice", file, *words)
            assert (refused.status, "User:alice has no permission" in refused.err) == (1, True), words

        tailed = run_as(cluster, *admin, "tail", "orders", "--from", "earliest", "--json")
        assert bodies(tailed) == ["of the administrator", "of alice"]


def test_a_second_start_keeps_users_and_secrets_and_commands_need_no_options(tmp_path: Path):
    """Commands act as the administrator by the profile that `up` has written."""
    data = tmp_path / "data"
    with Up(data, "--brokers", "1", "--auth") as cluster:
        auth = cluster.announced["auth"]
        secret = Path(auth["secret_file"]).read_text()
        namesrv = cluster.namesrv
        created = Child([HOLDFAST, "user", "create", "alice"], name="user create")
        assert created.wait(timeout_s=READY_TIMEOUT_S) == 0, created.last_lines()

    with Up(data, "--auth", "--namesrv", namesrv) as cluster:
        assert cluster.announced["auth"] == auth
        assert Path(auth["secret_file"]).read_text() == secret
        listed = Child([HOLDFAST, "user", "list", "--json"], name="user list")
        assert listed.wait(timeout_s=READY_TIMEOUT_S) == 0, listed.last_lines()
        assert [user["name"] for user in json.loads(listed.lines()[-1])] == ["admin", "alice"]
