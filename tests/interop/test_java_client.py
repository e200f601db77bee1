"""Java `rocketmq-client` 4.9.7 and 5.5.0, unmodified, use the cluster in every way an application does.

All checks of one version run side by side in one JVM (`java/ClientMatrix.java`); each is one test here. Their ledger is
always the same: what was sent is what arrives, once, unchanged, in the order of its queue.
"""

import json

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.interop.servers import Servers
from tests.support.java_peer import JavaPeer

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

CHECKS = (
    "sync",
    "async",
    "oneway",
    "batch",
    "big_and_compressed",
    "chosen_queue",
    "vip_channel",
    "auto_created_topic",
    "refused_queue",
    "ordered",
    "group_shares_queues",
    "restart_continues",
    "broadcast",
    "tags",
    "delayed",
    "request_reply",
    "lite_pull_seek",
    "lite_pull_assign",
    "plain_pull",
    "long_poll",
    "retry_default_delay",
    "retry_chosen_delay",
    "dead_letter",
    "ordered_suspend",
    "transaction_decided",
    "transaction_checked_back",
    "query_by_key",
    "query_by_id",
)
_TIMEOUT_S = 240.0


@dataclass(frozen=True, slots=True)
class Run:
    """What one JVM reported, by check, and what it printed besides."""

    reports: dict[str, dict[str, Any]]
    printed: str
    status: int


def run_matrix(peer: JavaPeer, name_server: str, prefix: str, home: Path, serializer: str) -> Run:
    """Run the whole matrix of *peer*'s client once."""
    # A member that leaves unlocks its queues a moment late: whoever takes over tries again after 5 s instead of 20.
    options = [f"-Drocketmq.serialize.type={serializer}", "-Drocketmq.client.rebalance.waitInterval=5000"]
    with peer.start_program("ClientMatrix", [name_server, prefix], home=home, options=options) as program:
        status = program.wait(timeout_s=_TIMEOUT_S)
        reports = [json.loads(line) for line in program.lines() if line.startswith('{"check"')]
        return Run({report["check"]: report for report in reports}, program.said(), status)


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(("peer_4", "JSON"), id="4.9.7-json"),
        pytest.param(("peer_5", "ROCKETMQ"), id="5.5.0-binary"),
        pytest.param(("peer_5", "JSON"), id="5.5.0-json"),
        pytest.param(("peer_4", "ROCKETMQ"), id="4.9.7-binary", marks=pytest.mark.slow),
    ],
)
def run(
    request: pytest.FixtureRequest, servers: Servers, tmp_path_factory: pytest.TempPathFactory
) -> Run:
    name, serializer = request.param
    peer: JavaPeer = request.getfixturevalue(name)
    prefix = f"J{peer.version.replace('.', '')}{serializer[0]}-"
    return run_matrix(peer, servers.name_server, prefix, tmp_path_factory.mktemp("client"), serializer)


@pytest.mark.parametrize("check", CHECKS)
def test_a_java_client_gets_what_it_relies_on(run: Run, check: str):
    """The check ran and passed; on failure the Java side's own words are the message."""
    report = run.reports.get(check)

    assert report is not None, f"the JVM ended with {run.status} and without a word of {check}:\n{run.printed}"
    assert report["ok"], report["error"]


def test_no_check_is_left_out(run: Run):
    """The list above and the Java program name the same checks, and the program agrees that all is well."""
    assert set(run.reports) == set(CHECKS)
    assert run.status == 0, run.printed
