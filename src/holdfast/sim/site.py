"""The brokers that share static topics, and the checkers of their logical queues.

Normally all brokers of a run form one site. In a run with units each unit is a site. All sites have topics of the same
names, but each has its own queues.
"""

from __future__ import annotations

from typing import Final

from holdfast.broker.assembly import Rooms
from holdfast.model.queue import MessageQueue
from holdfast.model.scope import GLOBAL, mock_broker
from holdfast.sim.actors.reset_consumer import WANDERERS
from holdfast.sim.actors.witness import Witness
from holdfast.sim.checkers.commits import NOTHING_SAVED, Commits
from holdfast.sim.checkers.resets import Resets
from holdfast.sim.checkers.single_leader import Heads
from holdfast.sim.world.node import Node
from holdfast.sim.world.plan import Plan
from holdfast.sim.world.shell import Shell
from holdfast.sim.world.workload import ORDERED_TOPIC, PLAIN_TOPIC
from holdfast.sim.world.world import World

WORKERS: Final = "workers"
ORDERLIES: Final = "orderlies"
GROUP_TOPICS: Final = {WORKERS: PLAIN_TOPIC, ORDERLIES: ORDERED_TOPIC}
BROKER_PORT: Final = 10911
_COMMITS_MS: Final = 500


class Site:
    """One group of brokers that share static topics.

    Args:
        unit: The name of the unit; empty if all brokers form one site.
        rooms: By broker, the components of the process started last.

    Attributes:
        scope: The scope of its static topics.
        logical: The broker name that clients use for its logical queues.
        brokers: Its brokers.
    """

    def __init__(self, world: World, plan: Plan, unit: str, rooms: dict[str, Rooms], witness: Witness) -> None:
        self.unit = unit
        self.scope = unit or GLOBAL
        self.logical = mock_broker(self.scope)
        self.brokers: list[Node] = []
        self.heads = Heads(self.rooms_up, self._count_turns)
        self._lives: list[tuple[Shell | None, int]] = []  # of the brokers, at the last check
        self.commits = Commits()
        self.resets = Resets(self._find_reset)
        self._world = world
        self._plan = plan
        self._rooms = rooms
        self._witness = witness

    @property
    def addresses(self) -> dict[str, str]:
        """The address that each broker listens on."""
        return {node.name: f"{node.host}:{BROKER_PORT}" for node in self.brokers}

    def rooms_up(self) -> dict[str, Rooms]:
        """Return the components of each running broker."""
        return {node.name: self._rooms[node.name] for node in self.brokers if node.is_up}

    def watch(self) -> None:
        """Start checking its logical queues."""
        self.heads.on_leader = self._see_commits
        self._world.checks.append(self._check_heads)
        self._world.schedule(self._watch_commits, delay_ms=_COMMITS_MS)

    def _count_turns(self, broker: str) -> int:
        return next(node.shell.turns for node in self.brokers if node.name == broker and node.shell is not None)

    def _check_heads(self) -> None:
        """Check the leaders if a broker handled an event, started or ended: most steps belong to other processes."""
        lives = [(node.shell, 0 if node.shell is None else node.shell.turns) for node in self.brokers]
        if lives != self._lives:
            self._lives = lives
            self.heads.check()

    def _see_commits(self, topic: str, number: int, broker: str) -> None:
        """Check that a queue's leader knows the previous leader's offsets, and none that no group committed.

        This also runs when a leader opens the queue, before any group commits there.
        """
        was_forced = self.heads.was_forced(topic, number)
        for group, wanted in GROUP_TOPICS.items():
            if wanted == topic:
                row = (group, topic, number)
                if self._plan.leases and was_forced:
                    # A broker that replaces a dead leader may not reach a broker that has a backup of the offsets.
                    self.commits.pass_over(row, broker)
                found = self._rooms[broker].offsets.find(group, topic, number)
                self.commits.see(row, found, self._world.now_ms, broker)
                if found is not None:
                    self._witness.committed(group, MessageQueue(topic, self.logical, number), found)

        if was_forced:
            self.resets.pass_over((topic, number), broker)

    def _find_reset(self, row: tuple[str, int]) -> int | None:
        """Return the offset committed at the leader of a queue if a reset waits there for the group; else None."""
        topic, number = row
        leader = self.heads.leaders(topic).get(number)
        rooms = None if leader is None else self.rooms_up().get(leader)
        if rooms is None or WANDERERS not in rooms.offsets.resets_of(topic, {number}):
            return None
        return rooms.offsets.find(WANDERERS, topic, number)

    def give_up(self, victim: str, target: str, *, are_copies_sound: bool) -> None:
        """Record that the operator declared *victim* dead, and that *target* leads its queues next.

        The offsets of its groups may be lost with it. The new leader still knows the offsets that *victim* had copied
        to it, unless the log of *victim* lost its end: then those copies are not sound.
        """
        self.commits.forgive(victim, NOTHING_SAVED)
        if self._rooms[victim].offset_copies.peer != target or not are_copies_sound:
            return
        self._see_copies()
        for group, topic in GROUP_TOPICS.items():
            for number, leader in self.heads.leaders(topic).items():
                queue = self.heads.find_queue(topic, number)
                if leader == victim and queue is not None:
                    self.commits.expect((group, topic, number), queue.leader.generation, victim, target)

    def _see_copies(self) -> None:
        """Record the offset backups that brokers keep for each other."""
        for keeper, rooms in self.rooms_up().items():
            for group, topic in GROUP_TOPICS.items():
                for number in self.heads.leaders(topic):
                    copy = rooms.offset_copies.find(topic, number)
                    if copy is not None and group in copy.offsets:
                        row, offset = (group, topic, number), copy.offsets[group]
                        self.commits.see_copy(row, copy.generation, offset, self._world.now_ms, keeper)

    def _watch_commits(self) -> None:
        """Check the committed offsets at the brokers that would answer a query for them."""
        for topic in self._plan.static:
            for number, name in self.heads.heads(topic).items():
                self._see_commits(topic, number, name)
        self._see_copies()
        self.resets.check()
        self._world.schedule(self._watch_commits, delay_ms=_COMMITS_MS)
