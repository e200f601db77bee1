"""Creates, changes, deletes and describes consumer groups for tools.

create, change, delete   200, 225, 207, 314
describe                 201, 352, 300, 343, 345
lag                      208 (one group), 317 (all groups), 303 (as times instead of offsets)
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Literal

import msgspec

from holdfast.broker.consume.consumer_offsets import OffsetTable
from holdfast.broker.consume.lag import LagCalculator, QueueLag
from holdfast.broker.flow.request import Answer, Handlers, Refusal, Request
from holdfast.broker.mapping.queue_view import QueueView
from holdfast.broker.options import BrokerOptions
from holdfast.broker.tables.clients import ClientTable
from holdfast.broker.tables.groups import GroupTable
from holdfast.broker.tables.stats import BrokerStats
from holdfast.broker.tables.topics import TopicTable
from holdfast.machine.component import Component
from holdfast.machine.turn import Turn
from holdfast.model.group import GroupConfig, find_group_fault
from holdfast.model.queue import LogicalOffset, MessageQueue
from holdfast.wire.cluster.route import TopicList, is_mapping_aware
from holdfast.wire.frames import java_json
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.requests.admin import (
    BrokerConsumeStats,
    BrokerStatsFields,
    CloneOffsetFields,
    ConsumerOffset,
    ConsumeStats,
    ConsumeStatsFields,
    DeleteGroupFields,
    GroupConfigs,
    GroupFields,
    GroupNames,
    GroupSubscription,
    PageFields,
    TimeSpan,
    TimeSpans,
    TopicFields,
    slice_page,
)

_Style = Literal["ours", "java 5", "old"]
_Rows = list[tuple[MessageQueue, ConsumerOffset]]


class GroupAdmin(Component):
    """Handles group requests of tools."""

    def __init__(
        self,
        options: BrokerOptions,
        topics: TopicTable,
        groups: GroupTable,
        clients: ClientTable,
        offsets: OffsetTable,
        lags: LagCalculator,
        stats: BrokerStats,
        turn: Turn,
    ) -> None:
        self._turn = turn
        self._options = options
        self._topics = topics
        self._groups = groups
        self._clients = clients
        self._offsets = offsets
        self._lags = lags
        self._queues = lags.queue_views
        self._stats = stats

    def handlers(self) -> Handlers:
        """Return the handlers of this component, by request code."""
        return {
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: self.put,
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: self.put_list,
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: self.get_all,
            RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: self.get,
            RequestCode.DELETE_SUBSCRIPTIONGROUP: self.delete,
            RequestCode.GET_CONSUME_STATS: self.get_stats,
            RequestCode.GET_BROKER_CONSUME_STATS: self.get_all_stats,
            RequestCode.QUERY_CONSUME_TIME_SPAN: self.get_time_spans,
            RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: self.list_topic_groups,
            RequestCode.QUERY_TOPICS_BY_CONSUMER: self.list_topics,
            RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: self.get_subscription,
            RequestCode.CLONE_GROUP_OFFSET: self.clone,
        }

    # Changes.

    def put(self, request: Request) -> Answer:
        """Answer 200: create or change a group."""
        return self._put_all([java_json.decode(request.command.body, GroupConfig)], request)

    def put_list(self, request: Request) -> Answer:
        """Answer 225: create or change several groups."""
        return self._put_all(java_json.decode(request.command.body, GroupConfigs).group_config_list, request)

    def delete(self, request: Request) -> Answer:
        """Answer 207: delete a group. A missing group is no error, because tools ask every broker of a cluster."""
        fields = request.header_as(DeleteGroupFields)
        self._groups.delete(fields.group_name)
        if fields.clean_offset:
            self._offsets.forget_group(fields.group_name)
        return request.answer()

    def clone(self, request: Request) -> Answer:
        """Answer 314: copy the offsets of one group to another."""
        fields = request.header_as(CloneOffsetFields)
        if self._clients.has_group(fields.dest_group) and not fields.offline:
            return Refusal(
                ResponseCode.SYSTEM_ERROR,
                f"group {fields.dest_group} is consuming; stop it first, or its next commit undoes this",
            )
        for topic in [fields.topic] if fields.topic else self._offsets.topics_of(fields.src_group):
            self._offsets.clone(fields.src_group, fields.dest_group, topic)
        return request.answer()

    # Queries.

    def get(self, request: Request) -> Answer:
        """Answer 352: return the configuration of a group."""
        name = request.header_as(GroupFields).group
        config = self._groups.find(name)
        if config is None:
            return Refusal(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"No group in this broker. group: {name}")
        return request.answer(body=java_json.encode(config))

    def get_all(self, request: Request) -> Answer:
        """Answer 201: return the whole table, or a page of it."""
        page = request.header_as(PageFields)
        table = self._groups.to_wire()
        rows = slice_page(table.subscription_group_table, page.group_seq, page.max_group_num)
        body = java_json.encode(msgspec.structs.replace(table, subscription_group_table=rows))
        return request.answer(fields={"totalGroupNum": str(len(table.subscription_group_table))}, body=body)

    def list_topic_groups(self, request: Request) -> Answer:
        """Answer 300: return the groups that are subscribed to a topic, or have offsets in it."""
        topic = request.header_as(TopicFields).topic
        subscribed = {
            group for group, membership in self._clients.consumer_groups().items() if topic in membership.subscriptions
        }
        names = sorted(subscribed.union(self._offsets.groups_of(topic)))
        return request.answer(body=java_json.encode(GroupNames(group_list=names)))

    def list_topics(self, request: Request) -> Answer:
        """Answer 343: return the topics in which a group has offsets."""
        group = request.header_as(GroupFields).group
        body = TopicList(topic_list=self._offsets.topics_of(group), broker_addr=self._options.address)
        return request.answer(body=java_json.encode(body))

    def get_subscription(self, request: Request) -> Answer:
        """Answer 345: return the subscription of a group to a topic."""
        fields = request.header_as(GroupFields)
        body = GroupSubscription(
            group=fields.group,
            topic=fields.topic,
            subscription_data=self._clients.subscription(fields.group, fields.topic),
        )
        return request.answer(body=java_json.encode(body))

    # Lag.

    async def get_stats(self, request: Request) -> Answer:
        """Answer 208: return the lag of a group, by queue."""
        fields = request.header_as(ConsumeStatsFields)
        group = fields.consumer_group
        topics: Iterable[str] = filter(None, fields.topic_list.split(";"))
        if fields.topic:
            topics = [fields.topic]
        elif not fields.topic_list:
            topics = self._lags.topics_of(group)
        style: _Style = "ours"
        if not fields.is_logical:
            command = request.command
            style = "java 5" if is_mapping_aware(command.language, command.version) else "old"
        rows: _Rows = []
        tps = 0.0
        for topic in topics:
            if self._lags.is_consumed(group, topic):
                rows += await self._lag_rows(group, topic, style)
                tps += self._stats.get_tps(group, topic)
        body = ConsumeStats(offset_table=java_json.object_map(rows), consume_tps=tps)
        return request.answer(body=java_json.encode(body))

    async def get_all_stats(self, request: Request) -> Answer:
        """Answer 317: return the lag of every group in every topic."""
        only_ordered = request.header_as(BrokerStatsFields).is_order
        stats: list[dict[str, list[ConsumeStats]]] = []
        lag = in_flight = 0
        for group in list(self._groups.all()):
            group_stats: list[ConsumeStats] = []
            for topic in self._offsets.topics_of(group):
                config = self._topics.find(topic)
                if config is None or (only_ordered and not config.order):
                    continue
                rows = await self._lag_rows(group, topic, "old")
                lag += sum(max(0, row.broker_offset - row.consumer_offset) for _, row in rows)
                in_flight += sum(row.pull_offset - row.consumer_offset for _, row in rows)
                tps = self._stats.get_tps(group, topic)
                group_stats.append(ConsumeStats(offset_table=java_json.object_map(rows), consume_tps=tps))
            stats.append({group: group_stats})
        body = BrokerConsumeStats(
            broker_addr=self._options.address,
            consume_stats_list=stats,
            total_diff=lag,
            total_inflight_diff=in_flight,
        )
        return request.answer(body=java_json.encode(body))

    async def get_time_spans(self, request: Request) -> Answer:
        """Answer 303: return the store times of the oldest, the newest and a group's next message, by queue."""
        fields = request.header_as(GroupFields)
        if self._topics.find(fields.topic) is None:
            return Refusal(ResponseCode.TOPIC_NOT_EXIST, f"topic[{fields.topic}] not exist")
        spans = [await self._span(fields.group, view) for view in self._queues.readable(fields.topic)]
        return request.answer(body=java_json.encode(TimeSpans(consume_time_span_set=spans)))

    async def _lag_rows(self, group: str, topic: str, style: _Style) -> _Rows:
        """Return a row for each queue of *topic* that this broker serves."""
        rows: _Rows = []
        for queue_lag in self._lags.queues(group, topic):
            view = queue_lag.view
            committed = queue_lag.committed
            consumed_ms = await view.store_time(LogicalOffset(committed - 1)) if committed else None
            name = view.name
            if style == "java 5":
                name = MessageQueue(topic, self._options.name, view.queue.leader.queue_id)
            pulled = self._offsets.find_pulled(group, topic, view.number)
            rows.append((name, _row(queue_lag, style, consumed_ms or 0, pulled or 0)))
        return rows

    async def _span(self, group: str, view: QueueView) -> TimeSpan:
        """Return the times of the messages in the physical queue at the end of a queue."""
        now_ms = self._turn.now_ms
        first = view.queue.leader.decided_first
        committed = max(self._offsets.find(group, view.topic, view.number) or first, first)
        first_ms, last_ms = await view.first_store_time(), await view.last_store_time()
        consumed_ms = await view.store_time(LogicalOffset(committed - 1)) if committed > first else first_ms
        next_ms = await view.store_time(committed)
        return TimeSpan(
            message_queue=view.name,
            min_time_stamp=first_ms or 0,
            min_time_stamp_str=_format_time(first_ms or 0),
            max_time_stamp=last_ms or 0,
            max_time_stamp_str=_format_time(last_ms or 0),
            consume_time_stamp=consumed_ms or 0,
            consume_time_stamp_str=_format_time(consumed_ms or 0),
            delay_time=max(0, now_ms - next_ms) if next_ms is not None else 0,
        )

    def _put_all(self, configs: list[GroupConfig], request: Request) -> Answer:
        for config in configs:
            fault = find_group_fault(config)
            if fault is not None:
                return Refusal(ResponseCode.INVALID_PARAMETER, fault)
        self._groups.put_all(configs)
        return request.answer()


def _row(queue_lag: QueueLag, style: _Style, consumed_ms: int, pulled: int) -> ConsumerOffset:
    """Return the lag in a queue, in the format of the requesting tool.

    Tools without gap support get an offset that already includes the gaps, so that the difference of the offsets is the
    lag. Java's tool since 5.0 adds the logical offset of the physical queue to the end itself. Holdfast's tool shows
    groups without a commit; for them, everything that they will not read counts as gap.
    """
    if style != "ours":
        consumed = queue_lag.next + queue_lag.gap
        leader = queue_lag.view.queue.leader
        end = leader.to_physical(queue_lag.end) if style == "java 5" else queue_lag.end
        return ConsumerOffset(
            broker_offset=end, consumer_offset=consumed, pull_offset=max(pulled, consumed), last_timestamp=consumed_ms
        )
    return ConsumerOffset(
        broker_offset=queue_lag.end,
        consumer_offset=-1 if queue_lag.committed is None else queue_lag.committed,
        pull_offset=max(pulled, queue_lag.next),
        last_timestamp=consumed_ms,
        gap=queue_lag.gap + (queue_lag.next if queue_lag.committed is None else 0),
    )


def _format_time(time_ms: int) -> str:
    """Format a time like RocketMQ, but always in UTC: a pure role has no time zone."""
    moment = datetime.fromtimestamp(time_ms // 1000, UTC)
    return f"{moment:%Y-%m-%d#%H:%M:%S}:{time_ms % 1000:03d}"
