"""Forced moves in a cluster of machines, as an operator orders them."""

from tests.support.moving_cluster import TOPIC, MovingCluster

from holdfast.wire.cluster.mapping import Home, to_home
from holdfast.wire.frames.codes import RequestCode
from holdfast.wire.frames.command import Command
from holdfast.wire.requests.moves import ForceOrder, QueueHomes


def homes_of(cluster: MovingCluster, queue: int, source: str) -> list[Home]:
    """Return the homes of a queue as *source* recorded them last."""
    mapping = cluster.rooms[source].mappings.find(TOPIC)
    assert mapping is not None
    return [to_home(segment) for segment in mapping.queues[queue].segments]


def force(
    cluster: MovingCluster, target: str, queue: int = 0, source: str = "a", homes: list[Home] | None = None
) -> Command:
    """Let *target* lead a queue by force, going by what its old leader recorded, or by *homes*."""
    rooms = cluster.rooms[source]
    mapping, config = rooms.mappings.find(TOPIC), rooms.topics.find(TOPIC)
    assert mapping is not None
    assert config is not None
    homes = homes_of(cluster, queue, source) if homes is None else homes
    order = ForceOrder(
        topic=config,
        scope=mapping.scope,
        epoch=mapping.epoch + 1_000,
        total=mapping.total,
        queues=[QueueHomes(queue=queue, homes=homes)],
    )
    return cluster.ask(target, RequestCode.FORCE_QUEUES, order)
