"""Brokers that have static topics together, and the books that the checkers keep of their logical queues.

As a rule all brokers of a run are one site. Where a run has units each of them is one, with topics of the same names
and queues of its own.
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
    """One of them.

    Args:
        unit: Its name; empty where all brokers are one site.
        rooms: What each broker consists of that was started last.

    Attributes:
        scope: Where its static topics are fixed.
        logical: The name under which clients know its logical queues.
        brokers: Its brokers.
    """

    def __init__(self, world: World, plan: Plan, unit: str, rooms: dict[str, Rooms], witness: Witness) -> None:
        self.unit = unit
        self.scope = unit or GLOBAL
        self.logical = mock_broker(self.scope)
        self.brokers: list[Node] = []
        self.heads = Heads(self.rooms_up, self._count_turns)
        self._lives: list[tuple[Shell | None, int]] = []  # of the brokers, when they were last looked at
        self.commits = Commits()
        self.resets = Resets(self._find_reset)
        self._world = world
        self._plan = plan
        self._rooms = rooms
        self._witness = witness

    @property
    def addresses(self) -> dict[str, str]:
        """Where each broker listens."""
        return {node.name: f"{node.host}:{BROKER_PORT}" for node in self.brokers}

    def rooms_up(self) -> dict[str, Rooms]:
        """Return what each broker consists of that is up."""
        return {node.name: self._rooms[node.name] for node in self.brokers if node.is_up}

    def watch(self) -> None:
        """Look at its logical queues from now on."""
        self.heads.on_leader = self._see_commits
        self._world.checks.append(self._check_heads)
        self._world.schedule(self._watch_commits, delay_ms=_COMMITS_MS)

    def _count_turns(self, broker: str) -> int:
        return next(node.shell.turns for node in self.brokers if node.name == broker and node.shell is not None)

    def _check_heads(self) -> None:
        """Look at the brokers if one of them took an event, began or ended: most steps are those of others."""
        lives = [(node.shell, 0 if node.shell is None else node.shell.turns) for node in self.brokers]
        if lives != self._lives:
            self._lives = lives
            self.heads.check()

    def _see_commits(self, topic: str, number: int, broker: str) -> None:
        """See that whoever leads a queue knows what the one before it knew, and nothing that nobody did.

        It is looked at when it opens the queue, too, before anybody commits there.
        """
        was_forced = self.heads.was_forced(topic, number)
        for group, wanted in GROUP_TOPICS.items():
            if wanted == topic:
                row = (group, topic, number)
                if self._plan.leases and was_forced:
                    # Whoever replaces a dead leader by itself may reach nobody who has a copy.
                    self.commits.pass_over(row, broker)
                found = self._rooms[broker].offsets.find(group, topic, number)
                self.commits.see(row, found, self._world.now_ms, broker)
                if found is not None:
                    self._witness.committed(group, MessageQueue(topic, self.logical, number), found)

        if was_forced:
            self.resets.pass_over((topic, number), broker)

    def _find_reset(self, row: tuple[str, int]) -> int | None:
        """Return what the leader of a queue has as committed by the group that is sent elsewhere and not told yet."""
        topic, number = row
        leader = self.heads.leaders(topic).get(number)
        rooms = None if leader is None else self.rooms_up().get(leader)
        if rooms is None or WANDERERS not in rooms.offsets.resets_of(topic, {number}):
            return None
        return rooms.offsets.find(WANDERERS, topic, number)

    def give_up(self, victim: str, target: str, *, are_copies_sound: bool) -> None:
        """Take note that *victim* is dead by an operator's word: *target* leads its queues next.

        Where its groups stood, nobody else may know; but whoever takes over has what it was told itself, unless the
        dead one's log, and all that was told of it, lost its end.
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
        """See what brokers keep for each other."""
        for keeper, rooms in self.rooms_up().items():
            for group, topic in GROUP_TOPICS.items():
                for number in self.heads.leaders(topic):
                    copy = rooms.offset_copies.find(topic, number)
                    if copy is not None and group in copy.offsets:
                        row, offset = (group, topic, number), copy.offsets[group]
                        self.commits.see_copy(row, copy.generation, offset, self._world.now_ms, keeper)

    def _watch_commits(self) -> None:
        """See what is committed, at the brokers that would be asked for it."""
        for topic in self._plan.static:
            for number, name in self.heads.heads(topic).items():
                self._see_commits(topic, number, name)
        self._see_copies()
        self.resets.check()
        self._world.schedule(self._watch_commits, delay_ms=_COMMITS_MS)
