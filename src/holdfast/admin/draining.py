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
from holdfast.admin.cluster_access import Broker, ClusterAccess, NotAllowed, body_of, gather, header_of
from holdfast.admin.moves import FINISHED, require_other_broker
from holdfast.admin.static_topics import BrokerMappings, ClusterMappings, StaticTopics
from holdfast.admin.topics import QueueState, Topics, kind_of
from holdfast.model.errors import BrokerRefused
from holdfast.model.mapping import LogicalQueue
from holdfast.model.queue import LogicalOffset, LogicalQueueId
from holdfast.model.route import MASTER_ID
from holdfast.model.segment import Segment
from holdfast.model.topic import DEAD_LETTER_PREFIX, HALF_TOPIC, RETRY_PREFIX, SCHEDULE_TOPIC, Permission, TopicConfig
from holdfast.wire.cluster.mapping import to_number
from holdfast.wire.cluster.registration import REMOVED_FIELD
from holdfast.wire.cluster.registration import Topics as TopicTable
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.requests.moves import DiscardRequest, DrainRequest, ForgetBrokerRequest, encode_body
from holdfast.wire.requests.offsets import OffsetAnswer, QueryOffsetFields

_HOUR_MS: Final = 3_600_000
_TRANSACTION_GROUP: Final = "CID_RMQ_SYS_TRANS"
_PAUSE_S: Final = 2.0


class RemovalBlocker(msgspec.Struct, frozen=True, kw_only=True):
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


class DrainedSegment(msgspec.Struct, frozen=True, kw_only=True):
    """A closed segment on the broker that is being drained. Printed as it is: an unknown time is -1."""

    topic: str
    queue: LogicalQueueId
    generation: int | None
    first: LogicalOffset
    last: LogicalOffset | None
    last_ms: int
    kept_for: str = ""


class _DelayBody(msgspec.Struct, frozen=True, rename="camel"):
    """Body of the answer to 45: level to the next offset in its queue."""

    offset_table: dict[int, int] = {}


class Draining:
    """Operations that drain and remove brokers.

    Args:
        access: The cluster.
        static: Reads mappings.
        topics: Reads topics.
        sleep: How to wait; tests pass a function that returns at once.
    """

    def __init__(
        self,
        access: ClusterAccess,
        static: StaticTopics,
        topics: Topics,
        *,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._access = access
        self._static = static
        self._topics = topics
        self._sleep = sleep

    async def find_blockers(self, broker: str) -> list[RemovalBlocker]:
        """Return the reasons why *broker* is still needed; an empty list when it can be removed.

        Raises:
            NotFound: there is no such broker.
            NotAllowed: it does not answer.
        """
        view = (await self._static.read()).for_broker(broker)
        mappings = view.get_broker(broker)
        if mappings.fault is not None:
            raise NotAllowed(f"{broker} does not answer ({mappings.fault}): whether it is still needed is unknown")
        retention_ms = await self._retention_ms(mappings)
        blockers = [
            *_leader_blockers(view, broker),
            *_move_blockers(view, broker),
            *_record_blockers(view, broker, retention_ms),
        ]
        blockers += await self._find_waiting_messages(mappings)
        blockers += await self._find_topic_blockers(view, mappings, retention_ms)
        return blockers

    async def set_draining(self, broker: str, *, draining: bool) -> None:
        """Set or clear the draining mark of *broker*. A draining broker gets queues only by orders that name it.

        The broker persists the mark.

        Raises:
            NotFound: there is no such broker.
        """
        (found,) = await self._access.masters(names=[broker])
        await self._access.invoke(
            found.address, RequestCode.SET_DRAINING, body=encode_body(DrainRequest(draining=draining))
        )

    async def wait_until_removable(
        self,
        broker: str,
        on_change: Callable[[Sequence[RemovalBlocker]], None] = lambda _: None,
        *,
        groups: Sequence[str] = (),
    ) -> list[DrainedSegment]:
        """Wait until *broker* is no longer needed. Call *on_change* with the remaining reasons each time they change.

        Meanwhile discard each closed segment as soon as all of *groups* have consumed it. Return those segments.
        """
        last: list[RemovalBlocker] | None = None
        discarded: list[DrainedSegment] = []
        while True:
            discarded += (await self.discard_consumed(broker, groups))[0]
            blockers = await self.find_blockers(broker)
            if blockers != last:
                on_change(blockers)
            if not blockers:
                return discarded
            last = blockers
            await self._sleep(_PAUSE_S)

    async def discard_consumed(
        self, broker: str, groups: Sequence[str], *, dry_run: bool = False
    ) -> tuple[list[DrainedSegment], list[DrainedSegment]]:
        """Expire the closed segments on *broker* that all of *groups* have consumed.

        Return the expired segments and the kept ones. Without a group nothing is expired.

        Raises:
            NotFound: there is no such broker.
            NotAllowed: a broker that is needed for this does not answer, or does not support it.
        """
        discarded: list[DrainedSegment] = []
        kept: list[DrainedSegment] = []
        if not groups:
            return discarded, kept  # Without groups, no group can vouch that a segment is consumed.
        view = (await self._static.read()).for_broker(broker)
        view.require_ready([broker])
        for topic, queue, segment in _closed_segments(view, broker):
            view.require_ready([queue.leader.broker])
            reason = await self._keep_reason(view, topic, queue, segment, groups)
            (kept if reason else discarded).append(
                DrainedSegment(
                    topic=topic,
                    queue=queue.queue,
                    generation=segment.generation,
                    first=segment.decided_first,
                    last=segment.logical_end,
                    last_ms=-1 if segment.last_ms is None else segment.last_ms,
                    kept_for=reason,
                )
            )
            if not reason and not dry_run:
                order = DiscardRequest(topic=topic, queue=queue.queue, generation=to_number(segment.generation))
                for name in (queue.leader.broker, broker):
                    address = view.brokers[name].address
                    await self._access.invoke(address, RequestCode.DISCARD_SEGMENTS, body=encode_body(order))
        return discarded, kept

    async def remove(self, broker: str, *, force: bool = False) -> list[str]:
        """Remove *broker* from all records; return the brokers that forgot it. Its process can then be stopped.

        Args:
            broker: Its name.
            force: Remove it even if it does not answer, and give up its messages outside of static topics.

        Raises:
            NotAllowed: it is still needed; the text says for what.
        """
        view = (await self._static.read()).for_broker(broker)
        is_dead = broker not in view.brokers or view.brokers[broker].fault is not None
        if is_dead and not force:
            if broker not in view.lost_brokers:
                view.get_broker(broker)
            raise NotAllowed(
                f"{broker} does not answer: whether delayed, half or retried messages wait in it is unknown. Start it,"
                " or give them up with --force"
            )
        require_other_broker(view, broker)
        blockers = (
            [*_leader_blockers(view, broker), *_record_blockers(view, broker, None)]
            if is_dead
            else await self.find_blockers(broker)
        )
        if blockers:
            reasons = "; ".join(blocker_text(blocker) for blocker in blockers[:3])
            more = f"; and {len(blockers) - 3} more" if len(blockers) > 3 else ""
            raise NotAllowed(
                f"{broker} is still needed: {reasons}{more}. `holdfast broker drain {broker} --wait` ends it"
            )
        other_brokers = [mappings for name, mappings in view.brokers.items() if name != broker and mappings.is_ready]
        body = encode_body(ForgetBrokerRequest(broker=broker))
        # The others first: if one of them refuses, the broker is still registered.
        await gather(
            other_brokers, lambda mappings: self._access.invoke(mappings.address, RequestCode.FORGET_BROKER, body=body)
        )
        # The broker keeps its own records: without them it would store sends of stale clients as a normal topic's.
        await self._unregister(broker, view.brokers.get(broker))
        return [mappings.name for mappings in other_brokers]

    async def _unregister(self, broker: str, mappings: BrokerMappings | None) -> None:
        # Unregister the broker even if the name server has dropped it: it still counts the broker as down.
        fields = {
            "brokerName": broker,
            "brokerAddr": "" if mappings is None else mappings.address,
            "clusterName": "" if mappings is None else mappings.cluster,
            "brokerId": str(MASTER_ID),
            REMOVED_FIELD: "true",
        }
        await self._access.invoke_all_name_servers(RequestCode.UNREGISTER_BROKER, fields)

    async def _keep_reason(
        self, view: ClusterMappings, topic: str, queue: LogicalQueue, segment: Segment, groups: Sequence[str]
    ) -> str:
        """Return why a closed segment must stay; an empty string when all groups have consumed it."""
        if segment.logical_end is None:
            return "its end is unknown"
        for group in groups:
            committed = await self._find_committed(view.brokers[queue.leader.broker], group, topic, queue.queue)
            if committed is None:
                return f"{group} has not consumed it"
            if committed < segment.logical_end:
                return f"{group} is at {committed}, the segment ends at {segment.logical_end}"
        return ""

    async def _find_committed(
        self, mappings: BrokerMappings, group: str, topic: str, queue: LogicalQueueId
    ) -> int | None:
        header = QueryOffsetFields(consumer_group=group, topic=topic, queue_id=queue, set_zero_if_not_found=False)
        try:
            answer = await self._access.invoke(mappings.address, RequestCode.QUERY_CONSUMER_OFFSET, header)
        except BrokerRefused as refusal:
            if refusal.code == ResponseCode.QUERY_NOT_FOUND:
                return None
            raise
        return header_of(answer, OffsetAnswer).offset

    async def _retention_ms(self, mappings: BrokerMappings) -> int | None:
        answer = await self._access.invoke(mappings.address, RequestCode.GET_BROKER_CONFIG)
        hours = parse_settings(answer.body).get("fileReservedTime", "")
        return int(hours) * _HOUR_MS if hours.isdecimal() else None

    # Messages that wait inside the broker.

    async def _find_waiting_messages(self, mappings: BrokerMappings) -> list[RemovalBlocker]:
        answer = await self._access.invoke(mappings.address, RequestCode.GET_ALL_DELAY_OFFSET)
        delivered = body_of(answer, _DelayBody).offset_table
        delayed = sum(
            max(0, state.offset_max - delivered.get(state.queue + 1, state.offset_min))
            for state in await self._queue_states(mappings, SCHEDULE_TOPIC)
        )
        half = 0
        for state in await self._queue_states(mappings, HALF_TOPIC):
            decided = await self._find_committed(mappings, _TRANSACTION_GROUP, HALF_TOPIC, state.queue)
            half += max(0, state.offset_max - (state.offset_min if decided is None else decided))
        found = []
        if delayed:
            remedy = "they are delivered when they are due, in at most two hours"
            found.append(RemovalBlocker(kind="delayed", name="delayed message", count=delayed, remedy=remedy))
        if half:
            remedy = "their producers commit or roll them back, or the broker asks the producers"
            found.append(RemovalBlocker(kind="half", name="open transaction", count=half, remedy=remedy))
        return found

    async def _find_topic_blockers(
        self, view: ClusterMappings, mappings: BrokerMappings, retention_ms: int | None
    ) -> list[RemovalBlocker]:
        answer = await self._access.invoke(mappings.address, RequestCode.GET_ALL_TOPIC_CONFIG)
        configs = body_of(answer, TopicTable).topic_config_table
        own_names = {*view.brokers, *(each.cluster for each in view.brokers.values())}
        user_topics = [
            config
            for name, config in sorted(configs.items())
            if name not in view.topics and kind_of(name, own_names) != "system"
        ]

        async def find_blocker(config: TopicConfig) -> RemovalBlocker | None:
            states = await self._queue_states(mappings, config.name)
            if config.name.startswith(RETRY_PREFIX):
                return await self._find_retry_blocker(mappings, config.name, states)
            count = sum(state.messages for state in states)
            newest_ms = max((state.last_stored_ms or 0 for state in states), default=0)
            until_ms = newest_ms + retention_ms if newest_ms and retention_ms is not None else None
            if config.name.startswith(DEAD_LETTER_PREFIX):
                remedy = "read them and delete the topic, or wait for retention"
                return (
                    RemovalBlocker(kind="dead-letter", name=config.name, count=count, until_ms=until_ms, remedy=remedy)
                    if count
                    else None
                )
            return _topic_blocker(mappings.name, config, count, until_ms)

        return [blocker for blocker in await gather(user_topics, find_blocker) if blocker is not None]

    async def _find_retry_blocker(
        self, mappings: BrokerMappings, topic: str, states: Iterable[QueueState]
    ) -> RemovalBlocker | None:
        group = topic.removeprefix(RETRY_PREFIX)
        unconsumed = 0
        for state in states:
            committed = await self._find_committed(mappings, group, topic, state.queue)
            unconsumed += max(0, state.offset_max - max(state.offset_min, committed or 0))
        remedy = f"start consumers of {group}"
        return RemovalBlocker(kind="retry", name=group, count=unconsumed, remedy=remedy) if unconsumed else None

    async def _queue_states(self, mappings: BrokerMappings, topic: str) -> list[QueueState]:
        broker = Broker(mappings.name, mappings.cluster, MASTER_ID, mappings.address)
        try:
            return await self._topics.queue_states(broker, topic)
        except BrokerRefused as refusal:
            if refusal.code in {ResponseCode.TOPIC_NOT_EXIST, ResponseCode.SYSTEM_ERROR}:
                return []  # The topic does not exist on this broker.
            raise


def blocker_text(blocker: RemovalBlocker) -> str:
    """Return a short sentence that describes a blocker."""
    are, wait = ("is", "waits") if blocker.count == 1 else ("are", "wait")
    match blocker.kind:
        case "leads":
            return f"it leads {_count_text(blocker, 'logical queue')} of {blocker.name}"
        case "move":
            return f"{_count_text(blocker, 'queue')} of {blocker.name} {are} being moved"
        case "records":
            return f"{_count_text(blocker, 'message')} of {blocker.name} {are} in its old segments"
        case "delayed" | "half":
            return f"{_count_text(blocker, blocker.name)} {wait} in it"
        case "retry":
            return f"{_count_text(blocker, 'message')} {wait} to be retried by {blocker.name}"
        case "dead-letter":
            return f"{_count_text(blocker, 'dead letter')} in {blocker.name}"
    return f"the normal topic {blocker.name} with {_count_text(blocker, 'message')}"


def _count_text(blocker: RemovalBlocker, noun: str) -> str:
    return f"{blocker.count:,} {noun}" if blocker.count == 1 else f"{blocker.count:,} {noun}s"


def _leader_blockers(view: ClusterMappings, broker: str) -> list[RemovalBlocker]:
    return [
        RemovalBlocker(kind="leads", name=topic, count=count, remedy=f"holdfast broker drain {broker}")
        for topic, leaders in sorted(view.leaders.items())
        if (count := sum(leader == broker for leader in leaders.values()))
    ]


def _move_blockers(view: ClusterMappings, broker: str) -> list[RemovalBlocker]:
    return [
        RemovalBlocker(
            kind="move", name=move.topic, count=len(move.queues), remedy=f"holdfast move list (id {move.id})"
        )
        for move in view.moves
        if move.state not in FINISHED and broker in {move.source, move.target}
    ]


def _record_blockers(view: ClusterMappings, broker: str, retention_ms: int | None) -> list[RemovalBlocker]:
    """Return one blocker for each topic with closed segments that are still readable."""
    by_topic: dict[str, list[Segment]] = {}
    for topic, _, segment in _closed_segments(view, broker):
        by_topic.setdefault(topic, []).append(segment)
    found = []
    for topic, segments in sorted(by_topic.items()):
        times = [segment.last_ms for segment in segments if segment.last_ms is not None]
        is_known = retention_ms is not None and len(times) == len(segments)
        until_ms = max(times) + (retention_ms or 0) if is_known else None
        count = sum(segment.recorded_count or 0 for segment in segments)
        unknown = sorted({segment.broker for segment in segments if segment.forced and not segment.is_sealed})
        remedy = "wait for retention, or drain with --discard-consumed GROUP"
        if unknown:
            remedy = f"its end is unknown: start {broker}, or `holdfast queue abandon {topic} QUEUE`"
        found.append(RemovalBlocker(kind="records", name=topic, count=count, until_ms=until_ms, remedy=remedy))
    return found


def _closed_segments(view: ClusterMappings, broker: str) -> list[tuple[str, LogicalQueue, Segment]]:
    return [
        (name, queue, segment)
        for name, topic in sorted(view.topics.items())
        for _, queue in sorted(topic.merged.queues.items())
        for segment in queue.readable
        if segment.broker == broker and segment.is_decided and segment != queue.leader
    ]


def _topic_blocker(broker: str, config: TopicConfig, count: int, until_ms: int | None) -> RemovalBlocker | None:
    is_writable = bool(config.permission & Permission.WRITE) and config.write_queues > 0
    if is_writable:
        remedy = f"holdfast topic update {config.name} --brokers {broker} --permission r, or make it static"
        return RemovalBlocker(kind="topic", name=config.name, count=count, remedy=remedy)
    remedy = "wait for retention, or delete the topic"
    return (
        RemovalBlocker(kind="topic", name=config.name, count=count, until_ms=until_ms, remedy=remedy) if count else None
    )


def latest_end_ms(blockers: Collection[RemovalBlocker]) -> int | None:
    """Return when the last of *blockers* ends without any action; None if that is unknown for one of them."""
    times = [blocker.until_ms for blocker in blockers]
    known = [time_ms for time_ms in times if time_ms is not None]
    return max(known, default=None) if len(known) == len(times) else None
