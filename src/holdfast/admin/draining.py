"""Removing a broker: the reasons why it is still needed, when they end, and the removal.

A broker can be removed when it leads no queue, every closed segment on it has expired, and no message waits in it: no
delayed, half, retried or dead-lettered message, no normal topic. Its retention decides when closed segments expire;
consumed ones can be discarded earlier.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from typing import Final

import msgspec

from holdfast.admin.cluster import parse_settings
from holdfast.admin.cluster_access import Broker, NotAllowed, Reach, body_of, gather, header_of
from holdfast.admin.moves import FINISHED, require_another
from holdfast.admin.static_topics import ClusterMappings, Holder, StaticTopics
from holdfast.admin.topics import QueueState, Topics, kind_of
from holdfast.model.errors import BrokerRefused
from holdfast.model.mapping import LogicalQueue
from holdfast.model.route import MASTER_ID
from holdfast.model.segment import Segment
from holdfast.model.topic import DEAD_LETTER_PREFIX, HALF_TOPIC, RETRY_PREFIX, SCHEDULE_TOPIC, Permission, TopicConfig
from holdfast.wire.cluster.registration import REMOVED_FIELD
from holdfast.wire.cluster.registration import Topics as TopicTable
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.requests.moves import DiscardOrder, DrainOrder, ForgetOrder, encode_body
from holdfast.wire.requests.offsets import OffsetAnswer, QueryOffsetFields

_HOUR_MS: Final = 3_600_000
_TRANSACTION_GROUP: Final = "CID_RMQ_SYS_TRANS"
_PAUSE_S: Final = 2.0


class Hold(msgspec.Struct, frozen=True, kw_only=True):
    """One reason why a broker is still needed.

    Attributes:
        kind: leads, move, records, delayed, half, retry, dead-letter or topic.
        name: The topic or the group.
        count: How many queues or messages.
        until_ms: When the reason ends without any action; None if that is not known.
        remedy: The action that ends it.
    """

    kind: str
    name: str
    count: int
    until_ms: int | None = None
    remedy: str


class Home(msgspec.Struct, frozen=True, kw_only=True):
    """A closed segment on the broker that is being drained."""

    topic: str
    queue: int
    generation: int
    first: int
    last: int | None
    last_ms: int
    kept_for: str = ""


class _DelayBody(msgspec.Struct, frozen=True, rename="camel"):
    """Body of the answer to 45: level to the next offset in its queue."""

    offset_table: dict[int, int] = {}


class Draining:
    """Operations that drain and remove brokers.

    Args:
        reach: The cluster.
        static: Reads mappings.
        topics: Reads topics.
        sleep: How to wait; tests pass a function that returns at once.
    """

    def __init__(
        self,
        reach: Reach,
        static: StaticTopics,
        topics: Topics,
        *,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._reach = reach
        self._static = static
        self._topics = topics
        self._sleep = sleep

    async def holds(self, broker: str) -> list[Hold]:
        """Return the reasons why *broker* is still needed; an empty list when it can be removed.

        Raises:
            NotFound: there is no such broker.
            NotAllowed: it does not answer.
        """
        view = (await self._static.read()).around(broker)
        holder = view.get_holder(broker)
        if holder.fault is not None:
            raise NotAllowed(f"{broker} does not answer ({holder.fault}): whether it is still needed is unknown")
        retention_ms = await self._retention_ms(holder)
        found = [*_leads(view, broker), *_moves(view, broker), *_records(view, broker, retention_ms)]
        found += await self._waiting(holder)
        found += await self._normal_topics(view, holder, retention_ms)
        return found

    async def mark(self, broker: str, *, draining: bool) -> None:
        """Set or clear the draining mark of *broker*. A draining broker gets queues only by orders that name it.

        The broker persists the mark.

        Raises:
            NotFound: there is no such broker.
        """
        (found,) = await self._reach.masters(names=[broker])
        await self._reach.ask(found.address, RequestCode.SET_DRAINING, body=encode_body(DrainOrder(draining=draining)))

    async def wait(
        self, broker: str, told: Callable[[Sequence[Hold]], None] = lambda _: None, *, groups: Sequence[str] = ()
    ) -> list[Home]:
        """Wait until *broker* is no longer needed. Call *told* with the remaining reasons each time they change.

        Meanwhile discard each closed segment as soon as all of *groups* have consumed it. Return those segments.
        """
        last: list[Hold] | None = None
        dropped: list[Home] = []
        while True:
            dropped += (await self.discard_consumed(broker, groups))[0]
            found = await self.holds(broker)
            if found != last:
                told(found)
            if not found:
                return dropped
            last = found
            await self._sleep(_PAUSE_S)

    async def discard_consumed(
        self, broker: str, groups: Sequence[str], *, dry_run: bool = False
    ) -> tuple[list[Home], list[Home]]:
        """Expire the closed segments on *broker* that all of *groups* have consumed.

        Return the expired segments and the kept ones. Without a group nothing is expired.

        Raises:
            NotFound: there is no such broker.
            NotAllowed: a broker that is needed for this does not answer, or does not support it.
        """
        dropped: list[Home] = []
        kept: list[Home] = []
        if not groups:
            return dropped, kept  # Without groups, no group can vouch that a segment is consumed.
        view = (await self._static.read()).around(broker)
        view.require_ready([broker])
        for topic, queue, segment in _closed_homes(view, broker):
            view.require_ready([queue.leader.broker])
            reason = await self._why_kept(view, topic, queue, segment, groups)
            (kept if reason else dropped).append(
                Home(
                    topic=topic,
                    queue=queue.queue,
                    generation=segment.generation,
                    first=segment.first,
                    last=segment.last,
                    last_ms=segment.last_ms,
                    kept_for=reason,
                )
            )
            if not reason and not dry_run:
                order = DiscardOrder(topic=topic, queue=queue.queue, generation=segment.generation)
                for name in (queue.leader.broker, broker):
                    address = view.holders[name].address
                    await self._reach.ask(address, RequestCode.DISCARD_SEGMENTS, body=encode_body(order))
        return dropped, kept

    async def remove(self, broker: str, *, force: bool = False) -> list[str]:
        """Remove *broker* from all records; return the brokers that forgot it. Its process can then be stopped.

        Args:
            broker: Its name.
            force: Remove it even if it does not answer, and give up its messages outside of static topics.

        Raises:
            NotAllowed: it is still needed; the text says for what.
        """
        view = (await self._static.read()).around(broker)
        is_dead = broker not in view.holders or view.holders[broker].fault is not None
        if is_dead and not force:
            if broker not in view.lost:
                view.get_holder(broker)
            raise NotAllowed(
                f"{broker} does not answer: whether delayed, half or retried messages wait in it is unknown. Start it,"
                " or give them up with --force"
            )
        require_another(view, broker)
        held = [*_leads(view, broker), *_records(view, broker, None)] if is_dead else await self.holds(broker)
        if held:
            what = "; ".join(hold_text(hold) for hold in held[:3])
            more = f"; and {len(held) - 3} more" if len(held) > 3 else ""
            raise NotAllowed(f"{broker} is still needed: {what}{more}. `holdfast broker drain {broker} --wait` ends it")
        others = [holder for name, holder in view.holders.items() if name != broker and holder.is_ready]
        body = encode_body(ForgetOrder(broker=broker))
        # The others first: if one of them refuses, the broker is still registered.
        await gather(others, lambda holder: self._reach.ask(holder.address, RequestCode.FORGET_BROKER, body=body))
        # The broker keeps its own records: without them it would store sends of stale clients as a normal topic's.
        await self._unregister(broker, view.holders.get(broker))
        return [holder.name for holder in others]

    async def _unregister(self, broker: str, holder: Holder | None) -> None:
        # Unregister the broker even if the name server has dropped it: it still counts the broker as down.
        fields = {
            "brokerName": broker,
            "brokerAddr": "" if holder is None else holder.address,
            "clusterName": "" if holder is None else holder.cluster,
            "brokerId": str(MASTER_ID),
            REMOVED_FIELD: "true",
        }
        await self._reach.ask_all_name_servers(RequestCode.UNREGISTER_BROKER, fields)

    async def _why_kept(
        self, view: ClusterMappings, topic: str, queue: LogicalQueue, segment: Segment, groups: Sequence[str]
    ) -> str:
        """Return why a closed segment must stay; an empty string when all groups have consumed it."""
        if segment.last is None:
            return "its end is unknown"
        for group in groups:
            committed = await self._committed(view.holders[queue.leader.broker], group, topic, queue.queue)
            if committed is None:
                return f"{group} has not consumed it"
            if committed < segment.last:
                return f"{group} is at {committed}, the segment ends at {segment.last}"
        return ""

    async def _committed(self, holder: Holder, group: str, topic: str, queue: int) -> int | None:
        header = QueryOffsetFields(consumer_group=group, topic=topic, queue_id=queue, set_zero_if_not_found=False)
        try:
            answer = await self._reach.ask(holder.address, RequestCode.QUERY_CONSUMER_OFFSET, header)
        except BrokerRefused as refusal:
            if refusal.code == ResponseCode.QUERY_NOT_FOUND:
                return None
            raise
        return header_of(answer, OffsetAnswer).offset

    async def _retention_ms(self, holder: Holder) -> int | None:
        answer = await self._reach.ask(holder.address, RequestCode.GET_BROKER_CONFIG)
        hours = parse_settings(answer.body).get("fileReservedTime", "")
        return int(hours) * _HOUR_MS if hours.isdecimal() else None

    # Messages that wait inside the broker.

    async def _waiting(self, holder: Holder) -> list[Hold]:
        answer = await self._reach.ask(holder.address, RequestCode.GET_ALL_DELAY_OFFSET)
        delivered = body_of(answer, _DelayBody).offset_table
        delayed = sum(
            max(0, state.offset_max - delivered.get(state.queue + 1, state.offset_min))
            for state in await self._states(holder, SCHEDULE_TOPIC)
        )
        half = 0
        for state in await self._states(holder, HALF_TOPIC):
            decided = await self._committed(holder, _TRANSACTION_GROUP, HALF_TOPIC, state.queue)
            half += max(0, state.offset_max - (state.offset_min if decided is None else decided))
        found = []
        if delayed:
            remedy = "they are delivered when they are due, in at most two hours"
            found.append(Hold(kind="delayed", name="delayed message", count=delayed, remedy=remedy))
        if half:
            remedy = "their producers commit or roll them back, or the broker asks the producers"
            found.append(Hold(kind="half", name="open transaction", count=half, remedy=remedy))
        return found

    async def _normal_topics(self, view: ClusterMappings, holder: Holder, retention_ms: int | None) -> list[Hold]:
        answer = await self._reach.ask(holder.address, RequestCode.GET_ALL_TOPIC_CONFIG)
        configs = body_of(answer, TopicTable).topic_config_table
        own = {*view.holders, *(each.cluster for each in view.holders.values())}
        wanted = [
            config
            for name, config in sorted(configs.items())
            if name not in view.topics and kind_of(name, own) != "system"
        ]

        async def find_hold(config: TopicConfig) -> Hold | None:
            states = await self._states(holder, config.name)
            if config.name.startswith(RETRY_PREFIX):
                return await self._retried(holder, config.name, states)
            count = sum(state.messages for state in states)
            newest_ms = max((state.last_stored_ms or 0 for state in states), default=0)
            until_ms = newest_ms + retention_ms if newest_ms and retention_ms is not None else None
            if config.name.startswith(DEAD_LETTER_PREFIX):
                remedy = "read them and delete the topic, or wait for retention"
                return (
                    Hold(kind="dead-letter", name=config.name, count=count, until_ms=until_ms, remedy=remedy)
                    if count
                    else None
                )
            return _normal_topic(holder.name, config, count, until_ms)

        return [hold for hold in await gather(wanted, find_hold) if hold is not None]

    async def _retried(self, holder: Holder, topic: str, states: Iterable[QueueState]) -> Hold | None:
        group = topic.removeprefix(RETRY_PREFIX)
        unconsumed = 0
        for state in states:
            committed = await self._committed(holder, group, topic, state.queue)
            unconsumed += max(0, state.offset_max - max(state.offset_min, committed or 0))
        remedy = f"start consumers of {group}"
        return Hold(kind="retry", name=group, count=unconsumed, remedy=remedy) if unconsumed else None

    async def _states(self, holder: Holder, topic: str) -> list[QueueState]:
        broker = Broker(holder.name, holder.cluster, MASTER_ID, holder.address)
        try:
            return await self._topics.queue_states(broker, topic)
        except BrokerRefused as refusal:
            if refusal.code in {ResponseCode.TOPIC_NOT_EXIST, ResponseCode.SYSTEM_ERROR}:
                return []  # The topic does not exist on this broker.
            raise


def hold_text(hold: Hold) -> str:
    """Return a short sentence that describes a hold."""
    are, wait = ("is", "waits") if hold.count == 1 else ("are", "wait")
    match hold.kind:
        case "leads":
            return f"it leads {_count(hold, 'logical queue')} of {hold.name}"
        case "move":
            return f"{_count(hold, 'queue')} of {hold.name} {are} being moved"
        case "records":
            return f"{_count(hold, 'message')} of {hold.name} {are} in its old segments"
        case "delayed" | "half":
            return f"{_count(hold, hold.name)} {wait} in it"
        case "retry":
            return f"{_count(hold, 'message')} {wait} to be retried by {hold.name}"
        case "dead-letter":
            return f"{_count(hold, 'dead letter')} in {hold.name}"
    return f"the normal topic {hold.name} with {_count(hold, 'message')}"


def _count(hold: Hold, noun: str) -> str:
    return f"{hold.count:,} {noun}" if hold.count == 1 else f"{hold.count:,} {noun}s"


def _leads(view: ClusterMappings, broker: str) -> list[Hold]:
    return [
        Hold(kind="leads", name=topic, count=count, remedy=f"holdfast broker drain {broker}")
        for topic, leaders in sorted(view.leaders.items())
        if (count := sum(leader == broker for leader in leaders.values()))
    ]


def _moves(view: ClusterMappings, broker: str) -> list[Hold]:
    return [
        Hold(kind="move", name=move.topic, count=len(move.queues), remedy=f"holdfast move list (id {move.id})")
        for move in view.moves
        if move.state not in FINISHED and broker in {move.source, move.target}
    ]


def _records(view: ClusterMappings, broker: str, retention_ms: int | None) -> list[Hold]:
    """Return one hold for each topic with closed segments that are still readable."""
    by_topic: dict[str, list[Segment]] = {}
    for topic, _, segment in _closed_homes(view, broker):
        by_topic.setdefault(topic, []).append(segment)
    found = []
    for topic, segments in sorted(by_topic.items()):
        times = [segment.last_ms for segment in segments]
        is_known = retention_ms is not None and min(times) >= 0
        until_ms = max(times) + (retention_ms or 0) if is_known else None
        count = sum(segment.end - segment.start for segment in segments if segment.is_sealed)
        unknown = sorted({segment.broker for segment in segments if segment.forced and not segment.is_sealed})
        remedy = "wait for retention, or drain with --discard-consumed GROUP"
        if unknown:
            remedy = f"its end is unknown: start {broker}, or `holdfast queue abandon {topic} QUEUE`"
        found.append(Hold(kind="records", name=topic, count=count, until_ms=until_ms, remedy=remedy))
    return found


def _closed_homes(view: ClusterMappings, broker: str) -> list[tuple[str, LogicalQueue, Segment]]:
    return [
        (name, queue, segment)
        for name, topic in sorted(view.topics.items())
        for _, queue in sorted(topic.merged.queues.items())
        for segment in queue.readable
        if segment.broker == broker and segment.is_decided and segment != queue.leader
    ]


def _normal_topic(broker: str, config: TopicConfig, count: int, until_ms: int | None) -> Hold | None:
    is_writable = bool(config.permission & Permission.WRITE) and config.write_queues > 0
    if is_writable:
        remedy = f"holdfast topic update {config.name} --brokers {broker} --permission r, or make it static"
        return Hold(kind="topic", name=config.name, count=count, remedy=remedy)
    remedy = "wait for retention, or delete the topic"
    return Hold(kind="topic", name=config.name, count=count, until_ms=until_ms, remedy=remedy) if count else None


def latest(holds: Collection[Hold]) -> int | None:
    """Return when the last of *holds* ends without any action; None if that is unknown for one of them."""
    times = [hold.until_ms for hold in holds]
    known = [time_ms for time_ms in times if time_ms is not None]
    return max(known, default=None) if len(known) == len(times) else None
