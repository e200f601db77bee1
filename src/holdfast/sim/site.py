"""The brokers that share static topics, and the checkers of their logical queues.

Normally all brokers of a run form one site. In a run with units each unit is a site. All sites have topics of the same
names, but each has its own queues.
"""

from __future__ import annotations

from typing import Final

from holdfast.broker.assembly import Components
from holdfast.model.queue import LogicalQueueId, MessageQueue, QueueKey
from holdfast.model.scope import GLOBAL, mock_broker
from holdfast.sim.actors.reset_consumer import RESET_GROUP
from holdfast.sim.actors.witness import Witness
from holdfast.sim.checkers.commits import NOTHING_SAVED, CommitChecker
from holdfast.sim.checkers.resets import ResetChecker
from holdfast.sim.checkers.single_leader import LeaderChecker
from holdfast.sim.world.node import Node
from holdfast.sim.world.plan import RunPlan
from holdfast.sim.world.shell import Shell
from holdfast.sim.world.workload import ORDERED_TOPIC, PLAIN_TOPIC
from holdfast.sim.world.world import World
from holdfast.wire.cluster.mapping import from_number

CONCURRENT_GROUP: Final = "workers"
ORDERED_GROUP: Final = "orderlies"
GROUP_TOPICS: Final = {CONCURRENT_GROUP: PLAIN_TOPIC, ORDERED_GROUP: ORDERED_TOPIC}
BROKER_PORT: Final = 10911
_COMMIT_CHECK_MS: Final = 500


class Site:
    """One group of brokers that share static topics.

    Args:
        unit: The name of the unit; empty if all brokers form one site.
        components: By broker, the components of the process started last.

    Attributes:
        scope: The scope of its static topics.
        mock_broker_name: The broker name that clients use for its logical queues.
        brokers: Its brokers.
    """

    def __init__(
        self, world: World, plan: RunPlan, unit: str, components: dict[str, Components], witness: Witness
    ) -> None:
        self.unit = unit
        self.scope = unit or GLOBAL
        self.mock_broker_name = mock_broker(self.scope)
        self.brokers: list[Node] = []
        self.leader_checker = LeaderChecker(self.running_components, self._count_turns)
        self._last_states: list[tuple[Shell | None, int]] = []  # of the brokers, at the last check
        self.commit_checker = CommitChecker()
        self.reset_checker = ResetChecker(self._find_reset)
        self._world = world
        self._plan = plan
        self._components = components
        self._witness = witness

    @property
    def addresses(self) -> dict[str, str]:
        """The address that each broker listens on."""
        return {node.name: f"{node.host}:{BROKER_PORT}" for node in self.brokers}

    def running_components(self) -> dict[str, Components]:
        """Return the components of each running broker."""
        return {node.name: self._components[node.name] for node in self.brokers if node.is_up}

    def start_checks(self) -> None:
        """Start checking its logical queues."""
        self.leader_checker.on_leader = self._check_commits
        self._world.checks.append(self._check_leaders)
        self._world.schedule(self._watch_commits, delay_ms=_COMMIT_CHECK_MS)

    def _count_turns(self, broker: str) -> int:
        return next(node.shell.turns for node in self.brokers if node.name == broker and node.shell is not None)

    def _check_leaders(self) -> None:
        """Check the leaders if a broker handled an event, started or ended: most steps belong to other processes."""
        states = [(node.shell, 0 if node.shell is None else node.shell.turns) for node in self.brokers]
        if states != self._last_states:
            self._last_states = states
            self.leader_checker.check()

    def _check_commits(self, topic: str, number: LogicalQueueId, broker: str) -> None:
        """Check that a queue's leader knows the previous leader's offsets, and none that no group committed.

        This also runs when a leader opens the queue, before any group commits there.
        """
        was_forced = self.leader_checker.was_forced(topic, number)
        for group, group_topic in GROUP_TOPICS.items():
            if group_topic == topic:
                key = (group, topic, number)
                if self._plan.leases_enabled and was_forced:
                    # A broker that replaces a dead leader may not reach a broker that has a backup of the offsets.
                    self.commit_checker.record_forced_open(key, broker)
                found = self._components[broker].offsets.find(group, topic, number)
                self.commit_checker.record(key, found, self._world.now_ms, broker)
                if found is not None:
                    self._witness.committed(group, MessageQueue(topic, self.mock_broker_name, number), found)

        if was_forced:
            self.reset_checker.record_forced_open((topic, number), broker)

    def _find_reset(self, key: QueueKey) -> int | None:
        """Return the offset committed at the leader of a queue if a reset waits there for the group; else None."""
        topic, number = key
        leader = self.leader_checker.leaders(topic).get(number)
        components = None if leader is None else self.running_components().get(leader)
        if components is None or RESET_GROUP not in components.offsets.resets_of(topic, {number}):
            return None
        return components.offsets.find(RESET_GROUP, topic, number)

    def declare_dead(self, victim: str, target: str, *, are_backups_valid: bool) -> None:
        """Record that the operator declared *victim* dead, and that *target* leads its queues next.

        The offsets of its groups may be lost with it. The new leader still knows the offsets that *victim* had backed
        up there, unless the log of *victim* lost its end: then those backups are not valid.
        """
        self.commit_checker.allow_loss(victim, NOTHING_SAVED)
        if self._components[victim].offset_backup.peer != target or not are_backups_valid:
            return
        self._record_backups()
        for group, topic in GROUP_TOPICS.items():
            for number, leader in self.leader_checker.leaders(topic).items():
                queue = self.leader_checker.find_queue(topic, number)
                if leader == victim and queue is not None:
                    self.commit_checker.expect_backup((group, topic, number), queue.leader.generation, victim, target)

    def _record_backups(self) -> None:
        """Record the offset backups that brokers keep for each other."""
        for backup_broker, components in self.running_components().items():
            for group, topic in GROUP_TOPICS.items():
                for number in self.leader_checker.leaders(topic):
                    backup = components.offset_backup.find(topic, number)
                    if backup is not None and group in backup.offsets:
                        key, offset = (group, topic, number), backup.offsets[group]
                        self.commit_checker.record_backup(
                            key, from_number(backup.generation), offset, self._world.now_ms, backup_broker
                        )

    def _watch_commits(self) -> None:
        """Check the committed offsets at the brokers that would answer a query for them."""
        for topic in self._plan.static:
            for number, name in self.leader_checker.open_brokers(topic).items():
                self._check_commits(topic, number, name)
        self._record_backups()
        self.reset_checker.check()
        self._world.schedule(self._watch_commits, delay_ms=_COMMIT_CHECK_MS)
