"""Who leads each logical queue of a static topic, as far as a client can tell from what brokers registered.

    claims    a: epoch 7 {0: generation 2, 1: generation 1}     b: epoch 9 {0: generation 3}
    leaders   0 -> b    1 -> a    2, 3 -> nobody: they keep their numbers, so that keys keep their queues

The newest generation leads, also where only others say so: who handed a queue over knows to whom, and who came after it
may not have been heard yet. Java brokers tell no generations, and Java name servers drop ours: then the newest epoch
leads. What is believed once is given up only for something newer: name servers may answer late, or out of order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from holdfast.model.mapping import TopicMapping
from holdfast.model.queue import MessageQueue
from holdfast.model.scope import NOBODY, mock_broker
from holdfast.model.segment import UNKNOWN, UNKNOWN_GENERATION


class Leader(msgspec.Struct, frozen=True):
    """Who takes what is sent to a logical queue.

    Attributes:
        broker: The name of the broker; of nobody's queue the name that stands for nobody.
        generation: At least this is its generation; -1 when nobody told any.
        epoch: Of the record that says so.
    """

    broker: str
    generation: int = UNKNOWN_GENERATION
    epoch: int = UNKNOWN

    def supersedes(self, held: Leader) -> bool:
        """Say whether this is news to somebody who believed in *held*."""
        if NOBODY in {held.broker, self.broker}:
            return held.broker == NOBODY != self.broker
        if UNKNOWN_GENERATION in {self.generation, held.generation}:
            return self.epoch > held.epoch
        return (self.generation, self.epoch) > (held.generation, held.epoch)


NO_LEADER: Final = Leader(NOBODY)


def find_leaders(topic: str, records: Iterable[TopicMapping]) -> dict[MessageQueue, Leader]:
    """Return the logical queues of *topic*, all of them and in order, each with who leads it.

    Args:
        topic: The topic.
        records: What its brokers registered, in any order; a broker may be there more than once.
    """
    by_scope: dict[str, list[TopicMapping]] = {}
    for record in records:
        by_scope.setdefault(mock_broker(record.scope), []).append(record)
    return {
        MessageQueue(topic, name, number): leader
        for name, believed in sorted(by_scope.items())
        for number, leader in enumerate(_leaders_of(believed))
    }


def _leaders_of(records: list[TopicMapping]) -> list[Leader]:
    claims: list[list[Leader]] = [[] for _ in range(max(record.total for record in records))]
    for record in records:
        for number, queue in record.queues.items():
            home = queue.leader
            is_hearsay = home.broker != record.broker
            if is_hearsay and (home.generation == UNKNOWN_GENERATION or not home.is_decided):
                continue  # By its epoch alone nobody else's record proves anything.
            if 0 <= number < len(claims):
                claims[number].append(Leader(home.broker, home.generation, record.epoch))
    return [_strongest(found) for found in claims]


def _strongest(claims: list[Leader]) -> Leader:
    """Return whose claim counts: the newest generation's, unless somebody of a newer epoch tells no generation."""
    told = [claim for claim in claims if claim.generation != UNKNOWN_GENERATION]
    untold = [claim for claim in claims if claim.generation == UNKNOWN_GENERATION]
    # Where two are equal it matters only that everybody decides alike.
    by_generation = max(told, key=lambda claim: (claim.generation, claim.epoch, claim.broker), default=NO_LEADER)
    by_epoch = max(untold, key=lambda claim: (claim.epoch, claim.broker), default=NO_LEADER)
    return by_epoch if by_epoch.supersedes(by_generation) else by_generation


def advance(held: Mapping[MessageQueue, Leader], found: Mapping[MessageQueue, Leader]) -> dict[MessageQueue, Leader]:
    """Return what to believe after *held* when *found* is told: no queue is lost, none goes back a generation."""
    believed = {**found, **held}
    for queue, claim in found.items():
        before = held.get(queue, NO_LEADER)
        if claim.supersedes(before):
            # Who does not tell its generation is of a newer one than all that were told before.
            believed[queue] = msgspec.structs.replace(claim, generation=max(claim.generation, before.generation))
    return dict(sorted(believed.items()))
