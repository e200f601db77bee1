"""Java and Holdfast in one cluster: either kind of broker under either kind of name server, one topic on both.

A Java client then uses such topics in every way, not knowing which broker is which.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.interop.client_matrix import CHECKS, Run, run_matrix
from tests.interop.java_shell import JavaShell, rows
from tests.interop.servers import CLUSTER, HOLDFAST_SETTINGS, JAVA_SETTINGS
from tests.support.child import Child
from tests.support.cluster.ports import free_port
from tests.support.cluster.processes import ProcessCluster
from tests.support.cluster.raw_requests import raw_request, wait_until_gone, wait_until_registered
from tests.support.java_peer import JavaPeer

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

_CLUSTER_INFO = 106
# A Java broker may take a pull's older commit after the newer one of a consumer that leaves. It may ask after a
# transaction again while it has yet to note what was decided, and then stores it twice. Either way messages come again.
MIXED_CHECKS = tuple(check for check in CHECKS if check not in {"restart_continues", "transaction_checked_back"})


@dataclass(frozen=True, slots=True)
class Mixed:
    """A running cluster of both kinds, with the client that is let loose on it."""

    name_server: str
    client: JavaPeer
    ours: Child
    theirs: Child
    run: Run


def start_name_server(kind: str, peer: JavaPeer, cluster: ProcessCluster, children: list[Child], folder: Path) -> str:
    if kind == "holdfast":
        return cluster.start_name_server()
    port = free_port()
    children.append(peer.start_name_server(port=port, home=folder / "namesrv"))
    return f"127.0.0.1:{port}"


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(("holdfast", "peer_5"), id="our-name-server-with-a-5.5.0-broker"),
        pytest.param(("java", "peer_4"), id="a-java-name-server-with-a-4.9.7-broker"),
        pytest.param(("holdfast", "peer_4"), id="our-name-server-with-a-4.9.7-broker", marks=pytest.mark.slow),
        pytest.param(("java", "peer_5"), id="a-java-name-server-with-a-5.5.0-broker", marks=pytest.mark.slow),
    ],
)
def mixed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mixed]:
    kind, peer_name = request.param
    peer: JavaPeer = request.getfixturevalue(peer_name)
    folder = tmp_path_factory.mktemp("mixed")
    children: list[Child] = []
    with ProcessCluster(folder, name_servers=0) as cluster:
        try:
            name_server = start_name_server(kind, peer, cluster, children, folder)
            ours = cluster.start("ours", namesrv=name_server, cluster=CLUSTER, settings=HOLDFAST_SETTINGS)
            theirs = peer.start_broker(
                name="theirs",
                cluster=CLUSTER,
                port=free_port(),
                name_server=name_server,
                store=folder / "theirs",
                settings=JAVA_SETTINGS,
            )
            children.append(theirs)
            wait_until_registered(name_server, ["ours", "theirs"])
            run = run_matrix(peer, name_server, "Mixed-", folder / "client", checks=MIXED_CHECKS)
            yield Mixed(name_server, peer, ours.child, theirs, run)
        finally:
            for child in reversed(children):
                child.kill()


@pytest.mark.parametrize("check", MIXED_CHECKS)
def test_a_java_client_uses_both_kinds_of_broker_in_one_topic(mixed: Mixed, check: str) -> None:
    """The check ran and passed on topics that live on our broker and on a Java one."""
    mixed.run.check_passed(check)


def test_mqadmin_sees_both_kinds(mixed: Mixed, peer_5: JavaPeer, tmp_path: Path) -> None:
    """`clusterList` asks both brokers how they are, and gets an answer from both."""
    with JavaShell(peer_5, mixed.name_server, tmp_path) as shell:
        listed = rows(shell.mqadmin("clusterList"))

    assert [row[1] for row in listed] == ["ours", "theirs"]
    assert all(row[4].startswith("V") for row in listed), listed


def test_a_broker_that_leaves_is_forgotten(mixed: Mixed) -> None:
    """Whoever stops is taken from the route at once, whichever kind the broker and the name server are. Runs last."""
    assert mixed.ours.stop() == 0
    wait_until_gone(mixed.name_server, ["ours"])
    assert '"theirs"' in raw_request(mixed.name_server, _CLUSTER_INFO, {}).text

    mixed.theirs.stop()
    wait_until_gone(mixed.name_server, ["theirs"])
    assert '"ours"' not in raw_request(mixed.name_server, _CLUSTER_INFO, {}).text
