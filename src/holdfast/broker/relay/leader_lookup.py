"""Who leads a logical queue, for a broker that does not: what it recorded itself, and what others told since.

    own record: generation 2 is a's ─┐
    name servers: generation 3 is b's ┼─> the newest counts ─> b, where it is reached
    a relayed answer: 4 is c's ───────┘

Whoever is asked as the leader and is not says who is, if it knows. So a broker that nobody told of a move learns of it
with the first request that it passes on, and asks a name server only when nobody knows better.
"""

from __future__ import annotations

from holdfast.broker.flow.awaitables import Procedure
from holdfast.broker.mapping.cluster_view import ClusterView
from holdfast.broker.mapping.mapping_table import Mappings
from holdfast.broker.relay.relay_client import Place, Target
from holdfast.model.leadership import NO_LEADER, Leader
from holdfast.model.queue import MessageQueue
from holdfast.model.scope import NOBODY, mock_broker
from holdfast.wire.frames.command import Command
from holdfast.wire.frames.fields import BadField, from_fields
from holdfast.wire.requests.relay import RelayAnswer


class Beliefs:
    """What one broker believes of the others' queues."""

    def __init__(self, mappings: Mappings, view: ClusterView) -> None:
        self._mappings = mappings
        self._view = view

    def find(self, place: Place) -> Leader:
        """Return who leads a queue, by what is known here without asking; nobody when that is not known."""
        found, reported = self._mappings.place(*place), self._view.find_leader(*place)
        if reported.broker == self._mappings.broker and found.state == "elsewhere" and not found.leader:
            return NO_LEADER  # It did lead, until its mapping was deleted.
        is_own_newest = reported.broker == NOBODY or reported.generation <= found.generation
        return Leader(found.leader, found.generation) if found.leader and is_own_newest else reported

    def find_name(self, place: Place) -> str | None:
        """Return the name of who leads a queue; None when that is not known."""
        leader = self.find(place)
        return None if leader.broker == NOBODY else leader.broker

    def is_unled(self, place: Place, *, is_told: bool = True) -> bool:
        """Say whether no leader is known of a queue that its topic has.

        Args:
            place: The queue.
            is_told: Whether a name server must have said so; without it this broker goes by its own record.
        """
        found = self._mappings.place(*place)
        if found.state != "elsewhere" or found.leader or (is_told and not self._view.is_told(place[0])):
            return False
        return self.find(place).broker == NOBODY

    def forget(self, place: Place) -> None:
        """Believe nothing of who leads a queue: the broker that was believed to lead it says that none does."""
        self._view.forget_leader(*place)

    def address(self, leader: Leader) -> str:
        """Return where a leader is reached; nothing when that is not known."""
        return self._view.address(leader.broker) or ""

    def find_target(self, place: Place) -> Procedure[Target | None]:
        """Return another broker that leads a queue, by what is known here or at the name servers."""
        target = self._to_target(place)
        if target is None:
            yield from self._view.refresh(place[0])
            target = self._to_target(place)
        return target

    def find_copy(self, place: Place) -> Target | None:
        """Return a replica of another broker that leads a queue: it answers whoever reads while the leader is down."""
        leader = self.find(place)
        address = self._view.replica(leader.broker)
        if address is None or leader.broker == self._mappings.broker:
            return None
        return Target(place, address, leader.generation)

    def _to_target(self, place: Place) -> Target | None:
        leader = self.find(place)
        address = self._view.address(leader.broker)
        if address is None or leader.broker == self._mappings.broker:
            return None
        return Target(place, address, leader.generation)

    def learn(self, place: Place, answer: Command) -> bool:
        """Take note of who leads a queue, by the word of who was asked; say whether somebody else does than before."""
        mapping = self._mappings.find(place[0])
        try:
            reported = from_fields(RelayAnswer, answer.fields)
        except BadField:
            return False
        if mapping is None or not reported.leader:
            return False
        before = self.find(place)
        if reported.leader == before.broker and reported.generation < before.generation:
            # It knows best, unless it lost what it knew. If the topic was made anew, its generations begin again.
            self._view.forget_leader(*place)
            return False
        if reported.address and self._view.address(reported.leader) is None:
            self._view.teach(reported.leader, reported.address)
        queue = MessageQueue(place[0], mock_broker(mapping.scope), place[1])
        self._view.teach_leader(queue, Leader(reported.leader, reported.generation))
        return self.find(place).broker != before.broker

    def doubt(self) -> None:
        """Believe in nobody's address until the name servers were asked again."""
        self._view.doubt()
