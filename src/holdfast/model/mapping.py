"""The logical queues of a static topic: each broker's record of them, and the merge of all records.

    broker a  {0: [a/0 sealed, b/2 open], 1: [a/1 open]}   leads 1
    broker b  {0: [a/0 sealed, b/2 open], 2: [b/0 open]}   leads 0 and 2
    merged    {0: [a/0, b/2], 1: [a/1], 2: [b/0]}          each from the record of its leader

A record belongs to one broker. Its epoch rises with every change of the topic. The generation of a queue rises with
every segment and decides which broker leads. Contains no clock and does not know which brokers are alive.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from itertools import pairwise
from typing import Final

import msgspec

from holdfast.model.errors import MappingRefused
from holdfast.model.floor import OFFSET_MAX, Floor, highest_floor
from holdfast.model.logical_queue import FORCED_GAP, LogicalQueue, MappingRow, new_logical_queue
from holdfast.model.queue import LogicalQueueId, PhysicalQueueId
from holdfast.model.scope import require_in_scope
from holdfast.model.segment import Segment, Status, generation_order, is_newer, newest_generation

__all__ = [
    "FORCED_GAP",
    "QUEUES_MAX",
    "LogicalQueue",
    "MappingRow",
    "MergedTopic",
    "Segment",
    "Status",
    "TopicMapping",
    "accept_update",
    "check",
    "check_queue",
    "mapping_rows",
    "merge",
    "merge_scopes",
    "new_logical_queue",
    "next_epoch",
]

QUEUES_MAX: Final = 65_536
"""Limit for the logical queues of a topic: clients build a list of all of them."""

_EPOCH_STEP_MS: Final = 1000


class TopicMapping(msgspec.Struct, frozen=True, kw_only=True):
    """One broker's record of a static topic.

    Attributes:
        topic: Its name.
        scope: Where its queues are fixed, in wire form.
        broker: The broker whose record this is.
        epoch: Rises with every change of the topic, on any broker.
        total: The number of logical queues of the topic, on all brokers together.
        queues: The queues that involve this broker.
        floors: The floors of queues that were forgotten here: no segment of theirs may begin lower. A floor stays when
            the queue gets its next segment.
    """

    topic: str
    broker: str
    scope: str = "__global__"
    epoch: int = 0
    total: int = 0
    queues: dict[LogicalQueueId, LogicalQueue] = {}
    floors: dict[LogicalQueueId, Floor] = {}

    @property
    def led_queues(self) -> dict[LogicalQueueId, PhysicalQueueId]:
        """Logical queue to physical queue, for those that this broker leads."""
        return {
            number: queue.leader.queue_id
            for number, queue in sorted(self.queues.items())
            if queue.leader.broker == self.broker
        }

    def with_queues(self, *queues: LogicalQueue, epoch: int | None = None) -> TopicMapping:
        """Return the record with *queues* added or replaced."""
        changed: dict[LogicalQueueId, LogicalQueue] = {**self.queues, **{queue.queue: queue for queue in queues}}
        return msgspec.structs.replace(self, queues=changed, epoch=self.epoch if epoch is None else epoch)

    def without_queues(self, *numbers: LogicalQueueId) -> TopicMapping:
        """Return the record without the queues with these numbers."""
        kept = {number: queue for number, queue in self.queues.items() if number not in numbers}
        return msgspec.structs.replace(self, queues=kept)

    def forget_queue(self, number: LogicalQueueId, floor: Floor) -> TopicMapping:
        """Return the record without a queue that was forgotten, and with the floor of its next segment."""
        raised = highest_floor([floor, *([self.floors[number]] if number in self.floors else [])])
        return msgspec.structs.replace(self.without_queues(number), floors={**self.floors, number: raised})

    def forget_holders(self, brokers: Collection[str]) -> TopicMapping:
        """Return the record with floors that name none of *brokers*, which were removed and cannot be asked."""
        floors = {
            number: msgspec.structs.replace(floor, brokers=tuple(name for name in floor.brokers if name not in brokers))
            for number, floor in self.floors.items()
        }
        return msgspec.structs.replace(self, floors=floors)

    def without_prepared(self) -> TopicMapping:
        """Return the record without segments that were prepared and never opened, for a tool that writes it back.

        The move may have been rolled back since the tool read the record, and the update must not revive it.
        """
        queues = {
            number: LogicalQueue(queue.queue, tuple(segment for segment in queue.segments if segment.is_decided))
            for number, queue in self.queues.items()
        }
        return msgspec.structs.replace(self, queues={number: kept for number, kept in queues.items() if kept.segments})

    def used_queue_ids(self, broker: str) -> set[PhysicalQueueId]:
        """Return the physical queues of *broker* in this record, including expired ones."""
        segments = (segment for queue in self.queues.values() for segment in queue.segments)
        return {segment.queue_id for segment in segments if segment.broker == broker}

    def next_physical_queue(self, broker: str, lowest: int = 0) -> PhysicalQueueId:
        """Return the first physical queue of *broker*, from *lowest* on, above all that this record has."""
        return PhysicalQueueId(max(lowest, *(number + 1 for number in self.used_queue_ids(broker)), 0))


class MergedTopic(msgspec.Struct, frozen=True, kw_only=True):
    """The merge of all brokers' records of a topic.

    Attributes:
        topic: Its name.
        scope: Where its queues are fixed, in wire form.
        epoch: The highest epoch of all records.
        total: The number of logical queues: the highest in any record of the highest epoch.
        queues: The queues that have a leader, each as its leader records it.
        unled: The numbers of the queues without a leader.
        missing: Brokers that hold segments of the topic according to other records, but gave no record.
        superseded: Claims to queues that have a newer segment, in words. Harmless: the newer segment is served.
        contradictions: Claims that cannot all be true, in words. Nothing new is served while there are any.
    """

    topic: str
    scope: str
    epoch: int
    total: int
    queues: dict[LogicalQueueId, LogicalQueue]
    unled: list[LogicalQueueId]
    missing: list[str]
    superseded: list[str]
    contradictions: list[str]

    @property
    def is_complete(self) -> bool:
        """Whether every queue has a leader and nothing contradicts. A missing broker hides only its old segments."""
        return not self.contradictions and not self.unled

    @property
    def leaders(self) -> dict[LogicalQueueId, str]:
        """Logical queue to its leader."""
        return {number: queue.leader.broker for number, queue in self.queues.items()}


def next_epoch(epoch: int, now_ms: int) -> int:
    """Return the epoch of the next change. It rises even if the clock goes back."""
    return max(epoch + _EPOCH_STEP_MS, now_ms)


def mapping_rows(queues: Iterable[LogicalQueue]) -> list[MappingRow]:
    """Return the rows of the table for people, by broker and physical queue."""
    return sorted(row for queue in queues for row in queue.rows())


def check(mapping: TopicMapping, *, owner: str | None = None, cluster: str | None = None, exact: bool = False) -> None:
    """Validate a record before it is used.

    Args:
        mapping: The record.
        owner: The broker that presents it; a record of another broker is refused.
        cluster: The cluster of that broker; a record of a topic that is fixed elsewhere is refused.
        exact: Whether every end must be known, or forced, as our own moves leave them.

    Raises:
        MappingRefused: the record breaks a rule; the error names it.
    """
    if owner is not None and mapping.broker != owner:
        raise MappingRefused(
            "own record",
            f"{owner} has a mapping of {mapping.topic} that belongs to {mapping.broker}: remove the copied file",
        )
    if cluster is not None:
        require_in_scope(mapping.scope, cluster, mapping.broker, mapping.topic)
    if not 0 <= mapping.total <= QUEUES_MAX:
        raise MappingRefused("number of queues", f"{mapping.topic} cannot have {mapping.total} logical queues")
    for number, floor in mapping.floors.items():
        if not (0 <= number < mapping.total and 0 <= floor.offset <= OFFSET_MAX):
            raise MappingRefused("floors", f"{mapping.topic} cannot have a logical queue {number} up to {floor.offset}")
    physical_queues: dict[tuple[str, PhysicalQueueId], LogicalQueueId] = {}
    for number, queue in mapping.queues.items():
        if number != queue.queue or not 0 <= number < mapping.total:
            raise MappingRefused(
                "ids below total",
                f"{mapping.topic} has {mapping.total} logical queues, but a number {number} is recorded",
            )
        check_queue(queue, exact=exact)
        for physical_queue in {segment.physical_queue for segment in queue.segments}:
            if physical_queue in physical_queues:
                raise MappingRefused(
                    "one queue, one segment",
                    _describe_shared(mapping.topic, physical_queue, physical_queues[physical_queue], number),
                )
            physical_queues[physical_queue] = number


def check_queue(queue: LogicalQueue, *, exact: bool = False) -> None:
    """Validate one logical queue.

    Raises:
        MappingRefused: the queue breaks a rule; the error names it.
    """
    if not queue.segments:
        raise _fault(queue, "at least one segment", "has no segment")
    for segment in queue.segments:
        _check_numbers(queue, segment)
    for older, newer in pairwise(queue.segments):
        _check_neighbours(queue, older, newer)
    decided = [segment for segment in queue.segments if segment.is_decided]
    if decided and decided[-1].expired:
        raise _fault(queue, "leaders stay", f"is led by an expired segment on {decided[-1].broker}")
    _check_physical_queues(queue)
    for previous, following in pairwise(segment for segment in decided if segment.shows_offsets):
        _check_offsets(queue, previous, following, exact=exact)


def _check_numbers(queue: LogicalQueue, segment: Segment) -> None:
    if segment.generation is None and len(queue.segments) > 1:
        raise _fault(queue, "rising generations", f"has no generation in its segment on {segment.broker}")
    if (segment.generation or 0) < 0 or segment.queue_id < 0 or segment.start < 0:
        raise _fault(queue, "no negative numbers", f"has a negative number in its segment on {segment.broker}")
    if not segment.broker:
        raise _fault(queue, "segments have brokers", "has a segment on a broker without a name")
    if segment.end is not None and segment.end < segment.start:
        raise _fault(queue, "ends fit", f"ends at {segment.end} before it starts at {segment.start}")
    if not segment.is_decided and (segment.expired or segment.forced or segment.is_sealed):
        raise _fault(queue, "decided before closed", f"is closed on {segment.broker}, where it never began")


def _check_neighbours(queue: LogicalQueue, older: Segment, newer: Segment) -> None:
    if not is_newer(newer.generation, older.generation):
        raise _fault(queue, "rising generations", f"has generation {newer.generation} after {older.generation}")
    if not older.is_decided:
        raise _fault(queue, "only the newest undecided", f"has a segment after an undecided one on {older.broker}")


def _check_physical_queues(queue: LogicalQueue) -> None:
    by_physical_queue: dict[tuple[str, PhysicalQueueId], Segment] = {}
    for segment in queue.segments:
        earlier = by_physical_queue.get(segment.physical_queue)
        # An expired physical queue may be prepared again: its old segment is dropped only when the new one opens.
        if earlier is not None and not (earlier.expired and not segment.is_decided):
            raise _fault(queue, "one queue, one segment", f"has queue {segment.queue_id} of {segment.broker} twice")
        by_physical_queue[segment.physical_queue] = segment


def _check_offsets(queue: LogicalQueue, older: Segment, newer: Segment, *, exact: bool) -> None:
    first = newer.decided_first
    if older.decided_first >= first or older.static_max > first:
        raise _fault(
            queue,
            "offsets rise",
            f"reaches {older.static_max} on {older.broker} and continues at {first} on {newer.broker}",
        )
    if older.logical_end is None:
        if exact and not (older.forced or older.expired):
            raise _fault(queue, "only the newest open", f"is open on {older.broker}, and on {newer.broker} too")
        return
    if older.logical_end != first and not (older.forced or newer.is_detached):
        raise _fault(
            queue, "contiguous offsets", f"ends at {older.logical_end} on {older.broker} and continues at {first}"
        )


def _fault(queue: LogicalQueue, rule: str, text: str) -> MappingRefused:
    return MappingRefused(rule, f"logical queue {queue.queue} {text}: read the mapping from the leader, or repair it")


def _describe_shared(
    topic: str, physical_queue: tuple[str, PhysicalQueueId], one: LogicalQueueId, other: LogicalQueueId
) -> str:
    where = f"queue {physical_queue[1]} of {physical_queue[0]}"
    return f"{where} is in logical queues {one} and {other} of {topic}: move one of them away"


def accept_update(old: TopicMapping, new: TopicMapping) -> TopicMapping:
    """Return a broker's record after a tool sent the update *new*; the same updates are accepted as by upstream.

    History does not change: a known segment keeps its physical queue, its end and, once decided, its first offset,
    whatever the update says; segments and queues that the update lacks are kept.

    Raises:
        MappingRefused: the update is older than the record, has another scope, or moves a known segment elsewhere.
    """
    if new.epoch < old.epoch:
        raise MappingRefused(
            "rising epochs", f"{new.topic} is at epoch {old.epoch} on {old.broker}, {new.epoch} is older: read it again"
        )
    if (new.topic, new.scope, new.broker) != (old.topic, old.scope, old.broker):
        raise MappingRefused("own record", f"{old.broker} has {old.topic} in scope {old.scope}: this is another record")
    if new.total < old.total:
        raise MappingRefused(
            "queues never shrink", f"{old.topic} has {old.total} logical queues and cannot have {new.total}"
        )
    is_same = new.epoch == old.epoch
    if is_same and (lost := old.queues.keys() - new.queues.keys()):
        raise MappingRefused(
            "rising epochs", f"logical queue {min(lost)} of {old.topic} is left out in the same epoch: read it again"
        )
    known = {
        number: _accept_queue(old.queues[number], queue, is_same=is_same) if number in old.queues else queue
        for number, queue in new.queues.items()
    }
    accepted = msgspec.structs.replace(new, queues={**old.queues, **known}, floors=old.floors)
    check(accepted)
    return accepted


def _accept_queue(old: LogicalQueue, new: LogicalQueue, *, is_same: bool) -> LogicalQueue:
    segments = {segment.generation: segment for segment in old.segments}
    for segment in new.segments:
        known = segments.get(segment.generation)
        if known is not None and (known.physical_queue, known.start) != (segment.physical_queue, segment.start):
            raise _fault(old, "segments stay", f"had generation {segment.generation} on {known.broker}")
        if known is None and is_newer(old.generation, segment.generation):
            continue  # It was dropped here before the tool read the record.
        if known is None or not known.is_decided:
            segments[segment.generation] = segment
    if is_same and (newest := newest_generation(segments)) != old.segments[-1].generation:
        raise _fault(old, "rising epochs", f"gets generation {newest} in an epoch that is known without it")
    return LogicalQueue(old.queue, tuple(segments[generation] for generation in sorted(segments, key=generation_order)))


def merge(records: Mapping[str, TopicMapping]) -> MergedTopic:
    """Return the merge of all records of a topic.

    Args:
        records: Presenting broker to its record. All of one topic; at least one.
    """
    assert records, "a topic without records is not a topic"
    contradictions: list[str] = []
    valid: dict[str, TopicMapping] = {}
    for owner, record in sorted(records.items()):
        try:
            check(record, owner=owner)
        except MappingRefused as error:
            contradictions.append(str(error))
            continue
        valid[owner] = record
    # Two changes may get the same epoch, e.g. a growth and a move. Topics only grow, so the larger total is newer.
    newest = max(valid.values() or records.values(), key=lambda record: (record.epoch, record.total))
    contradictions += [fault for record in valid.values() for fault in _find_record_faults(record, newest)]
    queues: dict[LogicalQueueId, LogicalQueue] = {}
    superseded: list[str] = []
    for number, claims in sorted(_find_claims(valid.values()).items()):
        winner = claims[0] if len(claims) == 1 else _choose_claim(number, claims)
        known_newest = newest_generation(
            record.queues[number].generation for record in valid.values() if number in record.queues
        )
        won = winner.queues[number].generation
        if won is not None and is_newer(known_newest, won):
            # A newer segment was opened, as a former leader's record shows; the new leader's record is still missing.
            superseded.append(f"{winner.broker} still claims logical queue {number}, which has moved on since")
            continue
        queues[number] = winner.queues[number]
        for loser in claims:
            if loser is not winner:
                _classify_claim(number, winner, loser, contradictions, superseded)
    numbers = map(LogicalQueueId, range(min(max(newest.total, 0), QUEUES_MAX)))
    contradictions += _find_shared_queues(newest.topic, queues)
    contradictions += _find_disagreements(queues, valid)
    return MergedTopic(
        topic=newest.topic,
        scope=newest.scope,
        epoch=newest.epoch,
        total=newest.total,
        queues=queues,
        unled=[number for number in numbers if number not in queues],
        missing=sorted({segment.broker for queue in queues.values() for segment in queue.readable} - records.keys()),
        superseded=superseded,
        contradictions=contradictions,
    )


def merge_scopes(records: Mapping[str, TopicMapping]) -> dict[str, MergedTopic]:
    """Return the merge of all records with one topic name, by scope: each scope is a separate topic."""
    return {
        scope: merge({owner: record for owner, record in records.items() if record.scope == scope})
        for scope in sorted({record.scope for record in records.values()})
    }


def _find_claims(records: Iterable[TopicMapping]) -> dict[LogicalQueueId, list[TopicMapping]]:
    """Return the records that claim to lead each queue."""
    claimed: dict[LogicalQueueId, list[TopicMapping]] = {}
    for record in records:
        for number in record.led_queues:
            claimed.setdefault(number, []).append(record)
    return claimed


def _find_record_faults(record: TopicMapping, newest: TopicMapping) -> list[str]:
    faults = []
    if record.topic != newest.topic:
        faults.append(f"{record.broker} records {record.topic} under the name of {newest.topic}")
    if record.scope != newest.scope:
        faults.append(f"{record.broker} has scope {record.scope}, {newest.broker} has {newest.scope}")
    if record.total > newest.total:
        # A growth that the other brokers missed, or an older topic of the same name.
        faults.append(
            f"{record.broker} has {record.total} logical queues of {newest.topic}, but the newest epoch has"
            f" {newest.total}"
        )
    return faults


def _choose_claim(number: LogicalQueueId, claims: list[TopicMapping]) -> TopicMapping:
    """Return the winning claim: the newest generation, or the newest epoch if Java brokers report no generation."""
    with_generation = [claim for claim in claims if claim.queues[number].generation is not None]
    without = [claim for claim in claims if claim not in with_generation]
    by_epoch = max(without, key=lambda claim: claim.epoch, default=None)
    by_generation = max(
        with_generation,
        key=lambda claim: (generation_order(claim.queues[number].generation), claim.epoch),
        default=None,
    )
    if by_generation is None or by_epoch is None:
        found = by_generation or by_epoch
        assert found is not None, "the caller passes queues with claims only"
        return found
    return by_epoch if by_epoch.epoch > by_generation.epoch else by_generation


def _classify_claim(
    number: LogicalQueueId, winner: TopicMapping, loser: TopicMapping, contradictions: list[str], superseded: list[str]
) -> None:
    won, lost = winner.queues[number].generation, loser.queues[number].generation
    is_tie = winner.epoch == loser.epoch if None in {won, lost} else won == lost
    if is_tie:
        contradictions.append(f"logical queue {number} is led by {loser.broker} and by {winner.broker}, both newest")
    else:
        superseded.append(f"{loser.broker} still claims logical queue {number}, which {winner.broker} leads now")


def _find_shared_queues(topic: str, queues: Mapping[LogicalQueueId, LogicalQueue]) -> list[str]:
    faults = []
    physical_queues: dict[tuple[str, PhysicalQueueId], LogicalQueueId] = {}
    for number, queue in queues.items():
        for physical_queue in sorted({segment.physical_queue for segment in queue.segments}):
            if physical_queue in physical_queues:
                faults.append(_describe_shared(topic, physical_queue, physical_queues[physical_queue], number))
            physical_queues[physical_queue] = number
    return faults


def _find_disagreements(queues: Mapping[LogicalQueueId, LogicalQueue], valid: Mapping[str, TopicMapping]) -> list[str]:
    """Return the segments whose own broker records them differently from the leader."""
    faults = []
    for number, queue in queues.items():
        for segment in queue.readable:
            record = valid.get(segment.broker)
            own = (
                None
                if record is None or number not in record.queues
                else record.queues[number].find(segment.generation)
            )
            if own is not None and segment.generation is not None and not _agree(segment, own):
                faults.append(
                    f"logical queue {number}: {segment.broker} and {queue.leader.broker} disagree about generation"
                    f" {segment.generation}"
                )
    return faults


def _agree(one: Segment, other: Segment) -> bool:
    """Return whether two records of a segment can both be true; a fact that only one has is no contradiction."""
    if one.physical_queue != other.physical_queue or one.start != other.start:
        return False
    is_same_first = one.first == other.first or not (one.is_decided and other.is_decided)
    is_same_end = one.end == other.end or not (one.is_sealed and other.is_sealed)
    return is_same_first and is_same_end
