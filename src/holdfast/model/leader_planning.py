"""Who should lead which logical queue: plans with the fewest moves, the same for the same question.

A plan is a list of moves. Nobody is asked and nothing is changed here; whoever carries a plan out may stop anywhere.

    leaders   {0: "a", 1: "a", 2: "b"}        of one topic
    topics    {"orders": {0: "a", ...}, ...}  of a cluster

Even means: the numbers of queues that any two brokers lead differ by one at most, in each topic and, where the whole
cluster is planned, over all topics together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from holdfast.model.errors import MappingRefused
from holdfast.model.mapping import QUEUES_MAX

Leaders = Mapping[int, str]
"""Logical queue to the broker that leads it."""


class Move(msgspec.Struct, frozen=True, order=True):
    """A logical queue gets another leader; without a source it is new."""

    topic: str
    queue: int
    source: str | None
    target: str


def count_leads(topics: Mapping[str, Leaders]) -> Counter[str]:
    """Return how many logical queues each broker leads over all *topics*."""
    return Counter(broker for leaders in topics.values() for broker in leaders.values())


def apply_moves(leaders: Leaders, moves: Iterable[Move]) -> dict[int, str]:
    """Return who leads after *moves*, which are all of one topic."""
    return {**leaders, **{move.queue: move.target for move in moves}}


def plan_create(
    topic: str, total: int, brokers: Collection[str], *, load: Mapping[str, int] | None = None
) -> list[Move]:
    """Return where the queues of a new topic go: evenly, and what is left over to the least loaded.

    Args:
        topic: Its name.
        total: How many logical queues it gets.
        brokers: Among whom.
        load: Broker to how many queues of other topics it leads.

    Raises:
        MappingRefused: no brokers, or a number of queues that no topic can have.
    """
    return plan_grow(topic, {}, total, brokers, load=load)


def plan_grow(
    topic: str, leaders: Leaders, total: int, brokers: Collection[str], *, load: Mapping[str, int] | None = None
) -> list[Move]:
    """Return where new queues of a topic go, so that it has *total*: always to whoever leads the fewest of it.

    Queues that are there stay where they are, also on brokers that are not asked for.

    Raises:
        MappingRefused: no brokers, fewer queues than there are, or more than a topic can have.
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
    others = Counter(load or {})
    moves = []
    for queue in range(total):
        if queue not in leaders:
            target = _least_loaded(brokers, counts, others)
            counts[target] += 1
            moves.append(Move(topic, queue, None, target))
    return moves


def plan_move(
    topic: str, leaders: Leaders, targets: Collection[str], *, load: Mapping[str, int] | None = None
) -> list[Move]:
    """Return the fewest moves after which *targets*, and nobody else, lead the topic evenly.

    Args:
        topic: Its name.
        leaders: Who leads now.
        targets: Who shall lead.
        load: Broker to how many queues of other topics it leads; decides between equals.

    Raises:
        MappingRefused: no targets.
    """
    _require_brokers(targets, f"{topic} needs a broker to move to: name one that is alive")
    others = Counter(load or {})
    counts = Counter(leaders.values())
    share, rest = divmod(len(leaders), len(set(targets)))
    # Whoever has more than its share keeps one more: that is a move less each.
    ranked = sorted(set(targets), key=lambda broker: (counts[broker] <= share, others[broker], broker))
    return _moves_to_quotas(topic, leaders, {broker: share + (rank < rest) for rank, broker in enumerate(ranked)})


def plan_drain(broker: str, topics: Mapping[str, Leaders], targets: Collection[str]) -> list[Move]:
    """Return the moves after which *broker* leads nothing. No other queue moves.

    Args:
        broker: Who shall lead nothing.
        topics: Who leads now.
        targets: Who may take over; the drained broker itself is passed over.

    Raises:
        MappingRefused: there is something to move, and nobody to move it to.
    """
    rest = [target for target in targets if target != broker]
    totals = count_leads(topics)
    if not totals[broker]:
        return []
    _require_brokers(
        rest,
        f"{broker} leads {totals[broker]} logical queues, and there is no other broker to take them: add one first",
    )
    moves = []
    for topic, leaders in sorted(topics.items()):
        counts = Counter(leaders.values())
        for queue in sorted(queue for queue, leader in leaders.items() if leader == broker):
            target = _least_loaded(rest, counts, totals)
            counts[target] += 1
            totals[target] += 1
            moves.append(Move(topic, queue, broker, target))
    return moves


def plan_spread(broker: str, topics: Mapping[str, Leaders], brokers: Collection[str]) -> list[Move]:
    """Return the moves that give a new *broker* its share of every topic. No queue moves between the others.

    Args:
        broker: Who shall get a share.
        topics: Who leads now.
        brokers: Between whom the topics are shared, with or without the new one.
    """
    members = {broker, *brokers}
    totals = count_leads(topics)
    wanted = sum(len(leaders) for leaders in topics.values()) // len(members)
    moves: list[Move] = []
    # First a whole share of each topic, then, up to its share of everything, one more of those with the largest rest.
    by_rest = sorted(topics, key=lambda topic: (-(len(topics[topic]) % len(members)), topic))
    for extra, names in ((0, sorted(topics)), (1, by_rest)):
        for topic in names:
            led = apply_moves(topics[topic], (move for move in moves if move.topic == topic))
            share = len(led) // len(members) + (extra if len(led) % len(members) else 0)
            while Counter(led.values())[broker] < share and (extra == 0 or totals[broker] < wanted):
                move = _take_from_most_loaded(topic, led, broker, totals)
                led[move.queue] = broker
                moves.append(move)
    return sorted(moves)


def plan_rebalance(topics: Mapping[str, Leaders], brokers: Collection[str]) -> list[Move]:
    """Return the fewest moves after which *brokers*, and nobody else, lead every topic and all together evenly.

    Raises:
        MappingRefused: no brokers.
    """
    _require_brokers(brokers, "there is no broker to share the logical queues: name one that is alive")
    members = sorted(set(brokers))
    counts = {topic: Counter(leaders.values()) for topic, leaders in topics.items()}
    extras = _Extras(members)
    for topic in sorted(topics):
        share, rest = divmod(len(topics[topic]), len(members))
        extras.add(topic, rest, frozenset(broker for broker in members if counts[topic][broker] > share))
    extras.level()
    moves: list[Move] = []
    for topic in sorted(topics):
        share = len(topics[topic]) // len(members)
        quotas = {broker: share + (broker in extras.chosen[topic]) for broker in members}
        moves += _moves_to_quotas(topic, topics[topic], quotas)
    return moves


class _Extras:
    """Which brokers lead one more of a topic than its even share, so that nobody has two more of these than another.

    A topic with `rest` queues left over chooses that many brokers. Choosing one that has more than the share already
    saves a move. The first choice saves the most; `level` then hands choices on from those with many to those with few,
    over other brokers if need be, always on the way that costs the fewest moves.
    """

    def __init__(self, brokers: Sequence[str]) -> None:
        self.chosen: dict[str, set[str]] = {}
        self._brokers = brokers
        self._saves: dict[str, frozenset[str]] = {}
        self._counts = dict.fromkeys(brokers, 0)
        # (giver, taker) -> cost of handing over -> the topics with which it can be done, in the order they came.
        self._handovers: dict[tuple[str, str], dict[int, dict[str, None]]] = {}

    def add(self, topic: str, rest: int, saves: frozenset[str]) -> None:
        """Choose *rest* brokers for *topic*, first those in *saves*, the least chosen first."""
        ranked = sorted(self._brokers, key=lambda broker: (broker not in saves, self._counts[broker], broker))
        self.chosen[topic] = set(ranked[:rest])
        self._saves[topic] = saves
        for broker in ranked[:rest]:
            self._counts[broker] += 1
        self._list(topic)

    def level(self) -> None:
        """Hand on until nobody is chosen two times more often than another."""
        while max(self._counts.values()) - min(self._counts.values()) > 1:
            for giver, taker in self._cheapest_way():
                self._hand_over(giver, taker)

    def _cost(self, topic: str, giver: str, taker: str) -> int:
        return (giver in self._saves[topic]) - (taker in self._saves[topic])

    def _list(self, topic: str) -> None:
        for giver in self.chosen[topic]:
            for taker in self._brokers:
                if taker not in self.chosen[topic]:
                    by_cost = self._handovers.setdefault((giver, taker), {})
                    by_cost.setdefault(self._cost(topic, giver, taker), {})[topic] = None

    def _unlist(self, topic: str) -> None:
        for giver in self.chosen[topic]:
            for taker in self._brokers:
                if taker not in self.chosen[topic]:
                    by_cost = self._handovers[giver, taker]
                    cost = self._cost(topic, giver, taker)
                    del by_cost[cost][topic]
                    if not by_cost[cost]:
                        del by_cost[cost]

    def _hand_over(self, giver: str, taker: str) -> None:
        by_cost = self._handovers[giver, taker]
        topic = min(by_cost[min(by_cost)])
        self._unlist(topic)
        self.chosen[topic] ^= {giver, taker}
        self._counts[giver] -= 1
        self._counts[taker] += 1
        self._list(topic)

    def _cheapest_way(self) -> list[tuple[str, str]]:
        """Return the steps from one of those with the most to one of those with the least (Bellman and Ford)."""
        most, least = max(self._counts.values()), min(self._counts.values())
        costs = {broker: 0 for broker in self._brokers if self._counts[broker] == most}
        before: dict[str, str] = {}
        edges = [(giver, taker, min(by_cost)) for (giver, taker), by_cost in sorted(self._handovers.items()) if by_cost]
        for _ in self._brokers:
            for giver, taker, cost in edges:
                if giver in costs and costs[giver] + cost < costs.get(taker, len(self._brokers) + 1):
                    costs[taker] = costs[giver] + cost
                    before[taker] = giver
        ends = [broker for broker in costs if self._counts[broker] == least]
        at = min(ends, key=lambda broker: (costs[broker], broker))
        way = []
        while at in before:
            way.append((before[at], at))
            at = before[at]
        return way[::-1]


def _moves_to_quotas(topic: str, leaders: Leaders, quotas: Mapping[str, int]) -> list[Move]:
    """Return the moves after which everybody leads its quota. Whoever gives does not take."""
    left = dict(quotas)
    homeless = []
    for queue in sorted(leaders):
        if left.get(leaders[queue], 0) > 0:
            left[leaders[queue]] -= 1
        else:
            homeless.append(queue)
    takers = [broker for broker in sorted(left) for _ in range(left[broker])]
    return [Move(topic, queue, leaders[queue], target) for queue, target in zip(homeless, takers, strict=True)]


def _least_loaded(brokers: Iterable[str], counts: Mapping[str, int], totals: Mapping[str, int]) -> str:
    return min(brokers, key=lambda broker: (counts[broker], totals[broker], broker))


def _take_from_most_loaded(topic: str, led: Leaders, broker: str, totals: Counter[str]) -> Move:
    counts = Counter(led.values())
    source = max((name for name in counts if name != broker), key=lambda name: (counts[name], totals[name], name))
    totals[source] -= 1
    totals[broker] += 1
    return Move(topic, max(queue for queue, leader in led.items() if leader == source), source, broker)


def _require_brokers(brokers: Collection[str], text: str) -> None:
    if not brokers:
        raise MappingRefused("somebody must lead", text)
