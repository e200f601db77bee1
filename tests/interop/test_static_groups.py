"""Clients that know nothing of logical queues, on a static topic, in one group with those that do.

Java 4.9.7, npm's ali-ons and PyPI's rocketmq reach the topic through one broker, whose address stands in for a broker
that does not exist. They, Java 5.5.0 and our own client share the queues of one group: through moves, and through the
death of that broker.
"""

import asyncio
import re
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.interop.foreign_members import GroupLedger, Member, ali_ons_member, java_member, py_rocketmq_member
from tests.support.child import Child
from tests.support.cluster.processes import ProcessCluster
from tests.support.cluster.raw_requests import JAVA_4, raw_request
from tests.support.java_peer import JavaPeer

from holdfast import PullConsumer

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

TOPIC = "shared"
GROUP = "shared-group"
QUEUES = 8
HERE = Path(__file__).parent
# The slowest of these clients looks for changes of its group every 20 s, and for routes every 30 s.
_PATIENCE_S = 120.0
_ROUTE = 105


@dataclass(slots=True)
class Troupe:
    """The cluster and everybody in the group."""

    cluster: ProcessCluster
    members: list[Member]

    @property
    def ledger(self) -> GroupLedger:
        """What became of everything so far."""
        return GroupLedger(self.members)

    def operate_under_load(self, *words: str) -> None:
        """Run our command while everybody sends without a pause."""
        with ThreadPoolExecutor(1) as thread:
            ordered = thread.submit(asyncio.run, self.cluster.operator.run(*words))
            while not ordered.done():
                for member in self.members:
                    if member.is_idle:
                        member.send(5)
                time.sleep(0.01)
            ordered.result()

    def everybody_sends(self, count: int) -> None:
        """Let every member send, and return once all have been answered."""
        for member in self.members:
            member.send(count)
        self.until(lambda: all(member.is_idle for member in self.members), "everybody has sent")

    def until(self, holds: Callable[[], bool], what: str) -> None:
        """Return once *holds*; foreign programs tell nobody."""
        deadline = time.monotonic() + _PATIENCE_S
        while not holds():
            for member in self.members:
                assert member.child.is_running, f"{member.name} ended:\n{member.child.last_lines()}"
            if time.monotonic() > deadline:
                missing = sorted(self.ledger.missing())
                pytest.fail(f"not within {_PATIENCE_S:g} s: {what}; missing {len(missing)}: {missing[:8]}")
            time.sleep(0.05)

    def share(self, *, rounds: int = 1) -> dict[int, str]:
        """Return who has which queue, once each has one owner, everybody has one, and the last rounds agree."""
        known: list[dict[int, set[str]]] = []

        def is_settled() -> bool:
            mark = self.ledger.mark()
            self.everybody_sends(QUEUES)
            self.until(lambda: not self.ledger.missing(), "everything has come")
            known.append(self.ledger.owners_since(mark))
            last = known[-rounds:]
            return (
                len(last) == rounds
                and all(owners == last[0] for owners in last)
                and len(last[0]) == QUEUES
                and all(len(names) == 1 for names in last[0].values())
                and {name for names in last[0].values() for name in names} == {member.name for member in self.members}
            )

        self.until(is_settled, f"everybody has queues of his own: {known[-1:]}")
        return {queue: next(iter(names)) for queue, names in known[-1].items()}


def our_member(name: str, name_server: str) -> Member:
    """Start an application with our client."""
    command = [sys.executable, str(HERE / "python_client" / "our_member.py"), name_server, TOPIC, GROUP, name]
    return Member(name, Child(command, name=name))


async def begin_at_zero(name_server: str) -> None:
    """Let the group stand at the beginning of every queue: some clients would begin at the end."""
    async with PullConsumer(name_server, GROUP, auto_commit=False) as consumer:
        queues = await consumer.queues(TOPIC)
        await consumer.assign(queues)
        await consumer.commit(dict.fromkeys(queues, 0))


@pytest.fixture(scope="module")
def troupe(peer_4: JavaPeer, peer_5: JavaPeer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Troupe]:
    folder = tmp_path_factory.mktemp("troupe")
    brokers = ("broker-a", "broker-b", "broker-c")
    with ProcessCluster(folder, *brokers) as cluster, ExitStack() as stack:
        name_server = cluster.namesrv
        troupe = Troupe(cluster, [])
        cluster.run("topic", "create", TOPIC, "--logical-queues", str(QUEUES), "--brokers", "broker-a,broker-b")
        asyncio.run(begin_at_zero(name_server))
        place = (name_server, TOPIC, GROUP)

        def join(*members: Member) -> None:
            for member in members:
                stack.callback(member.child.kill)
            for member in members:
                member.ready()
            troupe.members.extend(members)

        join(
            java_member(peer_4, "java-4", *place, folder / "java-4"),
            java_member(peer_5, "java-5", *place, folder / "java-5"),
            ali_ons_member("ali-ons", *place),
            our_member("ours", name_server),
        )
        # Last, as the library has as many threads for answers as the machine has processors, and lets them wait in two
        # rebalances at once for the answer to the pull of a queue that it lost and was given again: for ever, on two.
        join(py_rocketmq_member("py-rocketmq", *place, folder / "py"))
        yield troupe


def test_old_and_new_members_of_one_group_share_no_queue(troupe: Troupe) -> None:
    """Each queue comes to one member, and every member has queues, wherever it is connected."""
    owners = troupe.share(rounds=2)

    assert owners.keys() == set(range(QUEUES))
    assert not troupe.ledger.failures()
    assert not troupe.ledger.holes()


def test_none_of_them_notices_moves(troupe: Troupe) -> None:
    """All queues move while all send: nothing fails, is lost, repeated, late, or changes its owner."""
    before = troupe.share()
    repeated = troupe.ledger.repeated()
    for targets in ("broker-c", "broker-a", "broker-a,broker-b,broker-c"):
        troupe.operate_under_load("topic", "move", TOPIC, "--to", targets)
    troupe.until(lambda: all(member.is_idle for member in troupe.members), "everybody has sent")
    troupe.until(lambda: not troupe.ledger.missing(), "everything has come")

    assert not troupe.ledger.failures()
    assert troupe.ledger.repeated() == repeated
    assert not troupe.ledger.out_of_order()
    assert not troupe.ledger.holes()
    assert troupe.share() == before


def test_the_broker_behind_the_mock_address_dies(troupe: Troupe) -> None:
    """Old clients find another way in; nothing that was acknowledged is lost, and nobody shares a queue."""
    told = raw_request(troupe.cluster.namesrv, _ROUTE, {"topic": TOPIC}, **JAVA_4).text
    (address,) = set(re.findall(r"127\.0\.0\.1:\d+", told))
    victim = next(broker for broker in troupe.cluster.brokers.values() if broker.address == address)
    troupe.operate_under_load("broker", "drain", victim.name)
    for member in troupe.members:
        member.send(40)
    troupe.cluster.kill(victim)
    troupe.until(lambda: all(member.is_idle for member in troupe.members), "everybody has sent")
    troupe.until(lambda: not troupe.ledger.missing(), "everything has come")

    told = raw_request(troupe.cluster.namesrv, _ROUTE, {"topic": TOPIC}, **JAVA_4).text
    assert address not in told
    owners = troupe.share()
    assert set(owners.values()) == {member.name for member in troupe.members}
    assert not troupe.ledger.out_of_order()
