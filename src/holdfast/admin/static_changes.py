"""Carry out changes of static topics: create, grow, convert, set, unset, repair, delete.

A change goes to every broker of the topic's scope. If only some of them apply it, nothing is lost: the name server
continues to serve the last complete state, and the error names the brokers that applied the change and the remedy.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Final, TypeVar

from holdfast.admin.cluster_access import Broker, ClusterAccess, NotAllowed, PartlyDone, gather, header_of
from holdfast.admin.floors import find_starts
from holdfast.admin.static_topics import ClusterMappings, StaticTopic
from holdfast.admin.topic_plans import KnownStart, RecordChange, RepairPlan, TopicPlan, members_of
from holdfast.model.errors import BrokerRefused, HoldfastError, RequestTimeout
from holdfast.model.mapping import merge
from holdfast.model.queue import LogicalQueueId
from holdfast.model.scope import GLOBAL
from holdfast.model.topic import AUTO_CREATE_TOPIC, Permission, TopicConfig
from holdfast.wire.cluster import mapping
from holdfast.wire.cluster.mapping import from_info, to_detail
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.requests.moves import DeleteMappingFields, QueueTotal, encode_body
from holdfast.wire.requests.offsets import OffsetAnswer, QueryOffsetFields, UpdateOffsetFields

_ROUTE_WAIT_S: Final = 10.0
_ROUTE_PAUSE_S: Final = 0.02

_Item = TypeVar("_Item", RecordChange, tuple[str, QueueTotal], str)

GroupOffsets = dict[str, dict[int, int]]
"""Group to logical queue to committed offset."""


class NotShown(RequestTimeout):
    """All brokers applied a change, but the name server does not show it yet."""


class StaticChanges:
    """Changes of static topics."""

    def __init__(self, access: ClusterAccess) -> None:
        self._access = access

    async def apply(self, plan: TopicPlan) -> None:
        """Send every broker its record (513) and wait until the name server shows the complete topic.

        Raises:
            BrokerRefused, ConnectionLost: no broker applied it.
            PartlyDone: only some brokers applied it.
            NotShown: all brokers applied it, but the name server does not show it.
        """
        await self._apply_to_all(plan.topic, plan.changes, lambda change: self._put(plan.config, change))
        await self._wait_until_shown(plan)

    async def repair(self, plan: RepairPlan, view: ClusterMappings) -> None:
        """Carry out a planned repair of a topic's records.

        Raises:
            PartlyDone: only some brokers applied it; run it again.
        """
        if plan.new_segments is not None:
            await self.apply(plan.new_segments)

        async def put_stamp(item: tuple[str, QueueTotal]) -> None:
            name, missed_stamp = item
            await self._access.invoke(
                view.brokers[name].address, RequestCode.PUT_QUEUE_TOTAL, body=encode_body(missed_stamp)
            )

        await self._apply_to_all(plan.topic, list(plan.stamps.items()), put_stamp)

    async def unset(self, view: ClusterMappings, topic: StaticTopic, queue: LogicalQueueId) -> list[str]:
        """Delete the record of one logical queue on every broker that has one; return their names.

        Raises:
            NotAllowed: no broker records the queue.
            PartlyDone: only some brokers deleted it.
        """
        recording_brokers = [name for name, record in topic.records.items() if queue in record.queues]
        if not recording_brokers:
            raise NotAllowed(f"no broker records logical queue {queue} of {topic.name}: there is nothing to forget")
        view.require_ready(recording_brokers)
        header = DeleteMappingFields(topic=topic.name, queue=queue)
        await self._apply_to_all(
            topic.name,
            recording_brokers,
            lambda name: self._access.invoke(view.brokers[name].address, RequestCode.DELETE_MAPPING, header),
        )
        return recording_brokers

    async def delete(self, view: ClusterMappings, topic: StaticTopic, *, force: bool = False) -> list[str]:
        """Delete a static topic with its messages on every broker that records it; return their names.

        Args:
            view: The cluster.
            topic: The topic.
            force: Delete it even if one of its brokers does not answer. The name server refuses later reports of the
                topic by that broker.

        Raises:
            NotAllowed: one of its brokers does not answer, and might bring the topic back.
            PartlyDone: only some brokers deleted it, or a name server did not receive the deletion.
        """
        members = members_of(view, topic.merged.scope)
        silent = sorted(
            [*view.lost_brokers, *(name for name, mappings in members.items() if mappings.fault is not None)]
        )
        if silent and not force:
            raise NotAllowed(
                f"{', '.join(silent)} does not answer and would bring {topic.name} back: start it first, or give up"
                " its messages with --force"
            )
        recording_brokers = [name for name in topic.records if name in view.brokers and name not in silent]
        header = {"topic": topic.name}

        async def delete(name: str) -> None:
            try:
                await self._access.invoke(view.brokers[name].address, RequestCode.DELETE_TOPIC_IN_BROKER, header)
            except BrokerRefused as refusal:
                if refusal.code != ResponseCode.TOPIC_NOT_EXIST:
                    raise

        await self._apply_to_all(topic.name, recording_brokers, delete)
        scope = topic.merged.scope
        fields = header if scope == GLOBAL else {**header, "clusterName": scope}
        await self._access.mark_deleted(topic.name, fields, recording_brokers)
        return recording_brokers

    async def find_starts(
        self, view: ClusterMappings, topic: StaticTopic, queues: Collection[LogicalQueueId]
    ) -> dict[LogicalQueueId, KnownStart]:
        """Return where each of *queues*, which have no leader, may begin: above every offset that it ever used."""
        return await find_starts(self._access, view, topic, queues)

    # Conversion of a normal topic to a static one.

    async def withdraw_writes(self, hosts: Mapping[str, Broker], configs: Mapping[str, TopicConfig]) -> None:
        """Make a normal topic read-only. Clients learn this with their next route."""
        await gather(
            hosts.values(), lambda broker: self._set_permission(broker, configs[broker.name], int(Permission.READ))
        )

    async def restore(self, hosts: Mapping[str, Broker], configs: Mapping[str, TopicConfig]) -> None:
        """Restore the permissions that a normal topic had before."""
        await gather(
            hosts.values(),
            lambda broker: self._set_permission(broker, configs[broker.name], configs[broker.name].permission),
        )

    async def read_committed(self, plan: TopicPlan, view: ClusterMappings, groups: Sequence[str]) -> GroupOffsets:
        """Return the offsets that *groups* committed in a topic before its conversion, by its future logical queues."""
        locations = [(queue.queue, queue.leader.broker, queue.leader.queue_id) for queue in plan.after]
        queries = [(group, *location) for group in groups for location in locations]

        async def find(item: tuple[str, int, str, int]) -> tuple[str, int, int] | None:
            group, number, broker, queue_id = item
            header = QueryOffsetFields(
                consumer_group=group, topic=plan.topic, queue_id=LogicalQueueId(queue_id), set_zero_if_not_found=False
            )
            try:
                answer = await self._access.invoke(
                    view.brokers[broker].address, RequestCode.QUERY_CONSUMER_OFFSET, header
                )
            except BrokerRefused as refusal:
                if refusal.code == ResponseCode.QUERY_NOT_FOUND:
                    return None
                raise
            return group, number, header_of(answer, OffsetAnswer).offset

        committed: GroupOffsets = {}
        for found in await gather(queries, find):
            if found is not None:
                committed.setdefault(found[0], {})[found[1]] = found[2]
        return committed

    async def write_committed(self, plan: TopicPlan, view: ClusterMappings, committed: GroupOffsets) -> None:
        """Commit the offsets from before the conversion, by logical queue, at each queue's leader.

        Raises:
            PartlyDone: not all offsets could be committed.
        """
        leaders: dict[int, str] = {queue.queue: queue.leader.broker for queue in plan.after}
        commits = [(group, queue, offset) for group, offsets in committed.items() for queue, offset in offsets.items()]

        async def commit(item: tuple[str, int, int]) -> None:
            group, queue, offset = item
            header = UpdateOffsetFields(
                consumer_group=group, topic=plan.topic, queue_id=LogicalQueueId(queue), commit_offset=offset
            )
            await self._access.invoke(view.brokers[leaders[queue]].address, RequestCode.UPDATE_CONSUMER_OFFSET, header)

        try:
            await gather(commits, commit)
        except HoldfastError as error:
            raise PartlyDone(
                f"{plan.topic} is static now, but the offsets of some groups were not carried over: {error}. Check with"
                f" `holdfast group lag GROUP {plan.topic}`, and correct them with `holdfast group reset`"
            ) from error

    async def _set_permission(self, broker: Broker, config: TopicConfig, permission: int) -> None:
        fields = _topic_fields(config, config.write_queues, permission)
        await self._access.invoke(broker.address, RequestCode.UPDATE_AND_CREATE_TOPIC, fields)

    # Sending changes to brokers.

    async def _put(self, config: TopicConfig, change: RecordChange) -> None:
        fields = _topic_fields(config, change.queues, config.permission) | {"force": "false"}
        body = mapping.encode(to_detail(change.record))
        await self._access.invoke(change.address, RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC, fields, body)

    async def _apply_to_all(
        self, topic: str, items: Sequence[_Item], operation: Callable[[_Item], Awaitable[object]]
    ) -> None:
        """Call *operation* for all items. If only some fail, raise `PartlyDone`, which names the successful brokers."""

        async def attempt(item: _Item) -> HoldfastError | None:
            try:
                await operation(item)
            except HoldfastError as error:
                return error
            return None

        outcomes = await gather(items, attempt)
        failures = {_name_of(item): error for item, error in zip(items, outcomes, strict=True) if error is not None}
        if not failures:
            return
        applied = [name for name in map(_name_of, items) if name not in failures]
        first, error = next(iter(failures.items()))
        if not applied:
            raise error
        more_text = f" (and {len(failures) - 1} more)" if len(failures) > 1 else ""
        raise PartlyDone(
            f"{', '.join(applied)} applied the change of {topic}, {first}{more_text} did not: {error}. The previous "
            "state"
            f" is still served; run `holdfast queue repair {topic}`"
        )

    async def _wait_until_shown(self, plan: TopicPlan) -> None:
        deadline_s = asyncio.get_running_loop().time() + _ROUTE_WAIT_S
        while not await self._is_shown(plan):
            if asyncio.get_running_loop().time() > deadline_s:
                raise NotShown(
                    f"its brokers have the change of {plan.topic}, but the name server does not show it yet: check with"
                    f" `holdfast queue list {plan.topic}`"
                )
            await asyncio.sleep(_ROUTE_PAUSE_S)  # a name server does not report changes to us: poll

    async def _is_shown(self, plan: TopicPlan) -> bool:
        # Other clusters may have a topic with the same name.
        access = self._access.for_unit(None if plan.scope == GLOBAL else plan.scope)
        try:
            reports = await access.find_route_reports(plan.topic)
        except BrokerRefused as refusal:
            if refusal.code != ResponseCode.SYSTEM_BUSY:
                raise
            return False  # the name server withholds the route until the topic is complete
        if not reports:
            return False
        shown = merge({broker: from_info(report) for broker, report in reports.items()})
        return shown.total == plan.total and shown.is_complete


def _name_of(item: RecordChange | tuple[str, QueueTotal] | str) -> str:
    if isinstance(item, str):
        return item
    return item.broker if isinstance(item, RecordChange) else item[0]


def _topic_fields(config: TopicConfig, queues: int, permission: int) -> dict[str, str]:
    return {
        "topic": config.name,
        "defaultTopic": AUTO_CREATE_TOPIC,
        "readQueueNums": str(queues),
        "writeQueueNums": str(queues),
        "perm": str(permission),
        "topicFilterType": config.filter_type,
        "topicSysFlag": str(config.sys_flag),
        "order": "true" if config.order else "false",
        "attributes": ",".join(f"+{name}={value}" for name, value in config.attributes.items()),
    }
