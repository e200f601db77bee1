"""The real `mqadmin` 5.5.0 manages users and rules of our cluster, as the administrator that conf/tools.yml names."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.interop.guarded_servers import ADMIN, GuardedServers
from tests.interop.java_shell import JavaShell, fields, rows
from tests.interop.servers import CLUSTER
from tests.support.cluster.raw_requests import Signer, raw_request
from tests.support.java_peer import JavaPeer

pytestmark = [pytest.mark.interop, pytest.mark.timeout(180)]

_GET_RUNTIME_INFO, _LIST_USERS = 28, 3005


@pytest.fixture(scope="module")
def shell(guarded: GuardedServers, peer_5: JavaPeer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaShell]:
    with JavaShell(peer_5, guarded.name_server, tmp_path_factory.mktemp("mqadmin"), user=ADMIN) as java:
        yield java


def where(guarded: GuardedServers, place: str) -> tuple[str, str]:
    """Return the options by which mqadmin is told whom to ask: the whole cluster, or one broker."""
    return ("-c", CLUSTER) if place == "cluster" else ("-b", guarded.first_broker)


@pytest.mark.parametrize("place", ["cluster", "broker"])
def test_users_are_managed(shell: JavaShell, guarded: GuardedServers, place: str) -> None:
    """createUser, getUser, listUser, updateUser, deleteUser; with -c the tool asks every broker in turn."""
    name = f"clerk-of-{place}"
    at = where(guarded, place)
    count = len(guarded.brokers) if place == "cluster" else 1

    created = shell.mqadmin("createUser", *at, "-u", name, "-p", "first-secret")
    shown = shell.mqadmin("getUser", *at, "-u", name)
    listed = shell.mqadmin("listUser", *at, "-f", name)
    updated = shell.mqadmin("updateUser", *at, "-u", name, "-s", "disable")
    disabled = shell.mqadmin("getUser", *at, "-u", name)
    refused = raw_request(guarded.first_broker, _GET_RUNTIME_INFO, {}, signer=Signer(name, "first-secret"))
    deleted = shell.mqadmin("deleteUser", *at, "-u", name)
    gone = shell.mqadmin("getUser", *at, "-u", name)

    assert created.count("success") == count, created
    assert rows(shown)[-1] == [name, "first-secret", "Normal", "enable"], shown
    assert [name, "first-secret", "Normal", "enable"] in rows(listed), listed
    assert updated.count("success") == count, updated
    assert rows(disabled)[-1] == [name, "first-secret", "Normal", "disable"], disabled
    assert (refused.code, refused.remark) == (16, f"User:{name} is disabled.")
    assert deleted.count("success") == count, deleted
    assert name not in gone, gone


@pytest.mark.parametrize("place", ["cluster", "broker"])
def test_rules_are_managed(shell: JavaShell, guarded: GuardedServers, place: str) -> None:
    """createAcl, getAcl, listAcl, updateAcl, deleteAcl: one resource of the user, and then all."""
    name = f"buyer-of-{place}"
    at = where(guarded, place)
    subject = ("-s", f"User:{name}")
    orders, billing = ("-r", "Topic:orders*"), ("-r", "Group:billing")
    assert "success" in shell.mqadmin("createUser", *at, "-u", name, "-p", "first-secret")

    for resource in (orders, billing):
        created = shell.mqadmin("createAcl", *at, *subject, *resource, "-a", "Pub,Sub", "-d", "Allow")
        assert "success" in created, created
    shown = rules_in(shell.mqadmin("getAcl", *at, *subject))
    shell.mqadmin("updateAcl", *at, *subject, *orders, "-a", "Sub", "-d", "Deny", "-i", "10.0.0.0/8")
    listed = rules_in(shell.mqadmin("listAcl", *at, *subject))
    shell.mqadmin("deleteAcl", *at, *subject, *orders)
    left = rules_in(shell.mqadmin("getAcl", *at, *subject))
    shell.mqadmin("deleteAcl", *at, *subject)
    nothing = rules_in(shell.mqadmin("getAcl", *at, *subject))

    user = f"User:{name}"
    for_billing = (user, "Custom", "Group:billing", "[Pub, Sub]", "null", "Allow")
    assert shown == {for_billing, (user, "Custom", "Topic:orders*", "[Pub, Sub]", "null", "Allow")}
    assert listed == {for_billing, (user, "Custom", "Topic:orders*", "[Sub]", "[10.0.0.0/8]", "Deny")}
    assert left == {for_billing}
    assert nothing == set()


def rules_in(printed: str) -> set[tuple[str, ...]]:
    """Return the lines of a table of rules."""
    lines = [line for line in printed.splitlines() if line.startswith("User:")]
    return {tuple(re.split(r"\s{2,}", line.strip())) for line in lines}


def test_users_and_rules_are_copied(shell: JavaShell, guarded: GuardedServers) -> None:
    """A copy between two brokers, which have the same users already, succeed and change nothing."""
    first, second = guarded.brokers.values()
    user = Signer("copied", "first-secret")
    guarded.add_user(user, "Topic:orders Pub")
    before = shell.mqadmin("listAcl", "-b", second), shell.mqadmin("listUser", "-b", second)

    copied = shell.mqadmin("copyUser", "-f", first, "-t", second, "-u", user.user)
    copied += shell.mqadmin("copyAcl", "-f", first, "-t", second, "-s", f"User:{user.user}")

    assert copied.count("success") == 2, copied
    assert (shell.mqadmin("listAcl", "-b", second), shell.mqadmin("listUser", "-b", second)) == before


def test_topics_and_groups_are_managed_as_before(shell: JavaShell, guarded: GuardedServers) -> None:
    """One command of each kind, every request of it signed, at brokers and the name server."""
    topic, group = "AdminGuarded", "AdminGuardedGroup"
    brokers = len(guarded.brokers)
    shell.make_topic(topic, CLUSTER, 2, brokers)
    first = shell.seed(topic, group, 4)

    assert {row[1] for row in rows(shell.mqadmin("clusterList"))} == guarded.brokers.keys()
    assert [topic] in rows(shell.mqadmin("topicList"))
    assert sum(row[0] in guarded.brokers for row in rows(shell.mqadmin("topicStatus", "-t", topic))) == 2 * brokers
    assert fields(shell.mqadmin("consumerProgress", "-g", group))["Consume Diff Total"] == "4"
    assert first.unique_id in shell.mqadmin("queryMsgByKey", "-t", topic, "-k", "key-0")
    assert "putTps" in shell.mqadmin("brokerStatus", "-b", guarded.first_broker)
    assert shell.mqadmin("updateSubGroup", "-c", CLUSTER, "-g", "AdminMade").count("success") == brokers
    assert "consumeEnable" in shell.mqadmin("getConsumerConfig", "-g", "AdminMade")
    assert shell.mqadmin("deleteSubGroup", "-c", CLUSTER, "-g", "AdminMade").count("success") == brokers
    assert "OK" in shell.mqadmin("wipeWritePerm", "-b", max(guarded.brokers))
    assert "OK" in shell.mqadmin("addWritePerm", "-b", max(guarded.brokers))
    assert "success" in shell.mqadmin("updateOrderConf", "-t", topic, "-m", "put", "-v", "broker-a:4")
    assert "success" in shell.mqadmin("deleteTopic", "-c", CLUSTER, "-t", topic)


@pytest.mark.slow
@pytest.mark.parametrize("secret", ["another-secret", None], ids=["wrong", "missing"])
def test_a_stranger_manages_nothing(
    guarded: GuardedServers, peer_5: JavaPeer, tmp_path: Path, secret: str | None
) -> None:
    """The tool says so; no user is made."""
    user = None if secret is None else ADMIN._replace(secret=secret)
    with JavaShell(peer_5, guarded.name_server, tmp_path / "stranger", user=user) as stranger:
        for words in (
            ("createUser", "-b", guarded.first_broker, "-u", "intruder", "-p", "first-secret", "-t", "Super"),
            ("updateTopic", "-b", guarded.first_broker, "-t", "intruder"),
            ("updateBrokerConfig", "-b", guarded.first_broker, "-k", "flushDiskType", "-v", "SYNC_FLUSH"),
        ):
            printed = stranger.mqadmin(*words)
            assert "CODE: 16" in printed, printed
    listed = raw_request(guarded.first_broker, _LIST_USERS, {}, signer=ADMIN).text
    assert ADMIN.user in listed
    assert "intruder" not in listed
