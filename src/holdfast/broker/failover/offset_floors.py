"""Finds the lowest offset at which a forgotten logical queue may begin again, so that no offset is used twice.

    513 for a queue without a leader ──┬─105──> name servers       registered mappings, also of dead brokers
                                       └─7017─> all other brokers  their mappings, and the offsets that groups committed
    floor = the highest of all answers ─> the segment begins at or above it, with the groups' offsets
    a broker does not answer ───────────> refused, unless the segment begins a forced gap above the floor

While a broker asks, it also claims the queue in its answers to others. So if two brokers open the same queue at once,
at least one of them sees the other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from holdfast.broker.consume.consumer_offsets import OffsetTable
from holdfast.broker.failover.offset_backup import OffsetBackup
from holdfast.broker.flow.awaitables import PeerCall, call_all
from holdfast.broker.flow.request import Answer, Handlers, Request
from holdfast.broker.mapping.cluster_view import QUERY_TIMEOUT_MS, ClusterView, Survey
from holdfast.broker.mapping.mapping_table import Mappings
from holdfast.machine.component import Component
from holdfast.model.errors import MappingRefused, PeerFailed, RemoteProtocolError
from holdfast.model.floor import NO_FLOOR, OFFSET_MAX, Floor, floor_of, highest_floor
from holdfast.model.mapping import FORCED_GAP, QUEUES_MAX, LogicalQueue, TopicMapping
from holdfast.model.queue import LogicalOffset, LogicalQueueId, PhysicalOffset
from holdfast.model.segment import generation_order, is_newer, newest_generation
from holdfast.wire.cluster.mapping import from_floor, from_number, to_floor, to_number
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.frames.command import Command
from holdfast.wire.requests.moves import FloorQuery, QueueFloor, QueueFloors, decode_body, encode_body

_NAME_SERVERS: Final = "the name servers"
_UNSUPPORTED: Final = QueueFloors()  # the answer of a Java broker, or an older one: no floors


class FloorFinding(msgspec.Struct, frozen=True, kw_only=True):
    """What the cluster knows about the offsets of one queue.

    Attributes:
        floor: The highest of all answers.
        leader: A broker that leads it or is opening it; empty if no broker reports that.
        silent: Brokers that did not answer and may know higher offsets.
        offsets: The group offsets of its last leader.
    """

    floor: Floor
    leader: str = ""
    silent: tuple[str, ...] = ()
    offsets: QueueFloor | None = None


class OffsetFloors(Component):
    """Finds the floors of queues before they are opened, and answers other brokers' questions about floors."""

    def __init__(self, mappings: Mappings, view: ClusterView, offsets: OffsetTable, backup: OffsetBackup) -> None:
        self._name = mappings.broker
        self._mappings = mappings
        self._view = view
        self._offsets = offsets
        self._backup = backup
        self._claimed: Counter[tuple[str, int]] = Counter()

    def handlers(self) -> Handlers:
        """Return the request handlers by code."""
        return {RequestCode.FIND_FLOORS: self.report_floors}

    # Known here.

    def report_floors(self, request: Request) -> Answer:
        """Answer 7017: report what this broker knows about the queues."""
        query = decode_body(request.command.body, FloorQuery)
        mapping = self._mappings.find(query.topic)
        numbers = sorted({LogicalQueueId(number) for number in query.queues if 0 <= number < QUEUES_MAX})
        answer = QueueFloors(queues=list(self._find_own(query.topic, numbers)))
        if mapping is not None:
            answer = msgspec.structs.replace(answer, epoch=mapping.epoch, total=mapping.total)
        return request.answer(body=encode_body(answer))

    def _find_own(self, topic: str, numbers: Iterable[LogicalQueueId]) -> Iterable[QueueFloor]:
        """Yield what this broker knows about these queues; omit queues it knows nothing about."""
        mapping = self._mappings.find(topic)
        committed: dict[LogicalQueueId, dict[str, LogicalOffset]] = {}
        for (name, group), queues in self._offsets.rows():
            # Offsets in a normal topic are of physical queues.
            for number, offset in queues.items() if name == topic and mapping is not None else ():
                committed.setdefault(number, {})[group] = offset
        for number in numbers:
            recorded_floors = [] if mapping is None else list(self._recorded_floors(mapping, number))
            known = self._describe(topic, number, recorded_floors, committed.get(number, {}))
            if known is not None:
                yield known

    def _describe(
        self, topic: str, number: LogicalQueueId, recorded: list[Floor], committed: dict[str, LogicalOffset]
    ) -> QueueFloor | None:
        backup = self._backup.find(topic, number)
        is_led = (topic, number) in self._claimed or self._mappings.placement(topic, number).is_led
        if not (recorded or committed or backup or is_led):
            return None
        floor = highest_floor(recorded)
        used = [*committed.values(), *([] if backup is None else backup.offsets.values())]
        floor = msgspec.structs.replace(floor, offset=max([floor.offset, *used]))
        backed_up = None if backup is None else from_number(backup.generation)
        if backup is not None and (not committed or is_newer(backed_up, floor.generation)):
            offsets, resets, generation = backup.offsets, backup.resets, backed_up
        else:
            resets = sorted(self._offsets.resets_of(topic, [number]))
            offsets, generation = committed, floor.generation
        return QueueFloor(
            queue=number,
            floor=to_floor(floor),
            is_led=is_led,
            offsets=offsets,
            resets=resets,
            copied=to_number(generation),
        )

    def _recorded_floors(self, mapping: TopicMapping, number: LogicalQueueId) -> Iterable[Floor]:
        if number in mapping.floors:
            yield mapping.floors[number]
        if number in mapping.queues:
            yield self._find_floor(mapping, mapping.queues[number])

    def _find_floor(self, mapping: TopicMapping, queue: LogicalQueue) -> Floor:
        """Return the floor of a queue recorded here. If its leader segment is here, the physical queue has the end."""
        leader = queue.leader
        if leader.broker != self._name or not leader.is_decided:
            return floor_of(queue)
        log = self._mappings.find_index(mapping.topic, leader.queue_id)
        return floor_of(queue, leader.first if log is None else leader.to_logical(PhysicalOffset(log.next_offset)))

    def retire(self, mapping: TopicMapping, number: LogicalQueueId) -> TopicMapping:
        """Return the mapping without a queue that is to be forgotten, and with the floor of its next segment.

        The leader keeps the committed offsets, so that the next leader can ask for them. A broker that is not the
        leader forgets its offsets, because they are outdated.
        """
        if not self._mappings.placement(mapping.topic, number).is_led:
            self._offsets.forget_queue(mapping.topic, LogicalQueueId(number))
        return mapping.forget_queue(number, self._find_floor(mapping, mapping.queues[number]))

    # Known to other brokers.

    async def find(
        self, proposed: TopicMapping, numbers: Sequence[LogicalQueueId]
    ) -> dict[LogicalQueueId, FloorFinding]:
        """Return what the cluster knows about the queues *numbers* that *proposed* lets this broker open."""
        survey = await self._view.survey(proposed.topic, proposed.scope)
        answers = await _fetch_floors(survey.brokers, proposed.topic, numbers)
        answered = {name: answer for name, answer in answers.items() if answer is not None}
        silent = {name for name, answer in answers.items() if answer is None}
        silent |= set() if survey.is_answered else {_NAME_SERVERS}
        known: dict[int, dict[str, QueueFloor]] = {number: {} for number in numbers}
        for name, answer in {
            **answered,
            self._name: QueueFloors(queues=[*self._find_own(proposed.topic, numbers)]),
        }.items():
            for each in answer.queues:
                known.setdefault(each.queue, {})[name] = each
        previous_total = self._find_previous_total(proposed, survey, answered.values())
        return {
            number: self._conclude(
                _combine(number, survey, known[number]),
                known[number],
                answered,
                silent,
                is_new=number >= previous_total,
            )
            for number in numbers
        }

    def _find_previous_total(self, proposed: TopicMapping, survey: Survey, answers: Iterable[QueueFloors]) -> int:
        """Return how many queues the topic had before this change. Queues above that number never had a segment."""
        own = self._mappings.find(proposed.topic)
        totals = [(record.epoch, record.total) for record in [*survey.records, *([] if own is None else [own])]]
        totals += [(answer.epoch, answer.total) for answer in answers]
        return max((total for epoch, total in totals if epoch < proposed.epoch), default=0)

    def _conclude(
        self,
        floor: Floor,
        known: Mapping[str, QueueFloor],
        answered: Collection[str],
        silent: set[str],
        *,
        is_new: bool,
    ) -> FloorFinding:
        # A holder that no name server lists was not even asked.
        holders = set(floor.brokers).difference(answered, {self._name})
        unanswered = holders if is_new else holders | silent
        newest = max(
            known.values(),
            key=lambda each: (bool(each.offsets), generation_order(each.copied_generation)),
            default=None,
        )
        return FloorFinding(
            floor=floor,
            leader=next((name for name, each in sorted(known.items()) if each.is_led and name != self._name), ""),
            silent=tuple(sorted(unanswered)),
            offsets=newest if newest is not None and newest.offsets else None,
        )

    # Opening.

    def claim(self, topic: str, numbers: Iterable[LogicalQueueId]) -> None:
        """Report these queues as led here, from now on: they are about to be opened."""
        self._claimed.update((topic, number) for number in numbers)

    def withdraw_claim(self, topic: str, numbers: Iterable[LogicalQueueId]) -> None:
        """Withdraw a `claim`: the queues are recorded by now, or were not opened."""
        self._claimed -= Counter((topic, number) for number in numbers)


def raise_to_floor(topic: str, queue: LogicalQueue, finding: FloorFinding, end: int) -> LogicalQueue:
    """Return the queue as it may begin here: at or above its floor, in a later generation.

    Upstream's tools let every new queue begin at 0. Such a queue is moved up to the floor, and its segment begins after
    the records of its physical queue. Any other offset is an operator's choice.

    Args:
        topic: Its topic.
        queue: The queue as requested by a tool.
        finding: What the cluster knows about it.
        end: The end of its physical queue.

    Raises:
        MappingRefused: it is led elsewhere, begins too low, or a broker that may know more does not answer.
    """
    floor, leader = finding.floor, queue.leader
    if finding.leader:
        raise MappingRefused(
            "one leader",
            f"logical queue {queue.queue} of {topic} is led by {finding.leader}, or about to be: move it with `holdfast"
            " queue migrate`",
        )
    lowest = floor.next_start(is_certain=not finding.silent)
    if lowest > OFFSET_MAX:
        raise MappingRefused(
            "offsets fit",
            f"logical queue {queue.queue} of {topic} would begin at {lowest}, which leaves no offsets: a group has"
            " committed a wrong offset. Find the group with `holdfast group lag` and reset its offset",
        )
    is_below = leader.first is None or leader.first < lowest
    if is_below:
        if finding.silent:
            raise MappingRefused(
                "never twice",
                f"{', '.join(finding.silent)} did not answer, and may know higher offsets of logical queue"
                f" {queue.queue} of {topic} than {floor.offset}: start it, or let the queue begin at {lowest}"
                f" or above (2^{FORCED_GAP.bit_length() - 1} further) with --force",
            )
        if leader.first or len(queue.segments) > 1:
            raise MappingRefused(
                "never twice",
                f"logical queue {queue.queue} of {topic} has used its offsets below {lowest}, and cannot begin at"
                f" {leader.first}: let it begin at {lowest} or above",
            )
    if len(queue.segments) > 1:  # The tool knows the segments before this one.
        return queue
    generation = newest_generation((leader.generation, floor.next_generation(is_certain=not finding.silent)))
    segment = msgspec.structs.replace(leader, generation=generation)
    if is_below:
        segment = msgspec.structs.replace(segment, first=lowest, start=max(leader.start, end))
    return LogicalQueue(queue.queue, (segment,))


def _combine(number: LogicalQueueId, survey: Survey, known: Mapping[str, QueueFloor]) -> Floor:
    """Return the floor of a queue: the highest in all mappings and answers."""
    found = [record.floors.get(number, NO_FLOOR) for record in survey.records]
    found += [floor_of(record.queues[number]) for record in survey.records if number in record.queues]
    return highest_floor([*found, *(from_floor(each.floor) for each in known.values())])


async def _fetch_floors(
    addresses: Mapping[str, str], topic: str, numbers: Sequence[LogicalQueueId]
) -> dict[str, QueueFloors | None]:
    """Return each broker's answer about these queues; None for a broker that did not answer."""
    body = encode_body(FloorQuery(topic=topic, queues=list(numbers)))
    answers = await call_all(
        PeerCall(address, Command(code=RequestCode.FIND_FLOORS, body=body), QUERY_TIMEOUT_MS)
        for address in addresses.values()
    )
    return dict(zip(addresses, map(_decode_answer, answers), strict=True))


def _decode_answer(answer: Command | PeerFailed) -> QueueFloors | None:
    """Return a decoded answer, or None if the call failed."""
    if isinstance(answer, PeerFailed):
        return None
    if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
        return _UNSUPPORTED
    try:
        return decode_body(answer.body, QueueFloors) if answer.code == ResponseCode.SUCCESS else None
    except RemoteProtocolError:
        return None
