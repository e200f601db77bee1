"""Forced moves in a cluster of machines, as an operator orders them."""

from tests.support.cluster.simulated import TOPIC, MovingCluster

from holdfast.wire.cluster.mapping import WireSegment, to_wire_segment
from holdfast.wire.frames.codes import RequestCode
from holdfast.wire.frames.command import Command
from holdfast.wire.requests.moves import ForceRequest, QueueSegments


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
        queues=[QueueSegments(queue=queue, homes=segments)],
    )
    return cluster.call(target, RequestCode.FORCE_QUEUES, order)
