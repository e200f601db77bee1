"""Java clients, unmodified, with RocketMQ's ACL hook at our servers with access control.

A user with the rights that the documentation names does everything that works without access control.
"""

import pytest
from tests.interop.client_matrix import CHECKS, Run, finish, start_matrix
from tests.interop.guarded_servers import ADMIN, GuardedServers
from tests.interop.servers import CLUSTER
from tests.support.cluster.raw_requests import Signer
from tests.support.java_peer import JavaPeer

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

QUICK = (
    "sync",
    "async",
    "oneway",
    "batch",
    "ordered",
    "request_reply",
    "plain_pull",
    "lite_pull_assign",
    "retry_chosen_delay",
    "transaction_decided",
)
"""One check of each kind, none of which waits for long."""
SLOW = tuple(check for check in CHECKS if check not in QUICK)


def run_as_users(
    guarded: GuardedServers, peers: list[tuple[JavaPeer, str]], checks: tuple[str, ...], factory: pytest.TempPathFactory
) -> dict[str, Run]:
    """Run *checks* of all *peers* side by side, each with a user, topics and groups of its own."""
    programs = {}
    for peer, serializer in peers:
        name = f"{peer.version}-{serializer.lower()}"
        prefix = f"A{peer.version.replace('.', '')}{serializer[0]}{len(checks)}-"
        user = Signer(f"user-of-{prefix}", "secret-of-the-user")
        guarded.add_user(
            user,
            f"Topic:{prefix}* Pub,Sub,Get,Create",
            f"Group:{prefix}* Sub,Get",
            f"Topic:%DLQ%{prefix}* Sub,Get",
            f"Topic:{CLUSTER}_REPLY_TOPIC Pub",
        )
        options = [f"-Daccess.user={user.user}:{user.secret}", f"-Daccess.admin={ADMIN.user}:{ADMIN.secret}"]
        home = factory.mktemp("client")
        programs[name] = start_matrix(
            peer, guarded.name_server, prefix, home, serializer=serializer, checks=checks, options=options
        )
    return {name: finish(program) for name, program in programs.items()}


@pytest.fixture(scope="module")
def quick_runs(
    guarded: GuardedServers, peer_4: JavaPeer, peer_5: JavaPeer, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Run]:
    return run_as_users(guarded, [(peer_4, "JSON"), (peer_5, "ROCKETMQ")], QUICK, tmp_path_factory)


@pytest.fixture(scope="module")
def slow_runs(
    guarded: GuardedServers, peer_4: JavaPeer, peer_5: JavaPeer, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Run]:
    return run_as_users(guarded, [(peer_4, "ROCKETMQ"), (peer_5, "JSON")], SLOW, tmp_path_factory)


@pytest.mark.parametrize("check", QUICK)
@pytest.mark.parametrize("client", ["4.9.7-json", "5.5.0-rocketmq"])
def test_a_user_with_its_rights_gets_what_it_relies_on(quick_runs: dict[str, Run], client: str, check: str) -> None:
    """The check ran and passed, with every request signed."""
    quick_runs[client].check_passed(check)


@pytest.mark.slow
@pytest.mark.parametrize("check", SLOW)
@pytest.mark.parametrize("client", ["4.9.7-rocketmq", "5.5.0-json"])
def test_a_user_with_its_rights_gets_everything_else(slow_runs: dict[str, Run], client: str, check: str) -> None:
    """The check ran and passed, with every request signed."""
    slow_runs[client].check_passed(check)
