"""Two units, and a group with Java 5.5.0, Java 4.9.7 and our own members in them: a unit is opened and closed.

Java clients name their unit by a hook that adds a field. All keep their own unit; while the other one is open all share
the queues of both, and none of them writes into the other.
"""

import asyncio
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.interop.foreign_members import GroupLedger, Member, java_member
from tests.support.child import Child
from tests.support.cluster.processes import ProcessCluster
from tests.support.java_peer import JavaPeer

from holdfast import PullConsumer

pytestmark = [pytest.mark.interop, pytest.mark.slow, pytest.mark.timeout(600)]

TOPIC = "TopicTest"
GROUP = "both-sites"
QUEUES = 4
HERE = Path(__file__).parent
# A Java consumer leaves a unit that is closed without a word: its locks hold for a minute, and so long it is a member.
_PATIENCE_S = 200.0


@dataclass(slots=True)
class Sites:
    """The fused cluster and everybody in the group; names of members begin with their unit."""

    cluster: ProcessCluster
    members: list[Member]

    @property
    def ledger(self) -> GroupLedger:
        """What became of everything so far."""
        return GroupLedger(self.members)

    def until(self, holds: Callable[[], bool], what: str) -> None:
        """Return once *holds*; foreign programs tell nobody."""
        deadline = time.monotonic() + _PATIENCE_S
        while not holds():
            for member in self.members:
                assert member.child.is_running, f"{member.name} ended:\n{member.child.last_lines()}"
            if time.monotonic() > deadline:
                pytest.fail(f"not within {_PATIENCE_S:g} s: {what}; missing {sorted(self.ledger.missing())[:8]}")
            time.sleep(0.05)

    def exchange(self) -> dict[tuple[str, int], set[str]]:
        """Let everybody send to every queue that it knows; return who got it, by the sender's unit and the queue."""
        before = {member.name: len(member.said().got) for member in self.members}
        for member in self.members:
            member.send(2 * QUEUES)
        self.until(lambda: all(member.is_idle for member in self.members), "everybody has sent")
        self.until(lambda: not self.ledger.missing(), "everything has come")
        owners: dict[tuple[str, int], set[str]] = defaultdict(set)
        for member in self.members:
            for queue, _, body in member.said().got[before[member.name] :]:
                owners[body.partition("-")[0], queue].add(member.name)
        return owners

    def settle(self, are_so: Callable[[dict[tuple[str, int], set[str]]], bool], what: str) -> None:
        """Exchange messages until the owners of all queues are as they should be."""
        seen: list[dict[tuple[str, int], set[str]]] = [{}]

        def is_settled() -> bool:
            seen[0] = self.exchange()
            return len(seen[0]) == 2 * QUEUES and are_so(seen[0])

        self.until(is_settled, f"{what}: {seen[0]}")


def our_member(unit: str, name_server: str) -> Member:
    """Start an application with our client."""
    name = f"{unit}-ours"
    command = [sys.executable, str(HERE / "python_client" / "our_member.py"), name_server, TOPIC, GROUP, name, unit]
    return Member(name, Child(command, name=name))


@pytest.fixture(scope="module")
def sites(peer_4: JavaPeer, peer_5: JavaPeer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sites]:
    folder = tmp_path_factory.mktemp("sites")
    with ProcessCluster(folder) as cluster, ExitStack() as stack:
        sites = Sites(cluster, [])
        for unit in ("east", "west"):
            cluster.start(f"in-{unit}", cluster=unit)
            cluster.run("topic", "create", TOPIC, "--logical-queues", str(QUEUES), "--unit", unit)
        place = (cluster.namesrv, TOPIC, GROUP)
        sites.members += [
            java_member(peer_5, "west-java-5", *place, folder / "west-5", ["-Dunit=west"]),
            java_member(peer_5, "east-java-5", *place, folder / "east-5", ["-Dunit=east"]),
            java_member(peer_4, "west-java-4", *place, folder / "west-4", ["-Dunit=west"]),
            our_member("west", cluster.namesrv),
        ]
        for member in sites.members:
            stack.callback(member.child.kill)
        for member in sites.members:
            member.ready()
        yield sites


def by_own_unit(owners: dict[tuple[str, int], set[str]]) -> bool:
    """Say whether every queue has one owner, of its unit."""
    return all(len(names) == 1 and next(iter(names)).startswith(unit) for (unit, _), names in owners.items())


def by_everybody(owners: dict[tuple[str, int], set[str]]) -> bool:
    """Say whether every queue has one owner, and every member some."""
    names = {name for found in owners.values() for name in found}
    return all(len(found) == 1 for found in owners.values()) and len(names) == 4


async def bodies_in(name_server: str, unit: str) -> list[str]:
    """Return the senders of everything that a unit holds."""
    found: list[str] = []
    async with PullConsumer(name_server, "auditor", auto_commit=False, unit=unit) as consumer:
        await consumer.assign(await consumer.queues(TOPIC))
        await consumer.seek_all("earliest")
        while messages := await consumer.poll(timeout_s=2, messages_max=1000):
            found += [message.body.decode() for message in messages]
    return found


def test_a_unit_is_opened_and_closed_under_members_of_all_kinds(sites: Sites) -> None:
    """Each for itself, then all together, then each for itself again; nobody ever writes into the other unit."""
    sites.settle(by_own_unit, "every unit has its own queues")

    sites.cluster.run("dr", "open", "--unit", "east")
    sites.settle(by_everybody, "all share the queues of both units")

    sites.cluster.run("dr", "close", "--unit", "east")
    sites.settle(by_own_unit, "every unit has its own queues again")

    assert not sites.ledger.failures()
    for unit in ("east", "west"):
        senders = {body.partition("-")[0] for body in asyncio.run(bodies_in(sites.cluster.namesrv, unit))}
        assert senders == {unit}
