"""Applications written with clients of others, each a producer and a member of one group, and what they report.

    {"ready": true}   {"sent": [queue, offset, number]}   {"failed": why}   {"got": [queue, offset, body]}

Bodies are "NAME NUMBER"; every member counts up by itself. A queue or offset that a client does not tell its user is
null. All members are told the same way, whatever they are written in.
"""

import json
import platform
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.interop.conftest import need
from tests.interop.test_other_clients import ALI_ONS, PY_ROCKETMQ, credentials_of, installed
from tests.support.child import Child
from tests.support.cluster.raw_requests import Signer
from tests.support.java_peer import JavaPeer

HERE = Path(__file__).parent
_TIMEOUT_S = 90.0


@dataclass(slots=True)
class Said:
    """What one member has reported so far."""

    sent: list[int] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    got: list[tuple[int, int, str]] = field(default_factory=list)


class Member:
    """One running application."""

    def __init__(self, name: str, child: Child) -> None:
        self.name = name
        self.child = child
        self._read = 0
        self._said = Said()
        self._asked = 0

    def ready(self) -> None:
        """Return once it has started."""
        self.child.wait_for_line('"ready"', timeout_s=_TIMEOUT_S)

    def send(self, count: int) -> None:
        """Let it send; do not wait."""
        self._asked += count
        self.child.write_line(f"send {count}")

    @property
    def is_idle(self) -> bool:
        """Whether it has sent everything that it was told to."""
        said = self.said()
        return len(said.sent) + len(said.failed) >= self._asked

    def said(self) -> Said:
        """Return everything that it has reported."""
        lines = self.child.lines()
        for line in lines[self._read :]:
            if line.startswith('{"'):
                self._note(json.loads(line))
        self._read = len(lines)
        return self._said

    def _note(self, line: dict[str, list[int | str | None]]) -> None:
        if "sent" in line:
            self._said.sent.append(int(line["sent"][2] or 0))
        elif "failed" in line:
            self._said.failed.append(str(line["failed"]))
        elif "got" in line:
            queue, offset, body = line["got"]
            self._said.got.append((int(queue or 0), int(offset or 0), str(body)))


def java_member(
    peer: JavaPeer, name: str, name_server: str, topic: str, group: str, home: Path, options: Sequence[str] = ()
) -> Member:
    """Start an application with the Java client."""
    # A member that leaves unlocks its queues a moment late: whoever takes over tries again after 2 s instead of 20.
    options = ["-Drocketmq.client.rebalance.waitInterval=2000", *options]
    return Member(name, peer.start_program("Member", [name_server, topic, group, name], home=home, options=options))


def ali_ons_member(name: str, name_server: str, topic: str, group: str, *, user: Signer | None = None) -> Member:
    """Start an application with npm's ali-ons."""
    need("node", "npm")
    install = ["npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", ".", ALI_ONS]
    packages = installed("ali-ons-3.12.0", install) / "node_modules"
    command = ["node", str(HERE / "js" / "member.js"), name_server, topic, group, name]
    return Member(name, Child(command, name=name, environment={"NODE_PATH": str(packages), **credentials_of(user)}))


def py_rocketmq_member(
    name: str, name_server: str, topic: str, group: str, home: Path, *, user: Signer | None = None
) -> Member:
    """Start an application with PyPI's rocketmq."""
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        pytest.skip("needs Linux on x86_64: the C++ library of PyPI's rocketmq 0.4.4 exists for no other machine")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    packages = installed("py-rocketmq-0.4.4", [*pip, "--target", ".", PY_ROCKETMQ])
    home.mkdir(parents=True, exist_ok=True)  # the library writes its log there
    environment = {"PYTHONPATH": str(packages), "HOME": str(home), **credentials_of(user)}
    command = [sys.executable, str(HERE / "python_client" / "member.py"), name_server, topic, group, name]
    return Member(name, Child(command, name=name, environment=environment))


class GroupLedger:
    """What all members of a group together sent and got."""

    def __init__(self, members: Iterable[Member]) -> None:
        self._members = list(members)

    def missing(self) -> set[str]:
        """Return what was acknowledged to somebody and has come to nobody."""
        sent = {f"{member.name} {number}" for member in self._members for number in member.said().sent}
        return sent - {body for member in self._members for _, _, body in member.said().got}

    def failures(self) -> dict[str, list[str]]:
        """Return, by member, why sends failed."""
        return {member.name: member.said().failed for member in self._members if member.said().failed}

    def repeated(self) -> set[str]:
        """Return what came more than once, to whomever."""
        seen: set[str] = set()
        twice: set[str] = set()
        for member in self._members:
            for _, _, body in member.said().got:
                (twice if body in seen else seen).add(body)
        return twice

    def holes(self) -> dict[int, set[int]]:
        """Return, for each queue, the offsets below its last at which nobody got anything."""
        offsets: dict[int, set[int]] = defaultdict(set)
        for member in self._members:
            for queue, offset, _ in member.said().got:
                offsets[queue].add(offset)
        holes = {queue: set(range(max(found) + 1)) - found for queue, found in offsets.items()}
        return {queue: some for queue, some in holes.items() if some}

    def out_of_order(self) -> list[tuple[str, str]]:
        """Return what a member got behind a later message of the same queue and sender."""
        wrong: list[tuple[str, str]] = []
        for member in self._members:
            latest: dict[tuple[int, str], int] = {}
            for queue, _, body in member.said().got:
                sender, _, number = body.partition(" ")
                if int(number) < latest.get((queue, sender), -1):
                    wrong.append((member.name, body))
                latest[queue, sender] = max(int(number), latest.get((queue, sender), -1))
        return wrong

    def mark(self) -> dict[str, int]:
        """Return how much each member has got, to look later at what came after."""
        return {member.name: len(member.said().got) for member in self._members}

    def owners_since(self, mark: dict[str, int]) -> dict[int, set[str]]:
        """Return who got something of each queue since *mark*."""
        owners: dict[int, set[str]] = defaultdict(set)
        for member in self._members:
            for queue, _, _ in member.said().got[mark[member.name] :]:
                owners[queue].add(member.name)
        return owners
