"""The leader of each logical queue of a static topic, as far as a client can derive it from brokers' registrations.

    claims    a: epoch 7 {0: generation 2, 1: generation 1}     b: epoch 9 {0: generation 3}
    leaders   0 -> b    1 -> a    2, 3 -> none: they keep their numbers, so that keys keep their queues

The newest generation leads, even if only another broker reports it: a broker that handed a queue over knows its new
leader, whose registration may not have arrived yet. Java brokers report no generations, and Java name servers drop
ours: then the newest epoch leads. A client replaces a known leader only by a newer one, because name servers may answer
late or out of order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from holdfast.model.mapping import TopicMapping
from holdfast.model.queue import MessageQueue
from holdfast.model.scope import NO_BROKER, mock_broker
from holdfast.model.segment import generation_order, newest_generation

_NO_EPOCH: Final = -1  # before every epoch


class Leader(msgspec.Struct, frozen=True):
    """The broker that accepts sends to a logical queue.

    Attributes:
        broker: The name of the broker; `NO_BROKER` if the queue has no leader.
        generation: Its generation is at least this; None if none was reported.
        epoch: The epoch of the record that reports it.
    """

    broker: str
    generation: int | None = None
    epoch: int = _NO_EPOCH

    @property
    def age(self) -> tuple[int, int]:
        """A sort key: the older leader comes first, by generation and then by epoch."""
        return generation_order(self.generation), self.epoch

    def supersedes(self, other: Leader) -> bool:
        """Return whether this leader replaces the known leader *other*."""
        if NO_BROKER in {other.broker, self.broker}:
            return other.broker == NO_BROKER != self.broker
        if self.generation is None or other.generation is None:
            return self.epoch > other.epoch
        return self.age > other.age


NO_LEADER: Final = Leader(NO_BROKER)


def find_leaders(topic: str, records: Iterable[TopicMapping]) -> dict[MessageQueue, Leader]:
    """Return all logical queues of *topic*, in order, with their leaders.

    Args:
        topic: The topic.
        records: The records that its brokers registered, in any order; several of one broker are allowed.
    """
    by_scope: dict[str, list[TopicMapping]] = {}
    for record in records:
        by_scope.setdefault(mock_broker(record.scope), []).append(record)
    return {
        MessageQueue(topic, name, number): leader
        for name, registered in sorted(by_scope.items())
        for number, leader in enumerate(_leaders_of(registered))
    }


def _leaders_of(records: list[TopicMapping]) -> list[Leader]:
    claims: list[list[Leader]] = [[] for _ in range(max(record.total for record in records))]
    for record in records:
        for number, queue in record.queues.items():
            segment = queue.leader
            is_secondhand = segment.broker != record.broker
            if is_secondhand and (segment.generation is None or not segment.is_decided):
                continue  # Without a generation, another broker's record is no proof.
            if 0 <= number < len(claims):
                claims[number].append(Leader(segment.broker, segment.generation, record.epoch))
    return [_strongest(found) for found in claims]


def _strongest(claims: list[Leader]) -> Leader:
    """Return the winning claim: the newest generation, unless a claim without a generation has a newer epoch."""
    with_generation = [claim for claim in claims if claim.generation is not None]
    without = [claim for claim in claims if claim.generation is None]
    # Ties are broken by name, so that all clients choose the same leader.
    by_generation = max(with_generation, key=lambda claim: (*claim.age, claim.broker), default=NO_LEADER)
    by_epoch = max(without, key=lambda claim: (claim.epoch, claim.broker), default=NO_LEADER)
    return by_epoch if by_epoch.supersedes(by_generation) else by_generation


def update_leaders(
    previous: Mapping[MessageQueue, Leader], found: Mapping[MessageQueue, Leader]
) -> dict[MessageQueue, Leader]:
    """Return the known leaders *previous*, updated by *found*: no queue is lost, and no generation decreases."""
    known = {**found, **previous}
    for queue, claim in found.items():
        before = previous.get(queue, NO_LEADER)
        if claim.supersedes(before):
            # A leader without a generation is newer than all generations that were reported before.
            known[queue] = msgspec.structs.replace(
                claim, generation=newest_generation((claim.generation, before.generation))
            )
    return dict(sorted(known.items()))
