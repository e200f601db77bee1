"""Orders that move logical queues: plan one, compare the state it was planned for, and start it.

order ─> plan_order ─> people read its tables ─> plan_order again ─> find_changes: none ─> start_order
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import msgspec

from holdfast.admin.moves import MovePlan
from holdfast.admin.operations import Admin
from holdfast.admin.static_topics import BrokerMappings, ClusterMappings, StaticTopic
from holdfast.model.queue import LogicalQueueId
from holdfast.model.scope import to_shown_scope
from holdfast.wire.requests.moves import Move


class MoveQueueOrder(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="migrate"):
    """Move one logical queue to another broker."""

    topic: str
    queue: LogicalQueueId
    to: str


class MoveTopicOrder(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="move"):
    """Move a topic: only these brokers lead it afterwards, evenly."""

    topic: str
    to: list[str]


class DrainOrder(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="drain"):
    """Move every logical queue off a broker, and give it no new ones."""

    broker: str


class SpreadOrder(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="spread"):
    """Give a new broker, or one that was drained, its share of every static topic."""

    broker: str


class RebalanceOrder(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="rebalance"):
    """Distribute the queues of all static topics, or of one, evenly over the brokers, with the fewest moves."""

    topic: str | None = None


MoveOrder = MoveQueueOrder | MoveTopicOrder | DrainOrder | SpreadOrder | RebalanceOrder


async def plan_order(admin: Admin, order: MoveOrder) -> MovePlan:
    """Return the moves of an order, for the current state of the cluster.

    Raises:
        NotFound: there is no such topic, queue or broker.
        NotAllowed: a broker cannot take part, or there is nothing to move.
    """
    match order:
        case MoveQueueOrder():
            return await admin.moves.plan_queue(order.topic, order.queue, order.to)
        case MoveTopicOrder():
            return await admin.moves.plan_topic(order.topic, order.to)
        case DrainOrder():
            return await admin.moves.plan_drain(order.broker)
        case SpreadOrder():
            return await admin.moves.plan_spread(order.broker)
        case RebalanceOrder():
            return await admin.moves.plan_rebalance(order.topic)


async def start_order(admin: Admin, order: MoveOrder, plan: MovePlan) -> list[Move]:
    """Start the moves of a plan; first record whether their broker is drained. Return the started moves.

    Raises:
        NotFound: there is no such broker any more.
    """
    if isinstance(order, DrainOrder | SpreadOrder):
        await admin.draining.set_draining(order.broker, draining=isinstance(order, DrainOrder))
    return await admin.moves.start(plan)


def goal_of(order: MoveOrder) -> str:
    """Return the goal of an order, in words that fit after "nothing to move: "."""
    match order:
        case MoveQueueOrder():
            return f"{order.to} leads it"
        case MoveTopicOrder():
            return f"{', '.join(order.to)} lead it evenly"
        case DrainOrder():
            return f"{order.broker} leads nothing"
        case SpreadOrder():
            return f"{order.broker} leads its share"
        case RebalanceOrder():
            return "every broker leads its share"


def fingerprint(view: ClusterMappings) -> dict[str, str]:
    """Return a checksum of everything that a plan reads, by the noun that people know it as.

    That is, of topics: epoch, queues, segments with their generations, and settings; of brokers: whether they answer,
    can move queues and are drained.
    """
    topics = {_name(topic): _digest(_state_of_topic(topic)) for topic in view.all_topics}
    brokers = {f"broker {name}": _digest(_state_of_broker(mappings)) for name, mappings in view.brokers.items()}
    return topics | brokers


def find_changes(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """Return the nouns whose state differs."""
    return sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))


def _name(topic: StaticTopic) -> str:
    return f"topic {topic.name} of {to_shown_scope(topic.merged.scope)}"


def _state_of_topic(topic: StaticTopic) -> object:
    merged = topic.merged
    return merged.epoch, merged.total, merged.queues, merged.unled, merged.contradictions, topic.configs


def _state_of_broker(mappings: BrokerMappings) -> object:
    return mappings.cluster, mappings.address, mappings.is_ready, mappings.draining


def _digest(state: object) -> str:
    """Return a checksum. It does not depend on the order in which brokers answered."""
    plain = msgspec.to_builtins(state, str_keys=True)
    return hashlib.sha256(msgspec.json.encode(plain, order="sorted")).hexdigest()
