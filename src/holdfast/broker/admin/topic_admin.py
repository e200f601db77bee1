"""Creates, changes, deletes and describes topics for tools (17, 18, 21, 202, 215, 305, 316, 351).

For a static topic, 202 returns the physical queues here to tools that support mappings or set `lo=false`. With
`lo=true` it returns the logical queues that are led here. Tools without mapping support see only one broker, which
returns all logical queues, including those led by other brokers.

An explicit create (17, 18) of a topic that is new here first asks the name servers. If the topic is static there, the
create is refused: a normal topic of that name would store messages that no consumer sees. If the topic was deleted, the
create lifts its deletion marker (`deletion_markers.py`).

The number of queues of a static topic cannot be changed here: they belong to logical queues (513, and moves).
"""

from __future__ import annotations

import contextlib

import msgspec

from holdfast.broker.consume.consumer_offsets import OffsetTable
from holdfast.broker.failover.offset_backup import OffsetBackup
from holdfast.broker.flow.awaitables import Procedure, Synced
from holdfast.broker.flow.request import Answer, Handlers, Refusal, Request
from holdfast.broker.mapping.cluster_view import ClusterView
from holdfast.broker.mapping.queue_view import Queues
from holdfast.broker.naming.registration import Registrar
from holdfast.broker.tables.stats import BrokerStats
from holdfast.broker.tables.topics import TopicTable, find_topic_fault
from holdfast.machine.component import Component
from holdfast.model.errors import RemoteProtocolError
from holdfast.model.queue import MessageQueue
from holdfast.model.topic import TopicConfig, find_name_fault
from holdfast.wire.cluster.mapping import MappedTopic, encode, to_detail
from holdfast.wire.cluster.route import TopicList, is_mapping_aware
from holdfast.wire.frames import java_json
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.requests.admin import (
    CreateTopicFields,
    PageFields,
    TopicConfigs,
    TopicFields,
    TopicOffset,
    TopicOffsetTable,
    TopicQueryFields,
    TopicStats,
    parse_attributes,
    slice_page,
)


class TopicAdmin(Component):
    """Handles topic requests of tools."""

    def __init__(
        self,
        topics: TopicTable,
        offsets: OffsetTable,
        offset_backup: OffsetBackup,
        queues: Queues,
        stats: BrokerStats,
        registrar: Registrar,
        view: ClusterView,
    ) -> None:
        self._topics = topics
        self._offsets = offsets
        self._offset_backup = offset_backup
        self._queues = queues
        self._mappings = queues.mappings
        self._store = queues.store
        self._stats = stats
        self._registrar = registrar
        self._view = view

    def handlers(self) -> Handlers:
        """Return the handlers of this component, by request code."""
        return {
            RequestCode.UPDATE_AND_CREATE_TOPIC: self.put,
            RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: self.put_list,
            RequestCode.GET_ALL_TOPIC_CONFIG: self.get_all,
            RequestCode.GET_TOPIC_STATS_INFO: self.get_stats,
            RequestCode.DELETE_TOPIC_IN_BROKER: self.delete,
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: self.list_system,
            RequestCode.CLEAN_UNUSED_TOPIC: self.clean_unused,
            RequestCode.GET_TOPIC_CONFIG: self.get,
        }

    def put(self, request: Request) -> Answer | Procedure[Answer]:
        """Answer 17: create or change a topic."""
        fields = request.header_as(CreateTopicFields)
        known = self._topics.find(fields.topic)
        attributes = dict(known.attributes) if known is not None else {}
        try:
            added, removed = parse_attributes(fields.attributes)
        except RemoteProtocolError as error:
            return Refusal(ResponseCode.INVALID_PARAMETER, str(error))
        config = TopicConfig(
            name=fields.topic,
            read_queues=fields.read_queue_nums,
            write_queues=fields.write_queue_nums,
            permission=fields.perm,
            filter_type=fields.topic_filter_type,
            sys_flag=fields.topic_sys_flag,
            order=fields.order,
            attributes={name: value for name, value in (attributes | added).items() if name not in removed},
        )
        return self._put_all([config], request)

    def put_list(self, request: Request) -> Procedure[Answer]:
        """Answer 18: create or change several topics."""
        configs = java_json.decode(request.command.body, TopicConfigs).topic_config_list
        return self._put_all([self._merge_attributes(config) for config in configs], request)

    def _merge_attributes(self, config: TopicConfig) -> TopicConfig:
        """Merge the attributes of *config* into the known ones, as 17 does: +name sets, -name removes, others stay."""
        known = self._topics.find(config.name)
        attributes = {} if known is None else dict(known.attributes)
        for name, value in config.attributes.items():
            if name.startswith("-"):
                attributes.pop(name[1:], None)
            else:
                attributes[name.removeprefix("+")] = value
        return msgspec.structs.replace(config, attributes=attributes)

    def delete(self, request: Request) -> Answer | Procedure[Answer]:
        """Answer 215: delete a topic. A missing topic is no error, because tools ask every broker of a cluster."""
        name = request.header_as(TopicFields).topic
        fault = find_name_fault(name)
        if fault is not None:  # The name is that of the folder to be removed.
            return Refusal(ResponseCode.INVALID_PARAMETER, fault)
        if self._topics.is_system(name):
            return Refusal(ResponseCode.INVALID_PARAMETER, f"The topic[{name}] is conflict with system topic.")
        self._topics.deletions.block_creation(name)
        if self._mappings.is_static(name):
            return self.delete_static(request, name)
        return self._forget(request, name)

    async def delete_static(self, request: Request, name: str) -> Answer:
        """Delete a static topic and its mapping, offsets and messages on this broker."""
        # Delete the mapping first, so that the topic is no longer static. If a crash follows, the topic remains without
        # its mapping, which is harmless.
        await Synced(self._mappings.delete(name))
        self._queues.segments.forget_topic(name)
        return self._forget(request, name)

    def _forget(self, request: Request, name: str) -> Answer:
        # Queues first: if a crash left them without the topic, their index type would be unknown.
        self._store.delete_topic(name)
        # Persisted before the topic is deleted: a later topic of that name begins at 0, and so must its groups.
        self._offsets.drop_topic(name)
        self._offset_backup.drop_topic(name)
        self._topics.delete(name)
        self._stats.forget_topic(name)
        return request.answer()

    def clean_unused(self, request: Request) -> Answer:
        """Answer 316: delete the queues of topics that no longer exist."""
        hosted = self._topics.all()
        for name in {queue.topic for queue in self._store.list_queues()} - hosted.keys():
            if not self._topics.is_system(name):
                self._store.delete_topic(name)
        return request.answer()

    # Queries.

    def get(self, request: Request) -> Answer:
        """Answer 351: return the configuration of a topic, with its mapping if asked for."""
        fields = request.header_as(TopicQueryFields)
        name = fields.topic
        config = self._topics.find(name)
        if config is None:
            return Refusal(ResponseCode.TOPIC_NOT_EXIST, f"No topic in this broker. topic: {name}")
        mapping = self._mappings.find(name)
        if mapping is None or not fields.is_logical:
            return request.answer(body=java_json.encode(config))
        described = MappedTopic(**msgspec.structs.asdict(config), mapping=to_detail(mapping))
        return request.answer(body=encode(described))

    def get_all(self, request: Request) -> Answer:
        """Answer 21: return the whole table, or a page of it."""
        page = request.header_as(PageFields)
        table = self._topics.to_wire()
        rows = slice_page(table.topic_config_table, page.topic_seq, page.max_topic_num)
        body = java_json.encode(msgspec.structs.replace(table, topic_config_table=rows))
        return request.answer(fields={"totalTopicNum": str(len(table.topic_config_table))}, body=body)

    async def get_stats(self, request: Request) -> Answer:
        """Answer 202: return the lowest and highest offset of every queue, and when it last grew."""
        fields, command = request.header_as(TopicQueryFields), request.command
        name = fields.topic
        if self._topics.find(name) is None:
            return Refusal(ResponseCode.TOPIC_NOT_EXIST, f"topic[{name}] not exist")
        is_aware = fields.is_logical is not None or is_mapping_aware(command.language, command.version)
        wants_logical = bool(fields.is_logical) or not is_aware
        rows = []
        for view in self._queues.all(name) if wants_logical else self._queues.physical(name):
            grown_ms = await view.last_store_time()
            ends = TopicOffset(
                min_offset=view.offset_min, max_offset=view.offset_max, last_update_timestamp=grown_ms or 0
            )
            rows.append((view.name, ends))
        if not is_aware:
            rows += await self._ends_elsewhere(name)
        body = TopicStats(offset_table=java_json.object_map(rows), topic_put_tps=self._stats.put_tps(name))
        return request.answer(body=java_json.encode(body))

    async def _ends_elsewhere(self, topic: str) -> list[tuple[MessageQueue, TopicOffset]]:
        """Return the offsets of logical queues led by other brokers. Brokers that do not answer are missing."""
        rows = []
        request_fields = {"topic": topic, "lo": "true"}
        for answer in await self._queues.segments.request_others(RequestCode.GET_TOPIC_STATS_INFO, request_fields):
            with contextlib.suppress(RemoteProtocolError):
                rows += java_json.decode(answer.body, TopicOffsetTable).rows()
        return rows

    def list_system(self, request: Request) -> Answer:
        """Answer 305: return the names of the system topics."""
        return request.answer(body=java_json.encode(TopicList(topic_list=self._topics.system_names())))

    async def _put_all(self, configs: list[TopicConfig], request: Request) -> Answer:
        names = [config.name for config in configs if find_topic_fault(config) is None]
        # The answers also contain deletion markers. If no name server answers, the create is allowed.
        await self._view.refresh_topics([name for name in names if self._topics.find(name) is None])
        for config in configs:
            fault = find_topic_fault(config) or self._find_conflict(config)
            if fault is not None:
                return Refusal(ResponseCode.INVALID_PARAMETER, fault)
        for config in configs:
            self._topics.deletions.lift(config.name)
        if len(configs) == 1:
            self._topics.put(configs[0])
        else:
            self._topics.put_all(configs)
        return self._registrar.answer_registered(request, request.answer())

    def _find_conflict(self, config: TopicConfig) -> str | None:
        """Return why a valid *config* conflicts with existing topics, or None if it does not."""
        if self._topics.is_system(config.name):
            return f"The topic[{config.name}] is conflict with system topic."
        if self._mappings.is_static(config.name):
            known = self._topics.find(config.name)
            counts = None if known is None else (known.read_queues, known.write_queues)
            if counts != (config.read_queues, config.write_queues):
                return (
                    f"topic {config.name} is static: its queues belong to logical queues, whose number is fixed. "
                    "Grow it with holdfast topic grow, or with mqadmin updateStaticTopic"
                )
        elif self._topics.find(config.name) is None and self._view.is_static(config.name):
            return (
                f"topic {config.name} is static on other brokers: a normal one of that name would not be served. Move "
                "queues here with holdfast queue migrate, or delete the static topic first"
            )
        return self._topics.find_kind_fault(config)
