"""Runs of client programs that report check by check; `java/ClientMatrix.java` has all checks of a Java client."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.child import Child
from tests.support.java_peer import JavaPeer

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
    "reset_online",
    "connected_clients",
)
_TIMEOUT_S = 240.0


@dataclass(frozen=True, slots=True)
class Run:
    """What one client program reported, by check, and what it printed besides."""

    reports: dict[str, dict[str, Any]]
    printed: str
    status: int

    def check_passed(self, check: str) -> None:
        """Fail unless *check* ran and passed; the program's own words are the message."""
        report = self.reports.get(check)
        assert report is not None, f"it ended with {self.status} and without a word of {check}:\n{self.printed}"
        assert report["ok"], report["error"]


def start_matrix(
    peer: JavaPeer,
    name_server: str,
    prefix: str,
    home: Path,
    *,
    serializer: str = "JSON",
    checks: Sequence[str] = (),
    topics: str = "normal",
    options: Sequence[str] = (),
) -> Child:
    """Start *checks*, or all of them, with topics and groups that begin with *prefix*.

    Static topics have been made before. *options* are further ones of the JVM.
    """
    all_options = [
        *options,
        f"-Drocketmq.serialize.type={serializer}",
        # A member that leaves unlocks its queues a moment late: whoever takes over tries again after 5 s instead of 20.
        "-Drocketmq.client.rebalance.waitInterval=5000",
        f"-Dtopics={topics}",
    ]
    return peer.start_program("ClientMatrix", [name_server, prefix, *checks], home=home, options=all_options)


def finish(program: Child) -> Run:
    """Return what a program reported, once it has ended by itself."""
    with program:
        status = program.wait(timeout_s=_TIMEOUT_S)
    reports = [json.loads(line) for line in program.lines() if line.startswith('{"check"')]
    return Run({report["check"]: report for report in reports}, program.last_lines(), status)


def run_matrix(
    peer: JavaPeer,
    name_server: str,
    prefix: str,
    home: Path,
    *,
    serializer: str = "JSON",
    checks: Sequence[str] = (),
) -> Run:
    """Run *checks*, or all of them, to their end."""
    return finish(start_matrix(peer, name_server, prefix, home, serializer=serializer, checks=checks))
