"""Simulated brokers with one static topic that is moved: orders, a load, consumers, and checks of what is stored."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from tests.support.cluster.broker_machine import a_pull, a_send
from tests.support.cluster.simulated_world import SimulatedCluster

from holdfast.broker.mapping.mapping_table import FINISHED
from holdfast.model.errors import ConnectionLost, HoldfastError
from holdfast.model.mapping import LogicalQueue, TopicMapping, new_logical_queue
from holdfast.model.queue import MessageQueue
from holdfast.model.scope import GLOBAL, covers, mock_broker
from holdfast.model.topic import TopicConfig
from holdfast.wire.cluster.mapping import WireSegment, to_wire_segment
from holdfast.wire.frames import java_json
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.frames.command import Command
from holdfast.wire.frames.fields import to_fields
from holdfast.wire.records.record import decode_records
from holdfast.wire.requests.moves import (
    ForceRequest,
    Move,
    MoveList,
    MoveRequest,
    QueueSegments,
    decode_body,
)
from holdfast.wire.requests.offsets import LockAnswer, LockBody, QueryOffsetFields, UpdateOffsetFields

TOPIC = "T"


class MovingCluster(SimulatedCluster):
    """A simulated cluster; at no time a queue is open on two brokers of a unit.

    Attributes:
        acked: Body to (queue, logical offset), for every send that was acknowledged.
        refused: Answers to sends that were neither success nor 501.
    """

    def __init__(self, *names: str, **options: Any) -> None:
        self.acked: dict[bytes, tuple[int, int]] = {}
        self.sent: list[bytes] = []
        self.refused: list[Command] = []
        self.unknown_outcomes: list[HoldfastError] = []
        super().__init__(*names, **options)

    def checks(self) -> list[Callable[[], None]]:
        """Return what is checked after every step."""
        return [self._check_one_open]

    # Making and moving topics.

    def make_topic(self, leaders: dict[int, str], topic: str = TOPIC, scope: str = GLOBAL, **attributes: str) -> None:
        """Host a static topic; queue to leader."""
        for name, components in self.components.items():
            if not covers(scope, components.mappings.cluster):
                continue
            led_queues = sorted(queue for queue, leader in leaders.items() if leader == name)
            named = {name.replace("_", "."): value for name, value in attributes.items()}
            config = TopicConfig(
                name=topic, read_queues=len(led_queues), write_queues=len(led_queues), attributes=named
            )
            components.topics.put(config)
            queues = {queue: new_logical_queue(queue, name, at) for at, queue in enumerate(led_queues)}
            components.mappings.change(
                TopicMapping(topic=topic, broker=name, scope=scope, epoch=1, total=len(leaders), queues=queues),
            )
        self.run(5_000)

    def move(self, source: str, target: str, *queues: int) -> Move:
        """Order a move; return it as it begins."""
        answer = self.request(
            source, RequestCode.MOVE_QUEUES, MoveRequest(topic=TOPIC, queues=list(queues), target=target)
        )
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        return decode_body(answer.body, Move)

    def moves(self, source: str) -> dict[str, Move]:
        """Return the moves that a broker drives."""
        answer = self.request(source, RequestCode.LIST_MOVES)
        return {move.id: move for move in decode_body(answer.body, MoveList).moves}

    def are_moves_finished(self) -> bool:
        """Say whether no broker has an unfinished move."""
        return all(
            state.move.state in FINISHED
            for components in self.components.values()
            for state in components.mappings.moves().values()
        )

    def delete_topic(self, topic: str = TOPIC, *brokers: str) -> None:
        """Delete a topic as tools do: at *brokers* first, then at the name servers that run."""
        for name in brokers:
            assert self.request(name, RequestCode.DELETE_TOPIC_IN_BROKER, topic=topic).code == ResponseCode.SUCCESS
        for node in self.name_servers:
            if node.is_up:
                answers: list[Command | HoldfastError] = []
                command = Command(code=RequestCode.DELETE_TOPIC_IN_NAMESRV, fields={"topic": topic})
                self._run_in_client(
                    self.client, partial(self.client.request, node._addresses[0], command, answers.append)
                )
                assert self.run(5_000, partial(bool, answers))

    # Sending.

    def produce(self, queue: int, count: int, *brokers: str, pause_ms: int = 3) -> Callable[[], bool]:
        """Send *count* messages to a queue, one after the other, by way of *brokers* in turn.

        A message that was refused with 501 is sent again; one without an answer is not. Returns what says when it is
        done.
        """
        remaining = [f"{queue}-{at}".encode() for at in range(count)]
        done: list[bool] = []
        send_count = [0]

        def send() -> None:
            if not remaining:
                done.append(True)
                return
            body = remaining[0]
            if body not in self.sent:
                self.sent.append(body)
            send_count[0] += 1
            address = self.address(brokers[send_count[0] % len(brokers)])
            self.client.request(address, a_send(TOPIC, queue=queue, body=body), lambda answer: answered(body, answer))

        def answered(body: bytes, answer: Command | HoldfastError) -> None:
            if isinstance(answer, HoldfastError):
                self.unknown_outcomes.append(answer)
                if "no connection" not in str(answer):
                    remaining.pop(0)
            elif answer.code == ResponseCode.SUCCESS:
                self.acked[body] = (int(answer.fields["queueId"]), int(answer.fields["queueOffset"]))
                remaining.pop(0)
            elif answer.code != ResponseCode.NOT_LEADER_FOR_QUEUE:
                self.refused.append(answer)
                remaining.pop(0)
            self.client.after(pause_ms, send)

        self._run_in_client(self.client, send)
        return lambda: bool(done)

    # Consuming.

    def pull(self, name: str, queue: int, offset: int, **fields: str) -> Command:
        """Pull from a logical queue by way of a broker; return the answer."""
        try:
            return self.call(name, a_pull(TOPIC, queue=queue, offset=offset, **fields))
        except ConnectionLost:  # Half open, since somebody died.
            return self.call(name, a_pull(TOPIC, queue=queue, offset=offset, **fields))

    def consume(self, name: str, queue: int) -> list[bytes]:
        """Return the bodies that a consumer gets that reads a queue from 0 to its end by way of a broker."""
        offset, found = 0, []
        while True:
            answer = self.pull(name, queue, offset)
            found += [bytes(record.body) for record in decode_records(answer.body)]
            if answer.code == ResponseCode.PULL_NOT_FOUND:
                return found
            assert answer.code in {ResponseCode.SUCCESS, ResponseCode.PULL_RETRY_IMMEDIATELY}, answer
            offset = int(answer.fields["nextBeginOffset"])

    def commit(self, name: str, queue: int, offset: int, group: str = "consumers") -> Command:
        """Commit an offset by way of a broker."""
        fields = UpdateOffsetFields(consumer_group=group, topic=TOPIC, queue_id=queue, commit_offset=offset)
        return self.request(name, RequestCode.UPDATE_CONSUMER_OFFSET, None, **to_fields(fields))

    def committed(self, name: str, queue: int, group: str = "consumers") -> Command:
        """Ask for a committed offset by way of a broker."""
        fields = QueryOffsetFields(consumer_group=group, topic=TOPIC, queue_id=queue, set_zero_if_not_found=False)
        return self.request(name, RequestCode.QUERY_CONSUMER_OFFSET, None, **to_fields(fields))

    def lock(
        self,
        name: str,
        client: str,
        *queues: int,
        code: int = RequestCode.LOCK_BATCH_MQ,
        broker_name: str | None = None,
    ) -> list[int]:
        """Lock queues, or unlock them, by way of a broker; return those that the client holds then.

        *named* is the broker name that the client uses for the queues, instead of the usual mock name.
        """
        message_queues = [MessageQueue(TOPIC, broker_name or mock_broker("__global__"), queue) for queue in queues]
        body = LockBody(client_id=client, consumer_group="consumers", mq_set=message_queues)
        answer = self.call(name, Command(code=code, body=java_json.encode(body)))
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        if not answer.body:
            return []
        granted = java_json.decode(answer.body, LockAnswer).lockOKMQSet
        assert set(granted) <= set(message_queues), "a client finds its queues by the names that it used"
        return sorted(queue.queue_id for queue in granted)

    # Looking.

    def leader(self, queue: int) -> str:
        """Return which broker has a queue open; there must be one."""
        (name,) = self.open_brokers(queue)
        return name

    def open_brokers(self, queue: int) -> list[str]:
        """Return the running brokers that take sends of a queue."""
        return [
            name
            for name, components in self.components.items()
            if self.brokers[name].is_up
            and components.mappings.placement(TOPIC, queue).state == "open"
            and not components.relay.is_held((TOPIC, queue))
        ]

    def _check_one_open(self) -> None:
        records = {
            name: found for name, components in self.components.items() if (found := components.mappings.find(TOPIC))
        }
        for queue in range(max((record.total for record in records.values()), default=0)):
            scopes = [records[name].scope for name in self.open_brokers(queue)]
            assert len(scopes) == len(set(scopes)), f"queue {queue} is open on {self.open_brokers(queue)}"

    def logical_queue(self, queue: int) -> LogicalQueue:
        """Return a queue as its leader records it."""
        mapping = self.components[self.leader(queue)].mappings.find(TOPIC)
        assert mapping is not None
        return mapping.queues[queue]

    def read(self, queue: int) -> list[bytes]:
        """Return what a queue holds from logical offset 0 on, straight out of the brokers' stores."""
        found: dict[int, bytes] = {}
        logical = self.logical_queue(queue)
        for segment in logical.readable:
            store = self.stores[segment.broker]
            log = store.find_queue(TOPIC, segment.queue_id)
            end = 0 if log is None else log.offset_max
            if segment.is_sealed:
                assert end == segment.end, f"{segment.broker} has {end} records, {segment.end} are recorded"
            for offset in range(segment.start, end):
                assert log is not None
                record = store.read_record(log.get_entry(offset)[0])
                assert record is not None
                assert segment.to_logical(offset) not in found, "offsets are given once"
                found[segment.to_logical(offset)] = bytes(record.body)
        assert sorted(found) == list(range(len(found))), "offsets are contiguous"
        return [found[offset] for offset in range(len(found))]

    def check_ledger(self, *queues: int) -> None:
        """Hold what was acknowledged against what is stored."""
        for queue in queues:
            stored = self.read(queue)
            assert len(stored) == len(set(stored)), "nothing is stored twice"
            acked = [body for body in stored if body in self.acked]
            order = [body for body in self.sent if body in set(acked)]
            assert acked == order, "what one client sends one after the other keeps its order"
            for body, (acked_queue, offset) in self.acked.items():
                if acked_queue == queue:
                    assert stored[offset] == body, f"{body!r} was acknowledged at {offset}"


def segments_of(cluster: MovingCluster, queue: int, source: str) -> list[WireSegment]:
    """Return the homes of a queue as *source* recorded them last."""
    mapping = cluster.components[source].mappings.find(TOPIC)
    assert mapping is not None
    return [to_wire_segment(segment) for segment in mapping.queues[queue].segments]


def force_queue(
    cluster: MovingCluster, target: str, queue: int = 0, source: str = "a", segments: list[WireSegment] | None = None
) -> Command:
    """Let *target* lead a queue by force, going by what its old leader recorded, or by *homes*."""
    components = cluster.components[source]
    mapping, config = components.mappings.find(TOPIC), components.topics.find(TOPIC)
    assert mapping is not None
    assert config is not None
    segments = segments_of(cluster, queue, source) if segments is None else segments
    order = ForceRequest(
        topic=config,
        scope=mapping.scope,
        epoch=mapping.epoch + 1_000,
        total=mapping.total,
        queues=[QueueSegments(queue=queue, segments=segments)],
    )
    return cluster.request(target, RequestCode.FORCE_QUEUES, order)
