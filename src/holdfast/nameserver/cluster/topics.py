"""Request handlers for topic lists and topic changes: 106, 205, 206, 216, 217, 224, 304, 311, 312, 313, 327."""

from __future__ import annotations

from random import Random
from typing import Final

from holdfast.machine.component import Component
from holdfast.machine.request import Answer, Handlers, Refusal, Request
from holdfast.machine.turn import Turn
from holdfast.model.route import MASTER_ID, Route
from holdfast.nameserver.cluster.broker_liveness import BrokerLiveness
from holdfast.nameserver.routes.deletion_markers import DeletionMarkers
from holdfast.nameserver.routes.route_table import RouteTable
from holdfast.nameserver.routes.static_topics import NORMAL_TOPIC_CONFLICT
from holdfast.wire.cluster.route import (
    BrokerNameFields,
    ClusterFields,
    DeleteTopicFields,
    DepartedFields,
    RegisterTopicFields,
    TopicList,
)
from holdfast.wire.frames import java_json
from holdfast.wire.frames.codes import RequestCode, ResponseCode

# Bits of a topic's sys flag.
_UNIT: Final = 1
_UNIT_SUBSCRIPTION: Final = 2


class TopicRequests(Component):
    """Answers from the route table, and changes it for operators."""

    def __init__(
        self, turn: Turn, routes: RouteTable, liveness: BrokerLiveness, deletions: DeletionMarkers, random: Random
    ) -> None:
        self._turn = turn
        self._routes = routes
        self._deletions = deletions
        self._liveness = liveness
        self._random = random

    def handlers(self) -> Handlers:
        """Return the request handlers by code."""
        return {
            RequestCode.GET_BROKER_CLUSTER_INFO: self._cluster_info,
            RequestCode.WIPE_WRITE_PERM_OF_BROKER: self._wipe,
            RequestCode.ADD_WRITE_PERM_OF_BROKER: self._unwipe,
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: self._list_all,
            RequestCode.DELETE_TOPIC_IN_NAMESRV: self._delete,
            RequestCode.REGISTER_TOPIC_IN_NAMESRV: self._register,
            RequestCode.GET_TOPICS_BY_CLUSTER: self._list_of_cluster,
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: self._list_system,
            RequestCode.GET_UNIT_TOPIC_LIST: self._list_unit,
            RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: self._list_unit_subscribed,
            RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: self._list_subscribed_without_unit,
        }

    def _cluster_info(self, request: Request) -> Answer:
        if request.header_as(DepartedFields).wants_departed is None:
            return request.answer(body=self._routes.cluster_body())
        topics = java_json.decode(request.command.body or b"[]", list[str])
        return request.answer(body=self._routes.cluster_body(departed=self._routes.find_departed(topics)))

    def _wipe(self, request: Request) -> Answer:
        return self._set_wiped(request, is_wiped=True)

    def _unwipe(self, request: Request) -> Answer:
        return self._set_wiped(request, is_wiped=False)

    def _set_wiped(self, request: Request, *, is_wiped: bool) -> Answer:
        name = request.header_as(BrokerNameFields).broker_name
        count = self._routes.set_wiped(name, is_wiped=is_wiped)
        event = "write permission withdrawn" if is_wiped else "write permission restored"
        self._turn.log("warning", event, broker=name, topics=count, peer=request.peer)
        return request.answer(fields={"wipeTopicCount" if is_wiped else "addTopicCount": str(count)})

    def _list_all(self, request: Request) -> Answer:
        return _topic_list_answer(request, list(self._routes.topics))

    def _list_of_cluster(self, request: Request) -> Answer:
        cluster = request.header_as(ClusterFields).cluster
        return _topic_list_answer(request, self._routes.topics_of_cluster(cluster))

    def _list_system(self, request: Request) -> Answer:
        """List all clusters and brokers, which have a topic of their name each, and a broker that knows more topics."""
        clusters = self._routes.clusters()
        names = [*clusters, *(name for members in clusters.values() for name in members)]
        masters = [
            address
            for name in sorted(self._routes.brokers)
            if (address := self._routes.brokers[name].addresses.get(MASTER_ID)) is not None
        ]
        # Any master can answer; a random one spreads the load.
        return _topic_list_answer(request, names, broker_addr=self._random.choice(masters) if masters else None)

    def _list_unit(self, request: Request) -> Answer:
        return self._list_by_flags(request, _UNIT, {_UNIT})

    def _list_unit_subscribed(self, request: Request) -> Answer:
        return self._list_by_flags(request, _UNIT_SUBSCRIPTION, {_UNIT_SUBSCRIPTION})

    def _list_subscribed_without_unit(self, request: Request) -> Answer:
        return self._list_by_flags(request, _UNIT | _UNIT_SUBSCRIPTION, {_UNIT_SUBSCRIPTION})

    def _list_by_flags(self, request: Request, mask: int, accepted: set[int]) -> Answer:
        """List the topics for which, on some broker, the *mask* bits of the sys flag are one of *accepted*."""
        return _topic_list_answer(
            request,
            [
                topic
                for topic, hosts in self._routes.topics.items()
                if any(hosting.queue.sys_flag & mask in accepted for hosting in hosts.values())
            ],
        )

    def _delete(self, request: Request) -> Answer:
        fields = request.header_as(DeleteTopicFields)
        if not self._routes.delete_topic(fields.topic, cluster=fields.cluster_name or None):
            return request.answer()
        # A broker that still has the topic registers it again, on purpose.
        self._liveness.invalidate_digests()
        self._turn.log("info", "topic deleted", topic=fields.topic, cluster=fields.cluster_name, peer=request.peer)
        return self._deletions.delete(fields.topic, fields.cluster_name, request)

    def _register(self, request: Request) -> Answer:
        topic = request.header_as(RegisterTopicFields).topic
        if self._routes.static.find_all(topic):
            return Refusal(ResponseCode.SYSTEM_ERROR, f"topic {topic} cannot be registered: {NORMAL_TOPIC_CONFLICT}")
        route = java_json.decode(request.command.body or b"{}", Route)
        unknown_broker = self._routes.update_topic_queues(topic, route.queue_datas)
        if unknown_broker is not None:
            return Refusal(ResponseCode.SYSTEM_ERROR, f"broker {unknown_broker} of topic {topic} is not registered")
        self._deletions.lift(topic, "")
        self._liveness.invalidate_digests()
        return request.answer()


def _topic_list_answer(request: Request, topics: list[str], *, broker_addr: str | None = None) -> Answer:
    return request.answer(body=java_json.encode(TopicList(topic_list=topics, broker_addr=broker_addr)))
