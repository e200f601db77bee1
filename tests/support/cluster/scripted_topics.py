"""Scripted brokers that keep mappings and carry moves out at once. No sockets.

    cluster = ScriptedTopics(brokers_by_name={"a": "a:1", "b": "b:1"})
    cluster.put_topic("orders", {0: "a", 1: "a", 2: "b"})
    cluster.kill("a")                        no answer; the name server remembers what it registered
    cluster.forget("a")                      no answer, and the name server lists it no longer
    cluster.java.add("b")                    knows 513 and 351, none of our own codes
    cluster.ends["orders", 0] = 100          where a queue ends

Names of refusals and states are those of the brokers; how they reach them is not looked at here.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Self

import msgspec
import pytest
from tests.support.cluster.scripted import Reply, ScriptedAccess, ScriptedRequest

from holdfast.admin.floors import find_starts
from holdfast.admin.static_topics import ClusterMappings
from holdfast.admin.topic_plans import RepairPlan, leaderless_queues, repair_plan
from holdfast.model.errors import MappingRefused
from holdfast.model.floor import floor_of
from holdfast.model.mapping import LogicalQueue, TopicMapping, new_logical_queue
from holdfast.model.scope import GLOBAL, covers
from holdfast.model.topic import TopicConfig
from holdfast.wire.cluster import mapping as wire
from holdfast.wire.cluster.mapping import MappedTopic, from_detail, from_wire_segment, to_detail, to_info
from holdfast.wire.frames import java_json
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.frames.command import Command
from holdfast.wire.requests.admin import parse_attributes
from holdfast.wire.requests.moves import (
    AbandonRequest,
    DiscardRequest,
    DrainRequest,
    FloorQuery,
    ForceRequest,
    ForgetBrokerRequest,
    MappingsAnswer,
    Move,
    MoveId,
    MoveList,
    MoveRequest,
    QueueFloor,
    QueueFloors,
    QueueTotal,
    decode_body,
    encode_body,
)

JAVA_4 = 407


async def plan_repair(
    cluster: "ScriptedTopics", view: ClusterMappings, *, force: bool = False, now_ms: int = 1
) -> RepairPlan:
    """Return how the topic `t` would be repaired, as the command line finds it out."""
    topic = view.topics["t"]
    starts = await find_starts(cluster, view, topic, leaderless_queues(topic))
    return repair_plan(view, topic, starts=starts, force=force, now_ms=now_ms)


@dataclass
class ScriptedTopics(ScriptedAccess):
    """Brokers with records. Everything that they were told is in `asked`."""

    brokers_by_name: dict[str, str] = field(default_factory=lambda: {"a": "a:1", "b": "b:1"})
    records: dict[str, dict[str, TopicMapping]] = field(default_factory=dict)
    configs: dict[str, dict[str, TopicConfig]] = field(default_factory=dict)
    moves: dict[str, list[Move]] = field(default_factory=dict)
    ends: dict[tuple[str, int], int] = field(default_factory=dict)
    offsets: dict[tuple[str, str, str, int], int] = field(default_factory=dict)
    stats: dict[tuple[str, str], list[tuple[int, int, int]]] = field(default_factory=dict)
    delays: dict[int, int] = field(default_factory=dict)
    forgotten: set[str] = field(default_factory=set)
    java: set[str] = field(default_factory=set)
    draining: set[str] = field(default_factory=set)
    refusing: dict[str, str] = field(default_factory=dict)
    name_server_version: int = 479
    state_of_new_moves: str = "done"
    copied_offsets: int | None = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.kill(*self.forgotten)
        handlers: dict[RequestCode, Callable[[str, ScriptedRequest], Reply]] = {
            RequestCode.GET_MAPPINGS: self._mappings,
            RequestCode.GET_TOPIC_CONFIG: self._config,
            RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC: self._put,
            RequestCode.UPDATE_AND_CREATE_TOPIC: self._put_normal,
            RequestCode.PUT_QUEUE_TOTAL: self._stamp,
            RequestCode.DELETE_MAPPING: self._delete_mapping,
            RequestCode.FIND_FLOORS: self._floors,
            RequestCode.DELETE_TOPIC_IN_BROKER: self._delete_topic,
            RequestCode.MOVE_QUEUES: self._move,
            RequestCode.LIST_MOVES: lambda name, _: encode_body(MoveList(moves=self.moves.get(name, []))),
            RequestCode.CANCEL_MOVE: lambda name, request: self._end_move(name, request, "cancelled"),
            RequestCode.RESUME_MOVE: lambda name, request: self._end_move(name, request, "done"),
            RequestCode.FORCE_QUEUES: self._force,
            RequestCode.ABANDON_QUEUE: self._abandon,
            RequestCode.DISCARD_SEGMENTS: self._discard,
            RequestCode.FORGET_BROKER: self._forget,
            RequestCode.SET_DRAINING: self._drain,
            RequestCode.GET_MAX_OFFSET: self._max,
            RequestCode.GET_BROKER_CONFIG: lambda *_: b"fileReservedTime=72\n",
            RequestCode.GET_ALL_DELAY_OFFSET: lambda *_: msgspec.json.encode({"offsetTable": self.delays}),
            RequestCode.GET_ALL_TOPIC_CONFIG: self._all_configs,
            RequestCode.GET_TOPIC_STATS_INFO: self._stats,
            RequestCode.QUERY_CONSUMER_OFFSET: self._offset,
            RequestCode.UPDATE_CONSUMER_OFFSET: self._commit,
            RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: self._groups,
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: self._group_configs,
        }
        for code, handler in handlers.items():
            self.on(code, lambda request, handler=handler: self._at_broker(request, handler))
        self.on(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, self._topic_names)
        for code in (RequestCode.DELETE_TOPIC_IN_NAMESRV, RequestCode.UNREGISTER_BROKER, RequestCode.DELETE_KV_CONFIG):
            self.on(code, lambda _: {})

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        return None

    # Building.

    def put_topic(
        self, topic: str, leaders: dict[int, str], *, total: int | None = None, epoch: int = 1, scope: str = GLOBAL
    ) -> None:
        """Give every broker its record: each queue at its first home, physical queues from 0 on."""
        queues = [new_logical_queue(q, b, _rank(leaders, q)) for q, b in leaders.items()]
        self.put_queues(topic, queues, total, epoch, scope)

    def put_queues(
        self, topic: str, queues: list[LogicalQueue], total: int | None = None, epoch: int = 1, scope: str = GLOBAL
    ) -> None:
        """Give every broker in *scope* what it would record of *queues*."""
        count = len(queues) if total is None else total
        for name in self.brokers_by_name:
            if not covers(scope, self.clusters.get(name, "c")):
                continue
            led_here = {
                queue.queue: queue for queue in queues if any(segment.broker == name for segment in queue.segments)
            }
            record = TopicMapping(topic=topic, broker=name, scope=scope, epoch=epoch, total=count, queues=led_here)
            queue_count = max((number + 1 for number in record.used_queue_ids(name)), default=0)
            self.records.setdefault(name, {})[topic] = record
            self.configs.setdefault(name, {})[topic] = TopicConfig(
                name=topic, read_queues=queue_count, write_queues=queue_count
            )

    def put_normal(self, topic: str, hosts: dict[str, int]) -> None:
        """Make a normal topic."""
        for name, count in hosts.items():
            self.configs.setdefault(name, {})[topic] = TopicConfig(name=topic, read_queues=count, write_queues=count)

    def forget(self, name: str) -> None:
        """Kill a broker, and let name servers not list it any more."""
        self.kill(name)
        self.forgotten.add(name)

    def leader(self, topic: str, queue: int) -> str:
        """Return who leads a queue by the records of those that live."""
        leaders_claimed = [
            record[topic].queues[queue].leader
            for name, record in self.records.items()
            if topic in record and queue in record[topic].queues and name not in self.dead
        ]
        return max(leaders_claimed, key=lambda segment: segment.generation).broker

    def use_for_commands(self, monkeypatch: pytest.MonkeyPatch) -> Self:
        """Let every command of the command line talk to this cluster."""
        monkeypatch.setattr("holdfast.admin.operations.ClusterAccess", lambda *_, **__: self)
        return self

    # Answering.

    def _at_broker(self, request: ScriptedRequest, handler: Callable[[str, ScriptedRequest], Reply]) -> Reply:
        name = next(name for name, address in self.brokers_by_name.items() if address == request.address)
        if name in self.java and request.code >= 7000:
            return ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        if name in self.refusing and request.code != RequestCode.GET_MAPPINGS:
            return Command(code=1, remark=self.refusing[name])
        try:
            return handler(name, request)
        except MappingRefused as error:
            return Command(code=1, remark=str(error))

    def _cluster_info(self, request: ScriptedRequest) -> Reply:
        body = super()._cluster_info(request)
        assert isinstance(body, bytes)
        info = msgspec.json.decode(body)
        for name in self.forgotten:
            del info["brokerAddrTable"][name]
        body = msgspec.json.encode(info)
        return Command(code=0, body=body, version=self.name_server_version)

    def _route(self, request: ScriptedRequest) -> Reply:
        topic = request.fields["topic"]
        rows = {name: record[topic] for name, record in self.records.items() if topic in record}
        hosts = {name: table[topic] for name, table in self.configs.items() if topic in table}
        if not rows and not hosts:
            return super()._route(request)
        assert request.fields["hf.mapping"] == "1"
        live = [name for name in self.brokers_by_name if name not in self.dead]
        route = {
            "brokerDatas": [
                {"cluster": "c", "brokerName": name, "brokerAddrs": {"0": self.brokers_by_name[name]}}
                for name in live
                if name in hosts
            ],
            "queueDatas": [
                {
                    "brokerName": name,
                    "readQueueNums": hosts[name].read_queues,
                    "writeQueueNums": hosts[name].write_queues,
                    "perm": hosts[name].permission,
                }
                for name in live
                if name in hosts
            ],
        }
        if rows:
            plain = {name: wire.to_plain(to_info(record)) for name, record in rows.items()}
            route["topicQueueMappingByBroker"] = plain  # type: ignore[assignment]
        return java_json.encode(route)

    def _topic_names(self, request: ScriptedRequest) -> Reply:
        return msgspec.json.encode({"topicList": sorted({topic for table in self.configs.values() for topic in table})})

    def _mappings(self, name: str, request: ScriptedRequest) -> Reply:
        topics = [self._mapped(name, topic) for topic in self.records.get(name, {})]
        moves, draining = self.moves.get(name, []), name in self.draining
        return java_json.encode(wire.to_plain(MappingsAnswer(topics=topics, moves=moves, draining=draining)))

    def _config(self, name: str, request: ScriptedRequest) -> Reply:
        if request.fields["topic"] not in self.configs.get(name, {}):
            return ResponseCode.TOPIC_NOT_EXIST
        return wire.encode(self._mapped(name, request.fields["topic"]))

    def _mapped(self, name: str, topic: str) -> MappedTopic:
        record = self.records.get(name, {}).get(topic)
        fields = msgspec.structs.asdict(self.configs[name][topic])
        return MappedTopic(**fields, mapping=None if record is None else to_detail(record))

    def _put(self, name: str, request: ScriptedRequest) -> Reply:
        record = from_detail(wire.decode(request.body, wire.MappingDetail))
        assert record.broker == name
        self.records.setdefault(name, {})[record.topic] = record
        return self._put_normal(name, request)

    def _put_normal(self, name: str, request: ScriptedRequest) -> Reply:
        topic = request.fields["topic"]
        self.configs.setdefault(name, {})[topic] = TopicConfig(
            name=topic,
            read_queues=int(request.fields["readQueueNums"]),
            write_queues=int(request.fields["writeQueueNums"]),
            permission=int(request.fields["perm"]),
            attributes=parse_attributes(request.fields.get("attributes", ""))[0],
        )
        return {}

    def _stamp(self, name: str, request: ScriptedRequest) -> Reply:
        stamp = decode_body(request.body, QueueTotal)
        old = self.records.get(name, {}).get(stamp.topic.name)
        record = old or TopicMapping(topic=stamp.topic.name, broker=name)
        stamped = msgspec.structs.replace(record, epoch=stamp.epoch, total=stamp.total)
        self.records.setdefault(name, {})[stamp.topic.name] = stamped
        return {}

    def _delete_mapping(self, name: str, request: ScriptedRequest) -> Reply:
        topic, queue = request.fields["topic"], int(request.fields["queue"])
        record = self.records[name].pop(topic)
        if queue >= 0:
            end = self.ends.get((topic, queue))
            self.records[name][topic] = record.forget_queue(queue, floor_of(record.queues[queue], end))
        return {}

    def _floors(self, name: str, request: ScriptedRequest) -> Reply:
        question = decode_body(request.body, FloorQuery)
        record = self.records.get(name, {}).get(question.topic)
        floors = {} if record is None else wire.to_floors(record.floors)
        known = [QueueFloor(queue=queue, floor=floors[queue]) for queue in question.queues if queue in floors]
        return encode_body(QueueFloors(queues=known))

    def _delete_topic(self, name: str, request: ScriptedRequest) -> Reply:
        self.records.get(name, {}).pop(request.fields["topic"], None)
        self.configs.get(name, {}).pop(request.fields["topic"], None)
        return {}

    def _move(self, name: str, request: ScriptedRequest) -> Reply:
        order = decode_body(request.body, MoveRequest)
        state = self.state_of_new_moves
        move = Move(
            id=f"m{sum(map(len, self.moves.values()))}",
            topic=order.topic,
            queues=order.queues,
            source=name,
            target=order.target,
            state=state,
            copied=self.copied_offsets if state == "done" else None,
        )
        self.moves.setdefault(name, []).append(move)
        if state == "done":
            self._change(order.topic, order.queues, order.target, self._moved)
        return encode_body(msgspec.structs.replace(move, state="planned"))

    def _moved(self, queue: LogicalQueue, topic: str, target: str, queue_id: int) -> LogicalQueue:
        end = queue.leader.to_physical(self.ends.get((topic, queue.queue), queue.leader.first))
        return queue.prepare(target, queue_id).seal(end).open_next()

    def _change(
        self, topic: str, queues: list[int], target: str, change: Callable[[LogicalQueue, str, str, int], LogicalQueue]
    ) -> None:
        for number in queues:
            recorded = [
                record[topic].queues[number]
                for record in self.records.values()
                if topic in record and number in record[topic].queues
            ]
            queue = max(recorded, key=lambda each: each.generation)
            used = self.records[target][topic].used_queue_ids(target)
            changed = change(queue, topic, target, max(used, default=-1) + 1)
            for name in {queue.leader.broker, target}:
                self.records[name][topic] = self.records[name][topic].with_queues(changed)

    def _end_move(self, name: str, request: ScriptedRequest, state: str) -> Reply:
        move_id = decode_body(request.body, MoveId).id
        self.moves[name] = [
            msgspec.structs.replace(move, state=state) if move.id == move_id else move for move in self.moves[name]
        ]
        return {}

    def _force(self, name: str, request: ScriptedRequest) -> Reply:
        order = decode_body(request.body, ForceRequest)
        empty = TopicMapping(topic=order.topic.name, broker=name, total=order.total)
        self.records[name].setdefault(order.topic.name, empty)
        for queue in order.queues:
            segments = tuple(map(from_wire_segment, queue.segments))
            used = self.records[name][order.topic.name].used_queue_ids(name)
            forced = LogicalQueue(queue.queue, segments).force(name, max(used, default=-1) + 1)
            record = self.records[name][order.topic.name].with_queues(forced, epoch=order.epoch)
            self.records[name][order.topic.name] = record
        return {}

    def _abandon(self, name: str, request: ScriptedRequest) -> Reply:
        order = decode_body(request.body, AbandonRequest)
        record = self.records[name][order.topic]
        changed = record.queues[order.queue].abandon(generation=order.generation, known_end=order.end)
        self.records[name][order.topic] = record.with_queues(changed)
        return {}

    def _discard(self, name: str, request: ScriptedRequest) -> Reply:
        order = decode_body(request.body, DiscardRequest)
        record = self.records[name][order.topic]
        segment = record.queues[order.queue].find(order.generation)
        assert segment is not None
        changed = record.queues[order.queue].expire(order.generation, segment.queue_id)
        self.records[name][order.topic] = record.with_queues(changed)
        return {}

    def _forget(self, name: str, request: ScriptedRequest) -> Reply:
        forgotten_broker = decode_body(request.body, ForgetBrokerRequest).broker
        for topic, record in self.records[name].items():
            led = [record.queues[number].prune({forgotten_broker}) for number in record.led_queues]
            self.records[name][topic] = record.with_queues(*led)
        return {}

    def _drain(self, name: str, request: ScriptedRequest) -> Reply:
        (self.draining.add if decode_body(request.body, DrainRequest).draining else self.draining.discard)(name)
        return {}

    def _max(self, name: str, request: ScriptedRequest) -> Reply:
        return {"offset": str(self.ends.get((request.fields["topic"], int(request.fields["queueId"])), 0))}

    def _all_configs(self, name: str, request: ScriptedRequest) -> Reply:
        table = {topic: msgspec.to_builtins(config) for topic, config in self.configs.get(name, {}).items()}
        return msgspec.json.encode({"topicConfigTable": table, "dataVersion": {}})

    def _stats(self, name: str, request: ScriptedRequest) -> Reply:
        rows = self.stats.get((name, request.fields["topic"]), [])
        cells = ",".join(
            f'{{"brokerName":"{name}","queueId":{queue},"topic":"{request.fields["topic"]}"}}:'
            f'{{"minOffset":{low},"maxOffset":{high},"lastUpdateTimestamp":5000}}'
            for queue, low, high in rows
        )
        return f'{{"offsetTable":{{{cells}}}}}'.encode()

    def _offset(self, name: str, request: ScriptedRequest) -> Reply:
        fields = request.fields
        found = self.offsets.get((name, fields["consumerGroup"], fields["topic"], int(fields["queueId"])))
        return ResponseCode.QUERY_NOT_FOUND if found is None else {"offset": str(found)}

    def _commit(self, name: str, request: ScriptedRequest) -> Reply:
        fields = request.fields
        key = (name, fields["consumerGroup"], fields["topic"], int(fields["queueId"]))
        self.offsets[key] = int(fields["commitOffset"])
        return {}

    def _group_configs(self, name: str, request: ScriptedRequest) -> Reply:
        groups = {group for broker, group, _, _ in self.offsets if broker == name}
        return msgspec.json.encode({"subscriptionGroupTable": {group: {"groupName": group} for group in groups}})

    def _groups(self, name: str, request: ScriptedRequest) -> Reply:
        groups = {group for _, group, topic, _ in self.offsets if topic == request.fields["topic"]}
        return msgspec.json.encode({"groupList": sorted(groups)})


def _rank(leaders: dict[int, str], queue: int) -> int:
    """Return the how-manieth queue of its broker this is."""
    return sum(1 for number in sorted(leaders) if number < queue and leaders[number] == leaders[queue])
