"""Plans to create, grow, convert or repair a static topic, broker by broker. Plans are pure values.

    create  4 queues over a, b    a {0, 2}  b {1, 3}  c {} (only the stamp: epoch and number of queues)
    grow    4 -> 6                a {0, 2, 4}  b {1, 3, 5}
    convert a has 2, b has 2      a {0, 1}  b {2, 3}: each physical queue becomes a logical queue, unchanged

Every broker of the scope gets a record, so that a partly applied change is detected.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from math import gcd
from types import MappingProxyType
from typing import Final

import msgspec

from holdfast.admin.cluster_access import NotAllowed
from holdfast.admin.static_topics import BrokerMappings, ClusterMappings, StaticTopic
from holdfast.model.floor import NO_FLOOR, Floor
from holdfast.model.leader_planning import count_led_queues, plan_create, plan_grow
from holdfast.model.mapping import (
    LogicalQueue,
    MergedTopic,
    TopicMapping,
    check,
    merge,
    next_epoch,
)
from holdfast.model.queue import LogicalOffset, LogicalQueueId, PhysicalQueueId
from holdfast.model.scope import GLOBAL, covers, overlap, to_shown_scope
from holdfast.model.segment import Segment, generation_order
from holdfast.model.topic import TopicConfig
from holdfast.wire.requests.moves import QueueTotal


class KnownStart(msgspec.Struct, frozen=True, kw_only=True):
    """Where a queue may begin, from the knowledge of the brokers that answered.

    Attributes:
        floor: According to these brokers, no offset at or above it was ever used.
        silent: Brokers that may know more, and do not answer.
    """

    floor: Floor
    silent: list[str] = []

    @property
    def first(self) -> LogicalOffset:
        """The first offset of its next segment."""
        return self.floor.next_start(is_certain=not self.silent)

    @property
    def generation(self) -> int:
        """The generation of its next segment."""
        return self.floor.next_generation(is_certain=not self.silent)


NEW_QUEUE_START: Final = KnownStart(floor=NO_FLOOR)
"""The start of a queue that never had a segment."""


class RecordChange(msgspec.Struct, frozen=True, kw_only=True):
    """The change that one broker receives.

    Attributes:
        queues: How many physical queues of the topic it has afterwards.
        record: Its complete record afterwards.
    """

    broker: str
    address: str
    queues: int
    record: TopicMapping


class TopicPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A change of a static topic.

    Attributes:
        config: Its configuration, except the number of queues.
        before: Its logical queues now.
        after: Its logical queues afterwards.
        changes: The change that each broker receives.
        skipped: Broker to the reason why it receives no change; harmless while it hosts no queue of the topic.
    """

    topic: str
    scope: str
    epoch: int
    total: int
    config: TopicConfig
    before: list[LogicalQueue]
    after: list[LogicalQueue]
    changes: list[RecordChange]
    skipped: dict[str, str] = {}


class RepairPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The changes that make all records of a topic agree.

    Attributes:
        stamps: Broker to the stamp that it missed.
        new_segments: New segments for queues without a leader; None if there are none to add.
        faults: Problems that only an operator can solve.
    """

    topic: str
    stamps: dict[str, QueueTotal]
    new_segments: TopicPlan | None
    faults: list[str]

    @property
    def opened_queues(self) -> list[LogicalQueueId]:
        """The queues that get a segment."""
        if self.new_segments is None:
            return []
        return sorted(
            {queue.queue for queue in self.new_segments.after} - {queue.queue for queue in self.new_segments.before}
        )

    @property
    def is_needed(self) -> bool:
        """Whether there is anything to do."""
        return bool(self.stamps or self.new_segments)


def members_of(view: ClusterMappings, scope: str) -> dict[str, BrokerMappings]:
    """Return the brokers that keep a record of topics of this scope: all, or those of the cluster that it names.

    Raises:
        NotAllowed: there is no broker in that scope.
    """
    found = {name: mappings for name, mappings in view.brokers.items() if covers(scope, mappings.cluster)}
    if not found:
        known = ", ".join(sorted({mappings.cluster for mappings in view.brokers.values()}))
        raise NotAllowed(f"scope {scope!r} has no broker: a scope is global or the name of a cluster ({known})")
    return found


def create_plan(
    view: ClusterMappings,
    config: TopicConfig,
    total: int,
    *,
    targets: Collection[str] = (),
    scope: str = GLOBAL,
    now_ms: int,
) -> TopicPlan:
    """Return the layout of a new topic of *total* logical queues.

    Args:
        view: The cluster.
        config: The topic's configuration, except the number of queues.
        total: How many logical queues it gets.
        targets: The brokers that lead them; if empty, all brokers in the scope that can.
        scope: The scope of its queues, as on the wire.
        now_ms: The local time, from which the epoch is derived.

    Raises:
        MappingRefused: no topic can have this number of queues.
        NotAllowed, NotFound: a target cannot take part; the text says why.
    """
    for existing in view.find(config.name):
        if overlap(existing.merged.scope, scope):
            existing_scope, requested_scope = to_shown_scope(existing.merged.scope), to_shown_scope(scope)
            raise NotAllowed(
                f"{config.name} is a static topic of {existing_scope} already: it cannot be one of {requested_scope} "
                "at the same time"
            )
    chosen = _choose_targets(view, members_of(view, scope), targets)
    moves = plan_create(config.name, total, chosen, load=count_led_queues(view.leaders))
    layout = _Layout(view, config, scope, next_epoch(0, now_ms), total)
    for move in moves:
        layout.add(move.queue, move.target)
    return layout.to_plan()


def grow_plan(
    view: ClusterMappings, topic: StaticTopic, total: int, *, targets: Collection[str] = (), now_ms: int
) -> TopicPlan:
    """Return a plan that adds logical queues to a topic. Existing queues stay unchanged.

    Raises:
        MappingRefused: *total* is less than the topic has, or more than a topic can have.
        NotAllowed, NotFound: the topic is incomplete, or a target cannot take part; the text says what to do.
    """
    merged = topic.merged
    if not merged.is_complete:
        raise NotAllowed(
            f"{topic.name} is incomplete ({_first_fault(topic)}): run `holdfast queue repair {topic.name}` first"
        )
    chosen = _choose_targets(view, members_of(view, merged.scope), targets)
    plan = _fill(view, topic, merged.leaders, total, chosen, now_ms=now_ms)
    if len(plan.after) == len(plan.before):
        raise NotAllowed(f"{topic.name} has {total} logical queues already: there is nothing to change")
    return plan


def convert_plan(
    view: ClusterMappings,
    config: TopicConfig,
    hosts: Mapping[str, int],
    *,
    total: int | None = None,
    scope: str = GLOBAL,
    now_ms: int,
) -> TopicPlan:
    """Return a plan that makes a normal topic static in place: each of its queues becomes a logical queue, unchanged.

    Args:
        view: The cluster.
        config: The topic's configuration, except the number of queues.
        hosts: Broker to how many queues it has.
        total: How many logical queues it gets; if left out, as many as there are queues.
        scope: The scope of its queues, as on the wire.
        now_ms: The local time.

    Raises:
        NotAllowed, NotFound: *total* is less than the number of queues, or a host cannot take part.
        MappingRefused: *total* is more than a topic can have.
    """
    members = members_of(view, scope)
    _choose_targets(view, members, hosts)
    count = sum(hosts.values())
    queue_total = count if total is None else total
    if queue_total < count:
        raise NotAllowed(
            f"{config.name} has {count} queues and cannot have {queue_total} logical ones: the messages of the "
            "others would"
            f" be unreachable. Ask for {count} or more"
        )
    layout = _Layout(view, config, scope, next_epoch(0, now_ms), queue_total)
    leaders: dict[LogicalQueueId, str] = {}
    for broker in sorted(hosts):
        for queue_id in map(PhysicalQueueId, range(hosts[broker])):
            number = LogicalQueueId(len(leaders))
            layout.add(number, broker, queue_id=queue_id)
            leaders[number] = broker
    for move in plan_grow(config.name, leaders, queue_total, sorted(hosts), load=count_led_queues(view.leaders)):
        layout.add(move.queue, move.target)
    return layout.to_plan()


def assign_plan(  # noqa: PLR0913 - one name for each option
    view: ClusterMappings,
    topic: StaticTopic,
    queue: LogicalQueueId,
    broker: str,
    *,
    start: KnownStart,
    queue_id: PhysicalQueueId | None = None,
    first: LogicalOffset | None = None,
    force: bool = False,
    now_ms: int,
) -> TopicPlan:
    """Return a plan that gives a logical queue without a leader a segment chosen by the operator.

    Args:
        view: The cluster.
        topic: The topic.
        queue: The logical queue.
        broker: The broker that shall lead it.
        start: The lowest offset at which it may begin.
        queue_id: The physical queue of the segment; if left out, a new one.
        first: Its first logical offset; if left out, the lowest that it may have.
        force: Brokers that do not answer are dead for good: the queue begins a forced gap above all offsets that the
            others know.
        now_ms: The local time.

    Raises:
        NotAllowed, NotFound: the queue has a leader, the broker cannot take part, a broker that may have held the queue
            does not answer, or *first* was used before; the text says what to do.
        MappingRefused: the physical queue belongs to another logical queue.
    """
    merged = topic.merged
    if not 0 <= queue < merged.total:
        raise NotAllowed(
            f"{topic.name} has logical queues 0 to {merged.total - 1}, no {queue}: `holdfast topic grow` adds some"
        )
    if queue in merged.queues:
        leader = merged.queues[queue].leader.broker
        raise NotAllowed(
            f"logical queue {queue} of {topic.name} is led by {leader}: `holdfast queue migrate {topic.name} {queue}"
            f" --to {broker}` moves it"
        )
    _choose_targets(view, members_of(view, merged.scope), [broker])
    if start.silent and not force:
        raise NotAllowed(
            f"{', '.join(start.silent)} does not answer, and may have held logical queue {queue} of {topic.name}: start"
            f" it first. If it is dead for good, --force starts the queue at {start.first}, a gap above all offsets"
            " that it may have used"
        )
    if first is not None and first < start.first:
        raise NotAllowed(
            f"logical queue {queue} of {topic.name} cannot begin at {first}: offsets below {start.first} were used, or"
            f" may have been, and groups that consumed them would skip new messages. Omit --first, or give"
            f" {start.first} or more"
        )
    layout = _Layout(view, topic.config, merged.scope, next_epoch(merged.epoch, now_ms), merged.total, topic)
    layout.add(queue, broker, queue_id=queue_id, start=start, first=first)
    return layout.to_plan()


def leaderless_queues(topic: StaticTopic) -> list[LogicalQueueId]:
    """Return the queues without a leader, to which a repair may give a segment."""
    total = max(record.total for record in topic.records.values())
    return [number for number in map(LogicalQueueId, range(total)) if number not in topic.merged.queues]


def repair_plan(
    view: ClusterMappings,
    topic: StaticTopic,
    *,
    starts: Mapping[LogicalQueueId, KnownStart],
    force: bool = False,
    now_ms: int,
) -> RepairPlan:
    """Return the changes that make a topic's records agree: the newest epoch everywhere, a leader for every queue.

    A queue that never had a segment gets one. A queue whose leader is dead does not: that needs a forced move.

    Args:
        view: The cluster.
        topic: The topic.
        starts: Where each queue without a leader may begin.
        force: Brokers that do not answer are dead for good. Queues that only such a broker may lead open elsewhere, in
            a later generation and after a gap. If the broker returns after all, it is fenced, and no offset is used
            twice.
        now_ms: The local time.
    """
    agreed = _with_largest_total(topic, now_ms)
    merged = agreed.merged
    members = members_of(view, merged.scope)
    dead = sorted({leader for leader in merged.leaders.values() if _fault_of(view, leader) is not None})
    faults = [
        *merged.contradictions,
        *(
            f"{name} leads queues and does not answer: start it, or `holdfast broker evacuate {name} --force`"
            for name in dead
        ),
    ]
    if merged.contradictions:
        return RepairPlan(topic=topic.name, stamps={}, new_segments=None, faults=faults)
    unknown, formerly_led = _split_leaderless(topic, merged.unled)
    faults += [
        f"no broker leads queue {number}, which went to {broker}: start {broker}" for number, broker in formerly_led
    ]
    # A broker that is away may lead them: a second leader would use their offsets twice.
    silent_brokers = {name for name, mappings in members.items() if mappings.fault is not None} | {*merged.missing}
    silent_brokers |= {name for number in unknown for name in starts[number].silent}
    new_segments = None
    if unknown and silent_brokers and not force:
        faults.append(
            f"no broker that answers leads queues {_numbers_text(unknown)}: start "
            f"{', '.join(sorted(silent_brokers))} first. If it is"
            f" dead for good, `holdfast queue repair {topic.name} --force` opens them elsewhere"
        )
    elif unknown:
        leaders, chosen = merged.leaders | dict(formerly_led), _choose_targets(view, members, ())
        queue_starts = {
            number: msgspec.structs.replace(starts[number], silent=sorted(silent_brokers)) for number in unknown
        }
        new_segments = _fill(view, agreed, leaders, merged.total, chosen, starts=queue_starts, now_ms=now_ms)
    stamp = QueueTotal(topic=topic.config, scope=merged.scope, epoch=merged.epoch, total=merged.total)
    missed_stamps = {
        name: stamp
        for name, mappings in members.items()
        if mappings.is_ready and not _is_current(topic.records.get(name), merged)
    }
    return RepairPlan(
        topic=topic.name, stamps={} if new_segments else missed_stamps, new_segments=new_segments, faults=faults
    )


def _fill(
    view: ClusterMappings,
    topic: StaticTopic,
    leaders: Mapping[LogicalQueueId, str],
    total: int,
    targets: Collection[str],
    *,
    starts: Mapping[LogicalQueueId, KnownStart] = MappingProxyType({}),
    now_ms: int,
) -> TopicPlan:
    """Return a plan that gives a segment to every queue below *total* that is not in *leaders*.

    A queue begins at its start in *starts*, or at 0 without one.
    """
    merged = topic.merged
    layout = _Layout(view, topic.config, merged.scope, next_epoch(merged.epoch, now_ms), total, topic)
    for move in plan_grow(topic.name, leaders, total, targets, load=_other_topic_load(view, topic.name)):
        start = starts.get(move.queue, NEW_QUEUE_START)
        layout.add(move.queue, move.target, start=start)
    return layout.to_plan()


def _with_largest_total(topic: StaticTopic, now_ms: int) -> StaticTopic:
    """Return the topic with the largest total of all its records: a topic only grows, so the largest is right."""
    total = max(record.total for record in topic.records.values())
    if total == topic.merged.total:
        return topic
    epoch = next_epoch(topic.merged.epoch, now_ms)
    records = {
        name: msgspec.structs.replace(record, epoch=epoch, total=total) for name, record in topic.records.items()
    }
    return msgspec.structs.replace(topic, records=records, merged=merge(records))


def _is_current(record: TopicMapping | None, merged: MergedTopic) -> bool:
    return record is not None and (record.epoch, record.total) == (merged.epoch, merged.total)


def _split_leaderless(
    topic: StaticTopic, leaderless: Collection[LogicalQueueId]
) -> tuple[list[LogicalQueueId], list[tuple[LogicalQueueId, str]]]:
    """Return the queues that no record mentions, and those that had a leader, with its name."""
    formerly_led: list[tuple[LogicalQueueId, str]] = []
    for number in leaderless:
        known = [record.queues[number] for record in topic.records.values() if number in record.queues]
        if known:
            formerly_led.append(
                (number, max(known, key=lambda queue: generation_order(queue.generation)).leader.broker)
            )
    return [number for number in leaderless if number not in dict(formerly_led)], formerly_led


def stable_key_share(before: int, after: int) -> float:
    """Return the fraction of keys that keep their queue when the number of queues changes.

    A key keeps its queue when its hash has the same remainder for both numbers.
    """
    return min(before, after) * gcd(before, after) / (before * after)


class _Layout:
    """Assigns logical queues to brokers, each to a separate physical queue."""

    def __init__(
        self,
        view: ClusterMappings,
        config: TopicConfig,
        scope: str,
        epoch: int,
        total: int,
        topic: StaticTopic | None = None,
    ) -> None:
        self._view = view
        self._config = config
        self._topic = topic
        self._stamp = TopicMapping(topic=config.name, broker="", scope=scope, epoch=epoch, total=total)
        self._added: dict[str, list[LogicalQueue]] = {}
        self._next: dict[str, PhysicalQueueId] = {}

    def add(
        self,
        queue: LogicalQueueId,
        broker: str,
        *,
        queue_id: PhysicalQueueId | None = None,
        start: KnownStart = NEW_QUEUE_START,
        first: LogicalOffset | None = None,
    ) -> None:
        """Give a logical queue its only segment; without a *queue_id*, on a physical queue that was never used.

        It begins at *first*, or else at the lowest offset that *start* allows.
        """
        unused = PhysicalQueueId(0) if self._topic is None else self._topic.next_physical_queue(broker)
        fresh = self._next.get(broker, unused)
        chosen = fresh if queue_id is None else queue_id
        self._next[broker] = max(fresh, PhysicalQueueId(chosen + 1))
        segment = Segment(
            generation=start.generation,
            broker=broker,
            queue_id=chosen,
            first=start.first if first is None else first,
        )
        self._added.setdefault(broker, []).append(LogicalQueue(queue, (segment,)))

    def to_plan(self) -> TopicPlan:
        """Return the plan; every record in it is valid."""
        members = members_of(self._view, self._stamp.scope)
        reachable = {
            name: mappings
            for name, mappings in members.items()
            if mappings.fault is None and mappings.supports_mappings
        }
        before = [] if self._topic is None else list(self._topic.merged.queues.values())
        added = [queue for queues in self._added.values() for queue in queues]
        return TopicPlan(
            topic=self._config.name,
            scope=self._stamp.scope,
            epoch=self._stamp.epoch,
            total=self._stamp.total,
            config=self._config,
            before=before,
            after=sorted([*before, *added], key=lambda queue: queue.queue),
            changes=[self._change(mappings) for mappings in reachable.values()],
            skipped={
                name: mappings.fault or "it is older than RocketMQ 5.0"
                for name, mappings in members.items()
                if name not in reachable
            },
        )

    def _change(self, mappings: BrokerMappings) -> RecordChange:
        old = None if self._topic is None else self._topic.records.get(mappings.name)
        stamp = msgspec.structs.replace(
            self._stamp, broker=mappings.name, queues={} if old is None else old.without_prepared().queues
        )
        record = stamp.with_queues(*self._added.get(mappings.name, ()))
        check(record, owner=mappings.name)
        config = None if self._topic is None else self._topic.configs.get(mappings.name)
        hosted = 0 if config is None else config.write_queues
        own_queues = max((number + 1 for number in record.used_queue_ids(mappings.name)), default=0)
        return RecordChange(
            broker=mappings.name,
            address=mappings.address,
            queues=max(hosted, own_queues, self._next.get(mappings.name, 0)),
            record=record,
        )


def _choose_targets(
    view: ClusterMappings, members: Mapping[str, BrokerMappings], targets: Collection[str]
) -> list[str]:
    """Return *targets*, once checked; without targets, all brokers of *members* that can lead queues.

    Raises:
        NotAllowed, NotFound: a target, or every broker, cannot lead queues; the text says what to do.
    """
    if not targets:
        found = [name for name, mappings in members.items() if mappings.fault is None and mappings.supports_mappings]
        if not found:
            raise NotAllowed("no broker that answers can keep logical queues: start one, or upgrade them")
        found = [name for name in found if not members[name].draining]
        if not found:
            raise NotAllowed("every broker that can lead queues is drained: name one, or `holdfast broker spread` it")
        return found
    for name in targets:
        mappings = view.get_broker(name)
        if name not in members:
            inside = ", ".join(sorted(members)) or "there is none"
            raise NotAllowed(
                f"broker {name} is in cluster {mappings.cluster}, outside the topic's scope: choose from {inside}"
            )
        if mappings.fault is not None:
            raise NotAllowed(f"broker {name} does not answer ({mappings.fault}): start it, or leave it out")
        if not mappings.supports_mappings:
            raise NotAllowed(
                f"broker {name} is older than RocketMQ 5.0 and does not support static topics: upgrade it first"
            )
    return list(targets)


def _other_topic_load(view: ClusterMappings, topic: str) -> Mapping[str, int]:
    """Return how many queues of other topics each broker leads."""
    return count_led_queues({name: leaders for name, leaders in view.leaders.items() if name != topic})


def _fault_of(view: ClusterMappings, name: str) -> str | None:
    mappings = view.brokers.get(name)
    return "the name server does not know it" if mappings is None else mappings.fault


def _first_fault(topic: StaticTopic) -> str:
    if topic.merged.contradictions:
        return topic.merged.contradictions[0]
    return f"no broker leads queues {_numbers_text(topic.merged.unled)}"


def _numbers_text(numbers: list[LogicalQueueId]) -> str:
    shown = ", ".join(map(str, numbers[:5]))
    return shown if len(numbers) <= 5 else f"{shown} and {len(numbers) - 5} more"
