"""Finds the leader of a logical queue that this broker does not lead.

    own record: a leads generation 2 ───┐
    name servers: b leads generation 3 ─┼─> the newest generation wins ─> c, and its address
    a relayed answer: c leads 4 ────────┘

A broker that receives a request for a queue that it does not lead returns the leader, if it knows it. So a broker that
missed a move learns of it with the first request that it relays, and queries a name server only when no broker knows.
"""

from __future__ import annotations

from holdfast.broker.mapping.cluster_view import ClusterView
from holdfast.broker.mapping.mapping_table import Mappings
from holdfast.broker.relay.relay_client import Target
from holdfast.model.leadership import NO_LEADER, Leader
from holdfast.model.queue import MessageQueue, QueueKey
from holdfast.model.scope import NO_BROKER, mock_broker
from holdfast.model.segment import is_newer
from holdfast.wire.frames.command import Command
from holdfast.wire.frames.fields import BadField, from_fields
from holdfast.wire.requests.relay import RelayAnswer


class LeaderLookup:
    """The known leaders of the queues that other brokers lead."""

    def __init__(self, mappings: Mappings, view: ClusterView) -> None:
        self._mappings = mappings
        self._view = view

    def find(self, queue_key: QueueKey) -> Leader:
        """Return the known leader of a queue without querying another server, or `NO_LEADER` if it is unknown."""
        found, reported = self._mappings.placement(*queue_key), self._view.find_leader(*queue_key)
        if reported.broker == self._mappings.broker and found.state == "elsewhere" and not found.leader:
            return NO_LEADER  # This broker did lead it, until its mapping was deleted.
        is_own_newest = reported.broker == NO_BROKER or not is_newer(reported.generation, found.generation)
        return Leader(found.leader, found.generation) if found.leader and is_own_newest else reported

    def find_leader_name(self, queue_key: QueueKey) -> str | None:
        """Return the name of the known leader of a queue, or None if it is unknown."""
        leader = self.find(queue_key)
        return None if leader.broker == NO_BROKER else leader.broker

    def is_leaderless(self, queue_key: QueueKey, *, needs_answer: bool = True) -> bool:
        """Return whether a queue exists but has no known leader.

        Args:
            queue_key: The queue.
            needs_answer: Require that a name server has reported on the topic; otherwise the own record is enough.
        """
        found = self._mappings.placement(*queue_key)
        if found.state != "elsewhere" or found.leader or (needs_answer and not self._view.has_answer(queue_key[0])):
            return False
        return self.find(queue_key).broker == NO_BROKER

    def forget(self, queue_key: QueueKey) -> None:
        """Drop the known leader of a queue: that broker reported that the queue has no leader."""
        self._view.forget_leader(*queue_key)

    def address(self, leader: Leader) -> str:
        """Return the address of a leader, or an empty string if it is unknown."""
        return self._view.address(leader.broker) or ""

    async def find_target(self, queue_key: QueueKey) -> Target | None:
        """Return the other broker that leads a queue, from local knowledge or else from the name servers."""
        target = self._to_target(queue_key)
        if target is None:
            await self._view.refresh(queue_key[0])
            target = self._to_target(queue_key)
        return target

    def find_replica(self, queue_key: QueueKey) -> Target | None:
        """Return a replica of the other broker that leads a queue: it serves readers while the leader is down."""
        leader = self.find(queue_key)
        address = self._view.replica(leader.broker)
        if address is None or leader.broker == self._mappings.broker:
            return None
        return Target(queue_key, address, leader.generation)

    def _to_target(self, queue_key: QueueKey) -> Target | None:
        leader = self.find(queue_key)
        address = self._view.address(leader.broker)
        if address is None or leader.broker == self._mappings.broker:
            return None
        return Target(queue_key, address, leader.generation)

    def update_from_answer(self, queue_key: QueueKey, answer: Command) -> bool:
        """Record the leader of a queue from the *answer* to a relayed request; return whether the leader changed."""
        mapping = self._mappings.find(queue_key[0])
        try:
            reported = from_fields(RelayAnswer, answer.fields)
        except BadField:
            return False
        if mapping is None or not reported.leader:
            return False
        before = self.find(queue_key)
        if reported.leader == before.broker and is_newer(before.generation, reported.generation):
            # The leader knows its generation best, unless it lost data. A topic created again restarts its generations.
            self._view.forget_leader(*queue_key)
            return False
        if reported.address and self._view.address(reported.leader) is None:
            self._view.record_address(reported.leader, reported.address)
        queue = MessageQueue(queue_key[0], mock_broker(mapping.scope), queue_key[1])
        self._view.record_leader(queue, Leader(reported.leader, reported.generation))
        return self.find(queue_key).broker != before.broker

    def suspect_addresses(self) -> None:
        """Suspect every broker address until the name servers have been queried again."""
        self._view.suspect_addresses()
