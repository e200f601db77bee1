"""Request handlers for topic lists and topic changes: 106, 205, 206, 216, 217, 224, 304, 311, 312, 313, 327."""

from __future__ import annotations

from random import Random
from typing import Final

from holdfast.model.route import MASTER_ID, Route
from holdfast.nameserver.cluster.broker_liveness import Leases
from holdfast.nameserver.request import Answer, Handlers, Refusal, Request
from holdfast.nameserver.routes.deletion_markers import DeletionMarkers
from holdfast.nameserver.routes.route_table import RouteTable
from holdfast.nameserver.routes.static_topics import INTRUDES
from holdfast.wire.cluster.route import (
    LEFT_FIELD,
    BrokerNameFields,
    ClusterFields,
    DeleteTopicFields,
    TopicFields,
    TopicList,
)
from holdfast.wire.frames import java_json
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.frames.fields import from_fields

# Bits of a topic's sys flag.
_UNIT: Final = 1
_UNIT_SUBSCRIPTION: Final = 2


class TopicDesk:
    """Answers from the route table, and changes it for operators."""

    def __init__(self, routes: RouteTable, leases: Leases, deletions: DeletionMarkers, random: Random) -> None:
        self._routes = routes
        self._deletions = deletions
        self._leases = leases
        self._random = random

    def handlers(self) -> Handlers:
        """Return the request handlers by code."""
        return {
            RequestCode.GET_BROKER_CLUSTER_INFO: self._cluster_info,
            RequestCode.WIPE_WRITE_PERM_OF_BROKER: self._wipe,
            RequestCode.ADD_WRITE_PERM_OF_BROKER: self._unwipe,
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: self._all,
            RequestCode.DELETE_TOPIC_IN_NAMESRV: self._delete,
            RequestCode.REGISTER_TOPIC_IN_NAMESRV: self._register,
            RequestCode.GET_TOPICS_BY_CLUSTER: self._of_cluster,
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: self._system,
            RequestCode.GET_UNIT_TOPIC_LIST: self._units,
            RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: self._subscribed_units,
            RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: self._subscribed_others,
        }

    def _cluster_info(self, request: Request) -> Answer:
        if LEFT_FIELD not in request.command.fields:
            return request.answer(body=self._routes.cluster_body())
        topics = java_json.decode(request.command.body or b"[]", list[str])
        return request.answer(body=self._routes.cluster_body(left=self._routes.find_left(topics)))

    def _wipe(self, request: Request) -> Answer:
        return self._set_wiped(request, is_wiped=True)

    def _unwipe(self, request: Request) -> Answer:
        return self._set_wiped(request, is_wiped=False)

    def _set_wiped(self, request: Request, *, is_wiped: bool) -> Answer:
        name = from_fields(BrokerNameFields, request.command.fields).broker_name
        count = self._routes.set_wiped(name, is_wiped=is_wiped)
        event = "write permission withdrawn" if is_wiped else "write permission given back"
        request.log("warning", event, broker=name, topics=count)
        return request.answer(fields={"wipeTopicCount" if is_wiped else "addTopicCount": str(count)})

    def _all(self, request: Request) -> Answer:
        return _listed(request, list(self._routes.topics))

    def _of_cluster(self, request: Request) -> Answer:
        cluster = from_fields(ClusterFields, request.command.fields).cluster
        return _listed(request, self._routes.topics_of_cluster(cluster))

    def _system(self, request: Request) -> Answer:
        """List all clusters and brokers, which have a topic of their name each, and a broker that knows more topics."""
        clusters = self._routes.clusters()
        names = [*clusters, *(name for members in clusters.values() for name in members)]
        masters = [
            address
            for name in sorted(self._routes.brokers)
            if (address := self._routes.brokers[name].addresses.get(MASTER_ID)) is not None
        ]
        # Any master can answer; a random one spreads the load.
        return _listed(request, names, broker_addr=self._random.choice(masters) if masters else None)

    def _units(self, request: Request) -> Answer:
        return self._by_flags(request, _UNIT, {_UNIT})

    def _subscribed_units(self, request: Request) -> Answer:
        return self._by_flags(request, _UNIT_SUBSCRIPTION, {_UNIT_SUBSCRIPTION})

    def _subscribed_others(self, request: Request) -> Answer:
        return self._by_flags(request, _UNIT | _UNIT_SUBSCRIPTION, {_UNIT_SUBSCRIPTION})

    def _by_flags(self, request: Request, mask: int, wanted: set[int]) -> Answer:
        """List the topics for which, on some broker, the *mask* bits of the sys flag are one of *wanted*."""
        return _listed(
            request,
            [
                topic
                for topic, hosts in self._routes.topics.items()
                if any(hosting.queue.sys_flag & mask in wanted for hosting in hosts.values())
            ],
        )

    def _delete(self, request: Request) -> Answer:
        fields = from_fields(DeleteTopicFields, request.command.fields)
        if not self._routes.delete_topic(fields.topic, cluster=fields.cluster_name or None):
            return request.answer()
        # A broker that still has the topic registers it again, on purpose.
        self._leases.distrust()
        request.log("info", "topic deleted", topic=fields.topic, cluster=fields.cluster_name)
        return self._deletions.delete(fields.topic, fields.cluster_name, request)

    def _register(self, request: Request) -> Answer:
        topic = from_fields(TopicFields, request.command.fields).topic
        if self._routes.static.find_all(topic):
            return Refusal(ResponseCode.SYSTEM_ERROR, f"topic {topic} cannot be registered: {INTRUDES}")
        route = java_json.decode(request.command.body or b"{}", Route)
        stranger = self._routes.host_queues(topic, route.queue_datas)
        if stranger is not None:
            return Refusal(ResponseCode.SYSTEM_ERROR, f"broker {stranger} of topic {topic} is not registered")
        self._deletions.lift(topic, "", request)
        self._leases.distrust()
        return request.answer()


def _listed(request: Request, topics: list[str], *, broker_addr: str | None = None) -> Answer:
    return request.answer(body=java_json.encode(TopicList(topic_list=topics, broker_addr=broker_addr)))
