"""Static topics at the name server, through histories in which registrations come late, twice or never."""

from __future__ import annotations

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from tests.support.cluster.name_server_machine import a_topic
from tests.support.static_reports import NO_LEADER, address_of, java_leaders

from holdfast.machine.turn import Turn
from holdfast.model.mapping import LogicalQueue, TopicMapping, new_logical_queue
from holdfast.nameserver.route_changes import RouteChanges
from holdfast.nameserver.routes.route_table import RouteTable
from holdfast.nameserver.routes.static_routes import RoutePart, aware_body
from holdfast.wire.cluster.mapping import to_info, to_plain

BROKERS = ["a", "b", "c"]
brokers = st.sampled_from(BROKERS)


class History(RuleBasedStateMachine):
    """Brokers that move, grow and force their queues; a name server that hears of it or not."""

    def __init__(self) -> None:
        super().__init__()
        self.table = RouteTable(Turn(), RouteChanges())
        self.epoch = 1
        self.total = 3
        self.next_queue_id = 10
        first = {number: new_logical_queue(number, BROKERS[number], number) for number in range(3)}
        self.records = {
            name: TopicMapping(
                topic="orders",
                broker=name,
                epoch=1,
                total=3,
                queues={number: queue for number, queue in first.items() if queue.leader.broker == name},
            )
            for name in BROKERS
        }
        self.truth = first
        self.versions = {name: [record] for name, record in self.records.items()}
        self.generations: dict[int, int] = {}
        self.was_served = False

    # What brokers do.

    def _record(self, name: str, *queues: LogicalQueue) -> None:
        record = msgspec.structs.replace(self.records[name], epoch=self.epoch, total=self.total)
        self.records[name] = record.with_queues(*queues)
        self.versions[name].append(self.records[name])

    def _choose(self, number: int, heir: str) -> LogicalQueue | None:
        queue = self.truth[number % self.total]
        return None if queue.leader.broker == heir else queue

    @rule(number=st.integers(0, 7), heir=brokers, size=st.integers(0, 3), data=st.data())
    def move(self, number: int, heir: str, size: int, data: st.DataObject) -> None:
        """Prepare, seal, open; the name server may hear of any step, of either side."""
        queue = self._choose(number, heir)
        if queue is None:
            return
        source = queue.leader.broker
        self.epoch += 1
        self.next_queue_id += 1
        prepared = queue.prepare(heir, self.next_queue_id)
        sealed = prepared.seal(prepared.leader.start + size)
        opened = sealed.open_next()
        for who, state in ((heir, prepared), (source, sealed), (heir, opened), (source, opened)):
            self._record(who, state)
            if data.draw(st.booleans()):
                self.hear(who)
        self.truth[queue.queue] = opened

    @rule(number=st.integers(0, 7), heir=brokers)
    def force(self, number: int, heir: str) -> None:
        """The old leader is not asked, and goes on claiming."""
        queue = self._choose(number, heir)
        if queue is None:
            return
        self.epoch += 1
        self.next_queue_id += 1
        forced = queue.force(heir, self.next_queue_id)
        self._record(heir, forced)
        self.truth[queue.queue] = forced

    @rule(heir=brokers, data=st.data())
    def grow(self, heir: str, data: st.DataObject) -> None:
        """One more queue; the others learn the new number one by one."""
        if self.total >= 8:
            return
        self.epoch += 1
        self.total += 1
        self.next_queue_id += 1
        self.truth[self.total - 1] = new_logical_queue(self.total - 1, heir, self.next_queue_id)
        for name in data.draw(st.permutations(BROKERS)):
            self._record(name, *([self.truth[self.total - 1]] if name == heir else []))
            if data.draw(st.booleans()):
                self.hear(name)

    # What the name server hears.

    @rule(name=brokers)
    def hear(self, name: str) -> None:
        """A broker registers what it knows."""
        self._register(name, self.records[name])

    @rule(name=brokers, data=st.data())
    def hear_old(self, name: str, data: st.DataObject) -> None:
        """A registration that was long on its way, or a broker with the disk of an earlier day."""
        self._register(name, data.draw(st.sampled_from(self.versions[name])))

    @rule(name=brokers, owner=brokers)
    def hear_copy(self, name: str, owner: str) -> None:
        """A broker with another's mapping."""
        if name != owner:
            refused = self._register(name, self.records[owner])
            assert "orders" in refused

    def _register(self, name: str, record: TopicMapping) -> dict[str, str]:
        self.table.add_address(name, 0, address_of(name), cluster="C1", zone=None, is_acting_master_allowed=False)
        refused = self.table.update_mappings(name, {"orders": to_plain(to_info(record))})
        if not refused:
            self.table.update_topics(name, [a_topic("orders")])
        return refused

    @rule(name=brokers)
    def lose(self, name: str) -> None:
        """A broker is away."""
        self.table.remove_address(name, address_of(name))

    # What must always hold.

    @invariant()
    def java_comes_to_the_same_leaders(self) -> None:
        """One leader for each queue, never a queue of nobody, and never an older home than was told before."""
        topic = self.table.static.find("orders")
        if topic is None or topic.served is None:
            assert not self.was_served
            return
        self.was_served = True
        body = aware_body([RoutePart(topic)], self.table.brokers, self.table.topics.get("orders", {}))
        told = java_leaders(body)
        assert told == topic.served.leaders
        assert NO_LEADER not in told.values()
        for number, queue in topic.served.queues.items():
            assert queue.generation >= self.generations.get(number, 0)
            self.generations[number] = queue.generation

    def teardown(self) -> None:
        """Once everybody told what it knows, the truth is served."""
        for name in BROKERS:
            self._record(name)
        for name in BROKERS:
            self.hear(name)
        topic = self.table.static.find("orders")
        assert topic is not None
        assert topic.served is not None
        assert topic.reasons == []
        assert topic.served.leaders == {number: queue.leader.broker for number, queue in self.truth.items()}


TestHistory = History.TestCase
TestHistory.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
