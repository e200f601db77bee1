"""Brokers and a name server as machines in one virtual world, with static topics, hands that ask, and eyes that check.

Everything is in one process and repeatable: a broker can be killed before any of its steps, and started again on what
is left of its disk.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

import msgspec
from tests.support.cluster.broker_machine import a_pull, a_send

from holdfast.broker.assembly import Components
from holdfast.broker.core import Broker
from holdfast.broker.mapping.mapping_table import FINISHED
from holdfast.broker.options import BrokerOptions
from holdfast.broker.service import store_options
from holdfast.machine.effects import Effect
from holdfast.machine.events import Event
from holdfast.model.errors import ConnectionLost, HoldfastError
from holdfast.model.mapping import LogicalQueue, TopicMapping, new_logical_queue
from holdfast.model.queue import MessageQueue
from holdfast.model.scope import GLOBAL, covers, mock_broker
from holdfast.model.topic import TopicConfig
from holdfast.nameserver.cluster.queue_leases import FILE as LEASES_FILE
from holdfast.nameserver.config.kv_config import FILE as KV_FILE
from holdfast.nameserver.core import NameServer
from holdfast.nameserver.options import NameServerOptions
from holdfast.nameserver.routes.static_topic_store import FILE as STATIC_FILE
from holdfast.sim.actors.client import SimClient
from holdfast.sim.world.disk import SimDisk
from holdfast.sim.world.network import Network
from holdfast.sim.world.node import BuiltMachine, Node
from holdfast.sim.world.shell import HostEnvironment
from holdfast.sim.world.trace import Trace
from holdfast.sim.world.world import World
from holdfast.store.message_store import MessageStore
from holdfast.wire.frames import java_json
from holdfast.wire.frames.codes import RequestCode, ResponseCode
from holdfast.wire.frames.command import Command
from holdfast.wire.frames.fields import to_fields
from holdfast.wire.records.record import decode_records
from holdfast.wire.requests.moves import Move, MoveList, MoveRequest, decode_body, encode_body
from holdfast.wire.requests.offsets import LockAnswer, LockBody, QueryOffsetFields, UpdateOffsetFields

TOPIC = "T"
NAMESRV = "10.0.0.1:9876"


class StepCounter:
    """A machine that counts its events, and may be made to die before one of them."""

    def __init__(self, machine: Broker, is_last: Callable[[], bool]) -> None:
        self._machine = machine
        self._is_last = is_last

    def handle(self, event: Event) -> list[Effect]:
        """Take the event, unless this is the end."""
        return [] if self._is_last() else self._machine.handle(event)


class ManualClient(SimClient):
    """A client that asks what it is told to ask.

    Attributes:
        received: What brokers said without being asked, and who said it.
        node: Where it runs.
    """

    def __init__(self, name: str, name_servers: str, chance: Random) -> None:
        super().__init__(name, name_servers, chance)
        self.received: list[tuple[str, Command]] = []
        self.node: Node | None = None

    def handle_request(self, address: str, command: Command) -> None:
        """Take note of what a broker says."""
        self.received.append((address, command))


class MovingCluster:
    """Some brokers, one name server, one client.

    Attributes:
        options: What brokers are started with, besides what all are.
        components: Of every broker that was ever started; of one that runs, those of now.
        acked: Body to (queue, logical offset), for every send that was acknowledged.
        refused: Answers to sends that were neither success nor 501.
    """

    def __init__(
        self,
        *names: str,
        flush: str = "sync",
        seed: int = 1,
        show: bool = False,
        log_file_size: int = 1 << 20,
        retention_ms: int | None = None,
        name_servers: int = 1,
        clusters: dict[str, str] | None = None,
        **options: Any,
    ) -> None:
        self.clusters = clusters or {}  # of brokers that are in another than the usual one
        self._log_file_size = log_file_size
        self._retention_ms = retention_ms
        self.options = options
        self._namesrv = tuple(f"10.0.0.{number}:9876" for number in range(1, name_servers + 1))
        self.world = World(seed, Trace(print) if show else None)
        self.network = Network(self.world)
        self.network.conditions.spike_probability = 0.0
        self.components: dict[str, Components] = {}
        self.stores: dict[str, MessageStore] = {}
        self.steps: dict[str, int] = dict.fromkeys(names, 0)
        self.flush = flush
        self.acked: dict[bytes, tuple[int, int]] = {}
        self.sent: list[bytes] = []
        self.refused: list[Command] = []
        self.unknown_outcomes: list[HoldfastError] = []
        self._planned_ends: dict[str, tuple[int, str]] = {}
        self.name_servers = [self._name_server(address) for address in self._namesrv]
        self.name_server = self.name_servers[0]
        self.brokers = {name: self.create_broker(name, f"10.0.1.{at}:10911") for at, name in enumerate(names, 1)}
        for node in (*self.name_servers, *self.brokers.values()):
            node.start()
        self._client_count = 0
        self.client = self.add_client("hand")
        self.world.checks.append(self._check_one_open)
        self.run(2_000)

    # Making it.

    def _node(
        self,
        name: str,
        address: str,
        build_machine: Callable[[HostEnvironment, int], BuiltMachine],
        *,
        host: str = "",
        disk: SimDisk | None = None,
    ) -> Node:
        environment = HostEnvironment(
            name=name, host=host or address.partition(":")[0], chance=self.world.chance(name), disk=disk
        )
        return Node(self.world, self.network, environment, build_machine, addresses=(address,) if address else ())

    def _name_server(self, address: str) -> Node:
        disk = SimDisk()
        disk.replace(LEASES_FILE, b"{}")  # It was here before: nobody has to wait until old promises are void.
        number = self._namesrv.index(address)
        return self._node(f"namesrv{number or ''}", address, self._build_name_server, disk=disk)

    def _build_name_server(self, environment: HostEnvironment, _now_ms: int) -> BuiltMachine:
        assert environment.disk is not None
        static, leases, kv = map(environment.disk.read_file, (STATIC_FILE, LEASES_FILE, KV_FILE))
        options = NameServerOptions(data="kv", broker_timeout_ms=60_000)
        return BuiltMachine(
            NameServer(options, environment.chance, kv_content=kv, static_content=static, lease_content=leases)
        )

    def create_broker(self, name: str, address: str, disk: SimDisk | None = None) -> Node:
        """Return a host for a broker, with the disk of another if there was one."""
        options = BrokerOptions(
            name=name,
            namesrv=self._namesrv,
            listen=address,
            flush=self.flush,  # type: ignore[arg-type]
            log_file_size=self._log_file_size,
            register_interval_ms=3_000,
            offset_save_interval_ms=2_000,
            **({"cluster": self.clusters[name]} if name in self.clusters else {}),
            **self.options,
        )

        def build(environment: HostEnvironment, now_ms: int) -> BuiltMachine:
            assert environment.disk is not None
            options_used = store_options(options)
            if self._retention_ms is not None:
                options_used = msgspec.structs.replace(options_used, retention_ms=self._retention_ms)
            store = MessageStore.open(environment.disk, options_used, now_ms)
            components = self.components[name] = Components(
                options, store, environment.disk, environment.chance, now_ms
            )
            self.stores[name] = store
            machine = StepCounter(Broker(options, store, components), lambda: self._count(name))
            return BuiltMachine(machine, store.close)

        return self._node(name, address, build, disk=disk or SimDisk())

    def add_client(self, name: str) -> ManualClient:
        """Return one more client, on a host of its own."""
        self._client_count += 1
        hand = ManualClient(name, NAMESRV, self.world.chance(name))
        hand.node = self._node(
            name, "", lambda _environment, _now_ms: BuiltMachine(hand), host=f"10.0.2.{self._client_count}"
        )
        hand.node.start()
        return hand

    def address(self, name: str) -> str:
        """Return where a broker listens."""
        return self.brokers[name]._addresses[0]

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
            components.topics.put(config, self.world.now_ms)
            queues = {queue: new_logical_queue(queue, name, at) for at, queue in enumerate(led_queues)}
            components.mappings.change(
                TopicMapping(topic=topic, broker=name, scope=scope, epoch=1, total=len(leaders), queues=queues),
                now_ms=self.world.now_ms,
            )
        self.run(5_000)

    # Time, life and death.

    def run(self, span_ms: int, until: Callable[[], bool] | None = None) -> bool:
        """Let time pass, or until something is so; say whether it is."""
        return self.world.run(until_ms=self.world.now_ms + span_ms, until=until)

    def kill_before(self, name: str, step: int, ending: str = "kill") -> None:
        """Let a broker end before its *step*-th event from now on."""
        self._planned_ends[name] = (self.steps[name] + step, ending)

    def is_up(self, name: str) -> bool:
        """Say whether a broker runs."""
        return self.brokers[name].is_up

    def _count(self, name: str) -> bool:
        """Count a step of a broker; end it, and say so, if this was to be its last."""
        self.steps[name] += 1
        at, ending = self._planned_ends.get(name, (0, ""))
        if self.steps[name] != at:
            return False
        del self._planned_ends[name]
        node = self.brokers[name]
        if ending == "kill":
            node.kill()
        else:
            node.power_off()
        return True

    # Asking.

    def call(self, name: str, code: RequestCode, body: msgspec.Struct | None = None, **fields: str) -> Command:
        """Ask a broker; return its answer."""
        command = Command(code=code, body=b"" if body is None else encode_body(body), fields=fields)
        return self.call_command(name, command)

    def call_command(
        self, name: str, command: Command, timeout_ms: int = 20_000, by: ManualClient | None = None
    ) -> Command:
        """Ask a broker anything; return its answer."""
        answers = self.send(name, command, timeout_ms, by)
        assert self.run(timeout_ms + 1_000, lambda: bool(answers)), "somebody is always answered"
        if isinstance(answers[0], HoldfastError):
            raise answers[0]
        return answers[0]

    def move(self, source: str, target: str, *queues: int) -> Move:
        """Order a move; return it as it begins."""
        answer = self.call(
            source, RequestCode.MOVE_QUEUES, MoveRequest(topic=TOPIC, queues=list(queues), target=target)
        )
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        return decode_body(answer.body, Move)

    def moves(self, source: str) -> dict[str, Move]:
        """Return the moves that a broker drives."""
        answer = self.call(source, RequestCode.LIST_MOVES)
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
            assert self.call(name, RequestCode.DELETE_TOPIC_IN_BROKER, topic=topic).code == ResponseCode.SUCCESS
        for node in self.name_servers:
            if node.is_up:
                answers: list[Command | HoldfastError] = []
                command = Command(code=RequestCode.DELETE_TOPIC_IN_NAMESRV, fields={"topic": topic})
                self._run_in_client(
                    self.client, partial(self.client.request, node._addresses[0], command, answers.append)
                )
                assert self.run(5_000, partial(bool, answers))

    def send(
        self, name: str, command: Command, timeout_ms: int = 30_000, by: ManualClient | None = None
    ) -> list[Command | HoldfastError]:
        """Ask a broker something that it may answer late; return where its answer will be."""
        answers: list[Command | HoldfastError] = []
        client = by or self.client
        self._run_in_client(
            client, lambda: client.request(self.address(name), command, answers.append, timeout_ms=timeout_ms)
        )
        return answers

    def _run_in_client(self, client: ManualClient, action: Callable[[], None]) -> None:
        """Let a client do something now."""
        assert client.node is not None
        assert client.node.shell is not None
        client.now_ms = self.world.now_ms
        action()
        effects, client._effects = client._effects, []
        for effect in effects:
            client.node.shell._effect_handlers[type(effect)](effect)

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
            return self.call_command(name, a_pull(TOPIC, queue=queue, offset=offset, **fields))
        except ConnectionLost:  # Half open, since somebody died.
            return self.call_command(name, a_pull(TOPIC, queue=queue, offset=offset, **fields))

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
        return self.call(name, RequestCode.UPDATE_CONSUMER_OFFSET, None, **to_fields(fields))

    def committed(self, name: str, queue: int, group: str = "consumers") -> Command:
        """Ask for a committed offset by way of a broker."""
        fields = QueryOffsetFields(consumer_group=group, topic=TOPIC, queue_id=queue, set_zero_if_not_found=False)
        return self.call(name, RequestCode.QUERY_CONSUMER_OFFSET, None, **to_fields(fields))

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
        answer = self.call_command(name, Command(code=code, body=java_json.encode(body)))
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
