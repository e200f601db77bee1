"""A JVM at our command: the real `mqadmin`, and what else only a Java client can tell, many commands in one process.

mqadmin exits with 0 whatever happened, so what it prints is all there is to judge by.
"""

import json
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from tests.support.child import ChildFailed
from tests.support.cluster.raw_requests import Signer
from tests.support.java_peer import JavaPeer

_TIMEOUT_S = 100.0


@dataclass(frozen=True, slots=True)
class Seeded:
    """The first of the messages that `JavaShell.seed` sent: its two ids and its place."""

    unique_id: str
    offset_id: str
    broker: str
    queue: int
    offset: int


class JavaShell:
    """A JVM that runs one command after the other (`java/Shell.java`): mqadmin's, and a few of our own.

    Args:
        peer: RocketMQ of one version.
        name_server: Of the cluster.
        home: A new folder.
        user: As whom it signs, if the cluster has access control.

    Attributes:
        version: Of RocketMQ.
    """

    def __init__(self, peer: JavaPeer, name_server: str, home: Path, *, user: Signer | None = None) -> None:
        self._name_server = name_server
        self.version = peer.version
        (home / "conf").mkdir(parents=True)
        (home / "conf" / "logback_tools.xml").write_text("<configuration/>")  # mqadmin 4.x will not start without it.
        # A consumer hears of its group's new retry topic when it next looks at all of its topics: not after 20 s.
        options = ["-Drocketmq.client.rebalance.waitInterval=2000"]
        if user is not None:
            (home / "conf" / "tools.yml").write_text(f"accessKey: {user.user}\nsecretKey: {user.secret}\n")
            options.append(f"-Daccess.user={user.user}:{user.secret}")
        self._child = peer.start_program("Shell", [], home=home, options=options)
        self._child.wait_for_line('"ready"', timeout_s=_TIMEOUT_S)

    def mqadmin(self, *arguments: str) -> str:
        """Run one mqadmin command and return what it printed."""
        return self._run([*arguments, "-n", self._name_server])[0]

    def mqadmin_until(self, holds: Callable[[str], bool], *arguments: str) -> str:
        """Run a command until *holds* of what it printed: a change reaches name servers a moment late."""
        deadline = time.monotonic() + _TIMEOUT_S
        while True:
            printed = self.mqadmin(*arguments)
            if holds(printed):
                return printed
            if time.monotonic() > deadline:
                raise ChildFailed(f"mqadmin {' '.join(arguments)} still says after {_TIMEOUT_S:g} s:\n{printed}")

    def make_topic(self, topic: str, cluster: str, queues: int, brokers: int) -> None:
        """Make a topic of *queues* queues on each of the *brokers* of *cluster* and return once clients find it."""
        printed = self.mqadmin("updateTopic", "-c", cluster, "-t", topic, "-r", str(queues), "-w", str(queues))
        assert printed.count("success") == brokers, printed
        self.mqadmin_until(lambda route: route.count('"readQueueNums"') == brokers, "topicRoute", "-t", topic)

    def seed(self, topic: str, group: str, count: int) -> Seeded:
        """Send *count* messages that *group* consumes and *count* that it does not."""
        unique_id, offset_id, broker, queue, offset = self.run("seed", topic, group, count)[0].split()
        return Seeded(unique_id, offset_id, broker, int(queue), int(offset))

    def run(self, command: str, topic: str, *arguments: str | int) -> tuple[str, list[str]]:
        """Run one of our own commands; return what it printed last, and the lines before."""
        return self._run([command, self._name_server, topic, *map(str, arguments)])

    def _run(self, words: list[str]) -> tuple[str, list[str]]:
        heard = len(self._child.lines())
        self._child.write_line("\t".join(words))
        answer = self._child.wait_for_line('^{"command"', timeout_s=_TIMEOUT_S, after=heard)
        report = json.loads(answer)
        if "error" in report:
            raise ChildFailed(f"{' '.join(words)}: {report['error']}")
        return report["printed"], self._child.lines()[heard:-1]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._child.kill()


def rows(printed: str) -> list[list[str]]:
    """Return the words of every line of a table, without its heads and empty lines."""
    return [line.split() for line in printed.splitlines() if line.strip() and not line.startswith("#")]


def fields(printed: str) -> dict[str, str]:
    """Return what a command printed as `name : value` lines."""
    pairs = (line.split(":", 1) for line in printed.splitlines() if ":" in line)
    return {name.strip(): value.strip() for name, value in pairs}


def route(printed: str) -> dict[str, Any]:
    """Return the route that `topicRoute` printed: JSON, but for the bare numbers that Java writes as keys."""
    parsed: dict[str, Any] = json.loads(re.sub(r"([{,\s])(\d+):", r'\1"\2":', printed))
    return parsed
