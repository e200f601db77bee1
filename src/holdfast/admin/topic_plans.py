"""What creating, growing, converting or repairing a static topic means, broker by broker. Plans are pure values.

    create  4 queues over a, b    a {0, 2}  b {1, 3}  c {} (only the stamp: epoch and number of queues)
    grow    4 -> 6                a {0, 2, 4}  b {1, 3, 5}
    convert a has 2, b has 2      a {0, 1}  b {2, 3}: physical queue i becomes a logical queue as it is

Every broker of the scope gets a record, so that a cluster of which only a part was told is noticed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from math import gcd
from types import MappingProxyType
from typing import Final

import msgspec

from holdfast.admin.cluster_access import NotAllowed
from holdfast.admin.static_topics import ClusterMappings, Holder, StaticTopic
from holdfast.model.floor import NO_FLOOR, Floor
from holdfast.model.leader_planning import count_leads, plan_create, plan_grow
from holdfast.model.mapping import (
    LogicalQueue,
    MergedTopic,
    TopicMapping,
    check,
    first_home,
    merge,
    next_epoch,
)
from holdfast.model.scope import GLOBAL, covers, overlap, to_shown_scope
from holdfast.model.topic import TopicConfig
from holdfast.wire.requests.moves import Stamp


class KnownStart(msgspec.Struct, frozen=True, kw_only=True):
    """Where a queue may begin, as far as the cluster knows.

    Attributes:
        floor: No offset at or above it was ever used, as far as those say who were asked.
        silent: Brokers that may know more, and do not answer.
    """

    floor: Floor
    silent: list[str] = []

    @property
    def first(self) -> int:
        """Where its next home begins."""
        return self.floor.next_first(is_certain=not self.silent)

    @property
    def generation(self) -> int:
        """The generation of its next home."""
        return self.floor.next_generation(is_certain=not self.silent)


NEW: Final = KnownStart(floor=NO_FLOOR)
"""Of a queue that never had a home."""


class RecordChange(msgspec.Struct, frozen=True, kw_only=True):
    """What one broker is told.

    Attributes:
        queues: How many physical queues of the topic it has afterwards.
        record: Its whole record afterwards.
    """

    broker: str
    address: str
    queues: int
    record: TopicMapping


class TopicPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A change of a static topic.

    Attributes:
        config: How it is hosted, but for the number of queues.
        before: Its logical queues now.
        after: Its logical queues afterwards.
        changes: What each broker is told.
        skipped: Broker to why it is not told; harmless while it hosts nothing of the topic.
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
    """What brings all records of a topic together.

    Attributes:
        stamps: Broker to the stamp that it missed.
        homes: New homes for queues that nobody leads; None when all are led.
        faults: What nobody but an operator can decide.
    """

    topic: str
    stamps: dict[str, Stamp]
    homes: TopicPlan | None
    faults: list[str]

    @property
    def given(self) -> list[int]:
        """The queues that get a home."""
        if self.homes is None:
            return []
        return sorted({queue.queue for queue in self.homes.after} - {queue.queue for queue in self.homes.before})

    @property
    def is_needed(self) -> bool:
        """Whether there is anything to do."""
        return bool(self.stamps or self.homes)


def members_of(view: ClusterMappings, scope: str) -> dict[str, Holder]:
    """Return the brokers that keep a record of a topic of this scope: all, or those of the cluster that it names.

    Raises:
        NotAllowed: there is no broker in that scope.
    """
    found = {name: holder for name, holder in view.holders.items() if covers(scope, holder.cluster)}
    if not found:
        known = ", ".join(sorted({holder.cluster for holder in view.holders.values()}))
        raise NotAllowed(f"scope {scope!r} has no broker: it is global or the name of a cluster ({known})")
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
    """Return how a new topic of *total* logical queues is laid out.

    Args:
        view: The cluster.
        config: How the topic is hosted, but for the number of queues.
        total: How many logical queues it gets.
        targets: Who leads them; where empty, everybody in the scope who can.
        scope: Where its queues are fixed, as on the wire.
        now_ms: The time here; the epoch grows from it.

    Raises:
        MappingRefused: a number of queues that no topic can have.
        NotAllowed, NotFound: a target cannot take part; the text says why.
    """
    for other in view.find(config.name):
        if overlap(other.merged.scope, scope):
            fixed, wanted = to_shown_scope(other.merged.scope), to_shown_scope(scope)
            raise NotAllowed(f"{config.name} is a static topic of {fixed} already: none of {wanted} can be beside it")
    chosen = _choose(view, members_of(view, scope), targets)
    moves = plan_create(config.name, total, chosen, load=count_leads(view.leaders))
    layout = _Layout(view, config, scope, next_epoch(0, now_ms), total)
    for move in moves:
        layout.add(move.queue, move.target)
    return layout.to_plan()


def grow_plan(
    view: ClusterMappings, topic: StaticTopic, total: int, *, targets: Collection[str] = (), now_ms: int
) -> TopicPlan:
    """Return how a topic gets more logical queues. Those that are there stay as they are.

    Raises:
        MappingRefused: fewer queues than there are, or more than a topic can have.
        NotAllowed, NotFound: it is not whole, or a target cannot take part; the text says what to do.
    """
    merged = topic.merged
    if not merged.complete:
        raise NotAllowed(
            f"{topic.name} is not whole ({_first_fault(topic)}): run `holdfast queue repair {topic.name}` first"
        )
    chosen = _choose(view, members_of(view, merged.scope), targets)
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
    """Return how a normal topic becomes static in place: each of its queues becomes a logical queue as it is.

    Args:
        view: The cluster.
        config: How the topic is hosted, but for the number of queues.
        hosts: Broker to how many queues it has.
        total: How many logical queues it gets; where left out, as many as there are queues.
        scope: Where its queues are fixed, as on the wire.
        now_ms: The time here.

    Raises:
        NotAllowed, NotFound: fewer logical queues than there are queues, or a host cannot take part.
        MappingRefused: more queues than a topic can have.
    """
    members = members_of(view, scope)
    _choose(view, members, hosts)
    count = sum(hosts.values())
    wanted = count if total is None else total
    if wanted < count:
        raise NotAllowed(
            f"{config.name} has {count} queues and cannot have {wanted} logical ones: the records of the others would"
            f" be out of reach. Ask for {count} or more"
        )
    layout = _Layout(view, config, scope, next_epoch(0, now_ms), wanted)
    leaders: dict[int, str] = {}
    for broker in sorted(hosts):
        for queue_id in range(hosts[broker]):
            layout.add(len(leaders), broker, queue_id=queue_id)
            leaders[len(leaders)] = broker
    for move in plan_grow(config.name, leaders, wanted, sorted(hosts), load=count_leads(view.leaders)):
        layout.add(move.queue, move.target)
    return layout.to_plan()


def set_plan(  # noqa: PLR0913 - one name for each option
    view: ClusterMappings,
    topic: StaticTopic,
    queue: int,
    broker: str,
    *,
    start: KnownStart,
    queue_id: int | None = None,
    first: int | None = None,
    force: bool = False,
    now_ms: int,
) -> TopicPlan:
    """Return how a logical queue that nobody leads gets a home by hand.

    Args:
        view: The cluster.
        topic: The topic.
        queue: The logical queue.
        broker: Who shall lead it.
        start: Where it may begin at the lowest.
        queue_id: Which physical queue becomes it; where left out, a new one.
        first: Its first logical offset; where left out, the lowest that it may have.
        force: Brokers that do not answer are dead for good: the queue begins a forced gap above what the others know.
        now_ms: The time here.

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
    _choose(view, members_of(view, merged.scope), [broker])
    if start.silent and not force:
        raise NotAllowed(
            f"{', '.join(start.silent)} does not answer, and may have held logical queue {queue} of {topic.name}: start"
            f" it first. If it is dead for good, --force lets the queue begin at {start.first}, a gap above all offsets"
            " that it may have used"
        )
    if first is not None and first < start.first:
        raise NotAllowed(
            f"logical queue {queue} of {topic.name} cannot begin at {first}: offsets below {start.first} were used, or"
            f" may have been, and groups that consumed them would skip new messages. Leave --first out, or say"
            f" {start.first} or more"
        )
    layout = _Layout(view, topic.config, merged.scope, next_epoch(merged.epoch, now_ms), merged.total, topic)
    chosen = start.first if first is None else first
    layout.add(queue, broker, queue_id=queue_id, first=chosen, generation=start.generation)
    return layout.to_plan()


def unled_queues(topic: StaticTopic) -> list[int]:
    """Return the queues that a repair may give a home."""
    total = max(record.total for record in topic.records.values())
    return [number for number in range(total) if number not in topic.merged.queues]


def repair_plan(
    view: ClusterMappings,
    topic: StaticTopic,
    *,
    starts: Mapping[int, KnownStart],
    force: bool = False,
    now_ms: int,
) -> RepairPlan:
    """Return what brings the records of a topic together: the newest epoch everywhere, a leader for every queue.

    A queue that never had a home gets one; one whose leader is dead does not: that is for a forced move.

    Args:
        view: The cluster.
        topic: The topic.
        starts: Where each queue without a leader may begin.
        force: Who does not answer is dead for good. What it alone may have been told to lead opens elsewhere, in a
            later generation and behind a gap: should it return all the same, it is fenced, and no offset is used twice.
        now_ms: The time here.
    """
    agreed = _agree(topic, now_ms)
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
        return RepairPlan(topic=topic.name, stamps={}, homes=None, faults=faults)
    unknown, lost = _sort_unled(topic, merged.unled)
    faults += [f"nobody leads queue {number}, which went to {broker}: start {broker}" for number, broker in lost]
    # A broker that is away may hold them: nobody may give them a second home.
    away = {name for name, holder in members.items() if holder.fault is not None} | {*merged.missing}
    away |= {name for number in unknown for name in starts[number].silent}
    homes = None
    if unknown and away and not force:
        faults.append(
            f"nobody who answers leads queues {_numbers(unknown)}: start {', '.join(sorted(away))} first. If it is dead"
            f" for good, `holdfast queue repair {topic.name} --force` opens them elsewhere"
        )
    elif unknown:
        leaders, chosen = merged.leaders | dict(lost), _choose(view, members, ())
        begin = {number: msgspec.structs.replace(starts[number], silent=sorted(away)) for number in unknown}
        homes = _fill(view, agreed, leaders, merged.total, chosen, starts=begin, now_ms=now_ms)
    stamp = Stamp(topic=topic.config, scope=merged.scope, epoch=merged.epoch, total=merged.total)
    late = {
        name: stamp
        for name, holder in members.items()
        if holder.is_ready and not _has_heard(topic.records.get(name), merged)
    }
    return RepairPlan(topic=topic.name, stamps={} if homes else late, homes=homes, faults=faults)


def _fill(
    view: ClusterMappings,
    topic: StaticTopic,
    leaders: Mapping[int, str],
    total: int,
    targets: Collection[str],
    *,
    starts: Mapping[int, KnownStart] = MappingProxyType({}),
    now_ms: int,
) -> TopicPlan:
    """Return how the queues below *total* that are not in *leaders* get their homes: new ones begin at 0."""
    merged = topic.merged
    layout = _Layout(view, topic.config, merged.scope, next_epoch(merged.epoch, now_ms), total, topic)
    for move in plan_grow(topic.name, leaders, total, targets, load=_load_beside(view, topic.name)):
        start = starts.get(move.queue, NEW)
        layout.add(move.queue, move.target, first=start.first, generation=start.generation)
    return layout.to_plan()


def _agree(topic: StaticTopic, now_ms: int) -> StaticTopic:
    """Return the topic as it is once everybody has heard of every growth: it never shrinks, so the most count."""
    total = max(record.total for record in topic.records.values())
    if total == topic.merged.total:
        return topic
    epoch = next_epoch(topic.merged.epoch, now_ms)
    records = {
        name: msgspec.structs.replace(record, epoch=epoch, total=total) for name, record in topic.records.items()
    }
    return msgspec.structs.replace(topic, records=records, merged=merge(records))


def _has_heard(record: TopicMapping | None, merged: MergedTopic) -> bool:
    return record is not None and (record.epoch, record.total) == (merged.epoch, merged.total)


def _sort_unled(topic: StaticTopic, unled: Collection[int]) -> tuple[list[int], list[tuple[int, str]]]:
    """Return the queues that nobody ever heard of, and those that had a leader, with its name."""
    lost: list[tuple[int, str]] = []
    for number in unled:
        known = [record.queues[number] for record in topic.records.values() if number in record.queues]
        if known:
            lost.append((number, max(known, key=lambda queue: queue.generation).leader.broker))
    return [number for number in unled if number not in dict(lost)], lost


def share_of_keys_that_stay(before: int, after: int) -> float:
    """Return how many of all keys keep their queue when the number of queues changes: both remainders must agree."""
    return min(before, after) * gcd(before, after) / (before * after)


class _Layout:
    """Puts queues onto brokers, each on a physical queue of its own."""

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
        self._next: dict[str, int] = {}

    def add(self, queue: int, broker: str, *, queue_id: int | None = None, first: int = 0, generation: int = 0) -> None:
        """Give a logical queue its only home; without a *queue_id* a physical queue that was never used."""
        fresh = self._next.get(broker, 0 if self._topic is None else self._topic.next_physical(broker))
        chosen = fresh if queue_id is None else queue_id
        self._next[broker] = max(fresh, chosen + 1)
        (home,) = first_home(queue, broker, chosen).segments
        home = msgspec.structs.replace(home, generation=generation, first=first)
        self._added.setdefault(broker, []).append(LogicalQueue(queue, (home,)))

    def to_plan(self) -> TopicPlan:
        """Return the plan; every record in it keeps the rules."""
        members = members_of(self._view, self._stamp.scope)
        told = {name: holder for name, holder in members.items() if holder.fault is None and holder.knows_mappings}
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
            changes=[self._change(holder) for holder in told.values()],
            skipped={
                name: holder.fault or "it is older than RocketMQ 5.0"
                for name, holder in members.items()
                if name not in told
            },
        )

    def _change(self, holder: Holder) -> RecordChange:
        old = None if self._topic is None else self._topic.records.get(holder.name)
        stamp = msgspec.structs.replace(
            self._stamp, broker=holder.name, queues={} if old is None else old.decided().queues
        )
        record = stamp.put(*self._added.get(holder.name, ()))
        check(record, owner=holder.name)
        config = None if self._topic is None else self._topic.configs.get(holder.name)
        hosted = 0 if config is None else config.write_queues
        own = max((number + 1 for number in record.used_on(holder.name)), default=0)
        return RecordChange(
            broker=holder.name,
            address=holder.address,
            queues=max(hosted, own, self._next.get(holder.name, 0)),
            record=record,
        )


def _choose(view: ClusterMappings, members: Mapping[str, Holder], targets: Collection[str]) -> list[str]:
    """Return the brokers that get queues."""
    if not targets:
        found = [name for name, holder in members.items() if holder.fault is None and holder.knows_mappings]
        if not found:
            raise NotAllowed("no broker that answers can keep logical queues: start one, or upgrade them")
        found = [name for name in found if not members[name].draining]
        if not found:
            raise NotAllowed("every broker that could lead queues is drained: name one, or `holdfast broker spread` it")
        return found
    for name in targets:
        holder = view.get_holder(name)
        if name not in members:
            inside = ", ".join(sorted(members)) or "there is none"
            raise NotAllowed(
                f"broker {name} is in cluster {holder.cluster}, outside of the topic's scope: choose from {inside}"
            )
        if holder.fault is not None:
            raise NotAllowed(f"broker {name} does not answer ({holder.fault}): start it, or leave it out")
        if not holder.knows_mappings:
            raise NotAllowed(f"broker {name} is older than RocketMQ 5.0 and knows no static topics: upgrade it first")
    return list(targets)


def _load_beside(view: ClusterMappings, topic: str) -> Mapping[str, int]:
    """Return how many queues of other topics each broker leads."""
    return count_leads({name: leaders for name, leaders in view.leaders.items() if name != topic})


def _fault_of(view: ClusterMappings, name: str) -> str | None:
    holder = view.holders.get(name)
    return "the name server does not know it" if holder is None else holder.fault


def _first_fault(topic: StaticTopic) -> str:
    if topic.merged.contradictions:
        return topic.merged.contradictions[0]
    return f"nobody leads queues {_numbers(topic.merged.unled)}"


def _numbers(numbers: list[int]) -> str:
    shown = ", ".join(map(str, numbers[:5]))
    return shown if len(numbers) <= 5 else f"{shown} and {len(numbers) - 5} more"
