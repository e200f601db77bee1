"""Java `rocketmq-client` 4.9.7 and 5.5.0, unmodified, use the cluster in every way an application does.

All checks of one version run side by side in one JVM (`java/ClientMatrix.java`); each is one test here. Their ledger is
always the same: what was sent is what arrives, once, unchanged, in the order of its queue.
"""

import pytest
from tests.interop.client_matrix import CHECKS, Run, run_matrix
from tests.interop.servers import Servers
from tests.support.java_peer import JavaPeer

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(("peer_4", "JSON"), id="4.9.7-json"),
        pytest.param(("peer_5", "ROCKETMQ"), id="5.5.0-binary"),
        pytest.param(("peer_5", "JSON"), id="5.5.0-json"),
        pytest.param(("peer_4", "ROCKETMQ"), id="4.9.7-binary", marks=pytest.mark.slow),
    ],
)
def run(request: pytest.FixtureRequest, servers: Servers, tmp_path_factory: pytest.TempPathFactory) -> Run:
    name, serializer = request.param
    peer: JavaPeer = request.getfixturevalue(name)
    prefix = f"J{peer.version.replace('.', '')}{serializer[0]}-"
    home = tmp_path_factory.mktemp("client")
    return run_matrix(peer, servers.name_server, prefix, home, serializer=serializer)


@pytest.mark.parametrize("check", CHECKS)
def test_a_java_client_gets_what_it_relies_on(run: Run, servers: Servers, check: str) -> None:
    """The check ran and passed."""
    if servers.kind == "java" and check == "restart_continues":
        pytest.skip("a Java broker may take a pull's older commit after the newer one of a consumer that leaves")
    run.check_passed(check)


def test_no_check_is_left_out(run: Run) -> None:
    """The list in Python and the Java program name the same checks."""
    assert set(run.reports) == set(CHECKS)
