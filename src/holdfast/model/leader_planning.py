"""Plan which broker leads which logical queue, with the fewest moves. Equal input gives equal plans.

A plan is a list of moves. Planning has no effects, and a plan may be executed in part.

    leaders   {0: "a", 1: "a", 2: "b"}        of one topic
    topics    {"orders": {0: "a", ...}, ...}  of a cluster

Even means: the numbers of queues that any two brokers lead differ by at most one, in each topic and, if the whole
cluster is planned, over all topics together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from holdfast.model.errors import MappingRefused
from holdfast.model.mapping import QUEUES_MAX
from holdfast.model.queue import LogicalQueueId

Leaders = Mapping[LogicalQueueId, str]
"""Logical queue to its leader."""


class PlannedMove(msgspec.Struct, frozen=True, order=True):
    """A change of a logical queue's leader; without a source the queue is new."""

    topic: str
    queue: LogicalQueueId
    source: str | None
    target: str


def count_led_queues(topics: Mapping[str, Leaders]) -> Counter[str]:
    """Return how many logical queues each broker leads over all *topics*."""
    return Counter(broker for leaders in topics.values() for broker in leaders.values())


def apply_moves(leaders: Leaders, moves: Iterable[PlannedMove]) -> dict[LogicalQueueId, str]:
    """Return the leaders after *moves*, which must all be of one topic."""
    return {**leaders, **{move.queue: move.target for move in moves}}


def plan_create(
    topic: str, total: int, brokers: Collection[str], *, load: Mapping[str, int] | None = None
) -> list[PlannedMove]:
    """Return the initial leaders of a new topic: evenly distributed, the remainder to the least loaded brokers.

    Args:
        topic: The topic's name.
        total: The number of its logical queues.
        brokers: The brokers to choose from.
        load: Broker to the number of queues of other topics that it leads.

    Raises:
        MappingRefused: no brokers, or an invalid number of queues.
    """
    return plan_grow(topic, {}, total, brokers, load=load)


def plan_grow(
    topic: str, leaders: Leaders, total: int, brokers: Collection[str], *, load: Mapping[str, int] | None = None
) -> list[PlannedMove]:
    """Return the leaders of new queues, so that a topic has *total*: each goes to the broker with the fewest.

    Existing queues keep their leaders, also leaders that are not in *brokers*.

    Raises:
        MappingRefused: no brokers, fewer queues than exist, or more than a topic can have.
    """
    _require_brokers(brokers, f"{topic} needs a broker for its queues: name one that is alive")
    if not 1 <= total <= QUEUES_MAX:
        raise MappingRefused("number of queues", f"{topic} can have 1 to {QUEUES_MAX} logical queues, not {total}")
    if total < len(leaders):
        raise MappingRefused(
            "queues never shrink",
            f"{topic} has {len(leaders)} logical queues and cannot have {total}: their records and consumers would lose"
            " their place. Create another topic",
        )
    counts = Counter(leaders.values())
    other_load = Counter(load or {})
    moves = []
    for queue in map(LogicalQueueId, range(total)):
        if queue not in leaders:
            target = _least_loaded(brokers, counts, other_load)
            counts[target] += 1
            moves.append(PlannedMove(topic, queue, None, target))
    return moves


def plan_move(
    topic: str, leaders: Leaders, targets: Collection[str], *, load: Mapping[str, int] | None = None
) -> list[PlannedMove]:
    """Return the fewest moves after which only *targets* lead the topic, evenly.

    Args:
        topic: The topic's name.
        leaders: The present leaders.
        targets: The new leaders.
        load: Broker to the number of queues of other topics that it leads; breaks ties.

    Raises:
        MappingRefused: no targets.
    """
    _require_brokers(targets, f"{topic} needs a broker to move to: name one that is alive")
    other_load = Counter(load or {})
    counts = Counter(leaders.values())
    share, remainder = divmod(len(leaders), len(set(targets)))
    # A broker with more than its share gets one of the extra queues: that saves a move.
    ranked = sorted(set(targets), key=lambda broker: (counts[broker] <= share, other_load[broker], broker))
    return _moves_to_quotas(topic, leaders, {broker: share + (rank < remainder) for rank, broker in enumerate(ranked)})


def plan_drain(broker: str, topics: Mapping[str, Leaders], targets: Collection[str]) -> list[PlannedMove]:
    """Return the moves after which *broker* leads nothing. No other queue moves.

    Args:
        broker: The broker to drain.
        topics: The present leaders.
        targets: The brokers that may take over; *broker* itself is ignored.

    Raises:
        MappingRefused: there are queues to move, but no target.
    """
    candidates = [target for target in targets if target != broker]
    totals = count_led_queues(topics)
    if not totals[broker]:
        return []
    _require_brokers(
        candidates,
        f"{broker} leads {totals[broker]} logical queues, and there is no other broker to take over: add one first",
    )
    moves = []
    for topic, leaders in sorted(topics.items()):
        counts = Counter(leaders.values())
        for queue in sorted(queue for queue, leader in leaders.items() if leader == broker):
            target = _least_loaded(candidates, counts, totals)
            counts[target] += 1
            totals[target] += 1
            moves.append(PlannedMove(topic, queue, broker, target))
    return moves


def plan_spread(broker: str, topics: Mapping[str, Leaders], brokers: Collection[str]) -> list[PlannedMove]:
    """Return the moves that give a new *broker* its share of every topic. No queue moves between the others.

    Args:
        broker: The new broker.
        topics: The present leaders.
        brokers: The brokers that share the topics, with or without the new one.
    """
    members = {broker, *brokers}
    totals = count_led_queues(topics)
    total_share = sum(len(leaders) for leaders in topics.values()) // len(members)
    moves: list[PlannedMove] = []
    # First the whole share of each topic; then, up to its share of everything, one more, by most extra queues.
    by_remainder = sorted(topics, key=lambda topic: (-(len(topics[topic]) % len(members)), topic))
    for extra, names in ((0, sorted(topics)), (1, by_remainder)):
        for topic in names:
            current = apply_moves(topics[topic], (move for move in moves if move.topic == topic))
            share = len(current) // len(members) + (extra if len(current) % len(members) else 0)
            while Counter(current.values())[broker] < share and (extra == 0 or totals[broker] < total_share):
                move = _move_from_most_loaded(topic, current, broker, totals)
                current[move.queue] = broker
                moves.append(move)
    return sorted(moves)


def plan_rebalance(topics: Mapping[str, Leaders], brokers: Collection[str]) -> list[PlannedMove]:
    """Return the fewest moves after which only *brokers* lead, evenly in each topic and over all topics.

    Raises:
        MappingRefused: no brokers.
    """
    _require_brokers(brokers, "there is no broker to share the logical queues: name one that is alive")
    members = sorted(set(brokers))
    counts = {topic: Counter(leaders.values()) for topic, leaders in topics.items()}
    extras = _Extras(members)
    for topic in sorted(topics):
        share, remainder = divmod(len(topics[topic]), len(members))
        extras.add(topic, remainder, frozenset(broker for broker in members if counts[topic][broker] > share))
    extras.balance()
    moves: list[PlannedMove] = []
    for topic in sorted(topics):
        share = len(topics[topic]) // len(members)
        quotas = {broker: share + (broker in extras.chosen[topic]) for broker in members}
        moves += _moves_to_quotas(topic, topics[topic], quotas)
    return moves


class _Extras:
    """Chooses which brokers lead an extra queue of a topic, so that their numbers of extra queues differ by 0 or 1.

    A topic chooses a broker for each of its extra queues. Choosing a broker that has more than the share already saves
    a move. `add` makes the choices that save the most; `balance` then transfers choices from brokers with many to
    brokers with few, through other brokers if necessary, always on the path that costs the fewest moves.
    """

    def __init__(self, brokers: Sequence[str]) -> None:
        self.chosen: dict[str, set[str]] = {}
        self._brokers = brokers
        self._saves: dict[str, frozenset[str]] = {}
        self._counts = dict.fromkeys(brokers, 0)
        # (source, target) -> cost of a transfer -> the topics that can be transferred, in insertion order.
        self._transfers: dict[tuple[str, str], dict[int, dict[str, None]]] = {}

    def add(self, topic: str, count: int, saves: frozenset[str]) -> None:
        """Choose *count* brokers for *topic*: first those in *saves*, then those with the fewest extra queues."""
        ranked = sorted(self._brokers, key=lambda broker: (broker not in saves, self._counts[broker], broker))
        self.chosen[topic] = set(ranked[:count])
        self._saves[topic] = saves
        for broker in ranked[:count]:
            self._counts[broker] += 1
        self._add_transfers(topic)

    def balance(self) -> None:
        """Transfer choices until the numbers of extra queues differ by at most one."""
        while max(self._counts.values()) - min(self._counts.values()) > 1:
            for source, target in self._cheapest_path():
                self._transfer(source, target)

    def _cost(self, topic: str, source: str, target: str) -> int:
        return (source in self._saves[topic]) - (target in self._saves[topic])

    def _add_transfers(self, topic: str) -> None:
        for source in self.chosen[topic]:
            for target in self._brokers:
                if target not in self.chosen[topic]:
                    by_cost = self._transfers.setdefault((source, target), {})
                    by_cost.setdefault(self._cost(topic, source, target), {})[topic] = None

    def _remove_transfers(self, topic: str) -> None:
        for source in self.chosen[topic]:
            for target in self._brokers:
                if target not in self.chosen[topic]:
                    by_cost = self._transfers[source, target]
                    cost = self._cost(topic, source, target)
                    del by_cost[cost][topic]
                    if not by_cost[cost]:
                        del by_cost[cost]

    def _transfer(self, source: str, target: str) -> None:
        by_cost = self._transfers[source, target]
        topic = min(by_cost[min(by_cost)])
        self._remove_transfers(topic)
        self.chosen[topic] ^= {source, target}
        self._counts[source] -= 1
        self._counts[target] += 1
        self._add_transfers(topic)

    def _cheapest_path(self) -> list[tuple[str, str]]:
        """Return the steps from a broker with the most to a broker with the fewest extra queues (Bellman-Ford)."""
        most, least = max(self._counts.values()), min(self._counts.values())
        costs = {broker: 0 for broker in self._brokers if self._counts[broker] == most}
        predecessors: dict[str, str] = {}
        edges = [
            (source, target, min(by_cost)) for (source, target), by_cost in sorted(self._transfers.items()) if by_cost
        ]
        for _ in self._brokers:
            for source, target, cost in edges:
                if source in costs and costs[source] + cost < costs.get(target, len(self._brokers) + 1):
                    costs[target] = costs[source] + cost
                    predecessors[target] = source
        ends = [broker for broker in costs if self._counts[broker] == least]
        at = min(ends, key=lambda broker: (costs[broker], broker))
        path = []
        while at in predecessors:
            path.append((predecessors[at], at))
            at = predecessors[at]
        return path[::-1]


def _moves_to_quotas(topic: str, leaders: Leaders, quotas: Mapping[str, int]) -> list[PlannedMove]:
    """Return the moves after which every broker leads its quota. No broker both gives and receives queues."""
    remaining = dict(quotas)
    surplus = []
    for queue in sorted(leaders):
        if remaining.get(leaders[queue], 0) > 0:
            remaining[leaders[queue]] -= 1
        else:
            surplus.append(queue)
    receivers = [broker for broker in sorted(remaining) for _ in range(remaining[broker])]
    return [PlannedMove(topic, queue, leaders[queue], target) for queue, target in zip(surplus, receivers, strict=True)]


def _least_loaded(brokers: Iterable[str], counts: Mapping[str, int], totals: Mapping[str, int]) -> str:
    return min(brokers, key=lambda broker: (counts[broker], totals[broker], broker))


def _move_from_most_loaded(topic: str, leaders: Leaders, broker: str, totals: Counter[str]) -> PlannedMove:
    counts = Counter(leaders.values())
    source = max((name for name in counts if name != broker), key=lambda name: (counts[name], totals[name], name))
    totals[source] -= 1
    totals[broker] += 1
    return PlannedMove(topic, max(queue for queue, leader in leaders.items() if leader == source), source, broker)


def _require_brokers(brokers: Collection[str], text: str) -> None:
    if not brokers:
        raise MappingRefused("a broker must lead", text)
